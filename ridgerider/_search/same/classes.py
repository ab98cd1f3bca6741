"""Classes of points that are within reach of one another.

Two points are one if |x - y| <= reach(x) + reach(y); the first of a class stands for it. Close
points have close projections onto any vector, so classes are sorted by one projection, and a new
point is compared with the few whose projections are near its own.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from functools import cache
from itertools import islice, takewhile
from operator import itemgetter
from typing import Generic, TypeVar

import numpy as np

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
        """The number of a point's class, which may be a new one."""
        number = next(self._near(point, reach), None)
        if number is None:
            self.append(name, point, reach)
        return len(self) - 1 if number is None else number

    def append(self, name: Name, point: np.ndarray, reach: float) -> None:
        """A class of its own for a point, whatever is near."""
        insort(self._known[point.shape], (_projection(point), len(self)), key=itemgetter(0))
        self.names.append(name)
        self._reaches.append(reach)
        self._farthest = max(self._farthest, reach)
        if self._is_keeping:
            self.points[name] = point

    def within(self, point: np.ndarray, reach: float) -> Iterator[Name]:
        """The classes that a point may belong to, in the order they were added."""
        return (self.names[number] for number in self._near(point, reach))

    def _near(self, point: np.ndarray, reach: float) -> Iterator[int]:
        known, place = self._known[point.shape], _projection(point)
        # A little more: the projections are rounded, too.
        away = (reach + self._farthest) * (1 + 1e-9) + 1e-12 * abs(place)
        first = bisect_left(known, place - away, key=itemgetter(0))
        near = takewhile(lambda one: one[0] <= place + away, islice(known, first, None))
        for number in sorted(number for _, number in near):
            distance = np.linalg.norm(point - self._fetch(self.names[number]))
            if distance <= reach + self._reaches[number]:
                yield number


def _projection(point: np.ndarray) -> float:
    place = float(np.ravel(point) @ _direction(point.size))
    return place if np.isfinite(place) else np.inf  # a NaN does not sort


@cache
def _direction(size: int) -> np.ndarray:
    """A unit vector, the same whenever it is asked for."""
    direction = np.random.default_rng(0).normal(size=size)
    return direction / max(float(np.linalg.norm(direction)), 1e-300)
