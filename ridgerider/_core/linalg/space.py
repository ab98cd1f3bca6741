r"""A growing subspace with its Ritz pairs: what every Hessian-vector-product engine here stands on.

A `Space` holds orthonormal rows V, the projected Hessian T = V H V^T, and images V H, in buffers of
fixed size, so that it lives inside compiled loops. With T s = theta s, the Ritz vector u = V^T s
has the residual |H u - theta u|, and some eigenvalue of H lies within that residual of theta.

Each row costs one Hessian-vector product (HVP), once. A `Krylov` space holds the last image alone:
each row is the image of the one before it, made orthonormal to all rows, so images of earlier rows
lie in the span of the rows, and T knows them.
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
    """Orthonormal rows, those not yet filled zero, with what is known of the Hessian on them."""

    rows: Float[Array, "m n"]
    images: Float[Array, "b n"]
    matrix: Float[Array, "m m"]  # rows @ H @ rows.T, its upper triangle
    is_filled: Bool[Array, " m"]
    count: Int[Array, ""]  # where the next row goes

    @staticmethod
    def empty(max_rows: int, size: int, dtype: np.dtype) -> "Space":
        """Room for rows with their images."""
        rows, matrix = (jnp.zeros((max_rows, width), dtype) for width in (size, max_rows))
        return Space(rows, rows, matrix, jnp.zeros(max_rows, bool), jnp.array(0))

    def add(self, hvp: Hvp, vector: Vector) -> "Space":
        """Orthonormalise `vector` against the rows and append it with its image.

        What lies in the space already is appended as a row of zeros, which no Ritz pair uses.
        """
        row = unit_outside(self.rows, vector)
        # A zero row needs no HVP, but a branch would cost more than it saves.
        image, rows = hvp(row), _put(self.rows, row, self.count)
        images = _put(self.images, image, self.count)
        matrix = _put(self.matrix, rows @ image, self.count, axis=1)
        is_filled = _put(self.is_filled, jnp.any(row != 0), self.count)
        return Space(rows, images, matrix, is_filled, self.count + 1)

    def ritz(self) -> Ritz:
        """The Ritz pairs of the space."""
        is_filled = self.is_filled
        matrix = jnp.where(is_filled[:, None] & is_filled[None, :], self._symmetric(), 0)
        above = 2 * jnp.sqrt(jnp.sum(matrix**2)) + 1  # beyond every Ritz value
        matrix = matrix + jnp.diag(jnp.where(is_filled, jnp.zeros_like(above), above))
        eigenvalues, coefficients = jnp.linalg.eigh(matrix)
        is_there = jnp.arange(len(eigenvalues)) < jnp.sum(is_filled)
        return Ritz(eigenvalues, coefficients, is_there)

    def _symmetric(self) -> Float[Array, "m m"]:
        return self.matrix + self.matrix.T - jnp.diag(jnp.diagonal(self.matrix))


class Krylov(Space):
    """The Krylov space of a vector. `images` is one row: of the last image, what is outside.

    Before the first row it is the vector itself.
    """

    @staticmethod
    def of(start: Vector, max_rows: int) -> "Krylov":
        space = Space.empty(max_rows, start.size, start.dtype)
        return Krylov(space.rows, start[None], space.matrix, space.is_filled, space.count)

    @property
    def next_row(self) -> Vector:
        """What is next, orthonormal to the rows; zero if the space is exhausted."""
        # Behind the last vector of the space comes the rounding of the largest images.
        scale = jnp.where(self.count == 0, 0, jnp.max(jnp.abs(self.matrix)))
        return unit_outside(self.rows[:0], self.images[0], scale)  # it is outside already

    def extend(self, hvp: Hvp, row: Vector | None = None) -> "Krylov":
        """Append the next row, or this one; if the space is exhausted a row of zeros."""
        row = self.next_row if row is None else row
        rows = _put(self.rows, row, self.count)
        column, rest = self._reduced(rows, hvp(row))
        matrix = _put(self.matrix, column, self.count, axis=1)
        is_filled = _put(self.is_filled, jnp.any(row != 0), self.count)
        return Krylov(rows, rest[None], matrix, is_filled, self.count + 1)

    def _reduced(self, rows: Float[Array, "m n"], image: Vector) -> tuple[Array, Vector]:
        """The coefficients of the last row's image in the rows, and the part of it outside.

        The image has a part along the last two rows alone, but for the first one after a restart,
        and for rounding. What is left is reduced by all rows, once more as long as
        that takes away more than rounding: errors of orthogonality would grow from row to row.
        """
        place = jnp.maximum(self.count - 1, 0)
        near = jax.lax.dynamic_slice_in_dim(rows, place, min(2, len(rows)))
        along = near @ image
        column = jax.lax.dynamic_update_slice_in_dim(self.matrix[0] * 0, along, place, 0)
        most = float(jnp.finfo(rows.dtype).eps) ** 0.5

        def again(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            column, rest, _ = state
            along = rows @ rest
            rest = rest - along @ rows
            is_open = jnp.linalg.norm(along) > most * jnp.linalg.norm(rest)
            return column + along, rest, is_open

        start = (column, image - along @ near, jnp.array(True))
        return jax.lax.while_loop(lambda state: state[2], again, start)[:2]

    def beyond(self, coefficients: Float[Array, "m j"]) -> Float[Array, "j n"]:
        """The parts outside the space of the images of vectors, given by their coefficients."""
        return coefficients[self.count - 1][:, None] * self.images

    def residuals(self, coefficients: Float[Array, "m j"]) -> Float[Array, " j"]:
        """|H u - (u . H u) u| of each unit vector u, given by its coefficients in the rows."""
        images = self._symmetric() @ coefficients
        inside = images - jnp.sum(coefficients * images, axis=0)[None, :] * coefficients
        squares = coefficients[self.count - 1] ** 2 * jnp.sum(self.images**2)
        return jnp.sqrt(jnp.sum(inside**2, axis=0) + squares)

    def keep(self, ritz: Ritz, num_kept: int) -> "Krylov":
        """The space of the first few Ritz vectors only."""
        kept = ritz.coefficients[:, :num_kept].T
        values = jnp.where(jnp.arange(len(self.rows)) < num_kept, ritz.eigenvalues, 0)
        return Krylov(
            rows=jnp.zeros_like(self.rows).at[:num_kept].set(kept @ self.rows),
            images=self.images,
            matrix=jnp.diag(values),
            is_filled=ritz.is_there & (jnp.arange(len(self.rows)) < num_kept),
            count=jnp.array(num_kept),
        )


def krylov(hvp: Hvp, start: Vector, num_hvps: int) -> Krylov:
    """The Krylov space of a vector, fully orthogonalised.

    Exactly one vector of each eigenspace is in it: the projection of the start.
    """
    return jax.lax.fori_loop(
        0, num_hvps, lambda _, space: space.extend(hvp), Krylov.of(start, num_hvps)
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
