r"""Is anything missing below? A random vector tells, with a probability that can be stated.

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

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ridgerider._core.linalg.space import Hvp, outside
from ridgerider._core.problem.problem import Scalar, Vector

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
