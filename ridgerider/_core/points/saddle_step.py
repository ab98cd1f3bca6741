r"""To a saddle: climb along the lowest modes of the Hessian and descend along all others.

In the eigenbasis of the Hessian, where the gradient has the parts g_i, a step moves

    +g_i / |lambda_i|  along the modes to climb, the lowest ones,
    -g_i / |lambda_i|  along all others,

each by no more than a *radius*, and by the whole radius along a mode that should curve upwards and
does not. Only saddles with as many negative eigenvalues as there are modes to climb are stable
under such steps, and close to them the steps are Newton's. The radius grows and shrinks with how
well the Hessian predicts the next gradient.

Where a mode to climb still curves upwards there is no ridge yet. The step then goes against the
gradient of its curvature, grad (e^T H(x) e), to where the mode softens, and a little downhill.

Modes whose curvature is rounding (shifts, rotations) are never climbed, nor divided by.

With a *penalty* the steps minimise |grad L(x)| + weight * regularizer(x): Newton's on the gradient,
and against the regularizer's gradient in the null space of the Hessian, taken if the sum falls. The
norm is not squared: it is an exact penalty, so a small enough weight leaves the minimiser exactly
on grad L = 0.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from ridgerider._core.linalg.space import Space
from ridgerider._core.points.modes import (
    Modes,
    modes_of,
    next_radius,
    prediction_error,
    ritz_modes,
)
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Number, Problem, Scalar, Vector
from ridgerider._core.spectra.spectrum import tolerance_of

RADIUS, MAX_RADIUS = 0.2, 1.0  # along each mode, at first and at most, in units of the problem
MAX_TURNS = 1  # how often the ridge may be lost again before the start is given up
SETTLE = 0.3  # how much of the other modes' descent goes with a step to where a mode softens
NUM_PRODUCTS = 40  # per step, where the Hessian is not formed


class Penalty(eqx.Module):
    """What to make small besides the gradient."""

    regularizer: Callable[[PyTree], Scalar]
    weight: Scalar

    def value(self, problem: Problem, here: "Here") -> Scalar:
        regularizer = self.regularizer(problem.unravel(here.x))
        return jnp.linalg.norm(here.grad) + self.weight * regularizer

    def slope(self, problem: Problem, x: Vector) -> Vector:
        """The regularizer's gradient."""
        return jax.grad(lambda x: self.regularizer(problem.unravel(x)))(x)


class Here(eqx.Module):
    """A point with its gradient and its modes."""

    x: Vector
    grad: Vector
    modes: Modes
    unit: Scalar

    @property
    def num_downhill(self) -> Int[Array, ""]:
        return jnp.sum(self.modes.is_down)

    @property
    def is_finite(self) -> Bool[Array, ""]:
        return jnp.all(jnp.isfinite(self.grad)) & jnp.all(jnp.isfinite(self.modes.eigenvalues))

    def is_stationary(self, tolerance: Number | None = None) -> Bool[Array, ""]:
        size = self.modes.scale * jnp.maximum(self.unit, jnp.linalg.norm(self.x))
        return jnp.linalg.norm(self.grad) <= tolerance_of(tolerance, self.x.dtype) * size

    def is_saddle(self, index: Int[Array, ""]) -> Bool[Array, ""]:
        count = self.num_downhill
        return self.is_stationary() & jnp.where(index < 0, count > 0, count == index)


class _State(eqx.Module):
    here: Here
    radius: Scalar
    num_turns: Int[Array, ""]
    num_steps: Int[Array, ""]
    is_done: Bool[Array, ""]
    cost: Cost


class _Move(eqx.Module):
    """A step in the modes; a kick leaves a stationary point that is not a saddle."""

    parts: Float[Array, " k"]
    is_kick: Bool[Array, ""]
    is_bent: Bool[Array, ""]  # there is more to come than Newton's step
    cost: Cost


@eqx.filter_jit
def to_saddle(
    problem: Problem,
    penalty: Penalty | None,
    index: Int[Array, ""],
    max_steps: int,
    x: Vector,
    known: Float[Array, "j n"] | None,
    key: PRNGKeyArray,
) -> tuple[Here, Cost]:
    """Go from `x` to a saddle with `index` negative eigenvalues, any number of them if it is -1.

    `known`: unit rows close to the lowest modes; the others are then looked for by Hessian-vector
    products. None forms the Hessian.
    """
    num_known = 0 if known is None else len(known)
    random = jax.random.normal(key, x.shape, x.dtype)
    rounding = 10 * float(jnp.finfo(x.dtype).eps)

    def step(state: _State) -> _State:
        here, radius = state.here, state.radius
        if penalty is None:
            move = _follow(problem, here, index, radius, random)
        else:
            move = _newton(problem, penalty, here, radius)
        known = here.modes.rows[:num_known] if num_known else None
        new, cost = _arrive(problem, here.x + move.parts @ here.modes.rows, known)
        error = prediction_error(here.grad, new.grad, here.modes.change(move.parts))
        is_better = jnp.linalg.norm(new.grad) < jnp.linalg.norm(here.grad) / 2
        is_right = (error < 2) | is_better
        if penalty is not None:
            is_right = penalty.value(problem, new) < penalty.value(problem, here)
        wanted = jnp.maximum(index, 1)
        is_lost = is_right & (here.num_downhill >= wanted) & (new.num_downhill < wanted)
        num_turns = state.num_turns + (is_lost | move.is_kick).astype(int)
        is_over = (num_turns > MAX_TURNS) & (penalty is None)
        is_there = here.is_stationary() if penalty is not None else here.is_saddle(index)
        is_end = is_there & ~is_better & ~move.is_bent  # a step from there would only lead away
        is_taken = is_right & ~is_over & ~is_end & new.is_finite
        is_long = jnp.any(jnp.abs(move.parts) >= 0.99 * radius) | move.is_bent
        is_good = (error < 0.5) & is_long
        # Newton steps continue from stationary to exact, while they gain something.
        is_exact = new.is_saddle(index) & new.is_stationary(rounding) & is_taken
        is_done = is_over | is_end
        return _State(
            here=jax.tree.map(lambda one, two: jnp.where(is_taken, one, two), new, here),
            radius=next_radius(radius, error, is_taken, is_good, 2, 3, MAX_RADIUS * problem.unit),
            num_turns=num_turns,
            num_steps=state.num_steps + 1,
            is_done=is_done if penalty is not None else is_done | is_exact,
            cost=state.cost + cost + move.cost,
        )

    here, cost = _arrive(problem, x, known)
    is_done = jnp.array(False) if penalty else here.is_saddle(index) & here.is_stationary(rounding)
    zero, radius = jnp.array(0), RADIUS * problem.unit
    cost = jax.tree.map(jnp.asarray, cost)
    end = jax.lax.while_loop(
        lambda state: ~state.is_done & (state.num_steps < max_steps),
        step,
        _State(here, radius, zero, zero, is_done, cost),
    )
    return end.here, end.cost


def _follow(
    problem: Problem, here: Here, index: Int[Array, ""], radius: Scalar, random: Vector
) -> _Move:
    """Climb the lowest curved modes, `index` of them, and descend along all others."""
    modes, parts = here.modes, here.modes.rows @ here.grad
    is_negative, rank = modes.is_down, jnp.cumsum(modes.is_curved) - 1
    # Off a stationary point turns of it have curvatures, too, up to |grad| / |x|: no curvature
    # below that is believed. Close to one this is Newton's step up to second order.
    doubt = jnp.linalg.norm(here.grad) / jnp.maximum(here.unit, jnp.linalg.norm(here.x))
    least = jnp.maximum(jnp.maximum(modes.cut, doubt), jnp.finfo(here.x.dtype).tiny)
    steepness = jnp.maximum(jnp.abs(modes.eigenvalues), least)
    newton = jnp.clip(parts / steepness, -radius, radius)
    # Close to a saddle of whatever index: Newton.
    is_near = (index < 0) & jnp.all(jnp.abs(parts) <= radius * steepness) & jnp.any(is_negative)
    is_up = jnp.where(is_near, is_negative, modes.is_curved & (rank < jnp.maximum(index, 1)))
    # By the whole radius down what curves downwards; where there is no slope, to either side.
    rounding = 10 * jnp.finfo(here.x.dtype).eps * modes.scale
    slopes = jnp.where(jnp.abs(parts) > rounding, parts, modes.rows @ random)
    down = jnp.where(is_negative, jnp.sign(slopes) * radius, newton)
    ordinary = jnp.where(is_up & is_negative, newton, -down)

    is_wrong = is_up & (modes.eigenvalues > 0)
    is_any, last = jnp.any(is_wrong), jnp.argmax(jnp.where(is_wrong, rank, -1))
    mode = modes.rows[last]
    bend = jax.lax.cond(
        is_any,
        lambda: jax.jvp(lambda x: problem.hvp(x, mode), (here.x,), (mode,))[1],
        lambda: jnp.zeros_like(here.x),
    )
    steepest = jnp.linalg.norm(bend)
    # Curvature that is the same everywhere around, or a symmetric minimum: see from a little off.
    is_bent = steepest * radius > modes.cut
    is_kick = is_any & ~is_bent & here.is_stationary()
    kick = jnp.zeros_like(parts).at[last].set(radius * jnp.sign(slopes[last]))
    soften = -radius / jnp.where(is_bent, steepest, 1) * (modes.rows @ bend)
    soften = soften + SETTLE * jnp.where(is_wrong, 0, ordinary)
    unusual = jnp.where(is_bent, soften, jnp.where(is_kick, kick, ordinary))
    return _Move(
        parts=jnp.where(is_any, unusual, ordinary),
        is_kick=is_kick,
        is_bent=is_any,
        cost=Cost(hvps=2 * is_any.astype(int)),
    )


def _newton(problem: Problem, penalty: Penalty, here: Here, radius: Scalar) -> _Move:
    """Down the sum of both: Newton's step where there is curvature, the whole radius elsewhere."""
    modes, is_curved = here.modes, here.modes.is_curved
    parts = modes.rows @ here.grad
    slopes = modes.rows @ penalty.slope(problem, here.x)
    # The gradient of the sum, in units in which |grad| has the curvature lambda^2 / |grad|.
    pull = penalty.weight * jnp.linalg.norm(parts) * slopes
    curvatures = jnp.where(is_curved, modes.eigenvalues, 1)
    newton = -parts / curvatures - pull / curvatures**2
    slopes = jnp.where(is_curved, 0, slopes)
    steepest = jnp.linalg.norm(slopes)
    is_bent = steepest > tolerance_of(None, here.x.dtype)
    along = -radius / jnp.where(is_bent, steepest, 1) * jnp.where(is_bent, slopes, 0)
    parts = jnp.where(is_curved, jnp.clip(newton, -radius, radius), along)
    return _Move(parts, jnp.array(False), is_bent, Cost())


def _arrive(problem: Problem, x: Vector, known: Float[Array, "j n"] | None) -> tuple[Here, Cost]:
    grad = problem.grad(x)
    if known is None:
        modes = modes_of(problem.hessian(x), jnp.zeros((problem.size, 0), x.dtype))
        cost = Cost(gradients=1, hvps=problem.size, hessians=1, eigendecompositions=1)
        return Here(x, grad, modes, problem.unit), cost
    # All of the gradient lies in this space, and the solution of H s = grad nearly.
    product, first = problem.hvp_at(x), len(known) + 1
    num_rows = min(first + NUM_PRODUCTS, problem.size)
    space = Space.empty(num_rows, problem.size, x.dtype).add_all(product, known).add(product, grad)
    space = jax.lax.fori_loop(
        first, num_rows, lambda k, space: space.add(product, space.images[k - 1]), space
    )
    return Here(x, grad, ritz_modes(space), problem.unit), Cost(gradients=1, hvps=num_rows)
