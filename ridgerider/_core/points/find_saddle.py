r"""The saddle to set out from: where to start, what was found, and whether it is one.

From one start, climb along the lowest modes of the Hessian and descend along all others.

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
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ridgerider._check import AtLeast0, Count, Seed, Whole, check_count, checked, one_line
from ridgerider._core.points.climb import Modes, modes_of, prediction_error, ritz_modes
from ridgerider._core.points.symmetry import Symmetry
from ridgerider._core.problem.calls import Calls, Point, Rows, measured
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem, Scalar, Vector, fetch
from ridgerider._core.runtime.compile import one_thread, program_of
from ridgerider._core.spectra.block import BlockSpectrum
from ridgerider._core.spectra.spectrum import (
    DENSE_BELOW,
    Cluster,
    DenseSpectrum,
    tolerance_of,
)

Regularizer = Callable[[PyTree], Scalar]
SPREAD = 0.3  # a further start lies by this much further off than the one before
NEAR = 0.1  # Newton's step along each mode at a stationary point is shorter than this many units
MORE = 3  # numbers of modes that are tried from one start
NUM_COPIES = 8  # of a symmetry, at random, which generate all of them but for a small chance
NUM_PAIRS = 8  # lowest pairs that are followed where the Hessian is not formed


@dataclass(frozen=True)
class Saddle:
    """A stationary point and what surrounds it.

    `morse_index` counts the negative eigenvalues. `is_strict` reads true if the gradient vanishes
    and at least one eigenvalue is clearly negative; then every ridge leads downhill both ways.
    `reason` is empty if this is what was asked for, or says in a sentence what is missing. Where
    the Hessian is too large to be formed, `clusters` are the lowest ones.

    >>> from ridgerider.problems import wells
    >>> saddle = find_saddle(wells(3))
    >>> saddle.morse_index, [cluster.multiplicity for cluster in saddle.clusters]
    (3, [1, 1, 1])
    >>> print(saddle)
    A strict saddle of Morse index 3: loss 0, gradient norm 0.
    """

    params: PyTree
    loss: float
    grad_norm: float
    morse_index: int
    clusters: tuple[Cluster, ...]
    is_stationary: bool
    is_strict: bool
    cost: Cost
    reason: str = ""

    def __str__(self) -> str:
        kind = f"A strict saddle of Morse index {self.morse_index}" if self.is_strict else "A point"
        what = f"{kind}: loss {self.loss:.6g}, gradient norm {self.grad_norm:.3g}."
        return f"{what} {self.reason}".rstrip()


@checked
@one_thread()
def find_saddle(
    problem: Problem,
    regularizer: Regularizer | None = None,
    *,
    index: int | None = None,
    weight: AtLeast0 = 1e-2,
    num_starts: Count = 16,
    max_steps: Whole = 100,
    noise: AtLeast0 = 0.0,
    seed: Seed = 0,
    symmetry: Symmetry | None = None,
) -> Saddle:
    """Find a strict saddle, the one at hand if `problem.start` is close to one.

    If none is found, the best point is returned: its `is_strict` reads false, or its `morse_index`
    is not the one asked for, and `reason` says so.

    **Arguments**

    - `regularizer(params)`: made small on the way, weighted by `weight`; e.g. minus the entropy of
      a policy. Takes dense Hessians, whatever the number of parameters.
    - `index`: how many eigenvalues shall be negative. None: any number but zero; away from
      stationary points one mode is climbed, which is where most saddles are found.
    - `num_starts`: if a start fails, take another one, up to this many in all.
    - `max_steps`: per start. A step is a gradient with a Hessian, dense below 300 parameters and 40
      Hessian-vector products beyond.
    - `noise`, `seed`: standard deviation of a random displacement of the start, for independent
      runs. Start number k, counted from 0, is displaced by another 0.3 k times the root mean square
      of the start's entries, at least by 0.3 k units of length (1 for parameters of ordinary
      size).
    - `symmetry`: an `rr.symmetry.Symmetry` whose `copy(params, key)` is linear in the parameters.
      The search is then restricted to points that every copy leaves in place, where a stationary
      point is one of the whole loss: the maximally invariant saddle.

    >>> import jax.numpy as jnp
    >>> problem = Problem(lambda x: jnp.cos(x[0]) + x[1] ** 2, jnp.array([0.4, -0.3]))
    >>> saddle = find_saddle(problem)
    >>> saddle.morse_index, saddle.is_strict, bool(jnp.abs(saddle.params).max() < 1e-6)
    (1, True, True)
    >>> find_saddle(Problem(lambda x: x @ x, jnp.ones(2))).reason
    'No negative curvature: the least eigenvalue is 2.'
    >>> swap = Symmetry(copy=lambda x, key: jax.random.permutation(key, x))
    >>> problem = Problem(lambda x: jnp.sum((x**2 - 1) ** 2) - 0.3 * x[0] * x[1], jnp.ones(2) / 9)
    >>> jnp.ptp(find_saddle(problem, noise=0.5, symmetry=swap).params).item()
    0.0
    """
    if index is not None:
        check_count("index", index, 1, problem.size)
    if symmetry is not None and symmetry.copy is None:
        raise ValueError(f"`symmetry` must be a Symmetry with a `copy`, not {one_line(symmetry)}.")
    found: list[tuple[tuple, Saddle]] = []
    problem, spent = measured(problem)
    calls = Calls(problem)
    penalty = Penalty(problem, regularizer, float(weight)) if regularizer else None
    fixed = None if symmetry is None else _fixed_points(problem, symmetry)
    unit = float(jnp.maximum(problem.unit, jnp.sqrt(jnp.mean(problem.x0**2))))
    with problem.ledger() as ledger:
        for number in range(num_starts):
            key = jax.random.key(seed)
            key = jax.random.fold_in(key, number) if number else key
            random = fetch(jax.random.normal(key, (problem.size,), problem.dtype))
            x = fetch(problem.x0) + (noise + SPREAD * number * unit) * random
            wanted, known, go = index or -1, None, partial(to_saddle, calls, random=random)
            if fixed is not None:
                x = _invariant(calls, fixed, regularizer, weight, max_steps, x, random)
                found.append(_judge(calls, index, True, x, key))
            elif penalty is not None:
                here = go(penalty, wanted, max_steps, x)
                if index is None and not here.is_stationary():
                    # A least gradient that is not zero: continue to the saddle of this index.
                    wanted = max(here.num_downhill, 1)
                found.append(_judge(calls, index, True, go(None, wanted, max_steps, here.x).x, key))
                # Both may run to infinity, where gradients vanish: climb as many modes as curve
                # downwards at the start or, as some may turn on the way, a few more.
                for more in range(MORE if max_steps and index is None else 0):
                    if not found[-1][1].reason:
                        break
                    wanted = max(go(None, wanted, 0, x).num_downhill, 1) + more
                    found.append(_judge(calls, index, True, go(None, wanted, max_steps, x).x, key))
            else:
                if problem.size >= DENSE_BELOW:
                    spectrum_at = BlockSpectrum(max(NUM_PAIRS, index or 0))
                    spectrum = spectrum_at(problem, jnp.asarray(x), key)
                    known = np.asarray(spectrum.eigenvectors)
                    calls.charge(spectrum.cost)
                x = go(None, wanted, max_steps, x, known=known).x
                found.append(_judge(calls, index, known is None, x, key))
            if not found[-1][1].reason:
                break
    total = ledger.charge(calls.cost + spent)
    return replace(max(found, key=lambda pair: pair[0])[1], cost=total)


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


# A step in the modes, whether there is more to come than Newton's step, and whether it is a kick,
# which leaves a stationary point that is not a saddle.
Move = tuple[Point, bool, bool]


def to_saddle(
    calls: Calls,
    penalty: Penalty | None,
    index: int,
    max_steps: int,
    x: Point,
    *,
    random: Point,
    known: Rows | None = None,
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
        parts, is_bent, is_kick = (
            _follow(calls, here, index, radius, random)
            if penalty is None
            else _newton(penalty, here, radius)
        )
        rows, values = here.modes.rows, here.modes.eigenvalues
        known = None if known is None else rows[: len(known)]
        new = _look(calls, here.x + parts @ rows, known)
        error = prediction_error(here.grad, new.grad, (values * parts) @ rows)
        is_better = bool(np.linalg.norm(new.grad) < np.linalg.norm(here.grad) / 2)
        is_right = error < 2 or is_better
        if penalty is not None:
            is_right = penalty.value(new) < penalty.value(here)
        is_lost = is_right and here.num_downhill >= wanted > new.num_downhill
        num_turns += is_lost or is_kick
        is_over = penalty is None and num_turns > MAX_TURNS
        is_there = here.is_saddle(index) if penalty is None else here.is_stationary()
        is_end = is_there and not is_better and not is_bent  # a step would only lead away
        is_taken = is_right and np.isfinite(new.grad).all() and not is_over and not is_end
        # Newton steps continue from stationary to exact, while they gain something.
        is_exact = penalty is None and new.is_saddle(index) and new.is_stationary(rounding)
        is_done = is_over or is_end or (is_exact and is_taken)
        if not is_taken or error > 1:
            radius /= 3
        elif error < 0.5 and (is_bent or np.any(np.abs(parts) >= 0.99 * radius)):
            radius = min(2 * radius, MAX_RADIUS * unit)
        here = new if is_taken else here
    return here


def _follow(calls: Calls, here: Here, index: int, radius: float, random: Point) -> Move:
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
        return ordinary, False, False
    last = int(np.argmax(np.where(is_wrong, rank, -1)))
    bend = np.asarray(program_of(calls.problem, _bend)(here.x, modes.rows[last]))
    calls.charge(Cost(hvps=2))
    steepest = float(np.linalg.norm(bend))
    if steepest * radius > modes.cut:
        soften = -radius / steepest * (modes.rows @ bend)
        return soften + SETTLE * np.where(is_wrong, 0, ordinary), True, False
    # Curvature that is the same everywhere around, or a symmetric minimum: see from a little off.
    is_kick = here.is_stationary()
    kick = np.where(np.arange(len(parts)) == last, radius * np.sign(slopes), 0)
    return kick if is_kick else ordinary, True, is_kick


def _bend(problem: Problem, x: Vector, mode: Vector) -> Vector:
    """The gradient of the curvature along a mode."""
    return jax.jvp(lambda x: problem.hvp(x, mode), (x,), (mode,))[1]


def _newton(penalty: Penalty, here: Here, radius: float) -> Move:
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
    return np.where(is_curved, newton, along), is_bent, False


def _look(calls: Calls, x: Point, known: Rows | None) -> Here:
    none, unit = np.zeros((len(x), 0), x.dtype), float(calls.problem.unit)
    _, grad, *hessian = calls.expansion(x) if known is None else calls.value_and_grad(x)
    if not all(np.isfinite(one).all() for one in (grad, *hessian)):
        return Here(x, np.full_like(x, np.nan), Modes(np.zeros(1), x[None], 0.0), unit)
    if known is None:
        return Here(x, grad, modes_of(hessian[0], none), unit)
    # All of the gradient lies in this space, and, as its Krylov space does, H s = grad nearly.
    first, num_rows = len(known), min(len(known) + 1 + NUM_PRODUCTS, len(x))
    return Here(x, grad, ritz_modes(calls, x, [*known, grad], none, num_rows, first), unit)


def _fixed_points(problem: Problem, symmetry: Symmetry) -> Float[Array, "k n"]:
    """An orthonormal basis of the vectors that copies leave in place."""
    assert symmetry.copy is not None
    copy = symmetry.copy

    def moved(x: Vector, key: PRNGKeyArray) -> Vector:
        return problem.ravel(copy(problem.unravel(x), key)) - x

    keys = jax.random.split(jax.random.key(0), NUM_COPIES)
    moves = np.concatenate([np.asarray(jax.jacfwd(moved)(problem.x0, key)) for key in keys])
    sizes, rows = np.linalg.svd(moves)[1:]
    is_fixed = np.append(sizes, np.zeros(len(rows) - len(sizes))) < 1e-6
    if not is_fixed.any():
        raise ValueError("`symmetry` must leave some point in place, but its copies move all.")
    return jnp.asarray(rows[is_fixed])


def _invariant(
    calls: Calls,
    fixed: Float[Array, "k n"],
    regularizer: Regularizer | None,
    weight: AtLeast0,
    max_steps: int,
    x: Point,
    random: Point,
) -> Point:
    """The stationary point of the loss on these rows, of least regularizer, whatever its index."""
    problem = calls.problem
    inside = Problem(lambda z: problem.value(z @ fixed), fixed @ x).with_unit(float(problem.unit))
    of_params = regularizer or (lambda _: jnp.zeros((), problem.dtype))
    inner, z = Calls(inside), fetch(inside.x0)
    for size in (weight, 0.0) if regularizer else (0.0,):
        penalty = Penalty(inside, lambda z: of_params(problem.unravel(z @ fixed)), float(size))
        z = to_saddle(inner, penalty, -1, max_steps, z, random=random[: len(z)]).x
    calls.charge(inner.cost)
    return z @ np.asarray(fixed)


def _judge(
    calls: Calls, index: int | None, is_dense: bool, x: Point, key: PRNGKeyArray
) -> tuple[tuple, Saddle]:
    """What was found at `x`, with a key to choose the best by."""
    problem, place, num_pairs = calls.problem, jnp.asarray(x), NUM_PAIRS
    loss, grad = calls.value_and_grad(x)
    while True:
        spectrum_at = DenseSpectrum() if is_dense else BlockSpectrum(num_pairs)
        spectrum = jax.device_get(spectrum_at(problem, place, key))
        calls.charge(spectrum.cost)
        if num_pairs >= problem.size or not spectrum.is_downhill.all() or is_dense:
            break
        num_pairs = min(2 * num_pairs, problem.size)
    grad_norm = float(np.linalg.norm(grad))
    # As in `Descend`: what a small displacement makes of a zero gradient.
    size = float(spectrum.scale) * max(float(problem.unit), float(jnp.linalg.norm(x)))
    # A gradient that vanishes at infinity only is small, but Newton's step stays as long as it is.
    slopes = np.abs(spectrum.eigenvectors @ grad)
    is_real = slopes > 1000 * float(jnp.finfo(problem.dtype).eps) * size
    is_far = slopes > NEAR * float(problem.unit) * np.abs(spectrum.eigenvalues)
    is_at_infinity = bool(np.any(is_real & is_far))
    is_small = bool(grad_norm <= tolerance_of(None, problem.dtype) * size)
    is_stationary = is_small and not is_at_infinity
    morse_index, least = int(np.sum(spectrum.is_downhill)), float(spectrum.eigenvalues[0])
    is_strict = is_stationary and morse_index > 0
    reason = ""
    if not is_stationary:
        where = ", and falls to zero at infinity only" if is_small else ""
        reason = f"No stationary point: the gradient norm is {grad_norm:.3g}{where}."
    elif not is_strict:
        reason = f"No negative curvature: the least eigenvalue is {least:.3g}."
    elif index is not None and morse_index != index:
        reason = f"Another kind of saddle: the Morse index is {morse_index}, not {index}."
    saddle = Saddle(
        params=problem.unravel(place),
        loss=float(loss),
        grad_norm=grad_norm,
        morse_index=morse_index,
        clusters=spectrum.clusters(),
        is_stationary=is_stationary,
        is_strict=is_strict,
        cost=calls.cost,
        reason=reason,
    )
    return (not reason, is_strict, is_stationary, -grad_norm / size if size else -np.inf), saddle
