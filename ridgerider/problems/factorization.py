r"""Matrix factorisation: every stationary point known in closed form.

    L(U, V) = |U V^T - M|^2 / 2,   U and V with `rank` columns

is stationary exactly where U V^T keeps some of the singular directions of M; there L = sum of the
dropped sigma^2, over 2. It is a minimum if the `rank` largest are kept and a saddle otherwise. At
the origin the eigenvalues are +-sigma_i, each `rank` times: U -> U R, V -> V R with R orthogonal
changes nothing.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ridgerider._core.problem.problem import Problem


def factorization_loss(
    params: dict[str, Float[Array, "..."]], target: Float[Array, "rows columns"]
) -> Float[Array, ""]:
    return jnp.sum((params["u"] @ params["v"].T - target) ** 2) / 2


def factorization(
    singular_values: tuple[float, ...] = (3.0, 2.0, 1.0), rank: int = 1, seed: int = 0
) -> Problem:
    """Factorise a random square matrix with the given singular values, starting from the origin.

    >>> problem = factorization((3.0, 2.0, 1.0), rank=2)
    >>> problem.size, round(float(problem.value(problem.x0)), 4)
    (12, 7.0)
    """
    size = len(singular_values)
    if not 1 <= rank <= size:
        raise ValueError(
            f"`rank` must be between 1 and the number of singular values {size}, not {rank!r}."
        )
    random = np.random.default_rng(seed)
    left, right = (np.linalg.qr(random.normal(size=(size, size)))[0] for _ in range(2))
    target = jnp.asarray(left * np.asarray(singular_values) @ right.T)
    zeros = jnp.zeros((size, rank), target.dtype)
    return Problem(factorization_loss, {"u": zeros, "v": zeros}, target)


def stationary_losses(singular_values: tuple[float, ...], rank: int) -> list[float]:
    """The losses at all stationary points, lowest first; the lowest one is that of the minima.

    >>> stationary_losses((3.0, 2.0, 1.0), rank=1)
    [2.5, 5.0, 6.5, 7.0]
    """
    squares = np.asarray(singular_values) ** 2 / 2
    kept = np.stack(np.meshgrid(*[(0, 1)] * len(squares), indexing="ij"), axis=-1).reshape(
        -1, len(squares)
    )
    return sorted({float(squares @ (1 - row)) for row in kept if row.sum() <= rank})
