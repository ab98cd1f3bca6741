"""Which ends of descents are one solution.

- Two minima are the same if their distance is within their errors, how far Newton steps say the
  exact ones may be.
- With flat directions a minimum is one of a family, such as all rotations of a molecule. Two are
  the same if a walk along flat directions leads from one to the other.
- At infinity two are the same if their limits are equal and the loss does not rise between them,
  far out.
"""

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, takewhile
from operator import attrgetter

import jax
import jax.numpy as jnp
import numpy as np

from ridgerider._core.descend.finish import Finish
from ridgerider._core.points.families import walk
from ridgerider._core.problem.placement import fetch, place
from ridgerider._core.problem.problem import Problem, Scalar, Vector
from ridgerider._core.runtime.compile import compiled
from ridgerider._search.runfile.write import Store
from ridgerider._search.same.classes import Classes, reach_of
from ridgerider._search.tree.tree import Fingerprint, Leg

IS_SOLUTION = ("minimum", "at infinity")
# Rides that meet again differ by rounding: relative to their size, by precision (bytes).
REACH = {4: 1e-3, 8: 1e-6}


@dataclass(frozen=True)
class _Level:
    """A solution that is not a single point, by the loss it tends to."""

    loss: float
    name: Fingerprint


class Ends:
    """The different solutions of a run, as they come in.

    `fetch(fingerprint)` brings back the end of a descent that was added before.

    >>> import ridgerider as rr
    >>> problem = rr.Problem(lambda x: (x @ x - 1) ** 2, jnp.zeros(2))  # a circle of minima
    >>> known = {}
    >>> ends = Ends(problem, known.__getitem__)
    >>> for text, x in (("0+", [0.1, 0.2]), ("0-", [-0.1, -0.2])):
    ...     end = rr.Descend()(problem, jnp.array(x), jax.random.key(0), None)
    ...     known[Fingerprint.parse(text)] = end
    ...     print(ends.add(Fingerprint.parse(text), end))
    None
    0+
    """

    def __init__(
        self,
        problem: Problem,
        fetch: Callable[[Fingerprint], Finish],
        kinds: tuple[str, ...] = IS_SOLUTION,
    ):
        self._problem, self._fetch, self._kinds = problem, fetch, kinds
        self._points = Classes[Fingerprint](lambda name: np.asarray(fetch(name).x))
        self._levels: dict[tuple[str, int], list[_Level]] = {}
        self._most_slack = 0.0

    def __len__(self) -> int:
        return len(self._points) + sum(map(len, self._levels.values()))

    def add(self, name: Fingerprint, end: Finish) -> Fingerprint | None:
        """Which solution this is the same as; None if it is a new one, or none at all."""
        if end.kind not in self._kinds:
            return None
        if is_point(end):
            count = len(self._points)
            number = self._points.add(name, np.asarray(end.x), float(end.error))
            return None if number == count else self._points.names[number]
        found = self._find(end)
        if found is None:
            self.keep(name, end)
        return found

    def keep(self, name: Fingerprint, end: Finish) -> None:
        """Take note of a solution that is known to be a new one."""
        if end.kind not in self._kinds:
            return
        if is_point(end):
            self._points.add(name, np.asarray(end.x), float(end.error))
        else:
            insort(self._family(end), _Level(_level(end), name), key=attrgetter("loss"))
            self._most_slack = max(self._most_slack, _slack(end))

    def _family(self, end: Finish) -> list[_Level]:
        flat = 0 if end.is_at_infinity else int(end.num_flat)
        return self._levels.setdefault((end.kind, flat), [])

    def _find(self, end: Finish) -> Fingerprint | None:
        known, loss = self._family(end), _level(end)
        slack = _slack(end)
        most = slack + self._most_slack
        first = bisect_left(known, loss - most, key=attrgetter("loss"))
        for one in takewhile(lambda one: one.loss <= loss + most, islice(known, first, None)):
            other = self._fetch(one.name)
            if abs(one.loss - loss) <= slack + _slack(other) and is_connected(
                self._problem, other, end
            ):
                return one.name
        return None


class Points:
    """The points that a search has branched at: ends of rides, and saddles below them.

    A leg is linked to another if all points that it leads on from were met by that one. `mark` is
    what ends of rides are compared by.
    """

    def __init__(
        self,
        problem: Problem,
        store: Store,
        mark: Callable[[np.ndarray], np.ndarray] = np.asarray,
    ):
        self._mark = mark
        self._ends = Classes[Fingerprint](lambda name: mark(store.leg(name).x))
        self._saddles = Ends(problem, store.end, ("saddle",))
        links, unsettled = store.links(), set(store.unsettled())
        for name in store.fingerprints():
            if name not in links and name not in unsettled:
                self._add(store.leg(name))

    def add(self, leg: Leg) -> Fingerprint | None:
        """The leg that had come to the same before, if one had."""
        others = self._add(leg)
        return others[0] if others and None not in others else None

    def _add(self, leg: Leg) -> list[Fingerprint | None]:
        others: list[Fingerprint | None] = []
        if leg.turns:
            mark = self._mark(leg.x)
            reach = reach_of(mark, REACH[leg.x.dtype.itemsize])
            count = len(self._ends)
            number = self._ends.add(leg.fingerprint, mark, reach)
            others.append(None if number == count else self._ends.names[number])
        if leg.below is not None and leg.finish is not None:
            others.append(self._saddles.add(leg.fingerprint, leg.finish))
        return others


def is_point(end: Finish) -> bool:
    return not end.is_at_infinity and int(end.num_flat) == 0


def is_connected(problem: Problem, one: Finish, two: Finish) -> bool:
    """Whether two ends of one kind and loss belong to one family."""
    a, b = np.asarray(one.x), np.asarray(two.x)
    if not one.is_at_infinity:
        reach = float(one.error) + float(two.error)
        return bool(np.linalg.norm(a - b) <= reach) or _is_family(problem, a, b, reach)
    far = [place(problem, np.asarray(end.x) + np.asarray(end.runaway)) for end in (one, two)]
    highest = float(fetch(compiled(_highest_between)(problem, *far)))
    most = max(float(one.limit), float(two.limit)) + _slack(one) + _slack(two)
    return highest <= most


def _level(end: Finish) -> float:
    return float(end.limit if end.is_at_infinity else end.loss)


def _slack(end: Finish) -> float:
    """By how much the loss may differ from that of the exact solution."""
    rounding = 1000 * float(np.finfo(np.asarray(end.x).dtype).eps) * abs(float(end.loss))
    if end.is_at_infinity:
        return rounding + 0.01 * abs(float(end.loss) - float(end.limit))
    return rounding + float(end.grad_norm) * float(end.error)


def _highest_between(problem: Problem, a: Vector, b: Vector) -> Scalar:
    """The highest loss found on the way from `a` to `b`.

    Far out a rise is narrow, and near the end that is less far, but its flanks are seen: first
    places crowd at both ends, then each round looks closer at the highest one.
    """

    def closer(places: Vector, _: None) -> tuple[Vector, Scalar]:
        values = jax.lax.map(lambda part: problem.value(a + part * (b - a)), places)
        best, last = jnp.argmax(values), len(places) - 1
        low, high = places[jnp.maximum(best - 1, 0)], places[jnp.minimum(best + 1, last)]
        return low + (high - low) * jnp.linspace(0, 1, last + 1, dtype=a.dtype), jnp.max(values)

    first = jax.nn.sigmoid(jnp.linspace(-14, 14, 96, dtype=a.dtype))
    return jnp.max(jax.lax.scan(closer, first, None, length=4)[1])


def _is_family(problem: Problem, a: np.ndarray, b: np.ndarray, reach: float) -> bool:
    """Whether a walk leads from one to the other, or back."""
    one, two, near = place(problem, a), place(problem, b), np.asarray(reach, a.dtype)
    run = compiled(walk)
    return bool(fetch(run(problem, one, two, near)) or fetch(run(problem, two, one, near)))
