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

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgerider import baselines
from ridgerider.problems.tree import make_tree
from ridgerider_experiments import tree_methods
from ridgerider_experiments.runner import Base, Job, Runner, sized
from ridgerider_experiments.show import bars, drawing

STEP_SIZES = (0.1, 1.0, 10.0)  # tried for gradient descent; the best one is reported
WIDE = 3.0  # spread of the starts of the last baseline
METHODS = {  # what it is, the paper's words, and its colour in the figure
    "rr": ("Ridge Rider, ours", "often over 90", "#D55E00"),
    "rr_paper": ("Ridge Rider, the paper's setting", "often over 90", "#E69F00"),
    "gd_random": ("gradient descent, random starts", "at most 50", "#0072B2"),
    "gd_random_tuned": (
        "gradient descent, random starts, best step size",
        "-",
        "#56B4E9",
    ),
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


def run(settings: Settings, runner: Runner) -> dict[str, Any]:
    own = {"num_trees": settings.num_trees, "max_steps": settings.max_steps}
    depths = tree_methods.by_depth(runner, work, settings.seed, settings.depths, STEP_SIZES, **own)
    draw(depths, settings, runner.out)
    return {"depths": depths}


def work(job: Job) -> dict[str, Any]:
    """All methods on one tree."""
    tree = make_tree(job["depth"], seed=job["seed"])
    until = {"max_steps": job["max_steps"], "until_all": True}
    ridges = tree_methods.measure(tree_methods.recommended(), tree, **until)
    found: dict[str, Any] = {
        "rr": ridges,
        "rr_paper": tree_methods.measure(tree_methods.paper(), tree, **until),
    }
    others: dict[str, Any] = {
        "gd_random_tuned": [tree_methods.descent(size) for size in STEP_SIZES],
        "gd_wide": tree_methods.descent(1.0, WIDE),
        "gd_saddle": tree_methods.descent(spread=1e-3),
        "random_vectors": tree_methods.random_vectors(),
        "random_vectors_curved": tree_methods.random_vectors(is_curved=True),
        "novelty": tree_methods.NoveltySearch(tree),
    }
    budgets = {"": {"max_steps": ridges["iterations"]}, "_time": {"max_seconds": ridges["seconds"]}}
    for suffix, budget in budgets.items():
        for name, method in others.items():
            found[name + suffix] = tree_methods.measure(method, tree, **budget)
        found[f"gd_random{suffix}"] = found[f"gd_random_tuned{suffix}"][0]
    found["gd_random_T"] = tree_methods.measure(
        tree_methods.descent(), tree, max_steps=job["max_steps"]
    )
    evd = baselines.EigenvectorDescent(target=tree_methods.TARGET)
    found["evd_time"] = tree_methods.measure(evd, tree, **budgets["_time"])
    return found


def draw(depths: dict[str, Any], settings: Settings, out: Path) -> None:
    """A tree, and the fractions found by depth with 95 % intervals: Figure 2."""
    with drawing(out / "trees", 10, 3.8, 1, 2, width_ratios=(1, 2.6)) as (left, right):
        make_tree(4, seed=settings.seed).draw(left)
        left.set_title("a tree: decisions, positive (blue)\nand negative (orange) leaves")
        bars(right, depths, METHODS)


def table(results: dict[str, Any]) -> str:
    """Fractions with 95 % intervals."""
    depths, labels = results["depths"], {}
    first = next(iter(depths.values()))
    for name, (label, said, _) in METHODS.items():
        labels[name] = (label, said)
        labels[f"{name}_time"] = (f"{label}, in the same time", "-")
    tuned = [of["gd_random_tuned"].get("step_size", "-") for of in depths.values()]
    means = [
        [f"{key} of Ridge Rider, mean", "-", *(f"{of['rr'][key]:.3g}" for of in depths.values())]
        for key in ("iterations", "seconds")
    ]
    known = {name: of for name, of in labels.items() if name in first}
    return tree_methods.table(depths, known, ["that best step size", "-", *tuned], *means)
