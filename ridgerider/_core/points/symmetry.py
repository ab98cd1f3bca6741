"""What leaves a loss unchanged: directions that generate it, and a signature that sees none of it.

At `x` the generators span the directions along which the loss is level (shifts, rotations). They
are projected out of Hessians, steps and kinds. The signature is the same array for all points that
a symmetry maps onto one another, and another one for all others.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ridgerider._check import came
from ridgerider._core.problem.problem import Problem, Vector


class Symmetry(eqx.Module):
    """Which points are equivalent; `ridgerider.symmetry` has common ones.

    **Arguments**

    - `generators(params)`: a sequence of pytrees like the parameters, the directions in which a
      continuous symmetry moves them; None if there is none.
    - `signature(params)`: an array that is equal for all copies of a point and different for all
      others, as continuous as the parameters; None compares parameters.
    - `copy(params, key)`: another copy of the point, drawn at random, to check the signature with;
      None checks along the generators only.

    >>> import jax.numpy as jnp
    >>> ring = Symmetry(lambda x: [jnp.stack([-x[1], x[0]])], lambda x: x @ x)
    >>> float(ring.signature(jnp.array([3.0, 4.0])))
    25.0
    """

    generators: Callable[[PyTree], Sequence[PyTree]] | None = None
    signature: Callable[[PyTree], Array] | None = None
    copy: Callable[[PyTree, Any], PyTree] | None = None


class PeriodSignature(eqx.Module):
    """Each parameter with a period as a point on a circle as long as that; 0: it has no period."""

    period: tuple[float, ...] = eqx.field(static=True)

    def __call__(self, params: PyTree) -> Array:
        x = ravel_pytree(params)[0]
        radius = np.array(self.period, x.dtype) / (2 * np.pi)
        angle = x / np.where(radius > 0, radius, 1)
        first = jnp.where(radius > 0, radius * jnp.cos(angle), x)
        return jnp.concatenate([first, radius * jnp.sin(angle)])


class PeriodCopy(eqx.Module):
    """The point some periods away."""

    period: tuple[float, ...] = eqx.field(static=True)

    def __call__(self, params: PyTree, key: Any) -> PyTree:
        x, unravel = ravel_pytree(params)
        shift = jax.random.randint(key, x.shape, -2, 3).astype(x.dtype)
        return unravel(x + shift * np.array(self.period, x.dtype))


def periodic(period: Sequence[float] | Float[np.ndarray, " n"]) -> Symmetry:
    """Parameters that are the same modulo a period, such as angles; 0 for one that has no period.

    >>> turn = periodic([2.0, 0.0])
    >>> bool(jnp.allclose(*(turn.signature(jnp.array([x, 1.0])) for x in (0.5, 4.5)), atol=1e-6))
    True
    """
    try:
        lengths = tuple(map(float, period))
    except (TypeError, ValueError):
        lengths = (-1.0,)
    if not all(0 <= length < np.inf for length in lengths):
        raise ValueError(
            f"`period` must be a length of at least 0 for each parameter, not {came(period)}."
        )
    return Symmetry(None, PeriodSignature(lengths), PeriodCopy(lengths))


def rows_at(problem: Problem, symmetry: Symmetry, x: Vector) -> Float[Array, "k n"]:
    """The generators as rows."""
    if symmetry.generators is None:
        return jnp.zeros((0, problem.size), x.dtype)
    rows = [problem.ravel(one) for one in symmetry.generators(problem.unravel(x))]
    return jnp.stack(rows) if rows else jnp.zeros((0, problem.size), x.dtype)


def orthonormal(problem: Problem, symmetry: Symmetry | None, x: Vector) -> Float[Array, "n k"]:
    """Columns that span the generators; those too many, as for atoms on a line, are zero."""
    if symmetry is None or symmetry.generators is None:
        return jnp.zeros((problem.size, 0), x.dtype)
    rows = rows_at(problem, symmetry, x)
    sizes, mix = jnp.linalg.eigh(rows @ rows.T)
    is_there = sizes > 1e-6 * jnp.max(sizes)
    weights = jnp.where(is_there, 1 / jnp.sqrt(jnp.where(is_there, sizes, 1)), 0)
    return rows.T @ (mix * weights[None, :])
