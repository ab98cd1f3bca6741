r"""Independent double wells: 2^n minima with known positions.

    L(x) = sum_i x_i^4 / 4 - depth_i x_i^2 / 2

has its maximum at 0 with eigenvalues -depth_i, and minima at x_i = +-sqrt(depth_i), each with L =
-sum_i depth_i^2 / 4 and eigenvalues 2 depth_i.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ridgerider._check import Count, checked
from ridgerider._core.problem.problem import Problem


def wells_loss(x: Float[Array, " n"], depths: Float[Array, " n"]) -> Float[Array, ""]:
    return jnp.sum(x**4 / 4 - depths * x**2 / 2)


@checked
def wells(num_wells: Count = 3) -> Problem:
    """`num_wells` double wells with depths from 0.5 to 1.5, so that no eigenvalue repeats.

    >>> wells(4).size
    4
    """
    return Problem(wells_loss, jnp.zeros(num_wells), jnp.linspace(0.5, 1.5, num_wells))


def wells_minima(problem: Problem) -> Float[np.ndarray, "2**n n"]:
    """All minima of a `wells` problem.

    >>> wells_minima(wells(3)).shape
    (8, 3)
    """
    (depths,) = problem.args
    signs = np.stack(np.meshgrid(*[(-1, 1)] * len(depths), indexing="ij"), axis=-1)
    return signs.reshape(-1, len(depths)) * np.sqrt(np.asarray(depths))
