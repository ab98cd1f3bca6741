"""L-BFGS as one flat loop, the descent that `Descend` runs unless told otherwise.

A line search inside an optimizer is a loop inside a loop, with copies of the loss and its gradient
in each, and most of the time of a first search went into compiling them. Here every pass of the one
loop evaluates the loss and its gradient once, at a trial point, and either accepts it, which ends
the line search and turns to a new direction, or narrows the bracket of step sizes.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ridgerider._core.problem.problem import Number, Scalar, Vector

MEMORY = 10  # pairs of steps and changes of the gradient
DECREASE, CURVATURE = 1e-4, 0.9  # the constants of the Wolfe conditions
MAX_TRIES = 25  # of one line search


class Pairs(eqx.Module):
    """The last steps and what they made of the gradient, in a ring; unused rows weigh nothing."""

    steps: Float[Array, "m n"]
    changes: Float[Array, "m n"]
    weights: Float[Array, " m"]  # 1 / (step . change)
    count: Int[Array, ""]

    @staticmethod
    def none(x: Vector) -> "Pairs":
        rows = jnp.zeros((MEMORY, *x.shape), x.dtype)
        return Pairs(rows, rows, jnp.zeros(MEMORY, x.dtype), jnp.array(0))

    def add(self, step: Vector, change: Vector, is_wanted: Bool[Array, ""]) -> "Pairs":
        """With one more pair, if it is wanted and curves upwards."""
        along, row = step @ change, jax.lax.rem(self.count, MEMORY)
        is_wanted &= along > 0

        def write(rows: Array, new: Array) -> Array:
            return _write(rows, row, jnp.where(is_wanted, new, _read(rows, row)))

        return Pairs(
            write(self.steps, step),
            write(self.changes, change),
            write(self.weights, 1 / jnp.where(is_wanted, along, 1)),
            jnp.where(is_wanted, self.count + 1, self.count),
        )

    def downhill(self, grad: Vector, longest: Number) -> Vector:
        """The quasi-Newton direction; without any pair, down the gradient, by at most `longest`."""
        newest = self._row_of(jnp.array(0))
        change = _read(self.changes, newest)
        curvature = _read(self.weights, newest) * (change @ change)
        first = 1 / jnp.maximum(jnp.linalg.norm(grad) / longest, 1)
        scale = jnp.where(self.count > 0, 1 / jnp.where(curvature > 0, curvature, 1), first)
        number = jnp.minimum(self.count, MEMORY)

        # The two-loop recursion as one: from the newest pair to the oldest, and back.
        def turn(index: Int[Array, ""], carry: tuple[Vector, Array]) -> tuple[Vector, Array]:
            vector, kept = carry
            is_back = index >= number
            age = jnp.where(is_back, 2 * number - 1 - index, index)
            row = self._row_of(age)
            step, change = _read(self.steps, row), _read(self.changes, row)
            vector = jnp.where(index == number, scale, 1) * vector
            along = _read(self.weights, row) * (jnp.where(is_back, change, step) @ vector)
            by = jnp.where(is_back, _read(kept, row) - along, -along)
            vector = vector + by * jnp.where(is_back, step, change)
            return vector, _write(kept, row, along)

        vector, _ = jax.lax.fori_loop(0, 2 * number, turn, (-grad, jnp.zeros(MEMORY, grad.dtype)))
        return jnp.where(self.count > 0, vector, -scale * grad)

    def _row_of(self, age: Int[Array, ""]) -> Int[Array, ""]:
        return jax.lax.rem(self.count + (MEMORY - 1) - age, MEMORY)


# Rows by dynamic slices: plain indices become gathers and scatters, which compile much longer.
def _read(rows: Array, row: Int[Array, ""]) -> Array:
    return jax.lax.dynamic_index_in_dim(rows, row, keepdims=False)


def _write(rows: Array, row: Int[Array, ""], new: Array) -> Array:
    return jax.lax.dynamic_update_index_in_dim(rows, new, row, 0)


class Descent(eqx.Module):
    """The lowest point so far, and the line search that is under way from it.

    Sizes between `low`, where the loss falls too steeply to stop, and `high`, where it is too high,
    are still to be tried.
    """

    x: Vector
    loss: Scalar
    grad: Vector
    pairs: Pairs
    direction: Vector
    size: Scalar
    low: Scalar
    low_slope: Scalar
    high: Scalar
    high_slope: Scalar
    num_tries: Int[Array, ""]
    num_steps: Int[Array, ""]
    num_gradients: Int[Array, ""]
    is_stuck: Bool[Array, ""]


def lbfgs(
    value: Callable[[Vector], Scalar],
    x: Vector,
    is_over: Callable[[Vector, Vector], Bool[Array, ""]],
    max_steps: int | Int[Array, ""],
    is_wanted: Bool[Array, ""],
    longest: Number = 1.0,
) -> Descent:
    """Descend from `x` until `is_over(x, grad)`; if it is not wanted, evaluate nothing.

    >>> end = lbfgs(
    ...     lambda x: (x[0] - 1) ** 2 + 10 * x[1] ** 4,
    ...     jnp.array([0.0, 1.0]),
    ...     lambda x, grad: jnp.linalg.norm(grad) < 1e-6,
    ...     max_steps=100,
    ...     is_wanted=jnp.array(True),
    ... )
    >>> [abs(round(float(entry), 1)) for entry in end.x], bool(end.num_gradients > end.num_steps)
    ([1.0, 0.0], True)
    """
    value_and_grad = jax.value_and_grad(value)

    def should_continue(state: Descent) -> Bool[Array, ""]:
        is_finite = jnp.isfinite(state.loss) & jnp.all(jnp.isfinite(state.grad))
        is_done = is_over(state.x, state.grad) | ~is_finite | state.is_stuck
        is_done |= state.num_steps >= max_steps
        return is_wanted & ((state.num_gradients == 0) | ~is_done)

    def evaluate(state: Descent) -> Descent:
        x = state.x + state.size * state.direction
        return _judged(state, x, *value_and_grad(x), longest)

    # Before anything is known: the first trial is the start itself.
    zero, nowhere = jnp.zeros((), x.dtype), jnp.zeros_like(x)
    line_search = dict.fromkeys(("size", "low", "low_slope", "high", "high_slope"), zero)
    start = Descent(
        x=x,
        loss=zero,
        grad=nowhere,
        pairs=Pairs.none(x),
        direction=nowhere,
        **line_search,
        num_tries=jnp.array(0),
        num_steps=jnp.array(-1),
        num_gradients=jnp.array(0),
        is_stuck=jnp.array(False),
    )
    return jax.lax.while_loop(should_continue, evaluate, start)


def _judged(state: Descent, x: Vector, loss: Scalar, grad: Vector, longest: Number) -> Descent:
    """The trial point accepted, or the bracket narrowed."""
    is_first = state.num_gradients == 0
    is_last = state.num_tries + 1 >= MAX_TRIES
    slope, new_slope = state.grad @ state.direction, grad @ state.direction
    is_lower = _is_lower(state, slope, loss, new_slope)
    is_accepted = is_first | (is_lower & ((new_slope >= CURVATURE * slope) | is_last))
    has_failed = is_last & ~is_accepted
    kept_x, kept_grad = (
        jnp.where(is_accepted, new, old) for new, old in ((x, state.x), (grad, state.grad))
    )
    pairs = state.pairs.add(x - state.x, grad - state.grad, is_accepted & ~is_first)
    # Where a line search fails, the next one goes down the gradient; if that fails, it ends.
    is_stuck = has_failed & (state.pairs.count == 0)
    pairs = jax.tree.map(lambda leaf: jnp.where(has_failed, 0, leaf), pairs)
    is_new = is_accepted | has_failed
    direction = jnp.where(is_new, pairs.downhill(kept_grad, longest), state.direction)
    low, low_slope, high, high_slope = (
        jnp.where(is_new, fresh, jnp.where(is_lower == is_low, new, old))
        for fresh, is_low, new, old in (
            (0, True, state.size, state.low),
            (kept_grad @ direction, True, new_slope, state.low_slope),
            (jnp.inf, False, state.size, state.high),
            (0, False, new_slope, state.high_slope),
        )
    )
    return Descent(
        x=kept_x,
        loss=jnp.where(is_accepted, loss, state.loss),
        grad=kept_grad,
        pairs=pairs,
        direction=direction,
        size=jnp.where(is_new, 1, _between(low, low_slope, high, high_slope)),
        low=low,
        low_slope=low_slope,
        high=high,
        high_slope=high_slope,
        num_tries=jnp.where(is_new, 0, state.num_tries + 1),
        num_steps=jnp.where(is_accepted, state.num_steps + 1, state.num_steps),
        num_gradients=state.num_gradients + 1,
        is_stuck=is_stuck,
    )


def _is_lower(state: Descent, slope: Scalar, loss: Scalar, new_slope: Scalar) -> Bool[Array, ""]:
    """Whether the loss has fallen enough, or as far as rounding and the slopes can tell."""
    rounding = 100 * jnp.finfo(loss.dtype).eps * jnp.abs(state.loss)
    is_level = (loss <= state.loss + rounding) & (new_slope <= (2 * DECREASE - 1) * slope)
    has_fallen = loss <= state.loss + DECREASE * state.size * slope
    return (has_fallen | is_level) & jnp.isfinite(loss) & jnp.isfinite(new_slope)


def _between(low: Scalar, low_slope: Scalar, high: Scalar, high_slope: Scalar) -> Scalar:
    """The next size: where the slope would vanish if it were linear; beyond, if all is lower."""
    is_valley = (high_slope > 0) & jnp.isfinite(high_slope)
    fall = jnp.where(is_valley, high_slope - low_slope, 1)
    part = jnp.where(is_valley, jnp.clip(-low_slope / fall, 0.1, 0.9), 0.5)
    return jnp.where(jnp.isinf(high), 2 * low, low + part * (high - low))
