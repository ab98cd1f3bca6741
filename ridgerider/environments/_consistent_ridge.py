"""Consistent ridges of environments, found and followed, from their exact Hessians."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ridgerider._check import Fraction, Seed, check_fields, checked
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem, Scalar, Vector
from ridgerider._core.ride.update import Certificate, Tracked
from ridgerider._core.spectra.spectrum import Ridge
from ridgerider.environments._agreement_solver import Agreement, Matrices, Weights, agree, continued
from ridgerider.environments._environments import Environments, Mixture


class ConsistentRidge(eqx.Module):
    """A direction on which the environments agree, with its certificate.

    - `ridge`: to be ridden by `Rider(update=Agree())`; its eigenvalue is the curvature along it.
    - `weights`: of the mixture of environments whose steepest ridge it is.
    - `eigenvalues`: the curvature e' H_i e in each environment; equal if one was found.
    - `correlations`: C(H_i e, e), -1 where e is a ridge of environment i.
    - `residual`: |H e - eigenvalue e| for the mixture's Hessian.
    - `duality_gap`: how much steeper another consistent direction can be at most.

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


@checked
def consistent_ridge(
    environments: Environments, params: PyTree | None = None, *, seed: Seed = 0
) -> ConsistentRidge:
    """The steepest direction of the ridden part on which all environments agree.

    `params` says where; default: the start. The Hessians of the ridden part are formed, so that it
    may have a few thousand parameters.

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
    return _consistent_ridge(environments, params, jax.random.key(seed))


@eqx.filter_jit
def _consistent_ridge(
    environments: Environments, params: PyTree, key: PRNGKeyArray
) -> ConsistentRidge:
    hessians = environments.hessians(params)
    return _with_certificate(hessians, agree(hessians, key))


def _with_certificate(hessians: Matrices, agreement: Agreement) -> ConsistentRidge:
    direction, weights = agreement.direction, agreement.weights
    images = hessians @ direction
    eigenvalues, lengths = images @ direction, jnp.linalg.norm(images, axis=1)
    image = weights @ images
    return ConsistentRidge(
        ridge=Ridge(
            direction=direction,
            eigenvalue=jnp.mean(eigenvalues),
            index=jnp.array(0),
            multiplicity=jnp.array(1),
            memory=weights,
        ),
        weights=weights,
        eigenvalues=eigenvalues,
        correlations=eigenvalues / jnp.where(lengths > 0, lengths, 1),
        residual=jnp.linalg.norm(image - (image @ direction) * direction),
        duality_gap=agreement.eigenvalue - agreement.bound,
        cost=Cost(hvps=len(hessians) * len(direction), hessians=len(hessians)),
    )


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

    tolerance: Fraction = 1e-4

    __check_init__ = check_fields

    def __call__(self, problem: Problem, x: Vector, ridge: Ridge, key: PRNGKeyArray) -> Tracked:
        del key
        if not isinstance(problem.loss, Mixture):
            raise ValueError("`problem` must be `Environments.pooled`, whose environments agree.")
        hessians = jnp.stack([one.hessian(x) for one in problem.loss.problems])
        count = len(hessians)
        weights = jnp.full(count, 1 / count, x.dtype) if ridge.memory is None else ridge.memory
        found = _with_certificate(hessians, continued(hessians, ridge.direction, weights))
        sign = jnp.where(found.ridge.direction @ ridge.direction < 0, -1, 1).astype(x.dtype)
        direction = sign * found.ridge.direction
        # In units of the largest |eigenvalue| in any environment.
        allowed = self.tolerance * jnp.max(jnp.abs(jnp.linalg.eigvalsh(hessians)))
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
