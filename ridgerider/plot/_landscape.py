"""The plane of two rides: through the point where their ways part and the ends of both.

    x(a, b) = origin + a first + b second,    first, second orthonormal

Where the ends lie on one line with that point, as for the two ways along one ridge, another ridge
of the point takes the place of the second. Paths leave the plane: a projected path is seen from
above, and the loss below it is that of the plane and not its own.
"""

from dataclasses import dataclass, replace
from itertools import takewhile

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ridgerider._core.problem.problem import Problem
from ridgerider._core.runtime.compile import compiled
from ridgerider._search.results.result import Result
from ridgerider._search.tree.tree import Fingerprint, Leg


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
        run = compiled(_losses)
        return np.stack([np.asarray(run(problem, jnp.asarray(row, problem.dtype))) for row in rows])


def _losses(problem: Problem, points: Array) -> Array:
    return jax.lax.map(problem.value, points)


def ridden(result: Result, name: str | Fingerprint) -> list[Leg]:
    """The legs on the way to a ride and itself, with every point if there is a way to know them."""
    name = result.leg(name).fingerprint
    if not name:
        raise ValueError("the start is no ride: name two rides such as 0+ and 1+.")
    way = [result.leg(Fingerprint(name[: depth + 1])) for depth in range(len(name))]
    if all("path" in one.trace for one in way) or not result.can_replay:
        return way
    again = result.replay(name)
    return [replace(one, trace=new.trace) for one, new in zip(way, again, strict=True)]


def plane_of(result: Result, one: Leg, two: Leg) -> Plane:
    """The plane of two rides."""
    pairs = zip(one.fingerprint.parent, two.fingerprint.parent, strict=False)
    fork = result.leg(Fingerprint(t for t, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
    first = one.x - fork.x
    length = float(np.linalg.norm(first))
    for other in (two.x - fork.x, *fork.directions):
        rest = other - first * (other @ first) / max(length**2, 1e-300)
        # Of a line only rounding is left.
        if length > 0 and np.linalg.norm(rest) > 1e-3 * np.linalg.norm(other) > 0:
            return Plane(fork.x, first / length, rest / np.linalg.norm(rest))
    raise ValueError(
        f"the rides {one.fingerprint} and {two.fingerprint} span no plane: choose two others."
    )
