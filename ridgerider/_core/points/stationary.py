"""What is at a stationary point, and the ridges that leave it.

The Morse index counts the eigenvalues that are negative beyond their error, of the Hessian without
anything projected out. The ridges that lead on are modes outside of a symmetry's directions.

For many parameters the lowest modes are computed by Hessian-vector products (HVPs), from random
vectors, and the index is known only if a probe of what is outside of them has found no negative
eigenvalue.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ridgerider._core.descend.finish import Finish, finish_at
from ridgerider._core.linalg.lowest import Pairs, lowest_pairs
from ridgerider._core.linalg.space import krylov, outside
from ridgerider._core.points.classify import View, curvature_of, dense_view, newton_step
from ridgerider._core.points.climb import without
from ridgerider._core.points.modes import modes_of
from ridgerider._core.points.symmetry import Symmetry, orthonormal
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Number, Problem, Vector
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


def look_around(
    problem: Problem, symmetry: Symmetry | None, num_modes: int | None, x: Vector
) -> Place:
    """Newton's steps to the stationary point near `x`, and what is there.

    `num_modes`: how many are computed by HVPs alone; None forms the Hessian.
    """
    width = max(WIDTH, cluster_width(None, x.dtype))
    if num_modes is None:
        here, _ = _polished(lambda x: (dense_view(problem, x), None), x)
        eigenvalues, rows = here.curvature.eigenvalues, here.curvature.rows
        null = orthonormal(problem, symmetry, here.x)
        if null.shape[1]:
            modes = modes_of((rows.T * eigenvalues[None, :]) @ rows, null)
            count = problem.size - null.shape[1]  # the null ones come last
            eigenvalues, rows = modes.eigenvalues[:count], modes.rows[:count]
        labels = cluster_labels(eigenvalues, width)
        is_whole = jnp.ones(len(labels), bool)
    else:
        here, pairs = _polished(_by_hvps(problem, symmetry, num_modes, width, x), x)
        eigenvalues, rows = pairs.eigenvalues, pairs.rows
        labels = cluster_labels(eigenvalues, width)
        is_all = len(labels) == problem.size - orthonormal(problem, symmetry, x).shape[1]
        is_whole = pairs.is_complete(labels, width) | is_all
    curvature, size = here.curvature, here.size
    # The gauge of repeated eigenvalues at a stationary point is that of fixed vectors alone.
    rows = canonical_rows(rows, eigenvalues, labels, jnp.zeros_like(x))
    tolerance = tolerance_of(None, x.dtype)
    is_near = jnp.linalg.norm(here.x - x) <= FARTHEST * size
    finish = finish_at(
        problem,
        here,
        here.cost,
        is_converged=(here.reach <= 10 * tolerance) & is_near & curvature.is_known,
        is_saddle=curvature.is_negative,
    )
    return Place(
        finish=finish,
        morse_index=curvature.morse_index,
        eigenvalues=eigenvalues,
        rows=fix_signs(rows),
        labels=labels,
        is_up=is_whole & (eigenvalues > jnp.maximum(tolerance * curvature.scale, curvature.error)),
        is_down=eigenvalues < -curvature.error,
    )


def _by_hvps(
    problem: Problem, symmetry: Symmetry | None, num_modes: int, width: Number, x: Vector
) -> Callable[[Vector], tuple[View, Pairs]]:
    """The view of a point with its lowest modes, which are all that is known."""
    num_all = problem.size - orthonormal(problem, symmetry, x).shape[1]
    k, key, tolerance = min(num_modes, num_all), jax.random.key(0), tolerance_of(None, x.dtype)
    start = jax.random.normal(key, (k, problem.size), x.dtype)
    num_first = min(NUM_FIRST, problem.size)

    def look(x: Vector) -> tuple[View, Pairs]:
        grad, null = problem.grad(x), orthonormal(problem, symmetry, x)
        # Above all modes that are looked for.
        level = 2 * krylov(problem.hvp_at(x), start[:1], num_first).ritz().scale
        product = without(null, problem.hvp_at(x), level)
        pairs = lowest_pairs(product, start, k, tolerance, MAX_PRODUCTS * k, 2 * k + 20, key, width)
        curvature, spent = curvature_of(problem, x, grad, pairs, k == num_all)
        step, num_hvps = newton_step(product, grad, curvature, k == num_all)
        step = outside(null.T, step)
        cost = Cost(values=1, gradients=1, hvps=pairs.num_hvps + num_hvps + num_first)
        return View(x, problem.value(x), grad, step, step, curvature, cost + spent), pairs

    return look


def _polished(look: Callable[[Vector], tuple[View, Any]], x: Vector) -> tuple[View, Any]:
    """Newton's steps as long as they help, and no further than they need."""
    enough = tolerance_of(None, x.dtype) / 1000

    def should_continue(carry: tuple) -> Bool[Array, ""]:
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

    # Nothing is known yet: the first point is evaluated in the loop, so that it is compiled once.
    shapes = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, look(x)))
    seen, more = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    blank = (eqx.tree_at(lambda v: v.x, seen, x), more)
    return jax.lax.while_loop(should_continue, polish, (blank, jnp.array(True), jnp.array(0)))[0]
