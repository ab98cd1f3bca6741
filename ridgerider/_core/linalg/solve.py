"""Linear systems of the Hessian, or of a part of it, by conjugate gradients."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from ridgerider._core.linalg.space import Hvp
from ridgerider._core.problem.problem import Number, Scalar, Vector


class Solution(eqx.Module):
    """Where conjugate gradients are: `residual` = side - H x, and the direction to go next."""

    x: Vector
    residual: Vector
    direction: Vector
    is_convex: Bool[Array, ""]  # no direction of negative curvature was met
    num_hvps: Int[Array, ""]

    @property
    def error(self) -> Scalar:
        return jnp.linalg.norm(self.residual)


def conjugate_gradients(hvp: Hvp, side: Vector, tolerance: Number, max_hvps: int) -> Solution:
    """Solve H x = side until |side - H x| <= tolerance.

    The solution lies in the Krylov space of `side`, so that directions in which H vanishes have no
    part in it. It ends where it meets negative curvature.
    """

    def should_continue(state: Solution) -> Bool[Array, ""]:
        return (state.error > tolerance) & state.is_convex & (state.num_hvps < max_hvps)

    def step(state: Solution) -> Solution:
        image = hvp(state.direction)
        along, before = state.direction @ image, state.residual @ state.residual
        is_convex = along > 0
        length = jnp.where(is_convex, before / jnp.where(is_convex, along, 1), 0)
        residual = state.residual - length * image
        ratio = (residual @ residual) / jnp.where(before > 0, before, 1)
        return Solution(
            x=state.x + length * state.direction,
            residual=residual,
            direction=residual + ratio * state.direction,
            is_convex=is_convex,
            num_hvps=state.num_hvps + 1,
        )

    start = Solution(jnp.zeros_like(side), side, side, jnp.array(True), jnp.array(0))
    return jax.lax.while_loop(should_continue, step, start)
