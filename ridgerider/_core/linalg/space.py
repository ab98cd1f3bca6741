r"""A growing subspace with its Ritz pairs: what every Hessian-vector-product engine here stands on.

A `Space` holds orthonormal rows V, the projected Hessian T = V H V^T, and images V H, in buffers of
fixed size, so that it lives inside compiled loops. With T s = theta s, the Ritz vector u = V^T s
has the residual |H u - theta u|, and some eigenvalue of H lies within that residual of theta.

Each row costs one Hessian-vector product (HVP), once. All images are held, or the last b of them:
in the Krylov space of b starting vectors row i + b is the image of row i, made orthonormal to all
rows before it, so images of earlier rows lie in the span of the rows, and T knows them.
"""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ridgerider._core.problem.problem import Number, Scalar, Vector

Hvp = Callable[[Vector], Vector]


class Ritz(eqx.Module):
    """Ritz pairs, ascending; `coefficients[:, j]` are those of pair j in the rows of the space.

    Pairs that stand for empty rows of the buffer come last; `is_there` reads false for them.
    """

    eigenvalues: Float[Array, " m"]
    coefficients: Float[Array, "m m"]
    is_there: Bool[Array, " m"]

    @property
    def scale(self) -> Scalar:
        """The largest |Ritz value|: an estimate of the largest |eigenvalue| from below."""
        return jnp.max(jnp.abs(jnp.where(self.is_there, self.eigenvalues, 0)))


class Space(eqx.Module):
    """Orthonormal rows, those not yet filled zero, with what is known of the Hessian on them.

    The image of row i is in place i modulo the number of images held.
    """

    rows: Float[Array, "m n"]
    images: Float[Array, "b n"]
    matrix: Float[Array, "m m"]  # rows @ H @ rows.T, its upper triangle
    count: Int[Array, ""]  # where the next row goes

    @staticmethod
    def empty(max_rows: int, size: int, dtype: np.dtype, num_images: int | None = None) -> "Space":
        """Room for rows, and for an image of each or of the last `num_images` of them."""
        return Space(
            rows=jnp.zeros((max_rows, size), dtype),
            images=jnp.zeros((num_images or max_rows, size), dtype),
            matrix=jnp.zeros((max_rows, max_rows), dtype),
            count=jnp.array(0),
        )

    @staticmethod
    def krylov(starts: Float[Array, "b n"], max_rows: int) -> "Space":
        """The Krylov space of `starts` before its first row: see `extend`."""
        space = Space.empty(max_rows, starts.shape[1], starts.dtype, len(starts))
        return eqx.tree_at(lambda space: space.images, space, starts)

    def add(self, hvp: Hvp, vector: Vector, scale: Number = 0.0) -> "Space":
        """Orthonormalise `vector` against the rows and append it with its image.

        What lies in the space already is appended as a row of zeros, which no Ritz pair uses; so is
        what is rounding of numbers as large as `scale`.
        """
        row = unit_outside(self.rows, vector, scale)
        # A zero row needs no HVP, but a branch would cost more than it saves.
        image, rows = hvp(row), _put(self.rows, row, self.count)
        return Space(
            rows=rows,
            images=_put(self.images, image, self.count % len(self.images)),
            matrix=_put(self.matrix, rows @ image, self.count, axis=1),
            count=self.count + 1,
        )

    def add_all(self, hvp: Hvp, vectors: Float[Array, "j n"]) -> "Space":
        return jax.lax.fori_loop(
            0, len(vectors), lambda index, space: space.add(hvp, vectors[index]), self
        )

    def extend(self, hvp: Hvp) -> "Space":
        """Append the next vector of a Krylov space: the oldest of the images that are held."""
        num_images = len(self.images)
        # Behind the last vector of the space comes the rounding of the largest images.
        scale = jnp.where(self.count < num_images, 0, jnp.max(jnp.abs(self.matrix)))
        return self.add(hvp, self.images[self.count % num_images], scale)

    def ritz(self) -> Ritz:
        """The Ritz pairs of the space."""
        is_filled = jnp.sum(self.rows**2, axis=1) > 0.5
        matrix = jnp.where(is_filled[:, None] & is_filled[None, :], self._symmetric(), 0)
        above = 2 * jnp.sqrt(jnp.sum(matrix**2)) + 1  # beyond every Ritz value
        matrix = matrix + jnp.diag(jnp.where(is_filled, jnp.zeros_like(above), above))
        eigenvalues, coefficients = jnp.linalg.eigh(matrix)
        is_there = jnp.arange(len(eigenvalues)) < jnp.sum(is_filled)
        return Ritz(eigenvalues, coefficients, is_there)

    def residuals(self, coefficients: Float[Array, "m j"]) -> Float[Array, " j"]:
        """|H u - (u . H u) u| of each unit vector u, given by its coefficients in the rows."""
        images = self._symmetric() @ coefficients
        inside = images - jnp.sum(coefficients * images, axis=0)[None, :] * coefficients
        # The image in place p belongs to the last row whose number is p modulo their number.
        size = len(self.images)
        last = self.count - 1 - (self.count - 1 - jnp.arange(size)) % size
        beyond = outside(self.rows, self.images)
        gram = beyond @ beyond.T
        squares = jnp.sum(coefficients[last] * (gram @ coefficients[last]), axis=0)
        return jnp.sqrt(jnp.sum(inside**2, axis=0) + jnp.maximum(squares, 0))

    def keep(self, ritz: Ritz, num_kept: int) -> "Space":
        """The space spanned by the first few Ritz vectors only; it must hold all images."""
        kept = ritz.coefficients[:, :num_kept].T
        values = jnp.where(jnp.arange(len(self.rows)) < num_kept, ritz.eigenvalues, 0)
        return Space(
            rows=jnp.zeros_like(self.rows).at[:num_kept].set(kept @ self.rows),
            images=jnp.zeros_like(self.images).at[:num_kept].set(kept @ self.images),
            matrix=jnp.diag(values),
            count=jnp.array(num_kept),
        )

    def _symmetric(self) -> Float[Array, "m m"]:
        return self.matrix + self.matrix.T - jnp.diag(jnp.diagonal(self.matrix))


def krylov(hvp: Hvp, starts: Float[Array, "b n"], num_hvps: int) -> Space:
    """The Krylov space of one or more starting vectors, fully orthogonalised.

    From one start, exactly one vector of each eigenspace is in it: the projection of the start.
    """
    return jax.lax.fori_loop(
        0, num_hvps, lambda _, space: space.extend(hvp), Space.krylov(starts, num_hvps)
    )


def outside(rows: Float[Array, "m n"], vectors: Float[Array, "*j n"]) -> Float[Array, "*j n"]:
    """The part of a vector, or of each of several, outside the span of orthonormal rows."""
    first = vectors - (vectors @ rows.T) @ rows
    return first - (first @ rows.T) @ rows  # twice is enough


def unit_outside(rows: Float[Array, "m n"], vector: Vector, scale: Number = 0.0) -> Vector:
    """The unit vector along the part of `vector` outside the rows' span; zero if there is none.

    What is rounding of `vector`, or of numbers as large as `scale`, counts as none.
    """
    rest = outside(rows, vector)
    before, after = jnp.maximum(jnp.linalg.norm(vector), scale), jnp.linalg.norm(rest)
    # Rounding leaves about eps for each of n entries of a vector in the span.
    is_new = after > 10 * math.sqrt(len(vector)) * jnp.finfo(vector.dtype).eps * before
    return jnp.where(is_new, rest / jnp.where(is_new, after, 1), 0)


def _put(table: Array, line: Array, place: Int[Array, ""], axis: int = 0) -> Array:
    # Not `table.at[place].set(line)`: that is a scatter, which compiles much longer.
    return jax.lax.dynamic_update_index_in_dim(table, line, place, axis)
