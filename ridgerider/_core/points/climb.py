r"""Up from a minimum to a saddle along one ridge, and down from a saddle.

In the eigenbasis of the Hessian, where the gradient has the parts g_i, a step moves by

    h_i = -2 g_i / (|lambda_i| + sqrt(lambda_i^2 + 4 g_i^2 / unit^2))

along every mode, which is Newton's step downhill where it is short. A *climb* follows one mode, the
ridge, by overlap: as long as that curves upwards the step goes up it by the whole *radius*, while
all other modes relax; once it curves downwards its h_i is reversed, so that the steps lead to a
stationary point at the crest. Where it curves upwards again after that, uphill is where the
slope points, not where the climb came from: else it goes to and fro across the turn of curvature.
No mode moves by more than the radius, which grows and shrinks with how well the Hessian predicts
the next gradient; an error counts against the gradient or its change, whichever is the larger.

What a symmetry generates (shifts, rotations) is projected out of the Hessian and of the step.

The Hessian is formed at each step, or it is kept and updated (quasi-Newton): after a step with
the change of the gradient (Bofill's mixture of the symmetric rank-one and Powell's update), then by
HVPs along the ridge and along the modes in which the next step will be longest (Powell's). So a
step costs one gradient, a few HVPs and one eigendecomposition.

A *descent* from a saddle follows the gradient flow x' = -g, so that it ends in the basin to which
the saddle belongs. In the quadratic model the flow is known for all times,

    h_i(t) = -g_i (1 - exp(-lambda_i t)) / lambda_i,

whatever the signs of the curvatures, and for t to infinity it is Newton's step (the local quadratic
approximation of Page and McIver). A step goes along it as far as the radius, which shrinks where
the model does not predict the next gradient, or as a bound. The Hessian is that of the saddle,
updated: each step takes one gradient and one eigendecomposition.

Of many parameters there is no matrix: the modes are then the Ritz vectors of a small space, which
the ridge, the gradient, the step before and the last turn of the ridge span, with their images
under the Hessian. All of the gradient lies in it.

Inside bounds, a coordinate that a step would take beyond its bound is held there, and the step is
computed again among the others: steps slide along faces. The loop runs on the host: of the loss
only its derivatives are compiled.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import equinox as eqx
import numpy as np
from jaxtyping import Float

from ridgerider._check import Count, Positive, Whole, check_fields
from ridgerider._core.descend.descent import Descent
from ridgerider._core.points.domain import Domain
from ridgerider._core.problem.calls import Calls, Point, Rows
from ridgerider._core.problem.problem import Problem
from ridgerider._core.runtime.compile import eigh
from ridgerider._core.spectra.spectrum import DENSE_BELOW, tolerance_of

Matrix = Float[np.ndarray, "n n"]
Seen = tuple[float, Point, Matrix | None]
# Why a climb or a descent is over, by number.
ENDINGS = ("", "stationary", "ran_away", "not_finite", "max_steps", "at_bounds")
GOES_ON, STATIONARY, RAN_AWAY, NOT_FINITE, MAX_STEPS, AT_BOUNDS = range(6)
TRACE = ("loss", "eigenvalue", "overlap", "residual", "gap", "step_size", "grad_norm")
DOWN = 10  # times `max_steps`: a descent may take so many steps
NUM_LEADING = 4  # vectors that span the space where there is no matrix, with their images
UP = 5  # times `max_steps`: so may a climb without a matrix
LONGEST = 2.0  # radii that a step of a descent is long at most
# Errors of a prediction up to which the radius grows, and from which it shrinks. With twice as much
# a descent takes a fifth fewer steps, and one in two thousand misses the basin of the flow.
UPHILL, DOWNHILL = (0.3, 1.0), (0.07, 0.2)
TIMES = np.geomspace(1e-8, 1e8, 64)  # of the flow, in units of the largest curvature
QUIET = 1e-3  # of the gradient: a slope along negative curvature that grows e times a step at most
SHORTEST = 1e-3  # radii that the first step from a saddle is long at least
NEAR = 3  # radii that Newton steps are long where a climb should converge
NUM_MODES = 16  # the lowest ones at a stationary point, without a matrix


class Climb(eqx.Module):
    """How ridges are climbed, and saddles left.

    **Arguments**

    - `radius`, `max_radius`: how far a step goes along a mode, at first and at most, in the
      problem's unit of length, which is measured at the start and 1 for parameters of ordinary
      size.
    - `max_steps`: of one climb; a descent, whose steps need a gradient only, may take ten times as
      many, and a climb without a matrix five times.
    - `max_distance`: a climb or descent that is farther than this from where it began, relative to
      max(unit, |x|), has run away.
    - `engine`: "dense" has the Hessian as a matrix, "hvp" has Hessian-vector products only; "auto"
      is dense below 300 parameters.
    - `num_products`: Hessian-vector products a step of a climb, along the ridge and where the step
      goes; a descent needs none. 0 forms the Hessian at each step. Default: 4, and 0 for up to 8
      parameters. In either case the Hessian is formed where a leg begins, and at a new point.
      Without a matrix climbs and descents take as many, 10 by default and 4 at least.
    - `num_aside`: climbs from each saddle, both ways along a mixture of all modes, the soft ones
      more, to other saddles. Default: 1, and none for up to 8 parameters.
    - `num_second`: climbs from each transition state, both ways along so many of its softest modes,
      that stay on the crest of that ridge as well: to saddles of index 2, and from these, which
      are left like all saddles, to transition states that no minimum leads to. Default: 4, and none
      for up to 8 parameters, or without a matrix.

    >>> Climb().max_steps
    60
    """

    radius: Positive = 0.1
    max_radius: Positive = 0.5
    max_steps: Count = eqx.field(static=True, default=60)
    max_distance: Positive = 10.0
    num_products: Whole | None = eqx.field(static=True, default=None)
    num_aside: Whole | None = eqx.field(static=True, default=None)
    num_second: Whole | None = eqx.field(static=True, default=None)
    engine: Literal["auto", "dense", "hvp"] = eqx.field(static=True, default="auto")

    __check_init__ = check_fields

    def has_matrix(self, problem: Problem) -> bool:
        """Whether there is a Hessian, formed at each step or kept."""
        is_small = problem.size < DENSE_BELOW
        return is_small if self.engine == "auto" else self.engine == "dense"

    def products(self, problem: Problem) -> int:
        """How many a step; 0: the Hessian is formed."""
        if not self.has_matrix(problem):
            wanted = 10 if self.num_products is None else self.num_products
            return min(max(NUM_LEADING, wanted), problem.size)
        return min(_given_or(self.num_products, problem, 4), problem.size)

    def mixed(self, problem: Problem, num_modes: int) -> int:
        """How many mixtures of modes are climbed from a minimum, four times as far."""
        return _given_or(None, problem, (num_modes + 1) // 2)

    def aside(self, problem: Problem) -> int:
        """How many mixtures of modes are climbed from a saddle."""
        return _given_or(self.num_aside, problem, 1)

    def second(self, problem: Problem) -> int:
        """How many modes of a transition state are climbed."""
        return _given_or(self.num_second, problem, 4) if self.has_matrix(problem) else 0


def _given_or(given: int | None, problem: Problem, default: int) -> int:
    """A setting, or else its default, which is 0 for up to 8 parameters."""
    if given is None:
        return default if problem.size > 8 else 0
    return given


@dataclass(frozen=True)
class Plan:
    """What a `Climb` means for one problem, as plain numbers: a loop on the host reads it often."""

    has_matrix: bool
    num_products: int  # of a step; 0: the Hessian is formed
    radius: float
    max_radius: float
    max_steps: int
    max_distance: float
    unit: float
    resolution: float = 0.0  # a length; see `Functions`

    @staticmethod
    def of(climb: Climb, problem: Problem) -> "Plan":
        return Plan(
            climb.has_matrix(problem),
            climb.products(problem),
            float(climb.radius * problem.unit),
            float(climb.max_radius * problem.unit),
            climb.max_steps,
            float(climb.max_distance),
            float(problem.unit),
            getattr(problem.loss, "resolution", 0.0),
        )

    @property
    def is_kept(self) -> bool:
        """Whether the Hessian of the step before is updated."""
        return self.has_matrix and self.num_products > 0


@dataclass
class Modes:
    """Eigenvalues, ascending, with unit rows. Curvature up to `cut` is rounding."""

    eigenvalues: Point
    rows: Rows
    cut: float
    residuals: Point | None = None  # |H e - lambda e|, where they are Ritz pairs

    @property
    def is_down(self) -> np.ndarray:
        return self.eigenvalues < -self.cut

    @property
    def is_curved(self) -> np.ndarray:
        return np.abs(self.eigenvalues) > self.cut

    @property
    def scale(self) -> float:
        return float(np.max(np.abs(self.eigenvalues), initial=0))


@dataclass
class Move:
    """A climb or a descent on its way; `trace` has a row for the start and for each step."""

    x: Point
    loss: float
    grad: Point
    direction: Point
    radius: float
    unit: float
    hessian: Matrix | None = None  # None where there is no matrix
    is_up: bool = False
    is_second: bool = False  # from a transition state, whose own ridge is kept
    has_crossed: bool = False  # the ridge curved downwards before
    residual: float = 0.0  # of the ridge, |H e - lambda e|
    begin: Point = field(default_factory=lambda: np.zeros(0))
    memory: list[Point] = field(default_factory=list)  # the step before, how the ridge has turned
    keep: Callable[[Point], Point] | None = None  # restores the symmetry that a climb began with
    ending: int = GOES_ON
    asymmetry: float = 0.0  # the largest part of a gradient along a generator of the symmetry
    generator: int = 0  # the number of that
    slope: float = (
        math.inf
    )  # beyond the turn of curvature: the last that was half of the one before
    num_slow: int = 0  # steps since
    trace: list[tuple[float, ...]] = field(default_factory=list)


def move_from(
    calls: Calls,
    plan: Plan,
    domain: Domain,
    x: Point,
    direction: Point,
    hessian: Matrix | None,
    is_up: bool,
    is_second: bool = False,
) -> Move:
    """Climb or descend from the stationary point `x`, whose Hessian may be known.

    The direction says how far the first step goes, too, in units of the radius.
    """
    if not is_up:
        plan = replace(
            plan, max_radius=LONGEST * plan.radius, num_products=max(1, plan.num_products)
        )
    if plan.is_kept and hessian is None:
        hessian = calls.hessian(x)
    size = max(_norm(direction), float(np.finfo(x.dtype).tiny))
    first, direction = domain.inside(x + plan.radius * direction), direction / size
    move = Move(x, math.nan, np.zeros_like(x), direction, plan.radius, plan.unit, begin=x)
    move.is_up, move.is_second, modes = is_up, is_second, None
    move.has_crossed = is_up and not direction.any()  # from a guess: along the slope
    if hessian is not None and plan.is_kept:
        held = domain.beyond(x, first - x)
        move.hessian, modes = hessian, modes_of(hessian, domain.with_held(domain.null(x), held))
    if is_up and not move.has_crossed:
        move.keep = domain.keeper(first)
    seen = _look(calls, plan, first)
    while not is_up and (first != x).any() and move.radius > SHORTEST * plan.radius:
        if _is_left(calls, domain, move, modes, first, seen[1]):
            break
        move.radius, first = move.radius / 2, domain.inside((x + first) / 2)
        seen = _look(calls, plan, first)
    if not _is_finite(seen):
        move.ending, modes = NOT_FINITE, None
    _arrive(calls, plan, move, modes, first, first - x, domain.carriers(x, first), seen)
    is_on = is_up and not move.has_crossed and move.ending == GOES_ON
    if is_on and domain.chart is not None and move.hessian is not None:
        # The first step is long: the ridge has turned on the way, and its curvature has changed.
        move.direction = row = domain.chart.onward(x, first)
        move.hessian = updated_along(move.hessian, row[None], calls.hvps(first, row[None]))
    while move.ending == GOES_ON:
        _step(calls, plan, domain, move)
    return move


@np.errstate(all="ignore")
def _is_left(
    calls: Calls, domain: Domain, move: Move, modes: Modes | None, first: Point, grad: Point
) -> bool:
    """Whether the curvature of a saddle predicts where the flow is at the first step from it.

    What is off of the gradient along a mode moves the path by that, divided by how fast the mode
    relaxes and the flow leaves.
    """
    step, carriers = first - move.x, domain.carriers(move.x, first)
    change = calls.hvps(move.x, step[None])[0] if move.hessian is None else move.hessian @ step
    off = (grad if carriers is None else carriers[1] @ grad) - change
    rates = abs(float(step @ change)) / float(step @ step) + np.zeros(1)
    if modes is not None:
        off, rates = modes.rows @ off, rates + np.abs(modes.eigenvalues)
    return bool(_norm(off / rates) <= DOWNHILL[1] * _norm(step))


def move_of(end: Descent, plan: Plan) -> Move:
    """A descent as a move without a ridge."""
    nothing = (math.nan,) * (len(TRACE) - 1)
    trace = [(loss, *nothing) for loss in end.losses[:-1]] or [(end.loss, *nothing)]
    still = np.zeros_like(end.x)
    move = Move(end.x, end.loss, end.grad, still, plan.radius, plan.unit, trace=trace)
    move.ending = STATIONARY if end.is_finite else NOT_FINITE
    if end.is_far or end.is_long:
        move.ending = RAN_AWAY if end.is_far else MAX_STEPS
    return move


def _step(calls: Calls, plan: Plan, domain: Domain, move: Move) -> None:
    x, tolerance = move.x, tolerance_of(None, calls.dtype)
    null, slope, generator = domain.level(x, move.grad)
    if slope > move.asymmetry:
        move.asymmetry, move.generator = slope, generator
    held, size = domain.held(x, move.grad), max(_norm(x), plan.unit)
    nearly = max(10 * tolerance * size, plan.resolution)
    spans: Float[np.ndarray, "k times"] | None = None
    while True:
        if move.hessian is None:
            leading = [move.direction, move.grad, *move.memory][: plan.num_products]
            modes = ritz_modes(calls, x, leading, null, plan.num_products)
        else:
            modes = modes_of(move.hessian, domain.with_held(null, held))
        if not len(modes.rows):
            move.ending = AT_BOUNDS if move.is_up else STATIONARY
            return
        values, slopes = modes.eigenvalues, modes.rows @ move.grad
        direction, row, overlap = _ridge(modes, move)
        if modes.residuals is not None:
            move.residual = float(modes.residuals[row])
        is_down = bool(values[row] < -modes.cut)
        newton, level = _newton(modes, slopes)
        # A Newton step so short is the last one: the next would be rounding, or noise.
        is_there = _norm(newton) <= nearly and level <= nearly * float(np.abs(values).max())
        is_there = is_there and (is_down or not move.is_up)
        if is_there:
            path = newton[:, None]
        elif move.is_up:
            path = _parts(modes, row, direction, slopes, move)[:, None]
        else:
            spans = _flow(modes, slopes, move.radius)
            path = -slopes[:, None] * spans
        beyond = domain.beyond(x, path[:, -1] @ modes.rows) & ~held
        if not beyond.any() or move.hessian is None:
            break
        held = held | beyond
    column = domain.first_out(x, modes.rows.T @ path)
    parts = path[:, column]
    away = parts @ modes.rows
    new = domain.moved(x, away)
    new = new if move.keep is None else move.keep(new)
    predicted, carriers = (values * parts) @ modes.rows, domain.carriers(x, new)
    away = new - x if carriers is None else away
    gaps = np.abs(np.delete(values, row) - values[row])
    numbers = float(values[row]), overlap, move.residual, float(gaps.min(initial=np.inf))
    move.trace.append((move.loss, *numbers, _norm(away), _norm(move.grad)))
    up = 1 if plan.has_matrix else UP
    is_last = len(move.trace) >= (up if move.is_up else DOWN) * plan.max_steps
    is_far = _norm(new - move.begin) > plan.max_distance * _size(plan, move.begin)
    is_far = is_far or (move.is_up and domain.is_lost(new))
    seen = loss, grad, _ = _look(calls, plan, new)
    back = grad if carriers is None else carriers[1] @ grad  # as seen from `x`
    error, is_finite = prediction_error(move.grad, back, predicted), _is_finite(seen)
    if carriers is not None:
        # Steps bend with the bonds. What is left of forces along these is gone with the next step:
        # errors are counted as energies.
        weights = modes.rows / np.sqrt(np.abs(values) + np.abs(slopes) / move.radius)[:, None]
        error = prediction_error(weights @ move.grad, weights @ back, weights @ predicted)
    if spans is not None and not is_there and move.hessian is not None:
        # As far as the flow would go wrong by it: what is off along a stiff mode relaxes.
        off = spans[:, column] * (modes.rows @ (back - move.grad - predicted))
        error = _norm(off) / max(_norm(parts), float(np.finfo(x.dtype).tiny))
    few, most = UPHILL if move.is_up else DOWNHILL
    slack = 1000 * float(np.finfo(x.dtype).eps) * abs(move.loss)
    is_lower = loss <= move.loss + slack and error <= 2 * most
    is_taken = is_finite and (move.is_up or is_lower or is_there)
    turn = direction - move.direction
    if is_taken:
        is_over = is_there or is_last or is_far
        _arrive(calls, plan, move, None if is_over else modes, new, away, carriers, seen)
        direction = direction if carriers is None else direction @ carriers[1]
        is_near = move.is_up and is_down and _norm(newton) <= NEAR * plan.radius
        if is_near and not is_over and calls.is_outside and plan.is_kept:
            _renew(calls, move)
    elif is_finite and move.hessian is not None and plan.is_kept:
        move.hessian = updated(move.hessian, away, back - move.grad)
    if is_taken and not error > most:
        grown = min(1.5 * move.radius, plan.max_radius)
        move.radius = grown if error < few else move.radius
    else:
        move.radius = (move.radius if move.is_up else min(move.radius, _norm(away))) / 2
    if is_there and is_finite:
        move.ending = STATIONARY
    elif not is_finite and move.radius < tolerance * _size(plan, move.begin):
        move.ending = NOT_FINITE
    elif not move.is_up and move.radius < nearly / 10:  # a kink, or noise
        move.ending = STATIONARY
    elif is_far and is_taken:
        move.ending = RAN_AWAY
    elif is_last:
        move.ending = MAX_STEPS
    elif not away.any():
        move.ending = AT_BOUNDS
    if move.hessian is None:
        move.memory = [away, turn]
    move.direction, move.has_crossed = direction, move.has_crossed or is_down


def _size(plan: Plan, x: Point) -> float:
    """Of the parameters. The unit is along one; a start at zero has as many as there are."""
    return max(_norm(x), plan.unit, min(1.0, plan.unit * math.sqrt(len(x))))


def _look(calls: Calls, plan: Plan, x: Point) -> Seen:
    """Loss and gradient, with the Hessian where that is formed."""
    if plan.has_matrix and not plan.is_kept:
        return calls.expansion(x)
    return *calls.value_and_grad(x), None


def _is_finite(seen: Seen) -> bool:
    return bool(np.isfinite(seen[0]) and np.isfinite(seen[1]).all())


def _arrive(
    calls: Calls,
    plan: Plan,
    move: Move,
    modes: Modes | None,
    x: Point,
    away: Point,
    carriers: tuple[Matrix, Matrix] | None,
    seen: Seen,
) -> None:
    """Go to `x`, a step `away`, where a kept Hessian is corrected along some of the modes."""
    loss, grad, formed = seen
    if move.hessian is not None and plan.is_kept and modes is not None:
        back = grad if carriers is None else carriers[1] @ grad
        hessian = updated(move.hessian, away, back - move.grad)
        rows = _rows(modes, back, move, plan) if move.is_up else modes.rows[:0]
        if carriers is not None:
            hessian = carriers[0] @ hessian @ carriers[0].T
            rows = np.linalg.qr((rows @ carriers[1]).T)[0].T
        if len(rows):
            images = calls.hvps(x, rows)
            hessian = updated_along(hessian, rows, images)
            move.residual = _norm(images[0] - (rows[0] @ images[0]) * rows[0])
        move.hessian = hessian
    elif formed is not None:
        move.hessian = formed
    move.x, move.loss, move.grad = x, loss, grad


def _renew(calls: Calls, move: Move) -> None:
    """Form the Hessian where a kept one does not lead to the crest: that costs fewer calls."""
    slope, patience = _norm(move.grad), 3 + len(move.x) // 5
    move.num_slow += 1
    if move.num_slow > patience:
        move.hessian = calls.hessian(move.x)
    if move.num_slow > patience or slope < move.slope / 2:
        move.slope, move.num_slow = slope, 0


def _parts(modes: Modes, row: int, direction: Point, slopes: Point, move: Move) -> Point:
    """The step in the modes, from the slopes along them."""
    values, tiny = modes.eigenvalues, float(np.finfo(slopes.dtype).tiny)
    sizes = np.abs(values)
    down = -2 * slopes / (sizes + np.hypot(sizes, 2 * slopes / move.unit) + tiny)
    step = down.copy()
    if move.is_second:
        kept = 1 if row == 0 else 0
        if kept < len(step):
            rise = np.copysign(move.radius, slopes[kept])
            step[kept] = rise if values[kept] > 0 else -down[kept]
    if move.is_up:
        ahead = slopes[row] if move.has_crossed else modes.rows[row] @ direction
        push = -move.radius if ahead < 0 else move.radius
        step[row] = push if values[row] > 0 else -down[row]
    step = np.minimum(np.maximum(step, -move.radius), move.radius)
    return step * min(1.0, 2.5 * move.radius / max(_norm(step), tiny))


@np.errstate(over="ignore", divide="ignore", invalid="ignore")
def _flow(modes: Modes, slopes: Point, radius: float) -> Float[np.ndarray, "k times"]:
    """How far the flow of the quadratic model leads in the modes, for a slope of -1 each.

    Its times are those up to the radius.
    """
    values = modes.eigenvalues[:, None].astype(float)
    scale = max(float(np.abs(values).max()), float(np.finfo(slopes.dtype).tiny))

    # What a symmetry makes zero is noise, which must not grow: towards the saddle of an axis.
    is_quiet = ((values < 0).T & (np.abs(slopes) < QUIET * _norm(slopes))).T

    def at(times: Point) -> Float[np.ndarray, "k times"]:
        powers = np.minimum(-values * times, np.where(is_quiet, 1.0, 500.0))  # e^500: beyond all
        spans = np.where(np.abs(powers) < 1e-8, times, np.expm1(powers) / -values)
        lengths = np.linalg.norm(slopes[:, None] * spans, axis=0)
        ahead = int(np.argmax(np.append(lengths, np.inf) > radius))
        return (spans * np.minimum(1, radius / np.maximum(lengths, 1e-300)))[:, : ahead + 1]

    spans = at(TIMES / scale)
    if spans.shape[1] < len(TIMES):  # once more, in short steps
        spans = at(np.linspace(0, TIMES[spans.shape[1] - 1] / scale, 33)[1:])
    return spans.astype(slopes.dtype)


def _newton(modes: Modes, slopes: Point) -> tuple[Point, float]:
    """Newton's step in the modes, and the slope along flat ones, of which it knows nothing."""
    is_flat = np.abs(modes.eigenvalues) <= modes.cut
    if not is_flat.any():
        return -slopes / modes.eigenvalues, 0.0
    newton = np.where(is_flat, 0, -slopes / np.where(is_flat, 1, modes.eigenvalues))
    return newton, _norm(slopes[is_flat])


def _rows(modes: Modes, grad: Point, move: Move, plan: Plan) -> Rows:
    """The ridge, and the modes along which the step from where this slope is will be longest.

    HVPs along these correct the Hessian. The modes are those of the point before: this saves an
    eigendecomposition. There are always as many rows, since another number is another program.
    """
    rows = np.zeros((plan.num_products, len(grad)), grad.dtype)
    if len(modes.rows):
        direction, row, _ = _ridge(modes, move)
        lengths = np.abs(_parts(modes, row, direction, modes.rows @ grad, move))
        lengths[row] = np.inf
        chosen = np.argsort(-lengths, kind="stable")[: plan.num_products]
        rows[: len(chosen)] = modes.rows[chosen]
    return rows


def _ridge(modes: Modes, move: Move) -> tuple[Point, int, float]:
    """The mode that continues the ridge; as long as that curves upwards, one that does not.

    Of a second ridge it is none that is kept already: the lowest, where that curves downwards.
    """
    is_down = modes.is_down
    first = 1 if move.is_second and is_down[0] and len(is_down) > 1 else 0
    overlaps = modes.rows @ move.direction
    nearest = first + int(np.argmax(np.abs(overlaps[first:])))
    row = first if not is_down[nearest] and is_down[first] else nearest
    mode, overlap = modes.rows[row], float(overlaps[row])
    return (-mode if overlap < 0 else mode), row, abs(overlap)


def modes_of(hessian: Matrix, null: Float[np.ndarray, "n k"]) -> Modes:
    """All modes outside of the space that the columns `null` span."""
    count = len(hessian) - null.shape[1]
    if null.shape[1]:
        images = hessian @ null
        above = math.sqrt(float(np.vdot(hessian, hessian)))  # half of where those come, at the end
        lift = (images - null @ (null.T @ images) / 2 - above * null) @ null.T
        hessian = hessian - lift - lift.T
    eigenvalues, columns = eigh(hessian)
    eigenvalues = eigenvalues[:count]
    largest = np.max(np.abs(eigenvalues), initial=0)
    cut = float(tolerance_of(None, hessian.dtype) * largest)
    return Modes(eigenvalues, columns.T[:count], cut)


def ritz_modes(
    calls: Calls,
    x: Point,
    leading: list[Point],
    null: Float[np.ndarray, "n k"],
    num_products: int,
    first: int = 0,
) -> Modes:
    """Ritz pairs in the space of some vectors, such as what leads a climb, and of their images.

    Images are those of the vectors from number `first` on, then of these images.
    """

    def outside(vector: Point) -> Point:
        return vector - null @ (null.T @ vector)

    rows = images = np.zeros((0, len(x)), calls.dtype)
    rounding, number = 10 * float(np.finfo(calls.dtype).eps), 0
    while len(rows) < num_products and number < len(leading) + len(images) - first:
        is_image = number >= len(leading)
        vector = outside(images[number - len(leading) + first] if is_image else leading[number])
        size = _norm(vector)
        if is_image:
            size = max(size, float(np.linalg.norm(images, axis=1).max()))
        for _ in range(2):
            vector = vector - (rows @ vector) @ rows
        number += 1
        if np.linalg.norm(vector) <= rounding * size or not size:
            continue
        row = (vector / np.linalg.norm(vector))[None]
        rows = np.concatenate([rows, row])
        images = np.concatenate([images, outside(calls.hvps(x, row)[0])[None]])
    if not len(rows):  # no slope, and no way to go
        return Modes(np.zeros(0), rows, 0.0)
    projected = rows @ images.T
    values, mix = eigh((projected + projected.T) / 2)
    ritz = mix.T @ rows
    residuals = np.linalg.norm(mix.T @ images - values[:, None] * ritz, axis=1)
    cut = float(tolerance_of(None, calls.dtype) * np.abs(values).max())
    return Modes(values, ritz, cut, residuals)


def updated_along(hessian: Matrix, rows: Rows, images: Rows) -> Matrix:
    """The nearest symmetric matrix with these HVPs along orthonormal rows (Powell's update)."""
    wrong = images - rows @ hessian
    inside = wrong @ rows.T
    change = rows.T @ (wrong - (inside + inside.T) @ rows / 4)
    return hessian + change + change.T


def updated(hessian: Matrix, step: Point, change: Point) -> Matrix:
    """The symmetric matrix nearest in Bofill's sense that takes `step` to `change`."""
    wrong = change - hessian @ step
    along, length, size = wrong @ step, step @ step, wrong @ wrong
    if not length > float(np.finfo(step.dtype).tiny):
        return hessian
    # 1: the rank-one update is safe; 0: Powell's alone.
    share = along**2 / (length * size) if abs(along) > 1e-8 * np.sqrt(length * size) else 0.0
    one = share / along if share else 0.0
    mixed, last = (1 - share) / length, -(1 - share) * along / length**2
    first, second = one * wrong + mixed * step, mixed * wrong + last * step
    return hessian + wrong[:, None] * first + step[:, None] * second


def _norm(vector: Point) -> float:
    return math.sqrt(float(vector @ vector))


def prediction_error(grad: Point, new: Point, change: Point) -> float:
    """|new - grad - change|, relative to the gradient or its change, whichever is the larger."""
    most = max(_norm(change), _norm(grad))
    return _norm(new - grad - change) / max(most, float(np.finfo(grad.dtype).tiny))
