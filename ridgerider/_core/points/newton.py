r"""Where a point stands: its Newton step, and the curvature around it, each with its error.

Small problems are looked at by a dense Hessian, large ones by Hessian-vector products. An
eigenvalue says something only beyond its *error*, what rounding makes of a zero:

    error = 100 sqrt(n) eps max |eigenvalue| + |H - H^T| + 10 |grad| / max(1, |x|)

Eigenvalues within it are *flat*. The middle term is the rounding of the Hessian itself, the last
one the curvature that a rotation shows where the gradient does not quite vanish. Where products are
differences, ten times what they may be off by is added.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ridgerider._core.linalg.krylov import Product, lanczos, lowest_pairs
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Number, Problem, Scalar, Vector
from ridgerider._core.spectra.spectrum import DENSE_BELOW, tolerance_of

NUM_PAIRS = 8  # lowest eigenpairs that are computed where the Hessian does not fit
MAX_SOLVE = 100  # products for one Newton step there


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
    curvature: "Curvature"
    cost: Cost

    @property
    def size(self) -> Scalar:
        return jnp.maximum(jnp.linalg.norm(self.x), 1)

    @property
    def reach(self) -> Scalar:
        """How far the stationary point is, relative to the size of the parameters."""
        return jnp.linalg.norm(self.step) / self.size


class Curvature(eqx.Module):
    """The lowest eigenvalues around a point.

    - `least`: the least one that is not flat; 0 if all that are known are;
    - `num_flat`: how many are flat, as far as they are known;
    - `is_negative`: there is negative curvature beyond its error, along `lowest`;
    - `is_known`: the computation converged, so that there is none if `is_negative` reads false;
    - `weak`: directions of hardly any curvature, the flat ones among them; other rows are zero.
    """

    least: Scalar
    num_flat: Int[Array, ""]
    is_negative: Bool[Array, ""]
    is_known: Bool[Array, ""]
    scale: Scalar
    lowest: Vector
    weak: Float[Array, "k n"]


def is_dense(problem: Problem) -> bool:
    return problem.size < DENSE_BELOW


def view(problem: Problem, x: Vector, key: PRNGKeyArray, floor: Number = 0.0) -> View:
    """Look at a point. Where the Hessian does not fit, its curvature is `measure`'s to find.

    No curvature is below `floor`: what is, is taken for rounding.
    """
    if is_dense(problem):
        return dense_view(problem, x, floor)
    loss, grad = problem.value(x), problem.grad(x)
    product = problem.hvp_at(x)
    ritz = lanczos(product, jax.random.normal(key, x.shape, x.dtype), NUM_PAIRS).ritz()
    scale = jnp.max(jnp.abs(jnp.where(ritz.is_there, ritz.eigenvalues, 0)))
    step, num_hvps = solve(product, grad)
    unknown = eqx.tree_at(lambda c: c.scale, no_curvature(problem), scale)
    cost = Cost(values=1, gradients=1, hvps=num_hvps + NUM_PAIRS)
    return View(x, loss, grad, step, step, unknown, cost)


def measure(
    problem: Problem, x: Vector, grad: Vector, key: PRNGKeyArray, max_hvps: int
) -> tuple[Curvature, Cost]:
    """The lowest eigenvalues at `x` from random vectors, by products alone.

    A Rayleigh quotient below zero proves negative curvature, converged or not.
    """
    start = jax.random.normal(key, (NUM_PAIRS, problem.size), x.dtype)
    tolerance = tolerance_of(None, x.dtype)
    pairs = lowest_pairs(
        problem.hvp_at(x), start, NUM_PAIRS, tolerance, max_hvps, 2 * NUM_PAIRS + 20
    )
    noise, spent = noise_of(problem, x, pairs.scale, pairs.rows[0])
    error = _rounding(x, pairs.scale) + _turning(x, grad) + noise
    # The error of an eigenvalue is its residual at most; that of a converged one is rounding.
    is_converged = pairs.residuals + noise <= tolerance * pairs.scale
    is_flat = jnp.abs(pairs.eigenvalues) <= jnp.maximum(error, pairs.residuals)
    is_negative = pairs.eigenvalues[0] < -error
    curvature = Curvature(
        least=_least(pairs.eigenvalues, is_flat),
        num_flat=jnp.sum(is_flat),
        is_negative=is_negative,
        is_known=is_converged[0] | is_negative,
        scale=pairs.scale,
        lowest=pairs.rows[0],
        weak=_weak(pairs.eigenvalues, pairs.scale, pairs.rows),
    )
    return curvature, Cost(hvps=pairs.num_hvps) + spent


def flat_part(problem: Problem, here: View, vector: Vector) -> Vector:
    """What of a vector lies in directions of hardly any curvature."""
    if is_dense(problem):
        return (here.curvature.weak @ vector) @ here.curvature.weak
    product = problem.hvp_at(here.x)
    return vector + solve(product, product(vector))[0]


def no_curvature(problem: Problem) -> Curvature:
    """Nothing is known yet."""
    zero, no = jnp.zeros((), problem.dtype), jnp.array(False)
    rows = problem.size if is_dense(problem) else NUM_PAIRS
    weak = jnp.zeros((rows, problem.size), problem.dtype)
    return Curvature(zero, jnp.array(0), no, no, zero, weak[0], weak)


def dense_view(problem: Problem, x: Vector, floor: Number = 0.0) -> View:
    """Look at a point by its Hessian."""
    loss, grad, hessian = problem.value(x), problem.grad(x), problem.hessian(x)
    eigenvalues, columns = jnp.linalg.eigh(hessian)
    scale = jnp.max(jnp.abs(eigenvalues))
    noise, spent = noise_of(problem, x, scale, columns[:, 0])
    asymmetry = jnp.linalg.norm(hessian - hessian.T)
    rounding = jnp.maximum(_rounding(x, scale) + asymmetry + noise, floor)
    error = rounding + _turning(x, grad)
    is_flat = jnp.abs(eigenvalues) <= error
    # A rotation has no part in the gradient, whatever curvature it shows.
    is_null = jnp.abs(eigenvalues) <= rounding
    inverse = jnp.where(is_null, 0, 1 / jnp.where(is_null, 1, eigenvalues))
    slopes = columns.T @ grad
    curvature = Curvature(
        least=_least(eigenvalues, is_flat),
        num_flat=jnp.sum(is_flat),
        is_negative=eigenvalues[0] < -error,
        is_known=jnp.all(jnp.isfinite(eigenvalues)) & jnp.isfinite(error),
        scale=scale,
        lowest=columns[:, 0],
        weak=_weak(eigenvalues, scale, columns.T),
    )
    return View(
        x=x,
        loss=loss,
        grad=grad,
        step=-columns @ (inverse * slopes),
        downhill=-columns @ (jnp.abs(inverse) * slopes),
        curvature=curvature,
        cost=Cost(values=1, gradients=1, hvps=problem.size, hessians=1, eigendecompositions=1)
        + spent,
    )


def _rounding(x: Vector, scale: Scalar) -> Scalar:
    return 100 * math.sqrt(len(x)) * float(jnp.finfo(x.dtype).eps) * scale


def noise_of(problem: Problem, x: Vector, scale: Scalar, lowest: Vector) -> tuple[Scalar, Cost]:
    """What products that are differences may be off by, here and as they were measured first."""
    error, spent = problem.hvp_error(x, lowest)
    return 10 * jnp.maximum(error, problem.noise * scale), spent


def _turning(x: Vector, grad: Vector) -> Scalar:
    return 10 * jnp.linalg.norm(grad) / jnp.maximum(jnp.linalg.norm(x), 1)


def _least(eigenvalues: Float[Array, " k"], is_flat: Bool[Array, " k"]) -> Scalar:
    """The least eigenvalue that is not flat, 0 if all are."""
    least = jnp.min(jnp.where(is_flat, jnp.inf, eigenvalues))
    return jnp.where(jnp.all(is_flat), jnp.zeros_like(least), least)


def _weak(
    eigenvalues: Float[Array, " k"], scale: Scalar, rows: Float[Array, "k n"]
) -> Float[Array, "k n"]:
    is_weak = jnp.abs(eigenvalues) <= tolerance_of(None, rows.dtype) * scale
    return jnp.where(is_weak[:, None], rows, 0)


def solve(product: Product, grad: Vector) -> tuple[Vector, Int[Array, ""]]:
    """The step that makes the linearised gradient vanish, by conjugate gradients.

    It lies in the span of gradients, so that flat directions have no part in it, and ends where it
    meets negative curvature.
    """

    def go_on(carry: tuple) -> Bool[Array, ""]:
        _, remainder, _, is_over, num_hvps = carry
        is_open = jnp.linalg.norm(remainder) > 1e-3 * jnp.linalg.norm(grad)
        return is_open & ~is_over & (num_hvps < min(MAX_SOLVE, 2 * len(grad)))

    def turn(carry: tuple) -> tuple:
        step, remainder, direction, _, num_hvps = carry
        image = product(direction)
        along, before = direction @ image, remainder @ remainder
        is_over = ~(along > 0)
        length = jnp.where(is_over, 0, before / jnp.where(is_over, 1, along))
        new = remainder - length * image
        follow = new + (new @ new) / jnp.where(before > 0, before, 1) * direction
        return step + length * direction, new, follow, is_over, num_hvps + 1

    start = (jnp.zeros_like(grad), -grad, -grad, jnp.array(False), jnp.array(0))
    step, *_, num_hvps = jax.lax.while_loop(go_on, turn, start)
    return step, num_hvps
