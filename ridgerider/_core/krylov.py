r"""Rayleigh-Ritz in a growing subspace: what every Hessian-vector-product engine here stands on.

A `Space` holds orthonormal rows V and their images W = V H in buffers of fixed size, so that it
lives inside compiled loops. Its Ritz pairs are the eigenpairs of H as seen from the space: with
V H V^T s = theta s, the vector u = V^T s has the residual |H u - theta u|, and some eigenvalue of H
lies within that residual of theta.

Images are kept, so each vector costs one Hessian-vector product once. (JAX's LOBPCG applies the
operator to 4 k vectors in each of its iterations, here a round costs one product.)
"""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ridgerider._core.problem import Number, Scalar, Vector

Product = Callable[[Vector], Vector]


class Ritz(eqx.Module):
    """Ritz pairs, ascending; `coefficients[:, j]` are those of pair j in the rows of the space.

    Pairs that stand for empty rows of the buffer come last; `is_there` reads false for them.
    """

    eigenvalues: Float[Array, " m"]
    coefficients: Float[Array, "m m"]
    is_there: Bool[Array, " m"]


class Space(eqx.Module):
    """Orthonormal rows and their images under the Hessian; rows not yet filled are zero."""

    rows: Float[Array, "m n"]
    images: Float[Array, "m n"]
    count: Int[Array, ""]  # where the next row goes

    @staticmethod
    def empty(max_rows: int, size: int, dtype: np.dtype) -> "Space":
        zeros = jnp.zeros((max_rows, size), dtype)
        return Space(zeros, zeros, jnp.array(0))

    def add(self, product: Product, vector: Vector) -> "Space":
        """Orthonormalise `vector` against the rows and append it with its image.

        What lies in the space already is appended as a row of zeros, which no Ritz pair uses.
        """
        row = unit_outside(self.rows, vector)
        # A zero row needs no product, but a branch would cost more than it saves.
        return Space(
            rows=self.rows.at[self.count].set(row),
            images=self.images.at[self.count].set(product(row)),
            count=self.count + 1,
        )

    def add_all(self, product: Product, vectors: Float[Array, "j n"]) -> "Space":
        return jax.lax.fori_loop(
            0, len(vectors), lambda index, space: space.add(product, vectors[index]), self
        )

    def ritz(self) -> Ritz:
        """The Ritz pairs of the space."""
        matrix = self.rows @ self.images.T
        is_filled = jnp.sum(self.rows**2, axis=1) > 0.5
        matrix = jnp.where(is_filled[:, None] & is_filled[None, :], (matrix + matrix.T) / 2, 0)
        above = 2 * jnp.sqrt(jnp.sum(matrix**2)) + 1  # beyond every Ritz value
        matrix = matrix + jnp.diag(jnp.where(is_filled, jnp.zeros_like(above), above))
        eigenvalues, coefficients = jnp.linalg.eigh(matrix)
        is_there = jnp.arange(len(eigenvalues)) < jnp.sum(is_filled)
        return Ritz(eigenvalues, coefficients, is_there)

    def keep(self, coefficients: Float[Array, "m j"]) -> "Space":
        """The space spanned by the first few Ritz vectors only, given by their coefficients."""
        num_kept = coefficients.shape[1]
        return Space(
            rows=jnp.zeros_like(self.rows).at[:num_kept].set(coefficients.T @ self.rows),
            images=jnp.zeros_like(self.images).at[:num_kept].set(coefficients.T @ self.images),
            count=jnp.array(num_kept),
        )


def lanczos(product: Product, start: Vector, num_hvps: int) -> Space:
    """The Krylov space start, H start, ..., fully orthogonalised.

    Exactly one vector of each eigenspace is in it: the projection of `start`.
    """
    empty = Space.empty(num_hvps, len(start), start.dtype).add(product, start)
    return jax.lax.fori_loop(
        1, num_hvps, lambda index, space: space.add(product, space.images[index - 1]), empty
    )


def unit_outside(rows: Float[Array, "m n"], vector: Vector) -> Vector:
    """The unit vector along the part of `vector` outside the rows' span; zero if there is none."""
    first = vector - (rows @ vector) @ rows
    second = first - (rows @ first) @ rows  # twice is enough
    before, after = jnp.linalg.norm(vector), jnp.linalg.norm(second)
    # Rounding leaves about eps for each of n entries of a vector in the span.
    is_new = after > 10 * math.sqrt(len(vector)) * jnp.finfo(vector.dtype).eps * before
    return jnp.where(is_new, second / jnp.where(is_new, after, 1), 0)


class Pairs(eqx.Module):
    """Eigenpairs with what is known about them, and the largest |eigenvalue| seen on the way."""

    eigenvalues: Float[Array, " k"]
    rows: Float[Array, "k n"]
    residuals: Float[Array, " k"]
    scale: Scalar
    num_hvps: Int[Array, ""]


def lowest_pairs(
    product: Product,
    start: Float[Array, "b n"],
    k: int,
    tolerance: Number,
    max_hvps: int,
    max_rows: int,
) -> Pairs:
    """The `k` lowest eigenpairs by Rayleigh-Ritz with thick restarts.

    Each round appends the residual of the lowest Ritz pair that has not converged. Repeated
    eigenvalues are all seen, as many copies as `start` has rows. When `max_rows` rows are held, the
    lowest Ritz vectors are kept and the others dropped.
    """

    def look(space: Space, scale: Scalar, num_hvps: Int[Array, ""]) -> tuple[Ritz, Vector, Pairs]:
        ritz = space.ritz()
        lowest = ritz.coefficients[:, :k].T
        rows, images = lowest @ space.rows, lowest @ space.images
        remainders = images - ritz.eigenvalues[:k, None] * rows
        sizes = jnp.abs(jnp.where(ritz.is_there, ritz.eigenvalues, 0))
        pairs = Pairs(
            eigenvalues=ritz.eigenvalues[:k],
            rows=rows,
            residuals=jnp.linalg.norm(remainders, axis=1),
            scale=jnp.maximum(scale, jnp.max(sizes)),
            num_hvps=num_hvps,
        )
        return ritz, remainders[jnp.argmin(is_converged(pairs))], pairs

    def is_converged(pairs: Pairs) -> Bool[Array, " k"]:
        return pairs.residuals <= tolerance * pairs.scale

    def go_on(carry: tuple) -> Bool[Array, ""]:
        *_, pairs = carry
        is_finite = jnp.all(jnp.isfinite(pairs.eigenvalues))
        return ~jnp.all(is_converged(pairs)) & is_finite & (pairs.num_hvps < max_hvps)

    def step(carry: tuple) -> tuple:
        space, ritz, remainder, pairs = carry
        space = jax.lax.cond(
            space.count == max_rows,
            lambda: space.keep(ritz.coefficients[:, : (k + max_rows) // 2]),
            lambda: space,
        )
        space = space.add(product, remainder)
        return space, *look(space, pairs.scale, pairs.num_hvps + 1)

    space = Space.empty(max_rows, start.shape[1], start.dtype).add_all(product, start)
    scale, num_hvps = jnp.zeros((), start.dtype), jnp.array(len(start))
    *_, pairs = jax.lax.while_loop(go_on, step, (space, *look(space, scale, num_hvps)))
    return pairs
