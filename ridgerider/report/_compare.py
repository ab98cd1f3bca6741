"""Several runs on one page: settings that differ, solutions shared and not, minima over cost."""

import json
import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ridgerider._core.descend.finish import Finish
from ridgerider._core.problem.problem import Problem
from ridgerider._search.results.measures import SIGNATURE, signature_classes
from ridgerider._search.runfile.partial import PartialRun
from ridgerider._search.same.classes import Classes
from ridgerider._search.same.points import IS_SOLUTION, StationaryPoints
from ridgerider._search.tree.tree import Fingerprint, Leg, Turn
from ridgerider.report._page import fill_page, place_for, write_page
from ridgerider.report._read import COSTS
from ridgerider.report._verdict import count

AXES: dict[str, Callable[[Leg], Any]] = {
    "evaluations": lambda row: row.cost.values + row.cost.gradients + row.cost.hvps,
    "seconds": lambda row: row.cost.seconds,
}
MAX_SHOWN = 200
NOTHING = "\N{EN DASH}"
Table = dict[str, list[Any]]  # a `head`, and `rows` of text, numbers and None


@dataclass(frozen=True)
class Run:
    """A run file, read."""

    name: str  # short, and another one than those of the other runs
    file: PartialRun
    legs: list[Leg]  # with the start first, as they were stored

    @property
    def about_measures(self) -> dict[str, Any]:
        return self.file.meta.get("measures") or {}

    @property
    def ends(self) -> list[tuple[int, Leg]]:
        """The legs that led to a solution, with their place in the file."""
        about = self.about_measures
        kinds = about["kinds"] if about.get("signature") else IS_SOLUTION
        return [
            (place, row)
            for place, row in enumerate(self.legs)
            if row.finish is not None and row.finish.kind in kinds
        ]

    def measured(self, name: str, row: Leg) -> Any:
        return self.file.measures.get(name, {}).get(str(row.fingerprint))

    def metric(self, name: str, row: Leg) -> float | None:
        """A number; of a score on examples the mean, which comes first."""
        value = self.measured(name, row)
        return value[0] if isinstance(value, list) else value


# The different solutions of all runs: for each, by the number of a run, the leg that found it
# there, with its place in the file.
Found = list[dict[int, tuple[int, Leg]]]


def compare(
    paths: Sequence[str | os.PathLike],
    out: str | os.PathLike | None = None,
    *,
    problem: Problem | None = None,
    say: Callable[[str], None] | None = None,
) -> Path:
    """Write several runs of one problem as one HTML page, to judge riders, orders or engines.

    The page shows which settings differ, which solutions are shared, how many were found over the
    cost, and the ledger. It needs no network.

    **Arguments**

    - `paths`: two or more run files, also those of baselines. If all were measured by one signature
      (see `Measures`), solutions are compared by that.
    - `out`: where to write the page. Default: `compare.html` beside the first run file.
    - `problem`: with it, solutions with flat directions and at infinity are compared as a search
      does; without it, those of two runs are the same if their points are within their errors.
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
    out = place_for(out, files[0].with_name("compare.html"))
    runs = read_runs(files)
    if say is not None:
        for run in runs:
            for what, why in run.file.unreadable.items():
                say(f"{run.file.path}: {what} cannot be read ({why})")
    about = [run.file.meta.get("problem", {}) for run in runs]
    # Starts may differ, but not the leaves of the parameters or the data.
    is_one_problem = len({json.dumps([one.get("params"), one.get("data")]) for one in about}) == 1
    found = solutions_of(runs, problem) if is_one_problem else None
    names = [run.name for run in runs]
    content = {
        "names": names,
        "verdict": _verdict(runs, found),
        "runs": _runs_table(runs, found),
        "charts": _charts(runs, found),
        "settings": _settings_table(runs),
        "solutions": _solutions_table(runs, found),
    }
    return write_page(out, fill_page("compare", " against ".join(names), content))


def read_runs(files: Sequence[Path]) -> list[Run]:
    """Runs by the name of their directory, or of the file; with a number where these are equal."""
    names = [path.stem if path.stem != "run" else path.absolute().parent.name for path in files]
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, 1)]
    read = [PartialRun(path) for path in files]
    return [Run(name, one, one.read()) for name, one in zip(names, read, strict=True)]


def solutions_of(runs: Sequence[Run], problem: Problem | None) -> Found:
    """Sort the solutions of all runs into classes, and these by loss."""
    ends = [(number, place, row) for number, run in enumerate(runs) for place, row in run.ends]
    stored = [run.about_measures.get("signature") for run in runs]
    classes: Iterable[Hashable]
    if stored[0] and all(one == stored[0] for one in stored):  # what has no value is left out
        values = (runs[number].measured(SIGNATURE, row) for number, _, row in ends)
        classes = signature_classes(values)
    else:
        classes = _point_classes([(number, row) for number, _, row in ends], problem)
    groups = dict[Hashable, dict[int, tuple[int, Leg]]]()
    for (number, place, row), one in zip(ends, classes, strict=True):
        if one is not None:
            groups.setdefault(one, {}).setdefault(number, (place, row))
    return sorted(groups.values(), key=lambda by: min(level(row) for _, row in by.values()))


def _point_classes(
    ends: Sequence[tuple[int, Leg]], problem: Problem | None
) -> Iterable[Fingerprint]:
    """What each end is the same as: what its run says, or else as a search compares points."""
    same = dict[Fingerprint, Fingerprint]()
    finishes = dict[Fingerprint, Finish]()
    points = Classes[Fingerprint]()
    families = None if problem is None else StationaryPoints(problem, None, finishes.__getitem__)

    def name_of(number: int, turns: Iterable[Turn]) -> Fingerprint:
        # Two runs have the same fingerprints: the number of the run makes them different.
        return Fingerprint((Turn(number, 1), *turns))

    for number, row in sorted(ends, key=lambda end: end[1].same_as is not None):
        name, finish = name_of(number, row.fingerprint), row.finish
        assert finish is not None
        known = None if row.same_as is None else same.get(name_of(number, row.same_as))
        if known is None and families is not None:
            finishes[name] = finish
            known = families.add(name, finish)
        elif known is None:
            known = points.names[points.add(name, np.asarray(finish.x), float(finish.error))]
        same[name] = name if known is None else known
    return [same[name_of(number, row.fingerprint)] for number, row in ends]


def level(row: Leg) -> float:
    """The loss; at infinity its limit."""
    assert row.finish is not None
    return float(row.finish.limit if row.finish.kind == "at infinity" else row.finish.loss)


# --- the page


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


def _runs_table(runs: Sequence[Run], found: Found | None) -> Table:
    head = ["run", "problem", "rides", "open", "solutions", "lowest loss", *COSTS]
    rows = []
    for number, run in enumerate(runs):
        num_found = None if found is None else sum(number in by for by in found)
        lowest = min((level(row) for _, row in run.ends), default=None)
        costs = [sum(getattr(row.cost, name) for row in run.legs) for name in COSTS]
        costs = [*map(int, costs[:-1]), round(float(costs[-1]), 1)]
        about = [run.name, run.file.meta.get("name", ""), len(run.legs[1:]), run.file.num_open]
        rows.append([*about, num_found, lowest, *costs])
    return {"head": head, "rows": rows}


def _settings_table(runs: Sequence[Run]) -> Table | str:
    parts = ("settings", "rider", "budget", "versions")
    flat = [_flat({part: run.file.meta.get(part, {}) for part in parts}) for run in runs]
    different = [
        key
        for key in dict.fromkeys(key for one in flat for key in one)
        if len({one.get(key, NOTHING) for one in flat}) > 1
    ]
    # Where a rule is another one, its own settings have nothing to be compared with.
    shown = [key for key in different if not any(key.startswith(f"{one}.") for one in different)]
    rows = [[key, *(one.get(key, NOTHING) for one in flat)] for key in shown]
    head = ["setting", *(run.name for run in runs)]
    return {"head": head, "rows": rows} if rows else "No setting differs."


def _flat(value: Any, name: str = "") -> dict[str, str]:
    """A nested description by dotted names; what a rule is called stands at its own place.

    >>> _flat({"rider": {"type": "ridgerider:Rider", "fields": {"max_steps": 5}}})
    {'rider': 'Rider', 'rider.max_steps': '5'}
    """
    found: dict[str, str] = {}
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        rules = [next(iter(_flat(item).values()), "") for item in value]
        return {name: ", ".join(rules)}
    if not isinstance(value, dict):
        return {name: value if isinstance(value, str) else json.dumps(value)}
    if "function" in value or "type" in value:
        found[name] = (value.get("function") or value["type"]).rpartition(":")[2]
        value = value.get("fields", {})
    for key, item in value.items():
        found |= _flat(item, f"{name}.{key}" if name else str(key))
    return found


def _solutions_table(runs: Sequence[Run], found: Found | None) -> Table | str:
    if not found:
        return "No run found a minimum." if found == [] else "The runs are of different problems."
    metrics, rows = _metrics(runs), []
    for number, by in enumerate(found[:MAX_SHOWN], 1):
        lowest = min((row for _, row in by.values()), key=level)
        assert lowest.finish is not None
        cells: list[Any] = [number, level(lowest)]
        for name in metrics:
            values = (runs[run].metric(name, row) for run, (_, row) in sorted(by.items()))
            cells.append(next((value for value in values if value is not None), None))
        cells.append(lowest.finish.kind)
        for run in range(len(runs)):
            place, row = by.get(run, (0, None))
            cells.append(NOTHING if row is None else f"{row.fingerprint} (ride {place})")
        rows.append(cells)
    if len(found) > MAX_SHOWN:
        rows.append([f"… and {len(found) - MAX_SHOWN} more"])
    return {"head": ["", "loss", *metrics, "kind", *(run.name for run in runs)], "rows": rows}


def _metrics(runs: Sequence[Run]) -> list[str]:
    return list(
        dict.fromkeys(name for run in runs for name in run.about_measures.get("metrics", {}))
    )


def _charts(runs: Sequence[Run], found: Found | None) -> list[dict[str, Any]]:
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
    charts = []
    for axis, cost in AXES.items():
        spent = [np.cumsum([0.0, *(float(cost(row)) for row in run.legs)]) for run in runs]
        for title, curve in curves.items():
            points = [
                {float(at[place + 1]): y for place, y in line}
                for at, line in zip(spent, curve, strict=True)
            ]
            x = sorted(
                {0.0, *(float(at[-1]) for at in spent), *(one for line in points for one in line)}
            )
            values = [_held(line, x, at[-1]) for line, at in zip(points, spent, strict=True)]
            charts.append({"title": title, "axis": axis, "x": x, "values": values})
    return charts


def _held(points: dict[float, float], x: Sequence[float], last: float) -> list[float | None]:
    """A curve that keeps each of its values until the next, at `x`; None before and after it.

    >>> _held({1.0: 5.0, 3.0: 4.0}, [0.0, 1.0, 2.0, 3.0, 4.0], 3.5)
    [None, 5.0, 5.0, 4.0, None]
    """
    values, value = list[float | None](), None
    for one in x:
        value = points.get(one, value)
        values.append(value if one <= last else None)
    return values


def _records(points: Iterable[tuple[int, float | None]], sign: int = 1) -> list[tuple[int, float]]:
    """The values that are lower than all before; with a `sign` of -1, higher."""
    kept: list[tuple[int, float]] = []
    for place, value in points:
        if value is None or not np.isfinite(value):
            continue
        if not kept or sign * value < sign * kept[-1][1]:
            kept.append((place, value))
    return kept
