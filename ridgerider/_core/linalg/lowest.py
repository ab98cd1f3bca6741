"""The lowest eigenpairs without a matrix, by Rayleigh-Ritz with thick restarts and probes."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ridgerider._core.linalg.probe import probe
from ridgerider._core.linalg.space import Hvp, Ritz, Space
from ridgerider._core.problem.problem import Number, Scalar, Vector


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

    @property
    def rounding(self) -> Scalar:
        return 20 * jnp.finfo(self.scale.dtype).eps * self.scale

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
        width, rounding = width * self.scale, self.rounding
        same = labels[:, None] == labels[None, :]
        first = self.eigenvalues[jnp.argmax(same, axis=1)]
        last = jnp.max(jnp.where(same, self.eigenvalues[None, :], -jnp.inf), axis=1)
        is_above = labels[None, :] > labels[:, None]
        above = jnp.min(jnp.where(is_above, self.eigenvalues[None, :], jnp.inf), axis=1)
        edge = first + 2 * width + rounding
        is_inside = last - first + self.coupling / (self.floor - first) + rounding <= width
        is_apart = (edge < self.floor) & (edge + self.coupling / (self.floor - edge) < above)
        return jnp.cumprod(is_inside & is_apart).astype(bool)


class _State(eqx.Module):
    """A space with its Ritz pairs, and the vector to add next if there is one."""

    space: Space
    ritz: Ritz
    pairs: Pairs
    next_vector: Vector
    has_next: Bool[Array, ""]


def lowest_pairs(
    hvp: Hvp,
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
    nothing. A probe costs at most half of the HVPs spent before. It leads to the highest
    `floor` it can, up to where a last cluster that is `width` times `scale` wide would be complete.
    """

    def solved(space: Space, scale: Scalar, num_hvps: Int[Array, ""]) -> _State:
        ritz = space.ritz()
        lowest = ritz.coefficients[:, :k].T
        rows, images = lowest @ space.rows, lowest @ space.images
        pairs = Pairs(
            eigenvalues=ritz.eigenvalues[:k],
            rows=rows,
            remainders=images - ritz.eigenvalues[:k, None] * rows,
            scale=jnp.maximum(scale, ritz.scale),
            num_hvps=num_hvps,
            floor=jnp.full_like(scale, -jnp.inf),
        )
        is_converged = pairs.is_converged(tolerance)
        next_vector = pairs.remainders[jnp.argmin(is_converged)]
        return _State(space, ritz, pairs, next_vector, ~jnp.all(is_converged))

    def should_continue(state: _State) -> Bool[Array, ""]:
        is_finite = jnp.all(jnp.isfinite(state.pairs.eigenvalues))
        return state.has_next & is_finite & (state.pairs.num_hvps < max_hvps)

    def step(state: _State) -> _State:
        space = state.space.add(hvp, state.next_vector)
        return solved(space, state.pairs.scale, state.pairs.num_hvps + 1)

    def fill(state: _State) -> _State:
        # Restarts are not in the loop over HVPs, where a branch would copy the space each time.
        space = jax.lax.cond(
            state.space.count == max_rows,
            lambda: state.space.keep(state.ritz, (k + max_rows) // 2),
            lambda: state.space,
        )
        return jax.lax.while_loop(
            lambda state: should_continue(state) & (state.space.count < max_rows),
            step,
            dataclasses.replace(state, space=space),
        )

    def solve_and_probe(state: _State, key: PRNGKeyArray) -> _State:
        state = jax.lax.while_loop(should_continue, fill, state)
        pairs = state.pairs
        key = jax.random.fold_in(key, pairs.num_hvps)
        random = jax.random.normal(key, start.shape[1:], start.dtype)
        # Floors that would make each pair's cluster complete: by `Pairs.is_complete` the coupling
        # then moves no eigenvalue by more than half of the width. Then what is below the last pair.
        wide = jnp.maximum(width * pairs.scale, pairs.rounding)
        distance = 3 * wide + 2 * pairs.coupling / wide
        lower = pairs.eigenvalues[-1:] - tolerance * pairs.scale - pairs.rounding
        levels = jnp.concatenate([pairs.eigenvalues + distance, lower])
        budget = jnp.minimum(pairs.num_hvps // 2, max_hvps - pairs.num_hvps)
        budget = jnp.where(state.has_next, 0, budget)
        probed = probe(hvp, pairs.rows, random, levels, pairs.scale, budget)
        pairs = dataclasses.replace(
            pairs,
            num_hvps=pairs.num_hvps + probed.num_hvps,
            floor=jnp.max(jnp.where(probed.is_clear, levels, -jnp.inf)),
        )
        has_next = state.has_next | probed.has_some[-1]
        return _State(state.space, state.ritz, pairs, probed.direction, has_next)

    space = Space.empty(max_rows, start.shape[1], start.dtype).add_all(hvp, start)
    state = solved(space, jnp.zeros((), start.dtype), jnp.array(len(start)))
    if key is None:
        return jax.lax.while_loop(should_continue, fill, state).pairs
    return jax.lax.while_loop(
        lambda carry: should_continue(carry[0]) | carry[2],
        lambda carry: (solve_and_probe(*carry[:2]), carry[1], jnp.array(False)),
        (state, key, jnp.array(True)),  # probe once in any case
    )[0].pairs
