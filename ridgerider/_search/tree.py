"""The tree of rides: turns, fingerprints, branches, legs, and the archive of them. Plain Python.

A *branch* is a ridge not yet ridden, a *leg* one that was; a leg's fingerprint is the path of turns
from the start to it. `Frontier` is the paper's archive: `ask` it which branches to ride next,
`tell` it the branches that were found.

`Settings` decide a tree besides the problem and the rider, a `Budget` when a search stops. Orders
say which branch comes next: sort keys `order(branch)`, smallest first. Ties go by fingerprint, so
what is chosen never depends on when a branch was found.
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
from functools import partial
from typing import Any, Literal

import numpy as np

from ridgerider._check import (
    Count,
    Limit,
    Positive,
    Seed,
    Share,
    Whole,
    came,
    check_fields,
    checked,
    one_line,
)
from ridgerider._core.descend.finish import Finish
from ridgerider._core.problem.cost import Cost
from ridgerider._core.spectra.spectrum import Cluster
from ridgerider._search.runfile.rules_json import describe

_TURN = struct.Struct(">BIIB")


@dataclass(frozen=True, slots=True)
class Turn:
    """Which ridge (the rank of its cluster), which way along it, which member of the cluster.

    It is taken at the end of the ride before it or, if `below`, at the saddle that the descent from
    there came to. With `up` the ridge is climbed, from a minimum. A `start` follows no ridge: it is
    a descent from the start with the number `index`.

    >>> str(Turn(0, 1)), str(Turn(3, -1, member=2)), str(Turn(1, -1, below=True))
    ('0+', '3.2-', 'v1-')
    >>> str(Turn(2, 1, up=True)), str(Turn(17, 1, start=True))
    ('2^+', '*17')
    """

    index: int
    sign: int
    member: int = 0
    below: bool = False
    up: bool = False
    start: bool = False

    def __str__(self) -> str:
        if self.start:
            return f"*{self.index}"
        member = f".{self.member}" if self.member else ""
        way = f"{'^' * self.up}{'+' if self.sign > 0 else '-'}"
        return f"{'v' * self.below}{self.index}{member}{way}"

    @staticmethod
    @functools.lru_cache(maxsize=10_000)  # few turns are different; a million branches share them
    def parse(text: str) -> "Turn":
        match = re.fullmatch(r"(v?)(\d+)(?:\.(\d+))?(\^?)([+-])|\*(\d+)", text)
        if match is None or (match[1] and match[4]):
            raise ValueError(
                f"a turn of `fingerprint` must look like 0+, 3.2-, v1+, 2^+ or *17, not {text!r}."
            )
        below, index, member, up, sign, start = match.groups()
        if start:
            return Turn(int(start), 1, start=True)
        return Turn(int(index), int(f"{sign}1"), int(member or 0), bool(below), bool(up))


class Fingerprint(tuple[Turn, ...]):
    """The path to a leg: its turns from the start. Prints and parses as `0+ 3- 1+`.

    >>> fingerprint = Fingerprint.parse("0+ 3.2-")
    >>> fingerprint[1], str(fingerprint.parent), fingerprint.depth
    (Turn(index=3, sign=-1, member=2, below=False, up=False, start=False), '0+', 2)
    """

    __slots__ = ()

    def __str__(self) -> str:
        return " ".join(map(str, self))

    def __repr__(self) -> str:
        return f"Fingerprint({str(self)!r})"

    @staticmethod
    def parse(fingerprint: "str | Fingerprint") -> "Fingerprint":
        if isinstance(fingerprint, Fingerprint):
            return fingerprint
        if not isinstance(fingerprint, str):
            raise ValueError(
                f"`fingerprint` must be a fingerprint such as '0+ 1-', not {came(fingerprint)}."
            )
        return Fingerprint(map(Turn.parse, fingerprint.split()))

    @property
    def depth(self) -> int:
        return len(self)

    @property
    def parent(self) -> "Fingerprint":
        return Fingerprint(self[:-1])

    def child(self, turn: Turn) -> "Fingerprint":
        return Fingerprint((*self, turn))

    @property
    def rank(self) -> tuple[int, bytes]:
        """Shallow before deep, then by `sort_key`."""
        return self.depth, self.sort_key()

    def sort_key(self) -> bytes:
        """Steepest ridge first, then by member, + before -. Bytes: a million of them must fit."""
        return b"".join(
            _TURN.pack(
                turn.below + 2 * turn.up + 4 * turn.start, turn.index, turn.member, turn.sign < 0
            )
            for turn in self
        )


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
    ridden, with the Hessian if the leg has that; a branch that waits holds no array.
    """

    fingerprint: Fingerprint
    loss: float
    eigenvalue: float
    multiplicity: int
    priority: Any = None
    x: np.ndarray | None = field(default=None, repr=False, compare=False)
    direction: np.ndarray | None = field(default=None, repr=False, compare=False)
    hessian: np.ndarray | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Way:
    """How a direction inside a repeated eigenvalue was singled out; see `Direction`.

    `class_size` directions are alike; those of one `class_number` and cluster share `kappa`. With
    `is_even` a symmetry maps the direction onto its opposite.

    >>> Way(order=4, kappa=6.16, class_number=2, class_size=3).class_size
    3
    """

    order: int = 1
    kappa: float = float("nan")
    class_number: int = 0
    class_size: int = 1
    is_even: bool = False


@dataclass(frozen=True)
class Ridges:
    """The spectrum at a point, and the ridges that may be ridden from it.

    These are `turns`, as (index, member) pairs, with a row of `directions` and a `Way` for each;
    `num_ridges` counts the clusters that lead downhill.

    >>> Ridges(np.zeros(2), (), 0, (), np.zeros((0, 2)), ()).num_ridges
    0
    """

    eigenvalues: np.ndarray
    clusters: tuple[Cluster, ...]
    num_ridges: int
    turns: tuple[tuple[int, int], ...]
    directions: np.ndarray
    ways: tuple[Way, ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class Leg(Ridges):
    """A ridge that was ridden: where it led, why it ended, what is there, and what it cost.

    - `ended_by`: the names of the rules that fired.
    - `eigenvalues`, `clusters`, `num_ridges`: the spectrum at its end, and how many clusters lead
      downhill.
    - `turns`, `directions`, `ways`: the ridges that may be ridden from here, as (index, member)
      pairs, rows, and how each was singled out.
    - `trace`: an array per quantity with an entry for the start and for each step.
    - `finish`: where descent from here ended, if it was run; `same_as`: the leg that had led to the
      same solution before, if one had.
    - `below`: the ridges that leave the saddle at which that descent ended, if it did.
    - `linked_to`: the leg that had ended at the same point before; branches leave from that one.
    - `is_settled`: whether it was compared with the legs before it.
    - `hessian`: at the stationary point of a map, of a function outside of JAX, for all that leave.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> leg = rr.search(wells(1), rr.Rider(finish=None), max_rides=1).leg("0+")
    >>> leg.ended_by, leg.num_steps == len(leg.trace["loss"]) - 1
    (('curvature_gone',), True)
    """

    fingerprint: Fingerprint
    x: np.ndarray
    loss: float
    num_steps: int = 0
    ended_by: tuple[str, ...]
    trace: dict[str, np.ndarray] = field(default_factory=dict)
    cost: Cost = Cost()
    finish: Finish | None = None
    same_as: Fingerprint | None = None
    below: Ridges | None = None
    linked_to: Fingerprint | None = None
    is_settled: bool = False
    hessian: np.ndarray | None = None

    def __repr__(self) -> str:
        found = "" if self.finish is None else f"; {self.finish.kind} at {self.finish.loss:.6g}"
        ended = f"{self.num_steps} steps to {self.loss:.6g}, ended by {', '.join(self.ended_by)}"
        return f"Leg {self.fingerprint or 'start'}: {ended}{found}"

    @staticmethod
    def without_ridges(
        fingerprint: Fingerprint, x: np.ndarray, loss: float, ended_by: tuple[str, ...]
    ) -> "Leg":
        """A leg of no steps at whose end no spectrum was computed, so that nothing leaves it."""
        here: Any = {"fingerprint": fingerprint, "x": x, "loss": loss, "ended_by": ended_by}
        return Leg(x[:0], (), 0, (), np.zeros((0, x.size), x.dtype), (), **here)

    def to_pandas(self) -> Any:
        """A row for the start and for each step; a column for each number of the trace.

        >>> import ridgerider as rr
        >>> from ridgerider.problems import wells
        >>> frame = rr.search(wells(1), rr.Rider(finish=None), max_rides=1).leg("0+").to_pandas()
        >>> frame.index.name, "overlap" in frame.columns
        ('step', True)
        """
        from ridgerider._search.results.export import frame

        rows = frame({name: column for name, column in self.trace.items() if column.ndim == 1})
        rows.index.name = "step"
        return rows

    def place(self, turn: Turn) -> tuple[np.ndarray, float, Ridges]:
        """Where a turn is taken: the point, the loss, and the ridges there."""
        if not turn.below:
            return self.x, self.loss, self
        assert self.finish is not None and self.below is not None
        return np.asarray(self.finish.x), float(self.finish.loss), self.below

    def branch(self, turn: Turn) -> Branch:
        """The branch that leaves here by `turn`."""
        x, loss, ridges = self.place(turn)
        row = ridges.turns.index((turn.index, turn.member))
        cluster = ridges.clusters[turn.index]
        return Branch(
            fingerprint=self.fingerprint.child(turn),
            loss=loss,
            eigenvalue=cluster.eigenvalue,
            multiplicity=cluster.multiplicity,
            x=x,
            direction=turn.sign * ridges.directions[row],
            hessian=self.hessian,
        )


class Frontier:
    """The open branches, smallest priority first; ties go by fingerprint.

    What is asked depends only on what was told before, never on the order it was told in.

    >>> frontier = Frontier()
    >>> for text in ("0- 1+", "0-", "0+"):
    ...     fingerprint = Fingerprint.parse(text)
    ...     frontier.tell([Branch(fingerprint, 0.0, -1.0, 1, priority=fingerprint.depth)])
    >>> [str(branch.fingerprint) for branch in frontier.ask(2)], len(frontier)
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

    @checked
    def ask(self, count: Whole) -> list[Branch]:
        return [heapq.heappop(self._heap)[2] for _ in range(min(count, len(self._heap)))]


@dataclass(frozen=True)
class Settings:
    """What decides the tree, besides the problem and the rider. Part of a run's identity.

    >>> Settings(max_depth=2).is_last(Fingerprint.parse("0+ 1-"))
    True
    """

    seed: Seed = 0
    order: str = "breadth_first"
    members: Literal["branches", "all", "one"] = "branches"
    max_ridges: Count | None = None
    max_depth: Count | None = None
    round_size: Count = 1
    branch_at: Literal["end", "saddle"] = "end"
    unit: Positive = 1.0  # of length: see `Problem.unit`
    share_of_starts: Share | None = 0.0  # of the legs of a round; None: as they yield
    until_enough: bool = False  # end where hardly any minimum is missing

    def __post_init__(self) -> None:
        check_fields(self)

    def is_last(self, fingerprint: Fingerprint) -> bool:
        """Whether a leg is as deep as the search may go."""
        return self.max_depth is not None and fingerprint.depth >= self.max_depth


@dataclass(frozen=True)
class Budget:
    """When to stop. Not a part of a run's identity: `resume` may raise it."""

    max_rides: Limit = 100
    max_steps: Limit = None
    max_hvps: Limit = None
    max_seconds: Limit = None
    max_points: Limit = None
    max_calls: Limit = None

    def __post_init__(self) -> None:
        check_fields(self)
        for name, value in vars(self).items():
            if value is not None:  # a NumPy number would not go into the run file
                plain = int(value) if isinstance(value, numbers.Integral) else float(value)
                object.__setattr__(self, name, plain)

    def rides_left(self, rides: int) -> float:
        return math.inf if self.max_rides is None else max(0, self.max_rides - rides)

    def is_spent(self, steps: int, cost: Cost, points: int) -> bool:
        """Whether no further round may begin, given what was spent so far."""
        spent = (
            (self.max_steps, steps),
            (self.max_hvps, cost.hvps),
            (self.max_points, points),
            (self.max_calls, cost.values + cost.hvps),
        )
        return any(limit is not None and used >= limit for limit, used in spent)

    def seconds_left(self, spent: float) -> float:
        """How long the work may continue."""
        return math.inf if self.max_seconds is None else self.max_seconds - spent


Order = Callable[[Branch], Any]


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
    "breadth_first": lambda branch: branch.fingerprint.depth,  # the paper's choice
    "depth_first": lambda branch: -branch.fingerprint.depth,
    "best_first": lambda branch: branch.loss,
    "steepest_first": lambda branch: branch.eigenvalue,  # the most negative one
    # From the lowest minimum, along its softest mode.
    "lowest_first": lambda branch: (float(f"{branch.loss:.6g}"), branch.fingerprint[-1].index),
    "fewest_visits": fewest_visits,
}


def named_order(order: str | Order, seed: int, names: tuple[str, ...] = SEARCH_ORDERS) -> Order:
    """Look an order up by name; a callable is taken as it is.

    >>> from ridgerider._search.tree import Fingerprint
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
    if order_name(given) != name:
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
