"""Rider: the inner loop of Ridge Rider, as one compiled program.

    batch -> step -> correct -> update -> stop?

Each plug-in is a field; swap a field to swap a rule. `Ride` is the state of the loop.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ridgerider._check import Count, check_fields, checked
from ridgerider._core.descend.finish import Descend, Finish
from ridgerider._core.descend.train import Relax
from ridgerider._core.problem.batches import FixedRows
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Number, Problem, Scalar, Vector
from ridgerider._core.ride.quasi_newton import QuasiNewton
from ridgerider._core.ride.step import Backtracking, StepRule, TakeStep, Trial, zeros_of
from ridgerider._core.ride.stop import RidgeLost, Stalled, curvature_gone, not_finite
from ridgerider._core.ride.trust_region import Follow
from ridgerider._core.ride.update import Certificate, Certified, Davidson, Project, Tracked
from ridgerider._core.runtime.compile import Effort
from ridgerider._core.spectra.block import BlockSpectrum
from ridgerider._core.spectra.spectrum import DenseSpectrum, Ridge, Spectrum


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
        row, zero = Trace.row(trial, keep_path), jnp.array(0)
        trace = jax.tree.map(lambda leaf: jnp.zeros((max_steps + 1, *leaf.shape), leaf.dtype), row)
        return Ride._at(trial, trace, zero, next_size=size, has_begun=jnp.array(has_begun))

    @staticmethod
    def _at(trial: Trial, trace: Trace, num_steps: Int[Array, ""], **more: Any) -> "Ride":
        return Ride(
            x=trial.x,
            ridge=trial.ridge,
            loss=trial.loss,
            certificate=trial.certificate,
            num_steps=num_steps,
            is_finite=_is_finite(trial),
            trace=trace.record(trial, num_steps),
            cost=trial.cost,
            **more,
        )

    def advance(self, trial: Trial, next_size: Scalar) -> "Ride":
        num_steps = self.num_steps + self.has_begun.astype(self.num_steps.dtype)
        new = Ride._at(trial, self.trace, num_steps, next_size=next_size, has_begun=jnp.array(True))
        place = jax.tree.map(
            lambda new, old: jnp.where(_is_finite(trial), new, old),
            (new.x, new.ridge, new.loss),
            (self.x, self.ridge, self.loss),
        )
        x, ridge, loss = place
        return dataclasses.replace(new, x=x, ridge=ridge, loss=loss, cost=self.cost + trial.cost)


def _is_finite(trial: Trial) -> Bool[Array, ""]:
    return (
        jnp.isfinite(trial.loss)
        & jnp.isfinite(trial.ridge.eigenvalue)
        & jnp.all(jnp.isfinite(trial.x))
        & jnp.all(jnp.isfinite(trial.ridge.direction))
    )


SpectrumRule = Callable[[Problem, Vector, PRNGKeyArray], Spectrum]
Batch = Callable[[Problem, PRNGKeyArray, Int[Array, ""]], Problem]
StopRule = Callable[[Ride], Bool[Array, ""]]
Correct = Callable[[Problem, Vector, Ridge], tuple[Vector, Cost]]
# Rides of networks are short beside their descents, and compiling them is what one waits for.
NETWORK_EFFORT: Effort = "little"


class Rider(eqx.Module):
    """How ridges are followed; each field is a rule that can be replaced.

    **Arguments**

    - `spectrum(problem, x, key) -> Spectrum`: the ridges at a point.
    - `update(problem, x, ridge, key) -> Tracked`: UpdateRidge, the same ridge at the next point.
    - `step(attempt, size) -> (Trial, size)`: how far to go; its field `size` is the first one to
      try. None with `Follow`, which includes a step rule and a corrector.
    - `stop`: EndRide, a tuple of rules `rule(ride) -> bool`; the first that returns true ends
      the ride.
    - `correct(problem, x, ridge) -> (x, Cost)`: moves the point after a step, before the ridge is
      updated; or None.
    - `finish(problem, x, key, spectrum) -> Finish`: what happens at the end of a leg; or None.
    - `batch(problem, key, step) -> Problem`: the rows of the data that a step uses, such as
      `Batches`; or None for all of them.
    - `max_steps`: the longest ride. The trace has room for as many steps.
    - `keep_path`: whether the trace holds every `x` as well (small problems only).
    - `effort`: how much compilation does for the speed of its programs: "full", "little", "none".

    >>> import ridgerider as rr
    >>> rider = rr.Rider(step=rr.FixedStep(0.1), max_steps=50)
    >>> rider.rule_names()
    ('curvature_gone', 'RidgeLost', 'Stalled', 'not_finite', 'max_steps')
    """

    spectrum: SpectrumRule = DenseSpectrum()
    update: Callable[[Problem, Vector, Ridge, PRNGKeyArray], Tracked] = QuasiNewton()
    step: TakeStep | None = Backtracking()
    stop: tuple[StopRule, ...] = (curvature_gone, RidgeLost(), Stalled(), not_finite)
    correct: Correct | None = None
    finish: Callable[..., Finish] | None = Descend()
    batch: Batch | None = None
    max_steps: Count = eqx.field(static=True, default=1000)
    keep_path: bool = eqx.field(static=True, default=False)
    effort: Effort = eqx.field(static=True, default="full")

    def __check_init__(self) -> None:
        check_fields(self)
        follows = isinstance(self.update, Follow)
        if follows and not (self.step is None and self.correct is None):
            raise ValueError(
                "`step` and `correct` must be None with `Follow`, which includes both, not "
                f"{self.step!r} and {self.correct!r}."
            )
        if not follows and not isinstance(self.step, StepRule):
            raise ValueError(
                f"`step` must be callable, with a field `size`, the first one, not {self.step!r}."
            )
        if isinstance(self.spectrum, DenseSpectrum | BlockSpectrum) and (
            isinstance(self.update, Project | QuasiNewton | Davidson)
        ):
            one, two = self.spectrum.cluster_tolerance, self.update.cluster_tolerance
            if one is not two and one != two:  # they would call different things one eigenspace
                raise ValueError(
                    "`cluster_tolerance` must be the same for `spectrum` and `update`, "
                    f"not {one!r} and {two!r}."
                )

    @staticmethod
    def for_networks(**fields: Any) -> "Rider":
        """A rider for networks that tunes itself: no setting depends on the model.

        Steps are as long as a model of the loss predicts its change; the corrector's damping
        follows from the same comparison, its size from the noise of the gradient, and HVPs are
        spent only where they pay. All rides are on the same rows of the data, so spectrum and ride
        agree and no ride ends where it begins. Begin at `network_start`. A leg ends with `Relax`,
        which finds its learning rate and its batch by itself.

        **Arguments**

        - `fields`: those of `Rider` to set otherwise, e.g. `finish` or `max_steps`.

        >>> import ridgerider as rr
        >>> rr.Rider.for_networks(max_steps=50).rule_names()
        ('curvature_gone', 'RidgeLost', 'not_finite', 'max_steps')
        """
        own: dict[str, Any] = {
            "spectrum": BlockSpectrum.for_networks(),
            "update": Follow(),
            "step": None,
            "batch": FixedRows(),
            "stop": (curvature_gone, RidgeLost(), not_finite),
            "finish": Relax(),
            "max_steps": 200,
            "effort": NETWORK_EFFORT,
        }
        return Rider(**(own | fields))

    def rule_names(self) -> tuple[str, ...]:
        """The reasons a ride may end for, in the order of `ended`."""
        return (
            *(getattr(rule, "__name__", type(rule).__name__) for rule in self.stop),
            "max_steps",
        )

    def ended(self, ride: Ride) -> Bool[Array, " rules"]:
        """One flag for each of `rule_names`."""
        flags = [rule(ride) for rule in self.stop] + [ride.num_steps >= self.max_steps]
        return jnp.stack(flags) & ride.has_begun

    @checked
    @eqx.filter_jit
    def ride(self, problem: Problem, x: Vector, ridge: Ridge, key: PRNGKeyArray) -> Ride:
        """Follow `ridge` from `x` until a rule fires. Compiled once for each problem and rider."""
        first_size, take_step, correct = self._rules()

        def should_continue(ride: Ride) -> Bool[Array, ""]:
            return ride.is_finite & ~jnp.any(self.ended(ride))

        def step(ride: Ride) -> Ride:
            here = jax.random.fold_in(key, ride.num_steps)
            on_batch = self.on_batch(problem, key, ride.num_steps)

            def attempt(size: Scalar) -> Trial:
                length = size if isinstance(self.update, Follow) else size * problem.unit
                x, cost = ride.x + length * ride.ridge.direction, Cost()
                if correct is not None:
                    x, cost = correct(on_batch, x, ride.ridge)
                return self._arrive(on_batch, x, ride.ridge, here, size, cost)

            trial, next_size = take_step(attempt, ride.next_size)
            first = jnp.asarray(first_size, ride.x.dtype)
            return ride.advance(trial, jnp.where(ride.has_begun, next_size, first))

        start = self._begin(problem, x, ridge, key)
        return jax.lax.while_loop(should_continue, step, start)

    def _begin(self, problem: Problem, x: Vector, ridge: Ridge, key: PRNGKeyArray) -> Ride:
        """The ride before its first step.

        With an update whose ridges have one shape throughout, the loop evaluates the start as a
        step of size zero, so that the update is compiled once and not twice. A corrector would
        move the start.
        """
        problem, zero = self.on_batch(problem, key, jnp.array(0)), jnp.zeros((), x.dtype)

        def arrive(ridge: Ridge) -> Trial:
            return self._arrive(problem, x, ridge, key, zero, Cost())

        if isinstance(self.update, Follow | Project | QuasiNewton) and self.correct is None:
            ridge = self.update.begin(problem, x, ridge)
            trial = dataclasses.replace(zeros_of(arrive, ridge), x=x, ridge=ridge)
            return Ride.begin(trial, zero, self.max_steps, self.keep_path, has_begun=False)
        size = jnp.asarray(self._rules()[0], x.dtype)
        return Ride.begin(arrive(ridge), size, self.max_steps, self.keep_path, has_begun=True)

    def _rules(self) -> tuple[Number, TakeStep, Correct | None]:
        """The first size to try, how far to go, and the corrector."""
        if isinstance(self.update, Follow):
            return self.update.size, self.update.step, self.update.correct
        assert isinstance(self.step, StepRule)
        return self.step.size, self.step, self.correct

    @eqx.filter_jit
    def spectrum_at(self, problem: Problem, x: Vector, key: PRNGKeyArray) -> Spectrum:
        """The ridges at `x`, on a batch if the rider has batches."""
        return spectrum_on_batch(problem, self.spectrum, self.batch, x, key)

    def on_batch(self, problem: Problem, key: PRNGKeyArray, step: Int[Array, ""]) -> Problem:
        """The problem as step `step` sees it."""
        return _on_batch(problem, self.batch, key, step)

    def _arrive(
        self, problem: Problem, x: Vector, ridge: Ridge, key: PRNGKeyArray, size: Scalar, cost: Cost
    ) -> Trial:
        """Follow `ridge` to `x`, which a step of `size` led to."""
        tracked = self.update(problem, x, ridge, key)
        return Trial(
            x=x,
            ridge=tracked.ridge,
            loss=problem.value(x) if tracked.loss is None else tracked.loss,
            certificate=tracked.certificate,
            step_size=size,
            cost=cost + tracked.cost + Cost(values=1),
        )


def spectrum_on_batch(
    problem: Problem, spectrum: SpectrumRule, batch: Batch | None, x: Vector, key: PRNGKeyArray
) -> Spectrum:
    """The ridges at `x` on a batch: a program that depends on nothing else of a rider."""
    return spectrum(_on_batch(problem, batch, key, jnp.array(0)), x, key)


def _on_batch(
    problem: Problem, batch: Batch | None, key: PRNGKeyArray, step: Int[Array, ""]
) -> Problem:
    if batch is None:
        return problem
    # A separate key: the update draws from the one that is folded with the step.
    return batch(problem, jax.random.fold_in(key, 2**31), step)
