"""Several runs on one page: settings that differ, solutions shared and not, minima over cost.

The page is made here, down to its pictures: it needs no script, and whatever comes from a run file
is escaped.
"""

import html
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ridgerider._core.problem.problem import Problem
from ridgerider._search.results.measures import SIGNATURE, signature_classes
from ridgerider._search.runfile.partial import PartialRun
from ridgerider._search.same.classes import TOLERANCE, Classes, reach_of
from ridgerider._search.same.points import IS_SOLUTION, Ends
from ridgerider._search.tree.tree import Fingerprint, Leg, Turn
from ridgerider.report._page import fill
from ridgerider.report._step_chart import Line, step_chart

AXES: dict[str, Callable[[Leg], Any]] = {
    "evaluations": lambda row: row.cost.values + row.cost.gradients + row.cost.hvps,
    "Hessian-vector products": lambda row: row.cost.hvps,
    "gradients": lambda row: row.cost.gradients,
    "rides": lambda row: 1,
    "seconds": lambda row: row.cost.seconds,
}
COSTS = ("hvps", "hessians", "eigendecompositions", "gradients", "values", "seconds")
MAX_SHOWN = 200
NOTHING = "\N{EN DASH}"


@dataclass(frozen=True)
class Run:
    """A run file, read."""

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

    def measured(self, name: str, row: Leg) -> Any:
        return self.measures.get(name, {}).get(str(row.fingerprint))

    @property
    def metrics(self) -> list[str]:
        return list((self.meta.get("measures") or {}).get("metrics", {}))

    def spent(self, axis: str) -> np.ndarray:
        """What was spent when each leg was stored."""
        return np.cumsum([float(AXES[axis](row)) for row in self.legs])


@dataclass
class Shared:
    """The different solutions of all runs together; for each, the leg of each run that found it."""

    found: list[dict[int, tuple[int, Leg]]] = field(default_factory=list)

    def of_run(self, run: int) -> list[int]:
        return [number for number, by in enumerate(self.found) if run in by]


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
    out = files[0].with_name("compare.html") if out is None else Path(out)
    if not out.parent.is_dir():
        raise ValueError(f"`out` must be in a directory that exists, but {out.parent} does not.")
    runs = [_read(path) for path in files]
    if say is not None:
        for note in (f"{run.path}: {note}" for run in runs for note in run.notes):
            say(note)
    shared = _shared(runs, problem, signature) if are_of_one_problem(runs) else None
    out.write_text(_page(runs, shared), encoding="utf-8")
    return out


def are_of_one_problem(runs: Sequence[Run]) -> bool:
    """Whether the parameters have the same leaves and the data are equal; starts may differ."""
    about = [run.meta.get("problem", {}) for run in runs]
    return len({json.dumps([one.get("params"), one.get("data")]) for one in about}) == 1


def _read(path: Path) -> Run:
    reader = PartialRun(path)
    legs = reader.read()
    notes = [f"{what} cannot be read ({why})" for what, why in reader.unreadable.items()]
    return Run(path, reader.meta, legs, reader.num_open, notes, reader.measures)


def _have_one_signature(runs: Sequence[Run]) -> bool:
    """Whether all were measured by the same signature."""
    about = [(run.meta.get("measures") or {}).get("signature") for run in runs]
    return bool(about[0]) and all(one == about[0] for one in about)


def _by_stored_signature(runs: Sequence[Run]) -> Shared:
    """The classes that the stored signatures make; what has none is left out."""
    ends = [(number, place, row) for number, run in enumerate(runs) for place, row in run.ends]
    marks = signature_classes(runs[number].measured(SIGNATURE, row) for number, _, row in ends)
    groups = dict[int, dict[int, tuple[int, Leg]]]()
    for (number, place, row), mark in zip(ends, marks, strict=True):
        if mark is not None:
            groups.setdefault(mark, {}).setdefault(number, (place, row))
    return Shared(sorted(groups.values(), key=lambda by: min(level(row) for _, row in by.values())))


def _shared(
    runs: Sequence[Run], problem: Problem | None, signature: Callable[[Any], Any] | None
) -> Shared:
    """Sort the solutions of all runs into classes, and these by loss."""
    if signature is None and _have_one_signature(runs):
        return _by_stored_signature(runs)
    classes = dict[tuple[int, Fingerprint], int]()
    add = _matcher(problem, signature)
    joined: list[int] = []  # the class that each number stands for, as classes are joined
    for number, run in enumerate(runs):
        for _, row in run.ends:
            own = add(number, row)
            joined += range(len(joined), own + 1)
            if signature is None and row.same_as is not None:
                other = classes.get((number, row.same_as))
                if other is not None:  # the search that found both knows that they are one
                    one, two = joined[own], joined[other]
                    joined = [min(one, two) if it in (one, two) else it for it in joined]
            classes[number, row.fingerprint] = own
    groups = dict[int, dict[int, tuple[int, Leg]]]()
    for number, run in enumerate(runs):
        for place, row in run.ends:
            by = groups.setdefault(joined[classes[number, row.fingerprint]], {})
            by.setdefault(number, (place, row))
    return Shared(sorted(groups.values(), key=lambda by: min(level(row) for _, row in by.values())))


def _matcher(
    problem: Problem | None, signature: Callable[[Any], Any] | None
) -> Callable[[int, Leg], int]:
    """A function from an end to the number of its class."""
    points = Classes[Any]()
    if signature is not None:
        assert problem is not None

        def by_signature(run: int, row: Leg) -> int:
            assert row.finish is not None
            mark = np.asarray(signature(problem.unravel(row.finish.x)), np.float64).ravel()
            return points.add((run, row.fingerprint), mark, reach_of(mark, TOLERANCE))

        return by_signature
    if problem is None:

        def by_distance(run: int, row: Leg) -> int:
            assert row.finish is not None
            point, error = np.asarray(row.finish.x), float(row.finish.error)
            return points.add((run, row.fingerprint), point, error)

        return by_distance
    known: dict[Fingerprint, Any] = {}
    numbers: dict[Fingerprint, int] = {}
    ends = Ends(problem, known.__getitem__)

    def by_walks(run: int, row: Leg) -> int:
        # Two runs have the same addresses: the number of the run makes them different.
        name = Fingerprint((Turn(run, 1), *row.fingerprint))
        known[name] = row.finish
        assert row.finish is not None
        same = ends.add(name, row.finish)
        numbers[name] = len(set(numbers.values())) if same is None else numbers[same]
        return numbers[name]

    return by_walks


def level(row: Leg) -> float:
    """The loss; at infinity its limit."""
    assert row.finish is not None
    return float(row.finish.limit if row.finish.kind == "at infinity" else row.finish.loss)


# --- the page


def _page(runs: Sequence[Run], shared: Shared | None) -> str:
    names = _names(runs)
    parts = {
        "title": html.escape(" against ".join(names)),
        "heading": f"{len(runs)} runs compared",
        "verdict": html.escape(verdict(runs, names, shared)),
        "runs": _runs_table(runs, names, shared),
        "axes": _axes(),
        "charts": _charts(runs, names, shared),
        "settings": _settings_table(runs, names),
        "solutions": _solutions_table(runs, names, shared),
        "ledger": _ledger(runs, names),
    }
    return fill("compare.html", ("page.css", "compare.css"), parts)


def _names(runs: Sequence[Run]) -> list[str]:
    """Short names that differ: of the directory, or the file."""
    short = [
        run.path.stem if run.path.stem != "run" else run.path.absolute().parent.name for run in runs
    ]
    if len(set(short)) == len(short):
        return short
    return [f"{name} ({number})" for number, name in enumerate(short, 1)]


def verdict(runs: Sequence[Run], names: Sequence[str], shared: Shared | None) -> str:
    """What is to be said first, in a few sentences."""
    if shared is None:
        return (
            "These runs are of different problems (their parameters or data differ): their "
            "solutions are not compared."
        )
    if not shared.found:
        return "No run found a minimum."
    counts = [len(shared.of_run(number)) for number in range(len(runs))]
    of = ", ".join(f"{name} {count}" for name, count in zip(names, counts, strict=True))
    common = sum(len(by) == len(runs) for by in shared.found)
    total = _count(len(shared.found), "different solution")
    said = f"{total} altogether: {of}; {common} found by all."
    best = shared.found[0]
    by = ", ".join(names[number] for number in sorted(best))
    low = min(level(row) for _, row in best.values())
    return f"{said} The lowest loss, {low:.6g}, was found by {by}."


def _runs_table(runs: Sequence[Run], names: Sequence[str], shared: Shared | None) -> str:
    head = ["run", "problem", "rides", "open", "solutions", "lowest loss", "evaluations", "seconds"]
    rows = []
    for number, (run, name) in enumerate(zip(runs, names, strict=True)):
        ends = [level(row) for _, row in run.ends]
        found = NOTHING if shared is None else str(len(shared.of_run(number)))
        rows.append(
            [
                f'<span class="run r{number % 6}"></span>{_text(name)}',
                _text(run.meta.get("name", "")),
                f"{max(0, len(run.legs) - 1):,}",
                f"{run.num_open:,}",
                found,
                f"{min(ends):.6g}" if ends else NOTHING,
                f"{run.spent('evaluations')[-1]:,.0f}" if run.legs else "0",
                f"{run.spent('seconds')[-1]:,.1f}" if run.legs else "0",
            ]
        )
    return _table(head, rows, num_text=2)


def _settings_table(runs: Sequence[Run], names: Sequence[str]) -> str:
    flat = [
        _flat(
            {part: run.meta.get(part, {}) for part in ("settings", "rider", "budget", "versions")}
        )
        for run in runs
    ]
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
    return _table(["setting", *map(_text, names)], rows, num_text=len(names) + 1)


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


def _solutions_table(runs: Sequence[Run], names: Sequence[str], shared: Shared | None) -> str:
    if shared is None:
        return '<p class="quiet">The runs are of different problems.</p>'
    if not shared.found:
        return '<p class="quiet">No run found a minimum.</p>'
    metrics, rows = _metrics(runs), []
    for number, by in enumerate(shared.found[:MAX_SHOWN], 1):
        low = min(by.values(), key=lambda end: level(end[1]))[1]
        assert low.finish is not None
        cells = []
        for run in range(len(names)):
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
        measured = [_measured(runs, by, name) for name in metrics]
        rows.append([str(number), f"{level(low):.6g}", *measured, _text(low.finish.kind), *cells])
    more = len(shared.found) - MAX_SHOWN
    note = f'<p class="quiet">… and {more} more</p>' if more > 0 else ""
    head = ["", "loss", *map(_text, metrics), "kind", *map(_text, names)]
    return _table(head, rows, text_from=2 + len(metrics)) + note


def _metrics(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.metrics))


def _metric(run: Run, name: str, row: Leg) -> float | None:
    """A number; of one for each example the mean."""
    value = run.measured(name, row)
    return None if value is None else float(np.mean(value))


def _measured(runs: Sequence[Run], by: dict[int, tuple[int, Leg]], name: str) -> str:
    """The metric of a solution, from a run that has it."""
    values = (_metric(runs[number], name, row) for number, (_, row) in sorted(by.items()))
    found = next((value for value in values if value is not None), None)
    return NOTHING if found is None else f"{found:.5g}"


def _ledger(runs: Sequence[Run], names: Sequence[str]) -> str:
    shown = {
        "hvps": "Hessian-vector products",
        "hessians": "Hessians",
        "eigendecompositions": "eigendecompositions",
        "gradients": "gradients",
        "values": "values",
        "seconds": "seconds",
    }
    rows = []
    for name in COSTS:
        totals = [sum(float(getattr(row.cost, name)) for row in run.legs) for run in runs]
        digits = 1 if name == "seconds" else 0
        rows.append([shown[name], *(f"{total:,.{digits}f}" for total in totals)])
    return _table(["cost", *map(_text, names)], rows)


def _axes() -> str:
    return "".join(
        f'<input type="radio" name="axis" id="axis-{number}"{" checked" if not number else ""}>'
        f'<label for="axis-{number}">{axis}</label>'
        for number, axis in enumerate(AXES)
    )


def _charts(runs: Sequence[Run], names: Sequence[str], shared: Shared | None) -> str:
    blocks = []
    for number, axis in enumerate(AXES):
        found, lowest = [], []
        for run, (one, name) in enumerate(zip(runs, names, strict=True)):
            spent = one.spent(axis)
            total = float(spent[-1]) if len(spent) else 0.0
            if shared is not None:
                places = sorted(by[run][0] for by in shared.found if run in by)
                steps = [(float(spent[place]), float(n)) for n, place in enumerate(places, 1)]
                found.append(Line(name, [(0.0, 0.0), *steps], total))
            best = [(float(spent[place]), level(row)) for place, row in one.ends]
            lowest.append(Line(name, _running_lowest(best), total))
        first = step_chart(found, "different solutions", axis) if shared is not None else ""
        second = step_chart(lowest, "lowest loss so far", axis)
        more = "".join(_metric_chart(runs, names, metric, axis) for metric in _metrics(runs))
        blocks.append(f'<div class="by by-{number}">{first}{second}{more}</div>')
    return f'<div class="charts">{"".join(blocks)}</div>'


def _metric_chart(runs: Sequence[Run], names: Sequence[str], metric: str, axis: str) -> str:
    lines = []
    for run, name in zip(runs, names, strict=True):
        spent, points = run.spent(axis), list[tuple[float, float]]()
        for place, row in run.ends:
            value = _metric(run, metric, row)
            if value is not None:
                points.append((float(spent[place]), -value))
        highest = [(at, -value) for at, value in _running_lowest(points)]
        lines.append(Line(name, highest, float(spent[-1]) if len(spent) else 0.0))
    return step_chart(lines, f"highest {metric} so far", axis)


def _running_lowest(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    lowest: list[tuple[float, float]] = []
    for spent, loss in points:
        if np.isfinite(loss) and (not lowest or loss < lowest[-1][1]):
            lowest.append((spent, loss))
    return lowest


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


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
