"""Figures 3 and 7: what is left of Ridge Rider without its parts.

    ridgerider reproduce ablation

Paper, Figure 3 (depth 12, ten seeds, a fixed budget that is not given): Fixed-EV is competitive,
Rand-Ridge+ is not. Figure 7, right (step size 0.1, with and without UpdateRidge): "as we impose
greater rigidity, the performance declines". Figure 7, left: two rides and two gradient descents in
the plane of the two ridges.

Differs from the paper: 10,000 iterations, small enough for methods to differ, and step sizes of
Fixed-EV and Rand-Ridge+, the best of four; it gives neither.
"""

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ridgerider as rr
from ridgerider import baselines
from ridgerider.problems.tree import make_tree
from ridgerider_experiments import tree_methods
from ridgerider_experiments.runner import Base, Job, Runner, sized
from ridgerider_experiments.show import bars, descent_paths, drawing

METHODS = {  # what it is, the paper's words, and its colour
    "rr": ("Ridge Rider", "best", "#D55E00"),
    "fixed_ev": ("Fixed-EV", "competitive", "#0072B2"),
    "rand_ridge": ("Rand-Ridge+", "poor", "#CC79A7"),
    "fixed_step": ("fixed step", "below Ridge Rider", "#E69F00"),
    "fixed_step_fixed_ridge": ("fixed step and ridge", "below that", "#56B4E9"),
}
DEEP, SHALLOW = ("rr", "fixed_ev", "rand_ridge"), ("rr", "fixed_step", "fixed_step_fixed_ridge")
# An overlap of 1 never shortens a step, so those two have fixed ones; the best size is reported.
STEP_SIZES = (2.0, 1.0, 0.5, 0.2)
RIDES, NONE = ("0+", "0-", "1+", "1-"), "no solution"


@dataclass(frozen=True)
class Settings(Base):
    deep: int = sized(12, quick=6)  # Figure 3
    num_deep: int = sized(10, quick=3)
    deep_steps: int = sized(10_000, quick=1000)  # ours: small enough for the methods to differ
    depths: tuple[int, ...] = sized((4, 6, 8, 10), quick=(4,))  # Figure 7, right
    num_trees: int = sized(20, quick=3)
    max_steps: int = sized(10_000, quick=1000)


def run(settings: Settings, runner: Runner) -> dict[str, Any]:
    def group(names: tuple[str, ...], depths: tuple[int, ...], **own: int) -> dict[str, Any]:
        how: Any = {"methods": list(names), **own}
        return tree_methods.by_depth(runner, work, settings.seed, depths, STEP_SIZES, **how)

    steps = settings.deep_steps
    (deep,) = group(DEEP, (settings.deep,), num_trees=settings.num_deep, max_steps=steps).values()
    own = {"num_trees": settings.num_trees, "max_steps": settings.max_steps}
    results = {
        "deep": {"depth": settings.deep, "max_steps": steps, **deep},
        "depths": group(SHALLOW, settings.depths, **own),
    }
    draw(results, runner.out)
    draw_paths(settings.seed, runner.out)
    return results


def work(job: Job) -> dict[str, Any]:
    """Some methods on one tree, each until its budget ends or all is found.

    One rule of Ridge Rider is replaced, everything else is the same.
    """
    rides, fixed = tree_methods.recommended(), baselines.fixed_step
    kept, drawn = baselines.fixed_ridge(rides.rider), baselines.random_ridge(rides.rider)
    sizes, step = [jnp.asarray(size) for size in STEP_SIZES], jnp.asarray(0.1)  # the paper's
    riders: dict[str, Any] = {
        "rr": rides.rider,
        "fixed_ev": [fixed(kept, size) for size in sizes],
        "rand_ridge": [fixed(drawn, size) for size in sizes],
        "fixed_step": fixed(rides.rider, step),
        "fixed_step_fixed_ridge": fixed(kept, step),
    }
    tree = make_tree(job["depth"], seed=job["seed"])

    def method(rider: Any) -> Any:
        return [*map(method, rider)] if isinstance(rider, list) else replace(rides, rider=rider)

    until = {"max_steps": job["max_steps"], "until_all": True}
    return {
        name: tree_methods.measure(method(riders[name]), tree, **until) for name in job["methods"]
    }


def draw(results: dict[str, Any], out: Path) -> None:
    """Fractions found: Figure 3 on the left, Figure 7 on the right."""
    deep = {results["deep"]["depth"]: results["deep"]}
    with drawing(out / "ablation", 9, 3.6, 1, 2, width_ratios=(1, 2), sharey=True) as (left, right):
        bars(left, deep, {name: METHODS[name] for name in DEEP})
        bars(right, results["depths"], {name: METHODS[name] for name in SHALLOW})
        right.set_ylabel("")


def draw_paths(seed: int, out: Path) -> None:
    """Two rides and two gradient descents, seen in the plane of the two first ridges."""
    tree = make_tree(4, seed=seed)
    problem = tree.problem()
    rider = rr.Rider(step=rr.Backtracking(0.2), finish=None, keep_path=True, max_steps=40)
    result = rr.search(problem, rider, members="one", max_ridges=2, max_depth=1)
    legs, plane = [result.leg(name) for name in RIDES], result.leg("").directions
    noise = 1e-3 * jax.random.normal(jax.random.key(0), (2, problem.size))
    starts = [*(jnp.asarray(leg.x) for leg in legs), *(problem.x0 + one for one in noise)]
    descents = descent_paths(problem, jnp.stack(starts), 0.1, 300)
    reached = [", ".join(tree.solutions(path[-1])) or NONE for path in descents]
    # Of the ways along each ridge those that lead to two different solutions, if there are any.
    pairs = itertools.product((0, 1), (2, 3))
    pair = max(pairs, key=lambda pair: len({reached[row] for row in pair} - {NONE}))
    lines: list[tuple[np.ndarray, dict[str, Any]]] = []
    for row, color in zip(pair, ("#009E73", "#E69F00"), strict=True):
        label = f"ride {legs[row].fingerprint}, then descent: {reached[row]}"
        lines += [
            (legs[row].trace["path"], {"color": color, "linewidth": 2.4, "label": label}),
            (descents[row], {"color": color, "linewidth": 1.6, "linestyle": (0, (1, 1.2))}),
        ]
    for row, style in ((4, {"color": "#D55E00"}), (5, {"color": "white", "dashes": (2, 2)})):
        label = f"gradient descent {row - 3}: {reached[row]}"
        lines.append((descents[row], {**style, "linewidth": 1.8, "label": label}))
    # So wide that no way is cut.
    wide = max(8.0, 1.05 * max(float(np.abs(points @ plane.T).max()) for points, _ in lines))
    side = np.linspace(-wide, wide, 161)
    grid = np.stack(np.meshgrid(side, side), axis=-1) @ plane
    with drawing(out / "paths", 5, 4.6) as ax:
        shades = ax.pcolormesh(side, side, tree.returns(grid), cmap="Blues", shading="auto")
        ax.figure.colorbar(shades, label="expected return")
        for points, style in lines:
            ax.plot(*(points @ plane.T).T, **style)
        ax.plot(0, 0, "o", color="black", markersize=5)
        ax.set(xlabel="along ridge 0", ylabel="along ridge 1", xlim=side[[0, -1]])
        how = {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "frameon": True}
        ax.legend(facecolor="#BBBBBB", edgecolor="none", **how)


def table(results: dict[str, Any]) -> str:
    deep = results["deep"]
    depths, labels = {str(deep["depth"]): deep, **results["depths"]}, {}
    for name, (label, said, _) in METHODS.items():
        if name in DEEP[1:]:
            label += f", steps of {deep[name]['step_size']:g}"
            label += ", the best of four sizes" if "tried" in deep[name] else ""
        labels[name] = (label, said)
    return tree_methods.table(depths, labels)
