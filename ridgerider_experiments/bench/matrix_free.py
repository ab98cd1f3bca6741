"""The matrix-free engine: HVPs per update, cost of an HVP, memory, drift by precision.

ridgerider bench matrix-free
"""

import statistics
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import ridgerider as rr
from ridgerider.problems import classifier
from ridgerider.types import Ridge, Tracked
from ridgerider_experiments.bench import Row, timed
from ridgerider_experiments.bench.peers import best_of_the_paper, perturbed

KEY = jax.random.key(0)


def update(seed: int) -> Iterator[Row]:
    """HVPs to a residual of 1e-3, for an interior ridge of a 400 x 400 Hessian one step further."""
    rules = {
        "Davidson(resolve=False)": rr.Davidson(1e-3 / 2, resolve=False),
        "Davidson": rr.Davidson(1e-3 / 2),
    }
    for size in (0.05, 0.2, 0.5):
        cases = [perturbed(seed + number, size) for number in range(5)]
        counts = {
            who: [int(_update(rule, *case).cost.hvps) for case in cases]
            for who, rule in rules.items()
        }
        counts["the paper's, best of 25 rates"] = [best_of_the_paper(*case)[0] for case in cases]
        for who, of in counts.items():
            task = f"an update, perturbation {size}, median of five"
            yield Row(task, who, statistics.median(of), "HVPs", f"{min(of)} to {max(of)}")


@eqx.filter_jit
def _update(rule: rr.Davidson, problem: rr.Problem, ridge: Ridge) -> Tracked:
    return rule(problem, problem.x0, ridge, KEY)


def hvp(seed: int) -> Iterator[Row]:
    problem = network(784, 128, 1024, seed)
    x, v = problem.x0, jnp.ones_like(problem.x0)
    programs = {
        "gradient": eqx.filter_jit(lambda problem: problem.grad(x)),
        "value": eqx.filter_jit(lambda problem: problem.value(x)),
        "HVP": eqx.filter_jit(lambda problem: problem.hvp(x, v)),
    }
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(30):  # in turn, so that a busy machine slows all of them
        for name, program in programs.items():
            times[name].append(timed(program, problem)[1])
    for name, of in times.items():
        yield Row("one of 784-128-10 on 1024 images", name, 1e3 * statistics.median(of[3:]), "ms")


def memory_of_a_ride(seed: int) -> Iterator[Row]:
    """The loop holds two vectors for each HVP allowed, and a copy of them."""
    problem = network(784, 128, 1024, seed)
    direction = jnp.ones_like(problem.x0) / jnp.sqrt(problem.size).astype(problem.dtype)
    ridge = Ridge(direction, jnp.array(-1, problem.dtype), jnp.array(0), jnp.array(1))
    for num in (8, 16, 32, 64):
        rider = rr.Rider(update=rr.Davidson(max_hvps=num), finish=None, max_steps=10)
        ride = jax.jit(lambda x, ridge, rider=rider: rider.ride(problem, x, ridge, KEY))
        used: Any = ride.lower(problem.x0, ridge).compile().memory_analysis()
        vectors = used.temp_size_in_bytes / (problem.dtype.itemsize * problem.size)
        yield Row("memory of a ride", f"max_hvps={num}", vectors, "vectors of parameters")


def drift(seed: int) -> Iterator[Row]:
    """A ride followed by HVPs, audited by dense spectra, in both precisions."""
    images = np.random.default_rng(seed).uniform(size=(200, 16))
    labels = images[:, :4].argmax(axis=1).astype(int)
    for dtype in (np.float32, np.float64):
        problem = classifier(images.astype(dtype), labels, widths=(6,), init_scale=0.1)
        ridge = rr.DenseSpectrum()(problem, problem.x0, KEY).ridge(1)
        rider = rr.Rider(update=rr.Davidson(1e-5), finish=None, max_steps=200, audit_every=5)
        ride = eqx.filter_jit(rider.ride)(problem, problem.x0, ridge, KEY)
        audit: Any = ride.trace.audit
        found = np.asarray(audit.drift)
        outcome = f"{int(ride.num_steps)} steps, {np.isfinite(found).sum()} audits"
        yield Row("largest drift of a ride", np.dtype(dtype).name, np.nanmax(found), "", outcome)


def network(num_pixels: int, width: int, num_images: int, seed: int) -> rr.Problem:
    random = np.random.default_rng(seed)
    images = random.uniform(size=(num_images, num_pixels)).astype(np.float32)
    labels = random.integers(0, 10, num_images)
    return classifier(images, labels, widths=(width,), init_scale=0.01)


TASKS = (update, hvp, memory_of_a_ride, drift)
