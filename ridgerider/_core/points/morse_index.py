"""What is at a stationary point, and the ridges that leave it.

The Morse index counts the eigenvalues that are negative beyond their error, of the Hessian without
anything projected out. The ridges that lead on are modes outside of a symmetry's directions.

For many parameters the lowest modes are computed by Hessian-vector products (HVPs), from random
vectors, and the index is known only if a probe of what is outside of them has found no negative
eigenvalue.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ridgerider._core.descend.finish import Finish, finish_of
from ridgerider._core.linalg.lowest import Pairs, lowest_pairs
from ridgerider._core.linalg.space import Hvp, krylov, outside
from ridgerider._core.points.classify import (
    FALLS,
    UNKNOWN,
    View,
    curvature_of,
    newton_step,
    noise_of,
    verdict,
    view_of,
)
from ridgerider._core.points.climb import modes_of
from ridgerider._core.points.domain import Domain, Mask
from ridgerider._core.points.symmetry import Symmetry, orthonormal
from ridgerider._core.problem.calls import Calls, Point
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Number, Problem, Vector, fetch
from ridgerider._core.runtime.clock import check_time
from ridgerider._core.runtime.compile import compiled, eigh
from ridgerider._core.spectra.spectrum import (
    canonical_rows,
    cluster_labels,
    cluster_width,
    fix_signs,
    tolerance_of,
)

MAX_POLISH = 30  # Newton steps: where curvature vanishes, each leaves two thirds of the distance
FLAT = 1e4  # times the tolerance: no stationary point is as far from where a descent has ended
# Where losses outside of JAX are compared, in units of the problem.
LENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)
FARTHER = (0.03, 0.1, 0.3)  # of the bounds: where losses are compared that are level before
ULPS, NOISE = (8, -64, 256), 10  # where rounding is measured; times what is seen of it
SOFT = 1e-3  # of the largest curvature: whether one that is less is positive, values say
KEPT = 0.2  # a Newton step that leaves less than this of the gradient needs no new Hessian
FARTHEST = 0.05  # of them all, relative to the size of the parameters
NUM_FIRST = 8  # HVPs that tell how large eigenvalues are, where there is no matrix
MAX_PRODUCTS = 60  # for each mode there
NUM_TURNS = 12  # evaluations for the least loss at a distance
WIDTH = 1e-6  # of a cluster of equal eigenvalues at least, relative to the largest


Known = tuple[Float[np.ndarray, "n n"], float] | None


@dataclass
class Place:
    """A stationary point: what was verified (`finish`), and the modes around it.

    `eigenvalues` ascend, without those of a symmetry; `rows` are unit vectors; `labels` number
    clusters of equal eigenvalues. `is_up`: clearly positive; `is_down`: clearly negative, or the
    loss falls that way all the same.
    """

    finish: Finish
    morse_index: int
    eigenvalues: Float[np.ndarray, " k"]
    rows: Float[np.ndarray, "k n"]
    labels: Int[np.ndarray, " k"]
    is_up: Bool[np.ndarray, " k"]
    is_down: Bool[np.ndarray, " k"]
    hessian: Any = None  # a matrix, of a function outside of JAX, to be used again


@np.errstate(all="ignore")
def look_around(
    calls: Calls, domain: Domain, num_modes: int | None, x: Point, is_below: bool = False
) -> Place:
    """Newton's steps to the stationary point near `x`, and what is there.

    `num_modes`: how many are computed by HVPs alone; None forms the Hessian. `is_below`: the
    target is a minimum; where the loss curves downwards, and there is a slope, it is farther.
    """
    begin, spent, tolerance = x, calls.cost, float(tolerance_of(None, calls.dtype))
    enough = tolerance * (10 if calls.is_outside else 1e-3)
    max_polish = MAX_POLISH // (5 if calls.is_outside else 1)
    here, known = _seen(calls, domain, num_modes, x, None)
    resolution = getattr(calls.problem.loss, "resolution", 0.0)
    tolerance = max(tolerance, resolution / here.size)  # 0.1 of it: as far as noise allows
    enough = max(enough, 0.1 * resolution / here.size)
    ratios = [0.0]  # of the gradients after and before each step
    changed, num_polish = 0.0, 0  # by how much of itself the Hessian may have changed since
    if is_below and here.reach > (FLAT * enough if here.curvature.is_down.any() else FARTHEST):
        num_polish = max_polish
    while not (here.reach <= enough or _is_level(calls, here)) and num_polish < max_polish:
        x, before = domain.inside(here.x + here.step), here
        # For functions outside of JAX gradients are cheaper than Hessians: the last one is kept
        # as long as it predicts them.
        here, known = _seen(calls, domain, num_modes, x, known if calls.is_outside else None)
        ratio = float(np.linalg.norm(here.grad) / np.linalg.norm(before.grad))
        ratios.append(ratio)
        is_kept = calls.is_outside and ratio < KEPT
        changed = max(changed, here.reach / before.reach)
        num_polish += 0 if is_kept else 1
        if not ratio < 1 and (is_below or not calls.is_outside or before.reach <= 10 * enough):
            here = before
            break
        if calls.is_outside and not is_kept:
            (here, known), changed = _seen(calls, domain, num_modes, x, None), 0.0
    # The signs at a point that is known to a length do not change over that length.
    is_beside = np.linalg.norm(here.x - begin) <= 10 * resolution
    if changed and known is not None and not is_beside and not _is_clear(here, changed):
        here, _ = _seen(calls, domain, num_modes, here.x, (calls.hessian(here.x), known[1]))
    place = _place(here)
    is_near = here.reach <= 10 * tolerance or _is_level(calls, here)
    if not is_near and not calls.is_outside:  # unless nothing but noise is left of the gradient
        slopes = here.curvature.rows @ here.grad
        is_near = bool((np.abs(slopes) <= noise_of(calls, domain, here)).all())
    is_close = np.linalg.norm(here.x - begin) <= FARTHEST * here.size
    is_there = bool(is_close and is_near and place.finish.is_converged)
    if is_there and calls.is_outside:
        off = (enough, changed, max(ratios[-2:]) > KEPT)
        place = _compared(calls, domain, place, here, *off)
    elif is_there:
        place = _decided(calls, domain, place, here)
    if is_there and place.finish.kind == "minimum" and _falls_inward(calls, domain, here):
        place = replace(place, finish=replace(place.finish, doubt_number=FALLS))
    cost = jax.tree.map(operator.sub, calls.cost, spent)
    matrix = known[0] if known is not None and calls.is_outside else None
    verified: dict[str, Any] = {"is_converged": np.asarray(is_there), "cost": cost}
    finish = replace(place.finish, **verified)
    return replace(place, finish=finish, hessian=matrix)


def _decided(calls: Calls, domain: Domain, place: Place, here: View) -> Place:
    """What the modes do, where that is not decided by their curvature alone."""
    rows, found = here.curvature.rows, verdict(calls, domain, here)
    if not found.is_open:
        return place
    # The modes of a place may be others than those of its Hessian, but they span the same spaces.
    overlaps = place.rows @ rows.T
    tilt = overlaps @ found.tilt
    is_down = (overlaps**2 @ found.is_down > 0.5) | (abs(tilt) > 0.5)
    # Undecided ones that the loss falls along have as much negative curvature as they may have.
    most = -max(here.curvature.error, float(np.finfo(rows.dtype).tiny))
    fields: dict[str, Any] = {
        "finish": _called(place, found.is_down.any(), found.doubt),
        "morse_index": int(is_down.sum()),
        "eigenvalues": np.where(is_down, np.minimum(place.eigenvalues, most), place.eigenvalues),
        "rows": np.where(tilt < -0.5, -1, 1)[:, None].astype(rows.dtype) * place.rows,
    }
    return replace(place, is_down=is_down, **fields)


def _called(place: Place, is_saddle: Any, doubt: int) -> Finish:
    named: dict[str, Any] = {"is_saddle": np.asarray(is_saddle), "doubt_number": doubt}
    return replace(place.finish, **named)


def _is_level(calls: Calls, here: View) -> bool:
    """Whether no value of a function outside of JAX can tell the point from the stationary one."""
    slack = 64 * here.eps * abs(here.loss)
    return calls.is_outside and abs(float(here.grad @ here.step)) / 2 <= slack


def _is_clear(here: View, changed: float) -> bool:
    """Whether eigenvalues are what they seem, if a step has left so much of the step before."""
    sizes = np.abs(here.modes[0])
    return changed < KEPT / 2 or bool((sizes > 3 * changed * sizes.max(initial=0)).all())


def _compared(
    calls: Calls,
    domain: Domain,
    place: Place,
    here: View,
    enough: float,
    changed: float,
    is_slow: bool,
) -> Place:
    """As `_decided` for functions outside of JAX: by values alone, along undecided modes.

    Neither soft modes are decided by a curvature of differences, nor those along which the
    stationary point is farther than `enough`, nor negative ones that are as small as the Hessian
    may have `changed`; where Newton's steps converge slowly, curvature vanishes, and no mode is.
    """
    finish, curvature = place.finish, here.curvature
    values, rows = curvature.eigenvalues, curvature.rows
    soft = max(SOFT * curvature.scale, 100 * curvature.error)
    if finish.doubt_number or (values < -max(soft, 3 * changed * curvature.scale)).any():
        return place
    x, loss, unit, slack = here.x, here.loss, here.unit, 1000 * here.eps * abs(here.loss)
    resolution = getattr(calls.problem.loss, "resolution", 0.0)
    noise = getattr(calls.problem.loss, "grad_noise", 0.0)
    slack += noise * resolution
    lengths = [one for one in LENGTHS if one * unit > 10 * resolution] or [20 * resolution / unit]
    is_open = curvature.is_weak | curvature.is_flat | is_slow | (values < soft)
    slopes = rows @ here.grad
    is_open |= np.abs(slopes) > max(enough * unit, resolution) * np.abs(values) + 3 * noise
    # Nothing is to be decided along a symmetry, or where a bound holds.
    held = domain.held(x, calls.value_and_grad(x)[1])
    is_free = np.sum((rows @ domain.with_held(domain.null(x), held)) ** 2, axis=1) < 0.5
    is_open &= is_free
    if not _is_quadratic(calls, domain, here, is_free & ~is_open, lengths, slack):
        is_open = is_free
    if is_open.any():
        slack = max(slack, _noise(calls, domain, here, ~held))
    is_closed = ~is_open & (values > 0) & np.isfinite(values)
    slack += float(np.sum(slopes[is_closed] ** 2 / values[is_closed]))  # twice what is to relax

    def falls(row: Point, value: float) -> bool:
        """Whether the loss falls along a mode, one way at least; others that are stiff relax."""
        is_stiff = is_closed | ((values > soft) & (np.abs(rows @ row) < 0.1))
        around = rows[is_open & ~is_stiff], rows[is_stiff].T / np.sqrt(values[is_stiff])
        ways = (sign * unit * row for sign in (1, -1))
        given = (slack, lengths, value, around)
        return any(_rise(calls, domain, x, loss, way, *given) < 0 for way in ways)

    is_flat = curvature.is_flat
    does_fall = np.zeros(len(rows), bool)
    for i in np.flatnonzero(is_open):
        does_fall[i] = falls(rows[i], 0.0 if is_flat[i] else float(values[i]))
    if is_open.sum() > 1 and not does_fall.any():  # all of them may rise, and a mixture fall
        does_fall |= is_open & falls(rows[is_open].sum(axis=0) / np.sqrt(is_open.sum()), 0.0)
    # Negative curvature along which the loss does not fall, though that would be seen, is what the
    # differences are off by.
    fall = np.abs(values) * (max(lengths) * unit) ** 2 / 2
    is_off = (values < 0) & ~is_flat & is_open & ~does_fall & (fall > 4 * slack)
    is_down = (values < 0) & ~is_flat & ~is_off
    doubt = FALLS if does_fall.any() and not is_down.any() else 0
    finish = _called(place, is_down.any(), doubt)
    if not is_off.any():
        return replace(place, finish=finish)
    others = values[~is_off & ~is_flat]
    finish = replace(
        finish,
        num_flat=int(finish.num_flat) + is_off.sum(),
        least_eigenvalue=jnp.asarray(others.min() if len(others) else 0.0, x.dtype),
    )
    kept = place.is_down & ((np.asarray(place.rows) @ rows.T) ** 2 @ is_off < 0.5)
    return replace(place, finish=finish, is_down=kept, morse_index=int(kept.sum()))


def _is_quadratic(
    calls: Calls,
    domain: Domain,
    here: View,
    is_closed: Bool[np.ndarray, " k"],
    lengths: Sequence[float],
    slack: float,
) -> bool:
    """Whether the loss is what these modes make of it at one point, as far along each as it rises.

    Beside an inflection curvature may be as small as rounding leaves it, and look certain.
    """
    if not is_closed.any():
        return True
    x, values = here.x, here.curvature.eigenvalues[is_closed]
    rows, least = here.curvature.rows[is_closed], float(values.min())
    for length in lengths:
        aside = here.unit * length * (np.sqrt(least / values) @ rows)
        aside = domain.inside(x + aside) - x
        rise = float(values @ (rows @ aside) ** 2) / 2
        if rise > 4 * slack:
            change = calls.value(x + aside) - here.loss - float(here.grad @ aside)
            return abs(change - rise) < rise / 2
    return False


def _noise(calls: Calls, domain: Domain, here: View, free: Mask) -> float:
    """What of a difference of losses may be rounding: that of terms which cancel is more than eps.

    It is measured along `free` coordinates, a few units in the last place beside the point.
    """
    sizes = here.eps * np.where(free, np.maximum(np.abs(here.x), here.unit), 0)
    values = np.array([calls.value(domain.inside(here.x + ulps * sizes)) for ulps in ULPS])
    seen = np.abs(values - here.loss)
    return NOISE * float(seen[np.isfinite(seen)].max(initial=0))


def _falls_inward(calls: Calls, domain: Domain, here: View) -> bool:
    """Whether the loss falls from a bound, which a slope that is hardly steep does not tell."""
    ways = domain.inward(here.x).astype(here.x.dtype)
    if not len(ways):
        return False
    free = ~domain.held(here.x, calls.value_and_grad(here.x)[1])
    slack = max(1000 * here.eps * abs(here.loss), _noise(calls, domain, here, free))
    return any(_rise(calls, domain, here.x, here.loss, here.unit * way, slack) < 0 for way in ways)


def _rise(
    calls: Calls,
    domain: Domain,
    x: Point,
    loss: float,
    way: Point,
    slack: float,
    lengths: Sequence[float] = LENGTHS,
    curvature: float = 0.0,
    around: tuple[Float[np.ndarray, "k n"], Float[np.ndarray, "n l"]] | None = None,
) -> float:
    """By how much the loss differs at the shortest distance at which it does.

    Where it rises by more than the `curvature` explains, or differs nowhere, the way may bend:
    `around` are undecided modes, among which it turns to where the loss is lower, and stiff ones,
    divided by the roots of their eigenvalues, which relax by Newton steps.
    """
    lengths = (*lengths, *(FARTHER if domain.is_bounded else (1.0,)))
    for length in lengths:
        aside = length * way
        change = calls.value(domain.inside(x + aside)) - loss
        is_bent = change > max(slack, curvature * float(aside @ aside))
        if around is not None and (is_bent or (abs(change) <= slack and length == lengths[-1])):
            change = min(change, _lowered(calls, domain, x, aside, *around) - loss)
        if abs(change) > slack:
            return change
    return 0.0


def _lowered(
    calls: Calls,
    domain: Domain,
    x: Point,
    aside: Point,
    rows: Float[np.ndarray, "k n"],
    stiff: Float[np.ndarray, "n l"],
) -> float:
    """The least loss as far from `x` as `aside` leads along undecided modes."""
    length, least, off = float(np.linalg.norm(aside)), np.inf, 0 * x
    for turn in range(NUM_TURNS):
        loss, grad = calls.value_and_grad(domain.inside(x + aside + off))
        if not np.isfinite(loss) or np.linalg.norm(off) > 10 * length:
            break
        least = min(least, loss)
        slope = (rows @ grad) @ rows
        across = slope - (slope @ aside) * aside / length**2
        gain, size = stiff @ (stiff.T @ grad), float(np.linalg.norm(across))
        slack = 100 * float(np.finfo(x.dtype).eps) * abs(loss)
        if length * size <= slack:
            if gain @ grad <= slack:
                break
        else:
            aside = aside - length * 0.5 ** (turn + 1) * across / size
            aside *= length / np.linalg.norm(aside)
        off = off - gain
    return least


def _seen(
    calls: Calls, domain: Domain, num_modes: int | None, x: Point, known: Known
) -> tuple[View, Known]:
    """A point, and its Hessian with what that may be off by, unless these are `known`."""
    if num_modes is not None:
        return _by_hvps(calls, domain.symmetry, num_modes, x), None
    if known is None:
        loss, grad, whole = calls.expansion(x)
    else:
        (loss, grad), whole = calls.value_and_grad(x), known[0]
    hessian, null, held = whole, domain.null(x), domain.held(x, grad)
    if held.any():  # no curvature and no slope of theirs counts
        free = np.where(held, 0, 1).astype(hessian.dtype)
        level = float(np.abs(hessian).max()) or 1.0
        hessian = free[:, None] * hessian * free + level * np.diag(1 - free)
        grad = grad * free
    spectrum = eigh(hessian)
    off = calls.hvp_error(x, spectrum[1][:, 0]) if known is None else known[1]
    here = view_of(calls.problem, x, loss, grad, hessian, spectrum, off)
    null = domain.with_held(null, held)
    if null.shape[1]:
        modes = modes_of(hessian, null)
        here.modes = modes.eigenvalues, modes.rows
    return here, (whole, off)


def _place(here: View) -> Place:
    """What curvature says of a point."""
    curvature, (eigenvalues, rows), labels = here.curvature, here.modes, np.zeros(0, int)
    if len(eigenvalues):  # not where bounds hold all coordinates
        labels, rows = fetch(compiled(_gauged, "none")(eigenvalues, rows))
    cut = max(tolerance_of(None, here.x.dtype) * curvature.scale, curvature.error)
    finish = finish_of(
        here,
        0 if curvature.is_known else UNKNOWN,
        is_converged=curvature.is_known,
        is_saddle=curvature.is_down.any(),
    )
    return Place(
        finish=finish,
        morse_index=int(curvature.is_down.sum()),
        eigenvalues=eigenvalues,
        rows=rows,
        labels=labels,
        is_up=here.is_whole & (eigenvalues > cut),
        is_down=eigenvalues < -curvature.error,
    )


def _gauged(
    eigenvalues: Float[Array, " k"], rows: Float[Array, "k n"]
) -> tuple[Int[Array, " k"], Float[Array, "k n"]]:
    """Clusters, and rows whose gauge in each is that of fixed vectors alone."""
    labels = cluster_labels(eigenvalues, max(WIDTH, cluster_width(None, rows.dtype)))
    nowhere = jnp.zeros_like(rows[0])
    return labels, fix_signs(canonical_rows(rows, eigenvalues, labels, nowhere))


def _by_hvps(calls: Calls, symmetry: Symmetry | None, num_modes: int, x: Point) -> View:
    """A point with its lowest modes, which are all that is known."""
    check_time()
    run = compiled(_lowest, "little")
    seen, is_all = run(calls.problem, symmetry, num_modes, x)
    loss, grad, step, pairs, is_whole, num_hvps = fetch(seen)
    calls.charge(Cost(values=1, gradients=1, hvps=int(num_hvps)))
    curvature = curvature_of(calls, x, grad, pairs, is_all)
    unit, whole = float(calls.problem.unit), is_whole | is_all
    return View(x, float(loss), grad, step, step, curvature, unit, is_whole=whole)


def _lowest(
    problem: Problem, symmetry: Symmetry | None, num_modes: int, x: Vector
) -> tuple[tuple[Array, Vector, Vector, Pairs, Bool[Array, " k"], Int[Array, ""]], bool]:
    """Loss, gradient, Newton step, pairs, which are whole clusters, HVPs; whether these are all."""
    grad, null = problem.grad(x), orthonormal(problem, symmetry, x)
    num_all = problem.size - null.shape[1]
    k, key, tolerance = min(num_modes, num_all), jax.random.key(0), tolerance_of(None, x.dtype)
    start = jax.random.normal(key, x.shape, x.dtype)
    num_first, width = min(NUM_FIRST, problem.size), max(WIDTH, cluster_width(None, x.dtype))
    # Above all modes that are wanted.
    level = 2 * krylov(problem.hvp_at(x), start, num_first).ritz().scale
    product = without(null, problem.hvp_at(x), level)
    pairs = lowest_pairs(product, start, k, tolerance, MAX_PRODUCTS * k, 2 * k + 20, key, width)
    eps = float(jnp.finfo(x.dtype).eps)
    cut = (1000 * problem.size**0.5 * eps + 10 * problem.noise) * pairs.scale
    step, num_hvps = newton_step(product, grad, pairs, cut, k == num_all)
    is_whole = pairs.is_complete(cluster_labels(pairs.eigenvalues, width), width)
    spent = pairs.num_hvps + num_hvps + num_first
    seen = problem.value(x), grad, outside(null.T, step), pairs, is_whole, spent
    return seen, k == num_all


def without(null: Float[Array, "n k"], product: Hvp, level: Number = 0.0) -> Hvp:
    """The HVP of a Hessian from which a symmetry is projected out, at `level` along that."""

    def projected(vector: Vector) -> Vector:
        inside = null @ (null.T @ vector)
        return outside(null.T, product(vector - inside)) + level * inside

    return projected
