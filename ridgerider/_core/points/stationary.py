"""What is at a stationary point, and the ridges that leave it.

The Morse index counts the eigenvalues that are negative beyond their error, of the Hessian without
anything projected out. The ridges that lead on are modes outside of a symmetry's directions.

For many parameters the lowest modes are computed by Hessian-vector products (HVPs), from random
vectors, and the index is known only if a probe of what is outside of them has found no negative
eigenvalue.
"""

import operator
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ridgerider._core.descend.finish import Finish, finish_of
from ridgerider._core.linalg.lowest import lowest_pairs
from ridgerider._core.linalg.space import Hvp, krylov, outside
from ridgerider._core.points.classify import (
    FALLS,
    UNKNOWN,
    View,
    curvature_of,
    newton_step,
    view_of,
)
from ridgerider._core.points.domain import Domain
from ridgerider._core.points.modes import modes_of
from ridgerider._core.points.symmetry import Symmetry, orthonormal
from ridgerider._core.problem.calls import Calls, Point, Rows
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.placement import fetch
from ridgerider._core.problem.problem import Number, Problem, Scalar, Vector
from ridgerider._core.runtime.clock import check_time
from ridgerider._core.runtime.compile import compiled
from ridgerider._core.spectra.spectrum import (
    canonical_rows,
    cluster_labels,
    cluster_width,
    fix_signs,
    tolerance_of,
)

MAX_POLISH = 6  # Newton steps
FARTHEST = 0.05  # of them all, relative to the size of the parameters
NUM_FIRST = 8  # HVPs that tell how large eigenvalues are, where there is no matrix
MAX_PRODUCTS = 60  # for each mode there
WIDTH = 1e-6  # of a cluster of equal eigenvalues at least, relative to the largest


class Place(eqx.Module):
    """A stationary point: what was verified (`finish`), and the modes around it.

    `eigenvalues` ascend, without those of a symmetry; `rows` are unit vectors; `labels` number
    clusters of equal eigenvalues. `is_up`, `is_down`: clearly positive, clearly negative.
    """

    finish: Finish
    morse_index: Int[Array, ""]
    eigenvalues: Float[Array, " k"]
    rows: Float[Array, "k n"]
    labels: Int[Array, " k"]
    is_up: Bool[Array, " k"]
    is_down: Bool[Array, " k"]


def look_around(calls: Calls, domain: Domain, num_modes: int | None, x: Point) -> Place:
    """Newton's steps to the stationary point near `x`, and what is there.

    `num_modes`: how many are computed by HVPs alone; None forms the Hessian.
    """
    begin, spent = x, calls.cost
    seen = _seen(calls, domain, num_modes, x)
    for _ in range(MAX_POLISH):
        if not seen.reach > tolerance_of(None, calls.dtype) / 1000:
            break
        new = _seen(
            calls, domain, num_modes, domain.inside(np.asarray(seen.place.finish.x + seen.step))
        )
        if not new.place.finish.grad_norm < seen.place.finish.grad_norm:
            break
        seen = new
    finish, size = seen.place.finish, max(float(np.linalg.norm(seen.place.finish.x)), 1.0)
    is_near = float(np.linalg.norm(finish.x - begin)) <= FARTHEST * size
    is_there = bool(seen.reach <= 10 * tolerance_of(None, calls.dtype)) and is_near
    finish = replace(finish, is_converged=finish.is_converged & is_there)
    if is_there and not finish.is_saddle and not int(finish.doubt_number):
        falls = loss_falls(calls, domain, finish, np.asarray(seen.weak), size)
        finish = replace(finish, doubt_number=FALLS if falls else 0)
    cost = jax.tree.map(operator.sub, calls.cost, spent)
    return replace(seen.place, finish=replace(finish, cost=cost))


def loss_falls(calls: Calls, domain: Domain, end: Finish, weak: Rows, size: float) -> bool:
    """Whether the loss falls a little way off along a direction of hardly any curvature."""
    slack = 1000 * float(np.finfo(calls.dtype).eps) * abs(float(end.loss))
    ways = [sign * 0.01 * size * row for row in weak if row.any() for sign in (1, -1)]
    return any(calls.value(domain.inside(end.x + way)) < end.loss - slack for way in ways)


class Sight(eqx.Module):
    """A point as it is seen before Newton's next step."""

    place: Place
    step: Vector
    reach: Scalar
    weak: Float[Array, "k n"]


def _seen(calls: Calls, domain: Domain, num_modes: int | None, x: Point) -> Sight:
    if num_modes is not None:
        check_time()
        seen = fetch(compiled(_by_hvps, "little")(calls.problem, domain.symmetry, num_modes, x))
        calls.charge(seen.place.finish.cost)
        return seen
    loss, grad = calls.value_and_grad(x)
    hessian, null, held = calls.hessian(x), domain.null(x), domain.held(x, grad)
    if held.any():  # no curvature and no slope of theirs counts
        free = np.where(held, 0, 1).astype(hessian.dtype)
        level = float(np.abs(hessian).max())
        hessian = free[:, None] * hessian * free + level * np.diag(1 - free)
        grad = grad * free
    noise = np.asarray([calls.hvp_error(x, _lowest(hessian)), calls.problem.noise], x.dtype)
    arrays = (x, np.asarray(loss, x.dtype), grad, hessian, domain.with_held(null, held))
    return fetch(compiled(_by_hessian, "none")(*arrays, noise))


def _lowest(hessian: Float[np.ndarray, "n n"]) -> Point:
    return np.linalg.eigh(hessian)[1][:, 0] if np.isfinite(hessian).all() else hessian[0]


def _by_hessian(
    x: Vector,
    loss: Scalar,
    grad: Vector,
    hessian: Float[Array, "n n"],
    null: Float[Array, "n k"],
    noise: Float[Array, " two"],
) -> Sight:
    here = view_of(x, loss, grad, hessian, jnp.linalg.eigh(hessian), noise[0], noise[1])
    eigenvalues, rows = here.curvature.eigenvalues, here.curvature.rows
    if null.shape[1]:
        modes = modes_of((rows.T * eigenvalues[None, :]) @ rows, null)
        count = len(x) - null.shape[1]  # the null ones come last
        eigenvalues, rows = modes.eigenvalues[:count], modes.rows[:count]
    return _sight(here, eigenvalues, rows, jnp.ones(len(eigenvalues), bool))


def _sight(
    here: View, eigenvalues: Float[Array, " k"], rows: Float[Array, "k n"], is_whole: Any
) -> Sight:
    curvature, width = here.curvature, max(WIDTH, cluster_width(None, here.x.dtype))
    labels = cluster_labels(eigenvalues, width)
    # The gauge of repeated eigenvalues at a stationary point is that of fixed vectors alone.
    rows = canonical_rows(rows, eigenvalues, labels, jnp.zeros_like(here.x))
    tolerance = tolerance_of(None, here.x.dtype)
    finish = finish_of(
        here,
        jnp.where(curvature.is_known, 0, UNKNOWN),
        here.cost,
        is_converged=curvature.is_known,
        is_saddle=curvature.is_negative,
    )
    place = Place(
        finish=finish,
        morse_index=curvature.morse_index,
        eigenvalues=eigenvalues,
        rows=fix_signs(rows),
        labels=labels,
        is_up=is_whole & (eigenvalues > jnp.maximum(tolerance * curvature.scale, curvature.error)),
        is_down=eigenvalues < -curvature.error,
    )
    return Sight(place, here.step, here.reach, curvature.weak)


def _by_hvps(problem: Problem, symmetry: Symmetry | None, num_modes: int, x: Vector) -> Sight:
    """A point with its lowest modes, which are all that is known."""
    grad, null = problem.grad(x), orthonormal(problem, symmetry, x)
    num_all = problem.size - null.shape[1]
    k, key, tolerance = min(num_modes, num_all), jax.random.key(0), tolerance_of(None, x.dtype)
    start = jax.random.normal(key, (k, problem.size), x.dtype)
    num_first, width = min(NUM_FIRST, problem.size), max(WIDTH, cluster_width(None, x.dtype))
    # Above all modes that are looked for.
    level = 2 * krylov(problem.hvp_at(x), start[:1], num_first).ritz().scale
    product = without(null, problem.hvp_at(x), level)
    pairs = lowest_pairs(product, start, k, tolerance, MAX_PRODUCTS * k, 2 * k + 20, key, width)
    curvature, spent = curvature_of(problem, x, grad, pairs, k == num_all)
    step, num_hvps = newton_step(product, grad, curvature, k == num_all)
    step = outside(null.T, step)
    cost = Cost(values=1, gradients=1, hvps=pairs.num_hvps + num_hvps + num_first)
    here = View(x, problem.value(x), grad, step, step, curvature, cost + spent)
    labels = cluster_labels(pairs.eigenvalues, width)
    is_whole = pairs.is_complete(labels, width) | (k == num_all)
    return _sight(here, pairs.eigenvalues, pairs.rows, is_whole)


def without(null: Float[Array, "n k"], product: Hvp, level: Number = 0.0) -> Hvp:
    """The HVP of a Hessian from which a symmetry is projected out, at `level` along that."""

    def projected(vector: Vector) -> Vector:
        inside = null @ (null.T @ vector)
        return outside(null.T, product(vector - inside)) + level * inside

    return projected
