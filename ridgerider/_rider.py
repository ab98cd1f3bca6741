"""Rider: the inner loop of Ridge Rider, as one compiled program.

    step -> correct -> update -> stop?

Each plug-in is a field; swap a field to swap a rule.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

from ridgerider._finish import Descend, Finish
from ridgerider._problem import Cost, Problem, Scalar, Vector
from ridgerider._ride import Ride, Trace
from ridgerider._spectrum import DenseSpectrum, Ridge, Spectrum
from ridgerider._step import Attempt, Backtracking, Trial
from ridgerider._stop import RidgeLost, Stalled, curvature_gone, not_finite
from ridgerider._update import Project, Tracked

StopRule = Callable[[Ride], Bool[Array, ""]]


class Rider(eqx.Module):
    """How to ride: swap a field to swap a rule.

    **Arguments**

    - `spectrum(problem, x, key) -> Spectrum`: the ridges at a point.
    - `update(problem, x, ridge, key) -> Tracked`: UpdateRidge, the same ridge at the next point.
    - `step(attempt, size) -> (Trial, size)`: how far to go.
    - `stop`: EndRide, a tuple of rules `rule(ride) -> bool`; the first that reads true ends the
      ride.
    - `correct(problem, x, ridge) -> (x, Cost)`: moves the point after a step, before the ridge is
      updated; or None.
    - `finish(problem, x, key, spectrum) -> Finish`: what happens at the end of a leg; or None.
    - `max_steps`: the longest ride. The trace has room for as many steps.
    - `keep_path`: whether the trace holds every `x` as well (small problems only).

    >>> import ridgerider as rr
    >>> rider = rr.Rider(step=rr.FixedStep(0.1), max_steps=50)
    >>> rider.rule_names()
    ('curvature_gone', 'RidgeLost', 'Stalled', 'not_finite', 'max_steps')
    """

    spectrum: Callable[[Problem, Vector, PRNGKeyArray], Spectrum] = DenseSpectrum()
    update: Callable[[Problem, Vector, Ridge, PRNGKeyArray], Tracked] = Project()
    step: Callable[[Attempt, Scalar], tuple[Trial, Scalar]] = Backtracking()
    stop: tuple[StopRule, ...] = (curvature_gone, RidgeLost(), Stalled(), not_finite)
    correct: Callable[[Problem, Vector, Ridge], tuple[Vector, Cost]] | None = None
    finish: Callable[..., Finish] | None = Descend()
    max_steps: int = eqx.field(static=True, default=1000)
    keep_path: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        for name in ("spectrum", "update", "step", "correct", "finish"):
            plug = getattr(self, name)
            if not callable(plug) and not (plug is None and name in ("correct", "finish")):
                raise ValueError(f"`{name}` must be callable, not {plug!r}.")
        if not isinstance(self.stop, tuple) or not all(map(callable, self.stop)):
            raise ValueError(
                f"`stop` must be a tuple of callables rule(ride) -> bool, not {self.stop!r}."
            )
        if isinstance(self.update, Project):
            one, two = (
                getattr(self.spectrum, "cluster_tolerance", None),
                self.update.cluster_tolerance,
            )
            if one is not two and one != two:
                raise ValueError(
                    "`cluster_tolerance` must be the same for `spectrum` and `update`, "
                    f"not {one!r} and {two!r}."
                )
        if not isinstance(self.max_steps, int) or self.max_steps < 1:
            raise ValueError(
                f"`max_steps` must be a whole number of at least 1, not {self.max_steps!r}."
            )

    def rule_names(self) -> tuple[str, ...]:
        """The reasons a ride may end for, in the order of `ended`."""
        return (
            *(getattr(rule, "__name__", type(rule).__name__) for rule in self.stop),
            "max_steps",
        )

    def ended(self, ride: Ride) -> Bool[Array, " rules"]:
        """One flag for each of `rule_names`."""
        return jnp.stack([rule(ride) for rule in self.stop] + [ride.num_steps >= self.max_steps])

    def ride(self, problem: Problem, x: Vector, ridge: Ridge, key: PRNGKeyArray) -> Ride:
        """Follow `ridge` from `x` until a rule fires."""

        def go_on(ride: Ride) -> Bool[Array, ""]:
            return ~jnp.any(self.ended(ride))

        def step(ride: Ride) -> Ride:
            here = jax.random.fold_in(key, ride.num_steps)
            trial, next_size = self.step(
                lambda size: self._attempt(problem, ride, here, size), ride.next_size
            )
            return ride.advance(trial, next_size)

        return jax.lax.while_loop(go_on, step, self._begin(problem, x, ridge, key))

    def _begin(self, problem: Problem, x: Vector, ridge: Ridge, key: PRNGKeyArray) -> Ride:
        size = jnp.asarray(getattr(self.step, "size", 1.0), x.dtype)
        trial = self._arrive(problem, x, ridge, key, jnp.zeros_like(size), Cost())
        return Ride.begin(trial, size, Trace.empty(trial, self.max_steps, self.keep_path))

    def _attempt(self, problem: Problem, ride: Ride, key: PRNGKeyArray, size: Scalar) -> Trial:
        x, cost = ride.x + size * ride.ridge.direction, Cost()
        if self.correct is not None:
            x, cost = self.correct(problem, x, ride.ridge)
        return self._arrive(problem, x, ride.ridge, key, size, cost)

    def _arrive(
        self, problem: Problem, x: Vector, ridge: Ridge, key: PRNGKeyArray, size: Scalar, cost: Cost
    ) -> Trial:
        """Follow `ridge` to `x`, which a step of `size` led to."""
        tracked = self.update(problem, x, ridge, key)
        return Trial(
            x=x,
            ridge=tracked.ridge,
            loss=problem.value(x),
            overlap=tracked.overlap,
            residual=tracked.residual,
            gap=tracked.gap,
            step_size=size,
            cost=cost + tracked.cost + Cost(values=1),
        )
