"""Several runs on one page: settings that differ, solutions shared and not, minima over cost.

The page is made here, down to its pictures: it needs no script, and whatever comes from a run file
is escaped.
"""

import html
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ridgerider._core.problem.problem import Problem
from ridgerider._search.results.measures import SIGNATURE, signature_classes
from ridgerider._search.runfile.partial import PartialRun
from ridgerider._search.same.classes import Classes
from ridgerider._search.same.points import IS_SOLUTION, StationaryPoints
from ridgerider._search.tree.tree import Fingerprint, Leg, Turn
from ridgerider.report._page import fill_page, place_for, write_page
from ridgerider.report._plain import count
from ridgerider.report._step_chart import Line, step_chart

AXES: dict[str, Callable[[Leg], Any]] = {
    "evaluations": lambda row: row.cost.values + row.cost.gradients + row.cost.hvps,
    "Hessian-vector products": lambda row: row.cost.hvps,
    "gradients": lambda row: row.cost.gradients,
    "rides": lambda row: 1,
    "seconds": lambda row: row.cost.seconds,
}
COSTS = {
    "hvps": "Hessian-vector products",
    "hessians": "Hessians",
    "eigendecompositions": "eigendecompositions",
    "gradients": "gradients",
    "values": "values",
    "seconds": "seconds",
}
MAX_SHOWN = 200
NOTHING = "\N{EN DASH}"


@dataclass(frozen=True)
class Run:
    """A run file, read."""

    name: str  # short, and another one than those of the other runs
    path: Path
    meta: dict[str, Any]
    legs: list[Leg]  # with the start first, as they were stored
    num_open: int
    notes: list[str]
    measures: dict[str, dict[str, Any]]  # by name and fingerprint

    @cached_property
    def ends(self) -> list[tuple[int, Leg]]:
        """The legs that led to a solution, with their place in the file."""
        about = self.meta.get("measures") or {}
        kinds = about.get("kinds", IS_SOLUTION) if about.get("signature") else IS_SOLUTION
        return [
            (place, row)
            for place, row in enumerate(self.legs)
            if row.finish is not None and row.finish.kind in kinds
        ]

    @property
    def metrics(self) -> list[str]:
        return list((self.meta.get("measures") or {}).get("metrics", {}))

    def measured(self, name: str, row: Leg) -> Any:
        return self.measures.get(name, {}).get(str(row.fingerprint))

    def metric(self, name: str, row: Leg) -> float | None:
        """A number; of one for each example the mean."""
        value = self.measured(name, row)
        return None if value is None else float(np.mean(value))

    def spent(self, axis: str) -> np.ndarray:
        """What was spent before anything, and when each leg was stored."""
        return np.cumsum([0.0, *(float(AXES[axis](row)) for row in self.legs)])


# The different solutions of all runs: for each, by the number of a run, the leg that found it
# there, with its place in the file.
Found = list[dict[int, tuple[int, Leg]]]


def compare(
    paths: Sequence[str | os.PathLike],
    out: str | os.PathLike | None = None,
    *,
    problem: Problem | None = None,
    signature: Callable[[Any], Any] | None = None,
    say: Callable[[str], None] | None = None,
) -> Path:
    """Write several runs of one problem as one HTML page, to judge riders, orders or engines.

    The page shows which settings differ, which solutions are shared, how many were found over the
    cost, and the ledger. It needs no network and no script.

    **Arguments**

    - `paths`: two or more run files, also those of baselines.
    - `out`: where to write the page. Default: `compare.html` beside the first run file.
    - `problem`: with it, solutions with flat directions and at infinity are compared as a search
      does; without it, those of two runs are the same if their points are within their errors.
    - `signature(params)`: compare what it returns instead, to 1e-3, as in `Result.minima`. Needs
      the `problem`. Without one, the signature that all runs were measured by (see `Measures`).
    - `say`: called with a sentence for everything that could not be read.

    >>> import tempfile
    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> here = Path(tempfile.mkdtemp())
    >>> for order in ("breadth_first", "depth_first"):
    ...     _ = rr.search(wells(2), order=order, max_rides=6, out=here / f"{order}.sqlite")
    >>> page = rr.report.compare(sorted(here.glob("*.sqlite")))
    >>> page.name, "depth_first" in page.read_text()
    ('compare.html', True)
    """
    files = [Path(path) for path in paths]
    if len(files) < 2:
        raise ValueError(f"`paths` must be two run files or more, not {len(files)}.")
    if signature is not None and problem is None:
        raise ValueError("`signature` needs the `problem`, to know the parameters.")
    out = place_for(out, files[0].with_name("compare.html"))
    runs = read_runs(files)
    if say is not None:
        for note in (f"{run.path}: {note}" for run in runs for note in run.notes):
            say(note)
    about = [run.meta.get("problem", {}) for run in runs]
    # Starts may differ, but not the leaves of the parameters or the data.
    is_one_problem = len({json.dumps([one.get("params"), one.get("data")]) for one in about}) == 1
    found = solutions_of(runs, problem, signature) if is_one_problem else None
    return write_page(out, _page(runs, found))


def read_runs(files: Sequence[Path]) -> list[Run]:
    """Runs by the name of their directory, or of the file; with a number where these are equal."""
    names = [path.stem if path.stem != "run" else path.absolute().parent.name for path in files]
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, 1)]
    runs = []
    for name, path in zip(names, files, strict=True):
        reader = PartialRun(path)
        legs = reader.read()
        notes = [f"{what} cannot be read ({why})" for what, why in reader.unreadable.items()]
        runs.append(Run(name, path, reader.meta, legs, reader.num_open, notes, reader.measures))
    return runs


def solutions_of(
    runs: Sequence[Run], problem: Problem | None, signature: Callable[[Any], Any] | None
) -> Found:
    """Sort the solutions of all runs into classes, and these by loss."""
    ends = [(number, place, row) for number, run in enumerate(runs) for place, row in run.ends]
    stored = [(run.meta.get("measures") or {}).get("signature") for run in runs]
    classes: Sequence[int | None]
    if signature is not None and problem is not None:
        points = [problem.unravel(row.finish.x) for *_, row in ends if row.finish is not None]
        values = [np.asarray(signature(params), np.float64).ravel() for params in points]
        classes = signature_classes(value.tolist() for value in values)
    elif stored[0] and all(one == stored[0] for one in stored):  # what has no value is left out
        classes = signature_classes(
            runs[number].measured(SIGNATURE, row) for number, _, row in ends
        )
    else:
        pairs = np.array([*_equal(ends, problem)], int).reshape(-1, 2)
        graph = coo_array((np.ones(len(pairs)), pairs.T), shape=(len(ends), len(ends)))
        classes = connected_components(graph, directed=False)[1].tolist()
    groups = dict[int, dict[int, tuple[int, Leg]]]()
    for (number, place, row), one in zip(ends, classes, strict=True):
        if one is not None:
            groups.setdefault(one, {}).setdefault(number, (place, row))
    return sorted(groups.values(), key=lambda by: min(level(row) for _, row in by.values()))


def _equal(
    ends: Sequence[tuple[int, int, Leg]], problem: Problem | None
) -> Iterator[tuple[int, int]]:
    """Pairs of ends that are one: as a search compares them, and as it found within each run."""
    places: dict[Fingerprint, int] = {}
    points = Classes[int]()
    finishes: dict[Fingerprint, Any] = {}
    walks = None if problem is None else StationaryPoints(problem, None, finishes.__getitem__)
    for i, (number, _, row) in enumerate(ends):
        # Two runs have the same fingerprints: the number of the run makes them different.
        name, own = Fingerprint((Turn(number, 1), *row.fingerprint)), row.finish
        assert own is not None
        places[name], finishes[name] = i, own
        if walks is None:
            yield i, points.names[points.add(i, np.asarray(own.x), float(own.error))]
        elif (same := walks.add(name, own)) is not None:
            yield i, places[same]
        known = () if row.same_as is None else (Turn(number, 1), *row.same_as)
        if known and Fingerprint(known) in places:
            yield i, places[Fingerprint(known)]


def level(row: Leg) -> float:
    """The loss; at infinity its limit."""
    assert row.finish is not None
    return float(row.finish.limit if row.finish.kind == "at infinity" else row.finish.loss)


# --- the page


def _page(runs: Sequence[Run], found: Found | None) -> str:
    axes = [
        f'<input type="radio" name="axis" id="axis-{number}"{" checked" if not number else ""}>'
        f'<label for="axis-{number}">{axis}</label>'
        for number, axis in enumerate(AXES)
    ]
    parts = {
        "title": html.escape(" against ".join(run.name for run in runs)),
        "heading": f"{len(runs)} runs compared",
        "verdict": html.escape(_verdict(runs, found)),
        "runs": _runs_table(runs, found),
        "axes": "".join(axes),
        "charts": _charts(runs, found),
        "settings": _settings_table(runs),
        "solutions": _solutions_table(runs, found),
        "ledger": _ledger(runs),
    }
    return fill_page(parts, name="compare", styles=("page", "compare"))


def _verdict(runs: Sequence[Run], found: Found | None) -> str:
    """What is to be said first, in a few sentences."""
    if found is None:
        return (
            "These runs are of different problems (their parameters or data differ): their "
            "solutions are not compared."
        )
    if not found:
        return "No run found a minimum."
    each = [f"{run.name} {sum(i in by for by in found)}" for i, run in enumerate(runs)]
    common = sum(len(by) == len(runs) for by in found)
    total = count(len(found), "different solution", "different solutions")
    best = ", ".join(runs[number].name for number in sorted(found[0]))
    lowest = min(level(row) for _, row in found[0].values())
    return (
        f"{total} altogether: {', '.join(each)}; {common} found by all. "
        f"The lowest loss, {lowest:.6g}, was found by {best}."
    )


def _runs_table(runs: Sequence[Run], found: Found | None) -> str:
    head = ["run", "problem", "rides", "open", "solutions", "lowest loss", "evaluations", "seconds"]
    rows = []
    for number, run in enumerate(runs):
        losses = [level(row) for _, row in run.ends]
        rows.append(
            [
                f'<span class="run r{number % 6}"></span>{_text(run.name)}',
                _text(run.meta.get("name", "")),
                f"{max(0, len(run.legs) - 1):,}",
                f"{run.num_open:,}",
                NOTHING if found is None else str(sum(number in by for by in found)),
                f"{min(losses):.6g}" if losses else NOTHING,
                f"{run.spent('evaluations')[-1]:,.0f}",
                f"{run.spent('seconds')[-1]:,.1f}",
            ]
        )
    return _table(head, rows, num_text=2)


def _settings_table(runs: Sequence[Run]) -> str:
    parts = ("settings", "rider", "budget", "versions")
    flat = [_flat({part: run.meta.get(part, {}) for part in parts}) for run in runs]
    different = [
        key
        for key in dict.fromkeys(key for one in flat for key in one)
        if len({json.dumps(one.get(key, NOTHING)) for one in flat}) > 1
    ]
    # Where a rule is another one, its own settings have nothing to be compared with.
    shown = [key for key in different if not any(key.startswith(f"{one}.") for one in different)]
    rows = [[_text(key), *(_text(_short(one.get(key, NOTHING))) for one in flat)] for key in shown]
    if not rows:
        return '<p class="quiet">No setting differs.</p>'
    return _table(["setting", *_names(runs)], rows, num_text=len(runs) + 1)


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """A nested description by dotted names; what a rule is called stands at its own place.

    >>> _flat({"rider": {"type": "ridgerider:Rider", "fields": {"max_steps": 5}}})
    {'rider': 'Rider', 'rider.max_steps': 5}
    """
    if isinstance(value, dict) and "function" in value:
        return {name: value["function"].rpartition(":")[2]}
    if isinstance(value, dict) and "type" in value:
        inside = _flat(value.get("fields", {}), name)
        return {name: value["type"].rpartition(":")[2], **inside}
    if isinstance(value, dict):
        found: dict[str, Any] = {}
        for key, item in value.items():
            found |= _flat(item, f"{name}.{key}" if name else str(key))
        return found
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return {name: ", ".join(str(next(iter(_flat(item, "").values()), "")) for item in value)}
    return {name: value}


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:36]}…{text[-20:]}"


def _solutions_table(runs: Sequence[Run], found: Found | None) -> str:
    if not found:
        why = "No run found a minimum." if found == [] else "The runs are of different problems."
        return f'<p class="quiet">{why}</p>'
    metrics, rows = _metrics(runs), []
    for number, by in enumerate(found[:MAX_SHOWN], 1):
        lowest = min((row for _, row in by.values()), key=level)
        assert lowest.finish is not None
        cells = [f"{number}", f"{level(lowest):.6g}"]
        for name in metrics:
            values = (runs[run].metric(name, row) for run, (_, row) in sorted(by.items()))
            value = next((value for value in values if value is not None), None)
            cells.append(NOTHING if value is None else f"{value:.5g}")
        cells.append(_text(lowest.finish.kind))
        for run in range(len(runs)):
            if run not in by:
                cells.append(f'<span class="quiet">{NOTHING}</span>')
                continue
            place, row = by[run]
            name = str(row.fingerprint)
            shown = name if len(name) <= 28 else f"{name[:14]}…{name[-10:]}"
            cells.append(
                f'<span class="fp" title="{_text(name)}">{_text(shown)}</span> '
                f'<span class="quiet">ride {place}</span>'
            )
        rows.append(cells)
    more = len(found) - MAX_SHOWN
    note = f'<p class="quiet">… and {more} more</p>' if more > 0 else ""
    head = ["", "loss", *map(_text, metrics), "kind", *_names(runs)]
    return _table(head, rows, text_from=2 + len(metrics)) + note


def _names(runs: Sequence[Run]) -> list[str]:
    return [_text(run.name) for run in runs]


def _metrics(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.metrics))


def _ledger(runs: Sequence[Run]) -> str:
    rows = []
    for name, title in COSTS.items():
        totals = [sum(float(getattr(row.cost, name)) for row in run.legs) for run in runs]
        digits = 1 if name == "seconds" else 0
        rows.append([title, *(f"{total:,.{digits}f}" for total in totals)])
    return _table(["cost", *_names(runs)], rows)


def _charts(runs: Sequence[Run], found: Found | None) -> str:
    """For each axis a chart of each curve: for each run, values by the place of a leg."""
    curves: dict[str, list[list[tuple[int, float]]]] = {}
    if found is not None:
        curves["different solutions"] = [
            [(-1, 0.0), *((place, n) for n, place in enumerate(sorted(places), 1))]
            for places in ([by[i][0] for by in found if i in by] for i in range(len(runs)))
        ]
    curves["lowest loss so far"] = [
        _records((place, level(row)) for place, row in run.ends) for run in runs
    ]
    for name in _metrics(runs):
        curves[f"highest {name} so far"] = [
            _records(((place, run.metric(name, row)) for place, row in run.ends), -1)
            for run in runs
        ]
    blocks = []
    for number, axis in enumerate(AXES):
        spent = [run.spent(axis) for run in runs]
        charts = []
        for title, curve in curves.items():
            lines = [
                Line(run.name, [(float(at[place + 1]), y) for place, y in points], float(at[-1]))
                for run, at, points in zip(runs, spent, curve, strict=True)
            ]
            charts.append(step_chart(lines, title, axis))
        blocks.append(f'<div class="by by-{number}">{"".join(charts)}</div>')
    return f'<div class="charts">{"".join(blocks)}</div>'


def _records(points: Iterable[tuple[int, float | None]], sign: int = 1) -> list[tuple[int, float]]:
    """The values that are lower than all before; with a `sign` of -1, higher."""
    kept: list[tuple[int, float]] = []
    for place, value in points:
        if value is None or not np.isfinite(value):
            continue
        if not kept or sign * value < sign * kept[-1][1]:
            kept.append((place, value))
    return kept


def _table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, num_text: int = 1, text_from: int = 10**6
) -> str:
    """Cells are markup already; the first `num_text`, and those from `text_from` on, are text."""

    def kind(column: int) -> str:
        return ' class="text"' if column < num_text or column >= text_from else ""

    top = "".join(f'<th scope="col"{kind(i)}>{name}</th>' for i, name in enumerate(head))
    body = "".join(
        f"<tr>{''.join(f'<td{kind(i)}>{cell}</td>' for i, cell in enumerate(row))}</tr>"
        for row in rows
    )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Table">'
        f'<table class="plain-table"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
        "</div>"
    )


def _text(value: Any) -> str:
    return html.escape(str(value))
