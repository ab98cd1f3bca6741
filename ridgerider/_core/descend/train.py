"""Ride, then train: mini-batch training as the end of a leg.

`Train` is a finish that runs on the host, an epoch at a time: it can stop at a target, tell how far
it has come, leave what it has on disk, and stop where a number is no longer finite.

`Relax` is what a network's leg ends with: mini-batch descent that finds its own rate and batch.
The first steps are taken several times, each with another learning rate, and those that lowered the
loss most are kept. The rate that is fastest at first is too large later: a third of it is used.
From then on, whenever two rounds in a row do not lower the loss on a fixed
sample of the data, what is left to do is below the noise: the batch is doubled and the rate halved.
Where a batch is all of the data, only rounds that raise the loss count.
In the last third of the steps the rate falls to zero.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from ridgerider._check import AtLeast0, Count, Finite, Whole, came, check_count, check_fields
from ridgerider._core.descend.finish import Epoch, Finish, check_not_traced, tell
from ridgerider._core.points.classify import TRAINED
from ridgerider._core.problem.batches import Batches, FixedRows, strata
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem, Scalar, Vector, fetch, is_key
from ridgerider._core.runtime.clock import check_time, slices
from ridgerider._core.runtime.compile import compiled

if TYPE_CHECKING:
    from optax import GradientTransformation
else:
    GradientTransformation = Any  # that takes a while to import

History = dict[str, list[float]]
MAX_ROWS = 4096  # rows of the data at a time, where the loss on all of them is asked for


class Train(eqx.Module):
    """Train by mini-batches, as the end of a leg: `Rider(finish=Train(...))`.

    Training does not end at a minimum: the kind of its end is "unverified", or
    "unconverged" where the target was not reached. Where the loss is no longer finite, training
    ends at the last epoch at which it was. `Finish.history` has a row for each epoch.

    **Arguments**

    - `optimizer`: of optax, such as `optax.adam(1e-3)`, or a function that builds one, such as
      `jax.tree_util.Partial(optax.adam, 1e-3)`: that can be sent to workers, and is rebuilt from a
      run file.
    - `batches`: a rule `batches(problem, key, step) -> problem` with a `size`; None: all of the
      data in each step, and one step in an epoch.
    - `epochs`: at most.
    - `target`: training ends once the loss on all data, computed after each epoch, is at most this.
    - `metrics`: called as `metrics(params)` after each epoch, returns numbers by name.
    - `folder`: a training that is interrupted continues from its last complete epoch, which is
      stored there, and one that had ended is not repeated.

    >>> import optax
    >>> import ridgerider as rr
    >>> problem = rr.Problem(lambda x, y: jnp.mean((x - y) ** 2), jnp.zeros(()), jnp.ones(8))
    >>> train = Train(optax.sgd(0.25), Batches(4), epochs=20, target=1e-3)
    >>> end = train(problem, problem.x0, jax.random.key(0))
    >>> end.kind, end.history["loss"].round(3).tolist()
    ('unverified', [1.0, 0.062, 0.004, 0.0])
    """

    optimizer: GradientTransformation | Callable[[], GradientTransformation]
    batches: Callable[[Problem, PRNGKeyArray, Int[Array, ""]], Problem] | None = Batches(128)
    epochs: Count = eqx.field(static=True, default=100)
    target: Finite | None = eqx.field(static=True, default=None)
    metrics: Callable[[PyTree], dict[str, Scalar]] | None = None
    folder: str | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        if not (callable(self.optimizer) or hasattr(self.optimizer, "update")):
            raise ValueError(
                "`optimizer` must be an optimizer of optax, such as optax.adam(1e-3), or a "
                f"function that builds one, not {came(self.optimizer)}."
            )
        check_fields(self)
        if self.batches is not None:
            check_count("batches.size", getattr(self.batches, "size", None))

    def __call__(
        self, problem: Problem, x: Vector, key: PRNGKeyArray, spectrum: Any = None
    ) -> Finish:
        del spectrum
        check_not_traced(self, x)
        num_batches = 1
        if self.batches is not None:
            size = self.batches.size  # type: ignore[attr-defined]
            num_batches = problem.num_examples // size
            if not num_batches:
                raise ValueError(
                    "`batches` must have a size of at most the number of examples, "
                    f"{problem.num_examples}, not {size}."
                )

        def evaluate(x: Vector) -> dict[str, float]:
            found = {} if self.metrics is None else dict(self.metrics(problem.unravel(x)))
            row = {"loss": _on_all(problem, x, "value"), **found}
            return {name: float(value) for name, value in row.items()}

        path = None if self.folder is None else Path(self.folder) / self._name(problem, x, key)
        state = _built(self.optimizer).init(problem.unravel(x))
        for left in path.parent.glob(f"{path.stem}.*.part") if path is not None else ():
            left.unlink(missing_ok=True)  # by a process that was killed while it wrote
        if path is not None and path.exists():
            x, state, history = _read(path, state)
        else:
            history = {name: [value] for name, value in evaluate(x).items()}
        while True:
            number, loss = len(history["loss"]) - 1, history["loss"][-1]
            is_reached = self.target is not None and loss <= self.target
            row = {name: column[-1] for name, column in history.items()}
            tell(Epoch(number, self.epochs, row.pop("loss"), row))
            is_finite = bool(np.isfinite(loss))
            if not is_finite or number >= self.epochs or is_reached:
                break
            check_time()
            batch_key = jax.random.fold_in(key, number)
            new = _epoch(self.optimizer, self.batches, problem, x, state, batch_key, num_batches)
            for name, value in evaluate(new[0]).items():
                history[name].append(value)
            if np.isfinite(history["loss"][-1]):  # else it ends where the loss was finite
                x, state = new
            if path is not None:
                _write(path, x, state, history)
        return trained(
            x,
            loss if is_finite or not number else history["loss"][-2],
            grad_norm=float(jnp.linalg.norm(_on_all(problem, x, "grad"))),
            is_converged=is_finite and (self.target is None or is_reached),
            num_steps=number * num_batches,
            cost=Cost(values=number + 1, gradients=number * num_batches + 1),
            history=history,
        )

    def _name(self, problem: Problem, x: Vector, key: PRNGKeyArray) -> str:
        """A file name that depends on all that decides a training, but how long it may last."""
        hashed = hashlib.sha256(describe_optimizer(_built(self.optimizer)).encode())
        hashed.update(f"{self.batches} {self.metrics}".partition(" at 0x")[0].encode())
        for leaf in jax.tree.leaves((x, key, problem.args)):
            array = np.asarray(fetch(jax.random.key_data(leaf) if is_key(leaf) else leaf))
            hashed.update(f"{array.shape}{array.dtype}".encode() + array.tobytes())
        return f"training-{hashed.hexdigest()[:16]}.npz"


def trained(x: Vector, loss: float, grad_norm: float, history: History, **more: Any) -> Finish:
    """The end of a training on the host, never verified; `more` are further fields."""
    numbers = {"loss": loss, "grad_norm": grad_norm, "least_eigenvalue": np.nan}
    counts = {"is_saddle": False, "num_kicks": 0, **more}
    cost = counts.pop("cost")
    fields: dict[str, Any] = {
        **{name: np.asarray(one, x.dtype) for name, one in numbers.items()},
        **{name: np.asarray(one) for name, one in counts.items()},
        "history": {name: np.asarray(column) for name, column in history.items()},
    }
    return Finish(x=x, doubt_number=TRAINED, cost=cost, **fields)


def _built(optimizer: Any) -> GradientTransformation:
    """An optimizer is a pair of functions; what builds one is a function."""
    return optimizer if hasattr(optimizer, "update") else optimizer()


def describe_optimizer(optimizer: GradientTransformation) -> str:
    """What it computes, as text: two that differ in a learning rate differ in this."""

    def use(x: Array) -> Array:
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            return optimizer.update(x, optimizer.init(x), x)[0]

    traced = jax.make_jaxpr(use)(jnp.ones(2, jnp.float32))
    return f"{traced} {traced.consts}"


@eqx.filter_jit
def _epoch(
    optimizer: Any,
    batches: Any,
    problem: Problem,
    x: Vector,
    state: Any,
    key: PRNGKeyArray,
    num_batches: int,
) -> tuple[Vector, Any]:
    optimizer = _built(optimizer)

    def step(carry: tuple[Vector, Any], index: Int[Array, ""]) -> tuple[tuple[Vector, Any], None]:
        x, state = carry
        seen = problem if batches is None else batches(problem, key, index)
        grad = problem.unravel(seen.grad(x))
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            updates, state = optimizer.update(grad, state, problem.unravel(x))
        return (x + problem.ravel(updates).astype(x.dtype), state), None

    return jax.lax.scan(step, (x, state), jnp.arange(num_batches))[0]


@eqx.filter_jit
def _on_all(problem: Problem, x: Vector, what: str) -> Array:
    """The loss or its gradient on all data, `MAX_ROWS` rows at a time."""
    count = problem.num_examples if problem.has_examples else 1
    if problem.rows is not None or count <= MAX_ROWS:
        return getattr(problem, what)(x)
    num_whole = count // MAX_ROWS
    rows = jnp.arange(num_whole * MAX_ROWS).reshape(num_whole, MAX_ROWS)
    mean, rest = getattr(problem.on_rows(rows), what)(x), count % MAX_ROWS
    if not rest:
        return mean
    last = getattr(problem.on_rows(jnp.arange(count - rest, count)[None]), what)(x)
    return mean * ((count - rest) / count) + last * (rest / count)


def _read(path: Path, like: Any) -> tuple[Vector, Any, History]:
    """A training as `_write` left it; `like` is a state of its optimizer."""
    with np.load(path) as stored:
        leaves, structure = jax.tree.flatten(like)
        state = [jnp.asarray(stored[f"state {i}"]) for i in range(len(leaves))]
        names = [name for name in stored if name.startswith("history ")]
        history = {name.removeprefix("history "): stored[name].tolist() for name in names}
        return jnp.asarray(stored["x"]), jax.tree.unflatten(structure, state), history


def _write(path: Path, x: Vector, state: Any, history: History) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{os.getpid()}.part")
    with scratch.open("wb") as file:
        states = {f"state {i}": leaf for i, leaf in enumerate(jax.tree.leaves(state))}
        columns = {f"history {name}": column for name, column in history.items()}
        np.savez(file, x=np.asarray(x), **fetch(states), **columns)  # type: ignore[arg-type]
    scratch.replace(path)


RATES = (0.0003, 0.001, 0.003, 0.01)
NUM_TRIED = 60  # steps with each rate
MICRO_SIZE = 128  # rows of the first batches; later ones are several of these
MAX_CHUNKS = 8
PATIENCE = 2  # rounds
WHOLE = 3  # times as many steps where a batch is all of the data: they are cheap
SAMPLE = FixedRows(4096)  # rows that the loss is judged by
SLOW = 0.99  # of the least loss so far: a round that does not reach it is none
DECAY = 1 / 3  # of all steps, during which the rate falls to zero


class Relax(eqx.Module):
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

    epochs: Count = eqx.field(static=True, default=20)
    min_steps: Whole = eqx.field(static=True, default=4000)
    target: AtLeast0 = eqx.field(static=True, default=1e-3)

    __check_init__ = check_fields

    def __call__(
        self, problem: Problem, x: Vector, key: PRNGKeyArray, spectrum: Any = None
    ) -> Finish:
        del spectrum
        check_not_traced(self, x)
        num_rows = problem.num_examples if problem.has_examples else 1
        per_epoch = max(num_rows // MICRO_SIZE, 1)
        is_noisy = num_rows > MICRO_SIZE  # a batch is less than all of the data
        fewest = self.min_steps if is_noisy else WHOLE * self.min_steps
        most = max(self.epochs * per_epoch, fewest)
        from optax import scale_by_adam  # when it is needed: it takes a while

        state: State = (jnp.asarray(x), scale_by_adam().init(x))
        rate, num_chunks, done, num_gradients, num_slow = RATES[0], 1, 0, 0, 0
        history: History = {"loss": [], "rate": [], "batch_size": []}

        def evaluate(state: State) -> float:
            return float(compiled(_value)(problem, state[0]))

        def note(loss: float, rate: float, batch_size: int) -> None:
            for name, one in zip(history, (loss, rate, batch_size), strict=True):
                history[name].append(one)

        def steps(count: int, rate: float) -> State:
            """`count` steps. The rate falls to zero along with what is left."""
            left = [most - done, most - done - count * num_chunks]
            ends = [rate * min(1.0, max(one, 0) / (DECAY * most)) for one in left]
            new, here = state, jax.random.fold_in(key, done)  # the same batches for each rate
            for first, last in slices(count):
                numbers = (jnp.asarray(num_chunks), jnp.asarray([first, last, count]))
                rates = jnp.asarray(ends, problem.dtype)
                new = compiled(_steps)(problem, new, here, rates, *numbers)
                jax.block_until_ready(new)
            return new

        note(evaluate(state), 0.0, 0)
        # The first steps with each rate: those that lowered the loss most are kept.
        count = min(NUM_TRIED, most)
        tried = [steps(count, one) for one in RATES]
        losses = [evaluate(one) for one in tried]
        num_gradients += count * len(RATES)
        best = int(np.nanargmin([*losses, np.inf]))
        if best < len(tried) and losses[best] < np.inf:
            rate, state, done = RATES[best] / 3, tried[best], count
            note(losses[best], rate, MICRO_SIZE)
        while done < most and np.isfinite(history["loss"][-1]):
            before = history["loss"][-1]
            if before <= self.target:
                break
            tell(Epoch(done // per_epoch, most // per_epoch, before, {}))
            num_steps = max(min(max(per_epoch, most // 40), most - done) // num_chunks, 1)
            new = steps(num_steps, rate)
            loss, num_gradients = evaluate(new), num_gradients + num_steps * num_chunks
            # Where a batch is all of the data there is no noise, and a plateau is only slow.
            wanted = (SLOW if is_noisy else 1.0) * min(history["loss"])
            num_slow = 0 if loss <= wanted else num_slow + 1
            if np.isfinite(loss):
                state = new
            else:  # back to where it was
                loss, num_slow, rate = before, PATIENCE, rate / 4
            done += num_steps * num_chunks
            note(loss, rate, num_chunks * MICRO_SIZE)
            if num_slow == PATIENCE:  # a larger batch and a smaller rate
                num_slow, num_chunks = 0, min(2 * num_chunks, per_epoch, MAX_CHUNKS)
                rate /= 2
        last = history["loss"][-1]
        return trained(
            state[0],
            last,
            grad_norm=float(compiled(_grad_norm, "little")(problem, state[0])),
            history=history,
            is_converged=bool(np.isfinite(last)),
            num_steps=int(state[1].count),
            cost=Cost(values=len(history["loss"]), gradients=num_gradients + 1),
        )


State = tuple[Vector, Any]  # a point, and Adam's means of gradients and their squares


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
