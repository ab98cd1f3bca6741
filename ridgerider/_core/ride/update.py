r"""UpdateRidge: the same ridge at the next point, with its certificate.

An update is a callable `update(problem, x, ridge, key) -> Tracked`. Among orthonormal eigenvectors
at most one has squared overlap above 1/2 with a given direction. So an overlap of at least 0.7072
shows that the ride is still on its ridge, if the new direction is an eigenvector. It is within
asin(residual / gap) of one: a small residual shows it only against a gap that is known.

`Project` has the dense Hessian, and `Davidson` Hessian-vector products (HVPs): Rayleigh-Ritz,
selected by overlap. The subspace starts at the old direction and grows by residuals; at each size
the Ritz vector (or the cluster of them) that overlaps the old direction most is followed, until its
residual r is small. What a residual proves, whatever the rest of the spectrum is:

    e lies within asin(r / d) of the span of the eigenvectors with |eigenvalue - e^T H e| <= d,

for every d, as H - e^T H e stretches all else by more than d. So r alone leaves eigenvectors within
some 10 r of each other mixed. From the old direction they cannot be separated until r is below a
tenth of their distance, and no space of fewer vectors than there are parameters proves that there
is no further eigenvalue nearby. Hence `resolve`, multiplicity 0 where it was not done, and a gap of
NaN.

`Residual` is UpdateRidge as the paper writes it for large models: gradient descent on the
eigen-loss. After a step, with u = e / |e|,

    lambda <- lambda + e^T (H(x) - H(x_old)) e
    repeat S times:    loss(e, lambda) = |H u / lambda - u|^2
        lambda <- lambda - LR_lambda dloss/dlambda
        e      <- e      - LR_e      dloss/de

At the eigenpair (e, lambda) the second line multiplies the component along an eigenvalue mu by
1 - 2 LR_e (mu / lambda - 1)^2. So it is stable only for LR_e < 1 / (lambda_max / lambda - 1)^2, and
then the ridge's own neighbours at a relative distance d fade like exp(-2 S LR_e d^2). (As e is not
normalised inside the loop, too large a rate lengthens it, which lowers the rate: too late.)
"""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ridgerider._check import AtLeast0, Fraction, Several, Whole, check_fields
from ridgerider._core.linalg.space import Hvp, Ritz, Space, krylov
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
    coefficients = ridge.direction @ columns
    index, is_inside = most_overlapping(eigenvalues, coefficients, width)
    direction = unit(columns @ jnp.where(is_inside, coefficients, 0))
    image = hessian @ direction
    eigenvalue = direction @ image
    new = Ridge(
        direction=direction,
        eigenvalue=eigenvalue,
        index=index,
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


def most_overlapping(
    eigenvalues: Float[Array, " n"],
    coefficients: Float[Array, " n"],
    width: Number,
    scale: Scalar | None = None,
) -> tuple[Int[Array, ""], Bool[Array, " n"]]:
    """The cluster that a vector overlaps most: its number, and which eigenvalues are in it."""
    labels = cluster_labels(eigenvalues, width, scale=scale)
    index = jnp.argmax(jax.ops.segment_sum(coefficients**2, labels, len(labels)))
    return index, labels == index


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


SINE = 0.1  # of the largest angle to an eigenspace that passes for a direction in it


class Davidson(eqx.Module):
    """UpdateRidge, matrix-free: 10 to 30 HVPs where the paper's needs hundreds.

    A ridge that could not be computed to `tolerance` within `max_hvps` HVPs has no certificate:
    its overlap is reported as 0, so that `Backtracking` tries a shorter step and `RidgeLost` ends
    the ride. A certificate with an overlap of 0.7072 or more and a multiplicity of

    - 1 says: the direction lies within asin(0.1) of the span of the eigenvectors whose eigenvalues
      are within a cluster's width of it, mostly one; and that span has half of the old
      direction's squared length at least, so no other overlaps more.
    - m > 1 says: that many Ritz values are in the cluster, which is followed as one space. The
      residual is then up to the cluster's width.
    - 0 says: eigenvalues within 10 residuals were not separated. The direction may be a mixture of
      their eigenvectors; of their span it says the same as 1 does.

    It does not say that the cluster has no more members: those that are orthogonal to the
    search space cannot be found, and do not affect the direction.

    `neighbours` are Ritz values, the part of the spectrum that was found. The gap is NaN, unknown,
    unless the search space became the whole space.

    **Arguments**

    - `tolerance`: of |H e - eigenvalue e| / max |eigenvalue|, with the largest one seen, for a
      certificate; the spread inside a cluster does not count. None: spend `max_hvps` and return the
      result without a certificate.
    - `max_hvps`: per update. As many basis vectors are held, with an image for each.
    - `cluster_tolerance`: Ritz values within this times max |eigenvalue| count as one eigenspace,
      onto which the old direction is projected. Default: eps^(2/3).
    - `resolve`: continue beyond `tolerance`, to a residual of a tenth of a cluster's width, so that
      nearly equal eigenvalues are distinguished. In double precision that may take two or three
      times the HVPs. False: stop at `tolerance`, mostly with a multiplicity of 0.

    >>> import jax, jax.numpy as jnp
    >>> from ridgerider import DenseSpectrum
    >>> problem = Problem(lambda x: x[0] ** 3 - 2 * x[0] ** 2 - x[1] ** 2, jnp.zeros(2))
    >>> ridge = DenseSpectrum()(problem, problem.x0, jax.random.key(0)).ridge(0)
    >>> tracked = Davidson()(problem, problem.x0 + 0.1 * ridge.direction, ridge, jax.random.key(0))
    >>> round(float(tracked.overlap), 3), int(tracked.ridge.multiplicity), int(tracked.cost.hvps)
    (1.0, 1, 1)
    """

    tolerance: Fraction | None = 1e-4
    max_hvps: Several = eqx.field(static=True, default=60)
    cluster_tolerance: Fraction | None = None
    resolve: bool = eqx.field(static=True, default=True)

    __check_init__ = check_fields

    @eqx.filter_jit
    def __call__(self, problem: Problem, x: Vector, ridge: Ridge, key: PRNGKeyArray) -> Tracked:
        del key
        counted, hvp = Counted(problem), problem.hvp_at(x)
        width = cluster_width(self.cluster_tolerance, x.dtype, problem.noise)

        def should_continue(carry: tuple[Space, _Choice]) -> Bool[Array, ""]:
            space, choice = carry
            is_done = choice.is_converged & (choice.is_resolved | (not self.resolve))
            return ~is_done & (space.count < len(space.rows))

        def step(carry: tuple[Space, _Choice]) -> tuple[Space, _Choice]:
            space = carry[0].add(hvp, carry[1].outside)
            return space, self._choose(space, width)

        space = Space.empty(min(self.max_hvps, problem.size), problem.size, x.dtype)
        space = space.add(hvp, ridge.direction)
        carry = (space, self._choose(space, width))
        space, choice = jax.lax.while_loop(should_continue, step, carry)
        counted.charge(hvps=space.count)
        error = counted.hvp_error(x, choice.direction)
        overlap = overlap_with_space(ridge, choice.direction)
        if self.tolerance is not None:
            is_sure = choice.is_converged & (error <= self.tolerance * choice.ritz.scale)
            overlap = jnp.where(is_sure, safe_overlap(overlap, choice.sine), 0)
        is_there, is_inside = choice.ritz.is_there, choice.is_inside
        seen = jnp.where(is_there, choice.ritz.eigenvalues, jnp.nan)
        # A space that is not the whole one rules out no eigenvalue anywhere: its eigenvector may
        # be orthogonal to all of the space.
        gap = jnp.min(jnp.where(is_inside, jnp.inf, jnp.abs(seen - choice.eigenvalue)))
        certificate = Certificate(
            overlap=overlap,
            residual=jnp.linalg.norm(choice.remainder) + error,
            gap=jnp.where(jnp.sum(is_there) == problem.size, gap, jnp.nan),
            neighbours=neighbours_of(seen, is_inside),
        )
        multiplicity = jnp.where(choice.is_resolved, jnp.sum(is_inside), 0)
        new = Ridge(choice.direction, choice.eigenvalue, ridge.index, multiplicity)
        return Tracked(new, certificate, counted.cost)

    def _choose(self, space: Space, relative_width: Number) -> "_Choice":
        """The old direction, the first row, projected onto the cluster it overlaps most."""
        ritz = space.ritz()
        values, coefficients = ritz.eigenvalues, ritz.coefficients[0]
        _, is_inside = most_overlapping(values, coefficients, relative_width, ritz.scale)
        mix = unit(ritz.coefficients @ jnp.where(is_inside, coefficients, 0))
        direction, image = mix @ space.rows, mix @ space.images
        eigenvalue = direction @ image
        beyond = image - (space.rows @ image) @ space.rows
        size, info = jnp.linalg.norm(beyond), jnp.finfo(image.dtype)
        # How far apart eigenvalues of one cluster are at most, or can be distinguished at all.
        width = ritz.scale * jnp.maximum(relative_width, 100 * float(info.eps)) + info.tiny
        is_resolved = size <= SINE * width
        return _Choice(
            direction=direction,
            eigenvalue=eigenvalue,
            remainder=image - eigenvalue * direction,
            outside=beyond,
            ritz=ritz,
            is_inside=is_inside,
            sine=jnp.where(is_resolved, size / width, SINE),
            # Without a tolerance nothing converges, short of what cannot be told any better.
            is_converged=is_resolved
            if self.tolerance is None
            else size <= self.tolerance * ritz.scale,
            is_resolved=is_resolved,
        )


class _Choice(eqx.Module):
    """The direction e, `remainder` = H e - eigenvalue e and the part of H e `outside` the space.

    The two differ by the spread of the eigenvalues in a cluster that is followed as one. `sine` is
    that of the largest angle to the eigenspace.
    """

    direction: Vector
    eigenvalue: Scalar
    remainder: Vector
    outside: Vector
    ritz: Ritz
    is_inside: Bool[Array, " m"]
    sine: Scalar
    is_converged: Bool[Array, ""]
    is_resolved: Bool[Array, ""]


NUM_PROBES = 8  # HVPs spent on the largest eigenvalue where a learning rate is automatic


class Residual(eqx.Module):
    """The paper's UpdateRidge: `num_steps` gradient steps on |H u / lambda - u|^2.

    Two Hessian-vector products per step and two for the warm start of lambda. Nothing checks that
    the result is an eigenvector: look at the residual.

    **Arguments**

    - `num_steps`: the paper's S.
    - `direction_rate`, `eigenvalue_rate`: the paper's LR_e and LR_lambda. None: half of the largest
      stable rate, from an estimate of the largest eigenvalue by 8 HVPs, and lambda^2 / 2, which
      sets lambda to the Rayleigh quotient.

    >>> import jax, jax.numpy as jnp
    >>> from ridgerider import DenseSpectrum
    >>> problem = Problem(lambda x: x[0] ** 2 * x[1] - x[0] ** 2 + x[1] ** 2 / 2, jnp.zeros(2))
    >>> ridge = DenseSpectrum()(problem, problem.x0, jax.random.key(0)).ridge(0)
    >>> update = Residual(num_steps=200)
    >>> ridge = update(problem, problem.x0, ridge, jax.random.key(0)).ridge
    >>> x = problem.x0 + 0.1 * ridge.direction
    >>> tracked = update(problem, x, ridge, jax.random.key(0))
    >>> float(tracked.residual) < 1e-3, int(tracked.cost.hvps)
    (True, 411)
    """

    num_steps: Whole = eqx.field(static=True, default=20)
    direction_rate: AtLeast0 | None = None
    eigenvalue_rate: AtLeast0 | None = None

    __check_init__ = check_fields

    @eqx.filter_jit
    def __call__(self, problem: Problem, x: Vector, ridge: Ridge, key: PRNGKeyArray) -> Tracked:
        counted, hvp = Counted(problem), problem.hvp_at(x)
        direction, eigenvalue = ridge.direction, ridge.eigenvalue
        if ridge.memory is not None:  # else the ride begins: the ridge is the one given
            direction, eigenvalue = self._descend(counted, hvp, x, ridge, key)
        image = hvp(direction)
        counted.charge(hvps=1)
        rest = jnp.linalg.norm(image - (direction @ image) * direction)
        certificate = Certificate(
            overlap=overlap_with_space(ridge, direction),
            residual=rest + counted.hvp_error(x, direction),
        )
        new = Ridge(direction, eigenvalue, ridge.index, ridge.multiplicity, memory=x)
        return Tracked(new, certificate, counted.cost)

    def _descend(
        self, counted: Counted, hvp: Hvp, x: Vector, ridge: Ridge, key: PRNGKeyArray
    ) -> tuple[Vector, Scalar]:
        e, old_x = ridge.direction, ridge.memory
        warm = ridge.eigenvalue + e @ hvp(e) - e @ counted.hvp(old_x, e)
        counted.charge(hvps=1)
        rate = self.direction_rate
        if rate is None:
            random = jax.random.normal(key, x.shape, x.dtype)
            largest = krylov(hvp, random, NUM_PROBES).ritz().scale
            counted.charge(hvps=NUM_PROBES)
            # The estimate is from below; half of the bound leaves room for 40 % more.
            rate = 0.5 / (largest / jnp.abs(warm) + 1) ** 2

        def step(_: int, carry: tuple[Vector, Scalar]) -> tuple[Vector, Scalar]:
            e, eigenvalue = carry
            length = jnp.linalg.norm(e)
            u = e / length
            image = hvp(u)
            remainder = image / eigenvalue - u
            slope = -2 * (remainder @ image) / eigenvalue**2
            fast = self.eigenvalue_rate
            eigenvalue = eigenvalue - (eigenvalue**2 / 2 if fast is None else fast) * slope
            remainder = image / eigenvalue - u
            pull = 2 * (hvp(remainder) / eigenvalue - remainder)
            return e - rate * (pull - (pull @ u) * u) / length, eigenvalue

        e, eigenvalue = jax.lax.fori_loop(0, self.num_steps, step, (e, warm))
        counted.charge(hvps=2 * self.num_steps)
        return unit(e), eigenvalue
