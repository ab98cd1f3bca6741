"""UpdateRidge from Hessian-vector products: Rayleigh-Ritz, selected by overlap.

The subspace starts at the old direction and grows by residuals; at each size the Ritz vector (or
the cluster of them) that overlaps the old direction most is followed, until its residual r is
small. What a residual proves, whatever the rest of the spectrum is:

    e lies within asin(r / d) of the span of the eigenvectors with |eigenvalue - e^T H e| <= d,

for every d, as H - e^T H e stretches all else by more than d. So r alone leaves eigenvectors within
some 10 r of each other mixed. From the old direction they cannot be separated until r is below a
tenth of their distance, and no space of fewer vectors than there are parameters proves that there
is no further eigenvalue nearby. Hence `resolve`, multiplicity 0 where it was not done, and a gap of
NaN.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

from ridgerider._check import Fraction, Several, check_fields
from ridgerider._core.linalg.space import Ritz, Space
from ridgerider._core.problem.problem import Counted, Number, Problem, Scalar, Vector
from ridgerider._core.ride.update import (
    Certificate,
    Tracked,
    neighbours_of,
    overlap_with_space,
    safe_overlap,
    unit,
)
from ridgerider._core.spectra.spectrum import Ridge, cluster_labels, cluster_width

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
        labels = cluster_labels(ritz.eigenvalues, relative_width, scale=ritz.scale)
        coefficients = ritz.coefficients[0]
        weights = jax.ops.segment_sum(coefficients**2, labels, len(labels))
        is_inside = labels == jnp.argmax(weights)
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
