"""Rows of losses and names, compared within tolerances.

These are to hold on any processor. A stationary point is known to the rounding of its loss, however
it was reached: 1e-6 is far above that, below the differences between points. The end of a ride is
where a rule ended it, after up to some hundred steps that amplify rounding, along a ridge that is
known to the tolerance of the eigensolver: 1e-5. That sees one step more or less of every ride but
those that `Stalled` ended, whose last steps hardly change the loss.
"""

import math
from typing import Any

RELATIVE = {"end": 1e-5}  # by the name of what is compared
RELATIVE_OF_POINTS = 1e-6
ABSOLUTE = 1e-9  # of losses that are zero


def is_close(found: Any, wanted: Any, what: str = "") -> bool:
    """Losses within their tolerance, all else equal."""
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(
            is_close(found[name], wanted[name], name) for name in wanted
        )
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(is_close, found, wanted))
    if isinstance(wanted, float) and isinstance(found, float):
        relative = RELATIVE.get(what, RELATIVE_OF_POINTS)
        return math.isclose(found, wanted, rel_tol=relative, abs_tol=ABSOLUTE)
    return bool(found == wanted)


def match(found: list[Any], wanted: list[Any]) -> tuple[list[Any], list[Any]]:
    """The rows that are wanted and not found, and those that are found and not wanted.

    In any order: points of equal losses are sorted by their rounding.
    """
    missing, left = [], list(found)
    for row in wanted:
        equal = next((number for number, one in enumerate(left) if is_close(one, row)), None)
        if equal is None:
            missing.append(row)
        else:
            left.pop(equal)
    return missing, left


def common(one: list[Any], other: list[Any]) -> list[Any]:
    """The rows of `one` that `other` has as well."""
    missing, _ = match(other, one)
    return [row for row in one if row not in missing]
