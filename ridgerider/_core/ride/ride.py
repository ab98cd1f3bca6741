"""Ride: the state of one ride along a ridge, and its result."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Scalar, Vector
from ridgerider._core.ride.step import Trial
from ridgerider._core.ride.update import Certificate, Certified
from ridgerider._core.spectra.spectrum import Ridge


class Trace(Certified, eqx.Module):
    """What each step saw. Row 0 is the start; rows beyond the ride's `num_steps` are zero.

    `multiplicity` is that of the cluster that is followed, as far as the update saw, and 0 where it
    did not tell nearly equal eigenvalues apart. `path` holds every `x`, or nothing where the rider
    does not keep it.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> ridge = rr.DenseSpectrum()(wells(2), wells(2).x0, jax.random.key(0)).ridge(0)
    >>> rider = rr.Rider(step=rr.FixedStep(0.5), max_steps=2)
    >>> trace = rider.ride(wells(2), wells(2).x0, ridge, jax.random.key(0)).trace
    >>> trace.eigenvalue.tolist(), trace.step_size.tolist()
    ([-1.5, -0.75, 1.5], [0.0, 0.5, 0.5])
    """

    loss: Float[Array, " rows"]
    eigenvalue: Float[Array, " rows"]
    certificate: Certificate
    step_size: Float[Array, " rows"]
    multiplicity: Int[Array, " rows"]
    path: Float[Array, "rows n"] | None

    @staticmethod
    def row(trial: Trial, keep_path: bool) -> "Trace":
        """What one step saw."""
        return Trace(
            loss=trial.loss,
            eigenvalue=trial.ridge.eigenvalue,
            certificate=trial.certificate,
            step_size=trial.step_size,
            multiplicity=trial.ridge.multiplicity,
            path=trial.x if keep_path else None,
        )

    def record(self, trial: Trial, step: Int[Array, ""]) -> "Trace":
        # Not `column.at[step].set(entry)`: that is a scatter, which compiles much longer.
        return jax.tree.map(
            lambda column, entry: jax.lax.dynamic_update_index_in_dim(column, entry, step, 0),
            self,
            Trace.row(trial, self.path is not None),
        )


class Ride(Certified, eqx.Module):
    """One ride: where it is, the ridge under it with its certificate, and the trace of every step.

    A step that leads to NaN or infinity is recorded in the trace but not taken: `x` and `loss` stay
    finite and `is_finite` reads false.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> ridge = rr.DenseSpectrum()(wells(2), wells(2).x0, jax.random.key(0)).ridge(0)
    >>> rider = rr.Rider(step=rr.FixedStep(0.5), max_steps=2)
    >>> ride = rider.ride(wells(2), wells(2).x0, ridge, jax.random.key(0))
    >>> int(ride.num_steps), ride.x.tolist()
    (2, [0.0, 1.0])
    """

    x: Vector
    ridge: Ridge
    loss: Scalar
    certificate: Certificate
    next_size: Scalar
    num_steps: Int[Array, ""]
    has_begun: Bool[Array, ""]  # false: the start itself is still to be evaluated, by the loop
    is_finite: Bool[Array, ""]
    trace: Trace
    cost: Cost

    @staticmethod
    def begin(
        trial: Trial, size: Scalar, max_steps: int, keep_path: bool, has_begun: bool
    ) -> "Ride":
        """A ride at its start, with room for `max_steps` steps."""
        row = Trace.row(trial, keep_path)
        trace = jax.tree.map(lambda leaf: jnp.zeros((max_steps + 1, *leaf.shape), leaf.dtype), row)
        return Ride(
            x=trial.x,
            ridge=trial.ridge,
            loss=trial.loss,
            certificate=trial.certificate,
            next_size=size,
            num_steps=jnp.array(0),
            has_begun=jnp.array(has_begun),
            is_finite=_is_finite(trial),
            trace=trace.record(trial, jnp.array(0)),
            cost=trial.cost,
        )

    def advance(self, trial: Trial, next_size: Scalar) -> "Ride":
        is_finite = _is_finite(trial)
        num_steps = self.num_steps + self.has_begun.astype(self.num_steps.dtype)

        def keep(new: Array, old: Array) -> Array:
            return jnp.where(is_finite, new, old)

        return Ride(
            x=keep(trial.x, self.x),
            ridge=jax.tree.map(keep, trial.ridge, self.ridge),
            loss=keep(trial.loss, self.loss),
            certificate=trial.certificate,
            next_size=next_size,
            num_steps=num_steps,
            has_begun=jnp.array(True),
            is_finite=is_finite,
            trace=self.trace.record(trial, num_steps),
            cost=self.cost + trial.cost,
        )


def _is_finite(trial: Trial) -> Bool[Array, ""]:
    return (
        jnp.isfinite(trial.loss)
        & jnp.isfinite(trial.ridge.eigenvalue)
        & jnp.all(jnp.isfinite(trial.x))
        & jnp.all(jnp.isfinite(trial.ridge.direction))
    )
