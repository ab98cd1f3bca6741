"""Consistent ridges of environments: found, followed, matrix-free where they are large.

`_agreement_solver` solves for the consistent ridge of small dense matrices. Here those are the
environments' Hessians, or, for many parameters, what a shared space of a few vectors sees of them:
it grows by the residual of the mixture, one HVP per environment and round.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from ridgerider._check import check_count, check_fraction
from ridgerider._core.linalg.space import unit_outside
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Number, Problem, Scalar, Vector
from ridgerider._core.ride.certificate import Certificate
from ridgerider._core.ride.update import Tracked
from ridgerider._core.spectra.spectrum import DENSE_BELOW, Ridge, tolerance_of
from ridgerider.environments._agreement_solver import Agreement, Matrices, Weights, agree, continued
from ridgerider.environments._environments import Environments, Mixture

MAX_ROWS = 60  # of the space that grows
Solve = Callable[[Matrices, Float[Array, "m n"]], Agreement]


class ConsistentRidge(eqx.Module):
    """A direction on which the environments agree, with its certificate.

    - `ridge`: to be ridden by `Rider(update=Agree())`; its eigenvalue is the curvature along it.
    - `weights`: of the mixture of environments whose steepest ridge it is.
    - `eigenvalues`: the curvature e' H_i e in each environment; equal if one was found.
    - `correlations`: C(H_i e, e), -1 where e is a ridge of environment i.
    - `residual`: |H e - eigenvalue e| for the mixture's Hessian.
    - `duality_gap`: how much steeper another consistent direction can be at most, within the space
      that was searched: with exact Hessians all directions, otherwise look at `residual`, too.

    >>> import jax.numpy as jnp
    >>> import ridgerider as rr
    >>> def loss(x, c):  # a head of two layers: (x[0], x[1]) are weights, x[2] is the output's
    ...     return -x[2] * (x[:2] @ c)
    >>> signals = jnp.array([2.0, 1.0]), jnp.array([2.0, -3.0])
    >>> both = Environments([rr.Problem(loss, jnp.zeros(3), c) for c in signals])
    >>> found = consistent_ridge(both)
    >>> found.weights.round(6).tolist(), abs(round(float(found.duality_gap), 9))
    ([0.75, 0.25], 0.0)
    """

    ridge: Ridge
    weights: Weights
    eigenvalues: Float[Array, " environments"]
    correlations: Float[Array, " environments"]
    residual: Scalar
    duality_gap: Scalar
    cost: Cost

    @property
    def disagreement(self) -> Scalar:
        """The largest difference of curvature between two environments."""
        return jnp.max(self.eigenvalues) - jnp.min(self.eigenvalues)


def consistent_ridge(
    environments: Environments,
    params: PyTree | None = None,
    *,
    dense_below: int = DENSE_BELOW,
    seed: int = 0,
) -> ConsistentRidge:
    """The steepest direction of the ridden part on which all environments agree.

    **Arguments**

    - `params`: where; default: the start.
    - `dense_below`: smaller ridden parts use their exact Hessians. Larger ones are projected onto
      a space of at most 60 rows, each of which costs an HVP per environment; it grows until the
      residual is below eps^(1/2) times the largest |eigenvalue|.

    Raises if the pooled loss has no negative curvature. A consistent direction may still have none:
    look at `ridge.eigenvalue`.

    >>> import jax.numpy as jnp
    >>> import ridgerider as rr
    >>> def loss(x, steep):  # x[0] curves alike everywhere, x[1] does not
    ...     return -x[0] ** 2 - steep * x[1] ** 2 + x[2] ** 2
    >>> both = Environments([rr.Problem(loss, jnp.zeros(3), steep) for steep in (5.0, 1.0)])
    >>> found = consistent_ridge(both)
    >>> abs(found.ridge.direction).round(6).tolist(), found.eigenvalues.round(6).tolist()
    ([1.0, 0.0, 0.0], [-2.0, -2.0])
    """
    params = environments.start if params is None else params
    environments.check_downhill(params)
    key = jax.random.key(seed)
    return _consistent_ridge(environments, params, dense_below, key)


@eqx.filter_jit
def _consistent_ridge(
    environments: Environments, params: PyTree, dense_below: int, key: PRNGKeyArray
) -> ConsistentRidge:
    problem = environments.pooled(params)
    x, (first, second) = problem.x0, jax.random.split(key)
    # Some random rows, of which the steepest directions grow.
    start = jax.random.normal(first, (min(8, len(x)), len(x)), x.dtype)
    tolerance = tolerance_of(None, x.dtype)

    def solve(matrices: Matrices, rows: Array) -> Agreement:
        del rows
        return agree(matrices, second)

    return _solved(problem, x, start, solve, dense_below, tolerance)[0]


class Agree(eqx.Module):
    """UpdateRidge for environments: the consistent ridge next to the old one, at the new point.

    The problem must be `Environments.pooled`, the ridge one of `consistent_ridge`, or any direction
    to begin with. The residual is that of the mixture of environments, and a ridge on which the
    environments do not agree to `tolerance` has no certificate: its overlap is reported as 0.

    >>> import jax, jax.numpy as jnp
    >>> import ridgerider as rr
    >>> def loss(x, steep):
    ...     return x[0] ** 4 - x[0] ** 2 - steep * x[1] ** 2 * (1 - x[1] ** 2) + x[2] ** 2
    >>> both = Environments([rr.Problem(loss, jnp.zeros(3), steep) for steep in (5.0, 1.0)])
    >>> rider = rr.Rider(update=Agree(), step=rr.FixedStep(0.25), max_steps=2)
    >>> found = consistent_ridge(both)
    >>> ride = rider.ride(both.pooled(), both.x0, found.ridge, jax.random.key(0))
    >>> abs(ride.x).round(6).tolist()
    [0.5, 0.0, 0.0]
    """

    tolerance: Number = 1e-4
    dense_below: int = eqx.field(static=True, default=DENSE_BELOW)

    def __check_init__(self) -> None:
        check_fraction("tolerance", self.tolerance)
        check_count("dense_below", self.dense_below, 0)

    def __call__(self, problem: Problem, x: Vector, ridge: Ridge, key: PRNGKeyArray) -> Tracked:
        del key
        if not isinstance(problem.loss, Mixture):
            raise ValueError("`problem` must be `Environments.pooled`, whose environments agree.")
        count = len(problem.loss.problems)
        weights = jnp.full(count, 1 / count, x.dtype) if ridge.memory is None else ridge.memory

        def solve(matrices: Matrices, rows: Array) -> Agreement:
            return continued(matrices, rows @ ridge.direction, weights)

        start = ridge.direction[None]
        found, scale = _solved(problem, x, start, solve, self.dense_below, self.tolerance)
        sign = jnp.where(found.ridge.direction @ ridge.direction < 0, -1, 1).astype(x.dtype)
        direction = sign * found.ridge.direction
        allowed = self.tolerance * scale
        is_certified = (found.residual <= allowed) & (found.disagreement <= allowed)
        return Tracked(
            ridge=Ridge(
                direction=direction,
                eigenvalue=found.ridge.eigenvalue,
                index=ridge.index,
                multiplicity=ridge.multiplicity,
                memory=found.weights,
            ),
            certificate=Certificate(
                overlap=jnp.where(is_certified, direction @ ridge.direction, 0),
                residual=found.residual,
            ),
            cost=found.cost,
        )


class _Space(eqx.Module):
    """Orthonormal rows, what the environments' Hessians do to them, and the ridge in this space."""

    rows: Float[Array, "m n"]
    images: Float[Array, "environments m n"]
    count: Int[Array, ""]
    agreement: Agreement

    @property
    def direction(self) -> Vector:
        return self.agreement.direction @ self.rows

    @property
    def image(self) -> Float[Array, "environments n"]:
        """H_i e."""
        return jnp.einsum("m,imn->in", self.agreement.direction, self.images)

    @property
    def remainder(self) -> Vector:
        """What is left of the mixture's H e outside e."""
        image = self.agreement.weights @ self.image
        return image - (image @ self.direction) * self.direction

    @property
    def scale(self) -> Scalar:
        """The largest |eigenvalue| that any environment shows in this space."""
        return jnp.max(jnp.abs(jnp.linalg.eigvalsh(_projected(self.rows, self.images))))


def _solved(
    problem: Problem,
    x: Vector,
    start: Float[Array, "j n"],
    solve: Solve,
    dense_below: int,
    tolerance: Number,
) -> tuple[ConsistentRidge, Scalar]:
    """The consistent ridge at `x`, by `solve` on exact or projected Hessians; and their scale."""
    problems = problem.loss.problems  # type: ignore[attr-defined]  # a Mixture
    num_hessians = len(problems) if problem.size < dense_below else 0
    if num_hessians:
        rows = jnp.eye(len(x), dtype=x.dtype)
        hessians = jnp.stack([one.hessian(x) for one in problems])
        space = _Space(rows, hessians, jnp.array(len(x)), solve(hessians, rows))
    else:
        space = _grown(problems, x, start, solve, tolerance)
    direction, images = space.direction, space.image
    eigenvalues, lengths = images @ direction, jnp.linalg.norm(images, axis=1)
    found = ConsistentRidge(
        ridge=Ridge(
            direction=direction,
            eigenvalue=jnp.mean(eigenvalues),
            index=jnp.array(0),
            multiplicity=jnp.array(1),
            memory=space.agreement.weights,
        ),
        weights=space.agreement.weights,
        eigenvalues=eigenvalues,
        correlations=eigenvalues / jnp.where(lengths > 0, lengths, 1),
        residual=jnp.linalg.norm(space.remainder),
        duality_gap=space.agreement.eigenvalue - space.agreement.bound,
        cost=Cost(hvps=space.count * len(problems), hessians=num_hessians),
    )
    return found, space.scale


def _grown(
    problems: tuple[Problem, ...],
    x: Vector,
    start: Float[Array, "j n"],
    solve: Solve,
    tolerance: Number,
) -> _Space:
    """A space that grows by the mixture's residual until that is small."""
    hvps = [one.hvp_at(x) for one in problems]
    rows = jnp.zeros((min(MAX_ROWS, len(x)), len(x)), x.dtype)
    images = jnp.zeros((len(problems), *rows.shape), x.dtype)

    def add(rows: Array, images: Array, count: Array, vector: Vector) -> tuple[Array, Array]:
        row = unit_outside(rows, vector)
        image = jnp.stack([hvp(row) for hvp in hvps])
        return rows.at[count].set(row), images.at[:, count].set(image)

    def solved(rows: Array, images: Array, count: Array) -> _Space:
        seen = _projected(rows, images)
        # Rows that are still empty are far above all others, alike in all environments.
        is_empty = jnp.sum(rows**2, axis=1) < 0.5
        above = 2 * jnp.sqrt(jnp.sum(seen**2)) + 1
        matrices = seen + jnp.diag(jnp.where(is_empty, above, 0))[None]
        return _Space(rows, images, count, solve(matrices, rows))

    def should_continue(space: _Space) -> Bool[Array, ""]:
        is_far = jnp.linalg.norm(space.remainder) > tolerance * space.scale
        return is_far & (space.count < len(rows))

    def grow(space: _Space) -> _Space:
        return solved(*add(space.rows, space.images, space.count, space.remainder), space.count + 1)

    for number, vector in enumerate(start):
        rows, images = add(rows, images, jnp.array(number), vector)
    first = solved(rows, images, jnp.array(len(start)))
    return jax.lax.while_loop(should_continue, grow, first)


def _projected(rows: Float[Array, "m n"], images: Float[Array, "environments m n"]) -> Matrices:
    """V H_i V' of each environment."""
    seen = jnp.einsum("mk,ilk->iml", rows, images)
    return (seen + jnp.swapaxes(seen, 1, 2)) / 2
