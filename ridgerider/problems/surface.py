r"""A two-dimensional loss shaped like the paper's Figure 1.

In bent coordinates u = x + sin(y) / 4, v = y,

    L = 2 (u^4 / 4 - u^2 / 2) + (v^4 / 72 - v^2 / 4) + u^2 v^2

has a maximum at the origin, curved four times as strongly along u as along v; local minima at (u,
v) = (+-1, 0) with L = -1/2, where gradient descent from near the origin ends; and global minima at
(0, +-3) with L = -9/8, at the end of the weak ridge. Both axes are stationary where they should be
because u and v appear squared only.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ridgerider._core.problem.problem import Problem

LOCAL_LOSS, GLOBAL_LOSS = -0.5, -1.125
BEND = 0.25


def surface_loss(params: Float[Array, "2"]) -> Float[Array, ""]:
    x, y = params
    u, v = x + BEND * jnp.sin(y), y
    return 2 * (u**4 / 4 - u**2 / 2) + (v**4 / 72 - v**2 / 4) + u**2 * v**2


def surface() -> Problem:
    """The loss above from its maximum.

    >>> float(surface().value(surface().x0))
    0.0
    """
    return Problem(surface_loss, jnp.zeros(2))


def surface_minima() -> Float[np.ndarray, "4 2"]:
    """The four minima, the two local ones first.

    >>> problem = surface()
    >>> [round(float(problem.value(jnp.asarray(x, problem.dtype))), 3) for x in surface_minima()]
    [-0.5, -0.5, -1.125, -1.125]
    """
    uv = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 3.0], [0.0, -3.0]])
    return uv - np.stack([BEND * np.sin(uv[:, 1]), np.zeros(4)], axis=1)
