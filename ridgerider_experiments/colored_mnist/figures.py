"""The figure and the tables of `reproduce colored-mnist`."""

from pathlib import Path
from typing import Any

import numpy as np

from ridgerider_experiments.show import drawing, markdown
from ridgerider_experiments.sweep import interval

# What it is, the paper's accuracies in training and test, and its colour if it is drawn.
METHODS = {
    "consistent": ("RR, consistent ridge", "", "", "#D55E00"),
    "algorithm_4": ("RR, Algorithm 4", "65.5 ± 1.7", "58.4 ± 2.4", "#E69F00"),
    "algorithm_4_whole": (
        *("RR, Algorithm 4, whole featurizer trained", "65.5 ± 1.7", "58.4 ± 2.4"),
        None,
    ),
    "algorithm_4_literal": ("RR, Algorithm 4 as printed", "65.5 ± 1.7", "58.4 ± 2.4", None),
    "irm": ("IRM", "69.7 ± 0.7", "65.7 ± 1.4", "#0072B2"),
    "vrex": ("V-REx", "", "", "#56B4E9"),
    "fishr": ("Fishr", "", "", None),
    "group_dro": ("Group-DRO", "", "", None),
    "dro": ("DRO, worst environment", "", "", None),
    "erm": ("ERM", "87.4 ± 1.7", "17.8 ± 1.3", "#009E73"),
    "oracle": ("grey-scale oracle", "", "", "#777777"),
    "no_projection": ("control: consistent ridge, no projection", "", "", None),
    "shuffled": ("control: consistent ridge, environments shuffled", "", "", None),
    "no_consistency": ("control: Algorithm 4, no consistency terms", "", "", None),
}
NAMES = {name: of[0] for name, of in METHODS.items()}
COLORS = {name: of[-1] for name, of in METHODS.items() if of[-1]}
Runs = dict[str, list[dict[str, Any]]]


def draw_curves(methods: dict[str, Any], out: Path) -> None:
    """Figure 9: accuracies by step, baselines and rides side by side, from stored results."""
    panels = (("erm", "irm"), ("algorithm_4", "algorithm_4_whole"))
    with drawing(out / "colored-mnist-curves", 9, 3.4, 1, 2, sharey=True) as axes:
        for ax, names in zip(axes, panels, strict=True):
            for name, color in zip(names, ("#009E73", "#0072B2"), strict=True):
                curve = methods[name]["curve"]
                for part, line in (("test", "-"), ("train", "--")):
                    low, mean, high = percents(*curve[part]).T
                    label = f"{NAMES[name]}, {part} ({curve['runs']} runs)"
                    ax.plot(curve["step"], mean, line, color=color, label=label)
                    ax.fill_between(curve["step"], low, high, color=color, alpha=0.2, linewidth=0)
            ax.axhline(75, color="#999999", linewidth=0.8, linestyle=":")
            ax.legend(loc=(0.02, 0.14))
            ax.set_xlabel("steps of training" if "erm" in names else "steps along the ridge")
        axes[0].set(ylabel="accuracy (%), mean and 95 % interval", ylim=(0, 100))


def percents(*intervals: dict[str, float]) -> np.ndarray:
    """Lower end, mean and upper end of each."""
    return 100 * np.array([[one[side] for side in ("low", "mean", "high")] for one in intervals])


def draw(runs: Runs, out: Path) -> None:
    """Where each method ends: a dot for each run, their mean with its 95 % interval."""
    names = [name for name in COLORS if runs.get(name)]
    with drawing(out / "colored-mnist", 6, 4.2) as ax:
        for row, name in enumerate(names):
            ends = np.array([one["curve"][-1][1:] for one in runs[name]])
            test, train = ends[:, -1], ends[:, : ends.shape[1] // 2].mean(axis=1)
            around = row + 0.24 * (np.linspace(-1, 1, len(test)) if len(test) > 1 else np.zeros(1))
            look: dict[str, Any] = {"color": COLORS[name], "capsize": 3, "linewidth": 1.6}
            ax.plot(100 * test, around, ".", color=COLORS[name], markersize=3, alpha=0.45, zorder=1)
            for values, marker, fill in ((test, "o", COLORS[name]), (train, "s", "white")):
                ((low, mean, high),) = percents(interval(values))
                look |= {"fmt": marker, "markerfacecolor": fill, "zorder": 3}
                ax.errorbar(mean, row, xerr=[[mean - low], [high - mean]], **look)
        ax.plot([], [], "o", color="#555555", label="test")
        ax.plot([], [], "s", color="#555555", markerfacecolor="white", label="train")
        for place, label in ((50, "chance"), (75, "optimal")):
            ax.axvline(place, color="#999999", linewidth=0.8, linestyle=":", zorder=0)
            ax.text(place + 0.5, -0.62, label, color="#777777", fontsize=7.5)
        ax.set_yticks(range(len(names)), [NAMES[name] for name in names])
        ax.set(xlabel="accuracy (%), mean and 95 % interval", xlim=(0, 100))
        ax.set_ylim(len(names) - 0.4, -0.8)
        ax.legend(loc="lower left")


def table(results: dict[str, Any]) -> str:
    methods = {name: results["methods"][name] for name in NAMES if name in results["methods"]}
    rows = [
        [
            *METHODS[name][:3],
            *(percent(of[part]) for part in ("train_accuracy", "test_accuracy")),
            *(f"{100 * of['spread']['deviation']:.1f}", of["runs"]),
            *(of["selection"], f"{of['seconds']:.0f}"),
        ]
        for name, of in methods.items()
    ]
    rows += [["chance", *[50] * 4, *[""] * 4], ["optimal", *[75] * 4, *[""] * 4]]
    head = ["method", "paper, train", "paper, test", "ours, train", "ours, test"]
    head += ["standard deviation over networks", "runs", "selection", "seconds"]
    others = (rules_table(methods), differences_table(results))
    return "\n".join([markdown(head, rows), *others])


def rules_table(methods: dict[str, Any]) -> str:
    """How far to ride or train, chosen by each rule; test accuracy."""
    rules = list(methods["consistent"]["other_rules"])
    shown = [f"{rule} (is given 0.9)" if "extrapolated" in rule else rule for rule in rules]
    rows = [
        [NAMES[name], *(percent(of["other_rules"][rule]["test_accuracy"]) for rule in rules)]
        for name, of in methods.items()
    ]
    return markdown(["test accuracy, step chosen by", *shown], rows)


def differences_table(results: dict[str, Any]) -> str:
    """On equal seeds, in points."""
    rows = []
    for names, of in results.get("differences", {}).items():
        one, two = (NAMES[name] for name in names.split(" - "))
        test, other = (_points(of[part]) for part in ("test", "extrapolated_validation"))
        rows.append([f"{one} - {two}", test, f"{of['test']['above']} of {of['seeds']}", other])
    hearts = [
        f"{NAMES[name]}: {of['train']:.1f} points on training images, {of['held_out']:.1f} on "
        "held-out ones"
        for name, of in results.get("by_heart", {}).items()
    ]
    head = ["difference on equal seeds", "test, points", "above on", "extrapolated validation*"]
    note = "\\* Extrapolated validation is given the test environment's flip rate, 0.9."
    apart = "Accuracies differ between the training environments: " + "; ".join(hearts) + "."
    return f"{markdown(head, rows)}\n{note}\n\n{apart}\n"


def _points(of: dict[str, Any]) -> str:
    return f"{of['mean']:+.1f}" + ("" if of["half"] is None else f" ± {of['half']:.1f}")


def percent(interval: dict[str, float]) -> str:
    half = (interval["high"] - interval["low"]) / 2
    of_one_run = (interval["low"], interval["high"]) == (0.0, 1.0)
    return f"{100 * interval['mean']:.1f}" + ("" if of_one_run else f" ± {100 * half:.1f}")
