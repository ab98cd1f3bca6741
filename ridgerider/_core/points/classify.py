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
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ridgerider._core.linalg.lowest import Pairs, lowest_pairs
from ridgerider._core.linalg.solve import conjugate_gradients
from ridgerider._core.linalg.space import Hvp, krylov, outside
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Number, Problem, Scalar, Vector
from ridgerider._core.spectra.spectrum import DENSE_BELOW, fixed_vectors, tolerance_of

# Why a stationary point may still be none of the kinds, by number.
DOUBTS = (
    "",
    "the least eigenvalue was not found within `max_hvps` Hessian-vector products",
    "the loss falls along a direction of hardly any curvature: a penalty on the parameters helps",
    "the loss was evaluated on a batch, not on all data",
    "the loss is level here but for rounding",
    "it was trained on batches, not to where the gradient vanishes",
)
UNKNOWN, FALLS, BATCH, LEVEL, TRAINED = 1, 2, 3, 4, 5

# At which slopes are compared, in units of the problem: where it is level at the first, there is
# nothing to be seen on the way there, and the last is next.
DISTANCES = (1e-2, 1e-5, 1e-4, 1e-3, 1e-1)
MAX_OPEN, NUM_MIXED = 3, 1  # modes, and mixtures of them, along which they are
MAX_RELAX = 12  # evaluations at each, with Newton steps of the other modes between them
MAX_BENDS = 6  # of these, how many turn the open modes, each by half of the angle before
NOISE = 30  # times the differences of a gradient that are measured
NUM_PAIRS = 8  # lowest eigenpairs that are computed where the Hessian does not fit
MAX_SOLVE = 100  # HVPs for one Newton step there


class Curvature(eqx.Module):
    """The lowest eigenpairs around a point, all of them if the Hessian is dense.

    - `eigenvalues` ascend; `rows` are their unit vectors, `residuals` the norms |H e - lambda e|.
      Pairs that are not known have the eigenvalue infinity and the row zero.
    - `rounding`: what a zero eigenvalue may be computed as; `error`: off a stationary point, too.
    - `is_known`: the computation converged, so that there is no other negative eigenvalue.
    """

    eigenvalues: Float[Array, " k"]
    rows: Float[Array, "k n"]
    residuals: Float[Array, " k"]
    scale: Scalar
    rounding: Scalar
    error: Scalar
    is_known: Bool[Array, ""]

    @property
    def is_flat(self) -> Bool[Array, " k"]:
        return jnp.abs(self.eigenvalues) <= jnp.maximum(self.error, self.residuals)

    @property
    def num_flat(self) -> Int[Array, ""]:
        return jnp.sum(self.is_flat)

    @property
    def morse_index(self) -> Int[Array, ""]:
        """How many eigenvalues are negative; a lower bound, unless all are known.

        By Cauchy's interlacing theorem Ritz values count no more of them than there are, converged
        or not.
        """
        return jnp.sum(self.eigenvalues < -self.error)

    @property
    def is_negative(self) -> Bool[Array, ""]:
        return self.eigenvalues[0] < -self.error

    @property
    def least(self) -> Scalar:
        """The least eigenvalue that is not flat; 0 if all that are known are."""
        least = jnp.min(jnp.where(self.is_flat, jnp.inf, self.eigenvalues))
        return jnp.where(least == jnp.inf, jnp.zeros_like(least), least)

    @property
    def weak(self) -> Float[Array, "k n"]:
        """Directions of hardly any curvature; other rows are zero."""
        cut = jnp.maximum(tolerance_of(None, self.rows.dtype) * self.scale, self.rounding)
        is_weak = jnp.abs(self.eigenvalues) <= jnp.maximum(cut, self.residuals)
        return jnp.where(is_weak[:, None], self.rows, 0)

    @staticmethod
    def unknown(problem: Problem, scale: Scalar) -> "Curvature":
        count = problem.size if is_dense(problem) else NUM_PAIRS
        rows, zero = jnp.zeros((count, problem.size), problem.dtype), jnp.zeros_like(scale)
        eigenvalues = jnp.full(count, jnp.inf, problem.dtype)
        return Curvature(eigenvalues, rows, rows[:, 0], scale, zero, zero, jnp.array(False))


class View(eqx.Module):
    """A point with its Newton step, which leaves flat directions alone.

    `downhill` is the step with the curvature taken by its size: it leads down also where the
    Newton step climbs to a saddle.
    """

    x: Vector
    loss: Scalar
    grad: Vector
    step: Vector
    downhill: Vector
    curvature: Curvature
    cost: Cost
    unit: Scalar

    @property
    def size(self) -> Scalar:
        """The size of the parameters, at least the problem's unit."""
        return jnp.maximum(jnp.linalg.norm(self.x), self.unit)

    @property
    def reach(self) -> Scalar:
        """How far the stationary point is, relative to the size of the parameters."""
        return jnp.linalg.norm(self.step) / self.size

    @property
    def error(self) -> Scalar:
        """How far the exact stationary point may be, across flat directions."""
        eps = float(jnp.finfo(self.x.dtype).eps)
        return 10 * jnp.linalg.norm(self.step) + 100 * eps * self.size

    @property
    def left(self) -> Float[Array, " k"]:
        """Ten times what is left of the gradient along modes whose stationary point is close."""
        most = DISTANCES[0] * self.unit * jnp.abs(self.curvature.eigenvalues)
        return 10 * jnp.minimum(jnp.abs(self.curvature.rows @ self.grad), most)

    def beside(self, noise: Float[Array, " k"]) -> Vector:
        """A point that is as far off as the exact stationary point may be, along each mode."""
        curvature, eps = self.curvature, float(jnp.finfo(self.x.dtype).eps)
        sizes = jnp.abs(curvature.eigenvalues)
        is_known = (sizes > curvature.rounding) & jnp.isfinite(sizes)
        off = jnp.where(is_known, noise / jnp.where(is_known, sizes, 1), 0)
        off = jnp.minimum(off, DISTANCES[0] * self.unit) + 100 * eps * self.size
        return self.x + off @ curvature.rows


class Verdict(eqx.Module):
    """What the modes of a stationary point do, by their curvature or, undecided ones, by the loss.

    `is_down`: the loss falls both ways along a mode; `tilt`: 1 or -1 if it falls one way only, that
    or the opposite one. `doubt` is what speaks against a minimum, by number.
    """

    is_down: Bool[Array, " k"]
    tilt: Float[Array, " k"]
    doubt: Int[Array, ""]
    cost: Cost


def verdict(problem: Problem, here: View, may_be_saddle: Bool[Array, ""]) -> Verdict:
    """Decide what the modes of a stationary point do, by curvature alone unless it is a saddle."""
    if problem.rows is not None and problem.rows.size < problem.num_examples:
        down, level = here.curvature.eigenvalues < -here.curvature.error, here.curvature.residuals
        return Verdict(down, 0 * level, jnp.array(BATCH), Cost())
    rows = here.curvature.rows
    noise = noise_of(here, jax.lax.map(problem.grad, around(here)))
    noise = noise + here.left
    x = here.beside(noise)
    images = (
        rows @ problem.hessian(x) if is_dense(problem) else jax.lax.map(problem.hvp_at(x), rows)
    )
    is_negative, is_open = decided(here, images, jnp.zeros((len(here.x), 0), here.x.dtype))
    is_open &= may_be_saddle
    found = followed(problem, here, noise, is_negative, is_open, jnp.ones_like(here.x))
    spent = Cost(gradients=4, hvps=len(rows), hessians=int(is_dense(problem)))
    return eqx.tree_at(lambda one: one.cost, found, found.cost + spent)


def around(here: View) -> Float[Array, "4 n"]:
    """Some points a few units in the last place beside another."""
    ulps = float(jnp.finfo(here.x.dtype).eps) * jnp.maximum(jnp.abs(here.x), here.unit)
    signs = jnp.where(jnp.arange(len(here.x)) % 2 == 0, 1, -1).astype(here.x.dtype)
    steps = jnp.stack([4 + 0 * signs, -8 * signs, 64 * signs, -256 + 0 * signs])
    return here.x[None] + steps * ulps[None]


def noise_of(here: View, grads: Float[Array, "4 n"]) -> Float[Array, " k"]:
    """What of a gradient is rounding, along each mode, by how it differs `around` a point."""
    rows, info = here.curvature.rows, jnp.finfo(here.x.dtype)
    differences = jnp.max(jnp.abs((grads - here.grad[None]) @ rows.T), axis=0)
    # No less than the rounding of the terms that add up to it.
    values = jnp.where(jnp.isfinite(here.curvature.eigenvalues), here.curvature.eigenvalues, 0)
    terms = jnp.abs((rows.T * values[None]) @ rows) @ jnp.maximum(jnp.abs(here.x), here.unit)
    return NOISE * differences + float(info.eps) * (jnp.abs(rows) @ terms) + float(info.tiny)


def decided(
    here: View, images: Float[Array, "k n"], null: Float[Array, "n j"]
) -> tuple[Bool[Array, " k"], Bool[Array, " k"]]:
    """Which modes curve downwards, and which are undecided; `images` are the HVPs `beside`.

    Columns of `null` are directions of a symmetry, or held at bounds: nothing is to be decided.
    """
    curvature = here.curvature
    rows, values = curvature.rows, curvature.eigenvalues
    is_there = jnp.any(rows != 0, axis=1) & (jnp.sum((rows @ null) ** 2, axis=1) < 0.5)
    # Ten times, because what the modes do together may cancel.
    shifts = jnp.where(is_there, 10 * jnp.abs(jnp.sum(rows * images, axis=1) - values), 0)
    is_negative = is_there & (values < -jnp.maximum(shifts, curvature.error))
    is_open = (values <= shifts) | jnp.any(curvature.weak != 0, axis=1) | curvature.is_flat
    return is_negative, is_open & is_there & ~is_negative


def followed(
    problem: Problem,
    here: View,
    noises: Float[Array, " k"],
    is_negative: Bool[Array, " k"],
    is_open: Bool[Array, " k"],
    free: Vector,
) -> Verdict:
    """Follow the loss along undecided modes, the first few and some mixtures of all of them.

    On the way the other modes relax by Newton steps, and the open ones turn to where the loss is
    lower. Coordinates whose `free` is 0 stay.
    """
    rows, values = here.curvature.rows, here.curvature.eigenvalues
    most = min(MAX_OPEN, len(rows))
    order = jnp.argsort(~is_open)[:most]
    count = jnp.minimum(jnp.sum(is_open), most)
    flat = jnp.where(is_open[:, None], rows, 0)
    mixed = (fixed_vectors(NUM_MIXED, rows.shape[1], rows.dtype) @ flat.T) @ flat

    def unit(vector: Vector) -> Vector:
        return vector / jnp.maximum(jnp.linalg.norm(vector), jnp.finfo(rows.dtype).tiny)

    # A little off the modes: where the loss is symmetric they may be its crests.
    directions = jnp.concatenate([flat[order] + 0.1 * unit(mixed[0])[None], mixed])
    is_stiff = ~is_open & (jnp.abs(values) > here.curvature.error) & jnp.isfinite(values)
    inverse = jnp.where(is_stiff, 1 / jnp.where(is_stiff, values, 1), 0)
    noise = jnp.linalg.norm(jnp.where(is_open, noises, 0))

    def slope_at(first: Vector, length: Scalar) -> tuple:
        """The slope at a distance, what relaxing may change of it, the direction, evaluations."""

        def relax(state: tuple) -> tuple:
            aside, *_, turn, bends, _ = state
            grad = free * problem.grad(here.x + aside)
            along = unit((flat @ aside) @ flat)
            down = (flat @ grad) @ flat
            across = down - (down @ along) * along
            stiff = jnp.where(is_stiff, rows @ aside, 0)
            pull = jnp.where(is_stiff, rows @ grad, 0)
            # The relaxed modes move with the square of the length, and the path is curved.
            slope = grad @ (along + 2 / length * (stiff @ rows))
            gain = jnp.sum(jnp.abs(inverse) * pull**2) + jnp.abs(stiff) @ noises
            slack, size = 10 * gain / length, jnp.linalg.norm(across)
            is_bent = (size > noise) & (slack <= jnp.maximum(size, noise))
            angle = jnp.where(is_bent, 0.5 ** (bends + 1).astype(rows.dtype) / (size + noise), 0)
            aside = (stiff - inverse * pull) @ rows + length * unit(along - angle * across)
            turn, bends = turn + 1, bends + is_bent.astype(int)
            is_moving = (
                ((slack > noise) | (size > noise)) & (turn < MAX_RELAX) & (bends < MAX_BENDS)
            )
            return aside, slope, slack, along, turn, bends, is_moving

        zero, none = jnp.zeros((), rows.dtype), jnp.array(0)
        start = (first, zero, zero, first, none, none, jnp.array(True))
        return jax.lax.while_loop(lambda state: state[-1], relax, start)[1:-2]

    def follow(number: Int[Array, ""], carry: tuple) -> tuple:
        found, ways, total = carry
        way, side = jnp.divmod(number, 2)
        way = jnp.where(way < count, way, way - count + most)
        direction = jnp.where(side == 0, 1, -1).astype(rows.dtype) * unit(directions[way])

        def compare(state: tuple) -> tuple:
            turn, told, where, total, _ = state
            length = jnp.asarray(DISTANCES, rows.dtype)[turn] * problem.unit
            slope, slack, along, num = slope_at(length * direction, length)
            is_told = jnp.abs(slope) > noise + slack
            told = jnp.where(is_told, jnp.sign(slope), told)
            where = jnp.where(is_told, along, where)
            last = len(DISTANCES) - 1
            is_over = jnp.select([turn == 0, turn == last - 1], [False, told != 0], is_told)
            turn = jnp.where((turn == 0) & (jnp.abs(slope) <= noise), last, turn + 1)
            return turn, told, where, total + num, is_over | (turn > last)

        start = (jnp.array(0), jnp.zeros((), rows.dtype), direction, total, jnp.array(False))
        _, told, where, total, _ = jax.lax.while_loop(lambda state: ~state[-1], compare, start)
        return found.at[way, side].set(told), ways.at[way, side].set(where), total

    num = count + jnp.where(count > 1, NUM_MIXED, 0)
    nothing = jnp.zeros((len(directions), 2), rows.dtype)
    nowhere = jnp.zeros((*nothing.shape, rows.shape[1]), rows.dtype)
    found, ways, total = jax.lax.fori_loop(0, 2 * num, follow, (nothing, nowhere, jnp.array(0)))
    lower = jnp.zeros((len(rows), 2), bool).at[order].set(found[:most] < 0)
    lower &= is_open[:, None]
    # Both ways along a mode, and not twice to the same side of another.
    turned = jnp.sum(ways[:most, 0] * ways[:most, 1], axis=1) > -0.9
    is_turned = jnp.zeros(len(rows), bool).at[order].set(turned)
    # Where a number has no digits left for the distances, nothing was compared.
    eps = float(jnp.finfo(rows.dtype).eps)
    is_blind = eps * here.size >= DISTANCES[0] * here.unit
    doubt = jnp.select([jnp.any(found < 0), is_blind], [FALLS, LEVEL], 0)
    return Verdict(
        is_negative | (jnp.all(lower, axis=1) & ~is_turned),
        lower[:, 0].astype(rows.dtype) - lower[:, 1].astype(rows.dtype),
        jnp.where(here.curvature.is_known, doubt, UNKNOWN),
        Cost(gradients=total),
    )


def is_dense(problem: Problem) -> bool:
    return problem.size < DENSE_BELOW


def view(problem: Problem, x: Vector, key: PRNGKeyArray, floor: Number = 0.0) -> View:
    """Evaluate a point. Where the Hessian does not fit, `lowest_curvature` finds the curvature.

    No curvature is below `floor`: what is, is taken for rounding.
    """
    if is_dense(problem):
        return dense_view(problem, x, floor)
    loss, grad = problem.value(x), problem.grad(x)
    product = problem.hvp_at(x)
    random = jax.random.normal(key, (1, x.size), x.dtype)
    scale = krylov(product, random, NUM_PAIRS).ritz().scale
    step, num_hvps = solve(product, grad)
    cost = Cost(values=1, gradients=1, hvps=num_hvps + NUM_PAIRS)
    return View(x, loss, grad, step, step, Curvature.unknown(problem, scale), cost, problem.unit)


def dense_view(problem: Problem, x: Vector, floor: Number = 0.0) -> View:
    """Evaluate a point by its Hessian."""
    loss, grad, hessian = problem.value(x), problem.grad(x), problem.hessian(x)
    eigenvalues, columns = jnp.linalg.eigh(hessian)
    error, spent = problem.hvp_error(x, columns[:, 0])
    noise = (error, problem.noise, problem.unit)
    seen = view_of(x, loss, grad, hessian, (eigenvalues, columns), noise, floor)
    cost = Cost(values=1, gradients=1, hvps=problem.size, hessians=1, eigendecompositions=1)
    return eqx.tree_at(lambda view: view.cost, seen, cost + spent)


def view_of(
    x: Vector,
    loss: Scalar,
    grad: Vector,
    hessian: Float[Array, "n n"],
    spectrum: tuple[Float[Array, " n"], Float[Array, "n n"]],
    known: tuple[Scalar, Number, Scalar],
    floor: Number = 0.0,
) -> View:
    """What a point is by its Hessian, with eigenvalues and columns of that.

    `known`: the error of an HVP there, that of all relative to their size, the problem's unit.
    """
    hvp_error, noise, unit = known
    eigenvalues, columns = spectrum
    scale = jnp.max(jnp.abs(eigenvalues))
    rounding, turning = _errors(x, grad, scale, hvp_error, noise, unit)
    rounding = jnp.maximum(rounding + jnp.linalg.norm(hessian - hessian.T), floor)
    curvature = Curvature(
        eigenvalues=eigenvalues,
        rows=columns.T,
        residuals=jnp.zeros_like(eigenvalues),
        scale=scale,
        rounding=rounding,
        error=rounding + turning,
        is_known=jnp.all(jnp.isfinite(eigenvalues)) & jnp.isfinite(rounding + turning),
    )
    is_null = jnp.abs(eigenvalues) <= rounding
    inverse = jnp.where(is_null, 0, 1 / jnp.where(is_null, 1, eigenvalues))
    slopes = columns.T @ grad
    step, downhill = (-columns @ (one * slopes) for one in (inverse, jnp.abs(inverse)))
    return View(x, loss, grad, step, downhill, curvature, Cost(eigendecompositions=1), unit)


def lowest_curvature(
    problem: Problem, x: Vector, grad: Vector, key: PRNGKeyArray, max_hvps: int
) -> tuple[Curvature, Cost]:
    """The lowest eigenvalues at `x` from random vectors, by HVPs alone.

    It is known if the least one has converged, or is negative: then there is a saddle, of whatever
    index.
    """
    start = jax.random.normal(key, (NUM_PAIRS, problem.size), x.dtype)
    tolerance = tolerance_of(None, x.dtype)
    pairs = lowest_pairs(
        problem.hvp_at(x), start, NUM_PAIRS, tolerance, max_hvps, 2 * NUM_PAIRS + 20
    )
    curvature, spent = curvature_of(problem, x, grad, pairs)
    noise = curvature.rounding - _rounding(x, pairs.scale)
    is_converged = pairs.residuals[0] + noise <= tolerance * pairs.scale
    is_known = is_converged | curvature.is_negative
    return eqx.tree_at(lambda c: c.is_known, curvature, is_known), Cost(hvps=pairs.num_hvps) + spent


def curvature_of(
    problem: Problem, x: Vector, grad: Vector, pairs: Pairs, is_all: bool = False
) -> tuple[Curvature, Cost]:
    """The curvature by the lowest eigenpairs, and what it cost to measure their error.

    It is known if no eigenvalue outside of the rows is negative, as far as pairs are resolved, and
    those inside are what they seem. `is_all`: there are no others.
    """
    off, spent = problem.hvp_error(x, pairs.rows[0])
    rounding, turning = _errors(x, grad, pairs.scale, off, problem.noise, problem.unit)
    error, values, residuals = rounding + turning, pairs.eigenvalues, pairs.residuals
    resolved = error + 2 * tolerance_of(None, x.dtype) * pairs.scale
    is_flat = jnp.abs(values) <= jnp.maximum(error, residuals)
    is_decided = jnp.all((values > 0) | is_flat | (values < -error - residuals))
    is_known = ((pairs.floor >= -resolved) | is_all) & is_decided
    curvature = Curvature(values, pairs.rows, residuals, pairs.scale, rounding, error, is_known)
    return curvature, spent


def newton_step(
    product: Hvp, grad: Vector, curvature: Curvature, is_all: bool
) -> tuple[Vector, Int[Array, ""]]:
    """Newton's step from the lowest eigenpairs and, outside of them, conjugate gradients."""
    values, rows = curvature.eigenvalues, curvature.rows
    is_null = jnp.abs(values) <= jnp.maximum(curvature.rounding, curvature.residuals)
    inside = jnp.where(is_null, 0, (rows @ grad) / jnp.where(is_null, 1, values)) @ rows
    if is_all:
        return -inside, jnp.array(0)
    rest, num_hvps = solve(
        lambda vector: outside(rows, product(outside(rows, vector))), outside(rows, grad)
    )
    return rest - inside, num_hvps


def flat_part(problem: Problem, here: View, vector: Vector) -> Vector:
    """What of a vector lies in directions of hardly any curvature."""
    if is_dense(problem):
        weak = here.curvature.weak
        return (weak @ vector) @ weak
    product = problem.hvp_at(here.x)
    return vector + solve(product, product(vector))[0]


def solve(product: Hvp, grad: Vector) -> tuple[Vector, Int[Array, ""]]:
    """The step that makes the linearised gradient vanish, by conjugate gradients.

    It lies in the span of gradients, so that flat directions have no part in it, and ends where it
    meets negative curvature.
    """
    most = min(MAX_SOLVE, 2 * len(grad))
    found = conjugate_gradients(product, -grad, 1e-3 * jnp.linalg.norm(grad), most)
    return found.x, found.num_hvps


def loss_rounding(loss: Scalar) -> Scalar:
    return 1000 * jnp.finfo(loss.dtype).eps * jnp.abs(loss)


def _rounding(x: Vector, scale: Scalar) -> Scalar:
    return 1000 * math.sqrt(len(x)) * float(jnp.finfo(x.dtype).eps) * scale


def _errors(
    x: Vector, grad: Vector, scale: Scalar, hvp_error: Scalar, noise: Number, unit: Scalar
) -> tuple[Scalar, Scalar]:
    """Of an eigenvalue: rounding with the noise of HVPs, and the turning of the gradient."""
    off = 10 * jnp.maximum(hvp_error, noise * scale)
    turning = 10 * jnp.linalg.norm(grad) / jnp.maximum(jnp.linalg.norm(x), unit)
    return _rounding(x, scale) + off, turning
