"""Which points are the same, with every tolerance that decides it.

- Two isolated stationary points are the same if their distance is within their errors, how far
  Newton steps say the exact ones may be, and what rounding makes of points of their size.
- With flat directions a minimum is one of a family, such as all rotations of a molecule. Two are
  the same if a walk along flat directions leads from one to the other.
- At infinity two are the same if their limits are equal and the loss does not rise between them,
  far out.
- With a symmetry that has a signature, points of one loss and signature are the same.

Classes of points that are within reach of one another.

Two points are one if |x - y| <= reach(x) + reach(y); the first of a class stands for it. Close
points have close projections onto any vector, so classes are sorted by one projection, and a new
point is compared with the few whose projections are near its own.

At the end: the signatures of points, whether what is said to be a symmetry is one, and branches
that it makes equal, before they are ridden.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from functools import cache
from itertools import islice, takewhile
from operator import itemgetter
from typing import Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ridgerider._core.descend.finish import Finish
from ridgerider._core.points.domain import Domain
from ridgerider._core.points.families import walk
from ridgerider._core.points.symmetry import PeriodSignature, Symmetry
from ridgerider._core.problem.calls import Calls
from ridgerider._core.problem.problem import Problem, Scalar, Vector, fetch, place
from ridgerider._core.runtime.compile import compiled
from ridgerider._search.tree import Branch, Fingerprint, Leg

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
        """A new class for a point, whatever is near."""
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


IS_SOLUTION = ("minimum", "at infinity")

# All relative to the size, at least the problem's unit of length, or 1 of what users' functions
# return. Where there are two, for single and for double precision (bytes).
TOLERANCE = 1e-3  # what users' functions return for solutions: signatures, parameters of baselines
REACH = {4: 1e-3, 8: 1e-6}  # ends of rides and of descents that meet again differ by rounding
NEAR = {4: 1e-2, 8: 1e-5}  # ends of climbs before Newton steps have made them exact
LEVEL = {4: 1e-4, 8: 1e-7}  # losses of one point that was reached twice
ALIKE = 1e-5  # signatures of a symmetry
STEP = 0.1  # how far along them branches are compared, in parameters


def reach_of(point: np.ndarray, tolerance: float, unit: float = 1.0) -> float:
    """The reach with which points of about one size are the same if `tolerance` times it apart."""
    return tolerance * max(unit, float(np.linalg.norm(point))) / 2


def blur_of(problem: Problem) -> float:
    """The reach of points that are known no closer than to the problem's resolution."""
    return 10 * getattr(problem.loss, "resolution", 0.0) * problem.size**0.5


class StationaryPoints:
    """The different stationary points of some `kinds`, or of all, as they come in.

    `fetch(fingerprint)` brings back the end of a descent that was added before.

    >>> import ridgerider as rr
    >>> problem = rr.Problem(lambda x: (x @ x - 1) ** 2, jnp.zeros(2))  # a circle of minima
    >>> known = {}
    >>> points = StationaryPoints(problem, None, known.__getitem__)
    >>> for text, x in (("0+", [0.1, 0.2]), ("0-", [-0.1, -0.2])):
    ...     end = rr.Descend()(problem, jnp.array(x), jax.random.key(0), None)
    ...     known[Fingerprint.parse(text)] = end
    ...     print(points.add(Fingerprint.parse(text), end))
    None
    0+
    """

    def __init__(
        self,
        problem: Problem,
        symmetry: Symmetry | None,
        fetch: Callable[[Fingerprint], Finish],
        kinds: tuple[str, ...] | None = IS_SOLUTION,
    ):
        self._problem, self._fetch, self._kinds = problem, fetch, kinds
        self._symmetry = symmetry if has_signature(symmetry) else None
        self._unit = min(float(problem.unit), 1.0) if self._symmetry else float(problem.unit)
        self._resolution, self._blur = getattr(problem.loss, "resolution", 0.0), blur_of(problem)
        self._points = Classes[Fingerprint](
            None if self._symmetry else lambda name: np.asarray(fetch(name).x)
        )
        self._losses: dict[Fingerprint, float] = {}
        # Solutions that are not single points: by kind and flat directions, losses and names.
        self._levels: dict[tuple[str, int], list[tuple[float, Fingerprint]]] = {}
        self._most_slack = 0.0

    def __len__(self) -> int:
        return len(self._points) + sum(map(len, self._levels.values()))

    def marks(self, points: np.ndarray) -> np.ndarray:
        """What isolated points are compared by, for each: its signature, or itself."""
        if self._symmetry is None or not len(points):
            return points
        return signatures(self._problem, self._symmetry, points)

    def find(self, x: np.ndarray, loss: float, mark: np.ndarray) -> Fingerprint | None:
        """The known point that an end which is close to a stationary point belongs to, if any."""
        near = reach_of(mark, ALIKE if self._symmetry else 2 * NEAR[x.dtype.itemsize], self._unit)
        near = max(near, self._blur)
        return self._point_near(mark, near, loss, x.dtype)

    def add(self, name: Fingerprint, end: Finish) -> Fingerprint | None:
        """Which solution this is the same as; None if it is a new one, or of another kind."""
        if not self._is_counted(end):
            return None
        known = self._find(end)
        if known is None:
            self.keep(name, end)
        return known

    def keep(self, name: Fingerprint, end: Finish) -> None:
        """Take note of a solution that is known to be a new one."""
        if not self._is_counted(end):
            return
        if self._symmetry is None and not is_point(end):
            insort(self._family(end), (_level(end), name), key=itemgetter(0))
            self._most_slack = max(self._most_slack, _slack(end))
            return
        mark = self.marks(np.asarray(end.x)[None])[0]
        self._losses[name] = float(end.loss)
        self._points.append(name, mark, self._reach(end, mark))

    def _is_counted(self, end: Finish) -> bool:
        return self._kinds is None or end.kind in self._kinds

    def _reach(self, end: Finish, mark: np.ndarray) -> float:
        if self._symmetry is not None:
            return max(reach_of(mark, ALIKE, self._unit), self._blur)
        x = np.asarray(end.x)
        reach = reach_of(x, REACH[x.dtype.itemsize], self._unit)
        return max(float(end.error), reach, self._blur)

    def _point_near(
        self, mark: np.ndarray, reach: float, loss: float, dtype: np.dtype
    ) -> Fingerprint | None:
        width = LEVEL[dtype.itemsize] * max(1.0, abs(loss)) if self._symmetry else np.inf
        width += 1e3 * self._resolution**2
        for name in self._points.within(mark, reach):
            if abs(self._losses[name] - loss) <= width:
                return name
        return None

    def _family(self, end: Finish) -> list[tuple[float, Fingerprint]]:
        flat = 0 if end.is_at_infinity else int(end.num_flat)
        return self._levels.setdefault((end.kind, flat), [])

    def _find(self, end: Finish) -> Fingerprint | None:
        if self._symmetry is not None or is_point(end):
            x = np.asarray(end.x)
            mark = self.marks(x[None])[0]
            return self._point_near(mark, self._reach(end, mark), float(end.loss), x.dtype)
        known, loss, slack = self._family(end), _level(end), _slack(end)
        most = slack + self._most_slack
        first = bisect_left(known, loss - most, key=itemgetter(0))
        for level, name in takewhile(lambda one: one[0] <= loss + most, known[first:]):
            other = self._fetch(name)
            is_level = abs(level - loss) <= slack + _slack(other)
            if is_level and is_connected(self._problem, other, end):
                return name
        return None


class BranchPoints:
    """The points that a search has branched at: ends of rides, and saddles below them.

    A leg is linked to another if all points that it leads on from were met by that one.
    """

    def __init__(
        self,
        problem: Problem,
        symmetry: Symmetry | None,
        fetch_leg: Callable[[Fingerprint], Leg],
        fetch_end: Callable[[Fingerprint], Finish],
    ):
        self._saddles = StationaryPoints(problem, symmetry, fetch_end, ("saddle",))
        self._ends = Classes[Fingerprint](lambda name: self._mark(fetch_leg(name)))

    def _mark(self, leg: Leg) -> np.ndarray:
        return self._saddles.marks(leg.x[None])[0]

    def add(self, leg: Leg) -> Fingerprint | None:
        """The leg that had come to the same points before, if one had."""
        others: list[Fingerprint | None] = []
        if leg.turns:
            mark = self._mark(leg)
            reach = reach_of(mark, REACH[leg.x.dtype.itemsize], self._saddles._unit)
            others.append(next(self._ends.within(mark, reach), None))
            if others[0] is None:
                self._ends.append(leg.fingerprint, mark, reach)
        if leg.below is not None and leg.finish is not None:
            others.append(self._saddles.add(leg.fingerprint, leg.finish))
        return others[0] if others and None not in others else None


def is_point(end: Finish) -> bool:
    return not end.is_at_infinity and int(end.num_flat) == 0


def is_connected(problem: Problem, one: Finish, two: Finish) -> bool:
    """Whether two ends of one kind and loss belong to one family."""
    a, b = np.asarray(one.x), np.asarray(two.x)
    if not one.is_at_infinity:
        reach = float(one.error) + float(two.error)
        is_near = bool(np.linalg.norm(a - b) <= reach)
        return is_near or walk(problem, a, b, reach) or walk(problem, b, a, reach)
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


def distinct(problem: Problem, symmetry: Symmetry | None, branches: list[Branch]) -> list[Branch]:
    """Of the branches that leave one leg and lead to copies of one another, the first."""
    if symmetry is None or not has_signature(symmetry) or not branches:
        return branches
    step = STEP * float(problem.unit)
    points = np.stack([np.asarray(one.x) + step * np.asarray(one.direction) for one in branches])
    classes = Classes[Fingerprint]()
    for branch, mark in zip(branches, signatures(problem, symmetry, points), strict=True):
        classes.add(branch.fingerprint, mark, reach_of(mark, ALIKE))
    first = set(classes.names)
    return [branch for branch in branches if branch.fingerprint in first]


NUM_COPIES = 3
WIDTH = 16  # signatures in one program
TOLERATED = {4: 1e-2, 8: 1e-6}


def check_symmetry(problem: Problem, symmetry: Symmetry, seed: int) -> None:
    """Raise if the loss changes along a generator at the start, or the signature of a copy."""
    x, copies = fetch(problem.x0), list[np.ndarray]()
    if symmetry.copy is not None:
        seeds = np.random.SeedSequence(seed).generate_state(NUM_COPIES)
        params, keys = problem.unravel(problem.x0), (jax.random.key(int(one)) for one in seeds)
        copies = [fetch(problem.ravel(symmetry.copy(params, key))).astype(x.dtype) for key in keys]
    calls, tolerance = Calls(problem), TOLERATED[x.dtype.itemsize]
    loss, grad = calls.value_and_grad(x)
    _, slope, generator = Domain(problem, symmetry).level(x, grad)
    noise = getattr(problem.loss, "grad_noise", 0.0)
    check_level(slope, generator, x.dtype, "at `start`", noise)
    name = "period" if isinstance(symmetry.signature, PeriodSignature) else "symmetry"
    for other in map(calls.value, copies):
        if not abs(other - loss) <= tolerance * max(1.0, abs(loss)):
            raise ValueError(
                f"`{name}` must leave the loss unchanged, but a copy of the start has the loss "
                f"{other:.6g}, not {loss:.6g}."
            )
    if symmetry.signature is not None and copies:
        one, *marks = signatures(problem, symmetry, np.stack([x, *copies]))
        most = tolerance * max(1.0, float(np.max(np.abs(one), initial=0)))
        for two in marks:
            worst = int(np.argmax(np.abs(one - two)))
            if not abs(one[worst] - two[worst]) <= most:
                raise ValueError(
                    "the signature of `symmetry` must be equal for equal points, but its number "
                    f"{worst} is {one[worst]:.6g} for the start and {two[worst]:.6g} for a copy."
                )


def check_level(
    slope: float, generator: int, dtype: np.dtype, where: str, noise: float = 0.0
) -> None:
    """Raise if a gradient's part along a generator is more than rounding or its noise."""
    most = max(TOLERATED[dtype.itemsize], 100 * noise)
    if not slope <= most:
        raise ValueError(
            f"`symmetry` must leave the loss unchanged, but {where} it changes along its generator "
            f"number {generator}, by {slope:.3g} of the gradient's norm (at most {most:.3g} is "
            "rounding or noise)."
        )


def check_leg(problem: Problem, symmetry: Symmetry | None, leg: Leg) -> None:
    """Raise if the loss changes along a generator where a ride of `search` has ended."""
    if symmetry is None or symmetry.generators is None or not np.all(np.isfinite(leg.x)):
        return
    _, slope, generator = Domain(problem, symmetry).level(
        leg.x, Calls(problem).value_and_grad(leg.x)[1]
    )
    where = f"at the end of the leg {leg.fingerprint}"
    check_level(slope, generator, leg.x.dtype, where)


def has_signature(symmetry: Symmetry | None) -> bool:
    return symmetry is not None and symmetry.signature is not None


def signatures(problem: Problem, symmetry: Symmetry, points: np.ndarray) -> np.ndarray:
    """A signature for each point, `WIDTH` at a time."""
    run, marks = compiled(_marks, "little"), []
    try:
        for first in range(0, len(points), WIDTH):
            now = points[first : first + WIDTH]
            filled = np.concatenate([now, np.repeat(now[:1], WIDTH - len(now), axis=0)])
            marks.append(fetch(run(problem, symmetry, filled))[: len(now)])
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            "the signature of `symmetry` must be a function that JAX can trace, but it asks for "
            f"the values of its arrays ({type(error).__name__}: {reason})."
        ) from error
    return np.concatenate(marks)


def _marks(problem: Problem, symmetry: Symmetry, points: Float[Array, "k n"]) -> Array:
    assert symmetry.signature is not None
    of = symmetry.signature
    return jax.vmap(lambda x: jnp.ravel(jnp.asarray(of(problem.unravel(x)))))(points)
