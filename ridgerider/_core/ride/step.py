"""How far to go along the ridge.

A step rule is a callable `step(attempt, size) -> (trial, next_size)` with a field `size`, the first
size to try. `attempt(size)` takes one step of that size, follows the ridge there and returns
a `Trial`; the rule may attempt as often as it likes and is charged for each.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from ridgerider._check import Fraction, Positive, check_fields
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Number, Scalar, Vector
from ridgerider._core.ride.update import Certificate, Certified
from ridgerider._core.spectra.spectrum import Ridge


class Trial(Certified, eqx.Module):
    """One attempted step: where it leads and what became of the ridge.

    A custom step rule gets trials from `attempt` and returns the one it takes:

    >>> import ridgerider as rr
    >>> class Shrinking(eqx.Module):
    ...     size: float = 0.1
    ...     def __call__(self, attempt, size):
    ...         trial = attempt(size)
    ...         return trial, jnp.where(trial.overlap < 0.99, size / 2, size)
    >>> rider = rr.Rider(step=Shrinking())
    """

    x: Vector
    ridge: Ridge
    loss: Scalar
    certificate: Certificate
    step_size: Scalar
    cost: Cost


Attempt = Callable[[Scalar], Trial]
TakeStep = Callable[[Attempt, Scalar], tuple[Trial, Scalar]]
MAX_HALVINGS = 100  # of one step; a `min_size` that rounds to zero would end none


@runtime_checkable
class StepRule(Protocol):
    """What `Rider.step` may be: a callable with a field `size`."""

    @property
    def size(self) -> Number: ...

    def __call__(self, attempt: Attempt, size: Scalar) -> tuple[Trial, Scalar]: ...


class FixedStep(eqx.Module):
    """The same step size throughout.

    >>> FixedStep(0.05).size
    0.05
    """

    size: Positive = 0.05

    __check_init__ = check_fields

    def __call__(self, attempt: Attempt, size: Scalar) -> tuple[Trial, Scalar]:
        return attempt(size), size


class Backtracking(eqx.Module):
    """The largest step, halved from `size`, that keeps the ridge: overlap >= `delta_break`.

    The last accepted size is remembered and tried first in the next step; after a step that needed
    no halving it is doubled again, up to `size`. Below `min_size` the step is taken anyway, and
    the stop rules decide.

    >>> Backtracking(delta_break=0.8).delta_break
    0.8
    """

    size: Positive = 0.1
    delta_break: Fraction = 0.95
    min_size: Positive = 1e-6

    __check_init__ = check_fields

    def __call__(self, attempt: Attempt, size: Scalar) -> tuple[Trial, Scalar]:
        def is_kept(trial: Trial) -> Bool[Array, ""]:
            return trial.overlap >= self.delta_break

        trial = halved_until(is_kept, attempt, size, self.min_size, MAX_HALVINGS)
        accepted = trial.step_size
        grown = jnp.minimum(2 * accepted, jnp.asarray(self.size, accepted.dtype))
        return trial, jnp.where(accepted == size, grown, accepted)


class _Halving(eqx.Module):
    """The last trial, the size to try next, and how many were tried."""

    trial: Trial
    size: Scalar
    count: Int[Array, ""]


def halved_until(
    is_good: Callable[[Trial], Bool[Array, ""]],
    attempt: Attempt,
    size: Scalar,
    min_size: Number,
    max_halvings: int,
) -> Trial:
    """The first good trial of sizes `size`, `size` / 2, ...; the last one if none is good.

    Its cost is that of all of them. A step of size zero is tried once.
    """

    def should_continue(state: _Halving) -> Bool[Array, ""]:
        # Written with `not`, so that a NaN counts as not good.
        may_halve = (state.size >= min_size) & (state.size > 0) & (state.count <= max_halvings)
        return (state.count == 0) | (~is_good(state.trial) & may_halve)

    def again(state: _Halving) -> _Halving:
        trial = attempt(state.size)
        trial = eqx.tree_at(lambda t: t.cost, trial, state.trial.cost + trial.cost)
        return _Halving(trial, state.size / 2, state.count + 1)

    # Starting from an empty trial compiles `attempt` once instead of twice; as a separate
    # function it is traced once as well.
    attempt = jax.jit(attempt)
    start = _Halving(zeros_of(attempt, size), size, jnp.array(0))
    return jax.lax.while_loop(should_continue, again, start).trial


def zeros_of(function: Callable[..., Any], *args: Any) -> Any:
    """What `function(*args)` would return, with zeros for all numbers."""
    shapes = jax.eval_shape(function, *args)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
