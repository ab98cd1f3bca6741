"""Figure 2: which fraction of a tree's solutions is found, by depth.

    ridgerider reproduce trees

Paper: Ridge Rider "often finds over 90 % of the solutions, GD finds at most 50 % in each setting";
random norm-one vectors perform poorly. Settings known from it: 20 trees for each depth 4, 6, 8, 10,
T = 1e5, N = 6, delta_break = 0.95, breadth first, step size 0.1 of the baselines. Its generator is
not given; ours is `make_tree`.

Differs from the paper: the generator of trees, what counts as found and a short descent at the end
of a leg, which it does not give; wide random starts, a baseline that it does not have, and the one
that matters.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgerider import baselines
from ridgerider.problems.tree import make_tree
from ridgerider_experiments import tree_regimes
from ridgerider_experiments.settings import Base, sized
from ridgerider_experiments.show import bars, drawing, markdown
from ridgerider_experiments.sweep import Job, percent, run_jobs
from ridgerider_experiments.tree_methods import (
    TARGET,
    NoveltySearch,
    best_size,
    descent,
    mean,
    measure,
    paper,
    random_vectors,
    recommended,
    tree_jobs,
)

STEP_SIZES = (0.1, 1.0, 10.0)  # tried for gradient descent; the best one is reported
WIDE = 3.0  # spread of the starts of the last baseline
METHODS = {  # what it is, the paper's words, and its colour in the figure
    "rr": ("Ridge Rider, ours", "often over 90", "#D55E00"),
    "rr_paper": ("Ridge Rider, the paper's setting", "often over 90", "#E69F00"),
    "gd_random": ("gradient descent, random starts", "at most 50", "#0072B2"),
    "gd_random_tuned": ("gradient descent, random starts, best step size", "-", "#56B4E9"),
    "gd_random_T": ("gradient descent, random starts, all of T", "-", None),
    "gd_wide": ("gradient descent, wide random starts", "-", "#332288"),
    "gd_saddle": ("gradient descent, from the saddle", "at most 50", "#009E73"),
    "random_vectors": ("random vectors, from the saddle", "poor", "#CC79A7"),
    "random_vectors_curved": ("random vectors that curve downwards only", "-", None),
    "evd": ("eigenvector descent", "-", None),
    "novelty": ("novelty search", "-", None),
}


@dataclass(frozen=True)
class Settings(Base):
    depths: tuple[int, ...] = sized((4, 6, 8, 10), quick=(4, 6))
    num_trees: int = sized(20, quick=3)
    max_steps: int = sized(100_000, quick=3000)  # the paper's T
    # Depth and P(positive), trees of each, and steps of Ridge Rider; guessing gets more time.
    regimes: tuple[tuple[int, float], ...] = sized(tree_regimes.PLACES, quick=((4, 0.4), (6, 0.4)))
    num_regime: int = sized(10, quick=2)
    regime_steps: int = sized(20_000, quick=1000)
    workers: int = 2


def run(settings: Settings, out: Path, say: Callable[[str], None] = print) -> dict[str, Any]:
    usual = [(depth, 0.4) for depth in settings.depths]
    kinds = (
        ("main", usual, settings.num_trees, settings.max_steps),
        ("paper", usual, settings.num_trees, settings.max_steps),
        ("regime", settings.regimes, settings.num_regime, settings.regime_steps),
    )
    todo = [
        job
        for kind, places, count, steps in kinds
        for depth, rare in places
        for job in tree_jobs(
            settings.seed, depth, count, kind=kind, max_steps=steps, p_positive=rare
        )
    ]
    # The longest last, and among those the deepest first: a worker is not left alone for long.
    todo.sort(key=lambda job: (job["kind"] == "paper", -job["depth"]))
    done = defaultdict[Any, list[dict[str, Any]]](list)
    found = run_jobs(work, todo, out / "trees.jsonl", settings.workers, say)
    for job, result in zip(todo, found, strict=True):
        done[job["kind"], job["depth"], job["p_positive"]].append(result)
    depths = {}
    for depth, rare in usual:
        both = zip(done["main", depth, rare], done["paper", depth, rare], strict=True)
        depths[str(depth)] = summary([one["methods"] | two["methods"] for one, two in both])
    regimes = [tree_regimes.summary(place, done["regime", *place]) for place in settings.regimes]
    draw(depths, settings, out)
    tree_regimes.draw(regimes, out)
    return {"depths": depths, "regimes": regimes}


def work(job: Job) -> dict[str, Any]:
    """Some methods on one tree."""
    seed = job["seed"] + (500 if job["kind"] == "regime" else 0)  # other trees
    tree = make_tree(job["depth"], p_positive=job["p_positive"], seed=seed)
    until = {"max_steps": job["max_steps"], "until_all": True}
    if job["kind"] == "regime":
        return tree_regimes.work(tree, job["max_steps"])
    if job["kind"] == "paper":
        return {"methods": {"rr_paper": measure(paper(), tree, **until)}}
    ridges = measure(recommended(), tree, **until)
    found = {"rr": ridges}
    for name, method in {**others(), "novelty": NoveltySearch(tree)}.items():
        found[name] = measure(method, tree, max_steps=ridges["iterations"])
        found[f"{name}_time"] = measure(method, tree, max_seconds=ridges["seconds"])
    found["gd_random_T"] = measure(descent(), tree, max_steps=job["max_steps"])
    evd = baselines.EigenvectorDescent(target=TARGET)
    found["evd_time"] = measure(evd, tree, max_seconds=ridges["seconds"])
    return {"methods": found}


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
    found = {name: mean([one[name] for one in done], "iterations", "seconds") for name in done[0]}
    for suffix in ("", "_time"):
        found[f"gd_random{suffix}"] = found[f"gd_random_0.1{suffix}"]
        tuned = best_size(found, STEP_SIZES, f"gd_random_{{}}{suffix}")
        found[f"gd_random_tuned{suffix}"] = tuned
    return found


def draw(depths: dict[str, Any], settings: Settings, out: Path) -> None:
    """A tree, and the fractions found by depth with 95 % intervals: Figure 2."""
    with drawing(out / "trees", 10, 3.8, 1, 2, width_ratios=(1, 2.6)) as (left, right):
        make_tree(4, seed=settings.seed).draw(left)
        left.set_title("a tree: decisions, positive (blue)\nand negative (orange) leaves")
        bars(right, depths, METHODS)


def table(results: dict[str, Any]) -> str:
    """Fractions with 95 % intervals, and where guessing fails."""
    depths, rows = results["depths"], []
    first = next(iter(depths.values()))
    for name, (label, said, _) in METHODS.items():
        for key, text in ((name, label), (f"{name}_time", f"{label}, in the same time")):
            if key in first:
                cells = [percent(of[key]) for of in depths.values()]
                rows.append([text, said if key == name else "-", *cells])
    tuned = [of["gd_random_tuned"].get("step_size", "-") for of in depths.values()]
    rows.append(["that best step size", "-", *tuned])
    for key in ("iterations", "seconds"):
        cells = [f"{of['rr'][key]:.3g}" for of in depths.values()]
        rows.append([f"{key} of Ridge Rider, mean", "-", *cells])
    head = ["solutions found (%)", "paper", *(f"depth {depth}" for depth in depths)]
    return f"{markdown(head, rows)}\n{tree_regimes.table(results['regimes'])}"
