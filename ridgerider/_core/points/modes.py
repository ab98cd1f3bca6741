r"""The modes of the Hessian in which a step is taken, and how long a step may be.

Modes are eigenvectors or, without a matrix, Ritz vectors of a small space that contains all of the
gradient. A step is a length along each of them. No mode moves by more than the *radius*, which
grows and shrinks with how well the Hessian predicts the next gradient.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ridgerider._core.linalg.space import Space
from ridgerider._core.problem.problem import Number, Scalar, Vector
from ridgerider._core.spectra.spectrum import tolerance_of


class Modes(eqx.Module):
    """Eigenvalues, ascending, with unit rows and residuals |H e - lambda e|.

    `is_null` marks the modes of a symmetry and rows that are not there, which are zero; curvature
    up to `cut` is rounding.
    """

    eigenvalues: Float[Array, " m"]
    rows: Float[Array, "m n"]
    residuals: Float[Array, " m"]
    is_null: Bool[Array, " m"]
    cut: Scalar

    @property
    def scale(self) -> Scalar:
        return jnp.max(jnp.abs(self.eigenvalues))

    @property
    def is_down(self) -> Bool[Array, " m"]:
        """Those that curve downwards."""
        return self.eigenvalues < -self.cut

    @property
    def is_curved(self) -> Bool[Array, " m"]:
        return jnp.abs(self.eigenvalues) > self.cut

    def change(self, parts: Float[Array, " m"]) -> Vector:
        """How a step with these parts changes the gradient."""
        return (self.eigenvalues * parts) @ self.rows


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
    return Modes(eigenvalues, columns.T, jnp.zeros_like(eigenvalues), is_null, cut)


def ritz_modes(space: Space) -> Modes:
    """The Ritz pairs of a space."""
    ritz = space.ritz()
    values = jnp.where(ritz.is_there, ritz.eigenvalues, 0)
    mix = jnp.where(ritz.is_there[:, None], ritz.coefficients.T, 0)
    rows = mix @ space.rows
    residuals = jnp.linalg.norm(mix @ space.images - values[:, None] * rows, axis=1)
    cut = tolerance_of(None, rows.dtype) * jnp.max(jnp.abs(values))
    return Modes(values, rows, residuals, ~ritz.is_there, cut)


def prediction_error(grad: Vector, new: Vector, change: Vector) -> Scalar:
    """|new - grad - change|, relative to the gradient or its change, whichever is the larger."""
    most = jnp.maximum(jnp.linalg.norm(change), jnp.linalg.norm(grad))
    return jnp.linalg.norm(new - grad - change) / jnp.maximum(most, jnp.finfo(grad.dtype).tiny)


def next_radius(
    radius: Scalar,
    error: Scalar,
    is_taken: Bool[Array, ""],
    is_good: Bool[Array, ""],
    grow: float,
    shrink: float,
    most: Number,
) -> Scalar:
    """The radius grown after a good step, up to `most`, kept after a fair one, or shrunk.

    It shrinks if a step was not taken, or if no change of the gradient was as good a prediction.
    """
    longer = jnp.where(is_good, jnp.minimum(grow * radius, most), radius)
    return jnp.where(is_taken & ~(error > 1), longer, radius / shrink)
