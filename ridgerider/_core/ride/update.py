"""UpdateRidge: the same ridge at the next point, with its certificate.

An update is a callable `update(problem, x, ridge, key) -> Tracked`. Among orthonormal eigenvectors
at most one has squared overlap above 1/2 with a given direction. So an overlap of at least 0.7072
shows that the ride is still on its ridge, if the new direction is an eigenvector. It is within
asin(residual / gap) of one: a small residual shows it only against a gap that is known.

How surely a ridge that was followed to a new point is the same one.
"""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ridgerider._check import Fraction, check_fields
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Counted, Number, Problem, Scalar, Vector
from ridgerider._core.spectra.spectrum import Ridge, cluster_labels, cluster_width


class Certificate(eqx.Module):
    """What a followed ridge can show for itself; goes whole from the update to the trace.

    - `overlap`: the cosine between the new direction and the old eigenspace; less than 0.7072 where
      errors leave open which eigenspace overlaps most, and 0 where nothing is certified;
    - `residual`: |H e - eigenvalue e| at the new point. The direction is within asin(residual / d)
      of the span of the eigenvectors whose eigenvalues are at most d away, for every d;
    - `gap`: from the eigenvalue to the nearest one outside its cluster; NaN where it is unknown;
    - `neighbours`: the eigenvalues next to its cluster, ascending, half of them below and half
      above, NaN where there are no more; or None. An update from products gives those that it saw.
      For the trace alone: crossings show in it.

    >>> certificate = Certificate(overlap=jnp.array(0.99), residual=jnp.array(1e-12))
    >>> float(certificate.overlap), bool(jnp.isnan(certificate.gap))
    (0.99, True)
    """

    overlap: Scalar
    residual: Scalar
    gap: Scalar = None  # type: ignore[assignment]  # then NaN
    neighbours: Float[Array, " k"] | None = None

    def __post_init__(self) -> None:
        self.gap = jnp.full_like(self.residual, jnp.nan) if self.gap is None else self.gap


class Certified:
    """Whatever carries a certificate has its parts by their own names, too."""

    certificate: Certificate

    @property
    def overlap(self) -> Scalar:
        return self.certificate.overlap

    @property
    def residual(self) -> Scalar:
        return self.certificate.residual

    @property
    def gap(self) -> Scalar:
        return self.certificate.gap

    @property
    def neighbours(self) -> Float[Array, " k"] | None:
        return self.certificate.neighbours


NUM_NEIGHBOURS = 4  # eigenvalues on each side that a trace shows; they cost nothing


class Tracked(Certified, eqx.Module):
    """A ridge followed to a new point, how surely it is the same one, and what that cost.

    `loss` is that of the new point, where the update knows it.

    A custom update returns one, e.g. a ridge that never changes:

    >>> import ridgerider as rr
    >>> def blind(problem, x, ridge, key):
    ...     certificate = rr.types.Certificate(overlap=jnp.ones(()), residual=jnp.zeros(()))
    ...     return rr.types.Tracked(ridge, certificate, cost=rr.types.Cost())
    >>> rider = rr.Rider(update=blind)
    """

    ridge: Ridge
    certificate: Certificate
    cost: Cost
    loss: Scalar | None = None


class Project(eqx.Module):
    """UpdateRidge, exact: project the old direction onto the eigenspace it overlaps most.

    For simple eigenvalues this is the paper's maximal overlap. Where eigenvalues are repeated, the
    direction inside the eigenspace is kept; where an eigenspace splits, any direction out of it
    continues the ridge, so the overlap is measured against the whole old eigenspace. Eigenvalues
    within `cluster_tolerance` count as equal; the multiplicity says how many there are.

    >>> import jax, jax.numpy as jnp
    >>> from ridgerider import DenseSpectrum
    >>> problem = Problem(lambda x: x[0] ** 3 - 2 * x[0] ** 2 - x[1] ** 2, jnp.zeros(2))
    >>> ridge = DenseSpectrum()(problem, problem.x0, jax.random.key(0)).ridge(0)
    >>> tracked = Project()(problem, problem.x0 + 0.1 * ridge.direction, ridge, jax.random.key(0))
    >>> round(float(tracked.overlap), 3), round(float(tracked.gap), 3)
    (1.0, 1.4)
    """

    cluster_tolerance: Fraction | None = None

    __check_init__ = check_fields

    @eqx.filter_jit
    def __call__(self, problem: Problem, x: Vector, ridge: Ridge, key: PRNGKeyArray) -> Tracked:
        del key
        return project(problem, x, ridge, self.cluster_tolerance)[0]

    def begin(self, problem: Problem, x: Vector, ridge: Ridge) -> Ridge:
        del problem, x
        return with_space(ridge)


def with_space(ridge: Ridge) -> Ridge:
    """The ridge with its direction as its eigenspace, with as many rows as a cluster may have."""
    is_first = jnp.arange(ridge.direction.size)[:, None] == 0
    return dataclasses.replace(ridge, space=jnp.where(is_first, ridge.direction[None], 0))


def project(
    problem: Problem, x: Vector, ridge: Ridge, cluster_tolerance: Number | None
) -> tuple[Tracked, Float[Array, " n"], Float[Array, "n n"]]:
    """The ridge at `x` from the dense Hessian, whose eigenvalues and eigenvectors are returned too.

    The eigenvectors are columns.
    """
    counted = Counted(problem)
    hessian, eigenvalues, columns = counted.eigh(x)
    width = cluster_width(cluster_tolerance, x.dtype, problem.noise)
    labels = cluster_labels(eigenvalues, width)
    coefficients = ridge.direction @ columns
    weights = jax.ops.segment_sum(coefficients**2, labels, len(labels))
    is_inside = labels == jnp.argmax(weights)
    direction = unit(columns @ jnp.where(is_inside, coefficients, 0))
    image = hessian @ direction
    eigenvalue = direction @ image
    new = Ridge(
        direction=direction,
        eigenvalue=eigenvalue,
        index=jnp.argmax(weights),
        multiplicity=jnp.sum(is_inside),
        space=jnp.where(is_inside[:, None], columns.T, 0),
    )
    gap = jnp.min(jnp.where(is_inside, jnp.inf, jnp.abs(eigenvalues - eigenvalue)))
    outside = jnp.linalg.norm(jnp.where(is_inside, 0, image @ columns))  # rounding
    error = counted.hvp_error(x, direction)
    certificate = Certificate(
        overlap=safe_overlap(overlap_with_space(ridge, direction), (outside + error) / gap),
        residual=jnp.linalg.norm(image - eigenvalue * direction) + error,
        gap=gap,
        neighbours=neighbours_of(eigenvalues, is_inside),
    )
    return Tracked(new, certificate, counted.cost), eigenvalues, columns


class Keep(eqx.Module):
    """A fixed ridge: the direction never changes. The paper's ablation without UpdateRidge.

    The eigenvalue is the curvature along the direction; the residual says how far it is from an
    eigenvector by now. The gap is unknown, hence NaN.

    >>> import jax, jax.numpy as jnp
    >>> problem = Problem(lambda x: x[0] * x[1] - x[0] ** 2, jnp.zeros(2))
    >>> ridge = Ridge(jnp.array([1.0, 0.0]), jnp.array(-2.0), jnp.array(0), jnp.array(1))
    >>> tracked = Keep()(problem, problem.x0, ridge, jax.random.key(0))
    >>> float(tracked.ridge.eigenvalue), float(tracked.residual)
    (-2.0, 1.0)
    """

    @eqx.filter_jit
    def __call__(self, problem: Problem, x: Vector, ridge: Ridge, key: PRNGKeyArray) -> Tracked:
        del key
        counted = Counted(problem)
        image = counted.hvp(x, ridge.direction)
        error = counted.hvp_error(x, ridge.direction)
        eigenvalue = ridge.direction @ image
        residual = jnp.linalg.norm(image - eigenvalue * ridge.direction)
        return Tracked(
            Ridge(ridge.direction, eigenvalue, ridge.index, ridge.multiplicity, ridge.space),
            Certificate(jnp.ones_like(eigenvalue), residual + error),
            counted.cost,
        )


class RandomRidge(eqx.Module):
    """A new random direction at every step, turned downhill. The paper's ablation Rand-Ridge+.

    There is no ridge to lose, so the overlap is 1 and the gap NaN; the eigenvalue is the curvature
    along the direction, of either sign. Ride with stop rules that do not ask for curvature.

    >>> import jax, jax.numpy as jnp
    >>> import ridgerider as rr
    >>> rider = rr.Rider(update=rr.RandomRidge(), stop=(rr.Stalled(), rr.not_finite))
    >>> problem = Problem(lambda x: x[0] * x[1] - x[0], jnp.zeros(2))
    >>> ridge = Ridge(jnp.array([1.0, 0.0]), jnp.array(-2.0), jnp.array(0), jnp.array(1))
    >>> tracked = rr.RandomRidge()(problem, problem.x0, ridge, jax.random.key(0))
    >>> float(tracked.ridge.direction @ problem.grad(problem.x0)) < 0
    True
    """

    @eqx.filter_jit
    def __call__(self, problem: Problem, x: Vector, ridge: Ridge, key: PRNGKeyArray) -> Tracked:
        counted = Counted(problem)
        direction = unit(jax.random.normal(key, x.shape, x.dtype))
        direction = jnp.where(counted.grad(x) @ direction > 0, -direction, direction)
        new = Ridge(direction, ridge.eigenvalue, ridge.index, ridge.multiplicity)
        tracked = Keep()(problem, x, new, key)
        return Tracked(tracked.ridge, tracked.certificate, tracked.cost + counted.cost)


def overlap_with_space(ridge: Ridge, direction: Vector) -> Scalar:
    """The cosine between `direction` and the eigenspace of `ridge`."""
    space = ridge.direction[None] if ridge.space is None else ridge.space
    return jnp.linalg.norm(space @ direction)


def safe_overlap(overlap: Scalar, sine: Scalar) -> Scalar:
    """The overlap of a direction that is off its eigenspace by an angle of at most that sine.

    As it is, if the eigenspace itself has half of the squared overlap at least, so that no other
    has more. Otherwise the least that the overlap of the eigenspace can be.
    """
    # cos(angle + error), where overlap = cos(angle) and sine = sin(error)
    sine, cosine = jnp.minimum(sine, 1), jnp.minimum(overlap, 1)
    least = cosine * jnp.sqrt(1 - sine**2) - sine * jnp.sqrt(1 - cosine**2)
    return jnp.where(least >= math.sqrt(0.5), overlap, jnp.maximum(least, 0))


def unit(vector: Vector) -> Vector:
    return vector / jnp.linalg.norm(vector)


def neighbours_of(
    eigenvalues: Float[Array, " n"], is_inside: Bool[Array, " n"]
) -> Float[Array, " k"]:
    """The nearest eigenvalues by rank below and above the cluster, which is one run of them."""
    first = jnp.argmax(is_inside)
    near = jnp.arange(NUM_NEIGHBOURS)
    ranks = jnp.concatenate([first - NUM_NEIGHBOURS + near, first + jnp.sum(is_inside) + near])
    is_there = (ranks >= 0) & (ranks < len(eigenvalues))
    return jnp.where(is_there, eigenvalues[jnp.clip(ranks, 0, len(eigenvalues) - 1)], jnp.nan)
