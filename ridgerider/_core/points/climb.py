r"""Up from a minimum to a saddle along one ridge, and down from a saddle: one loop for both.

In the eigenbasis of the Hessian, where the gradient has the parts g_i, a step moves by

    h_i = -2 g_i / (|lambda_i| + sqrt(lambda_i^2 + 4 g_i^2))

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
"""

from dataclasses import replace
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ridgerider._check import check_choice, check_count, check_positive
from ridgerider._core.linalg.space import Hvp, Space, outside
from ridgerider._core.points.modes import (
    Modes,
    modes_of,
    next_radius,
    prediction_error,
    ritz_modes,
)
from ridgerider._core.points.symmetry import Symmetry, orthonormal, worst_slope
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Number, Problem, Scalar, Vector
from ridgerider._core.spectra.spectrum import DENSE_BELOW, tolerance_of

# Why a climb or a descent is over, by number.
ENDINGS = ("", "stationary", "ran_away", "not_finite", "max_steps")
GOES_ON, STATIONARY, RAN_AWAY, NOT_FINITE, MAX_STEPS = range(5)
TRACE = ("loss", "eigenvalue", "overlap", "residual", "gap", "step_size", "grad_norm")
DOWN = 10  # times `max_steps`: a descent may go on for so long
NUM_LEADING = 4  # vectors that span the space where there is no matrix, with their images
UP = 5  # times `max_steps`: so may a climb without a matrix
NUM_MODES = 16  # the lowest ones at a stationary point, without a matrix


class Climb(eqx.Module):
    """How ridges are climbed, and saddles left.

    **Arguments**

    - `radius`, `max_radius`: how far a step goes along a mode, at first and at most, in the units
      of the parameters.
    - `max_steps`: of one climb; a descent, whose steps need a gradient only, may take ten times as
      many, and a climb without a matrix five times.
    - `max_distance`: a climb or descent that is farther than this from where it began, relative to
      max(1, |x|), has run away.
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


class Move(eqx.Module):
    """A climb or a descent on its way; `trace` has a row for the start and for each step."""

    x: Vector
    begin: Vector
    loss: Scalar
    grad: Vector
    hessian: Float[Array, "n n"]  # empty where there is no matrix
    memory: Float[Array, "r n"]  # there: the step before, and how the ridge has turned in it
    direction: Vector
    is_up: Bool[Array, ""]
    is_second: Bool[Array, ""]  # from a transition state, whose own ridge is kept
    has_crossed: Bool[Array, ""]  # the ridge curved downwards before
    radius: Scalar
    num_steps: Int[Array, ""]
    ending: Int[Array, ""]
    asymmetry: Scalar  # the largest part of a gradient along a generator of the symmetry
    generator: Int[Array, ""]  # the number of that
    trace: Float[Array, "steps columns"]
    cost: Cost


def set_out(
    problem: Problem,
    climb: Climb,
    x: Vector,
    direction: Vector,
    hessian: Float[Array, "n n"] | None,
    is_up: Bool[Array, ""],
    is_second: Bool[Array, ""],
) -> Move:
    """The first step: away from the stationary point `x`, whose Hessian may be known.

    The direction says how far, too, in units of the radius.
    """
    radius = jnp.asarray(climb.radius, x.dtype)
    away = radius * direction
    size = jnp.maximum(jnp.linalg.norm(direction), jnp.finfo(x.dtype).tiny)
    first, cost = x + away, jax.tree.map(jnp.asarray, Cost(values=1, gradients=1))
    loss, grad = jax.value_and_grad(problem.value)(first)
    has_matrix = climb.has_matrix(problem)
    if not has_matrix:
        hessian = jnp.zeros((0, 0), x.dtype)
    elif hessian is None:
        hessian, cost = problem.hessian(first), cost + Cost(hvps=problem.size, hessians=1)
    else:  # the gradient at `x` is zero
        hessian = updated(hessian, away, grad)
    return Move(
        x=first,
        begin=x,
        loss=loss,
        grad=grad,
        hessian=hessian,
        memory=jnp.zeros((0 if has_matrix else 2, x.size), x.dtype),
        direction=direction / size,
        is_up=is_up,
        is_second=is_second,
        has_crossed=jnp.array(False),
        radius=radius,
        num_steps=jnp.array(0),
        ending=jnp.array(GOES_ON),
        asymmetry=jnp.zeros((), x.dtype),
        generator=jnp.array(0),
        trace=jnp.full((DOWN * climb.max_steps + 1, len(TRACE)), jnp.nan, x.dtype),
        cost=cost,
    )


def advance(
    problem: Problem,
    climb: Climb,
    symmetry: Symmetry | None,
    move: Move,
    any_up: Bool[Array, ""],
    num_steps: int,
) -> Move:
    """So many steps, or fewer if it is over before. `any_up`: of those side by side, one climbs."""
    last = move.num_steps + num_steps
    return jax.lax.while_loop(
        lambda move: (move.ending == GOES_ON) & (move.num_steps < last),
        lambda move: _step(problem, climb, symmetry, move, any_up),
        move,
    )


def _step(
    problem: Problem, climb: Climb, symmetry: Symmetry | None, move: Move, any_up: Bool[Array, ""]
) -> Move:
    null = orthonormal(problem, symmetry, move.x)
    num_products = climb.products(problem)
    hessian, cost, residual = move.hessian, move.cost, jnp.zeros((), move.x.dtype)
    if climb.is_kept(problem):
        hessian, residual = jax.lax.cond(
            any_up,  # not of one lane: then both branches would be computed
            lambda: _updated_by_hvps(problem, move, null, num_products),
            lambda: (hessian, residual),
        )
        hessian = jnp.where(move.is_up, hessian, move.hessian)
        residual = jnp.where(move.is_up, residual, 0)
        cost = cost + Cost(hvps=num_products * move.is_up.astype(int))
    if climb.has_matrix(problem):
        modes = modes_of(hessian, null)
        direction, row, overlap = _ridge(modes, move.direction, move.is_second)
    else:
        modes = _modes_by_hvps(problem, move, null, num_products)
        direction, row, overlap = _ridge(modes, move.direction, move.is_second)
        residual, cost = modes.residuals[row], cost + Cost(hvps=num_products)
    step, newton = _parts(modes, row, direction, move)
    eigenvalue, size = modes.eigenvalues[row], jnp.maximum(jnp.linalg.norm(move.x), 1)
    # A Newton step so short is the last one: the next would be rounding.
    is_there = jnp.linalg.norm(newton) <= 10 * tolerance_of(None, move.x.dtype) * size
    is_there &= modes.is_down[row] | ~move.is_up
    parts = jnp.where(is_there, newton, step)
    away = parts @ modes.rows
    new = move.x + away
    loss, grad = jax.value_and_grad(problem.value)(new)
    cost = cost + Cost(values=1, gradients=1)
    error = prediction_error(move.grad, grad, modes.change(parts))
    is_finite = jnp.isfinite(loss) & jnp.all(jnp.isfinite(grad))
    slack = 1000 * jnp.finfo(move.x.dtype).eps * jnp.abs(move.loss)
    is_taken = is_finite & (move.is_up | (loss <= move.loss + slack) | is_there)
    if climb.is_kept(problem):
        hessian = jnp.where(is_finite, updated(hessian, away, grad - move.grad), hessian)
    elif climb.has_matrix(problem):
        hessian = jnp.where(is_taken, problem.hessian(new), hessian)
        cost = cost + Cost(hvps=problem.size, hessians=1)
    radius = next_radius(
        move.radius, error, is_taken, error < 0.3, grow=1.5, shrink=2, most=climb.max_radius
    )
    num_steps = move.num_steps + 1
    up = 1 if climb.has_matrix(problem) else UP
    most = jnp.where(move.is_up, up, DOWN) * climb.max_steps
    size = jnp.maximum(jnp.linalg.norm(move.begin), 1)
    is_far = jnp.linalg.norm(new - move.begin) > climb.max_distance * size
    is_stuck = ~is_finite & (radius < tolerance_of(None, new.dtype) * size)
    ending = jnp.select(
        [is_there & is_finite, is_stuck, is_far & is_taken, num_steps >= most],
        [STATIONARY, NOT_FINITE, RAN_AWAY, MAX_STEPS],
        GOES_ON,
    )
    is_other = ~modes.is_null & (jnp.arange(len(parts)) != row)
    others = jnp.where(is_other, modes.eigenvalues, jnp.inf)
    columns = (
        move.loss,
        eigenvalue,
        overlap,
        residual,
        jnp.min(jnp.abs(others - eigenvalue)),
        jnp.linalg.norm(away),
        jnp.linalg.norm(move.grad),
    )
    along, generator = worst_slope(problem, symmetry, move.x, move.grad)

    def taken(one: Array, two: Array) -> Array:
        return jnp.where(is_taken, one, two)

    return replace(
        move,
        x=taken(new, move.x),
        loss=taken(loss, move.loss),
        grad=taken(grad, move.grad),
        hessian=hessian,
        memory=jnp.stack([away, direction - move.direction])[: len(move.memory)],
        direction=direction,
        has_crossed=move.has_crossed | modes.is_down[row],
        radius=radius,
        num_steps=num_steps,
        ending=ending,
        asymmetry=jnp.maximum(move.asymmetry, along),
        generator=jnp.where(along > move.asymmetry, generator, move.generator),
        trace=jax.lax.dynamic_update_slice(
            move.trace, jnp.stack(columns)[None, :], (move.num_steps, 0)
        ),
        cost=cost,
    )


def _parts(
    modes: Modes, row: Int[Array, ""], direction: Vector, move: Move
) -> tuple[Vector, Vector]:
    """The step in the modes, and Newton's, both without any part along a symmetry."""
    slopes, sizes = modes.rows @ move.grad, jnp.abs(modes.eigenvalues)
    tiny = jnp.finfo(slopes.dtype).tiny
    down = -2 * slopes / (sizes + jnp.sqrt(sizes**2 + 4 * slopes**2) + tiny)
    rows = jnp.arange(len(slopes))
    is_ridge = (rows == row) & move.is_up
    is_kept = (rows == jnp.where(row == 0, 1, 0)) & move.is_second
    ahead = jnp.where(move.has_crossed, slopes[row], modes.rows[row] @ direction)
    push = jnp.where(ahead < 0, -move.radius, move.radius)
    up = jnp.where(modes.eigenvalues > 0, push, -down)
    rise = jnp.where(modes.eigenvalues > 0, jnp.copysign(move.radius, slopes), -down)
    step = jnp.where(is_ridge, up, jnp.where(is_kept, rise, down))
    step = jnp.where(modes.is_null, 0, jnp.clip(step, -move.radius, move.radius))
    longest = 2.5 * move.radius
    step = step * jnp.minimum(1, longest / jnp.maximum(jnp.linalg.norm(step), tiny))
    is_flat = modes.is_null | ~modes.is_curved
    newton = jnp.where(is_flat, 0, -slopes / jnp.where(is_flat, 1, modes.eigenvalues))
    return step, newton


def _ridge(
    modes: Modes, direction: Vector, is_second: Bool[Array, ""]
) -> tuple[Vector, Int[Array, ""], Scalar]:
    """The mode that continues the ridge; as long as that curves upwards, one that does not.

    Of a second ridge it is none that is kept already: the lowest, where that curves downwards.
    """
    is_down = modes.is_down
    first = jnp.where(is_second & is_down[0], 1, 0)
    is_free = ~modes.is_null & (jnp.arange(len(is_down)) >= first)
    overlaps = jnp.where(is_free, modes.rows @ direction, 0)
    nearest = jnp.argmax(jnp.abs(overlaps))
    row = jnp.where(~is_down[nearest] & is_down[first], first, nearest)
    mode, overlap = modes.rows[row], overlaps[row]
    return jnp.where(overlap < 0, -mode, mode), row, jnp.abs(overlap)


def _modes_by_hvps(
    problem: Problem, move: Move, null: Float[Array, "n k"], num_products: int
) -> Modes:
    """Ritz pairs in the space of what leads the climb and of its images."""
    product = without(null, problem.hvp_at(move.x))

    def add(number: Int[Array, ""], space: Space) -> Space:
        scale = jnp.max(jnp.linalg.norm(space.images, axis=1))
        return space.add(product, space.images[number - len(leading)], scale)

    space = Space.empty(num_products, problem.size, move.x.dtype)
    leading = jnp.concatenate([jnp.stack([move.direction, move.grad]), move.memory])[:num_products]
    space = space.add_all(product, leading - (leading @ null) @ null.T)
    return ritz_modes(jax.lax.fori_loop(len(leading), num_products, add, space))


def without(null: Float[Array, "n k"], product: Hvp, level: Number = 0.0) -> Hvp:
    """The HVP of a Hessian from which a symmetry is projected out, at `level` along that."""

    def projected(vector: Vector) -> Vector:
        inside = null @ (null.T @ vector)
        return outside(null.T, product(vector - inside)) + level * inside

    return projected


def _updated_by_hvps(
    problem: Problem, move: Move, null: Float[Array, "n k"], num_products: int
) -> tuple[Float[Array, "n n"], Scalar]:
    """The Hessian updated along the ridge and where the step would go, and the ridge's residual.

    Along modes, which are orthogonal, so that what one HVP has corrected the next ones leave.
    """
    modes = modes_of(move.hessian, null)
    direction, row, _ = _ridge(modes, move.direction, move.is_second)
    lengths = jnp.abs(_parts(modes, row, direction, move)[0]).at[row].set(jnp.inf)
    rows = modes.rows[jax.lax.top_k(lengths, num_products)[1]]
    images = jax.vmap(problem.hvp_at(move.x))(rows)
    residual = jnp.linalg.norm(images[0] - (rows[0] @ images[0]) * rows[0])
    hessian, _ = jax.lax.scan(
        lambda matrix, pair: (updated(matrix, *pair), None), move.hessian, (rows, images)
    )
    return hessian, residual


def updated(hessian: Float[Array, "n n"], step: Vector, change: Vector) -> Float[Array, "n n"]:
    """The symmetric matrix nearest in Bofill's sense that takes `step` to `change`."""
    wrong = change - hessian @ step
    along, length, size = wrong @ step, step @ step, wrong @ wrong
    tiny = jnp.finfo(step.dtype).tiny
    share = along**2 / jnp.maximum(length * size, tiny)  # 1: rank one is safe
    is_safe = jnp.abs(along) > 1e-8 * jnp.sqrt(length * size)
    rank_one = jnp.outer(wrong, wrong) / jnp.where(is_safe, along, 1)
    both = (jnp.outer(wrong, step) + jnp.outer(step, wrong)) / jnp.maximum(length, tiny)
    powell = both - along * jnp.outer(step, step) / jnp.maximum(length**2, tiny)
    mixed = jnp.where(is_safe, share * rank_one + (1 - share) * powell, powell)
    is_enough = length > (10 * jnp.finfo(step.dtype).eps) ** 2
    return hessian + jnp.where(is_enough, mixed, 0)
