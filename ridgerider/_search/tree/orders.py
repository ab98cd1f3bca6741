"""Which branch comes next: orders, sort keys `order(branch)`, smallest first.

Ties go by fingerprint, so what is chosen never depends on when a branch was found.
"""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ridgerider._check import one_line
from ridgerider._search.runfile.rules import describe
from ridgerider._search.tree.tree import Branch, hashed

Order = Callable[[Branch], Any]


def breadth_first(branch: Branch) -> Any:
    """Shallow branches first; the paper's choice."""
    return branch.fingerprint.depth


def depth_first(branch: Branch) -> Any:
    """Deep branches first."""
    return -branch.fingerprint.depth


def best_first(branch: Branch) -> Any:
    """Branches that begin at the lowest loss first."""
    return branch.loss


def steepest_first(branch: Branch) -> Any:
    """Branches with the most negative eigenvalue first."""
    return branch.eigenvalue


def lowest_first(branch: Branch) -> Any:
    """Climb from the lowest minimum first, its softest modes first."""
    return (float(f"{branch.loss:.6g}"), branch.fingerprint[-1].index)


def fewest_visits(branch: Branch) -> Any:
    """Climb from the minimum first that was climbed from least often, along its softest mode.

    Saddles, which climbs led to, are climbed from after all minima.
    """
    *before, last = branch.fingerprint
    is_saddle = bool(before) and before[-1].up
    return (is_saddle, last.index, float(f"{branch.loss:.6g}"))


def shuffled(branch: Branch, seed: int = 0) -> int:
    """A hash of the seed and of where a branch is, not of when it was found."""
    return int.from_bytes(hashed("order", seed, branch.fingerprint))


SEARCH_ORDERS = ("breadth_first", "depth_first", "best_first", "steepest_first", "random")
MAP_ORDERS = ("fewest_visits", "lowest_first", "breadth_first", "random")
_NAMED: dict[str, Order] = {
    order.__name__: order
    for order in (
        *(breadth_first, depth_first, best_first, steepest_first),
        *(lowest_first, fewest_visits),
    )
}


def named_order(order: str | Order, seed: int, names: tuple[str, ...] = SEARCH_ORDERS) -> Order:
    """Look an order up by name; a callable is taken as it is.

    >>> from ridgerider._search.tree.tree import Fingerprint
    >>> branch = Branch(Fingerprint.parse("0+ 1-"), loss=-1.0, eigenvalue=-0.5, multiplicity=1)
    >>> [named_order(name, 0)(branch) for name in SEARCH_ORDERS[:4]]
    [2, -2, -1.0, -0.5]
    >>> [named_order("random", seed)(branch) % 100 for seed in (7, 7, 8)]
    [50, 50, 82]
    """
    if callable(order):
        return order
    if order not in names:
        raise ValueError(
            f"`order` must be one of {', '.join(names)} or a callable order(branch), not {order!r}."
        )
    return partial(shuffled, seed=seed) if order == "random" else _NAMED[order]


def order_name(order: str | Order) -> str:
    """How a run remembers its order: by name, a key function of the user's as a description."""
    if isinstance(order, str):
        return order
    for name, known in _NAMED.items():
        if known is order:
            return name
    description = describe(order)
    return description.get("function") or json.dumps(description)


def stored_order(name: str, seed: int, given: Order | str | None) -> Order:
    """The order a run was begun with; one of the user's own has to be given again."""
    names = (*_NAMED, "random")
    if given is None:
        if name in names:
            return named_order(name, seed, names)
        raise ValueError(f"the run has a custom order, {one_line(name)}: pass it again as `order`.")
    if order_name(given) != name and not (
        name.startswith("{") and callable(given) and json.loads(name) == describe(given)
    ):
        raise ValueError(f"`order` must be the run's own, {name}, not {order_name(given)}.")
    return named_order(given, seed, names)


def with_priority(branch: Branch, order: Order) -> Branch:
    return replace(branch, priority=_plain(order(branch)))


def _plain(priority: Any) -> Any:
    """Array scalars as Python numbers; NaN, which does not sort, as infinity: last."""
    if isinstance(priority, tuple | list):
        return tuple(map(_plain, priority))
    if hasattr(priority, "item"):
        priority = priority.item()
    return math.inf if priority != priority else priority
