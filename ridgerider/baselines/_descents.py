"""The baselines that go straight down: along the gradient, or along the best eigenvector."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ridgerider._check import check_at_least, check_positive
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Number, Problem, Scalar, Vector
from ridgerider.baselines._ends import Ends, Tally, Until

CHUNK = 256  # steps of a descent between two looks at the budget


class Descent(eqx.Module):
    """Gradient descent with a fixed step, from normal starts around the problem's own.

    **Arguments**

    - `spread`: the standard deviation of the starts; a small one is descent from the saddle.
    - `target`: a run ends once its loss is as low as this,
    - `tolerance`: or its gradient's norm is,
    - `max_length`: or it has made this many steps.

    >>> from ridgerider.problems import wells
    >>> ends = Descent(spread=1.0, step_size=0.5)(wells(2), max_steps=2000)
    >>> len({tuple(x) for x in np.sign(ends.x)})
    4
    """

    spread: Number = 1.0
    step_size: Number = 0.1
    target: Number = -math.inf
    tolerance: Number = 1e-3
    max_length: int = 10_000

    def __check_init__(self) -> None:
        for name in ("spread", "step_size", "tolerance", "max_length"):
            check_positive(name, getattr(self, name))

    def __call__(
        self,
        problem: Problem,
        *,
        max_steps: int | None = None,
        max_seconds: float | None = None,
        seed: int = 0,
        until: Until | None = None,
    ) -> Ends:
        tally = Tally(problem, max_steps, max_seconds, until)
        # Lanes run side by side, and each begins anew where its run ends. A small budget has few,
        # so that not all of it goes to runs that are cut off.
        lanes = next((count for count in (64, 8) if tally.steps_left >= 2000 * count), 1)
        method = jax.tree.map(lambda number: jnp.asarray(number, problem.dtype), self)
        state = _first_starts(problem, method, lanes, jax.random.key(seed))
        while True:  # however small the budget, one chunk is made
            state, *out = _descend(problem, method, state)
            is_end, x, loss = jax.device_get(out)
            step, lane = np.nonzero(is_end)
            num_steps = int(min(is_end.size, tally.steps_left))
            cost = Cost(values=num_steps, gradients=num_steps)
            tally.add(x[step, lane], loss[step, lane], (step + 1) * lanes, num_steps, cost)
            if tally.is_over():
                return tally.ends()

    def start(self, problem: Problem, key: PRNGKeyArray) -> Vector:
        noise = jax.random.normal(key, (problem.size,), problem.dtype)
        return problem.x0 + jnp.asarray(self.spread, problem.dtype) * noise


DescentState = tuple[Float[Array, "lanes n"], Float[Array, " lanes"], PRNGKeyArray]


@eqx.filter_jit
def _first_starts(problem: Problem, method: Descent, lanes: int, key: PRNGKeyArray) -> DescentState:
    keys = jax.random.split(key, lanes)
    return jax.vmap(lambda key: method.start(problem, key))(keys), jnp.zeros(lanes), keys


@eqx.filter_jit
def _descend(
    problem: Problem, method: Descent, state: DescentState
) -> tuple[DescentState, Bool[Array, "t lanes"], Float[Array, "t lanes n"], Float[Array, "..."]]:
    """`CHUNK` steps of each lane, and where its runs ended on the way."""

    def step(
        x: Vector, length: Scalar, key: PRNGKeyArray
    ) -> tuple[tuple[Vector, Scalar, PRNGKeyArray], tuple[Bool[Array, ""], Vector, Scalar]]:
        loss, grad = jax.value_and_grad(problem.value)(x)
        is_end = (
            ~(loss > method.target)  # written so that a NaN ends a run
            | ~(jnp.linalg.norm(grad) > method.tolerance)
            | (length + 1 >= method.max_length)
        )
        next_key = jax.random.split(key, 1)[0]
        again = method.start(problem, next_key)
        moved = (
            jnp.where(is_end, again, x - method.step_size * grad),
            jnp.where(is_end, 0, length + 1),
            jnp.where(is_end, next_key, key),
        )
        return moved, (is_end, x, loss)

    state, out = jax.lax.scan(lambda state, _: jax.vmap(step)(*state), state, None, length=CHUNK)
    return state, *out


class EigenvectorDescent(eqx.Module):
    """EVD: search along every eigenvector, both ways, move to the lowest point found, and repeat.

    **Arguments**

    - `spread`: the standard deviation of the starts around the problem's own.
    - `largest`, `num_sizes`: the line search tries `largest` and halves of it, `num_sizes` in all.
    - `target`, `tolerance`, `max_length`: a run ends at this loss, or when a search lowers the loss
      by no more than `tolerance`, or after this many searches.

    >>> from ridgerider.problems import wells
    >>> ends = EigenvectorDescent()(wells(2), max_steps=100)
    >>> round(float(ends.loss.min()), 2)
    -0.62
    """

    spread: Number = 1e-3
    largest: Number = 8.0
    target: Number = -math.inf
    tolerance: Number = 1e-6
    num_sizes: int = eqx.field(static=True, default=12)
    max_length: int = eqx.field(static=True, default=1000)
    round_size: int = eqx.field(static=True, default=8)

    def __check_init__(self) -> None:
        for name in ("spread", "largest", "num_sizes", "max_length", "round_size"):
            check_positive(name, getattr(self, name))
        check_at_least("tolerance", self.tolerance)

    def __call__(
        self,
        problem: Problem,
        *,
        max_steps: int | None = None,
        max_seconds: float | None = None,
        seed: int = 0,
        until: Until | None = None,
    ) -> Ends:
        tally = Tally(problem, max_steps, max_seconds, until)
        method = eqx.tree_at(lambda m: m.spread, self, jnp.asarray(self.spread, problem.dtype))
        key = jax.random.key(seed)
        while not tally.is_over():
            key, here = jax.random.split(key)
            x, loss, lengths = jax.device_get(_search_lines(problem, method, here))
            steps, tried = np.cumsum(lengths), 2 * self.num_sizes * problem.size
            total = int(steps[-1])
            cost = Cost(
                values=total * tried + len(x),
                hvps=total * problem.size,
                hessians=total,
                eigendecompositions=total,
            )
            tally.add(x, loss, steps, total, cost)
        return tally.ends()


@eqx.filter_jit
def _search_lines(
    problem: Problem, method: EigenvectorDescent, key: PRNGKeyArray
) -> tuple[Float[Array, "k n"], Float[Array, " k"], Int[Array, " k"]]:
    def go_on(carry: tuple) -> Bool[Array, ""]:
        _, loss, fell, length = carry
        return (fell > method.tolerance) & (loss > method.target) & (length < method.max_length)

    def step(carry: tuple) -> tuple:
        x, loss, _, length = carry
        rows = jnp.linalg.eigh(problem.hessian(x))[1].T
        sizes = jnp.asarray(method.largest, x.dtype) * 0.5 ** jnp.arange(
            method.num_sizes, dtype=x.dtype
        )
        moves = jnp.concatenate([sizes, -sizes])[:, None, None] * rows[None]
        points = x[None] + moves.reshape(-1, len(x))
        losses = jax.vmap(problem.value)(points)
        best = jnp.nanargmin(losses)
        is_lower = losses[best] < loss
        fell = jnp.where(is_lower, loss - losses[best], 0)
        return jnp.where(is_lower, points[best], x), loss - fell, fell, length + 1

    def run(key: PRNGKeyArray) -> tuple[Vector, Scalar, Array]:
        noise = jax.random.normal(key, (problem.size,), problem.dtype)
        x = problem.x0 + method.spread * noise
        begin = (x, problem.value(x), jnp.asarray(jnp.inf, x.dtype), jnp.array(0))
        x, loss, _, length = jax.lax.while_loop(go_on, step, begin)
        return x, loss, length

    return jax.lax.map(run, jax.random.split(key, method.round_size))
