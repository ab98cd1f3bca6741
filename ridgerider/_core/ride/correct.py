"""The valley corrector: relax what a ridge step has stirred up.

A step along a ridge disturbs stiff, positively curved directions, and on a network their gradient
piles up until the ride stalls. After each step the corrector takes a damped Newton step in those
directions only. Other downhill directions are left alone: the ridge decides which way to go.
"""

import equinox as eqx
import jax.numpy as jnp

from ridgerider._check import AtLeast0, Count, check_fields
from ridgerider._core.linalg.space import krylov
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Counted, Problem, Vector
from ridgerider._core.spectra.spectrum import Ridge


class Valley(eqx.Module):
    r"""A damped Newton step in the positively curved Ritz directions of a short Krylov space.

    With Ritz pairs (theta_j, u_j) of `num_hvps` HVPs from the gradient, the point moves by

        - size * sum over theta_j > 0 of (u_j . grad) / (theta_j + damping * max theta) u_j

    **Arguments**

    - `num_hvps`: the dimension of the Krylov space; as many vectors are held.
    - `damping`: relative to the largest Ritz value.
    - `size`: 1 is a full Newton step, less averages over batches.

    >>> import jax.numpy as jnp
    >>> from ridgerider import Problem
    >>> problem = Problem(lambda x: 5 * x[0] ** 2 - x[1] ** 2, jnp.array([0.3, 0.1]))
    >>> ridge = Ridge(jnp.array([0.0, 1.0]), jnp.array(-2.0), jnp.array(0), jnp.array(1))
    >>> x, cost = Valley(num_hvps=2, damping=0.0, size=1.0)(problem, problem.x0, ridge)
    >>> [abs(round(float(entry), 6)) for entry in x], cost.hvps
    ([0.0, 0.1], 2)
    """

    num_hvps: Count = eqx.field(static=True, default=10)
    damping: AtLeast0 = 0.005
    size: AtLeast0 = 0.5

    __check_init__ = check_fields

    @eqx.filter_jit
    def __call__(self, problem: Problem, x: Vector, ridge: Ridge) -> tuple[Vector, Cost]:
        counted = Counted(problem)
        grad = counted.grad(x)
        space = krylov(problem.hvp_at(x), grad, self.num_hvps)
        counted.charge(hvps=self.num_hvps)
        ritz = space.ritz()
        is_stiff = (ritz.eigenvalues > 0) & ritz.is_there
        largest = jnp.max(jnp.where(is_stiff, ritz.eigenvalues, 0))
        bottom = ritz.eigenvalues + self.damping * largest
        # The gradient is the first row times its length.
        along = jnp.linalg.norm(grad) * ritz.coefficients[0]
        newton = jnp.where(is_stiff, along / jnp.where(is_stiff, bottom, 1), 0)
        move = (ritz.coefficients @ newton) @ space.rows
        return x - self.size * move, counted.cost
