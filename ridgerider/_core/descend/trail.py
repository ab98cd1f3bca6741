"""Where a descent went, in a few points: nobody knows beforehand how many steps it will take."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ridgerider._core.problem.problem import Vector

MAX_POINTS = 24  # even: every other one goes when there are as many


class Trail(eqx.Module):
    """At most 24 points of a way, evenly spread over its steps; rows of NaN are free.

    When all rows are taken, every other one goes, and from then on half as many points come.

    >>> trail = Trail.begin(jnp.zeros(1))
    >>> for step in range(1, 100):
    ...     trail = trail.add(jnp.full(1, float(step)), jnp.array(True))
    >>> taken_points(trail.points)[:, 0].tolist()
    [0.0, 8.0, 16.0, 24.0, 32.0, 40.0, 48.0, 56.0, 64.0, 72.0, 80.0, 88.0, 96.0]
    """

    points: Float[Array, "m n"]
    count: Int[Array, ""]
    stride: Int[Array, ""]

    @staticmethod
    def begin(x: Vector) -> "Trail":
        points = jnp.full((MAX_POINTS, *x.shape), jnp.nan, x.dtype)
        first = jax.lax.dynamic_update_index_in_dim(points, x, 0, 0)
        return Trail(first, jnp.array(1), jnp.array(1))

    def add(self, x: Vector, is_wanted: Bool[Array, ""]) -> "Trail":
        """With one more step, if it is wanted."""
        is_full = is_wanted & (self.count == MAX_POINTS * self.stride)
        half = jnp.concatenate([self.points[::2], jnp.full_like(self.points[1::2], jnp.nan)])
        points = jnp.where(is_full, half, self.points)
        stride = jnp.where(is_full, 2 * self.stride, self.stride)
        is_due = is_wanted & (jax.lax.rem(self.count, stride) == 0)
        row = jnp.minimum(jax.lax.div(self.count, stride), MAX_POINTS - 1)
        old = jax.lax.dynamic_index_in_dim(points, row, keepdims=False)
        points = jax.lax.dynamic_update_index_in_dim(points, jnp.where(is_due, x, old), row, 0)
        return Trail(points, self.count + is_wanted.astype(self.count.dtype), stride)

    def back(self, begin: Vector, x: Vector, is_wanted: Bool[Array, ""]) -> "Trail":
        """Without what lies farther from `begin` than `x`, which is gone back to."""
        is_far = jnp.linalg.norm(self.points - begin[None], axis=1) > jnp.linalg.norm(x - begin)
        points = jnp.where((is_wanted & is_far)[:, None], jnp.nan, self.points)
        return eqx.tree_at(lambda trail: trail.points, self, points)


def taken_points(points: np.ndarray) -> Float[np.ndarray, "points n"]:
    """The rows that are points."""
    points = np.asarray(points)
    return points[np.isfinite(points).all(axis=1)]
