"""The modes of a Hessian in a compiled program; `climb` has those of loops on the host."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ridgerider._core.problem.problem import Scalar
from ridgerider._core.spectra.spectrum import tolerance_of


class Modes(eqx.Module):
    """Eigenvalues, ascending, with unit rows.

    `is_null` marks the modes of a symmetry; curvature up to `cut` is rounding.
    """

    eigenvalues: Float[Array, " m"]
    rows: Float[Array, "m n"]
    is_null: Bool[Array, " m"]
    cut: Scalar


def modes_of(hessian: Float[Array, "n n"], null: Float[Array, "n k"]) -> Modes:
    """All modes; those that the columns `null` span come last."""
    if null.shape[1]:
        outside = hessian - null @ (null.T @ hessian)
        outside = outside - (outside @ null) @ null.T
        hessian = outside + 2 * jnp.linalg.norm(hessian) * null @ null.T  # above all others
    eigenvalues, columns = jnp.linalg.eigh(hessian)
    is_null = jnp.sum((null.T @ columns) ** 2, axis=0) > 0.5
    largest = jnp.max(jnp.where(is_null, 0, jnp.abs(eigenvalues)))
    cut = tolerance_of(None, hessian.dtype) * largest
    return Modes(eigenvalues, columns.T, is_null, cut)
