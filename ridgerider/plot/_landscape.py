"""The loss in the plane of two rides, with the tree of rides projected into it.

The plane goes through the point where the ways to the two rides part and through the ends of both;
where these lie on one line, as for the two ways along one ridge, it holds the bend of the rides or
else another ridge of that point.

    x(a, b) = origin + a first + b second,    first, second orthonormal

Paths leave the plane: a projected path is seen from above, and the loss below it is that of the
plane and not its own.
"""

from dataclasses import dataclass, replace
from itertools import takewhile

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ridgerider._check import check_count
from ridgerider._core.problem.problem import Problem
from ridgerider._core.runtime.compile import compiled
from ridgerider._search.results.result import Result
from ridgerider._search.tree.tree import Fingerprint, Leg

MAX_READ, MAX_PATHS = 400, 40  # other rides: of the shallowest, those nearest to the plane
MARGIN = 0.3
FINITE = ("minimum", "saddle")
REACH = 2.0  # descents and other rides widen the view to at most this many times the two rides'


@dataclass(frozen=True)
class Plane:
    """A plane in parameter space.

    >>> plane = Plane(np.zeros(3), np.array([1.0, 0.0, 0.0]), np.array([0.0, 0.0, 1.0]))
    >>> plane.project(np.array([[1.0, 2.0, 3.0]])).tolist()
    [[1.0, 3.0]]
    """

    origin: np.ndarray
    first: np.ndarray
    second: np.ndarray

    def project(self, points: np.ndarray) -> Float[np.ndarray, "points 2"]:
        return (np.atleast_2d(points) - self.origin) @ np.stack([self.first, self.second], axis=1)

    def away(self, points: np.ndarray) -> float:
        """How far the points are from the plane, the farthest of them.

        >>> plane = Plane(np.zeros(3), np.array([1.0, 0.0, 0.0]), np.array([0.0, 0.0, 1.0]))
        >>> plane.away(np.array([[1.0, -2.0, 3.0], [1.0, 1.0, 0.0]]))
        2.0
        """
        inside = self.project(points) @ np.stack([self.first, self.second])
        return float(np.linalg.norm(np.atleast_2d(points) - self.origin - inside, axis=1).max())

    def loss(
        self, problem: Problem, a: Float[np.ndarray, " columns"], b: Float[np.ndarray, " rows"]
    ) -> Float[np.ndarray, "rows columns"]:
        """The loss where the coordinates are `a` and `b`, a row for each `b`.

        >>> problem = Problem(lambda x: x[0] + 10 * x[1], jnp.zeros(2))
        >>> plane = Plane(np.zeros(2), np.array([1.0, 0.0]), np.array([0.0, 1.0]))
        >>> plane.loss(problem, np.array([0.0, 1.0]), np.array([0.0, 1.0, 2.0])).tolist()
        [[0.0, 1.0], [10.0, 11.0], [20.0, 21.0]]
        """
        rows = (self.origin + value * self.second + a[:, None] * self.first for value in b)
        return np.stack([losses_at(problem, row) for row in rows])


def losses_at(
    problem: Problem, points: Float[np.ndarray, "points size"]
) -> Float[np.ndarray, " points"]:
    """The loss at each of the points, which fit into memory together."""
    return np.asarray(compiled(_losses)(problem, jnp.asarray(points, problem.dtype)))


def _losses(problem: Problem, points: Array) -> Array:
    return jax.lax.map(problem.value, points)


@dataclass(frozen=True)
class Path:
    """A ride in the plane, then the descent from its end to where it came to rest.

    `points` and `descent` have every point that is stored; where none are, they are straight lines
    of two. `away`: how far from the plane the ride goes.
    """

    fingerprint: Fingerprint
    points: Float[np.ndarray, "points 2"]
    descent: Float[np.ndarray, "points 2"] | None
    kind: str | None
    away: float


@dataclass(frozen=True)
class PlaneOfRides:
    """The loss over the plane of two rides, and the paths in it: to the two rides, then others."""

    rides: tuple[Fingerprint, Fingerprint]
    plane: Plane
    a: Float[np.ndarray, " columns"]
    b: Float[np.ndarray, " rows"]
    loss: Float[np.ndarray, "rows columns"]
    paths: list[Path]


def plane_of_rides(
    result: Result, one: str | Fingerprint, two: str | Fingerprint, num_points: int = 61
) -> PlaneOfRides:
    """The loss in the plane of the rides `one` and `two`, at `num_points` squared points.

    The run must have been loaded with its problem. Both rides are ridden again where the run file
    does not hold their points; the others are straight lines then. Descents are drawn as they are
    stored, or else as straight lines.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> result = rr.search(wells(2), rr.Rider(finish=None, keep_path=True), max_rides=4)
    >>> found = plane_of_rides(result, "0+", "1+", num_points=5)
    >>> found.loss.shape, len(found.paths)
    ((5, 5), 4)
    """
    if result.problem is None:
        raise ValueError(
            "to compute a landscape, load the run with its `problem`: rr.load(path, problem)."
        )
    check_count("num_points", num_points, 2)
    legs = (result.leg(one), result.leg(two))
    if not all(leg.fingerprint for leg in legs):
        raise ValueError("the start is no ride: name two rides such as 0+ and 1+.")
    exact = {str(leg.fingerprint): leg for path in legs for leg in _ridden(result, path)}
    plane = _plane(result, *legs, exact)
    others = [name for name in result.fingerprints() if str(name) not in exact]
    others.sort(key=lambda name: (name.depth, name.sort_key()))
    own = [_path(result, plane, leg) for leg in exact.values()]
    near = [_path(result, plane, result.leg(name)) for name in others[:MAX_READ]]
    paths = own + sorted(near, key=lambda path: path.away)[:MAX_PATHS]
    low, high = _view(own, paths)
    a, b = (np.linspace(low[i], high[i], num_points) for i in (0, 1))
    rides, loss = (legs[0].fingerprint, legs[1].fingerprint), plane.loss(result.problem, a, b)
    return PlaneOfRides(rides, plane, a, b, loss, paths)


def _ridden(result: Result, leg: Leg) -> list[Leg]:
    """The legs on the way to `leg` and itself, with every point if there is a way to know them."""
    way = [result.leg(Fingerprint(leg.fingerprint[:i])) for i in range(1, len(leg.fingerprint) + 1)]
    if all("path" in one.trace for one in way) or not result.can_replay:
        return way
    again = result.replay(leg.fingerprint)
    return [replace(one, trace=new.trace) for one, new in zip(way, again, strict=True)]


def _plane(result: Result, one: Leg, two: Leg, exact: dict[str, Leg]) -> Plane:
    pairs = zip(one.fingerprint.parent, two.fingerprint.parent, strict=False)
    shared = Fingerprint(turn for turn, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    fork = result.leg(shared)
    bends = [leg.trace["path"] for leg in exact.values() if "path" in leg.trace]
    candidates = [two.x - fork.x, *(_far(path - fork.x, one.x - fork.x) for path in bends)]
    candidates += list(fork.directions)
    first = one.x - fork.x
    length = float(np.linalg.norm(first))
    for candidate in candidates:
        rest = candidate - first * (candidate @ first) / max(length**2, 1e-300)
        # Of a line only rounding is left; a bend of a thousandth makes a plane.
        if length > 0 and np.linalg.norm(rest) > 1e-3 * np.linalg.norm(candidate) > 0:
            return Plane(fork.x, first / length, rest / np.linalg.norm(rest))
    raise ValueError(
        f"the rides {one.fingerprint} and {two.fingerprint} span no plane: choose two others."
    )


def _far(points: np.ndarray, line: np.ndarray) -> np.ndarray:
    """The point that is farthest from the line through 0."""
    along = line / max(float(np.linalg.norm(line)), 1e-300)
    apart = np.linalg.norm(points - np.outer(points @ along, along), axis=1)
    return points[int(np.argmax(apart))]


def _path(result: Result, plane: Plane, leg: Leg) -> Path:
    points, finish, descent = leg.trace.get("path"), leg.finish, None
    if points is None:
        points = np.stack([result.leg(leg.fingerprint.parent).x, leg.x])
    if finish is not None:
        stored = leg.x[None] if finish.path is None else np.asarray(finish.path)
        descent = plane.project(np.concatenate([stored, np.asarray(finish.x)[None]]))
    kind, away = None if finish is None else finish.kind, plane.away(points)
    return Path(leg.fingerprint, plane.project(points), descent, kind, away)


def _view(own: list[Path], paths: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    """The corners of what is shown: the two rides to their minima, and all else if near."""

    def corners(some: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        points = np.concatenate(some)
        points = points[np.isfinite(points).all(axis=1)]
        return points.min(axis=0), points.max(axis=0)

    # Descents may go to infinity, rides do not.
    ends = [path.descent[-1:] for path in paths if path.descent is not None]
    near = [path.descent for path in own if path.descent is not None and path.kind in FINITE]
    low, high = corners([path.points for path in own] + near)
    size = np.maximum(high - low, 0.1 * (high - low).max())
    middle = (low + high) / 2
    all_low, all_high = corners([path.points for path in paths] + ends)
    low = np.maximum(np.minimum(low, all_low), middle - REACH * size)
    high = np.minimum(np.maximum(high, all_high), middle + REACH * size)
    margin = MARGIN * np.maximum(high - low, 0.5 * (high - low).max()) / 2
    return low - margin, high + margin
