"""Several runs on one page: settings that differ, solutions shared and not, minima over cost."""

import json
import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ridgerider._core.problem.problem import Problem
from ridgerider._search.results.load import load
from ridgerider._search.results.measures import SIGNATURE, signature_classes
from ridgerider._search.same.classes import Classes
from ridgerider._search.same.points import StationaryPoints
from ridgerider._search.tree.tree import Fingerprint, Turn
from ridgerider.report._page import fill_page, place_for, write_page
from ridgerider.report._read import COSTS, Reader
from ridgerider.report._verdict import count

AXES: dict[str, Callable[[list[float]], float]] = {  # from the costs of a leg
    "evaluations": lambda cost: sum(cost[: COSTS.index("hessians")]),
    "seconds": lambda cost: cost[COSTS.index("seconds")],
}
MAX_SHOWN = 200
NOTHING = "\N{EN DASH}"
Table = dict[str, list[Any]]  # a `head`, and `rows` of text, numbers and None
# The different solutions of all runs: for each, by the name of a run, the place of the first leg
# that led to it there.
Found = list[dict[str, int]]
Runs = dict[str, Reader]  # by names that are short, and different from one another


def compare(
    paths: Sequence[str | os.PathLike],
    out: str | os.PathLike | None = None,
    *,
    problem: Problem | None = None,
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
    about = [run.meta["problem"] for run in runs.values()]
    # Starts may differ, but not the leaves of the parameters or the data.
    is_one_problem = len({json.dumps([one["params"], one["data"]]) for one in about}) == 1
    found = solutions_of(runs, problem) if is_one_problem else None
    content = {
        "names": list(runs),
        "verdict": _verdict(runs, found),
        "runs": _runs_table(runs, found),
        "charts": _charts(runs, found),
        "settings": _settings_table(runs),
        "solutions": _solutions_table(runs, found),
    }
    return write_page(out, fill_page("compare", " against ".join(runs), content))


def read_runs(files: Sequence[Path]) -> Runs:
    """Runs by the name of their directory, or of the file; with a number where these are equal."""
    names = [path.stem if path.stem != "run" else path.absolute().parent.name for path in files]
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, 1)]
    runs = {name: Reader(path) for name, path in zip(names, files, strict=True)}
    for run in runs.values():
        load(run.path)  # raises if it is damaged
        run.read()
    return runs


def solutions_of(runs: Runs, problem: Problem | None) -> Found:
    """Sort the solutions of all runs into classes, and these by loss."""
    first, *others = ((run.meta.get("measures") or {}).get("signature") for run in runs.values())
    is_signed = first is not None and all(one == first for one in others)
    places = dict[tuple[str, int], int]()  # of the first leg to each solution of a run
    for name, run in runs.items():
        for place, leg in enumerate(run.legs):
            number = leg.get("group") if is_signed else run.class_of.get(leg["fingerprint"])
            if number is not None:
                places.setdefault((name, number), place)
    ends = [(name, place) for (name, _), place in places.items()]
    classes: Sequence[Hashable]
    if is_signed:
        values = [runs[name].file.measures[SIGNATURE] for name, _ in ends]
        legs = [runs[name].legs[place]["fingerprint"] for name, place in ends]
        classes = signature_classes(map(dict.get, values, legs))
    else:
        classes = _point_classes(runs, ends, problem)
    groups = defaultdict[Hashable, dict[str, int]](dict)
    for (name, place), one in zip(ends, classes, strict=True):
        groups[one].setdefault(name, place)
    return sorted(groups.values(), key=lambda by: _lowest(runs, by))


def _point_classes(
    runs: Runs, ends: Sequence[tuple[str, int]], problem: Problem | None
) -> Sequence[Hashable]:
    """A class for the end of each leg: as a search compares points if there is a problem."""
    results, numbers = {name: load(run.path) for name, run in runs.items()}, list(runs)
    finishes = {}
    for name, place in ends:
        leg = results[name].leg(runs[name].legs[place]["fingerprint"])
        # Two runs have the same fingerprints: the number of the run makes them different.
        finishes[Fingerprint((Turn(numbers.index(name), 1), *leg.fingerprint))] = leg.finish
    if problem is None:
        points = Classes[Fingerprint]()
        return [points.add(name, np.asarray(end.x), end.error) for name, end in finishes.items()]
    families = StationaryPoints(problem, None, finishes.__getitem__)
    return [families.add(name, end) or name for name, end in finishes.items()]


def _lowest(runs: Runs, by: dict[str, int]) -> float:
    """The lowest loss of a solution."""
    return min(Reader.level(runs[name].legs[place]) for name, place in by.items())


# --- the page


def _verdict(runs: Runs, found: Found | None) -> str:
    """What is to be said first, in a few sentences."""
    if found is None:
        return (
            "These runs are of different problems (their parameters or data differ): their "
            "solutions are not compared."
        )
    if not found:
        return "No run found a minimum."
    each = [f"{name} {sum(name in by for by in found)}" for name in runs]
    common = sum(len(by) == len(runs) for by in found)
    total = count(len(found), "different solution", "different solutions")
    return (
        f"{total} altogether: {', '.join(each)}; {common} found by all. "
        f"The lowest loss, {_lowest(runs, found[0]):.6g}, was found by {', '.join(found[0])}."
    )


def _runs_table(runs: Runs, found: Found | None) -> Table:
    rows = []
    for name, run in runs.items():
        num_found = None if found is None else sum(name in by for by in found)
        lowest = min((loss for _, loss in _losses(run)), default=None)
        *counts, seconds = np.sum([leg["cost"] for leg in run.legs], axis=0).tolist()
        about = [name, run.meta.get("name", ""), run.num_rides, run.file.num_open]
        rows.append([*about, num_found, lowest, *map(int, counts), round(seconds, 1)])
    head = ["run", "problem", "rides", "open", "solutions", "lowest loss", *COSTS]
    return {"head": head, "rows": rows}


def _losses(run: Reader) -> list[tuple[int, float]]:
    """The loss of each leg that led to a solution, with its place in the file."""
    return [(place, run.level(leg)) for place, leg in enumerate(run.legs) if "group" in leg]


def _settings_table(runs: Runs) -> Table | str:
    parts = ("settings", "rider", "budget", "versions")
    flat = [_flat({part: run.meta.get(part, {}) for part in parts}) for run in runs.values()]
    different = [
        key
        for key in dict.fromkeys(key for one in flat for key in one)
        if len({one.get(key, NOTHING) for one in flat}) > 1
    ]
    # Where a rule is another one, its own settings have nothing to be compared with.
    shown = [key for key in different if not any(key.startswith(f"{one}.") for one in different)]
    rows = [[key, *(one.get(key, NOTHING) for one in flat)] for key in shown]
    return {"head": ["setting", *runs], "rows": rows} if rows else "No setting differs."


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


def _solutions_table(runs: Runs, found: Found | None) -> Table | str:
    if not found:
        return "No run found a minimum." if found == [] else "The runs are of different problems."
    metrics, rows = _metrics(runs), []
    for number, by in enumerate(found[:MAX_SHOWN], 1):
        legs = {name: runs[name].legs[place] for name, place in by.items()}
        cells: list[Any] = [number, _lowest(runs, by)]
        for metric in metrics:
            values = (runs[name].metric(leg, metric) for name, leg in legs.items())
            cells.append(next((value for value in values if value is not None), None))
        lowest = min(legs.values(), key=Reader.level)
        cells.append(lowest.get("solution", {}).get("kind", "ride"))
        for name in runs:
            where = f"{legs[name]['fingerprint']} (ride {by[name]})" if name in by else NOTHING
            cells.append(where)
        rows.append(cells)
    if len(found) > MAX_SHOWN:
        rows.append([f"… and {len(found) - MAX_SHOWN} more"])
    return {"head": ["", "loss", *metrics, "kind", *runs], "rows": rows}


def _metrics(runs: Runs) -> list[str]:
    return list(dict.fromkeys(name for run in runs.values() for name in run.metric_names))


def _charts(runs: Runs, found: Found | None) -> list[dict[str, Any]]:
    """For each axis a chart of each curve: for each run, values by the place of a leg."""
    curves: dict[str, list[list[tuple[int, float]]]] = {}
    if found is not None:
        curves["different solutions"] = [
            [(-1, 0.0), *((place, n) for n, place in enumerate(sorted(places), 1))]
            for places in ([by[name] for by in found if name in by] for name in runs)
        ]
    curves["lowest loss so far"] = [_records(_losses(run)) for run in runs.values()]
    for name in _metrics(runs):
        curves[f"highest {name} so far"] = [
            _records([(place, run.metric(run.legs[place], name)) for place, _ in _losses(run)], -1)
            for run in runs.values()
        ]
    charts = []
    for axis, cost in AXES.items():
        spent = [
            np.cumsum([0.0, *(cost(leg["cost"]) for leg in run.legs)]) for run in runs.values()
        ]
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
