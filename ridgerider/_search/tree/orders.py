"""Which branch comes next: orders, sort keys `order(branch)`, smallest first.

Ties go by fingerprint, so what is chosen never depends on when a branch was found.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ridgerider._check import check_count
from ridgerider._search.runfile.rules import describe
from ridgerider._search.tree.tree import Branch, hashed

Order = Callable[[Branch], Any]


def breadth_first(branch: Branch) -> Any:
    """Shallow branches first; the paper's choice.

    >>> import ridgerider as rr
    >>> rr.breadth_first(rr.Branch(rr.Fingerprint.parse("0+ 1-"), -1.0, -0.5, 1))
    2
    """
    return branch.fingerprint.depth


def depth_first(branch: Branch) -> Any:
    """Deep branches first.

    >>> import ridgerider as rr
    >>> rr.depth_first(rr.Branch(rr.Fingerprint.parse("0+ 1-"), -1.0, -0.5, 1))
    -2
    """
    return -branch.fingerprint.depth


def best_first(branch: Branch) -> Any:
    """Branches that begin at the lowest loss first.

    >>> import ridgerider as rr
    >>> rr.best_first(rr.Branch(rr.Fingerprint.parse("0+ 1-"), -1.0, -0.5, 1))
    -1.0
    """
    return branch.loss


def steepest_first(branch: Branch) -> Any:
    """Branches with the most negative eigenvalue first.

    >>> import ridgerider as rr
    >>> rr.steepest_first(rr.Branch(rr.Fingerprint.parse("0+ 1-"), -1.0, -0.5, 1))
    -0.5
    """
    return branch.eigenvalue


@dataclass(frozen=True)
class RandomOrder:
    """A shuffled order, drawn from the seed and from where a branch is, not when it was found.

    >>> import ridgerider as rr
    >>> branch = rr.Branch(rr.Fingerprint.parse("0+ 1-"), -1.0, -0.5, 1)
    >>> rr.RandomOrder(7)(branch) == rr.RandomOrder(7)(branch) != rr.RandomOrder(8)(branch)
    True
    """

    seed: int = 0

    def __post_init__(self) -> None:
        check_count("seed", self.seed, 0)

    def __call__(self, branch: Branch) -> int:
        return int.from_bytes(hashed("order", self.seed, branch.fingerprint))


ORDERS: dict[str, Order] = {
    order.__name__: order for order in (breadth_first, depth_first, best_first, steepest_first)
}


def named_order(order: str | Order, seed: int) -> Order:
    """Look an order up by name; a callable is taken as it is."""
    if callable(order):
        return order
    if order == "random":
        return RandomOrder(seed)
    if order not in ORDERS:
        names = ", ".join([*ORDERS, "random"])
        raise ValueError(
            f"`order` must be one of {names} or a callable order(branch), not {order!r}."
        )
    return ORDERS[order]


def order_name(order: str | Order) -> str:
    """How a run remembers its order: one of ours by name, any other as a description."""
    if isinstance(order, str):
        return order
    if not callable(order):
        raise ValueError(
            f"`order` must be one of {', '.join((*ORDERS, 'random'))} or a key order(branch), "
            f"not {order!r}."
        )
    for name, known in ORDERS.items():
        if known is order:
            return name
    description = describe(order)
    return description.get("function") or json.dumps(description)


def with_priority(branch: Branch, order: Order) -> Branch:
    return replace(branch, priority=_plain(order(branch)))


def _plain(priority: Any) -> Any:
    """Array scalars as Python numbers; NaN, which does not sort, as infinity: last."""
    if isinstance(priority, tuple | list):
        return tuple(map(_plain, priority))
    if hasattr(priority, "item"):
        priority = priority.item()
    return math.inf if priority != priority else priority
