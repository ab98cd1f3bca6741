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
from ridgerider.problems.tree import make_tree
from ridgerider_experiments.sweep import Job, percent, proportion, run_jobs
from ridgerider_experiments.tree_methods import measure, recommended

LABELS = {
    "rr": ("Ridge Rider", "#D55E00"),
    "fixed_ev": ("Fixed-EV", "#0072B2"),
    "rand_ridge": ("Rand-Ridge+", "#CC79A7"),
    "fixed_step": ("fixed step", "#E69F00"),
    "fixed_step_fixed_ridge": ("fixed step and ridge", "#56B4E9"),
}
DEEP, SHALLOW = ("rr", "fixed_ev", "rand_ridge"), ("rr", "fixed_step", "fixed_step_fixed_ridge")
# An overlap of 1 never shortens a step, so those two have fixed ones; the best size is reported.
STEP_SIZES = (2.0, 1.0, 0.5, 0.2)
DEEP_METHODS = ("rr", *(f"{name}_{size:g}" for name in DEEP[1:] for size in STEP_SIZES))
DIFFERENCES = (
    ("10,000 iterations", "the paper's budget is not given; small enough for methods to differ"),
    ("step sizes of Fixed-EV and Rand-Ridge+", "not given; the best of four, by what is found"),
)

NONE = "no solution"


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
    deep = jobs(settings, settings.deep, settings.num_deep, settings.deep_steps, DEEP_METHODS)
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
        **{f"fixed_ev_{size:g}": _sized(baselines.fixed_ridge, size) for size in STEP_SIZES},
        **{f"rand_ridge_{size:g}": _sized(baselines.random_ridge, size) for size in STEP_SIZES},
        "fixed_step": baselines.fixed_step(rides.rider, step),
        "fixed_step_fixed_ridge": baselines.fixed_step(baselines.fixed_ridge(rides.rider), step),
    }
    return {name: replace(rides, rider=rider) for name, rider in riders.items()}


def _sized(ablate: Callable[[rr.Rider], rr.Rider], size: float) -> rr.Rider:
    return baselines.fixed_step(ablate(recommended().rider), jnp.asarray(size))


def work(job: Job) -> dict[str, Any]:
    """Some methods on one tree, each until its budget ends or all is found."""
    tree, known = make_tree(job["depth"], seed=job["seed"]), methods()
    return {
        name: measure(known[name], tree, max_steps=job["max_steps"], is_stopped=True)
        for name in job["methods"]
    }


def summary(done: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean of each method, and of those with several step sizes the best."""
    found: dict[str, Any] = {
        name: {
            **proportion(one[name]["fraction"] for one in done),
            "iterations": sum(one[name]["iterations"] for one in done) / len(done),
            "seconds": sum(one[name]["seconds"] for one in done) / len(done),
        }
        for name in done[0]
    }
    for name in DEEP[1:]:
        tried = {size: found.pop(f"{name}_{size:g}", None) for size in STEP_SIZES}
        if all(tried.values()):
            best = max(tried, key=lambda size: tried[size]["mean"])
            found[name] = {**tried[best], "step_size": best}
            found[name]["tried"] = {f"{size:g}": tried[size]["mean"] for size in STEP_SIZES}
    return found


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
    rider = rr.Rider(step=rr.Backtracking(0.2), finish=None, keep_path=True, max_steps=40)
    spectrum = eqx.filter_jit(rider.spectrum)(problem, problem.x0, key)
    plane = np.asarray(spectrum.eigenvectors[:2])
    ride = eqx.filter_jit(rider.ride)

    def reached(end: np.ndarray) -> str:
        return ", ".join(tree.solutions(end)) or NONE

    def ridden(index: int, sign: int) -> tuple[np.ndarray, np.ndarray]:
        one = ride(problem, problem.x0, spectrum.ridge(index, sign), key)
        return np.asarray(one.trace.path)[: int(one.num_steps) + 1], _descend(problem, one.x)

    ways = {(index, sign): ridden(index, sign) for index in (0, 1) for sign in (1, -1)}
    # Of the ways along each ridge those that lead to two different solutions, if there are any.
    pairs = [((0, one), (1, other)) for one in (1, -1) for other in (1, -1)]
    pair = max(pairs, key=lambda pair: len({reached(ways[way][1][-1]) for way in pair} - {NONE}))
    noise = 1e-3 * jax.random.normal(jax.random.key(0), (2, problem.size))
    descents = [_descend(problem, problem.x0 + one) for one in noise]
    drawn = [*(points for way in pair for points in ways[way]), *descents]
    # So wide that no way is cut.
    wide = max(8.0, 1.05 * max(float(np.abs(points @ plane.T).max()) for points in drawn))
    figure = Figure(figsize=(5, 4.6), layout="constrained")
    ax = figure.subplots()
    side = np.linspace(-wide, wide, 161)
    first, second = np.meshgrid(side, side)
    grid = first[..., None] * plane[0] + second[..., None] * plane[1]
    shades = ax.pcolormesh(side, side, tree.returns(grid), cmap="Blues", shading="auto")
    figure.colorbar(shades, label="expected return")
    for way, color in zip(pair, ("#009E73", "#E69F00"), strict=True):
        path, down = ways[way]
        label = f"ride along ridge {way[0]}, then descent: {reached(down[-1])}"
        ax.plot(*(path @ plane.T).T, color=color, linewidth=2.4, label=label)
        ax.plot(*(down @ plane.T).T, color=color, linewidth=1.6, linestyle=(0, (1, 1.2)))
    for number, style in enumerate(({"color": "#D55E00"}, {"color": "white", "dashes": (2, 2)})):
        down = descents[number]
        label = f"gradient descent {number + 1}: {reached(down[-1])}"
        ax.plot(*(down @ plane.T).T, linewidth=1.8, label=label, **style)  # type: ignore[arg-type]
    ax.plot(0, 0, "o", color="black", markersize=5)
    ax.set(xlabel="along ridge 0", ylabel="along ridge 1", xlim=(-wide, wide), ylim=(-wide, wide))
    legend = ax.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1))
    legend.get_frame().set(facecolor="#BBBBBB", edgecolor="none")
    for suffix in ("png", "svg"):
        figure.savefig(out / f"paths.{suffix}", dpi=160)


def _descend(problem: rr.Problem, x: jax.Array) -> np.ndarray:
    """The way of gradient descent."""

    def step(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        x = x - 0.1 * problem.grad(x)
        return x, x

    return np.asarray(jax.jit(lambda x: jax.lax.scan(step, x, None, length=300)[1])(x))


def table(results: dict[str, Any]) -> str:
    deep, depths = results["deep"], results["depths"]
    said = {
        "rr": "best",
        "fixed_ev": "competitive",
        "rand_ridge": "poor",
        "fixed_step": "below Ridge Rider",
        "fixed_step_fixed_ridge": "below that",
    }
    head = " | ".join([f"depth {deep['depth']}", *(f"depth {depth}" for depth in depths)])
    lines = [f"| solutions found (%) | paper | {head} |", "|---|---|" + "---|" * (len(depths) + 1)]
    for name, (label, _) in LABELS.items():
        cells = [percent(deep.get(name)), *(percent(depths[d].get(name)) for d in depths)]
        if name in DEEP[1:]:
            label += f", steps of {deep[name]['step_size']:g}"
            label += ", the best of four sizes" if "tried" in deep[name] else ""
        lines.append(f"| {label} | {said[name]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
