"""Which stationary points of a map are the same: by loss, and by a signature or the parameters.

Points are kept with their loss in ascending order; a new one is compared with the few of about its
own loss. With a symmetry, signatures decide; without, the distance does, or, where directions are
flat, a walk along them.
"""

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter

import numpy as np

from ridgerider._core.descend.finish import Finish
from ridgerider._core.points.symmetry import Symmetry
from ridgerider._core.problem.problem import Problem
from ridgerider._search.engine.climbs import ALIKE
from ridgerider._search.same.points import is_connected, is_point
from ridgerider._search.same.symmetry import signatures
from ridgerider._search.tree.tree import Fingerprint, Leg

# How far losses of one point, reached twice, may be apart, relative to their size; by precision.
LEVEL = {4: 1e-4, 8: 1e-7}
NEAR = {4: 1e-2, 8: 1e-5}  # and parameters that were not polished


@dataclass(frozen=True)
class _Point:
    loss: float
    name: Fingerprint
    mark: np.ndarray


class Atlas:
    """The different stationary points, as they come in; `fetch` brings back where one is."""

    def __init__(
        self,
        problem: Problem,
        symmetry: Symmetry | None,
        fetch: Callable[[Fingerprint], Finish],
    ):
        self._problem, self._symmetry, self._fetch = problem, symmetry, fetch
        self._known: list[_Point] = []
        self._has_signature = symmetry is not None and symmetry.signature is not None

    def __len__(self) -> int:
        return len(self._known)

    def marks(self, points: np.ndarray) -> np.ndarray:
        """What is compared, for each point."""
        if self._symmetry is not None and self._has_signature and len(points):
            return signatures(self._problem, self._symmetry, points)
        return points

    def find(self, leg: Leg, mark: np.ndarray) -> Fingerprint | None:
        """The point that a leg came to, if it is known."""
        width = LEVEL[leg.x.dtype.itemsize] * max(1.0, abs(leg.loss))
        first = bisect_left(self._known, leg.loss - width, key=attrgetter("loss"))
        for one in islice(self._known, first, None):
            if one.loss > leg.loss + width:
                return None
            if self._is_same(one, leg, mark):
                return one.name
        return None

    def add(self, leg: Leg, mark: np.ndarray) -> None:
        insort(self._known, _Point(leg.loss, leg.fingerprint, mark), key=attrgetter("loss"))

    def _is_same(self, one: _Point, leg: Leg, mark: np.ndarray) -> bool:
        size = max(1.0, float(np.linalg.norm(mark)))
        if self._has_signature:
            return bool(np.linalg.norm(one.mark - mark) <= ALIKE * size)
        if np.linalg.norm(one.mark - mark) <= NEAR[mark.dtype.itemsize] * size:
            return True
        if leg.finish is None or is_point(leg.finish):
            return False
        known = self._fetch(one.name)
        is_alike = known.kind == leg.finish.kind and int(known.num_flat) == int(leg.finish.num_flat)
        return is_alike and is_connected(self._problem, known, leg.finish)
