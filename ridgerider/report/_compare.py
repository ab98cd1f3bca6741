"""Several runs on one page: settings that differ, solutions shared and not, minima over cost."""

import json
import os
from collections import defaultdict
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ridgerider._check import checked, count
from ridgerider._core.problem.problem import Problem
from ridgerider._search.engine.run import load
from ridgerider._search.results.export import plain
from ridgerider._search.results.measures import SIGNATURE, signature_classes
from ridgerider._search.same import Classes, StationaryPoints
from ridgerider._search.tree import Fingerprint, Turn
from ridgerider.report._page import fill_page, place_for, write_page
from ridgerider.report._read import COSTS, Reader

MAX_SHOWN = 200
NOTHING = "\N{EN DASH}"
Table = dict[str, list[Any]]  # a `head`, and `rows` of text, numbers and None
# The different solutions of all runs: for each, by the name of a run, the place of the first leg
# that led to it there.
Found = list[dict[str, int]]
Runs = dict[str, Reader]  # by names that are short, and different from one another


@checked
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

    - `paths`: two or more run files. If all were measured by one signature (see `Measures`),
      solutions are compared by that.
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
    found = solutions_of(runs, problem) if is_one_problem else []
    nothing = "No run found a minimum."
    if not is_one_problem:
        nothing = (
            "These runs are of different problems (their parameters or data differ): their "
            "solutions are not compared."
        )
    content = {
        "verdict": _verdict(runs, found) if found else nothing,
        "runs": _runs_table(runs, found),
        "solutions": _solutions_table(runs, found) if found else nothing,
        "legs": {name: _legs(name, run, found) for name, run in runs.items()},
        "metrics": _metrics(runs),
        "meta": {name: run.meta for name, run in runs.items()},
    }
    return write_page(out, fill_page("compare", " against ".join(runs), plain(content)))


def read_runs(files: Sequence[Path]) -> Runs:
    """Runs by the name of their directory, or of the file; with a number where these are equal."""
    names = [path.stem if path.stem != "run" else path.absolute().parent.name for path in files]
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, 1)]
    runs = {name: Reader(path) for name, path in zip(names, files, strict=True)}
    for run in runs.values():
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
        values = [runs[name].measured[SIGNATURE] for name, _ in ends]
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


def _verdict(runs: Runs, found: Found) -> str:
    """What is to be said first, in a few sentences."""
    each = [f"{name} {sum(name in by for by in found)}" for name in runs]
    common = sum(len(by) == len(runs) for by in found)
    total = count(len(found), "different solution")
    return (
        f"{total} altogether: {', '.join(each)}; {common} found by all. "
        f"The lowest loss, {_lowest(runs, found[0]):.6g}, was found by {', '.join(found[0])}."
    )


def _runs_table(runs: Runs, found: Found) -> Table:
    rows = []
    for name, run in runs.items():
        num_found = sum(name in by for by in found) if found else None
        lowest = min((run.level(leg) for leg in run.groups), default=None)
        *counts, seconds = np.sum([leg["cost"] for leg in run.legs], axis=0).tolist()
        about = [name, run.meta.get("name", ""), run.num_rides, run.num_open]
        rows.append([*about, num_found, lowest, *map(int, counts), round(seconds, 1)])
    head = ["run", "problem", "rides", "open", "solutions", "lowest loss", *COSTS]
    return {"head": head, "rows": rows}


def _legs(name: str, run: Reader, found: Found) -> list[dict[str, Any]]:
    """What each leg of a run cost and led to; the first one to a solution has its number."""
    firsts = {by[name]: number for number, by in enumerate(found) if name in by}
    return [
        {
            "cost": leg["cost"],
            "solution": firsts.get(place),
            "loss": run.level(leg) if "group" in leg else None,
            "metrics": {one: run.metric(leg, one) for one in run.metric_names if "group" in leg},
        }
        for place, leg in enumerate(run.legs)
    ]


def _solutions_table(runs: Runs, found: Found) -> Table:
    metrics, rows = _metrics(runs), []
    for number, by in enumerate(found[:MAX_SHOWN], 1):
        legs = {name: runs[name].legs[place] for name, place in by.items()}
        cells: list[Any] = [number, _lowest(runs, by)]
        for metric in metrics:
            values = (runs[name].metric(leg, metric) for name, leg in legs.items())
            cells.append(next((value for value in values if value is not None), None))
        lowest = min(legs.values(), key=Reader.level)
        cells.append(lowest.get("solution", {}).get("kind", "ride"))
        rides = {name: f"{leg['fingerprint']} (ride {by[name]})" for name, leg in legs.items()}
        rows.append([*cells, *(rides.get(name, NOTHING) for name in runs)])
    if len(found) > MAX_SHOWN:
        rows.append([f"… and {len(found) - MAX_SHOWN} more"])
    return {"head": ["number", "loss", *metrics, "kind", *runs], "rows": rows}


def _metrics(runs: Runs) -> list[str]:
    return list(dict.fromkeys(name for run in runs.values() for name in run.metric_names))
