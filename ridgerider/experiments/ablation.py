"""Figures 3 and 7: what is left of Ridge Rider without its parts.

    ridgerider reproduce ablation

Paper, Figure 3 (depth 12, ten seeds, a fixed budget that is not given): Fixed-EV is competitive,
Rand-Ridge+ is not. Figure 7, right (step size 0.1, with and without UpdateRidge): "as we impose
greater rigidity, the performance declines". Figure 7, left: two rides and two gradient descents in
the plane of the two ridges.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import ridgerider as rr
from ridgerider import baselines
from ridgerider.experiments.sweep import Job, interval, run_jobs
from ridgerider.experiments.tree_methods import measure, recommended
from ridgerider.problems.tree import make_tree

LABELS = {
    "rr": ("Ridge Rider", "#D55E00"),
    "fixed_ev": ("Fixed-EV", "#0072B2"),
    "rand_ridge": ("Rand-Ridge+", "#CC79A7"),
    "fixed_step": ("fixed step", "#E69F00"),
    "fixed_step_fixed_ridge": ("fixed step and ridge", "#56B4E9"),
}
DEEP, SHALLOW = ("rr", "fixed_ev", "rand_ridge"), ("rr", "fixed_step", "fixed_step_fixed_ridge")


@dataclass(frozen=True)
class Settings:
    seed: int = 0
    deep: int = 12  # Figure 3
    num_deep: int = 10
    deep_steps: int = 10_000  # ours: small enough for the methods to differ
    depths: tuple[int, ...] = (4, 6, 8, 10)  # Figure 7, right
    num_trees: int = 20
    max_steps: int = 10_000
    num_workers: int = 2

    @staticmethod
    def quick(seed: int) -> "Settings":
        few = {"deep": 6, "num_deep": 3, "deep_steps": 1000, "max_steps": 1000}
        return Settings(seed=seed, depths=(4,), num_trees=3, num_workers=1, **few)


def run(settings: Settings, out: Path, say: Callable[[str], None] = print) -> dict[str, Any]:
    began = time.perf_counter()
    deep = jobs(settings, settings.deep, settings.num_deep, settings.deep_steps, DEEP)
    shallow = {
        depth: jobs(settings, depth, settings.num_trees, settings.max_steps, SHALLOW)
        for depth in settings.depths
    }
    todo = deep + [job for depth in shallow for job in shallow[depth]]
    done = run_jobs(work, todo, out / "ablation.jsonl", settings.num_workers, say)
    found = {str(job): result for job, result in zip(todo, done, strict=True)}
    results = {
        "deep": {
            "depth": settings.deep,
            "max_steps": settings.deep_steps,
            **summary([found[str(job)] for job in deep]),
        },
        "depths": {
            str(depth): summary([found[str(job)] for job in shallow[depth]]) for depth in shallow
        },
        "max_steps": settings.max_steps,
        "seconds": time.perf_counter() - began,
    }
    draw(results, out)
    draw_paths(settings.seed, out)
    return results


def jobs(
    settings: Settings, depth: int, count: int, max_steps: int, methods: tuple[str, ...]
) -> list[Job]:
    return [
        {"depth": depth, "seed": seed, "max_steps": max_steps, "methods": list(methods)}
        for seed in range(settings.seed * 1000, settings.seed * 1000 + count)
    ]


def methods() -> dict[str, baselines.Rides]:
    """Ridge Rider and its ablations: one rule is replaced, everything else is the same."""
    rides = recommended()
    step = jnp.asarray(0.1)  # the paper's
    riders = {
        "rr": rides.rider,
        "fixed_ev": baselines.fixed_ridge(rides.rider),
        "rand_ridge": baselines.random_ridge(rides.rider),
        "fixed_step": baselines.fixed_step(rides.rider, step),
        "fixed_step_fixed_ridge": baselines.fixed_step(baselines.fixed_ridge(rides.rider), step),
    }
    return {name: replace(rides, rider=rider) for name, rider in riders.items()}


def work(job: Job) -> dict[str, Any]:
    """Some methods on one tree, each until its budget ends or all is found."""
    tree, known = make_tree(job["depth"], seed=job["seed"]), methods()
    return {
        name: measure(known[name], tree, max_steps=job["max_steps"], is_stopped=True)
        for name in job["methods"]
    }


def summary(done: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: {
            **interval([one[name]["fraction"] for one in done]),
            "iterations": sum(one[name]["iterations"] for one in done) / len(done),
            "seconds": sum(one[name]["seconds"] for one in done) / len(done),
        }
        for name in done[0]
    }


def draw(results: dict[str, Any], out: Path) -> None:
    """Fractions found: Figure 3 on the left, Figure 7 on the right."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 2), sharey=True)
    deep = results["deep"]
    _bars(left, [f"depth {deep['depth']}"], [deep], DEEP)
    depths = results["depths"]
    _bars(right, [f"depth {depth}" for depth in depths], list(depths.values()), SHALLOW)
    left.set(ylabel="solutions found (%)", ylim=(0, 105))
    for suffix in ("png", "svg"):
        figure.savefig(out / f"ablation.{suffix}", dpi=160)


def _bars(ax: Axes, names: list[str], groups: list[dict[str, Any]], shown: tuple[str, ...]) -> None:
    width = 0.8 / len(shown)
    for number, name in enumerate(shown):
        rows = [group[name] for group in groups]
        errors = [
            [100 * (row["mean"] - row["low"]) for row in rows],
            [100 * (row["high"] - row["mean"]) for row in rows],
        ]
        ax.bar(
            [i + (number - 1) * width for i in range(len(rows))],
            [100 * row["mean"] for row in rows],
            yerr=errors,
            width=0.92 * width,
            color=LABELS[name][1],
            label=LABELS[name][0],
            capsize=2,
            error_kw={"linewidth": 0.9},
        )
    ax.set_xticks(range(len(names)), names)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))


def draw_paths(seed: int, out: Path) -> None:
    """Two rides and two gradient descents, seen in the plane of the two first ridges."""
    tree = make_tree(4, seed=seed)
    problem, key = tree.problem(), jax.random.key(0)
    rider = rr.Rider(step=rr.Backtracking(0.2), finish=None, keep_path=True, max_steps=60)
    spectrum = eqx.filter_jit(rider.spectrum)(problem, problem.x0, key)
    plane = np.asarray(spectrum.eigenvectors[:2])
    ride = eqx.filter_jit(rider.ride)
    figure = Figure(figsize=(4.6, 4), layout="constrained")
    ax = figure.subplots()
    side = np.linspace(-7, 7, 141)
    first, second = np.meshgrid(side, side)
    grid = first[..., None] * plane[0] + second[..., None] * plane[1]
    image = ax.pcolormesh(side, side, tree.returns(grid), cmap="Blues", shading="auto")
    figure.colorbar(image, label="expected return")
    for index, color in ((0, "#009E73"), (1, "#E69F00")):
        sign = 1 if _is_better(problem, spectrum, index) else -1
        one = ride(problem, problem.x0, spectrum.ridge(index, sign), key)
        path = np.asarray(one.trace.path)[: int(one.num_steps) + 1] @ plane.T
        ax.plot(*path.T, color=color, linewidth=2.2, label=f"ride along ridge {index}")
    for number, style in enumerate(("-", (0, (2, 2)))):
        path = _descend(problem, number) @ plane.T
        ax.plot(*path.T, color="#D55E00", linestyle=style, linewidth=1.6, label=f"GD {number + 1}")
    ax.plot(0, 0, "o", color="black", markersize=5)
    ax.set(xlabel="ridge 0", ylabel="ridge 1", xlim=(-7, 7), ylim=(-7, 7))
    ax.legend(frameon=True, fontsize=8, loc="lower right")
    for suffix in ("png", "svg"):
        figure.savefig(out / f"paths.{suffix}", dpi=160)


def _is_better(problem: rr.Problem, spectrum: rr.Spectrum, index: int) -> bool:
    """Whether + leads further down than -."""
    up, down = (problem.value(problem.x0 + 2 * spectrum.ridge(index, s).direction) for s in (1, -1))
    return bool(up < down)


def _descend(problem: rr.Problem, number: int) -> np.ndarray:
    """The way of gradient descent from the start, moved a little."""
    x = problem.x0 + 1e-3 * jax.random.normal(jax.random.key(number), (problem.size,))

    def step(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        x = x - 0.1 * problem.grad(x)
        return x, x

    return np.asarray(jax.jit(lambda x: jax.lax.scan(step, x, None, length=200)[1])(x))


def table(results: dict[str, Any]) -> str:
    deep, depths = results["deep"], results["depths"]
    said = {
        "rr": "best",
        "fixed_ev": "competitive",
        "rand_ridge": "poor",
        "fixed_step": "below rr",
        "fixed_step_fixed_ridge": "below fixed_step",
    }
    head = " | ".join([f"depth {deep['depth']}", *(f"depth {depth}" for depth in depths)])
    lines = [f"| method | paper | {head} |", "|---|---|" + "---|" * (len(depths) + 1)]
    for name in LABELS:
        cells = [_percent(deep.get(name)), *(_percent(depths[d].get(name)) for d in depths)]
        lines.append(f"| {name} | {said[name]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _percent(row: dict[str, float] | None) -> str:
    if row is None:
        return "-"
    return f"{100 * row['mean']:.0f} ({100 * row['low']:.0f}-{100 * row['high']:.0f})"
