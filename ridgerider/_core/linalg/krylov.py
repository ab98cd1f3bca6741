r"""Rayleigh-Ritz in a growing subspace: what every Hessian-vector-product engine here stands on.

A `Space` holds orthonormal rows V and their images W = V H in buffers of fixed size, so that it
lives inside compiled loops. Its Ritz pairs are the eigenpairs of H as seen from the space: with
V H V^T s = theta s, the vector u = V^T s has the residual |H u - theta u|, and some eigenvalue of H
lies within that residual of theta.

Images are kept, so each vector costs one Hessian-vector product once. (JAX's LOBPCG applies the
operator to 4 k vectors in each of its iterations, here a round costs one product.)
"""

import dataclasses
import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ridgerider._core.linalg.probe import outside, probe
from ridgerider._core.problem.problem import Number, Scalar, Vector

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

    def add(self, product: Product, vector: Vector, scale: Number = 0.0) -> "Space":
        """Orthonormalise `vector` against the rows and append it with its image.

        What lies in the space already is appended as a row of zeros, which no Ritz pair uses; so is
        what is rounding of numbers as large as `scale`.
        """
        row = unit_outside(self.rows, vector, scale)
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

    def add(index: Int[Array, ""], space: Space) -> Space:
        # Behind the last vector of the Krylov space comes the rounding of the largest images.
        scale = jnp.max(jnp.linalg.norm(space.images, axis=1))
        return space.add(product, space.images[index - 1], scale)

    empty = Space.empty(num_hvps, len(start), start.dtype).add(product, start)
    return jax.lax.fori_loop(1, num_hvps, add, empty)


def unit_outside(rows: Float[Array, "m n"], vector: Vector, scale: Number = 0.0) -> Vector:
    """The unit vector along the part of `vector` outside the rows' span; zero if there is none.

    What is rounding of `vector`, or of numbers as large as `scale`, counts as none.
    """
    second = outside(rows, vector)
    before, after = jnp.maximum(jnp.linalg.norm(vector), scale), jnp.linalg.norm(second)
    # Rounding leaves about eps for each of n entries of a vector in the span.
    is_new = after > 10 * math.sqrt(len(vector)) * jnp.finfo(vector.dtype).eps * before
    return jnp.where(is_new, second / jnp.where(is_new, after, 1), 0)


class Pairs(eqx.Module):
    """Eigenpairs with what is known about them, and the largest |eigenvalue| seen on the way.

    What is outside of the rows has no eigenvalue at or below `floor`: see `lowest_pairs`.
    """

    eigenvalues: Float[Array, " k"]
    rows: Float[Array, "k n"]
    remainders: Float[Array, "k n"]  # H e - eigenvalue e
    scale: Scalar
    num_hvps: Int[Array, ""]
    floor: Scalar

    @property
    def residuals(self) -> Float[Array, " k"]:
        return jnp.linalg.norm(self.remainders, axis=1)

    @property
    def coupling(self) -> Scalar:
        """A bound on |R|^2, R the remainders: the largest sum of a row of R R^T."""
        return jnp.max(jnp.sum(jnp.abs(self.remainders @ self.remainders.T), axis=1))

    def is_converged(self, tolerance: Number) -> Bool[Array, " k"]:
        return self.residuals <= tolerance * self.scale

    def is_complete(self, labels: Int[Array, " k"], width: Number) -> Bool[Array, " k"]:
        """Whether all eigenvalues in a pair's cluster, and all below, are among the pairs.

        Ritz values are not below the eigenvalues, and an eigenvalue is not below its Ritz value by
        more than the square of all residuals over its distance to `floor`: H - x has as many
        negative eigenvalues as its Schur complement, where the residuals R couple the rows to what
        is outside, and R^T (H_outside - x)^-1 R <= |R|^2 / (floor - x).

        So clusters are complete that stay what they are, whichever eigenvalues those are, also with
        twice the width: `scale` is an estimate from below.
        """
        width, rounding = width * self.scale, _rounding(self)
        same = labels[:, None] == labels[None, :]
        first = self.eigenvalues[jnp.argmax(same, axis=1)]
        last = jnp.max(jnp.where(same, self.eigenvalues[None, :], -jnp.inf), axis=1)
        is_above = labels[None, :] > labels[:, None]
        above = jnp.min(jnp.where(is_above, self.eigenvalues[None, :], jnp.inf), axis=1)
        edge = first + 2 * width + rounding
        is_inside = last - first + self.coupling / (self.floor - first) + rounding <= width
        is_apart = (edge < self.floor) & (edge + self.coupling / (self.floor - edge) < above)
        return jnp.cumprod(is_inside & is_apart).astype(bool)


def _rounding(pairs: Pairs) -> Scalar:
    return 20 * jnp.finfo(pairs.scale.dtype).eps * pairs.scale


def lowest_pairs(
    product: Product,
    start: Float[Array, "b n"],
    k: int,
    tolerance: Number,
    max_hvps: int,
    max_rows: int,
    key: PRNGKeyArray | None = None,
    width: Number = 0.0,
) -> Pairs:
    """The `k` lowest eigenpairs by Rayleigh-Ritz with thick restarts.

    Each round appends the residual of the lowest Ritz pair that has not converged. When `max_rows`
    rows are held, the lowest Ritz vectors are kept and the others dropped.

    All pairs may converge before a copy of a repeated eigenvalue has shown itself. With a `key`,
    the complement of the converged pairs is then probed with a fresh random vector (see
    `linalg.probe`). What it finds below them is added, and so on, until a probe finds
    nothing. A probe costs at most half of the products spent before. It leads to the highest
    `floor` it can, up to where a last cluster that is `width` times `scale` wide would be complete.
    """

    def look(space: Space, scale: Scalar, num_hvps: Int[Array, ""]) -> _State:
        ritz = space.ritz()
        lowest = ritz.coefficients[:, :k].T
        rows, images = lowest @ space.rows, lowest @ space.images
        remainders = images - ritz.eigenvalues[:k, None] * rows
        sizes = jnp.abs(jnp.where(ritz.is_there, ritz.eigenvalues, 0))
        pairs = Pairs(
            eigenvalues=ritz.eigenvalues[:k],
            rows=rows,
            remainders=remainders,
            scale=jnp.maximum(scale, jnp.max(sizes)),
            num_hvps=num_hvps,
            floor=jnp.full_like(scale, -jnp.inf),
        )
        is_converged = pairs.is_converged(tolerance)
        return _State(
            space, ritz, pairs, remainders[jnp.argmin(is_converged)], ~jnp.all(is_converged)
        )

    def go_on(state: _State) -> Bool[Array, ""]:
        is_finite = jnp.all(jnp.isfinite(state.pairs.eigenvalues))
        return state.has_next & is_finite & (state.pairs.num_hvps < max_hvps)

    def step(state: _State) -> _State:
        space = jax.lax.cond(
            state.space.count == max_rows,
            lambda: state.space.keep(state.ritz.coefficients[:, : (k + max_rows) // 2]),
            lambda: state.space,
        )
        space = space.add(product, state.next_vector)
        return look(space, state.pairs.scale, state.pairs.num_hvps + 1)

    def solve_and_probe(state: _State, key: PRNGKeyArray) -> _State:
        state = jax.lax.while_loop(go_on, step, state)
        pairs = state.pairs
        key = jax.random.fold_in(key, pairs.num_hvps)
        random = jax.random.normal(key, start.shape[1:], start.dtype)
        levels = _levels(pairs, tolerance, width)
        budget = jnp.minimum(pairs.num_hvps // 2, max_hvps - pairs.num_hvps)
        budget = jnp.where(state.has_next, 0, budget)
        probed = probe(product, pairs.rows, random, levels, pairs.scale, budget)
        pairs = dataclasses.replace(
            pairs,
            num_hvps=pairs.num_hvps + probed.num_hvps,
            floor=jnp.max(jnp.where(probed.is_clear, levels, -jnp.inf)),
        )
        has_next = state.has_next | probed.has_some[-1]
        return _State(state.space, state.ritz, pairs, probed.direction, has_next)

    space = Space.empty(max_rows, start.shape[1], start.dtype).add_all(product, start)
    state = look(space, jnp.zeros((), start.dtype), jnp.array(len(start)))
    if key is None:
        return jax.lax.while_loop(go_on, step, state).pairs
    return jax.lax.while_loop(
        lambda carry: go_on(carry[0]) | carry[2],
        lambda carry: (solve_and_probe(*carry[:2]), carry[1], jnp.array(False)),
        (state, key, jnp.array(True)),  # probe once in any case
    )[0].pairs


class _State(eqx.Module):
    """A space with its Ritz pairs, and the vector to add next if there is one."""

    space: Space
    ritz: Ritz
    pairs: Pairs
    next_vector: Vector
    has_next: Bool[Array, ""]


def _levels(pairs: Pairs, tolerance: Number, width: Number) -> Float[Array, " k+1"]:
    """Floors that would make each pair's cluster complete, then what is below the last pair."""
    rounding = _rounding(pairs)
    width = jnp.maximum(width * pairs.scale, rounding)
    # See `Pairs.is_complete`: the coupling then moves no eigenvalue by more than half of the width.
    distance = 3 * width + 2 * pairs.coupling / width
    lower = pairs.eigenvalues[-1:] - tolerance * pairs.scale - rounding
    return jnp.concatenate([pairs.eigenvalues + distance, lower])
