"""How far to go along the ridge.

A step rule is a callable `step(attempt, size) -> (trial, next_size)` with an attribute `size`, the
first size to try. `attempt(size)` takes one step of that size, follows the ridge there and returns
a `Trial`; the rule may attempt as often as it likes and is charged for each.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from ridgerider._check import check_fraction, check_positive
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Number, Scalar, Vector
from ridgerider._core.ride.certificate import Certificate, Certified
from ridgerider._core.spectra.spectrum import Ridge


class Trial(Certified, eqx.Module):
    """One attempted step: where it leads and what became of the ridge.

    A step rule of your own gets trials from `attempt` and returns the one it takes:

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
MAX_HALVINGS = 100  # of one step; a `min_size` that rounds to zero would end none


class FixedStep(eqx.Module):
    """The same step size all the way.

    >>> FixedStep(0.05).size
    0.05
    """

    size: Number = 0.05

    def __check_init__(self) -> None:
        check_positive("size", self.size)

    def __call__(self, attempt: Attempt, size: Scalar) -> tuple[Trial, Scalar]:
        return attempt(size), size


class Backtracking(eqx.Module):
    """The largest step, halved from `size`, that keeps the ridge: overlap >= `delta_break`.

    The last accepted size is remembered and tried first in the next step; after a step that needed
    no halving it is doubled again, up to `size`. Below `min_size` the step is taken as it is, and
    the stop rules judge it.

    >>> Backtracking(delta_break=0.8).delta_break
    0.8
    """

    size: Number = 0.1
    delta_break: Number = 0.95
    min_size: Number = 1e-6

    def __check_init__(self) -> None:
        check_positive("size", self.size)
        check_positive("min_size", self.min_size)
        check_fraction("delta_break", self.delta_break)

    def __call__(self, attempt: Attempt, size: Scalar) -> tuple[Trial, Scalar]:
        def is_too_far(carry: tuple[Trial, Scalar, Int[Array, ""]]) -> Bool[Array, ""]:
            trial, untried, tries = carry
            # Written with `not >=`, so that a NaN counts as too far.
            goes_on = ~(trial.overlap >= self.delta_break) & (untried >= self.min_size)
            return (tries == 0) | (goes_on & (tries <= MAX_HALVINGS))

        def again(
            carry: tuple[Trial, Scalar, Int[Array, ""]],
        ) -> tuple[Trial, Scalar, Int[Array, ""]]:
            last, untried, tries = carry
            trial = attempt(untried)
            trial = eqx.tree_at(lambda t: t.cost, trial, last.cost + trial.cost)
            return trial, untried / 2, tries + 1

        # Starting from an empty trial compiles `attempt` once instead of twice; as a function of
        # its own it is traced once as well.
        attempt = jax.jit(attempt)
        empty = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(attempt, size)
        )
        trial, _, _ = jax.lax.while_loop(is_too_far, again, (empty, size, jnp.array(0)))
        accepted = trial.step_size
        grown = jnp.minimum(2 * accepted, jnp.asarray(self.size, accepted.dtype))
        return trial, jnp.where(accepted == size, grown, accepted)
