"""What is at a stationary point: a look of its own, by a dense Hessian of the loss as it is.

The Morse index counts the eigenvalues that are negative beyond their error, of the Hessian without
anything projected out. The ridges that lead on are modes outside of a symmetry's directions.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ridgerider._core.ascent import modes_of
from ridgerider._core.finish import Finish, _doubt
from ridgerider._core.newton import View, view
from ridgerider._core.problem import Problem, Vector
from ridgerider._core.spectrum import cluster_labels, fix_gauge, fix_signs, tolerance_of
from ridgerider._core.symmetry import Symmetry, orthonormal

MAX_POLISH = 6  # Newton steps
FARTHEST = 0.05  # of them all, relative to the size of the parameters


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


def look_around(problem: Problem, symmetry: Symmetry | None, x: Vector) -> Place:
    """Newton's steps to the stationary point near `x`, and a look at it."""
    here = _polished(problem, x)
    hessian = problem.hessian(here.x)
    null = orthonormal(problem, symmetry, here.x)
    raw = jnp.linalg.eigvalsh(hessian)
    error = _error(here, raw)
    modes = modes_of(hessian, null)
    count = problem.size - null.shape[1]  # the null ones come last
    eigenvalues, rows = modes.eigenvalues[:count], modes.columns.T[:count]
    labels = cluster_labels(eigenvalues, 1e-6)
    rows, _ = fix_gauge(_no_probe, problem, here.x, jax.random.key(0), rows, eigenvalues, labels)
    morse_index = jnp.sum(raw < -error)
    is_flat = jnp.abs(raw) <= error
    doubt, num_values = _doubt(problem, here, here.curvature)
    size = jnp.maximum(jnp.linalg.norm(here.x), 1)
    reach = jnp.linalg.norm(here.step) / size
    is_near = jnp.linalg.norm(here.x - x) <= FARTHEST * size
    is_exact = reach <= 10 * tolerance_of(None, x.dtype)
    cost = here.cost
    finish = Finish(
        x=here.x,
        loss=here.loss,
        grad_norm=jnp.linalg.norm(here.grad),
        least_eigenvalue=jnp.min(jnp.where(is_flat, jnp.inf, raw)),
        is_converged=is_exact & is_near,
        is_saddle=morse_index > 0,
        num_steps=jnp.array(0),
        num_kicks=jnp.array(0),
        cost=eqx.tree_at(lambda c: c.values, cost, cost.values + num_values),
        num_flat=jnp.sum(is_flat),
        error=10 * jnp.linalg.norm(here.step) + 100 * float(jnp.finfo(x.dtype).eps) * size,
        doubt_number=doubt,
    )
    cut = jnp.maximum(modes.cut, error)
    return Place(
        finish=finish,
        morse_index=morse_index,
        eigenvalues=eigenvalues,
        rows=fix_signs(rows),
        labels=labels,
        is_up=eigenvalues > cut,
        is_down=eigenvalues < -error,
    )


def _polished(problem: Problem, x: Vector) -> View:
    """Newton's steps as long as they help, and no further than they need."""
    key = jax.random.key(0)
    enough = tolerance_of(None, x.dtype) / 1000

    def go_on(carry: tuple[View, Bool[Array, ""], Int[Array, ""]]) -> Bool[Array, ""]:
        here, helps, count = carry
        return (count == 0) | (helps & (here.reach > enough) & (count <= MAX_POLISH))

    def polish(carry: tuple[View, Bool[Array, ""], Int[Array, ""]]) -> tuple:
        here, _, count = carry
        new = view(problem, here.x + here.step, key)
        helps = (count == 0) | (jnp.linalg.norm(new.grad) < jnp.linalg.norm(here.grad))
        total = here.cost + new.cost
        taken = jax.tree.map(lambda one, two: jnp.where(helps, one, two), new, here)
        return eqx.tree_at(lambda v: v.cost, taken, total), helps, count + 1

    # Nothing is seen yet: the first look is one of the loop, so that it is compiled once.
    shapes = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, view(problem, x, key)))
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    blank = eqx.tree_at(lambda v: v.x, blank, x)
    return jax.lax.while_loop(go_on, polish, (blank, jnp.array(True), jnp.array(0)))[0]


def _error(here: View, raw: Float[Array, " n"]) -> Array:
    """What rounding makes of a zero eigenvalue; see `newton`."""
    scale, n = jnp.max(jnp.abs(raw)), len(raw)
    eps = float(jnp.finfo(raw.dtype).eps)
    turning = 10 * jnp.linalg.norm(here.grad) / jnp.maximum(jnp.linalg.norm(here.x), 1)
    return 1000 * n**0.5 * eps * scale + turning


def _no_probe(problem: Problem, x: Vector) -> Vector:
    """The gauge of repeated eigenvalues at a stationary point: fixed vectors alone."""
    return jnp.zeros_like(x)
