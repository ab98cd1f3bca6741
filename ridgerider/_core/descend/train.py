"""Ride, then train: mini-batch training as the end of a leg.

`Train` is a finish that runs on the host, an epoch at a time: it can stop at a target, tell how far
it has come, leave what it has on disk, and stop where a number is no longer finite.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from ridgerider._check import check_callable, check_count
from ridgerider._core.descend.finish import Epoch, Finish, HostFinish, tell
from ridgerider._core.points.classify import TRAINED
from ridgerider._core.problem.batches import Batches
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem, Scalar, Vector, fetch, is_key
from ridgerider._core.runtime.clock import check_time

if TYPE_CHECKING:
    from optax import GradientTransformation
else:
    GradientTransformation = Any  # that takes a while to import

MAX_ROWS = 4096  # rows of the data at a time, where the loss on all of them is asked for


class Train(HostFinish):
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
    epochs: int = eqx.field(static=True, default=100)
    target: float | None = eqx.field(static=True, default=None)
    metrics: Callable[[PyTree], dict[str, Scalar]] | None = None
    folder: str | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        if not (callable(self.optimizer) or hasattr(self.optimizer, "update")):
            raise ValueError(
                "`optimizer` must be an optimizer of optax, such as optax.adam(1e-3), or a "
                f"function that builds one, not {self.optimizer!r}."
            )
        for name in ("batches", "metrics"):
            if getattr(self, name) is not None:
                check_callable(name, getattr(self, name))
        if self.batches is not None:
            check_count("batches.size", getattr(self.batches, "size", None))
        check_count("epochs", self.epochs)
        is_number = isinstance(self.target, int | float) and self.target == self.target
        if self.target is not None and not is_number:
            raise ValueError(f"`target` must be a number or None, not {self.target!r}.")

    def __call__(
        self, problem: Problem, x: Vector, key: PRNGKeyArray, spectrum: Any = None
    ) -> Finish:
        del spectrum
        self.check_not_traced(x)
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
        if path is not None and path.exists():
            now = _read(path, state)
        else:
            history = {name: np.array([value]) for name, value in evaluate(x).items()}
            now = _Now(x, state, history)
        while True:
            is_reached = self.target is not None and now.last <= self.target
            row = {name: float(column[-1]) for name, column in now.history.items()}
            tell(Epoch(now.number, self.epochs, row.pop("loss"), row))
            if not np.isfinite(now.last) or now.number >= self.epochs or is_reached:
                break
            check_time()
            batch_key = jax.random.fold_in(key, now.number)
            at, state = _epoch(
                self.optimizer, self.batches, problem, now.x, now.state, batch_key, num_batches
            )
            now = now.then(at, state, evaluate(at))
            if path is not None:
                _write(path, now)
        losses, is_finite = now.history["loss"], bool(np.isfinite(now.last))
        return trained(
            now.x,
            float(losses[-1] if is_finite or not now.number else losses[-2]),
            grad_norm=float(jnp.linalg.norm(_on_all(problem, now.x, "grad"))),
            is_converged=is_finite and (self.target is None or is_reached),
            num_steps=now.number * num_batches,
            cost=Cost(values=now.number + 1, gradients=now.number * num_batches + 1),
            history=now.history,
        )

    def _name(self, problem: Problem, x: Vector, key: PRNGKeyArray) -> str:
        """A file name that depends on all that decides a training, but how long it may last."""
        hashed = hashlib.sha256(describe_optimizer(_built(self.optimizer)).encode())
        hashed.update(f"{self.batches} {self.metrics}".partition(" at 0x")[0].encode())
        for leaf in jax.tree.leaves((x, key, problem.args)):
            array = np.asarray(fetch(jax.random.key_data(leaf) if is_key(leaf) else leaf))
            hashed.update(f"{array.shape}{array.dtype}".encode() + array.tobytes())
        return f"training-{hashed.hexdigest()[:16]}.npz"


@dataclass(frozen=True)
class _Now:
    """A training between two epochs; `x` is the last point at which the loss was finite."""

    x: Vector
    state: Any
    history: dict[str, np.ndarray]

    @property
    def number(self) -> int:
        return len(self.history["loss"]) - 1

    @property
    def last(self) -> float:
        """The last loss, finite or not."""
        return float(self.history["loss"][-1])

    def then(self, x: Vector, state: Any, row: dict[str, float]) -> "_Now":
        history = {name: np.append(self.history[name], value) for name, value in row.items()}
        is_finite = np.isfinite(row["loss"])
        return _Now(x if is_finite else self.x, state if is_finite else self.state, history)


def trained(x: Vector, loss: float, grad_norm: float, **more: Any) -> Finish:
    """The end of a training on the host, never verified; `more` are further fields."""
    numbers = {"loss": loss, "grad_norm": grad_norm, "least_eigenvalue": np.nan}
    fields: dict[str, Any] = {name: np.asarray(one, x.dtype) for name, one in numbers.items()}
    for name in ("is_converged", "num_steps"):
        fields[name] = np.asarray(more.pop(name))
    return Finish(
        x=x,
        is_saddle=np.asarray(False),  # type: ignore[arg-type]  # on the host
        num_kicks=np.asarray(0),  # type: ignore[arg-type]
        doubt_number=TRAINED,
        **fields,
        **more,
    )


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


def _read(path: Path, like: Any) -> _Now:
    """A training as `_write` left it; `like` is a state of its optimizer."""
    with np.load(path) as stored:
        leaves, structure = jax.tree.flatten(like)
        state = [jnp.asarray(stored[f"state {i}"]) for i in range(len(leaves))]
        names = [name for name in stored if name.startswith("history ")]
        history = {name.removeprefix("history "): stored[name] for name in names}
        return _Now(jnp.asarray(stored["x"]), jax.tree.unflatten(structure, state), history)


def _write(path: Path, now: _Now) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{os.getpid()}.part")
    with scratch.open("wb") as file:
        states = {f"state {i}": leaf for i, leaf in enumerate(jax.tree.leaves(now.state))}
        columns = {f"history {name}": column for name, column in now.history.items()}
        np.savez(file, x=np.asarray(now.x), **fetch(states), **columns)  # type: ignore[arg-type]
    scratch.replace(path)
