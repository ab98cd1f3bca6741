r"""Descend on the host, inside of bounds, to where Newton's steps take over.

Quasi-Newton steps: with the model B of the Hessian (BFGS, damped as Powell does) a step solves

    B_ff p_f = -g_f

among the coordinates f that no bound holds, no longer than a radius. A trial needs the value alone;
where it is not low enough, the step is shortened to the minimum of a parabola. So a trial that
fails costs one call of a function whose gradient is differences.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ridgerider._core.points.domain import Domain
from ridgerider._core.problem.calls import Calls, Point

Matrix = Float[np.ndarray, "n n"]
GAIN = 1e-2  # of what each of the last two steps has gained: one that promises less is the last
MAX_STEPS, MAX_TRIALS = 200, 12
ENOUGH = 1e-4  # a step gains at least this share of what the slope promises
FARTHER, FARTHEST = 8, 40  # times the first step: radii, at first and at most, inside of bounds


@dataclass
class Descent:
    """Where it ended, with the losses on the way."""

    x: Point
    loss: float
    grad: Point
    losses: list[float]
    is_far: bool = False
    is_long: bool = False  # it took as many steps as it may
    is_lost: bool = False  # right ahead the loss is not finite

    @property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.loss) and np.isfinite(self.grad).all() and not self.is_lost)


def descend(
    calls: Calls,
    domain: Domain,
    x: Point,
    first: float = 1.0,
    most: float = np.inf,
    hessian: Matrix | None = None,
    gain: float = GAIN,
) -> Descent:
    """Down from `x`, no farther than `most`, until the model promises hardly any gain.

    The first step is at most `first` long, unless the Hessian is known there: a descent should end
    in the well where it began.

    >>> import jax.numpy as jnp
    >>> from ridgerider._core.problem.problem import Problem
    >>> problem = Problem(lambda x: jnp.sum((x - 1) ** 4 + (x - 1) ** 2), jnp.zeros(2))
    >>> end = descend(Calls(problem), Domain(problem), np.zeros(2, problem.dtype))
    >>> [round(float(entry), 2) for entry in end.x]
    [1.0, 1.0]
    """
    begin = x = domain.inside(x)
    here = Descent(x, *calls.value_and_grad(x), [])
    here.losses.append(here.loss)
    radius, model = FARTHER * first, None if hessian is None else _positive(hessian)
    falls, eps = deque[float](maxlen=2), float(np.finfo(x.dtype).eps)
    for _ in range(MAX_STEPS):
        if not here.is_finite or here.is_far:
            break
        is_fresh = model is None
        if model is None:
            model = np.eye(len(x)) * max(domain.slope(here.x, here.grad) / first, 1e-300)
        step, length = _step(domain, model, here, radius)
        slope, curve = float(here.grad @ step), float(step @ model @ step)
        # With fewer steps than parameters it is not a model.
        gained = min(falls) if len(here.losses) > max(len(x), 2) else 0.0
        least = max(gain * gained, 64 * eps * abs(here.loss))
        if length <= radius and (-slope - curve / 2 <= least or length <= eps**0.5 * first):
            break
        if slope >= 0:  # bounds have bent it uphill
            if is_fresh:
                break
            model = None
            continue
        share, new = _lower(calls, here, step, slope)
        if new is None:
            break
        step, change = new.x - here.x, (new.grad - here.grad).astype(float)
        if is_fresh and step @ change > 0:
            model = np.eye(len(x)) * float(change @ change / (step @ change))
        model = _updated(model, step.astype(float), change)
        if share < 1:
            radius = max(2 * float(np.linalg.norm(step)), 1e-6 * first)
        elif length > radius and here.loss - new.loss > (-slope - curve / 2) / 4:
            radius = min(2 * radius, FARTHEST * first if domain.is_bounded else np.inf)
        falls.append(here.loss - new.loss)
        here = new
        here.losses.append(here.loss)
        here.is_far = float(np.linalg.norm(here.x - begin)) > most
    return here


def _step(domain: Domain, model: Matrix, here: Descent, radius: float) -> tuple[Point, float]:
    """A step inside of the bounds, and how long the model wants it to be."""
    held = domain.held(here.x, here.grad)
    while True:
        step, free = np.zeros(len(held)), ~held
        try:
            step[free] = -np.linalg.solve(model[np.ix_(free, free)], here.grad[free].astype(float))
        except np.linalg.LinAlgError:  # all is level
            return step, 0.0
        step = np.clip(step, -1e100, 1e100)  # where hardly anything is a slope
        length = float(np.linalg.norm(step))
        step *= min(1.0, radius / max(length, 1e-300))
        beyond = domain.beyond(here.x, step) & free
        if not beyond.any():
            return domain.inside((here.x + step).astype(here.x.dtype)) - here.x, length
        held = held | beyond


def _lower(calls: Calls, here: Descent, step: Point, slope: float) -> tuple[float, Descent | None]:
    """The share of the step that lowers the loss enough, and what is there."""
    share = 1.0
    for _ in range(MAX_TRIALS):
        x = (here.x + share * step).astype(here.x.dtype)
        if (x == here.x).all():
            break
        loss = calls.trial(x)
        if loss <= here.loss + ENOUGH * share * slope:
            return share, Descent(x, *calls.value_and_grad(x), here.losses)
        bend = loss - here.loss - share * slope
        best = -slope * share**2 / (2 * bend) if np.isfinite(bend) and bend > 0 else 0.25 * share
        share = min(max(best, 0.1 * share), 0.5 * share)
    return share, None


def _updated(model: Matrix, step: Point, change: Point) -> Matrix:
    """BFGS, damped so that the model stays positive definite."""
    image = model @ step
    curve, seen = float(step @ image), float(step @ change)
    if seen < 0.2 * curve:
        part = 0.8 * curve / (curve - seen)
        change = part * change + (1 - part) * image
        seen = float(step @ change)
    if not (curve > 0 and seen > 0 and np.isfinite(change).all()):
        return model
    return model - np.outer(image, image) / curve + np.outer(change, change) / seen


def _positive(hessian: Matrix) -> Matrix | None:
    """A Hessian with the sizes of its eigenvalues; None if it is not finite, or zero."""
    if not (np.isfinite(hessian).all() and hessian.any()):
        return None
    values, columns = np.linalg.eigh(hessian.astype(float))
    sizes = np.abs(values)
    return (columns * np.maximum(sizes, 1e-8 * sizes.max())) @ columns.T
