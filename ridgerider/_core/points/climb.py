r"""Up from a minimum to a saddle along one ridge, and down from a saddle: one loop for both.

In the eigenbasis of the Hessian, where the gradient has the parts g_i, a step moves by

    h_i = -2 g_i / (|lambda_i| + sqrt(lambda_i^2 + 4 g_i^2 / unit^2))

along every mode, which is Newton's step downhill where it is short. A *climb* follows one mode, the
ridge, by overlap: as long as that curves upwards the step goes up it by the whole *radius*, while
all other modes relax; once it curves downwards its h_i is reversed, so that the steps lead to a
stationary point at the crest. Where it curves upwards again after that, the way up is where the
slope points, not where the climb came from: else it goes to and fro across the turn of curvature.
No mode moves by more than the radius, which grows and shrinks with how well the Hessian predicts
the next gradient; an error counts against the gradient or its change, whichever is the larger.

What a symmetry generates (shifts, rotations) is projected out of the Hessian and of the step.

The Hessian is formed at each step, or it is kept and updated (quasi-Newton): after a step with
the change of the gradient, and before it by HVPs along the ridge and along the modes in which the
step is longest (Bofill's mixture of the symmetric rank-one and Powell's update). Then a step
costs one gradient and a few HVPs.

Of many parameters there is no matrix: the modes are then the Ritz vectors of a small space, which
the ridge, the gradient, the step before and the last turn of the ridge span, with their images
under the Hessian. All of the gradient lies in it.

Inside bounds, a coordinate that a step would take beyond its bound is held there, and the step is
computed again among the others: steps slide along faces. The loop runs on the host: of the loss
only its derivatives are compiled.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

import equinox as eqx
import numpy as np
from jaxtyping import Float

from ridgerider._check import check_choice, check_count, check_positive
from ridgerider._core.points.domain import Domain
from ridgerider._core.problem.calls import Calls, Point, Rows
from ridgerider._core.problem.problem import Number, Problem
from ridgerider._core.spectra.spectrum import DENSE_BELOW, tolerance_of

Matrix = Float[np.ndarray, "n n"]
# Why a climb or a descent is over, by number.
ENDINGS = ("", "stationary", "ran_away", "not_finite", "max_steps", "at_bounds")
GOES_ON, STATIONARY, RAN_AWAY, NOT_FINITE, MAX_STEPS, AT_BOUNDS = range(6)
TRACE = ("loss", "eigenvalue", "overlap", "residual", "gap", "step_size", "grad_norm")
DOWN = 10  # times `max_steps`: a descent may go on for so long
NUM_LEADING = 4  # vectors that span the space where there is no matrix, with their images
UP = 5  # times `max_steps`: so may a climb without a matrix
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
      that stay on the crest of its own ridge as well: to saddles of index 2, and from these, which
      are left like all saddles, to transition states that no minimum leads to. Default: 4, and none
      for up to 8 parameters, or without a matrix.

    >>> Climb().max_steps
    60
    """

    radius: Number = 0.1
    max_radius: Number = 0.5
    max_steps: int = eqx.field(static=True, default=60)
    max_distance: Number = 10.0
    num_products: int | None = eqx.field(static=True, default=None)
    num_aside: int | None = eqx.field(static=True, default=None)
    num_second: int | None = eqx.field(static=True, default=None)
    engine: Literal["auto", "dense", "hvp"] = eqx.field(static=True, default="auto")

    def __check_init__(self) -> None:
        check_choice("engine", self.engine, ("auto", "dense", "hvp"))
        for name in ("radius", "max_radius", "max_distance"):
            check_positive(name, getattr(self, name))
        check_count("max_steps", self.max_steps)
        for name in ("num_products", "num_aside", "num_second"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), 0)

    def has_matrix(self, problem: Problem) -> bool:
        """Whether there is a Hessian, formed at each step or kept."""
        if self.engine == "auto":
            return problem.size < DENSE_BELOW
        return self.engine == "dense"

    def is_kept(self, problem: Problem) -> bool:
        """Whether the Hessian of the step before is updated."""
        return self.has_matrix(problem) and self.products(problem) > 0

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
    is_kept: bool
    num_products: int
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
            climb.is_kept(problem),
            climb.products(problem),
            float(climb.radius * problem.unit),
            float(climb.max_radius * problem.unit),
            climb.max_steps,
            float(climb.max_distance),
            float(problem.unit),
            getattr(problem.loss, "resolution", 0.0),
        )


@dataclass
class Modes:
    """Eigenvalues, ascending, with unit rows; those of `is_null` are no directions to step along.

    Curvature up to `cut` is rounding.
    """

    eigenvalues: Point
    rows: Rows
    is_null: np.ndarray
    cut: float
    residual: float = 0.0  # of the ridge, |H e - lambda e|

    @property
    def is_down(self) -> np.ndarray:
        return self.eigenvalues < -self.cut


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
    begin: Point = field(default_factory=lambda: np.zeros(0))
    memory: list[Point] = field(default_factory=list)  # the step before, how the ridge has turned
    ending: int = GOES_ON
    asymmetry: float = 0.0  # the largest part of a gradient along a generator of the symmetry
    generator: int = 0  # the number of that
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
    first = domain.inside(x + plan.radius * direction)
    if plan.has_matrix and (not plan.is_kept or hessian is None):
        loss, grad, hessian = calls.expansion(first)
    else:
        loss, grad = calls.value_and_grad(first)
        carriers = domain.carriers(x, first)
        if hessian is not None and carriers is not None:
            hessian = carriers[0] @ hessian @ carriers[0].T
        elif hessian is not None:  # the gradient at `x` is zero
            hessian = updated(hessian, first - x, grad) if plan.has_matrix else None
    size = max(_norm(direction), float(np.finfo(x.dtype).tiny))
    move = Move(
        first,
        loss,
        grad,
        direction / size,
        plan.radius,
        plan.unit,
        hessian,
        is_up,
        is_second,
        begin=x,
        has_crossed=is_up and not direction.any(),  # from a guess: along the slope
    )
    while move.ending == GOES_ON:
        _step(calls, plan, domain, move)
    return move


def _step(calls: Calls, plan: Plan, domain: Domain, move: Move) -> None:
    x, tolerance = move.x, tolerance_of(None, calls.dtype)
    null, slope, generator = domain.level(x, move.grad)
    if slope > move.asymmetry:
        move.asymmetry, move.generator = slope, generator
    if move.is_up and plan.is_kept:
        residual = _update_by_hvps(calls, domain, move, null, plan.num_products)
    else:
        residual = 0.0
    held = domain.held(x, move.grad)
    while True:
        if move.hessian is None:
            modes = _modes_by_hvps(calls, move, null, plan.num_products)
            residual = modes.residual
        else:
            modes = modes_of(move.hessian, domain.with_held(null, held))
        if modes.is_null.all():
            move.ending = AT_BOUNDS if move.is_up else STATIONARY
            return
        direction, row, overlap = _ridge(modes, move)
        parts, newton, level = _parts(modes, row, direction, move)
        size = max(_norm(x), plan.unit)
        # A Newton step so short is the last one: the next would be rounding, or noise.
        enough = max(10 * tolerance * size, plan.resolution)
        is_there = _norm(newton) <= enough
        is_there &= level <= enough * np.abs(modes.eigenvalues).max()
        is_there &= bool(modes.is_down[row]) or not move.is_up
        parts = newton if is_there else parts
        away = parts @ modes.rows
        beyond = domain.beyond(x, away) & ~held
        if not beyond.any() or move.hessian is None:
            break
        held = held | beyond
    new = domain.moved(x, away)
    predicted, carriers = (modes.eigenvalues * parts) @ modes.rows, domain.carriers(x, new)
    away = new - x if carriers is None else away
    is_formed = move.hessian is not None and not plan.is_kept
    if is_formed:
        loss, grad, formed = calls.expansion(new)
    else:
        loss, grad = calls.value_and_grad(new)
    back = grad if carriers is None else carriers[1] @ grad  # as seen from `x`
    error = _prediction_error(move.grad, back, predicted)
    is_finite = bool(np.isfinite(loss) and np.isfinite(grad).all())
    slack = 1000 * float(np.finfo(x.dtype).eps) * abs(move.loss)
    is_taken = is_finite and (move.is_up or loss <= move.loss + slack or is_there)
    if plan.is_kept:
        if is_finite:
            assert move.hessian is not None
            move.hessian = updated(move.hessian, away, back - move.grad)
    elif is_formed and is_taken:
        move.hessian = formed
    is_other = ~modes.is_null
    is_other[row] = False
    gaps = np.abs(modes.eigenvalues - modes.eigenvalues[row])[is_other]
    move.trace.append(
        (
            move.loss,
            float(modes.eigenvalues[row]),
            overlap,
            residual,
            float(gaps.min(initial=np.inf)),
            _norm(away),
            _norm(move.grad),
        )
    )
    if is_taken and not error > 1:
        grown = min(1.5 * move.radius, plan.max_radius)
        move.radius = grown if error < 0.3 else move.radius
    else:
        move.radius /= 2
    # The unit is along one parameter; a start at zero has as many as there are.
    size = max(_norm(move.begin), plan.unit, min(1.0, plan.unit * math.sqrt(len(x))))
    up = 1 if plan.has_matrix else UP
    most = (up if move.is_up else DOWN) * plan.max_steps
    is_far = _norm(new - move.begin) > plan.max_distance * size
    if is_there and is_finite:
        move.ending = STATIONARY
    elif not is_finite and move.radius < tolerance * size:
        move.ending = NOT_FINITE
    elif is_far and is_taken:
        move.ending = RAN_AWAY
    elif len(move.trace) >= most:
        move.ending = MAX_STEPS
    elif not away.any():
        move.ending = AT_BOUNDS
    if move.hessian is None:
        move.memory = [away, direction - move.direction]
    move.direction, move.has_crossed = direction, move.has_crossed or bool(modes.is_down[row])
    if is_taken:
        move.x, move.loss, move.grad = new, loss, grad
        if carriers is not None and move.hessian is not None:
            move.hessian = carriers[0] @ move.hessian @ carriers[0].T
            move.direction = direction @ carriers[1]


def _parts(modes: Modes, row: int, direction: Point, move: Move) -> tuple[Point, Point, float]:
    """The step in the modes, and Newton's, both without any part along null directions.

    Newton's step knows nothing of the slope along flat modes, which comes last.
    """
    values, slopes = modes.eigenvalues, modes.rows @ move.grad
    sizes, tiny = np.abs(values), np.finfo(slopes.dtype).tiny
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
    step = np.where(modes.is_null, 0, np.clip(step, -move.radius, move.radius))
    longest = 2.5 * move.radius
    step = step * min(1.0, longest / max(_norm(step), float(tiny)))
    is_flat = modes.is_null | (sizes <= modes.cut)
    newton = np.where(is_flat, 0, -slopes / np.where(is_flat, 1, values))
    return step, newton, _norm(slopes[is_flat & ~modes.is_null])


def _ridge(modes: Modes, move: Move) -> tuple[Point, int, float]:
    """The mode that continues the ridge; as long as that curves upwards, one that does not.

    Of a second ridge it is none that is kept already: the lowest, where that curves downwards.
    """
    is_down = modes.is_down
    first = 1 if move.is_second and is_down[0] and len(is_down) > 1 else 0
    is_free = ~modes.is_null & (np.arange(len(is_down)) >= first)
    overlaps = np.where(is_free, modes.rows @ move.direction, 0)
    nearest = int(np.argmax(np.abs(overlaps)))
    row = first if not is_down[nearest] and is_down[first] else nearest
    mode, overlap = modes.rows[row], float(overlaps[row])
    return (-mode if overlap < 0 else mode), row, abs(overlap)


def modes_of(hessian: Matrix, null: Float[np.ndarray, "n k"]) -> Modes:
    """All modes; those that the columns `null` span come last."""
    if null.shape[1]:
        outside = hessian - null @ (null.T @ hessian)
        outside = outside - (outside @ null) @ null.T
        hessian = outside + 2 * np.linalg.norm(hessian) * null @ null.T  # above all others
    try:
        eigenvalues, columns = np.linalg.eigh(hessian)
    except np.linalg.LinAlgError:  # not finite
        eigenvalues, columns = np.full(len(hessian), np.nan), np.eye(len(hessian))
    is_null = np.sum((null.T @ columns) ** 2, axis=0) > 0.5
    largest = np.max(np.abs(eigenvalues), initial=0, where=~is_null)
    cut = float(tolerance_of(None, hessian.dtype) * largest)
    return Modes(eigenvalues, columns.T, is_null, cut)


def _modes_by_hvps(
    calls: Calls, move: Move, null: Float[np.ndarray, "n k"], num_products: int
) -> Modes:
    """Ritz pairs in the space of what leads the climb and of its images."""

    def outside(vector: Point) -> Point:
        return vector - null @ (null.T @ vector)

    leading = [move.direction, move.grad, *move.memory][:num_products]
    rows, images = np.zeros((0, len(move.x)), calls.dtype), np.zeros((0, len(move.x)), calls.dtype)
    rounding, number = 10 * float(np.finfo(calls.dtype).eps), 0
    while len(rows) < num_products and number < len(leading) + len(images):
        is_image = number >= len(leading)
        vector = outside(images[number - len(leading)] if is_image else leading[number])
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
        images = np.concatenate([images, outside(calls.hvps(move.x, row)[0])[None]])
    if not len(rows):  # no slope, and no way to go
        return Modes(np.zeros(1), np.zeros((1, len(move.x))), np.ones(1, bool), 0.0)
    projected = rows @ images.T
    values, mix = np.linalg.eigh((projected + projected.T) / 2)
    ritz = mix.T @ rows
    modes = Modes(
        values,
        ritz,
        np.zeros(len(values), bool),
        float(tolerance_of(None, calls.dtype) * np.abs(values).max()),
    )
    row = _ridge(modes, move)[1]
    modes.residual = _norm(mix[:, row] @ images - values[row] * ritz[row])
    return modes


def _update_by_hvps(
    calls: Calls, domain: Domain, move: Move, null: Float[np.ndarray, "n k"], num_products: int
) -> float:
    """The Hessian updated along the ridge and where the step would go; the ridge's residual.

    Along modes, which are orthogonal, so that what one HVP has corrected the next ones leave.
    """
    assert move.hessian is not None
    modes = modes_of(move.hessian, domain.with_held(null, domain.held(move.x, move.grad)))
    direction, row, _ = _ridge(modes, move)
    lengths = np.abs(_parts(modes, row, direction, move)[0])
    lengths[row] = np.inf
    rows = modes.rows[np.argsort(-lengths, kind="stable")[:num_products]]
    images = calls.hvps(move.x, rows)
    for one, image in zip(rows, images, strict=True):
        move.hessian = updated(move.hessian, one, image)
    return _norm(images[0] - (rows[0] @ images[0]) * rows[0])


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


def _prediction_error(grad: Point, new: Point, change: Point) -> float:
    """|new - grad - change|, relative to the gradient or its change, whichever is the larger."""
    most = max(_norm(change), _norm(grad))
    return _norm(new - grad - change) / max(most, float(np.finfo(grad.dtype).tiny))
