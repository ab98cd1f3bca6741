r"""To a saddle: climb along the lowest modes of the Hessian and descend along all others.

In the eigenbasis of the Hessian, where the gradient has the parts g_i, a step moves

    +g_i / |lambda_i|  along the modes to climb, the lowest ones,
    -g_i / |lambda_i|  along all others,

each by no more than a *radius*, and by the whole radius along a mode that should curve upwards and
does not. Only saddles with as many negative eigenvalues as there are modes to climb are stable
under such steps, and close to them the steps are Newton's. The radius grows and shrinks with how
well the Hessian predicts the next gradient.

Where a mode to climb still curves upwards there is no ridge yet. The step then goes against the
gradient of its curvature, grad (e^T H(x) e), to where the mode softens, and a little downhill.

Modes whose curvature is rounding (shifts, rotations) are never climbed, nor divided by.

With a *penalty* the steps minimise |grad L(x)| + weight * regularizer(x): Newton's on the gradient,
and against the regularizer's gradient in the null space of the Hessian, taken if the sum falls. The
norm is not squared: it is an exact penalty, so a small enough weight leaves the minimiser exactly
on grad L = 0.

As in a climb, the loop runs on the host, and its modes are those of `climb`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import PyTree

from ridgerider._core.points.climb import Modes, modes_of, prediction_error, ritz_modes
from ridgerider._core.problem.calls import Calls, Point, Rows
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem, Scalar, Vector
from ridgerider._core.runtime.compile import program_of
from ridgerider._core.spectra.spectrum import tolerance_of

RADIUS, MAX_RADIUS = 0.2, 1.0  # along each mode, at first and at most, in units of the problem
MAX_TURNS = 1  # how often the ridge may be lost again before the start is given up
SETTLE = 0.3  # how much of the other modes' descent goes with a step to where a mode softens
NUM_PRODUCTS = 40  # per step, where the Hessian is not formed


class Penalty:
    """What to make small besides the gradient: `regularizer(params)`, times `weight`."""

    def __init__(self, problem: Problem, regularizer: Callable[[PyTree], Scalar], weight: float):
        def value(problem: Problem, x: Vector) -> Scalar:
            return regularizer(problem.unravel(x))

        self.weight, self._value = weight, program_of(problem, value)
        self.slope = program_of(problem, lambda problem, x: jax.grad(value, 1)(problem, x))

    def value(self, here: "Here") -> float:
        return float(np.linalg.norm(here.grad)) + self.weight * float(self._value(here.x))


@dataclass
class Here:
    """A point with its gradient and its modes."""

    x: Point
    grad: Point
    modes: Modes
    unit: float

    @property
    def num_downhill(self) -> int:
        return int(np.sum(self.modes.is_down))

    def is_stationary(self, tolerance: float | None = None) -> bool:
        size = self.modes.scale * max(self.unit, float(np.linalg.norm(self.x)))
        most = float(tolerance_of(tolerance, self.x.dtype)) * size
        return bool(np.linalg.norm(self.grad) <= most)

    def is_saddle(self, index: int) -> bool:
        count = self.num_downhill
        return self.is_stationary() and (count > 0 if index < 0 else count == index)


@dataclass
class _Move:
    """A step in the modes; a kick leaves a stationary point that is not a saddle."""

    parts: Point
    is_bent: bool  # there is more to come than Newton's step
    is_kick: bool = False


def to_saddle(
    calls: Calls,
    penalty: Penalty | None,
    index: int,
    max_steps: int,
    x: Point,
    known: Rows | None,
    random: Point,
) -> Here:
    """Go from `x` to a saddle with `index` negative eigenvalues, any number of them if it is -1.

    `known`: unit rows close to the lowest modes; the others are then looked for by Hessian-vector
    products. None forms the Hessian. `random`: which way to go where there is no slope.
    """
    unit, rounding = float(calls.problem.unit), 10 * float(np.finfo(x.dtype).eps)
    here, radius, num_turns, wanted = _look(calls, x, known), RADIUS * unit, 0, max(index, 1)
    is_done = penalty is None and here.is_saddle(index) and here.is_stationary(rounding)
    for _ in range(max_steps):
        if is_done:
            break
        if penalty is None:
            move = _follow(calls, here, index, radius, random)
        else:
            move = _newton(penalty, here, radius)
        rows, values = here.modes.rows, here.modes.eigenvalues
        known = None if known is None else rows[: len(known)]
        new = _look(calls, here.x + move.parts @ rows, known)
        error = prediction_error(here.grad, new.grad, (values * move.parts) @ rows)
        is_better = bool(np.linalg.norm(new.grad) < np.linalg.norm(here.grad) / 2)
        is_right = error < 2 or is_better
        if penalty is not None:
            is_right = penalty.value(new) < penalty.value(here)
        is_lost = is_right and here.num_downhill >= wanted > new.num_downhill
        num_turns += is_lost or move.is_kick
        is_over = penalty is None and num_turns > MAX_TURNS
        is_there = here.is_saddle(index) if penalty is None else here.is_stationary()
        is_end = is_there and not is_better and not move.is_bent  # a step would only lead away
        is_taken = is_right and np.isfinite(new.grad).all() and not is_over and not is_end
        # Newton steps continue from stationary to exact, while they gain something.
        is_exact = penalty is None and new.is_saddle(index) and new.is_stationary(rounding)
        is_done = is_over or is_end or (is_exact and is_taken)
        if not is_taken or error > 1:
            radius /= 3
        elif error < 0.5 and (move.is_bent or np.any(np.abs(move.parts) >= 0.99 * radius)):
            radius = min(2 * radius, MAX_RADIUS * unit)
        here = new if is_taken else here
    return here


def _follow(calls: Calls, here: Here, index: int, radius: float, random: Point) -> _Move:
    """Climb the lowest curved modes, `index` of them, and descend along all others."""
    modes, parts = here.modes, here.modes.rows @ here.grad
    is_negative, rank = modes.is_down, np.cumsum(modes.is_curved) - 1
    # Off a stationary point turns of it have curvatures, too, up to |grad| / |x|: no curvature
    # below that is believed. Close to one this is Newton's step up to second order.
    doubt = np.linalg.norm(here.grad) / max(here.unit, float(np.linalg.norm(here.x)))
    least = max(modes.cut, float(doubt), float(np.finfo(here.x.dtype).tiny))
    steepness = np.maximum(np.abs(modes.eigenvalues), least)
    newton = np.clip(parts / steepness, -radius, radius)
    # Close to a saddle of whatever index: Newton.
    is_near = index < 0 and np.all(np.abs(parts) <= radius * steepness) and is_negative.any()
    is_up = is_negative if is_near else modes.is_curved & (rank < max(index, 1))
    # By the whole radius down what curves downwards; where there is no slope, to either side.
    rounding = 10 * np.finfo(here.x.dtype).eps * modes.scale
    slopes = np.where(np.abs(parts) > rounding, parts, modes.rows @ random)
    down = np.where(is_negative, np.sign(slopes) * radius, newton)
    ordinary = np.where(is_up & is_negative, newton, -down)
    is_wrong = is_up & (modes.eigenvalues > 0)
    if not is_wrong.any():
        return _Move(ordinary, is_bent=False)
    last = int(np.argmax(np.where(is_wrong, rank, -1)))
    bend = np.asarray(program_of(calls.problem, _bend)(here.x, modes.rows[last]))
    calls.charge(Cost(hvps=2))
    steepest = float(np.linalg.norm(bend))
    if steepest * radius > modes.cut:
        soften = -radius / steepest * (modes.rows @ bend)
        return _Move(soften + SETTLE * np.where(is_wrong, 0, ordinary), is_bent=True)
    # Curvature that is the same everywhere around, or a symmetric minimum: see from a little off.
    is_kick = here.is_stationary()
    kick = np.where(np.arange(len(parts)) == last, radius * np.sign(slopes), 0)
    return _Move(kick if is_kick else ordinary, is_bent=True, is_kick=is_kick)


def _bend(problem: Problem, x: Vector, mode: Vector) -> Vector:
    """The gradient of the curvature along a mode."""
    return jax.jvp(lambda x: problem.hvp(x, mode), (x,), (mode,))[1]


def _newton(penalty: Penalty, here: Here, radius: float) -> _Move:
    """Down the sum of both: Newton's step where there is curvature, the whole radius elsewhere."""
    modes, is_curved = here.modes, here.modes.is_curved
    parts = modes.rows @ here.grad
    slopes = modes.rows @ np.asarray(penalty.slope(here.x))
    # The gradient of the sum, in units in which |grad| has the curvature lambda^2 / |grad|.
    pull = penalty.weight * np.linalg.norm(parts) * slopes
    curvatures = np.where(is_curved, modes.eigenvalues, 1)
    newton = np.clip(-parts / curvatures - pull / curvatures**2, -radius, radius)
    level = np.where(is_curved, 0, slopes)
    steepest = float(np.linalg.norm(level))
    is_bent = steepest > float(tolerance_of(None, here.x.dtype))
    along = -radius / steepest * level if is_bent else 0 * level
    return _Move(np.where(is_curved, newton, along), is_bent)


def _look(calls: Calls, x: Point, known: Rows | None) -> Here:
    none, unit = np.zeros((len(x), 0), x.dtype), float(calls.problem.unit)
    _, grad, *hessian = calls.expansion(x) if known is None else calls.value_and_grad(x)
    if not all(np.isfinite(one).all() for one in (grad, *hessian)):
        return Here(x, np.full_like(x, np.nan), Modes(np.zeros(1), x[None], 0.0), unit)
    if known is None:
        return Here(x, grad, modes_of(hessian[0], none), unit)
    # All of the gradient lies in this space, and the solution of H s = grad nearly.
    num_rows = min(len(known) + 1 + NUM_PRODUCTS, len(x))
    return Here(x, grad, ritz_modes(calls, x, [*known, grad], none, num_rows), unit)
