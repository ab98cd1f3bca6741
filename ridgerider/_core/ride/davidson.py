"""UpdateRidge from Hessian-vector products: Rayleigh-Ritz, selected by overlap.

The subspace starts at the old direction and grows by residuals; at each size the Ritz vector (or
the cluster of them) that overlaps the old direction most is looked at, until its residual r is
small. What a residual proves, whatever the rest of the spectrum is:

    e lies within asin(r / d) of the span of the eigenvectors with |eigenvalue - e^T H e| <= d,

for every d, as H - e^T H e stretches all else by more than d. So r alone leaves eigenvectors within
some 10 r of each other mixed. From the old direction they cannot be told apart until r is below a
tenth of their distance, and no space of fewer vectors than there are parameters proves that there
is no further eigenvalue nearby. Hence `resolve`, multiplicity 0 where it was not done, and a gap of
NaN.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ridgerider._check import check_count, check_fraction
from ridgerider._core.linalg.krylov import Product, Ritz, Space, lowest_pairs
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Number, Problem, Scalar, Vector
from ridgerider._core.ride.certificate import Certificate
from ridgerider._core.ride.update import (
    Tracked,
    neighbours_of,
    overlap_with_space,
    safe_overlap,
    unit,
)
from ridgerider._core.spectra.spectrum import Ridge, cluster_labels, coarsened

SINE = 0.1  # of the largest angle to an eigenspace that passes for a direction in it


class Davidson(eqx.Module):
    """UpdateRidge, matrix-free: 10 to 30 Hessian-vector products where the paper's needs hundreds.

    A ridge that could not be computed to `tolerance` within `max_hvps` products has no certificate:
    its overlap is reported as 0, so that `Backtracking` tries a shorter step and `RidgeLost` ends
    the ride. A certificate with an overlap of 0.7072 or more and a multiplicity of

    - 1 says: the direction lies within asin(0.1) of the span of the eigenvectors whose eigenvalues
      are within a cluster's width of its own, mostly one; and that span has half of the old
      direction's squared length at least, so no other overlaps more.
    - m > 1 says: that many Ritz values are in the cluster, which is followed as one space. The
      residual is then up to the cluster's width.
    - 0 says: eigenvalues within 10 residuals were not told apart. The direction may be a mixture of
      their eigenvectors; of their span it says the same as 1 does.

    It does not say that the cluster has no more members: those that are orthogonal to all that was
    looked at cannot be seen, nor do they matter to the direction.

    `neighbours` are Ritz values, so what was seen of the spectrum. The gap is NaN, unknown, unless
    the search space became the whole space.

    **Arguments**

    - `tolerance`: of |H e - eigenvalue e| / max |eigenvalue|, with the largest one seen, for a
      certificate; the spread inside a cluster does not count. None: spend `max_hvps` and take what
      comes, without a certificate.
    - `max_hvps`: per update. As many basis vectors are held, with an image for each.
    - `num_neighbours`: follow as many of the lowest other ridges along, as a warm start. They
      cost a product each per update, save more, and are found by a block solve as the ride begins.
    - `cluster_tolerance`: Ritz values within this times max |eigenvalue| count as one eigenspace,
      onto which the old direction is projected. Default: eps^(2/3).
    - `resolve`: go on beyond `tolerance`, to a residual of a tenth of a cluster's width, so that
      nearly equal eigenvalues are told apart. In double precision that may take two or three times
      the products. False: stop at `tolerance`, mostly with a multiplicity of 0.

    >>> import jax, jax.numpy as jnp
    >>> from ridgerider import DenseSpectrum
    >>> problem = Problem(lambda x: x[0] ** 3 - 2 * x[0] ** 2 - x[1] ** 2, jnp.zeros(2))
    >>> ridge = DenseSpectrum()(problem, problem.x0, jax.random.key(0)).ridge(0)
    >>> tracked = Davidson()(problem, problem.x0 + 0.1 * ridge.direction, ridge, jax.random.key(0))
    >>> round(float(tracked.overlap), 3), int(tracked.ridge.multiplicity), int(tracked.cost.hvps)
    (1.0, 1, 1)
    """

    tolerance: Number | None = 1e-4
    max_hvps: int = eqx.field(static=True, default=60)
    num_neighbours: int = eqx.field(static=True, default=0)
    cluster_tolerance: Number | None = None
    resolve: bool = eqx.field(static=True, default=True)

    def __check_init__(self) -> None:
        check_count("num_neighbours", self.num_neighbours, 0)
        check_count("max_hvps", self.max_hvps, self.num_neighbours + 2)
        check_fraction("tolerance", self.tolerance)
        check_fraction("cluster_tolerance", self.cluster_tolerance)

    @eqx.filter_jit
    def __call__(self, problem: Problem, x: Vector, ridge: Ridge, key: PRNGKeyArray) -> Tracked:
        self = coarsened(self, problem, "cluster_tolerance")
        product, cost = problem.hvp_at(x), Cost()
        neighbours, num_neighbours = ridge.memory, min(self.num_neighbours, problem.size - 2)
        if neighbours is None and num_neighbours > 0:
            neighbours, cost = self._find_neighbours(product, ridge.direction, num_neighbours, key)
        max_rows = min(self.max_hvps, problem.size)
        empty = Space.empty(max_rows, problem.size, x.dtype)
        space = empty.add(product, ridge.direction)
        if neighbours is not None:
            space = space.add_all(product, neighbours[: max_rows - 1])
        space, choice = self._grow(product, space)
        new = Ridge(
            direction=choice.direction,
            eigenvalue=choice.eigenvalue,
            index=ridge.index,
            multiplicity=choice.multiplicity(),
            memory=None if neighbours is None else self._continue(space, choice, len(neighbours)),
        )
        error, spent = problem.hvp_error(x, choice.direction)
        overlap = overlap_with_space(ridge, choice.direction)
        if self.tolerance is not None:
            is_sure = choice.is_converged & (error <= self.tolerance * choice.scale())
            overlap = jnp.where(is_sure, safe_overlap(overlap, choice.sine), 0)
        certificate = Certificate(
            overlap=overlap,
            residual=jnp.linalg.norm(choice.remainder) + error,
            gap=choice.gap(problem.size),
            neighbours=neighbours_of(choice.seen(), choice.is_inside),
        )
        return Tracked(new, certificate, cost + spent + Cost(hvps=space.count))

    def _grow(self, product: Product, space: Space) -> tuple[Space, "_Choice"]:
        """Add residuals until the choice has converged or the space is full."""

        def go_on(carry: tuple[Space, _Choice]) -> Bool[Array, ""]:
            space, choice = carry
            is_done = choice.is_converged & (choice.is_resolved | (not self.resolve))
            return ~is_done & (space.count < len(space.rows))

        def step(carry: tuple[Space, _Choice]) -> tuple[Space, _Choice]:
            space, choice = carry
            space = space.add(product, choice.outside)
            return space, self._choose(space)

        return jax.lax.while_loop(go_on, step, (space, self._choose(space)))

    def _choose(self, space: Space) -> "_Choice":
        """The old direction, the first row, projected onto the cluster it overlaps most."""
        ritz = space.ritz()
        scale = jnp.max(jnp.abs(jnp.where(ritz.is_there, ritz.eigenvalues, 0)))
        labels = cluster_labels(ritz.eigenvalues, self.cluster_tolerance, scale=scale)
        coefficients = ritz.coefficients[0]
        weights = jax.ops.segment_sum(coefficients**2, labels, len(labels))
        is_inside = labels == jnp.argmax(weights)
        mix = unit(ritz.coefficients @ jnp.where(is_inside, coefficients, 0))
        direction, image = mix @ space.rows, mix @ space.images
        eigenvalue = direction @ image
        outside = image - (space.rows @ image) @ space.rows
        size = jnp.linalg.norm(outside)
        width = _width(scale, self.cluster_tolerance)
        is_resolved = size <= SINE * width
        return _Choice(
            direction=direction,
            eigenvalue=eigenvalue,
            remainder=image - eigenvalue * direction,
            outside=outside,
            ritz=ritz,
            is_inside=is_inside,
            sine=jnp.where(is_resolved, size / width, SINE),
            # Without a tolerance nothing converges, short of what cannot be told any better.
            is_converged=is_resolved if self.tolerance is None else size <= self.tolerance * scale,
            is_resolved=is_resolved,
        )

    def _find_neighbours(
        self, product: Product, direction: Vector, k: int, key: PRNGKeyArray
    ) -> tuple[Float[Array, "k n"], Cost]:
        # A warm start need not be accurate: 1 % is.
        start = jax.random.normal(key, (k, len(direction)), direction.dtype)
        pairs = lowest_pairs(product, start, k, 0.01, 20 * k, min(2 * k + 10, len(direction)))
        return pairs.rows, Cost(hvps=pairs.num_hvps)

    def _continue(self, space: Space, choice: "_Choice", num: int) -> Float[Array, "k n"]:
        """The Ritz vectors that lie most in the span of the old ridge and its old neighbours."""
        coefficients = choice.ritz.coefficients
        weights = jnp.sum(coefficients[: num + 1] ** 2, axis=0)
        is_other = choice.ritz.is_there & ~choice.is_inside
        order = jnp.argsort(jnp.where(is_other, -weights, 0))[:num]
        return coefficients[:, order].T @ space.rows


def _width(scale: Scalar, tolerance: Number | None) -> Scalar:
    """How far apart the eigenvalues of one cluster are at most, or can be told apart at all."""
    info = jnp.finfo(scale.dtype)
    relative = float(info.eps) ** (2 / 3) if tolerance is None else tolerance
    return scale * jnp.maximum(relative, 100 * float(info.eps)) + info.tiny


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

    def multiplicity(self) -> Int[Array, ""]:
        return jnp.where(self.is_resolved, jnp.sum(self.is_inside), 0)

    def scale(self) -> Scalar:
        return jnp.max(jnp.abs(jnp.where(self.ritz.is_there, self.ritz.eigenvalues, 0)))

    def seen(self) -> Float[Array, " m"]:
        """The Ritz values, and NaN for those of empty rows."""
        return jnp.where(self.ritz.is_there, self.ritz.eigenvalues, jnp.nan)

    def gap(self, size: int) -> Scalar:
        """To the nearest eigenvalue, if the space is the whole one; NaN otherwise.

        A space that is smaller rules out no eigenvalue anywhere: its eigenvector may be orthogonal
        to all of the space.
        """
        distances = jnp.where(self.is_inside, jnp.inf, jnp.abs(self.seen() - self.eigenvalue))
        return jnp.where(jnp.sum(self.ritz.is_there) == size, jnp.min(distances), jnp.nan)
