"""What is at a stationary point: a look of its own, by a dense Hessian of the loss as it is.

The Morse index counts the eigenvalues that are negative beyond their error, of the Hessian without
anything projected out. The ridges that lead on are modes outside of a symmetry's directions.

Of many parameters the lowest modes are found by products, from random vectors, and the index is
known only if what is outside of them was probed and has no negative eigenvalue.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ridgerider._core.descend.finish import Finish, _doubt
from ridgerider._core.linalg.krylov import Pairs, lanczos, lowest_pairs
from ridgerider._core.linalg.probe import outside
from ridgerider._core.points.climb import modes_of, without
from ridgerider._core.points.newton import Curvature, View, dense_view, noise_of, solve
from ridgerider._core.points.symmetry import Symmetry, orthonormal
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Number, Problem, Scalar, Vector
from ridgerider._core.spectra.spectrum import (
    cluster_labels,
    cluster_width,
    fix_gauge,
    fix_signs,
    tolerance_of,
)

MAX_POLISH = 6  # Newton steps
FARTHEST = 0.05  # of them all, relative to the size of the parameters
NUM_FIRST = 8  # products that tell how large eigenvalues are, where there is no matrix
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


class _Around(eqx.Module):
    """All eigenpairs that are known around a point, without those of a symmetry."""

    eigenvalues: Float[Array, " k"]
    rows: Float[Array, "k n"]
    is_whole: Bool[Array, " k"]  # all of its cluster is known
    scale: Scalar


def look_around(
    problem: Problem, symmetry: Symmetry | None, num_modes: int | None, x: Vector
) -> Place:
    """Newton's steps to the stationary point near `x`, and a look at it.

    `num_modes`: how many are looked for by products alone; None forms the Hessian.
    """
    if num_modes is None:
        here, known, raw = _dense_look(problem, symmetry, x)
    else:
        here, known, raw = _look_by_products(problem, symmetry, num_modes, x)
    error, spent = _error(problem, here.x, here.grad, known.scale, known.rows[0])
    labels = cluster_labels(known.eigenvalues, _width(x.dtype))
    rows, _ = fix_gauge(
        _no_probe, problem, here.x, jax.random.key(0), known.rows, known.eigenvalues, labels
    )
    morse_index = jnp.sum(raw < -error)
    is_flat = jnp.abs(raw) <= error
    doubt, num_values = _doubt(problem, here, here.curvature)
    size = jnp.maximum(jnp.linalg.norm(here.x), 1)
    reach = jnp.linalg.norm(here.step) / size
    is_near = jnp.linalg.norm(here.x - x) <= FARTHEST * size
    is_exact = reach <= 10 * tolerance_of(None, x.dtype)
    cost = here.cost + spent
    finish = Finish(
        x=here.x,
        loss=here.loss,
        grad_norm=jnp.linalg.norm(here.grad),
        least_eigenvalue=jnp.min(jnp.where(is_flat, jnp.inf, raw)),
        is_converged=is_exact & is_near & here.curvature.is_known,
        is_saddle=morse_index > 0,
        num_steps=jnp.array(0),
        num_kicks=jnp.array(0),
        cost=eqx.tree_at(lambda c: c.values, cost, cost.values + num_values),
        num_flat=jnp.sum(is_flat),
        error=10 * jnp.linalg.norm(here.step) + 100 * float(jnp.finfo(x.dtype).eps) * size,
        doubt_number=doubt,
    )
    cut = jnp.maximum(tolerance_of(None, x.dtype) * known.scale, error)
    return Place(
        finish=finish,
        morse_index=morse_index,
        eigenvalues=known.eigenvalues,
        rows=fix_signs(rows),
        labels=labels,
        is_up=known.is_whole & (known.eigenvalues > cut),
        is_down=known.eigenvalues < -error,
    )


def _dense_look(problem: Problem, symmetry: Symmetry | None, x: Vector) -> tuple:
    """The point, its modes, and all eigenvalues of the Hessian as it is."""
    here, _ = _polished(lambda x: (dense_view(problem, x), None), x)
    hessian = problem.hessian(here.x)
    null = orthonormal(problem, symmetry, here.x)
    raw = jnp.linalg.eigvalsh(hessian)
    modes = modes_of(hessian, null)
    count = problem.size - null.shape[1]  # the null ones come last
    is_whole = jnp.ones(count, bool)
    rows, scale = modes.columns.T[:count], jnp.max(jnp.abs(raw))
    return here, _Around(modes.eigenvalues[:count], rows, is_whole, scale), raw


def _look_by_products(
    problem: Problem, symmetry: Symmetry | None, num_modes: int, x: Vector
) -> tuple:
    """The same of the lowest modes, which are all that is known."""
    num_all = problem.size - orthonormal(problem, symmetry, x).shape[1]
    k, key = min(num_modes, num_all), jax.random.key(0)
    start = jax.random.normal(key, (k, problem.size), x.dtype)
    num_first, width = min(NUM_FIRST, problem.size), _width(x.dtype)

    def look(x: Vector) -> tuple[View, Pairs]:
        grad, null = problem.grad(x), orthonormal(problem, symmetry, x)
        # Above all modes that are looked for.
        ritz = lanczos(problem.hvp_at(x), start[0], num_first).ritz()
        level = 2 * jnp.max(jnp.abs(jnp.where(ritz.is_there, ritz.eigenvalues, 0)))
        product, tolerance = without(null, problem.hvp_at(x), level), tolerance_of(None, x.dtype)
        pairs = lowest_pairs(product, start, k, tolerance, MAX_PRODUCTS * k, 2 * k + 20, key, width)
        values, rows = pairs.eigenvalues, pairs.rows
        error, spent = _error(problem, x, grad, pairs.scale, pairs.rows[0])
        is_flat = jnp.abs(values) <= jnp.maximum(error, pairs.residuals)
        slopes = rows @ grad
        inside = jnp.where(is_flat, 0, slopes / jnp.where(is_flat, 1, values)) @ rows
        rest, num_hvps = jnp.zeros_like(x), jnp.array(0)
        if k < num_all:
            rest, num_hvps = solve(
                lambda vector: outside(rows, product(outside(rows, vector))), outside(rows, grad)
            )
        step = outside(null.T, rest - inside)
        # No eigenvalue outside of the rows is negative, as far as pairs are resolved, and those
        # inside are what they seem.
        resolved = error + 2 * tolerance * pairs.scale
        is_known = ((pairs.floor >= -resolved) | (k == num_all)) & jnp.all(
            (values > 0) | is_flat | (values < -error - pairs.residuals)
        )
        curvature = Curvature(
            least=jnp.min(jnp.where(is_flat, jnp.inf, values)),
            num_flat=jnp.sum(is_flat),
            is_negative=values[0] < -error,
            is_known=is_known,
            scale=pairs.scale,
            lowest=rows[0],
            weak=jnp.where(is_flat[:, None], rows, 0),
        )
        cost = Cost(values=1, gradients=1, hvps=pairs.num_hvps + num_hvps + num_first)
        return View(x, problem.value(x), grad, step, step, curvature, cost + spent), pairs

    here, pairs = _polished(look, x)
    is_whole = pairs.is_complete(cluster_labels(pairs.eigenvalues, width), width) | (k == num_all)
    known = _Around(pairs.eigenvalues, pairs.rows, is_whole, pairs.scale)
    return here, known, pairs.eigenvalues


def _polished(look: Callable[[Vector], tuple[View, Any]], x: Vector) -> tuple[View, Any]:
    """Newton's steps as long as they help, and no further than they need."""
    enough = tolerance_of(None, x.dtype) / 1000

    def go_on(carry: tuple) -> Bool[Array, ""]:
        (here, _), helps, count = carry
        return (count == 0) | (helps & (here.reach > enough) & (count <= MAX_POLISH))

    def polish(carry: tuple) -> tuple:
        old, _, count = carry
        here = old[0]
        new = look(here.x + here.step)
        helps = (count == 0) | (jnp.linalg.norm(new[0].grad) < jnp.linalg.norm(here.grad))
        total = here.cost + new[0].cost
        seen, more = jax.tree.map(lambda one, two: jnp.where(helps, one, two), new, old)
        return (eqx.tree_at(lambda v: v.cost, seen, total), more), helps, count + 1

    # Nothing is seen yet: the first look is one of the loop, so that it is compiled once.
    shapes = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, look(x)))
    seen, more = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    blank = (eqx.tree_at(lambda v: v.x, seen, x), more)
    return jax.lax.while_loop(go_on, polish, (blank, jnp.array(True), jnp.array(0)))[0]


def _width(dtype: np.dtype) -> Number:
    return max(WIDTH, cluster_width(None, dtype))


def _error(
    problem: Problem, x: Vector, grad: Vector, scale: Scalar, lowest: Vector
) -> tuple[Scalar, Cost]:
    """What rounding makes of a zero eigenvalue; see `newton`."""
    noise, spent = noise_of(problem, x, scale, lowest)
    turning = 10 * jnp.linalg.norm(grad) / jnp.maximum(jnp.linalg.norm(x), 1)
    rounding = 1000 * len(x) ** 0.5 * float(jnp.finfo(x.dtype).eps) * scale
    return rounding + turning + noise, spent


def _no_probe(problem: Problem, x: Vector) -> Vector:
    """The gauge of repeated eigenvalues at a stationary point: fixed vectors alone."""
    return jnp.zeros_like(x)
