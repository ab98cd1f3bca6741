r"""What a stationary point is: its Newton step, the curvature around it, its kind and Morse index.

Small problems are classified by a dense Hessian, large ones by Hessian-vector products (HVPs).
The sign of an eigenvalue is known only beyond its *error*, what a zero eigenvalue may be computed
as:

    error = 1000 sqrt(n) eps max |eigenvalue| + |H - H^T| + noise + 10 |grad| / max(unit, |x|)

Eigenvalues within it are *flat*. The first term bounds rounding: `eigh` is backward stable, with an
error of at most p(n) eps |H|, p(n) of the order of sqrt(n) to n, and the entries of H are sums that
cancel (as r^-12 - r^-6 does), which costs two to three digits. Too large a factor is the safer one:
an eigenvalue that is called flat is left out of the index, and the loss itself is compared along
its direction, whereas a zero that is called negative makes a saddle of a minimum. The second term
is rounding as it is seen, the third one the error of HVPs that are finite differences, ten times as
it was measured. The last one is the curvature that a rotation has where the gradient does not quite
vanish; a rotation has no part in the gradient, so that Newton steps leave this term out.

A gradient is known to within its *noise*, which is measured: a few units in the last place beside
the point it is another one. So a stationary point is known along a mode to within noise /
eigenvalue, and the eigenvalue to within its change over that distance (a double root of the
gradient, an inflection, is found to within sqrt(eps), and has any small curvature there). A mode
that is flat, or within this change, is *undecided*, and the loss decides: it is followed from the
point along the mode, both ways, with the other modes relaxed, and its slope at the shortest
distance at which that is more than noise says whether it rises or falls.

Where terms cancel, as those of a cross-entropy do at large weights, the rounding of all of this is
that of the terms, and not seen nearby. So where hardly any curvature is left of what there was on
the way, values must confirm the Hessian; else all modes are undecided: a level one proves nothing.

All of this runs on the host, for the ends of rides and for the points of a map alike.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ridgerider._core.linalg.lowest import Pairs, lowest_pairs
from ridgerider._core.linalg.solve import conjugate_gradients
from ridgerider._core.linalg.space import Hvp, krylov, outside
from ridgerider._core.points.domain import Domain, Mask
from ridgerider._core.problem.calls import Calls, Point, Rows
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem, Scalar, Vector, fetch, place
from ridgerider._core.runtime.clock import check_time
from ridgerider._core.runtime.compile import compiled, eigh
from ridgerider._core.spectra.spectrum import DENSE_BELOW, fixed_vectors, tolerance_of

# Why a stationary point may still be none of the kinds, by number.
DOUBTS = (
    "",
    "the least eigenvalue was not found within `max_hvps` Hessian-vector products",
    "the loss falls along a direction of hardly any curvature: a penalty on the parameters helps",
    "the loss was evaluated on a batch, not on all data",
    "the loss is level here but for rounding: a penalty on the parameters helps",
    "it was trained on batches, not to where the gradient vanishes",
)
UNKNOWN, FALLS, BATCH, LEVEL, TRAINED = 1, 2, 3, 4, 5

# At which slopes are compared, in units of the problem. Where it is level at the middle one, there
# is nothing to be seen closer by, and the last is next.
CLOSER, MIDDLE, LAST = (1e-5, 1e-4, 1e-3), 1e-2, 1e-1
MAX_OPEN = 3  # modes along which they are, besides a mixture of all
MAX_RELAX = 12  # evaluations at each, with Newton steps of the other modes between them
MAX_BENDS = 6  # of these, how many turn the open modes, each by half of the angle before
CONFIRMING = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # at which values confirm a curvature, two in a row
NOISE = 30  # times the differences of a gradient that are measured
NUM_PAIRS = 8  # lowest eigenpairs that are computed where the Hessian does not fit
MAX_SOLVE = 100  # HVPs for one Newton step there


@dataclass
class Curvature:
    """The lowest eigenpairs around a point, all of them if the Hessian is dense.

    - `eigenvalues` ascend; `rows` are their unit vectors, `residuals` the norms |H e - lambda e|.
    - `rounding`: what a zero eigenvalue may be computed as; `error`: off a stationary point, too.
    - `is_known`: the computation converged, so that there is no other negative eigenvalue.
    """

    eigenvalues: Point
    rows: Rows
    residuals: Point
    scale: float
    rounding: float
    error: float
    is_known: bool

    @property
    def is_flat(self) -> Bool[np.ndarray, " k"]:
        return np.abs(self.eigenvalues) <= np.maximum(self.error, self.residuals)

    @property
    def is_down(self) -> Bool[np.ndarray, " k"]:
        """Which are negative: as many as there are at least, and all if all are known.

        By Cauchy's interlacing theorem Ritz values count no more of them than there are, converged
        or not.
        """
        return self.eigenvalues < -self.error

    @property
    def least(self) -> float:
        """The least eigenvalue that is not flat; 0 if all that are known are."""
        others = self.eigenvalues[~self.is_flat]
        return float(others.min()) if len(others) else 0.0

    @property
    def is_weak(self) -> Bool[np.ndarray, " k"]:
        """Directions of hardly any curvature."""
        cut = max(tolerance_of(None, self.rows.dtype) * self.scale, self.rounding)
        return np.abs(self.eigenvalues) <= np.maximum(cut, self.residuals)


@dataclass
class View:
    """A point with its Newton step, which leaves flat directions alone.

    `downhill` is the step with the curvature taken by its size: it leads down also where the
    Newton step climbs to a saddle. `modes` are eigenvalues and rows outside of a symmetry, and
    `is_whole` says of each whether all that equal it are known.
    """

    x: Point
    loss: float
    grad: Point
    step: Point
    downhill: Point
    curvature: Curvature
    unit: float
    modes: tuple[Point, Rows] = field(init=False)
    is_whole: Any = True

    def __post_init__(self) -> None:
        self.modes = self.curvature.eigenvalues, self.curvature.rows

    @property
    def eps(self) -> float:
        return float(np.finfo(self.x.dtype).eps)

    @property
    def size(self) -> float:
        """The size of the parameters, at least the problem's unit."""
        return max(float(np.linalg.norm(self.x)), self.unit)

    @property
    def reach(self) -> float:
        """How far the stationary point is, relative to the size of the parameters."""
        return float(np.linalg.norm(self.step)) / self.size

    @property
    def error(self) -> float:
        """How far the exact stationary point may be, across flat directions."""
        return 10 * float(np.linalg.norm(self.step)) + 100 * self.eps * self.size


@dataclass
class Verdict:
    """What the modes of a stationary point do, by their curvature or, undecided ones, by the loss.

    `is_down`: the loss falls both ways along a mode; `tilt`: 1 or -1 if it falls one way only, that
    or the opposite one. `doubt` is what speaks against a minimum, by number.
    """

    is_down: Bool[np.ndarray, " k"]
    tilt: Point
    doubt: int
    is_open: bool = False  # not all of it was decided by curvature
    is_rising: bool = True  # the loss rises both ways wherever it was followed


def verdict(
    calls: Calls, domain: Domain, here: View, may_be_saddle: bool = True, largest: float = 0.0
) -> Verdict:
    """Decide what the modes of a stationary point do, by curvature alone unless it is a saddle.

    `largest`: the largest curvature on the way there.
    """
    curvature, rows, problem = here.curvature, here.curvature.rows, calls.problem
    if problem.rows is not None and problem.rows.size < problem.num_examples:
        return Verdict(curvature.is_down, np.zeros_like(curvature.residuals), BATCH)
    if not len(rows):
        return Verdict(curvature.is_down, curvature.residuals, UNKNOWN)
    values, x = curvature.eigenvalues, here.x
    # Ten times what is left of the gradient along modes whose stationary point is close.
    left = np.minimum(np.abs(rows @ here.grad), MIDDLE * here.unit * np.abs(values))
    noise = noise_of(calls, domain, here) + 10 * left
    beside = domain.inside(_beside(here, noise))
    is_dense = len(rows) == len(x)
    images = rows @ calls.hessian(beside) if is_dense else calls.hvps(beside, rows)
    # Nothing is to be decided along a symmetry, or where a bound holds.
    held = (
        domain.held(x, calls.value_and_grad(x)[1]) if domain.is_bounded else np.zeros(len(x), bool)
    )
    null = domain.with_held(domain.null(x), held)
    is_there = np.sum((rows @ null) ** 2, axis=1) < 0.5
    # Ten times, because what the modes do together may cancel.
    shifts = 10 * np.abs(np.sum(rows * images, axis=1) - values)
    is_negative = is_there & (values < -np.maximum(shifts, curvature.error))
    is_open = (values <= shifts) | curvature.is_weak | curvature.is_flat
    is_open &= is_there & ~is_negative
    if not may_be_saddle:
        is_open = np.zeros_like(is_open)
    found = _followed(calls, here, noise, is_negative, is_open, ~held)
    has_faded = may_be_saddle and curvature.scale <= 1000 * here.eps * largest
    if not has_faded or found.doubt or _is_confirmed(calls, here):
        return found
    whole = _followed(calls, here, noise, is_negative, is_there & ~is_negative, ~held)
    is_proof = found.is_rising and whole.is_rising and is_dense and is_there.sum() <= MAX_OPEN
    return whole if whole.doubt or is_proof else replace(whole, doubt=LEVEL)


def _is_confirmed(calls: Calls, here: View) -> bool:
    """Whether losses on both sides rise as the Hessian says, along a direction that is stiff."""
    row = _fixed(here.curvature.rows)
    for _ in range(3):
        image = calls.hvps(here.x, row[None])[0]
        row = image / max(_norm(image), float(np.finfo(row.dtype).tiny))
    value, agreed = float(row @ calls.hvps(here.x, row[None])[0]), False
    for length in CONFIRMING:
        aside = length * here.unit * row
        rise = (calls.value(here.x + aside) + calls.value(here.x - aside)) / 2 - here.loss
        expected = value * float(aside @ aside) / 2
        before, agreed = agreed, abs(rise - expected) < abs(expected) / 2
        if before and agreed:
            return True
    return False


def noise_of(calls: Calls, domain: Domain, here: View) -> Point:
    """What of a gradient is rounding, along each mode: a few units in the last place beside.

    Where it is the same there to the last bit, by how much it changes at last, farther away.
    """
    curvature, sizes = here.curvature, np.maximum(np.abs(here.x), here.unit)
    signs = np.where(np.arange(len(here.x)) % 2 == 0, 1, -1).astype(here.x.dtype)
    steps = np.stack([4 + 0 * signs, -8 * signs, 64 * signs, -256 + 0 * signs])
    differences = np.zeros_like(curvature.eigenvalues)
    while True:
        points = [domain.inside(one) for one in here.x + here.eps * steps * sizes]
        grads = np.stack([calls.value_and_grad(one)[1] for one in points])
        differences = np.maximum(
            differences, np.abs((grads - here.grad) @ curvature.rows.T).max(axis=0)
        )
        steps = -16 * steps[-1:]
        is_same = (differences == 0) & ~curvature.is_weak
        if not is_same.any() or here.eps * abs(steps).max() > MIDDLE:
            break
    # No less than the rounding of the terms that add up to it.
    terms = np.abs((curvature.rows.T * curvature.eigenvalues) @ curvature.rows) @ sizes
    tiny = float(np.finfo(here.x.dtype).tiny)
    return NOISE * differences + here.eps * (np.abs(curvature.rows) @ terms) + tiny


def _beside(here: View, noise: Point) -> Point:
    """A point that is as far off as the exact stationary point may be, along each mode."""
    sizes = np.abs(here.curvature.eigenvalues)
    off = np.where(sizes > here.curvature.rounding, noise / np.where(sizes > 0, sizes, 1), 0)
    off = np.minimum(off, MIDDLE * here.unit) + 100 * here.eps * here.size
    return here.x + off @ here.curvature.rows


def _followed(
    calls: Calls, here: View, noises: Point, is_negative: Mask, is_open: Mask, free: Mask
) -> Verdict:
    """Follow the loss along undecided modes, the first few and a mixture of all of them.

    On the way the other modes relax by Newton steps, and the open ones turn to where the loss is
    lower. Coordinates that are not `free` stay.
    """
    rows, values = here.curvature.rows, here.curvature.eigenvalues
    order, flat, noise = np.flatnonzero(is_open)[:MAX_OPEN], rows[is_open], _norm(noises[is_open])
    is_stiff = ~is_open & (np.abs(values) > here.curvature.error)
    stiff_rows, inverse = rows[is_stiff], 1 / values[is_stiff]
    tiny = float(np.finfo(rows.dtype).tiny)

    def unit(vector: Point) -> Point:
        return vector / max(_norm(vector), tiny)

    def slope_at(direction: Point, length: float) -> tuple[float, float, Point]:
        """The slope at a distance, what relaxing may change of it, and the direction."""
        length, bends = length * here.unit, 0
        aside = length * direction
        for _ in range(MAX_RELAX):
            grad = np.where(free, calls.value_and_grad(here.x + aside)[1], 0)
            along = unit((flat @ aside) @ flat)
            down = (flat @ grad) @ flat
            across = down - (down @ along) * along
            stiff, pull = stiff_rows @ aside, stiff_rows @ grad
            # The relaxed modes move with the square of the length, and the path is curved.
            slope = float(grad @ (along + 2 / length * (stiff @ stiff_rows)))
            gain = float(np.abs(inverse) @ pull**2 + np.abs(stiff) @ noises[is_stiff])
            slack, size, angle = 10 * gain / length, _norm(across), 0.0
            if size > noise and slack <= max(size, noise):
                bends += 1
                angle = 0.5**bends / (size + noise)
            aside = (stiff - inverse * pull) @ stiff_rows + length * unit(along - angle * across)
            if not ((slack > noise or size > noise) and bends < MAX_BENDS):
                break
        return slope, slack, along

    def told(direction: Point) -> tuple[float, Point]:
        """Whether the loss rises or falls that way, 1 or -1 or 0, and where that leads to."""
        first = slope_at(direction, MIDDLE)
        lengths = CLOSER if not abs(first[0]) <= noise else ()
        tries = (*((length, None) for length in lengths), (MIDDLE, first), (LAST, None))
        for length, known in tries:
            slope, slack, along = known or slope_at(direction, length)
            if abs(slope) > noise + slack:
                return float(np.sign(slope)), along
        return 0.0, direction

    found, ways = np.zeros((MAX_OPEN + 1, 2)), np.zeros((MAX_OPEN + 1, 2, len(here.x)))
    if len(order):
        mixed = unit((_fixed(rows) @ flat.T) @ flat)
        # A little off the modes: where the loss is symmetric they may be its crests.
        directions = [unit(rows[i] + 0.1 * mixed) for i in order]
        for number, direction in enumerate([*directions, *([mixed] if len(order) > 1 else [])]):
            for side, sign in enumerate((1, -1)):
                found[number, side], ways[number, side] = told(sign * direction)
    lower, is_down = np.zeros((len(rows), 2)), is_negative.copy()
    lower[order] = found[: len(order)] < 0
    # Both ways along a mode, and not twice to the same side of another.
    turned = np.sum(ways[:, 0] * ways[:, 1], axis=1)[: len(order)] > -0.9
    is_down[order] = lower[order].all(axis=1) & ~turned
    # Where a number has no digits left for the distances, nothing was compared.
    is_blind = here.eps * here.size >= MIDDLE * here.unit
    doubt = FALLS if (found < 0).any() else LEVEL if is_blind else 0
    tilt = (lower[:, 0] - lower[:, 1]).astype(rows.dtype)
    known = here.curvature.is_known
    is_rising = bool((found[: len(order) + (len(order) > 1)] > 0).all())
    return Verdict(is_down, tilt, doubt if known else UNKNOWN, bool(len(order)), is_rising)


def _norm(vector: Point) -> float:
    return float(np.linalg.norm(vector))


def _fixed(rows: Rows) -> Point:
    return np.asarray(compiled(fixed_vectors, "none")(1, rows.shape[1], rows.dtype))[0]


# --- by the Hessian


def is_dense(problem: Problem) -> bool:
    return problem.size < DENSE_BELOW


def view(calls: Calls, x: Point, key: PRNGKeyArray, floor: float = 0.0) -> View:
    """Evaluate a point. Where the Hessian does not fit, `lowest_curvature` finds the curvature.

    No curvature is below `floor`: what is, is taken for rounding.
    """
    if is_dense(calls.problem):
        loss, grad, hessian = calls.expansion(x)
        spectrum = eigh(hessian)
        error = calls.hvp_error(x, spectrum[1][:, 0])
        return view_of(calls.problem, x, loss, grad, hessian, spectrum, error, floor)
    loss, grad = calls.value_and_grad(x)
    run = compiled(_lean_step, "little")
    step, scale, num_hvps = fetch(run(calls.problem, place(calls.problem, x), grad, key))
    check_time()
    calls.charge(Cost(hvps=int(num_hvps)))
    rows = np.zeros((0, len(x)), x.dtype)
    curvature = Curvature(rows[:, 0], rows, rows[:, 0], float(scale), 0.0, 0.0, False)
    return View(x, loss, grad, step, step, curvature, float(calls.problem.unit))


def view_of(
    problem: Problem,
    x: Point,
    loss: float,
    grad: Point,
    hessian: Float[np.ndarray, "n n"],
    spectrum: tuple[Point, Float[np.ndarray, "n n"]],
    hvp_error: float,
    floor: float = 0.0,
) -> View:
    """What a point is by its Hessian, with eigenvalues and columns of that.

    `hvp_error`: what an HVP there may be off by.
    """
    values, columns = spectrum
    scale = float(np.abs(values).max())
    rounding, turning = _errors(problem, x, grad, scale, hvp_error)
    rounding = max(rounding + float(np.linalg.norm(hessian - hessian.T)), floor)
    is_known = bool(np.isfinite(values).all() and np.isfinite(rounding + turning))
    none = np.zeros_like(values)
    curvature = Curvature(values, columns.T, none, scale, rounding, rounding + turning, is_known)
    is_null = np.abs(values) <= rounding
    inverse = np.where(is_null, 0, 1 / np.where(is_null, 1, values))
    slopes = columns.T @ grad
    step, downhill = (-columns @ (one * slopes) for one in (inverse, np.abs(inverse)))
    return View(x, loss, grad, step, downhill, curvature, float(problem.unit))


def _errors(
    problem: Problem, x: Point, grad: Point, scale: float, hvp_error: float
) -> tuple[float, float]:
    """Of an eigenvalue: rounding with the noise of HVPs, and the turning of the gradient."""
    off = 10 * max(hvp_error, problem.noise * scale)
    turning = 10 * _norm(grad) / max(_norm(x), float(problem.unit))
    return 1000 * len(x) ** 0.5 * float(np.finfo(x.dtype).eps) * scale + off, turning


# --- by HVPs alone


def lowest_curvature(
    calls: Calls, x: Point, grad: Point, key: PRNGKeyArray, max_hvps: int
) -> Curvature:
    """The lowest eigenvalues at `x` from random vectors, by HVPs alone.

    It is known if the least one has converged, or is negative: then there is a saddle, of whatever
    index.
    """
    tolerance = tolerance_of(None, x.dtype)
    run = compiled(_lowest, "little")
    pairs = fetch(run(calls.problem, place(calls.problem, x), key, max_hvps))
    check_time()
    calls.charge(Cost(hvps=int(pairs.num_hvps)))
    curvature = curvature_of(calls, x, grad, pairs)
    off = curvature.rounding - _errors(calls.problem, x, grad, float(pairs.scale), 0.0)[0]
    is_converged = np.linalg.norm(pairs.remainders[0]) + off <= tolerance * pairs.scale
    curvature.is_known = bool(is_converged or curvature.is_down[0])
    return curvature


def curvature_of(
    calls: Calls, x: Point, grad: Point, pairs: Pairs, is_all: bool = False
) -> Curvature:
    """The curvature by the lowest eigenpairs.

    It is known if no eigenvalue outside of the rows is negative, as far as pairs are resolved, and
    those inside are what they seem. `is_all`: there are no others.
    """
    values, rows, scale = np.asarray(pairs.eigenvalues), np.asarray(pairs.rows), float(pairs.scale)
    residuals = np.linalg.norm(pairs.remainders, axis=1)
    rounding, turning = _errors(calls.problem, x, grad, scale, calls.hvp_error(x, rows[0]))
    error = rounding + turning
    resolved = error + 2 * tolerance_of(None, x.dtype) * scale
    is_flat = np.abs(values) <= np.maximum(error, residuals)
    is_decided = bool(np.all((values > 0) | is_flat | (values < -error - residuals)))
    is_known = bool(pairs.floor >= -resolved or is_all) and is_decided
    return Curvature(values, rows, residuals, scale, rounding, error, is_known)


def _lowest(problem: Problem, x: Vector, key: PRNGKeyArray, max_hvps: int) -> Pairs:
    start, tolerance = jax.random.normal(key, x.shape, x.dtype), tolerance_of(None, x.dtype)
    settings = (NUM_PAIRS, tolerance, max_hvps, 2 * NUM_PAIRS + 20, key)
    return lowest_pairs(problem.hvp_at(x), start, *settings)


def _lean_step(
    problem: Problem, x: Vector, grad: Vector, key: PRNGKeyArray
) -> tuple[Vector, Scalar, Int[Array, ""]]:
    """Newton's step, the largest curvature, and how many HVPs these took."""
    product, random = problem.hvp_at(x), jax.random.normal(key, x.shape, x.dtype)
    step, num_hvps = solve(product, grad)
    return step, krylov(product, random, NUM_PAIRS).ritz().scale, num_hvps + NUM_PAIRS


def newton_step(
    product: Hvp, grad: Vector, pairs: Pairs, cut: Scalar, is_all: bool
) -> tuple[Vector, Int[Array, ""]]:
    """Newton's step from the lowest eigenpairs and, outside of them, conjugate gradients."""
    values, rows = pairs.eigenvalues, pairs.rows
    is_null = jnp.abs(values) <= jnp.maximum(cut, pairs.residuals)
    inside = jnp.where(is_null, 0, (rows @ grad) / jnp.where(is_null, 1, values)) @ rows
    if is_all:
        return -inside, jnp.array(0)
    rest, num_hvps = solve(
        lambda vector: outside(rows, product(outside(rows, vector))), outside(rows, grad)
    )
    return rest - inside, num_hvps


def flat_part(calls: Calls, here: View, vector: Point) -> Point:
    """What of a vector lies in directions of hardly any curvature."""
    if is_dense(calls.problem):
        weak = here.curvature.rows[here.curvature.is_weak]
        return (weak @ vector) @ weak
    return np.asarray(compiled(_flat_part, "little")(calls.problem, here.x, vector))


def _flat_part(problem: Problem, x: Vector, vector: Vector) -> Vector:
    product = problem.hvp_at(x)
    return vector + solve(product, product(vector))[0]


def solve(product: Hvp, grad: Vector) -> tuple[Vector, Int[Array, ""]]:
    """The step that makes the linearised gradient vanish, by conjugate gradients.

    It lies in the span of gradients, so that flat directions have no part in it, and ends where it
    meets negative curvature.
    """
    most = min(MAX_SOLVE, 2 * len(grad))
    found = conjugate_gradients(product, -grad, 1e-3 * jnp.linalg.norm(grad), most)
    return found.x, found.num_hvps
