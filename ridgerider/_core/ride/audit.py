"""Audits: a second opinion on a followed ridge, and how noisy it is.

The engine that follows a ridge by Hessian-vector products is compared with one that computes the
spectrum afresh; on a batch, the update is repeated on its two halves.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem, Scalar, Vector
from ridgerider._core.ride.update import Tracked, unit
from ridgerider._core.spectra.spectrum import Ridge, Spectrum


class Audit(eqx.Module):
    """What an audit found; NaN where nothing was audited or nothing can be said.

    - `drift`: the sine of the angle between the direction that was followed to and the one that a
      fresh spectrum leads to. NaN if that spectrum does not hold the ridge.
    - `eigenvalue_error`, `overlap_error`: standard errors from the two halves of the batch.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> ridge = rr.DenseSpectrum()(wells(3), wells(3).x0, jax.random.key(0)).ridge(1)
    >>> rider = rr.Rider(update=rr.Davidson(), max_steps=4, audit_every=2)
    >>> drift = rider.ride(wells(3), wells(3).x0, ridge, jax.random.key(0)).trace.audit.drift
    >>> jnp.isnan(drift).tolist(), bool(jnp.nanmax(drift) < 1e-6)
    ([True, True, False, True, False], True)
    """

    drift: Scalar
    eigenvalue_error: Scalar
    overlap_error: Scalar

    @staticmethod
    def nothing(x: Vector) -> "Audit":
        nan = jnp.full((), jnp.nan, x.dtype)
        return Audit(nan, nan, nan)


def audit(
    problem: Problem,
    x: Vector,
    old: Ridge,
    new: Ridge,
    update: Callable[[Problem, Vector, Ridge, PRNGKeyArray], Tracked],
    spectrum: Callable[[Problem, Vector, PRNGKeyArray], Spectrum],
    key: PRNGKeyArray,
) -> tuple[Audit, Cost]:
    """Compare the step from `old` to `new` with a fresh spectrum, and between half-batches."""
    fresh = spectrum(problem, x, key)
    # The sine of the angle between `new` and the projection of `old` onto its eigenspace.
    coefficients = fresh.eigenvectors @ old.direction
    weights = jax.ops.segment_sum(coefficients**2, fresh.labels, len(fresh.labels))
    is_inside = fresh.labels == jnp.argmax(weights)
    right = unit(jnp.where(is_inside, coefficients, 0) @ fresh.eigenvectors)
    across = new.direction - (new.direction @ right) * right
    drift = jnp.where(jnp.max(weights) > 0.5, jnp.linalg.norm(across), jnp.nan)
    if problem.rows is None or problem.rows.shape[1] < 2:
        nan = jnp.full_like(drift, jnp.nan)
        return Audit(drift, nan, nan), fresh.cost
    one, two = (update(half, x, old, key) for half in problem.halves())
    # The mean of two halves has half the spread between them as its standard error.
    eigenvalue_error = jnp.abs(one.ridge.eigenvalue - two.ridge.eigenvalue) / 2
    found = Audit(drift, eigenvalue_error, jnp.abs(one.overlap - two.overlap) / 2)
    return found, fresh.cost + one.cost + two.cost
