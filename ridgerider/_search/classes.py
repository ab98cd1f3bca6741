"""What is the same: classes of points that are closer than a tolerance.

Two points are one if |x - y| <= tolerance * max(1, |y|), where y was there first; the first of a
class stands for it. Close points have close projections onto any vector, so classes are sorted by
one projection, and a new point is compared with the few whose projections are near its own.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Hashable
from functools import cache
from itertools import islice, takewhile
from operator import itemgetter
from typing import Generic, TypeVar

import numpy as np

TOLERANCE = 1e-3

Name = TypeVar("Name", bound=Hashable)


class Classes(Generic[Name]):
    """Classes that grow as points are added; `names` are those of the points that stand for them.

    These points are kept, unless `fetch(name)` brings one back when it is to be compared.

    >>> classes = Classes()
    >>> [classes.add(name, np.array([x, 0.0])) for name, x in (("a", 1), ("b", -1), ("c", 1.0001))]
    [0, 1, 0]
    >>> classes.names
    ['a', 'b']
    """

    def __init__(
        self,
        tolerance: float = TOLERANCE,
        fetch: Callable[[Name], np.ndarray] | None = None,
    ):
        self.names: list[Name] = []
        self.points: dict[Name, np.ndarray] = {}
        self._tolerance, self._is_keeping = tolerance, fetch is None
        self._fetch = fetch or self.points.__getitem__
        # For each shape the projections in ascending order, with the number of their class.
        self._known = defaultdict[tuple[int, ...], list[tuple[float, int]]](list)

    def __len__(self) -> int:
        return len(self.names)

    def add(self, name: Name, point: np.ndarray) -> int:
        """The class of a point, which may be a new one."""
        known, place = self._known[point.shape], _projection(point)
        # A point that is close to this one is hardly larger.
        size = max(1.0, float(np.linalg.norm(point))) * (1 + 2 * self._tolerance)
        reach = self._tolerance * size if self._tolerance < 0.3 else np.inf
        first = bisect_left(known, place - reach, key=itemgetter(0))
        near = takewhile(lambda one: one[0] <= place + reach, islice(known, first, None))
        for number in sorted(number for _, number in near):
            if is_same(point, self._fetch(self.names[number]), self._tolerance):
                return number
        insort(known, (place, len(self.names)), key=itemgetter(0))
        self.names.append(name)
        if self._is_keeping:
            self.points[name] = point
        return len(self.names) - 1


def is_same(one: np.ndarray, two: np.ndarray, tolerance: float = TOLERANCE) -> bool:
    """Whether two vectors are closer than `tolerance` times max(1, the size of the second)."""
    return one.shape == two.shape and bool(
        np.linalg.norm(one - two) <= tolerance * max(1.0, float(np.linalg.norm(two)))
    )


def _projection(point: np.ndarray) -> float:
    place = float(np.ravel(point) @ _direction(point.size))
    return place if np.isfinite(place) else np.inf  # a NaN does not sort


@cache
def _direction(size: int) -> np.ndarray:
    """A unit vector, the same whenever it is asked for."""
    direction = np.random.default_rng(0).normal(size=size)
    return direction / max(float(np.linalg.norm(direction)), 1e-300)
