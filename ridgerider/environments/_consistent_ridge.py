r"""The consistent ridge: the steepest direction on which the environments agree.

    minimise  e' Hbar e   subject to   |e| = 1,  e' (H_i - Hbar) e = 0 for all i

with Hbar the mean of the environments' Hessians. Its dual is a maximum over weights w that sum to
one,

    max_w  lambda_min( sum_i w_i H_i ),

the mixture of environments, some perhaps with a negative weight, whose steepest ridge is least
steep; the consistent ridge is that ridge. For any e that agrees, e' Hbar e is at least the dual's
value, so a small `duality_gap` proves that no consistent direction is steeper. With two
environments there is no gap (for three parameters or more); with more there may be.

The dual is concave but has kinks where eigenvalues cross, so it is maximised (BFGS) with lambda_min
smoothed to a soft minimum at falling temperature. Newton's method on the stationarity conditions

    sum_i w_i H_i e = lambda e,   |e| = 1,   e' (H_i - Hbar) e = 0

then makes direction and weights exact, also at a kink, where e is a combination of the eigenvectors
that cross. Least squares leaves alone what repeated eigenvalues leave open.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree
from scipy.linalg import helmert
from scipy.optimize import minimize
from scipy.special import logsumexp

from ridgerider._check import Fraction, Seed, check_fields, checked
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem, Scalar, Vector, check_params
from ridgerider._core.ride.update import Certificate, Tracked, unit
from ridgerider._core.spectra.spectrum import Ridge
from ridgerider.environments._environments import Environments, Mixture

Matrices = Float[Array, "environments m m"]
Weights = Float[Array, " environments"]

COOLINGS = 0.25 ** np.arange(13)  # temperatures, in units of the largest |eigenvalue|
NUM_NEWTON = 8  # steps on the stationarity conditions, which converge quadratically


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
    start = environments.start
    params = start if params is None else check_params("params", start, params)
    hessians = eqx.filter_jit(environments.hessians)(params)
    # What is left of zero after rounding may be negative, too.
    least = float(jnp.linalg.eigvalsh(jnp.mean(hessians, axis=0))[0])
    if not least < -100 * jnp.finfo(hessians.dtype).eps * jnp.max(jnp.abs(hessians)):
        raise ValueError(
            "`ridden` must have a direction of negative curvature, but the least eigenvalue is "
            f"{least:.3g}: a linear last layer under a convex loss "
            "has no such curvature, so ride at least two layers, near a saddle."
        )
    return eqx.filter_jit(polished)(hessians, *steepest(hessians, jax.random.key(seed)))


def steepest(hessians: Matrices, key: PRNGKeyArray) -> tuple[Vector, Weights]:
    """About the consistent ridge of some symmetric matrices, and the weights of its mixture."""
    basis, mean, spread = _differences(hessians)
    scale = float(np.abs(mean).max()) * len(mean) + np.finfo(float).tiny
    start, change = np.asarray(mean, float) / scale, np.asarray(spread, float) / scale

    def soft(mix: np.ndarray, temperature: float) -> tuple[float, np.ndarray]:
        """Minus the soft minimum of the mixture's eigenvalues, and its derivative."""
        eigenvalues, columns = np.linalg.eigh(start + np.tensordot(mix, change, 1))
        value = logsumexp(-eigenvalues / temperature)
        shares = np.exp(-eigenvalues / temperature - value)
        slopes = np.einsum("ma,kmn,na,a->k", columns, change, columns, shares, optimize=True)
        return float(temperature * value), -slopes

    mix = np.zeros(len(change))
    for temperature in COOLINGS:
        mix = minimize(soft, mix, (temperature,), "BFGS", jac=True, options={"gtol": 1e-9}).x
    eigenvalues, columns = np.linalg.eigh(start + np.tensordot(mix, change, 1))
    shares = np.exp((eigenvalues[0] - eigenvalues) / COOLINGS[-1])
    signs = jax.random.rademacher(key, shares.shape, mean.dtype)
    direction = jnp.asarray(columns * np.sqrt(shares), mean.dtype) @ signs
    return unit(direction), jnp.asarray(1 / len(hessians) + mix @ np.asarray(basis), mean.dtype)


def _differences(matrices: Matrices) -> tuple[Float[Array, "k environments"], Array, Array]:
    """An orthonormal basis of weights that sum to zero, the mean, and the differences they make.

    Weights are 1 / N + basis' mix, so that the mixture is mean + sum_k mix_k spread_k.
    """
    basis, mean = jnp.asarray(helmert(len(matrices)), matrices.dtype), jnp.mean(matrices, axis=0)
    spread = jnp.einsum("ki,imn->kmn", basis, matrices - mean[None])
    # Differences at the level of rounding are not a disagreement.
    floor = 100 * jnp.finfo(mean.dtype).eps * jnp.max(jnp.abs(matrices))
    sizes = jnp.max(jnp.abs(spread), axis=(1, 2), keepdims=True)
    return basis, mean, jnp.where(sizes > floor, spread, 0)


def polished(hessians: Matrices, direction: Vector, weights: Weights) -> ConsistentRidge:
    """The consistent ridge next to one that is nearly right."""
    basis, mean, spread = _differences(hessians)
    size, count = len(direction), len(hessians)
    # Far above rounding, so that directions left open by repeated eigenvalues count as such.
    floor = float(jnp.finfo(mean.dtype).eps) ** (2 / 3)

    def mixed(mix: Array) -> Array:
        return mean + jnp.einsum("k,kmn->mn", mix, spread)

    def newton(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        direction, mix = carry
        matrix, slopes = mixed(mix), spread @ direction
        eigenvalue = direction @ matrix @ direction
        sides = jnp.concatenate([-direction[None], slopes])
        corner = jnp.zeros((count, count), mean.dtype)
        shifted = matrix - eigenvalue * jnp.eye(size, dtype=mean.dtype)
        system = jnp.block([[shifted, sides.T], [sides, corner]])
        nothing = jnp.zeros(1, mean.dtype)
        wrong = jnp.concatenate([shifted @ direction, nothing, slopes @ direction / 2])
        step = -jnp.linalg.pinv(system, rtol=floor, hermitian=True) @ wrong
        return unit(direction + step[:size]), mix + step[size + 1 :]

    carry = (unit(direction), basis @ (weights - 1 / count))
    direction, mix = jax.lax.fori_loop(0, NUM_NEWTON, newton, carry)
    weights = 1 / jnp.asarray(count, mean.dtype) + mix @ basis
    images = hessians @ direction
    eigenvalues, lengths = images @ direction, jnp.linalg.norm(images, axis=1)
    image, eigenvalue = weights @ images, jnp.mean(eigenvalues)
    single = {"index": jnp.array(0), "multiplicity": jnp.array(1)}
    return ConsistentRidge(
        ridge=Ridge(direction=direction, eigenvalue=eigenvalue, **single, memory=weights),
        weights=weights,
        eigenvalues=eigenvalues,
        correlations=eigenvalues / jnp.where(lengths > 0, lengths, 1),
        residual=jnp.linalg.norm(image - (image @ direction) * direction),
        duality_gap=eigenvalue - jnp.linalg.eigvalsh(mixed(mix))[0],
        cost=Cost(hvps=count * size, hessians=count),
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
        found = polished(hessians, ridge.direction, weights)
        overlap = found.ridge.direction @ ridge.direction
        sign = jnp.where(overlap < 0, -1, 1).astype(x.dtype)
        # In units of the largest |eigenvalue| in any environment.
        allowed = self.tolerance * jnp.max(jnp.abs(jnp.linalg.eigvalsh(hessians)))
        is_certified = (found.residual <= allowed) & (found.disagreement <= allowed)
        new = (sign * found.ridge.direction, ridge.index, ridge.multiplicity)
        where = lambda one: (one.direction, one.index, one.multiplicity)  # noqa: E731
        certificate = Certificate(jnp.where(is_certified, sign * overlap, 0), found.residual)
        return Tracked(eqx.tree_at(where, found.ridge, new), certificate, found.cost)
