"""The matrix-free engine, measured: products per update, cost of a product, memory, size.

    python -m ridgerider_experiments.bench.matrix_free

All comparisons are ratios taken in one run.
"""

import itertools
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import ridgerider as rr
from ridgerider.problems import classifier
from ridgerider_experiments.bench.peers import best_of_the_paper
from tests.core.ride.test_follow import follow, perturbed, ridge_along

KEY = jax.random.key(0)


def products_per_update():
    """To a residual of 1e-3, an interior ridge of a 400 x 400 Hessian one step further."""
    for size in (0.05, 0.2, 0.5):
        free, quick, warm, paper = [], [], [], []
        for seed in range(5):
            problem, columns = perturbed(seed, size=size)
            scale = 2.0  # the largest |eigenvalue|
            ridge = ridge_along(columns[:, 3], -1.4)
            neighbours = jnp.asarray(columns[:, [0, 1, 2, 4, 5, 6, 7]].T)
            near = eqx.tree_at(
                lambda r: r.memory, ridge, neighbours, is_leaf=lambda leaf: leaf is None
            )
            tolerance = 1e-3 / scale
            free.append(follow(rr.Davidson(tolerance), problem, problem.x0, ridge))
            update = rr.Davidson(tolerance, resolve=False)
            quick.append(follow(update, problem, problem.x0, ridge))
            update = rr.Davidson(tolerance, resolve=False, num_neighbours=7)
            warm.append(follow(update, problem, problem.x0, near))
            paper.append(best_of_the_paper(problem, ridge, KEY)[0])
        counts = [[int(tracked.cost.hvps) for tracked in of] for of in (free, quick, warm)]
        print(f"update, perturbation {size}: HVPs to residual 1e-3, five seeds")
        print(f"  Davidson {counts[0]}, to the tolerance only {counts[1]}", end="")
        print(f", with 7 neighbours {counts[2]}")
        print(f"  the paper's, best of 25 pairs of rates {paper}")
        ratios = [slow / fast for slow, fast in zip(paper, counts[1], strict=True)]
        print(f"  ratio {min(ratios):.0f} to {max(ratios):.0f}")


def cost_of_a_product():
    problem = network(784, 128)
    x, v = problem.x0, jnp.ones_like(problem.x0)
    value, grad, hvp = (
        eqx.filter_jit(lambda problem, f=f: f(problem))
        for f in (
            lambda p: p.value(x),
            lambda p: p.grad(x),
            lambda p: p.hvp(x, v),
        )
    )
    times = {"value": [], "grad": [], "hvp": []}
    for _ in range(30):  # interleaved, so that a busy machine slows all of them
        for name, f in (("value", value), ("grad", grad), ("hvp", hvp)):
            began = time.perf_counter()
            jax.block_until_ready(f(problem))
            times[name].append(time.perf_counter() - began)
    medians = {name: float(np.median(of[3:])) for name, of in times.items()}
    print(
        f"one HVP costs {medians['hvp'] / medians['grad']:.2f} gradients (784-128-10, 1024 images),"
        f" one gradient {medians['grad'] / medians['value']:.2f} values"
    )


def memory_of_a_ride():
    problem = network(784, 128)
    ridge = ridge_along(jnp.ones_like(problem.x0) / np.sqrt(problem.size).astype(np.float32))
    sizes = []
    for num in (8, 16, 32, 64):
        rider = rr.Rider(update=rr.Davidson(max_hvps=num), finish=None, max_steps=10)
        ride = jax.jit(lambda x, ridge, r=rider: r.ride(problem, x, ridge, KEY))
        used = ride.lower(problem.x0, ridge).compile().memory_analysis().temp_size_in_bytes
        sizes.append((num, used / (4 * problem.size)))
    print("memory of a ride in vectors of parameters, by max_hvps (2 each, and the loop's copy):")
    print("  " + ", ".join(f"{num}: {vectors:.0f}" for num, vectors in sizes))
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(sizes)]
    print("  vectors per product allowed: " + ", ".join(f"{slope:.2f}" for slope in slopes))


def ten_million_parameters():
    problem = network(784, 12_600, num_images=64)
    rider = rr.Rider(
        spectrum=rr.BlockSpectrum(k=1, tolerance=0.05, max_rows=8, max_hvps=12),
        update=rr.Davidson(tolerance=0.05, max_hvps=6),
        step=rr.FixedStep(0.1),
        correct=rr.Valley(num_hvps=3),
        finish=None,
        max_steps=3,
    )
    began = time.perf_counter()
    spectrum = eqx.filter_jit(rider.look)(problem, problem.x0, KEY)
    ride = eqx.filter_jit(rider.ride)(problem, problem.x0, spectrum.ridge(0), KEY)
    steps, seconds = int(ride.num_steps), time.perf_counter() - began
    print(
        f"{problem.size:,} parameters: {steps} steps, {int(ride.cost.hvps)} HVPs, loss "
        f"{float(ride.trace.loss[0]):.4f} to {float(ride.loss):.4f}, {seconds:.0f} s"
    )


def network(pixels, width, num_images=1024):
    random = np.random.default_rng(0)
    images = random.uniform(size=(num_images, pixels)).astype(np.float32)
    labels = random.integers(0, 10, num_images)
    return classifier(images, labels, widths=(width,), init_scale=0.01)


def drift_by_precision():
    """A ride followed by HVPs, audited by dense spectra, in both precisions."""
    images = np.random.default_rng(0).uniform(size=(200, 16))
    labels = (images[:, :4].argmax(axis=1)).astype(int)
    for dtype in (np.float32, np.float64):
        problem = classifier(images.astype(dtype), labels, widths=(6,), init_scale=0.1)
        ridge = rr.DenseSpectrum()(problem, problem.x0, KEY).ridge(1)
        rider = rr.Rider(update=rr.Davidson(1e-5), finish=None, max_steps=200, audit_every=5)
        ride = eqx.filter_jit(rider.ride)(problem, problem.x0, ridge, KEY)
        drift = np.asarray(ride.trace.audit.drift)
        print(
            f"{np.dtype(dtype).name}: {int(ride.num_steps)} steps, "
            f"{np.isfinite(drift).sum()} audits, largest drift {np.nanmax(drift):.1e}"
        )


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    products_per_update()
    cost_of_a_product()
    memory_of_a_ride()
    drift_by_precision()
    ten_million_parameters()
