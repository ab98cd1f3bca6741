"""Descend on the host, inside of bounds, by SciPy's L-BFGS-B, to where Newton's steps take over."""

from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from ridgerider._core.points.domain import Domain
from ridgerider._core.problem.calls import Calls, Point

GAIN = 1e-4  # of all that the loss has fallen: a step that gains less is the last
MAX_STEPS = 500


class _Over(Exception):
    pass


@dataclass
class Descent:
    """Where it ended, with the losses on the way."""

    x: Point
    loss: float
    grad: Point
    losses: list[float]
    is_far: bool = False

    @property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.loss) and np.isfinite(self.grad).all())


def descend(
    calls: Calls,
    domain: Domain,
    x: Point,
    first: float = 1.0,
    most: float = np.inf,
    gain: float = GAIN,
) -> Descent:
    """Down from `x`, no farther than `most`, until the loss hardly falls any more.

    The first step is at most `first` long: a descent should end in the well where it began. The
    last one has gained no more than `gain` of all that was gained before, and the slope is less
    than its square root of the steepest.

    >>> import jax.numpy as jnp
    >>> from ridgerider._core.problem.problem import Problem
    >>> problem = Problem(lambda x: jnp.sum((x - 1) ** 4 + (x - 1) ** 2), jnp.zeros(2))
    >>> end = descend(Calls(problem), Domain(problem), np.zeros(2, problem.dtype))
    >>> [round(float(entry), 2) for entry in end.x]
    [1.0, 1.0]
    """
    from scipy.optimize import fmin_l_bfgs_b  # when it is needed: it takes a while

    dtype, x = x.dtype, domain.inside((first * (x.astype(float) / first)).astype(x.dtype))
    last = Descent(x, *calls.value_and_grad(x), [])
    last.losses.append(last.loss)
    seen, begin, steepest = [last], x, domain.slope(x, last.grad)

    def evaluate(steps: Point) -> tuple[float, Point]:  # in units of the first step
        x = domain.inside((first * steps).astype(dtype))
        if np.array_equal(x, seen[-1].x):
            return seen[-1].loss, first * seen[-1].grad.astype(float)
        loss, grad = calls.value_and_grad(x)
        seen.append(Descent(x, loss, grad, last.losses))
        del seen[:-2]
        return loss, first * grad.astype(float)

    def step(steps: Point) -> None:
        nonlocal last, steepest
        x = domain.inside((first * steps).astype(dtype))
        last = next((one for one in reversed(seen) if np.array_equal(one.x, x)), last)
        last.losses.append(last.loss)
        fall, all_of_it = last.losses[-2] - last.loss, last.losses[0] - last.loss
        last.is_far = float(np.linalg.norm(last.x - begin)) > most
        slope = domain.slope(last.x, last.grad)
        steepest = max(steepest, slope)
        is_level = fall <= gain * all_of_it and slope <= gain**0.5 * steepest
        if is_level or last.is_far or not np.isfinite(last.loss):
            raise _Over

    if last.is_finite:
        with suppress(_Over):
            fmin_l_bfgs_b(
                evaluate,
                x.astype(float) / first,
                bounds=domain.pairs(first),
                factr=0.0,
                pgtol=0.0,
                maxiter=MAX_STEPS,
                callback=step,
            )
    return last
