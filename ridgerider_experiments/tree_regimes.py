"""Where guessing fails: what the k-th solution costs, by depth and by how rare solutions are.

Wide random starts find as much as Ridge Rider in the same time on the trees of Figure 2. Here both
go on until they have found everything or run out, on deeper trees and with rarer positive leaves,
and are compared by what they had spent when a given share of the solutions was found. Guessing gets
the best of two step sizes for each tree, and four times the seconds that Ridge Rider took.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np

from ridgerider.problems.tree import Tree
from ridgerider_experiments.show import drawing, markdown
from ridgerider_experiments.sweep import percent, proportion
from ridgerider_experiments.tree_methods import descent, measure, recommended

PLACES = tuple((depth, rare) for rare in (0.4, 0.1, 0.02) for depth in (6, 8, 10, 12, 14))
SHARE = 0.9  # of the solutions, at which costs are compared
WIDE, STEP_SIZES = 3.0, (1.0, 10.0)
PATIENCE = 4.0  # times the seconds of Ridge Rider
MAX_DECISIONS = 64  # larger trees are left out: a dense ridge there costs more than it can save
METHODS, UNITS = ("rr", "guess"), ("steps", "products", "seconds")
COLORS = {0.4: "#0072B2", 0.1: "#D55E00", 0.02: "#009E73"}


def work(tree: Tree, max_steps: int) -> dict[str, Any]:
    """Both methods on one tree, until everything is found."""
    if tree.num_decisions > MAX_DECISIONS:
        return {"methods": {}}
    ridges = measure(recommended(), tree, max_steps=max_steps, until_all=True)
    seconds = max(PATIENCE * ridges["seconds"], 1.0)
    guesses = [
        measure(descent(size, WIDE), tree, max_seconds=seconds, until_all=True)
        for size in STEP_SIZES
    ]
    # The step size that was the first to find the share that is asked for, or found most.
    best = min(guesses, key=lambda one: (cost(one, tree.num_solutions, 1), -one["fraction"]))
    return {"solutions": tree.num_solutions, "methods": {"rr": ridges, "guess": best}}


def cost(one: dict[str, Any], solutions: int, column: int, share: float = SHARE) -> float:
    """Steps (column 0) or seconds (1) until this share of the solutions was found, or infinity."""
    wanted = math.ceil(share * solutions)
    found = one["discoveries"]
    return found[wanted - 1][column] if len(found) >= wanted else math.inf


def summary(place: tuple[int, float], done: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the trees at one place: what was found, and how much more guessing cost (median)."""
    kept = [one for one in done if one["methods"]]
    found: dict[str, Any] = {"depth": place[0], "p_positive": place[1], "trees": len(kept)}
    if not kept:
        return found
    for name in METHODS:
        found[name] = proportion(one["methods"][name]["fraction"] for one in kept)
    for unit in UNITS:
        known = [value for one in kept if not math.isnan(value := ratio(one, unit))]
        middle = float(np.median(known)) if known else math.nan
        found[f"ratio_{unit}"] = middle if math.isfinite(middle) else None
        found[f"rr_cheaper_{unit}"] = sum(value > 1 for value in known)
    found["solutions"] = float(np.mean([one["solutions"] for one in kept]))
    return found


def ratio(one: dict[str, Any], unit: str) -> float:
    """What guessing spent over what Ridge Rider did; infinite where only guessing failed."""
    spent = []
    for name in METHODS:
        found = one["methods"][name]
        here = cost(found, one["solutions"], int(unit == "seconds"))
        if unit == "products":  # a Hessian is as many HVPs as there are logits
            here *= (found["hvps"] + found["gradients"]) / found["iterations"]
        spent.append(here)
    if math.isinf(spent[0]):
        return math.nan if math.isinf(spent[1]) else 0.0
    return spent[1] / max(spent[0], 1e-9)


def draw(regimes: list[dict[str, Any]], out: Path) -> None:
    """The ratio of costs by depth, in each unit: above one, guessing costs more."""
    rows = [row for row in regimes if row["trees"]]
    with drawing(out / "regimes", 10, 3.4, 1, 3, sharey=True) as axes:
        for ax, unit in zip(axes, UNITS, strict=True):
            for rare in dict.fromkeys(row["p_positive"] for row in rows):
                here = [r for r in rows if r["p_positive"] == rare and r[f"ratio_{unit}"]]
                points = [(row["depth"], row[f"ratio_{unit}"]) for row in here]
                look = {"color": COLORS.get(rare, "#444444"), "label": f"P(positive) = {rare:g}"}
                ax.plot(*np.array(points).reshape(-1, 2).T, marker="o", **look)
            ax.axhline(1, color="#777777", linewidth=0.9, linestyle=":")
            ax.set(yscale="log", xlabel="depth", title=f"in {unit}")
            ax.set_xticks(sorted({row["depth"] for row in rows}))
        axes[0].legend()
        axes[0].set_ylabel(f"guessing / Ridge Rider,\n{SHARE:.0%} of the solutions")


def table(regimes: list[dict[str, Any]]) -> str:
    spent = f"cost of {SHARE:.0%}, wide starts / Ridge Rider, median: steps"
    head = ["P(positive)", "depth", "trees", "solutions, mean", "Ridge Rider finds (%)"]
    head += ["wide starts find (%)", spent, "products", "seconds"]
    head += ["trees with fewer products by Ridge Rider", "fewer seconds"]
    rows = []
    for row in regimes:
        if row["trees"]:
            place = [f"{row['p_positive']:g}", row["depth"], row["trees"]]
            found = [f"{row['solutions']:.1f}", percent(row["rr"]), percent(row["guess"])]
            ratios = [row[f"ratio_{unit}"] for unit in UNITS]
            costs = ["-" if value is None else f"{value:.2g}" for value in ratios]
            cheaper = [row["rr_cheaper_products"], row["rr_cheaper_seconds"]]
            rows.append([*place, *found, *costs, *cheaper])
    return markdown(head, rows)
