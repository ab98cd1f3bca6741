"""Legs and branches as rows of a run file, and back.

The columns of `schema` say what becomes of each field; the arrays of a leg and of its descent are
packed into one blob each.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ridgerider._core.descend.finish import Finish
from ridgerider._search.runfile import schema
from ridgerider._search.runfile.schema import Damage, Row
from ridgerider._search.tree.tree import Branch, Leg, Ridges

HISTORY = "history "  # before the names of a training's columns, among its arrays
BRANCH = ("fingerprint", "loss", "eigenvalue", "multiplicity", "priority")  # what is read of one


def leg_to_rows(leg: Leg) -> tuple[Row, Row | None]:
    """The row of a leg and, if a descent followed it, the one of its solution."""
    values = {**vars(leg), **vars(leg.ridges), "depth": leg.fingerprint.depth}
    hessian = {} if leg.hessian is None else {"hessian": leg.hessian}
    arrays = _arrays(leg.ridges) | {"x": leg.x} | hessian
    row = schema.encode("legs", {**values, "arrays": arrays})
    end = leg.finish
    if end is None:
        return row, None
    ridges = dict.fromkeys(schema.RIDGES) if leg.below is None else vars(leg.below)
    arrays = {} if leg.below is None else _arrays(leg.below)
    arrays |= {"x": end.x}
    if end.is_at_infinity and end.runaway is not None:
        arrays["runaway"] = end.runaway
    arrays |= {f"{HISTORY}{name}": column for name, column in (end.history or {}).items()}
    names = {"fingerprint": leg.fingerprint, "same_as": leg.same_as}
    return row, schema.encode("solutions", {**vars(end), **ridges, **names, "arrays": arrays})


def leg_from_rows(row: Row, end: Row | None, size: int | None = None) -> Leg:
    """The leg again; `size` is the number of parameters, if it is known."""
    name, values = schema.leg_name(row["fingerprint"]), schema.decode("legs", row)
    arrays = values.pop("arrays")
    del values["depth"]
    with schema.reading(name, "arrays"):
        x = schema.points(arrays["x"], (size,))
        values["hessian"] = hessian_of(arrays, x.size)
    ridges = _ridges(name, values, arrays, x.size)
    num_steps, trace = values["num_steps"], values["trace"]
    with schema.reading(name, "trace"):
        if trace and "eigenvalue" not in trace:
            raise ValueError("there is no eigenvalue")
        for column, array in trace.items():
            num_axes = 1 + (column in ("neighbours", "path"))
            if array.ndim != num_axes or len(array) != num_steps + 1:
                raise ValueError(f"{column} has shape {array.shape}, not that of {num_steps} steps")
    finish = same_as = below = None
    if end is not None:
        found = schema.decode("solutions", end)
        finish, same_as = _finish(name, found, x.size), found["same_as"]
        if found["num_ridges"] is not None:
            below = _ridges(name, found, found["arrays"], x.size)
    return Leg(**{**values, **vars(ridges)}, x=x, finish=finish, same_as=same_as, below=below)


def checked_leg(row: Row | None, end: Row | None, size: int | None) -> Leg:
    """A leg whose digest and that of its solution fit."""
    row = row or {}
    solution = None if end is None else schema.row_digest("solutions", end)
    is_right = end is None or end["digest"] == solution
    if not is_right or row["digest"] != schema.row_digest("legs", row, solution):
        raise Damage(schema.row_name("legs", row), "digest", "it does not fit")
    return leg_from_rows(row, end, size)


def finish_from_row(end: Row, size: int | None = None) -> Finish:
    """Where a descent ended."""
    return _finish(schema.leg_name(end["fingerprint"]), schema.decode("solutions", end), size)


def branch_to_row(branch: Branch) -> Row:
    """The row of a branch that waits."""
    values = {name: getattr(branch, name) for name in BRANCH}
    try:
        return schema.encode(
            "branches", {**values, "parent": branch.fingerprint.parent, "round": None}
        )
    except TypeError:
        raise ValueError(
            "`order` must return numbers, strings or tuples of them, "
            f"not {type(branch.priority).__name__}."
        ) from None


def hessian_of(arrays: Mapping[str, np.ndarray], size: int) -> np.ndarray | None:
    return schema.points(arrays["hessian"], (size, size)) if "hessian" in arrays else None


def _arrays(ridges: Ridges) -> dict[str, Any]:
    return {"eigenvalues": ridges.eigenvalues, "directions": ridges.directions}


def _ridges(
    name: str, values: Mapping[str, Any], arrays: Mapping[str, np.ndarray], size: int
) -> Ridges:
    with schema.reading(name, "arrays"):
        eigenvalues = schema.points(arrays["eigenvalues"], (None,))
        directions = schema.points(arrays["directions"], (None, size))
    ridges = Ridges(
        **{field: values[field] for field in schema.RIDGES},
        eigenvalues=eigenvalues,
        directions=directions,
    )
    with schema.reading(name, "turns"):
        if not len(ridges.turns) == len(ridges.directions) == len(ridges.ways):
            raise ValueError("there are not as many as directions")
        if any(index >= len(ridges.clusters) for index, _ in ridges.turns):
            raise ValueError("one turns into a cluster that is not there")
    return ridges


def _finish(name: str, values: Mapping[str, Any], size: int | None) -> Finish:
    arrays = values["arrays"]
    with schema.reading(name, "arrays"):
        x = schema.points(arrays["x"], (size,))
        runaway = schema.points(arrays["runaway"], x.shape) if "runaway" in arrays else None
    history = {
        key.removeprefix(HISTORY): array for key, array in arrays.items() if key.startswith(HISTORY)
    }
    more: Any = {"x": x, "runaway": runaway, "history": history or None}
    with schema.reading(name, "doubt_number"):
        finish = Finish(**{field: values[field] for field in schema.FINISH}, **more)
        finish.doubt  # noqa: B018  # one that is known
    return finish
