"""The tree of rides: turns, fingerprints, branches, legs, and the search over them. Plain Python.

A *branch* is a ridge not yet ridden, a *leg* one that was; a leg's fingerprint is the path of turns
from the start to it. `Search` is the paper's archive: `ask` it which branches to ride next, `tell`
it the branches that were found.
"""

import functools
import hashlib
import heapq
import json
import math
import numbers
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from ridgerider._core.finish import Finish
from ridgerider._core.problem import Cost
from ridgerider._core.spectrum import Cluster
from ridgerider._describe import describe

_TURN = struct.Struct(">IIB")


@dataclass(frozen=True, slots=True)
class Turn:
    """Which ridge (the rank of its cluster), which way along it, which member of the cluster.

    >>> str(Turn(0, 1)), str(Turn(3, -1, member=2))
    ('0+', '3.2-')
    """

    index: int
    sign: int
    member: int = 0

    def __str__(self) -> str:
        member = f".{self.member}" if self.member else ""
        return f"{self.index}{member}{'+' if self.sign > 0 else '-'}"

    @staticmethod
    @functools.lru_cache(maxsize=10_000)  # few turns are different; a million branches share them
    def parse(text: str) -> "Turn":
        match = re.fullmatch(r"(\d+)(?:\.(\d+))?([+-])", text)
        if match is None:
            raise ValueError(f"a turn must look like 0+ or 3.2-, not {text!r}.")
        return Turn(int(match[1]), 1 if match[3] == "+" else -1, int(match[2] or 0))


class Fingerprint(tuple[Turn, ...]):
    """The address of a leg: its turns from the start. Prints and parses as `0+ 3- 1+`.

    >>> fingerprint = Fingerprint.parse("0+ 3.2-")
    >>> fingerprint[1], str(fingerprint.parent), fingerprint.depth
    (Turn(index=3, sign=-1, member=2), '0+', 2)
    """

    __slots__ = ()

    def __str__(self) -> str:
        return " ".join(map(str, self))

    def __repr__(self) -> str:
        return f"Fingerprint({str(self)!r})"

    @staticmethod
    def parse(text: "str | Fingerprint") -> "Fingerprint":
        return text if isinstance(text, Fingerprint) else Fingerprint(map(Turn.parse, text.split()))

    @property
    def depth(self) -> int:
        return len(self)

    @property
    def parent(self) -> "Fingerprint":
        return Fingerprint(self[:-1])

    def child(self, turn: Turn) -> "Fingerprint":
        return Fingerprint((*self, turn))

    def sort_key(self) -> bytes:
        """Steepest ridge first, then by member, + before -. Bytes: a million of them must fit."""
        return b"".join(_TURN.pack(turn.index, turn.member, turn.sign < 0) for turn in self)


def hashed(purpose: str, seed: int, fingerprint: Fingerprint) -> bytes:
    """Eight random bytes that depend on where in the tree they are wanted, never on when."""
    text = f"{purpose} {seed}: {fingerprint}"
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


@dataclass(frozen=True, slots=True)
class Branch:
    """A ridge not yet ridden, with the loss, eigenvalue and multiplicity where it begins.

    >>> branch = Branch(Fingerprint.parse("0+ 1-"), loss=-1.0, eigenvalue=-0.5, multiplicity=1)
    >>> branch.fingerprint.depth
    2

    `x` and `direction` are there when an order looks at the branch and when it is about to be
    ridden; a branch that waits refers to its parent's and holds no array.
    """

    fingerprint: Fingerprint
    loss: float
    eigenvalue: float
    multiplicity: int
    priority: Any = None
    x: np.ndarray | None = field(default=None, repr=False, compare=False)
    direction: np.ndarray | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Leg:
    """A ridge that was ridden: where it led, why it ended, what is there, and what it cost.

    - `ended_by`: the names of the rules that fired.
    - `eigenvalues`, `clusters`, `num_ridges`: the spectrum at its end, and how many clusters lead
      downhill.
    - `turns`, `directions`: the ridges that may be ridden from here, as (index, member) pairs and
      rows.
    - `trace`: an array per quantity with an entry for the start and for each step.
    - `finish`: where descent from here ended, if it was run.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> leg = rr.search(wells(1), rr.Rider(finish=None), max_rides=1).leg("0+")
    >>> leg.ended_by, leg.num_steps == len(leg.trace["loss"]) - 1
    (('curvature_gone',), True)
    """

    fingerprint: Fingerprint
    x: np.ndarray
    loss: float
    num_steps: int
    ended_by: tuple[str, ...]
    eigenvalues: np.ndarray
    clusters: tuple[Cluster, ...]
    num_ridges: int
    turns: tuple[tuple[int, int], ...]
    directions: np.ndarray
    trace: dict[str, np.ndarray]
    cost: Cost
    finish: Finish | None = None

    def branch(self, turn: Turn) -> Branch:
        """The branch that leaves here by `turn`."""
        row = self.turns.index((turn.index, turn.member))
        cluster = self.clusters[turn.index]
        return Branch(
            fingerprint=self.fingerprint.child(turn),
            loss=self.loss,
            eigenvalue=cluster.eigenvalue,
            multiplicity=cluster.multiplicity,
            x=self.x,
            direction=turn.sign * self.directions[row],
        )


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


@dataclass(frozen=True)
class Settings:
    """What decides the tree, besides the problem and the rider. Part of a run's identity.

    >>> Settings(max_depth=2).is_last(Fingerprint.parse("0+ 1-"))
    True
    """

    seed: int = 0
    order: str = "breadth_first"
    members: Literal["one", "all"] = "one"
    max_ridges: int | None = None
    max_depth: int | None = None
    finish_at: Literal["leg", "leaf"] = "leg"
    round_size: int = 1
    asynchronous: bool = False

    def __post_init__(self) -> None:
        _check_choice("members", self.members, ("one", "all"))
        _check_choice("finish_at", self.finish_at, ("leg", "leaf"))
        _check_count("seed", self.seed, 0)
        _check_count("round_size", self.round_size, 1)
        if not isinstance(self.asynchronous, bool):
            raise ValueError(f"`asynchronous` must be True or False, not {self.asynchronous!r}.")
        for name in ("max_ridges", "max_depth"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name), 1)

    def is_last(self, fingerprint: Fingerprint) -> bool:
        """Whether a leg is as deep as the search may go."""
        return self.max_depth is not None and fingerprint.depth >= self.max_depth


@dataclass(frozen=True)
class Budget:
    """When to stop. Checked between rounds; no part of a run's identity: resume may raise it."""

    max_rides: int | None = 100
    max_steps: int | None = None
    max_hvps: int | None = None
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        for name, value in list(vars(self).items()):
            if value is None:
                continue
            if (
                isinstance(value, bool)
                or not isinstance(value, numbers.Real)
                or not float(value) >= 0
            ):
                raise ValueError(f"`{name}` must be a number of at least 0 or None, not {value!r}.")
            # A NumPy number would not go into the run file.
            plain = int(value) if isinstance(value, numbers.Integral) else float(value)
            object.__setattr__(self, name, plain)

    def rides_left(self, rides: int, steps: int, cost: Cost) -> float:
        """How many more rides may begin, given what was spent so far."""
        spent = (
            (self.max_steps, steps),
            (self.max_hvps, cost.hvps),
            (self.max_seconds, cost.seconds),
        )
        if any(limit is not None and used >= limit for limit, used in spent):
            return 0
        return math.inf if self.max_rides is None else max(0, self.max_rides - rides)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"`{name}` must be {' or '.join(map(repr, choices))}, not {value!r}.")


def _check_count(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"`{name}` must be a whole number of at least {least}, not {value!r}.")


def branches_at(leg: Leg, settings: Settings, order: Order) -> list[Branch]:
    """GetRidges: both ways along every rideable ridge, light and with their priority."""
    if settings.is_last(leg.fingerprint):
        return []
    branches = (
        leg.branch(Turn(index, sign, member)) for index, member in leg.turns for sign in (1, -1)
    )
    return [replace(with_priority(branch, order), x=None, direction=None) for branch in branches]


def with_priority(branch: Branch, order: Order) -> Branch:
    return replace(branch, priority=_plain(order(branch)))


def _plain(priority: Any) -> Any:
    """Array scalars as Python numbers; NaN, which does not sort, as infinity: last."""
    if isinstance(priority, tuple | list):
        return tuple(map(_plain, priority))
    if hasattr(priority, "item"):
        priority = priority.item()
    return math.inf if priority != priority else priority


class Search:
    """The open branches, smallest priority first; ties go by fingerprint.

    What is asked depends only on what was told before, never on the order it was told in.

    >>> import ridgerider as rr
    >>> tree = rr.Search()
    >>> for text in ("0- 1+", "0-", "0+"):
    ...     fingerprint = rr.Fingerprint.parse(text)
    ...     tree.tell([rr.Branch(fingerprint, 0.0, -1.0, 1, priority=fingerprint.depth)])
    >>> [str(branch.fingerprint) for branch in tree.ask(2)], len(tree)
    (['0+', '0-'], 1)
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Any, Any, Branch]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Branch]:
        return (branch for _, _, branch in sorted(self._heap, key=lambda entry: entry[:2]))

    def tell(self, branches: Iterable[Branch]) -> None:
        for branch in branches:
            heapq.heappush(self._heap, (branch.priority, branch.fingerprint.sort_key(), branch))

    def ask(self, count: int) -> list[Branch]:
        return [heapq.heappop(self._heap)[2] for _ in range(min(count, len(self._heap)))]
