"""The matrix-free engine: HVPs per update, and the cost of an HVP.

ridgerider bench matrix-free
"""

import statistics
from collections.abc import Iterator

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


def network(num_pixels: int, width: int, num_images: int, seed: int) -> rr.Problem:
    random = np.random.default_rng(seed)
    images = random.uniform(size=(num_images, num_pixels)).astype(np.float32)
    labels = random.integers(0, 10, num_images)
    return classifier(images, labels, widths=(width,), init_scale=0.01)


TASKS = (update, hvp)
