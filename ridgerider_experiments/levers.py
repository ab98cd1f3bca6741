"""Figure 6: zero-shot coordination in the lever game.

    ridgerider reproduce levers

Paper: of all ridges only the first, the lever that pays 0.6, is the same for everybody; strangers
who deploy it score 0.6, while each of the better paid ridges breaks a symmetry at random.

Differs from the paper: ridges are numbered by cluster, `3.2` is the third of a cluster, as copies
have no order. Random payoff lists are ours; further games are in `games`.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from ridgerider.coordination import Candidate, Coordination, coordinate, other_play, play_alone
from ridgerider.problems.levers import PAPER, Levers, lever_eigenvalues
from ridgerider_experiments.runner import Base, Job, Runner, sized
from ridgerider_experiments.show import drawing, markdown

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
CLOSE = 1e-3  # two payoffs are equal


@dataclass(frozen=True)
class Settings(Base):
    num_runs: int = sized(25, quick=10)  # as in the paper
    num_repeats: int = sized(5, quick=2)  # as in the paper
    num_lists: int = sized(200, quick=3)  # random payoff lists; ours
    list_runs: int = sized(15, quick=6)  # of each list; ours, a matter of time
    max_levers: int = sized(8, quick=3)  # in a random list; ours


def run(settings: Settings, runner: Runner) -> dict[str, Any]:
    game, began, runs = Levers(PAPER), time.perf_counter(), settings.num_runs
    seeds = [settings.seed * 1000 + repeat for repeat in range(settings.num_repeats)]
    repeats = [coordinate(game, runs, members="all", seed=seed) for seed in seeds]
    seconds = time.perf_counter() - began
    draw(repeats, runner.out)
    alone = [play_alone(game, runs, seed=seed).cross_play for seed in seeds]
    told = [other_play(game, game.symmetries(), runs, seed=seed).cross_play for seed in seeds]
    return {
        "ridges": ridges(repeats),
        "best": {
            "fingerprint": [r.best.fingerprint for r in repeats],
            "cross_play": [r.best.cross_play for r in repeats],
            # Algorithm 3 as printed: by the mean over N^2 pairs, each run with itself too.
            "by_printed_mean": [
                max(r.candidates, key=lambda one: one.cross_play).fingerprint for r in repeats
            ],
        },
        "seconds": seconds,
        "self_play_baseline": {"cross_play": float(np.mean(alone))},
        "other_play": {"cross_play": float(np.mean(told))},
        "chance": [chance(payoff, runs) for payoff in (0.8, 1.0)],
        "random_lists": random_lists(settings, runner),
    }


def ridges(repeats: list[Coordination]) -> list[dict[str, Any]]:
    """Each ridge over all repeats."""
    return [ridge(column) for column in zip(*(one.candidates for one in repeats), strict=True)]


def ridge(repeats: tuple[Candidate, ...]) -> dict[str, Any]:
    """One ridge over all repeats."""
    cross_play = [one.cross_play for one in repeats]
    return {
        "fingerprint": repeats[0].fingerprint,
        "multiplicity": repeats[0].multiplicity,
        "cross_play": float(np.mean(cross_play)),
        "cross_play_error": float(np.std(cross_play, ddof=min(1, len(repeats) - 1))),
        "self_play": float(np.mean([one.self_play for one in repeats])),
        "confidence": min(one.confidence for one in repeats),
        "sign_confidence": min(one.sign_confidence for one in repeats),
        "same_greedy_action": sum(len(set(greedy(one).ravel())) == 1 for one in repeats),
    }


def greedy(candidate: Candidate) -> np.ndarray:
    """The lever that each player of each run pulls most often."""
    return np.asarray(candidate.policies).argmax(axis=-1)


def chance(payoff: float, num_runs: int) -> float:
    """The average cross-play of runs that pick one of the tied levers at random."""
    return payoff * (1 / num_runs + (1 - 1 / num_runs) / PAPER.count(payoff))


# --- random payoff lists


def random_lists(settings: Settings, runner: Runner) -> dict[str, Any]:
    """Payoffs of 0.1 to 1.0 in tenths, with ties; what is deployed when a lever is untied."""
    random, jobs = np.random.default_rng(settings.seed), list[Job]()
    while len(jobs) < settings.num_lists:
        payoffs = random.integers(1, 11, size=random.integers(3, settings.max_levers + 1)) / 10
        if len(untied(payoffs)):
            own = {"num_runs": settings.list_runs, "seed": len(jobs)}
            jobs.append({"payoffs": payoffs.tolist(), **own})
    outcomes = runner(deployed, jobs)
    kinds = [outcome["kind"] for outcome in outcomes]
    return {
        "lists": len(outcomes),
        "counts": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "closed_form_saddle": sum(outcome["is_interior"] for outcome in outcomes),
        "exceptions": [one for one in outcomes if one["kind"] not in ("best", "best reached")],
    }


def untied(payoffs: np.ndarray) -> np.ndarray:
    values, counts = np.unique(payoffs, return_counts=True)
    return values[counts == 1]


def deployed(job: Job) -> dict[str, Any]:
    """Coordinate on one list and say what kind of lever came out."""
    payoffs = np.array(job["payoffs"])
    kept = {"payoffs": sorted(job["payoffs"])}
    try:
        result = coordinate(Levers(payoffs), job["num_runs"], seed=job["seed"])
    except ValueError as error:  # says that there is no saddle to ride from
        return {**kept, "kind": "no saddle found", "reason": str(error), "is_interior": False}
    best = result.best
    reached = [one.self_play for one in result.candidates if one.self_play - one.cross_play < CLOSE]
    # All eigenvalues of every run, against the closed form.
    found = [
        [cluster.eigenvalue for cluster in saddle.clusters for _ in range(cluster.multiplicity)]
        for saddle in result.saddles
    ]
    return {
        **kept,
        "kind": kind(payoffs, best, reached),
        **{part: getattr(best, part) for part in ("cross_play", "self_play", "confidence")},
        "is_interior": bool(np.abs(found - lever_eigenvalues(tuple(payoffs))).max() < 1e-8),
    }


def kind(payoffs: np.ndarray, best: Candidate, reached: list[float]) -> str:
    values, counts = np.unique(payoffs, return_counts=True)
    if best.self_play - best.cross_play < CLOSE:
        if np.abs(untied(payoffs) - best.self_play).min() > CLOSE:
            return "tied lever, all runs alike"
        if untied(payoffs).max() - best.self_play < CLOSE:
            return "best"
        return "best reached" if best.self_play >= max(reached) - CLOSE else "worse than reached"
    by_chance = np.max(values[counts > 1] / counts[counts > 1], initial=0.0)
    if by_chance > max(reached, default=0.0) - CLOSE:
        return "tied levers pay more even by chance"
    return "no coordination"


# --- figure and table


def draw(repeats: list[Coordination], out: Path) -> None:
    """The average payoff of each ridge, and what three runs play on it."""
    names = [one.fingerprint for one in repeats[0].candidates]
    with drawing(out / "levers", 10.5, 3.3, 1, 4, width_ratios=(1.9, 1, 1, 1)) as axes:
        draw_payoffs(repeats, axes[0])
        for number, ax in enumerate(axes[1:]):
            draw_run(repeats[0], number, ax)
            ax.set_yticks(range(len(names)), names if number == 0 else [""] * len(names))
        axes[1].set_ylabel("ridge")
        axes[2].set_xlabel("lever, with its payoff")


def draw_payoffs(repeats: list[Coordination], ax: Axes) -> None:
    shown = ridges(repeats)
    place = np.arange(len(shown))
    paid, alone = (np.array([one[part] for one in shown]) for part in ("cross_play", "self_play"))
    # Alone, everyone pulls one of the levers that pay what self-play comes to.
    levels = [
        chance(min(PAPER, key=lambda payoff: abs(payoff - one)), len(repeats[0].saddles))
        for one in alone
    ]
    for color, kind in ((GREEN, "simple"), (BLUE, "repeated")):
        here = np.array([(one["multiplicity"] == 1) == (kind == "simple") for one in shown])
        errors = np.array([one["cross_play_error"] for one in shown])[here]
        look: Any = {"color": color, "label": f"with each other, {kind} eigenvalue", "capsize": 3}
        ax.bar(place[here], paid[here], 0.7, yerr=errors, ecolor="#222222", **look)
    ax.hlines(levels, place - 0.42, place + 0.42, "#222222", ":", label="by chance")
    ax.plot(place, alone, "_", color=ORANGE, ms=18, mew=2.2, label="in self-play")
    ax.set_xticks(place, [one["fingerprint"] for one in shown])
    ax.set(xlabel="ridge", ylabel="average payoff", ylim=(0, 1.55), yticks=np.arange(0, 1.01, 0.2))
    ax.legend(loc="upper left")


def draw_run(result: Coordination, number: int, ax: Axes) -> None:
    """A square for each lever and ridge; its area is the probability that player one pulls it."""
    for row, one in enumerate(result.candidates):
        for lever, p in enumerate(np.asarray(jax.nn.softmax(one.policies[number, 0]))):
            side = 0.85 * np.sqrt(p)
            corner = (lever - side / 2, row - side / 2)
            ax.add_patch(Rectangle(corner, side, side, color=BLUE, linewidth=0))
    ax.set(xlim=(-0.6, len(PAPER) - 0.4), ylim=(len(result.candidates) - 0.4, -0.6))
    ax.set(title=f"run {number + 1}", aspect="equal")
    ax.set_xticks([3, 7.5, 9], ["1.0", "0.8", "0.6"], fontsize=8)
    ax.tick_params(length=0)
    ax.vlines([6.5, 8.5], *ax.get_ylim(), color="#777777", linewidth=0.6)


def table(results: dict[str, Any]) -> str:
    best, ridges, lists = results["best"], results["ridges"], results["random_lists"]
    pair, seven = results["chance"]
    group = [one["cross_play"] for one in ridges if one["multiplicity"] > 1]
    low, high = min(best["cross_play"]), max(best["cross_play"])
    counts = ", ".join(f"{count} {name}" for name, count in lists["counts"].items())
    printed = ", ".join(best.get("by_printed_mean", ["-"]))
    repeats = len(best["fingerprint"])
    agreed = [one["fingerprint"] for one in ridges if one.get("same_greedy_action") == repeats]
    alike = ", ".join(agreed) or "-"
    rows = [
        ("ridge deployed", 0, ", ".join(best["fingerprint"])),
        ("its cross-play", 0.6, f"{low:.4f} to {high:.4f}"),
        ("deployed by the mean over N^2 pairs, as printed", 0, printed),
        ("ridges on which all players of all runs pull the same lever, in every repeat", 0, alike),
        (f"ridge 1, two 0.8 levers (chance {pair:.3f})", "", f"{ridges[1]['cross_play']:.3f}"),
        (f"ridges of the seven 1.0 levers (chance {seven:.3f})", "", f"{np.mean(group):.3f}"),
        ("self-play, paired", "", f"{results['self_play_baseline']['cross_play']:.3f}"),
        ("Other-Play, told the symmetries", "", f"{results['other_play']['cross_play']:.3f}"),
        (f"{lists['lists']} random lists: lever deployed", "", counts),
        ("seconds for all runs", "", f"{results['seconds']:.0f}"),
    ]
    return markdown(["", "paper", "ours"], rows)
