r"""The lowest eigenpairs without a matrix, by Rayleigh-Ritz with thick restarts and probes.

Is anything missing below? A random vector tells, with a probability that can be stated.

Let rows S be given, and let C be the Hessian restricted to their orthogonal complement, of
dimension N. Lanczos on C from a uniformly random unit vector v gives orthogonal polynomials p_0,
p_1, ... of the measure that weighs each eigenvalue of C with the square of v's part in its
eigenspace. If an eigenvalue lies at or below a level t, and no Ritz value does, then

    weight <= 1 / sum_i p_i(t)^2,

since q(eigenvalue)^2 * weight <= |q(C) v|^2 for each polynomial q, and p_i^2 grows to the left of
the Ritz values. A fixed unit vector has a square weight below w in v with a probability of at most
sqrt(2 N w / pi). So once the sum has reached 2 N / (pi P^2), either nothing lies at or below t or
something of a probability P has happened. This holds after whichever number of steps one looks.

With the pivots D of T - t, where T is the tridiagonal matrix of Lanczos, p_{i+1} / p_i = -D / beta.
A pivot that is not positive means that a Ritz value, hence an eigenvalue of C, lies at or below t.
The recurrence needs three vectors, whatever the number of steps: the loss of orthogonality repeats
Ritz values, and moves none of them beyond the spectrum.
"""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ridgerider._core.linalg.space import Hvp, Krylov, Ritz, outside, unit_outside
from ridgerider._core.problem.problem import Number, Scalar, Vector

# With what probability one probe overlooks an eigenvalue.
PROBABILITY = 1e-4


class Probe(eqx.Module):
    """The state of a probe of the levels t: what was found at or below each of them.

    `is_clear`: surely nothing. `has_some`: surely something; for the last of the levels `direction`
    then has a Rayleigh quotient at or below it. Neither: it was not seen to the end.
    """

    row: Vector
    last_row: Vector
    beta: Scalar
    direction: Vector
    pivots: Float[Array, " t"]
    powers: Float[Array, " t"]  # p_i(t)^2
    sums: Float[Array, " t"]
    is_clear: Bool[Array, " t"]
    has_some: Bool[Array, " t"]
    is_exhausted: Bool[Array, ""]
    num_hvps: Int[Array, ""]


def probe(
    hvp: Hvp,
    rows: Float[Array, "k n"],
    random: Vector,
    levels: Float[Array, " t"],
    scale: Scalar,
    max_hvps: Int[Array, ""],
) -> Probe:
    """Look for eigenvalues outside `rows` at or below each of the levels.

    `random` is a vector of independent standard normal entries, drawn for this probe alone. Done
    once all levels are decided, or once something was found below the last of them.
    """
    size = len(random)
    needed = 2 * size / (math.pi * PROBABILITY**2)
    rounding = 10 * jnp.finfo(random.dtype).eps * scale

    def should_continue(state: Probe) -> Bool[Array, ""]:
        is_open = ~jnp.all(state.is_clear | state.has_some) & ~state.has_some[-1]
        return is_open & ~state.is_exhausted & (state.num_hvps < max_hvps)

    def step(state: Probe) -> Probe:
        image = hvp(state.row)
        alpha = state.row @ image
        image = image - alpha * state.row - state.beta * state.last_row
        image = image - (rows @ image) @ rows
        beta = jnp.linalg.norm(image)
        pivots = alpha - levels - state.beta**2 / state.pivots
        has_some = state.has_some | ~(pivots > 0)
        is_decided = state.is_clear | has_some
        # Where less than rounding is left, no more than that is known of it.
        growth = (pivots / jnp.maximum(beta, rounding)) ** 2
        powers = state.powers * jnp.where(is_decided, 1, growth)  # else it would overflow
        sums = state.sums + powers
        return Probe(
            row=image / jnp.where(beta > 0, beta, 1),
            last_row=state.row,
            beta=beta,
            direction=state.row - state.beta / state.pivots[-1] * state.direction,
            pivots=pivots,
            powers=powers,
            sums=sums,
            is_clear=state.is_clear | (~is_decided & (sums >= needed)),
            has_some=has_some & ~state.is_clear,
            is_exhausted=~(beta > rounding),
            num_hvps=state.num_hvps + 1,
        )

    first = outside(rows, random)
    ones, no = jnp.ones_like(levels), jnp.zeros(levels.shape, bool)
    start = Probe(
        row=first / jnp.linalg.norm(first),
        last_row=jnp.zeros_like(random),
        beta=jnp.zeros((), random.dtype),
        direction=jnp.zeros_like(random),
        pivots=ones,
        powers=ones,
        sums=ones,
        is_clear=no,
        has_some=no,
        is_exhausted=jnp.array(False),
        num_hvps=jnp.array(0),
    )
    return jax.lax.while_loop(should_continue, step, start)


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
    """A space with its Ritz pairs.

    The first rows of the space may be pairs of an earlier one. They lead on to `remainders`, of
    which the rows now have the shares `mix`.
    """

    space: Krylov
    ritz: Ritz
    scale: Scalar
    num_hvps: Int[Array, ""]
    has_next: Bool[Array, ""]
    mix: Float[Array, "m k"]
    remainders: Float[Array, "k n"]

    def pairs(self) -> Pairs:
        k, coefficients = len(self.remainders), self.ritz.coefficients
        lowest = coefficients[:, :k]
        earlier = (lowest.T @ self.mix) @ self.remainders
        remainders = self.space.beyond(lowest) + outside(self.space.rows, earlier)
        floor = jnp.full_like(self.scale, -jnp.inf)
        rows, values = lowest.T @ self.space.rows, self.ritz.eigenvalues[:k]
        return Pairs(values, rows, remainders, self.scale, self.num_hvps, floor)


def lowest_pairs(
    hvp: Hvp,
    start: Vector,
    k: int,
    tolerance: Number,
    max_hvps: int,
    max_rows: int,
    key: PRNGKeyArray,
    width: Number = 0.0,
) -> Pairs:
    """The `k` lowest eigenpairs from the Krylov space of `start`, with thick restarts and probes.

    When `max_rows` rows are held, the lowest Ritz vectors are kept and the others dropped. Where
    the space is exhausted it continues with a random vector.

    Such a space finds one copy of a repeated eigenvalue. So the complement of the converged pairs
    is probed with a fresh random vector (see `probe`). If something lies below the last of
    them, the space starts again from the pairs and what was found, and so on, until a probe finds
    nothing. A probe costs at most as many HVPs as were spent before. It leads to the highest
    `floor` it can, up to where a last cluster that is `width` times `scale` wide would be complete.
    """
    dtype = start.dtype

    def solved(state: _State, space: Krylov, num_hvps: Int[Array, ""]) -> _State:
        ritz = space.ritz()
        scale = jnp.maximum(state.scale, ritz.scale)
        # Half, since the remainders of earlier pairs are added to these.
        is_good = space.residuals(ritz.coefficients[:, :k]) <= tolerance / 2 * scale
        has_next = ~(jnp.all(is_good) & ritz.is_there[k - 1])
        return _State(space, ritz, scale, num_hvps, has_next, state.mix, state.remainders)

    def should_continue(state: _State) -> Bool[Array, ""]:
        is_finite = jnp.all(jnp.isfinite(state.ritz.eigenvalues))
        return state.has_next & is_finite & (state.num_hvps < max_hvps)

    def step(state: _State) -> _State:
        row = state.space.next_row
        row = jax.lax.cond(
            jnp.any(row != 0), lambda: row, lambda: unit_outside(state.space.rows, random(state))
        )
        return solved(state, state.space.extend(hvp, row), state.num_hvps + 1)

    def random(state: _State) -> Vector:
        return jax.random.normal(jax.random.fold_in(key, state.num_hvps), start.shape, dtype)

    def fill(state: _State) -> _State:
        # Restarts are not in the loop over HVPs, where a branch would copy the space each time.
        num_kept = (k + max_rows) // 2

        def restart() -> _State:
            rows, old = state.space.rows, state.remainders
            kept = state.ritz.coefficients[:, :num_kept].T @ state.mix
            return dataclasses.replace(
                state,
                space=state.space.keep(state.ritz, num_kept),
                mix=jnp.zeros_like(state.mix).at[:num_kept].set(kept),
                remainders=jax.lax.cond(
                    jnp.any(kept != 0), lambda: outside(rows, old), lambda: old
                ),
            )

        return jax.lax.while_loop(
            lambda state: should_continue(state) & (state.space.count < max_rows),
            step,
            jax.lax.cond(state.space.count == max_rows, restart, lambda: state),
        )

    def solve_and_probe(carry: tuple[_State, Pairs]) -> tuple[_State, Pairs]:
        state = jax.lax.while_loop(should_continue, fill, carry[0])
        pairs = state.pairs()
        # Floors that would make each pair's cluster complete: by `Pairs.is_complete` the coupling
        # then moves no eigenvalue by more than half of the width. Then what is below the last pair.
        wide = jnp.maximum(width * pairs.scale, pairs.rounding)
        distance = 3 * wide + 2 * pairs.coupling / wide
        lower = pairs.eigenvalues[-1:] - tolerance * pairs.scale - pairs.rounding
        levels = jnp.concatenate([pairs.eigenvalues + distance, lower])
        budget = jnp.minimum(pairs.num_hvps, max_hvps - pairs.num_hvps)
        budget = jnp.where(state.has_next, 0, budget)
        probed = probe(hvp, pairs.rows, random(state), levels, pairs.scale, budget)
        num_hvps = pairs.num_hvps + probed.num_hvps
        floor = jnp.max(jnp.where(probed.is_clear, levels, -jnp.inf))
        pairs = dataclasses.replace(pairs, num_hvps=num_hvps, floor=floor)
        space = Krylov.of(unit_outside(pairs.rows, probed.direction), max_rows)
        space = dataclasses.replace(
            space,
            rows=space.rows.at[:k].set(pairs.rows),
            matrix=jnp.diag(jnp.where(jnp.arange(max_rows) < k, state.ritz.eigenvalues, 0)),
            is_filled=jnp.arange(max_rows) < k,
            count=jnp.array(k),
        )
        has_next = probed.has_some[-1]
        mix = jnp.eye(max_rows, k, dtype=dtype)
        return _State(
            space, state.ritz, state.scale, num_hvps, has_next, mix, pairs.remainders
        ), pairs

    space, none = Krylov.of(start, max_rows), jnp.zeros((max_rows, k), dtype)
    nothing = _State(
        space,
        space.ritz(),
        jnp.zeros((), dtype),
        jnp.array(0),
        jnp.array(True),
        none,
        jnp.zeros((k, start.size), dtype),
    )
    return jax.lax.while_loop(
        lambda carry: should_continue(carry[0]), solve_and_probe, (nothing, nothing.pairs())
    )[1]
