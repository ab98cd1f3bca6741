"""How far a search has come, kept small: a sketch of each minimum, no parameters."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter

import numpy as np

from ridgerider._core.finish import Finish
from ridgerider._core.problem import Cost
from ridgerider._search.store import Store
from ridgerider._search.tree import Leg

TOLERANCE = 1e-3  # as in `Result.minima`


@dataclass
class Progress:
    """What a search has done so far; handed to `progress` after every leg.

    `num_open` counts the branches that wait, `num_minima` the minima, by distance; `best_loss` is
    the lowest loss at one of them. `waste` is the part of all steps that lanes idled
    through while the longest ride or descent beside them went on.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> def tell(done):
    ...     print(done.num_rides, "rides,", done.num_minima, "minima")
    >>> result = rr.search(wells(1), progress=tell)
    1 rides, 1 minima
    2 rides, 2 minima
    """

    num_rides: int = 0
    num_steps: int = 0
    num_open: int = 0
    best_loss: float = float("inf")
    cost: Cost = Cost()
    _useful: int = field(default=0, repr=False)
    _spent: int = field(default=0, repr=False)
    _minima: "Sketches" = field(default_factory=lambda: Sketches(), repr=False)

    @property
    def num_minima(self) -> int:
        return len(self._minima)

    @property
    def waste(self) -> float:
        return 1 - self._useful / self._spent if self._spent else 0.0

    @staticmethod
    def read(store: Store) -> "Progress":
        """As far as the run in the store has come."""
        cost = sum(store.costs().values(), Cost())
        done = Progress(store.num_legs(), store.num_steps(), cost=cost)
        for _, finish in store.finishes():
            done._add_finish(finish)
        return done

    def add(self, leg: Leg) -> None:
        self.num_rides += 1
        self.num_steps += leg.num_steps
        self.cost = self.cost + leg.cost
        if leg.finish is not None:
            self._add_finish(leg.finish)

    def add_lanes(self, legs: Sequence[Leg], num_lanes: int) -> None:
        """Count what rides side by side used of the steps they took."""
        rides = [leg.num_steps for leg in legs]
        descents = [int(leg.finish.num_steps) for leg in legs if leg.finish is not None]
        self._useful += sum(rides) + sum(descents)
        self._spent += num_lanes * (max(rides, default=0) + max(descents, default=0))

    def _add_finish(self, finish: Finish) -> None:
        if finish.is_converged and not finish.is_saddle:
            self.best_loss = min(self.best_loss, float(finish.loss))
            self._minima.add(np.asarray(finish.x))


class Sketches:
    """Vectors that differ by more than `TOLERANCE`, counted without keeping them.

    Of each, eight signed sums of interleaved entries are kept: exact distances for up to eight
    entries, beyond that random projections, which keep distances up to a factor of order one. They
    are sorted by one more projection, so that only neighbours are compared.
    """

    def __init__(self) -> None:
        self._known: list[tuple[float, np.ndarray]] = []

    def __len__(self) -> int:
        return len(self._known)

    def add(self, x: np.ndarray) -> None:
        """Add `x` unless a vector close to it is there."""
        random = np.random.default_rng(0)
        weights = random.normal(size=8)
        padded = np.zeros((-(-x.size // 8), 8))
        padded.ravel()[: x.size] = x * (random.integers(0, 2, x.size, np.int8) * 2 - 1)
        sketch = padded.sum(0)
        place, radius = float(sketch @ weights), TOLERANCE * max(1.0, float(np.linalg.norm(x)))
        reach = radius * float(np.linalg.norm(weights))
        first = bisect_left(self._known, place - reach, key=itemgetter(0))
        for where, known in islice(self._known, first, None):
            if where > place + reach:
                break
            if np.linalg.norm(sketch - known) <= radius:
                return
        insort(self._known, (place, sketch), key=itemgetter(0))
