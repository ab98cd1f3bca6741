"""What is the same: classes of points that are within reach of one another.

Two points are one if |x - y| <= reach(x) + reach(y); the first of a class stands for it. Close
points have close projections onto any vector, so classes are sorted by one projection, and a new
point is compared with the few whose projections are near its own.
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

    >>> classes, points = Classes(), {"a": 1, "b": -1, "c": 1.0001}
    >>> [classes.add(name, np.array([x, 0.0]), reach=1e-3) for name, x in points.items()]
    [0, 1, 0]
    >>> classes.names
    ['a', 'b']
    """

    def __init__(self, fetch: Callable[[Name], np.ndarray] | None = None):
        self.names: list[Name] = []
        self.points: dict[Name, np.ndarray] = {}
        self._is_keeping, self._fetch = fetch is None, fetch or self.points.__getitem__
        self._reaches: list[float] = []
        self._farthest = 0.0
        # For each shape the projections in ascending order, with the number of their class.
        self._known = defaultdict[tuple[int, ...], list[tuple[float, int]]](list)

    def __len__(self) -> int:
        return len(self.names)

    def add(self, name: Name, point: np.ndarray, reach: float) -> int:
        """The class of a point, which may be a new one."""
        number = self.find(point, reach)
        if number is not None:
            return number
        insort(self._known[point.shape], (_projection(point), len(self)), key=itemgetter(0))
        self.names.append(name)
        self._reaches.append(reach)
        self._farthest = max(self._farthest, reach)
        if self._is_keeping:
            self.points[name] = point
        return len(self) - 1

    def find(self, point: np.ndarray, reach: float) -> int | None:
        """The class that a point is in, if there is one."""
        known, place = self._known[point.shape], _projection(point)
        # A little more: the projections are rounded, too.
        away = (reach + self._farthest) * (1 + 1e-9) + 1e-12 * abs(place)
        first = bisect_left(known, place - away, key=itemgetter(0))
        near = takewhile(lambda one: one[0] <= place + away, islice(known, first, None))
        for number in sorted(number for _, number in near):
            distance = np.linalg.norm(point - self._fetch(self.names[number]))
            if distance <= reach + self._reaches[number]:
                return number
        return None


def reach_of(point: np.ndarray, tolerance: float) -> float:
    """The reach with which points of about one size are the same if `tolerance` times it apart."""
    return tolerance * max(1.0, float(np.linalg.norm(point))) / 2


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
