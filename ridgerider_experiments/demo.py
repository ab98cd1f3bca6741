"""The method in two minutes: four problems, a report for each, and a page that leads to them."""

import base64
import html
import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ridgerider as rr
from ridgerider.problems.classifier import digits_classifier, digits_measures
from ridgerider.problems.levers import lever_measures, levers
from ridgerider.problems.surface import surface, surface_minima
from ridgerider.problems.tree import make_tree
from ridgerider.types import Progress
from ridgerider_experiments.chain import RIDER
from ridgerider_experiments.tree_methods import MAX_RIDGES, ridge_rider

Bar = Callable[[Path], AbstractContextManager[Callable[[Progress], None]]]
TREE = make_tree(depth=6, seed=1)


@dataclass(frozen=True)
class Part:
    """One problem of the demo, and how to say in a few words what came of it."""

    name: str
    title: str
    text: str
    problem: rr.Problem
    rider: rr.Rider
    found: Callable[[rr.Result], str]
    max_rides: int
    settings: dict[str, Any] = field(default_factory=dict)  # of the search


@dataclass(frozen=True)
class Done:
    """What became of it."""

    part: Part
    result: rr.Result
    page: Path
    found: str


def tree() -> rr.Problem:
    """The tree of the demo; the built-in one is smaller."""
    return TREE.problem()


def parts() -> list[Part]:
    """What the demo shows."""
    return [
        Part(
            "surface",
            "A surface with four minima",
            "The paper's Figure 1. Gradient descent from the top falls into the two local minima; "
            "the weak ridge leads to the two global ones.",
            surface(),
            rr.Rider(),
            lambda result: f"{len(result.minima())} of {len(surface_minima())} minima",
            20,
        ),
        Part(
            "tree",
            "A decision tree of depth 6",
            "One logit for each decision, ten points at the positive leaves. Each is a solution of "
            "its own, and lies at infinity: a descent stops where the gradient is small.",
            tree(),
            ridge_rider(0.8),
            tree_leaves,
            60,
            # Where `resume`, `replay` and `watch` find it; the others by their names.
            {
                "max_ridges": MAX_RIDGES,
                "measures": TREE.measures(),
                "name": "ridgerider_experiments.demo:tree",
            },
        ),
        Part(
            "levers",
            "Levers to agree on",
            "Two players must pull the same lever without talking: seven of ten pay 1, two pay "
            "0.8, one pays 0.6. Strangers cannot tell equal levers apart and miss each other "
            "there, so the lever to deploy is the one that has no equal. Ridge 0 leads to it.",
            levers(),
            rr.Rider(step=rr.Backtracking(0.5)),
            lever_payoffs,
            8 + 24,
            {"max_depth": 2, "measures": lever_measures()},
        ),
        Part(
            "digits",
            "A network that reads digits",
            "610 parameters by Hessian-vector products alone, from near zero: no gradient descent, "
            "only ridges and what the valley corrector relaxes.",
            digits_classifier(),
            replace(
                RIDER,
                spectrum=rr.BlockSpectrum(k=4, max_hvps=20, method="gradient"),
                correct=rr.Valley(),
                batch=rr.Batches(256),
            ),
            digits_right,
            24,
            {"order": "best_first", "max_ridges": 2, "measures": digits_measures()},
        ),
    ]


def run(directory: Path, seed: int, bar: Bar) -> Iterator[Done]:
    """Search each problem, with a progress bar, and write its report."""
    for part in parts():
        path, page = (directory / f"{part.name}.{kind}" for kind in ("sqlite", "html"))
        rider, how = replace(part.rider, keep_path=True), {"name": part.name, **part.settings}
        how |= {"max_rides": part.max_rides, "seed": seed, "out": path}
        with bar(path) as progress:
            result = rr.search(part.problem, rider, progress=progress, **how)
        found = part.found(result)
        rr.report.report(path, page, claim=f"{part.title}: {found}.", index="report.html")
        yield Done(part, result, page, found)


def tree_leaves(result: rr.Result) -> str:
    """How many positive leaves of the tree some descent came to."""
    reached = set(result.measures()["signature"].values()) - {None}
    return f"{len(reached)} of {TREE.num_solutions} positive leaves"


def digits_right(result: rr.Result) -> str:
    """On the test images, where the loss on the training images is lowest."""
    best = min(result, key=lambda leg: leg.loss)
    return f"{result.measures()['accuracy'][best.fingerprint][0]:.0%} of unseen digits right"


def lever_payoffs(result: rr.Result) -> str:
    """What ridge 0 pays with strangers, and what the ride that pays partners most does."""
    found = result.measures()
    alone = {str(name): value for name, value in found["payoff"].items()}
    met = {str(name): value for name, value in found["with strangers"].items()}
    first, best = max(("0+", "0-"), key=alone.__getitem__), max(alone, key=alone.__getitem__)
    return (
        f"payoff {met[first]:.2f} with strangers on ridge 0, "
        f"{met[best]:.2f} where partners get {alone[best]:.2f}"
    )


def write_index(directory: Path, done: list[Done]) -> Path:
    """A page that leads to the reports."""
    cards = []
    for one in done:
        cost = one.result.cost
        facts = f"{len(one.result)} rides, {int(cost.hvps):,} Hessian-vector products"
        cards.append(
            f'<a class="card" href="{html.escape(one.page.name)}">'
            f'<img alt="Tree of rides" src="data:image/svg+xml;base64,{_picture(one.result)}">'
            f"<h2>{html.escape(one.part.title)}</h2><p>{html.escape(one.part.text)}</p>"
            f'<p class="found">{html.escape(one.found)}</p><p class="quiet">{facts}</p></a>'
        )
    out = directory / "report.html"
    page = rr.report.fill_page("index", "Two minutes", cards="\n".join(cards))
    out.write_text(page, encoding="utf-8")
    return out


def _picture(result: rr.Result) -> str:
    content = io.BytesIO()
    figure: Any = rr.plot.tree(result).figure
    figure.set_size_inches(5.2, 3.1)
    figure.savefig(content, format="svg")
    return base64.b64encode(content.getvalue()).decode()
