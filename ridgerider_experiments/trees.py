"""Figure 2: which fraction of a tree's solutions is found, by depth.

    ridgerider reproduce trees

Paper: Ridge Rider "often finds over 90 % of the solutions, GD finds at most 50 % in each setting";
random norm-one vectors perform poorly. Settings known from it: 20 trees for each depth 4, 6, 8, 10,
T = 1e5, N = 6, delta_break = 0.95, breadth first, step size 0.1 of the baselines. Its generator is
not given; ours is `make_tree`, and a table shows how the result depends on it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgerider import baselines
from ridgerider.problems.tree import Tree, make_tree
from ridgerider_experiments import tree_regimes
from ridgerider_experiments.settings import Base, sized
from ridgerider_experiments.show import bars, markdown, new_figure, save
from ridgerider_experiments.sweep import Job, percent, run_jobs
from ridgerider_experiments.tree_methods import (
    TARGET,
    best_size,
    descent,
    mean,
    measure,
    paper,
    random_vectors,
    recommended,
)

STEP_SIZES = (0.1, 1.0, 10.0)  # tried for gradient descent; the best one is reported
WIDE = 3.0  # spread of the starts of the last baseline
GENERATORS = ((0.3, 0.4), (0.5, 0.4), (0.4, 0.3), (0.4, 0.5))  # P(terminal), P(positive)
LABELS = {
    "rr": ("Ridge Rider, ours", "#D55E00"),
    "rr_paper": ("Ridge Rider, paper's setting", "#E69F00"),
    "gd_random": ("GD (R)", "#0072B2"),
    "gd_random_tuned": ("GD (R), best step size", "#56B4E9"),
    "gd_saddle": ("GD (S)", "#009E73"),
    "gd_wide": ("GD, wide starts", "#332288"),
    "random_vectors": ("random vectors (S)", "#CC79A7"),
}
NAMES = {
    "rr": "Ridge Rider, ours",
    "rr_paper": "Ridge Rider, the paper's setting",
    "gd_random": "gradient descent, random starts",
    "gd_random_tuned": "gradient descent, random starts, best step size",
    "gd_random_T": "gradient descent, random starts, all of T",
    "gd_wide": "gradient descent, wide random starts",
    "gd_saddle": "gradient descent, from the saddle",
    "random_vectors": "random vectors, from the saddle",
    "random_vectors_curved": "random vectors that curve downwards only",
    "evd": "eigenvector descent",
}
SENSITIVE = {
    "rr": "Ridge Rider",
    "gd_random": "gradient descent",
    "gd_random_10": "gradient descent, step 10",
}
PAPER = {
    "rr": "often over 90",
    "rr_paper": "often over 90",
    "gd_random": "at most 50",
    "gd_saddle": "at most 50",
    "random_vectors": "poor",
}
DIFFERENCES = (
    ("the generator of trees", "the paper does not give its own; a table varies ours"),
    ("what counts as found, and a short descent at the end of a leg", "not given"),
    ("wide random starts", "a baseline the paper does not have, and the one that matters"),
)


@dataclass(frozen=True)
class Settings(Base):
    depths: tuple[int, ...] = sized((4, 6, 8, 10), quick=(4, 6))
    num_trees: int = sized(20, quick=3)
    max_steps: int = sized(100_000, quick=3000)  # the paper's T
    num_sensitivity: int = sized(10, quick=0)  # trees for each generator and depth 6 and 8
    # Depth and P(positive), trees of each, and steps of Ridge Rider; guessing gets more time.
    regimes: tuple[tuple[int, float], ...] = sized(tree_regimes.PLACES, quick=((4, 0.4), (6, 0.4)))
    num_regime: int = sized(10, quick=2)
    regime_steps: int = sized(20_000, quick=1000)
    num_workers: int = 2


def run(settings: Settings, out: Path, say: Callable[[str], None] = print) -> dict[str, Any]:
    began = time.perf_counter()
    main, theirs = (
        {depth: jobs_at(settings, kind, depth, settings.num_trees) for depth in settings.depths}
        for kind in ("main", "paper")
    )
    more = {
        (*generator, depth): jobs_at(
            settings, "sensitivity", depth, settings.num_sensitivity, *generator
        )
        for generator in GENERATORS
        for depth in (6, 8)
    }
    where = {
        (depth, rare): jobs_at(
            settings, "regime", depth, settings.num_regime, p_positive=rare, first=500
        )
        for depth, rare in settings.regimes
    }
    groups: tuple[dict[Any, list[Job]], ...] = (main, theirs, more, where)
    todo = [job for group in groups for jobs in group.values() for job in jobs]
    # The longest last, and among those the deepest first: a worker is not left alone for long.
    todo.sort(key=lambda job: (job["kind"] == "paper", -job["depth"]))
    done = run_jobs(work, todo, out / "trees.jsonl", settings.num_workers, say)
    results = {str(job): result for job, result in zip(todo, done, strict=True)}
    depths = {
        str(depth): summary(
            [
                {**results[str(one)], "methods": methods_of(results, one, other)}
                for one, other in zip(main[depth], theirs[depth], strict=True)
            ]
        )
        for depth in main
    }
    regimes = [
        tree_regimes.summary(place, [results[str(job)] for job in where[place]]) for place in where
    ]
    draw(depths, settings, out)
    tree_regimes.draw(regimes, out)
    return {
        "depths": depths,
        "regimes": regimes,
        "sensitivity": [
            sensitivity(place, [results[str(job)] for job in more[place]])
            for place in more
            if more[place]
        ],
        "max_steps": settings.max_steps,
        "num_trees": settings.num_trees,
        "seconds": time.perf_counter() - began,
        "cpu_seconds": sum(result["cpu_seconds"] for result in done),
    }


def jobs_at(
    settings: Settings,
    kind: str,
    depth: int,
    count: int,
    p_terminal: float = 0.4,
    p_positive: float = 0.4,
    first: int = 0,
) -> list[Job]:
    max_steps = settings.regime_steps if kind == "regime" else settings.max_steps
    return [
        {
            "kind": kind,
            "depth": depth,
            "p_terminal": p_terminal,
            "p_positive": p_positive,
            "seed": settings.seed * 1000 + first + number,
            "max_steps": max_steps,
        }
        for number in range(count)
    ]


def methods_of(results: dict[str, dict[str, Any]], *jobs: Job) -> dict[str, Any]:
    """What all methods did on the tree of these jobs."""
    return {name: found for job in jobs for name, found in results[str(job)]["methods"].items()}


def work(job: Job) -> dict[str, Any]:
    """Some methods on one tree."""
    began = time.process_time()
    tree = make_tree(job["depth"], job["p_terminal"], job["p_positive"], job["seed"])
    if job["kind"] == "regime":
        return {**tree_regimes.work(tree, job["max_steps"]), "cpu_seconds": 0.0}
    if job["kind"] == "paper":
        found = {"rr_paper": measure(paper(), tree, max_steps=job["max_steps"], is_stopped=True)}
    else:
        found = compare(tree, job["max_steps"], others() if job["kind"] == "main" else few())
    if job["kind"] == "main":
        found["gd_random_T"] = measure(descent(), tree, max_steps=job["max_steps"])
        evd = baselines.EigenvectorDescent(target=TARGET)
        found["evd_time"] = measure(evd, tree, max_seconds=found["rr"]["seconds"])
    return {
        "decisions": tree.num_decisions,
        "solutions": tree.num_solutions,
        "methods": found,
        "cpu_seconds": time.process_time() - began,
    }


def compare(tree: Tree, max_steps: int, methods: dict[str, Any]) -> dict[str, Any]:
    """Ridge Rider, and methods with as many steps, and as many seconds, as it used."""
    ridges = measure(recommended(), tree, max_steps=max_steps, is_stopped=True)
    found = {"rr": ridges}
    for name, method in methods.items():
        found[name] = measure(method, tree, max_steps=ridges["iterations"])
        found[f"{name}_time"] = measure(method, tree, max_seconds=ridges["seconds"])
    return found


def few() -> dict[str, Any]:
    return {"gd_random": descent(), "gd_random_10": descent(10.0)}


def others() -> dict[str, Any]:
    """The baselines of the main figure."""
    return {
        **{f"gd_random_{size:g}": descent(size) for size in STEP_SIZES},
        "gd_wide": descent(1.0, WIDE),
        "gd_saddle": descent(spread=1e-3),
        "random_vectors": random_vectors(),
        "random_vectors_curved": random_vectors(is_curved=True),
    }


def summary(done: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean over the trees of one depth, for each method."""
    found = {name: rate([one["methods"][name] for one in done]) for name in done[0]["methods"]}
    for suffix in ("", "_time"):
        found[f"gd_random{suffix}"] = found[f"gd_random_0.1{suffix}"]
        tuned = best_size(found, STEP_SIZES, f"gd_random_{{}}{suffix}")
        found[f"gd_random_tuned{suffix}"] = tuned
    found["trees"] = {
        "decisions": sum(one["decisions"] for one in done) / len(done),
        "max_decisions": max(one["decisions"] for one in done),
        "solutions": sum(one["solutions"] for one in done) / len(done),
        "cpu_seconds": sum(one["cpu_seconds"] for one in done),
    }
    return found


def rate(measured: list[dict[str, Any]]) -> dict[str, float]:
    found = mean(measured, "iterations", "seconds")
    return {**found, "iterations_per_second": found["iterations"] / found["seconds"]}


def sensitivity(place: tuple[float, float, int], done: list[dict[str, Any]]) -> dict[str, Any]:
    """The same for trees made with other probabilities."""
    return {
        **dict(zip(("p_terminal", "p_positive", "depth"), place, strict=True)),
        "decisions": sum(one["decisions"] for one in done) / len(done),
        **{name: rate([one["methods"][name] for one in done]) for name in SENSITIVE},
    }


def draw(depths: dict[str, Any], settings: Settings, out: Path) -> None:
    """A tree, and the fractions found by depth with 95 % intervals: Figure 2."""
    figure = new_figure(10, 3.8)
    left, right = figure.subplots(1, 2, width_ratios=(1, 2.6))
    make_tree(4, seed=settings.seed).draw(left)
    left.set_title("a tree: decisions, positive (blue)\nand negative (orange) leaves", fontsize=9)
    bars(right, [f"depth {depth}" for depth in depths], list(depths.values()), LABELS)
    save(figure, out / "trees")


def table(results: dict[str, Any]) -> str:
    """Fractions with 95 % intervals; how they depend on the generator; where guessing fails."""
    depths, rows = results["depths"], []
    first = next(iter(depths.values()))
    for name, label in NAMES.items():
        for key, text in ((name, label), (f"{name}_time", f"{label}, in the same time")):
            if key in first:
                cells = [percent(of[key]) for of in depths.values()]
                rows.append([text, PAPER.get(key, "-"), *cells])
    tuned = [of["gd_random_tuned"].get("step_size", "-") for of in depths.values()]
    rows.append(["that best step size", "-", *tuned])
    for key in ("iterations", "seconds"):
        cells = [f"{of['rr'][key]:.3g}" for of in depths.values()]
        rows.append([f"{key} of Ridge Rider, mean", "-", *cells])
    head = ["solutions found (%)", "paper", *(f"depth {depth}" for depth in depths)]
    parts = [markdown(head, rows)]
    if results["sensitivity"]:
        places = ("p_terminal", "p_positive", "depth")
        parts.append(
            markdown(
                ("P(terminal)", "P(positive)", "depth", *SENSITIVE.values()),
                [
                    [*(row[part] for part in places), *(percent(row[name]) for name in SENSITIVE)]
                    for row in results["sensitivity"]
                ],
            )
        )
    if results["regimes"]:
        parts.append(tree_regimes.table(results["regimes"]))
    return "\n".join(parts)
