"""What a network's leg ends with: mini-batch descent that finds its own rate and batch.

The first steps are taken several times, each with another learning rate, and those that lowered the
loss most are kept. The rate that is fastest at first is too large later: a third of it is used.
From then on, whenever two rounds in a row do not lower the loss on a fixed
sample of the data, what is left to do is below the noise: the batch is doubled and the rate halved.
Where a batch is all of the data, only rounds that raise the loss count.
In the last third of the steps the rate falls to zero.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from ridgerider._check import check_at_least, check_count
from ridgerider._core.descend.finish import Epoch, Finish, HostFinish, tell
from ridgerider._core.descend.train import trained
from ridgerider._core.problem.batches import FixedRows, strata
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem, Scalar, Vector
from ridgerider._core.runtime.clock import slices
from ridgerider._core.runtime.compile import compiled

RATES = (0.0003, 0.001, 0.003, 0.01)
NUM_TRIED = 60  # steps with each rate
MICRO_SIZE = 128  # rows of the first batches; later ones are several of these
MAX_CHUNKS = 8
PATIENCE = 2  # rounds
WHOLE = 3  # times as many steps where a batch is all of the data: they are cheap
SAMPLE = FixedRows(4096)  # rows that the loss is judged by
SLOW = 0.99  # of the least loss so far: a round that does not reach it is none
DECAY = 1 / 3  # of all steps, during which the rate falls to zero


class Relax(HostFinish):
    """Descend by mini-batches with a learning rate and a batch size that are chosen while it runs.

    The finish of `Rider.for_networks`. Its steps are those of Adam. Its end is
    "unverified", because the gradient does not vanish there.

    **Arguments**

    - `epochs`: number of passes through the data.
    - `min_steps`: at least this many steps, for small data sets, even if that takes more epochs.
      Three times as many where a batch is all of the data.
    - `target`: ends once the loss on a sample is at most this.

    >>> import ridgerider as rr
    >>> problem = rr.Problem(lambda x, y: jnp.mean((x - y) ** 2), jnp.zeros(()), jnp.ones(8))
    >>> end = Relax(min_steps=1000)(problem, problem.x0, jax.random.key(0))
    >>> end.kind, bool(abs(end.x[0] - 1) < 0.1)
    ('unverified', True)
    """

    epochs: int = eqx.field(static=True, default=20)
    min_steps: int = eqx.field(static=True, default=4000)
    target: float = eqx.field(static=True, default=1e-3)

    def __check_init__(self) -> None:
        check_count("epochs", self.epochs)
        check_count("min_steps", self.min_steps, 0)
        check_at_least("target", self.target)

    def __call__(
        self, problem: Problem, x: Vector, key: PRNGKeyArray, spectrum: Any = None
    ) -> Finish:
        del spectrum
        self.check_not_traced(x)
        num_rows = problem.num_examples if problem.has_examples else 1
        per_epoch = max(num_rows // MICRO_SIZE, 1)
        is_noisy = num_rows > MICRO_SIZE  # a batch is less than all of the data
        fewest = self.min_steps if is_noisy else WHOLE * self.min_steps
        most = max(self.epochs * per_epoch, fewest)
        from optax import scale_by_adam  # when it is needed: it takes a while

        start = (jnp.asarray(x), scale_by_adam().init(x))
        descent = _Descent(problem, key, most, is_noisy, start)
        descent.choose_rate()
        while descent.left > 0 and np.isfinite(descent.loss) and descent.loss > self.target:
            tell(Epoch(descent.done // per_epoch, most // per_epoch, descent.loss, {}))
            descent.do_round(max(per_epoch, most // 40), min(per_epoch, MAX_CHUNKS))
        return descent.finish()


State = tuple[Vector, Any]  # a point, and Adam's means of gradients and their squares


@dataclass
class _Descent:
    """A descent between two rounds; steps are counted in batches of the first size."""

    problem: Problem
    key: PRNGKeyArray
    most: int
    is_noisy: bool
    state: State
    done: int = 0
    rate: float = RATES[0]
    num_chunks: int = 1
    num_slow: int = 0
    num_gradients: int = 0

    def __post_init__(self) -> None:
        self.losses = [self.evaluate(self.state)]
        self.rates, self.sizes = [0.0], [0]

    @property
    def loss(self) -> float:
        return self.losses[-1]

    @property
    def left(self) -> int:
        return self.most - self.done

    def evaluate(self, state: State) -> float:
        return float(compiled(_value)(self.problem, state[0]))

    def choose_rate(self) -> None:
        """Take the first steps with each rate, and keep those that lowered the loss most."""
        count = min(NUM_TRIED, self.left)
        tried = [self.steps(count, rate) for rate in RATES]
        losses = [self.evaluate(state) for state in tried]
        best = int(np.nanargmin([*losses, np.inf]))
        if best < len(tried) and losses[best] < np.inf:
            self.rate, self.state = RATES[best] / 3, tried[best]
            self.note(losses[best], count)

    def do_round(self, count: int, max_chunks: int) -> None:
        """A round; where it does not pay, the next has a larger batch and a smaller rate."""
        num_steps = max(min(count, self.left) // self.num_chunks, 1)
        state = self.steps(num_steps, self.rate)
        loss = self.evaluate(state)
        # Where a batch is all of the data there is no noise, and a plateau is only slow.
        wanted = SLOW if self.is_noisy else 1.0
        self.num_slow = 0 if loss <= wanted * min(self.losses) else self.num_slow + 1
        if np.isfinite(loss):
            self.state = state
        else:  # back to where it was
            loss, self.num_slow = self.loss, PATIENCE
            self.rate /= 4
        self.note(loss, num_steps * self.num_chunks)
        if self.num_slow == PATIENCE:
            self.num_slow = 0
            self.num_chunks = min(2 * self.num_chunks, max_chunks)
            self.rate /= 2

    def steps(self, count: int, rate: float) -> State:
        """`count` steps. The rate falls to zero along with what is left."""
        self.num_gradients += count * self.num_chunks
        ends = [
            rate * min(1.0, max(left, 0) / (DECAY * self.most))
            for left in (self.left, self.left - count * self.num_chunks)
        ]
        key = jax.random.fold_in(self.key, self.done)  # the same batches for each rate
        rates = jnp.asarray(ends, self.problem.dtype)
        state, num_chunks = self.state, jnp.asarray(self.num_chunks)
        for first, last in slices(count):
            span = jnp.asarray([first, last, count])
            state = compiled(_steps)(self.problem, state, key, rates, num_chunks, span)
            jax.block_until_ready(state)
        return state

    def note(self, loss: float, count: int) -> None:
        self.done += count
        self.losses.append(loss)
        self.rates.append(self.rate)
        self.sizes.append(self.num_chunks * MICRO_SIZE)

    def finish(self) -> Finish:
        x, adam = self.state
        history = {"loss": self.losses, "rate": self.rates, "batch_size": self.sizes}
        return trained(
            x,
            self.loss,
            grad_norm=float(compiled(_grad_norm, "little")(self.problem, x)),
            is_converged=bool(np.isfinite(self.loss)),
            num_steps=int(adam.count),
            cost=Cost(values=len(self.losses), gradients=self.num_gradients + 1),
            history={name: np.asarray(column) for name, column in history.items()},
        )


def _value(problem: Problem, x: Vector) -> Scalar:
    return SAMPLE(problem, jax.random.key(0), 0).value(x)


def _grad_norm(problem: Problem, x: Vector) -> Scalar:
    return jnp.linalg.norm(SAMPLE(problem, jax.random.key(0), 0).grad(x))


def _steps(
    problem: Problem,
    state: State,
    key: PRNGKeyArray,
    rates: Array,
    num_chunks: Int[Array, ""],
    span: Int[Array, "3"],
) -> State:
    """Steps of Adam, from the first to the last of so many, with a rate that changes evenly."""
    from optax import scale_by_adam

    num_rows = problem.num_examples if problem.has_examples else 1

    def on_batch(index: Int[Array, ""]) -> Problem:
        if num_rows <= MICRO_SIZE:
            return problem
        most = min(num_rows // MICRO_SIZE, MAX_CHUNKS)
        chunks = jnp.minimum(num_chunks, most)
        here = jax.random.fold_in(key, index)
        rows = strata(here, most * MICRO_SIZE, chunks * MICRO_SIZE, num_rows)
        return problem.on_rows(rows.reshape(most, MICRO_SIZE), chunks)

    def step(index: Int[Array, ""], state: State) -> State:
        x, adam = state
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            update, adam = scale_by_adam().update(on_batch(index).grad(x), adam)
        share = index.astype(x.dtype) / jnp.maximum(span[2], 1).astype(x.dtype)
        return x - (rates[0] + share * (rates[1] - rates[0])) * update, adam

    return jax.lax.fori_loop(span[0], span[1], step, state)
