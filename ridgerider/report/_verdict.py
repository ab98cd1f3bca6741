"""The answer first: is it done, can it be trusted, what was found, which one is best."""

import shlex
from collections import Counter
from typing import Any

from ridgerider._check import count
from ridgerider._search.results.measures import has_descents
from ridgerider._search.same import IS_SOLUTION
from ridgerider.report._read import Reader

KINDS = {
    "minimum": ("a minimum", "minima"),
    "at infinity": ("a minimum at infinity", "minima at infinity"),
    "saddle": ("a saddle", "saddles"),
    "unverified": ("a point not verified", "points not verified"),
    "unconverged": ("a point not stationary", "points not stationary"),
}
SPENT = {"max_steps": "steps", "max_hvps": "Hessian-vector products", "max_seconds": "seconds"}


def verdict(reader: Reader) -> dict[str, Any]:
    """What to say of a run before anything else, part by part; `text` is all of it.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> path = Path(tempfile.mkdtemp()) / "run.sqlite"
    >>> _ = rr.search(wells(1), out=path)
    >>> reader = Reader(path)
    >>> reader.read()
    3
    >>> found = verdict(reader)
    >>> found["state"], found["headline"], found["best"]
    ('finished', '2 different minima (2 points)', '0+')
    >>> found["parts"][0]
    'Finished: all 2 branches that were found were ridden.'
    """
    state, first, go_on = _state(reader)
    what = count(len(reader.groups), "different minimum", "different minima")
    if reader.signature is not None:
        num = count(len(reader.groups), "different solution")
        what = f"{num} by `{reader.signature}`"
    headline = f"{what} ({count(reader.num_points, 'point')})"
    parts, best = [first, _certificates(reader), _ends(reader)], reader.best()
    if best is not None:
        where = best["fingerprint"] or "the start"
        found = {name: reader.metric(best, name) for name in reader.metric_names}
        said = [f"{name} {value:.4g}" for name, value in found.items() if value is not None]
        lowest = f"Lowest loss {reader.level(best):.6g} at {where}"
        parts.append(f"{', '.join([lowest, *said])}.")
    parts = [part for part in (*parts, *_doubts(reader)) if part]
    return {
        "state": state,
        "headline": headline,
        "best": None if best is None else best["fingerprint"],
        "parts": parts,
        "text": f"{headline}. {' '.join(parts)}",
        "go_on": go_on,
        "budget": reader.spent(),
    }


def _state(reader: Reader) -> tuple[str, str, str]:
    """Finished, stopped by a budget, or neither; what to say of it; and how to continue."""
    num, waiting = reader.num_rides, reader.num_open
    go_on = f"ridgerider resume {shlex.quote(str(reader.path))}"
    if not waiting and reader.legs:
        what = count(num, "branch that was found was", "branches that were found were")
        settings = reader.meta.get("settings") or {}
        names = [name for name in ("max_depth", "max_ridges") if settings.get(name) is not None]
        limits = " and ".join(f"`{name}` {settings[name]}" for name in names)
        say = f"Finished: {'all ' if num != 1 else ''}{what} ridden"
        return "finished", f"{say} (within {limits})." if limits else f"{say}.", ""
    left = f"{count(waiting, 'branch', 'branches')} open"
    for name, (done, limit) in reader.spent().items():
        if done >= limit:
            spent = count(num, "ride")
            if name != "max_rides":
                spent = f"{done:,.4g} {SPENT[name]}"
            say = f"Stopped after {spent}, as `{name}` says, with {left}."
            return "stopped", say, f"{go_on} --{name.replace('_', '-')} {2 * max(done, limit):g}"
    return "open", f"Not finished: {count(num, 'ride')}, {left}.", go_on


def _certificates(reader: Reader) -> str:
    found = Counter(leg["certificate"] for leg in reader.legs if leg["certificate"])
    total = sum(found.values())
    if not total:
        return ""
    say = f"{found['complete']:,} of {count(total, 'ride')} with a complete certificate"
    if total < reader.num_rides:
        say += f" ({reader.num_rides - total:,} more took no step)"
    why = [
        text.format(number)
        for reason, text in (
            ("overlap", "{:,} may have changed ridges"),
            ("gap", "{:,} with a gap too small against the residual, or unknown"),
        )
        if (number := found[reason])
    ]
    return f"{say}{': ' + ', '.join(why) if why else ''}."


def _ends(reader: Reader) -> str:
    found = Counter(leg["solution"]["kind"] for leg in reader.legs if "solution" in leg)
    if not found:
        return "Rides were not followed by descents." if reader.num_rides else ""
    return f"Descents ended at {', '.join(count(found[k], *KINDS[k]) for k in KINDS if found[k])}."


def _doubts(reader: Reader) -> list[str]:
    doubts = Counter(
        leg["solution"]["doubt"] for leg in reader.legs if leg.get("solution", {}).get("doubt")
    )
    said = [
        f"Doubtful: {count(number, 'end')}, because {why}." for why, number in doubts.most_common(2)
    ]
    for rule, what in (("RidgeLost", "lost the ridge"), ("not_finite", "reached NaN or infinity")):
        if number := sum(rule in leg["ended_by"] for leg in reader.legs):
            said.append(f"{count(number, 'ride')} {what} and ended there.")
    if reader.signature is not None and has_descents(reader.meta):
        unsure = sum(
            not any(leg.get("solution", {}).get("kind") in IS_SOLUTION for leg in members)
            for members in reader.members.values()
        )
        if unsure:
            said.append(
                f"{unsure} of the {len(reader.groups)} are seen by what they do alone: no descent "
                "to them ended at a verified minimum."
            )
    return said
