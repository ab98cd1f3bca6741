r"""Descents on the host by quasi-Newton steps, inside of bounds.

With the model B of the Hessian a step solves

    B_ff p_f = -g_f

among the coordinates f that no bound holds, no longer than a radius. B is a matrix (BFGS, damped as
Powell does) or, for many parameters and where `is_over` is given, what the last steps make of a
multiple of 1 (L-BFGS), which stays on the axis of a symmetry to the last digit. A step
that is not low enough is shortened to the minimum of a parabola; where values are cheaper than
gradients, a trial needs the value alone. Inside of bounds, without a gradient, the matrix is
a new Hessian every dozen steps: in a bent valley, or below a wall, what BFGS remembers is stale.
"""

import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from ridgerider._core.points.domain import Domain, Mask
from ridgerider._core.problem.calls import Calls, Point
from ridgerider._core.runtime.compile import eigh
from ridgerider._core.spectra.spectrum import DENSE_BELOW

Matrix = Float[np.ndarray, "n n"]
GAIN = 1e-2  # of what each of the last two steps has gained: one that promises less is the last
MAX_STEPS, MAX_TRIALS = 200, 12
ENOUGH = 1e-4  # a step gains at least this share of what the slope promises
FARTHER, FARTHEST = 8, 40  # times the first step: radii, at first and at most, inside of bounds
MEMORY = 10  # steps that L-BFGS remembers
REFRESH = 12  # steps, or twice the parameters if more, after which a Hessian is the model again


@dataclass
class Descent:
    """Where it ended, with the losses on the way."""

    x: Point
    loss: float
    grad: Point
    losses: list[float] = field(default_factory=list)
    is_far: bool = False
    is_long: bool = False  # it took as many steps as it may
    is_lost: bool = False  # right ahead the loss is not finite

    @property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.loss) and np.isfinite(self.grad).all() and not self.is_lost)


class Dense:
    """The model as a matrix: a Hessian with the sizes of its eigenvalues, then BFGS.

    Eigenvalues below 1e-8 times the largest, or below `least`, count as that.
    """

    def __init__(self, hessian: Matrix, least: float = 0.0):
        values, columns = eigh(hessian.astype(float))
        sizes = np.abs(values)
        sizes = np.maximum(sizes, max(1e-8 * sizes.max(), least))
        self.matrix, self.least = (columns * sizes) @ columns.T, 1e-12 * float(sizes.max())

    def step(self, grad: Point, free: Mask) -> Point:
        step = np.zeros(len(grad))
        if free.any():
            inner = self.matrix if free.all() else self.matrix[np.ix_(free, free)]
            with suppress(np.linalg.LinAlgError):  # all is level
                step[free] = -np.linalg.solve(inner, grad[free].astype(float))
        return step

    def add(self, step: Point, change: Point) -> None:
        """Take note of a step's change of the gradient; the matrix stays positive definite."""
        image = self.matrix @ step
        curve, seen = float(step @ image), float(step @ change)
        if seen < 0.2 * curve:
            if curve <= self.least * float(step @ step):  # soft enough
                return
            part = 0.8 * curve / (curve - seen)
            change = part * change + (1 - part) * image
            seen = float(step @ change)
        if curve > 0 and seen > 0 and np.isfinite(change).all():
            self.matrix = (
                self.matrix - np.outer(image, image / curve) + np.outer(change, change / seen)
            )


class Limited:
    """The model as the last steps, with their changes of the gradient, on a multiple of 1."""

    def __init__(self, scale: float):
        self.scale, self.pairs = scale, deque[tuple[Point, Point, float]](maxlen=MEMORY)

    def step(self, grad: Point, free: Mask) -> Point:
        step, parts = -np.where(free, grad, 0).astype(float), list[float]()
        for one, change, along in reversed(self.pairs):
            parts.append(float(one @ step) / along)
            step -= parts[-1] * change
        step /= self.scale
        for (one, change, along), part in zip(self.pairs, reversed(parts), strict=True):
            step += (part - float(change @ step) / along) * one
        return np.where(free, step, 0)

    def add(self, step: Point, change: Point) -> None:
        along = float(step @ change)
        if along > 0 and np.isfinite(change).all():
            self.pairs.append((step, change, along))
            self.scale = float(change @ change) / along


def descend(
    calls: Calls,
    domain: Domain,
    x: Point,
    first: float = 1.0,
    most: float = np.inf,
    hessian: Matrix | None = None,
    gain: float = GAIN,
    is_over: Callable[[Point, Point], bool] | None = None,
    max_steps: int = MAX_STEPS,
) -> Descent:
    """Down from `x`, no farther than `most`.

    The first step is at most `first` long, unless the Hessian is known there, and inside bounds
    none is much longer: a descent should end in the well where it began. It ends when the model
    promises hardly any `gain` or, if that is given, where `is_over(x, grad)`.

    >>> import jax.numpy as jnp
    >>> from ridgerider._core.problem.problem import Problem
    >>> problem = Problem(lambda x: jnp.sum((x - 1) ** 4 + (x - 1) ** 2), jnp.zeros(2))
    >>> end = descend(Calls(problem), Domain(problem), np.zeros(2, problem.dtype))
    >>> [round(float(entry), 2) for entry in end.x]
    [1.0, 1.0]
    """
    begin = x = domain.inside(x)
    here = Descent(x, *calls.value_and_grad(x))
    here.losses.append(here.loss)
    farthest = FARTHEST * first if domain.is_bounded else np.inf
    radius, eps, size = min(FARTHER * first, farthest), float(np.finfo(x.dtype).eps), len(x)
    model: Dense | Limited | None = None
    if hessian is not None and np.isfinite(hessian).all() and hessian.any():
        model = Dense(hessian, float(np.linalg.norm(here.grad)) / farthest)
    falls, is_small = deque[float](maxlen=2), size < DENSE_BELOW and is_over is None

    has_hessian = is_small and domain.is_bounded and calls.has_values

    def fresh(level: float) -> Dense | Limited:
        return Dense(level * np.eye(size)) if is_small else Limited(level)

    while here.is_finite and not here.is_far and not (is_over and is_over(here.x, here.grad)):
        if len(here.losses) > max_steps:
            here.is_long = True
            break
        is_fresh = model is None
        if has_hessian and len(here.losses) % max(REFRESH, 2 * size) == 0:
            matrix = calls.hessian(here.x)
            if np.isfinite(matrix).all() and matrix.any():
                model = Dense(matrix, float(np.linalg.norm(here.grad)) / farthest)
        if model is None:
            model = fresh(max(domain.slope(here.x, here.grad) / first, 1e-300))
        step, length = _step(domain, model, here, radius)
        slope = float(here.grad @ step)
        if slope >= 0:  # all is level, or bounds have bent it uphill
            if is_fresh or not length:
                break
            model = None
            continue
        promised = -slope * (1 - min(1.0, radius / length) / 2)
        if is_over is None and length <= radius:
            # With fewer steps than parameters it is not a model.
            gained = min(falls) if len(here.losses) > max(size, 2) else 0.0
            least = max(gain * gained, 64 * eps * abs(here.loss))
            if promised <= least or length <= eps**0.5 * first:
                break
        share, new = _lower(calls, domain, here, step, slope)
        if not new.is_finite:
            here.is_lost = not math.isfinite(new.loss)
            break
        step, change = (new.x - here.x).astype(float), (new.grad - here.grad).astype(float)
        if is_fresh and step @ change > 0:
            model = fresh(float(change @ change / (step @ change)))
        model.add(step, change)
        if share < 1:
            radius = max(2 * float(np.linalg.norm(step)), 1e-6 * first)
        elif length > radius and here.loss - new.loss > promised / 4:
            radius = min(2 * radius, farthest)
        falls.append(here.loss - new.loss)
        here = new
        here.losses.append(here.loss)
        here.is_far = float(np.linalg.norm(here.x - begin)) > most
    return here


def _step(
    domain: Domain, model: Dense | Limited, here: Descent, radius: float
) -> tuple[Point, float]:
    """A step inside of the bounds, and how long the model wants it to be."""
    held = domain.held(here.x, here.grad)
    while True:
        step = np.clip(model.step(here.grad, ~held), -1e100, 1e100)  # hardly anything is a slope
        length = float(np.linalg.norm(step))
        step *= min(1.0, radius / max(length, 1e-300))
        beyond = domain.beyond(here.x, step) & ~held
        if not beyond.any():
            return domain.inside((here.x + step).astype(here.x.dtype)) - here.x, length
        held = held | beyond


def _lower(
    calls: Calls, domain: Domain, here: Descent, step: Point, slope: float
) -> tuple[float, Descent]:
    """The share of the step that lowers the loss enough, and what is there; NaN if none does."""
    share, loss, slack = 1.0, here.loss, 1000 * float(np.finfo(here.x.dtype).eps) * abs(here.loss)
    for _ in range(MAX_TRIALS):
        x = domain.inside((here.x + share * step).astype(here.x.dtype))
        if (x == here.x).all():
            break
        loss, grad = calls.trial(x)
        if np.isfinite(loss) and loss <= here.loss + ENOUGH * share * slope + slack:
            grad = calls.value_and_grad(x)[1] if grad is None else grad
            return share, Descent(x, loss, grad, here.losses)
        bend = loss - here.loss - share * slope
        best = -slope * share**2 / (2 * bend) if np.isfinite(bend) and bend > 0 else 0.25 * share
        share = min(max(best, 0.1 * share), 0.5 * share)
    return share, Descent(here.x, loss, np.full_like(here.grad, np.nan))
