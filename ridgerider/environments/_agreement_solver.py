r"""The consistent ridge: the steepest direction on which the environments agree.

    minimise  e' Hbar e   subject to   |e| = 1,  e' (H_i - Hbar) e = 0 for all i

with Hbar the mean of the environments' Hessians. Its dual is a maximum over weights w that sum to
one,

    max_w  lambda_min( sum_i w_i H_i ),

the mixture of environments, some perhaps with a negative weight, whose steepest ridge is least
steep; the consistent ridge is that ridge. For any e that agrees, e' Hbar e is at least the dual's
value, so a small `duality_gap` proves that no consistent direction is steeper. With two
environments there is no gap (for three parameters or more); with more there may be.

The dual is concave but has kinks where eigenvalues cross, so it is climbed with lambda_min smoothed
to a soft minimum at falling temperature. Newton's method on the stationarity conditions

    sum_i w_i H_i e = lambda e,   |e| = 1,   e' (H_i - Hbar) e = 0

then makes direction and weights exact, also at a kink, where e is a combination of the eigenvectors
that cross. Least squares leaves alone what repeated eigenvalues leave open.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ridgerider._core.problem.problem import Scalar
from ridgerider._core.ride.update import unit

Matrices = Float[Array, "environments m m"]
Weights = Float[Array, " environments"]

NUM_COOLINGS = 24  # halvings of the temperature, from the largest |eigenvalue| on
NUM_CLIMBS = 3  # Newton steps at each temperature
NUM_NEWTON = 8  # steps on the stationarity conditions, which converge quadratically


class Agreement(eqx.Module):
    """A direction with the weights of the mixture whose ridge it is."""

    direction: Float[Array, " m"]
    weights: Weights
    eigenvalue: Scalar  # of the mixture, and of every environment's quadratic form
    bound: Scalar  # lambda_min of the mixture: no consistent direction is steeper


def agree(matrices: Matrices, key: PRNGKeyArray) -> Agreement:
    """The consistent ridge of some symmetric matrices."""
    mean, basis, spread = _differences(matrices)
    mix, probabilities, columns = _climb(mean, spread)
    signs = jax.random.rademacher(key, probabilities.shape, mean.dtype)
    direction = columns @ (signs * jnp.sqrt(probabilities))
    return _polished(mean, basis, spread, direction, mix)


def continued(matrices: Matrices, direction: Float[Array, " m"], weights: Weights) -> Agreement:
    """The consistent ridge next to one that is nearly right."""
    mean, basis, spread = _differences(matrices)
    return _polished(mean, basis, spread, direction, basis @ (weights - 1 / len(matrices)))


def _differences(matrices: Matrices) -> tuple[Array, Float[Array, "k environments"], Array]:
    """The mean, an orthonormal basis of weights that sum to zero, and the differences they make.

    Weights are 1 / N + basis' mix, so that the mixture is mean + sum_k mix_k spread_k.
    """
    count = len(matrices)
    helmert = np.tril(np.ones((count - 1, count))) - np.diag(np.arange(1, count), 1)[:-1]
    helmert = helmert / np.linalg.norm(helmert, axis=1, keepdims=True)
    basis, mean = jnp.asarray(helmert, matrices.dtype), jnp.mean(matrices, axis=0)
    spread = jnp.einsum("ki,imn->kmn", basis, matrices - mean[None])
    # Differences at the level of rounding are not a disagreement.
    floor = 100 * jnp.finfo(mean.dtype).eps * jnp.max(jnp.abs(matrices))
    sizes = jnp.max(jnp.abs(spread), axis=(1, 2), keepdims=True)
    return mean, basis, jnp.where(sizes > floor, spread, 0)


def _climb(mean: Array, spread: Array) -> tuple[Array, Array, Array]:
    """Maximise the soft minimum of the mixture's eigenvalues, at falling temperature."""
    scale = jnp.max(jnp.abs(mean)) * len(mean) + jnp.finfo(mean.dtype).tiny
    size = jnp.max(jnp.linalg.norm(spread.reshape(len(spread), -1), axis=1))

    def at(mix: Array, temperature: Scalar) -> tuple[Array, Array, Array]:
        eigenvalues, columns = jnp.linalg.eigh(mean + jnp.einsum("k,kmn->mn", mix, spread))
        return eigenvalues, columns, jax.nn.softmax(-eigenvalues / temperature)

    def climb(mix: Array, temperature: Scalar) -> Array:
        eigenvalues, columns, p = at(mix, temperature)
        seen = jnp.einsum("ma,kmn,nb->kab", columns, spread, columns)
        slope = jnp.einsum("kaa,a->k", seen, p)
        # d2 of the soft minimum: divided differences of p, which are p / temperature at equality.
        apart = (eigenvalues[:, None] - eigenvalues[None, :]) / temperature
        is_near = jnp.abs(apart) < 1e-4
        rates = jnp.where(
            is_near,
            (p[:, None] + p[None, :]) / 2,
            (p[None, :] - p[:, None]) / jnp.where(is_near, 1, apart),
        )
        bend = jnp.einsum("kab,lab,ab->kl", seen, seen, rates) - slope[:, None] * slope[None, :]
        # Keeps the system regular where the environments do not differ.
        about = jnp.finfo(bend.dtype)
        floor = about.eps * (jnp.trace(bend) + size**2 * 1e-6) + about.tiny
        step = temperature * jnp.linalg.solve(
            bend + floor * jnp.eye(len(mix), dtype=mix.dtype), slope
        )
        # The soft minimum is quadratic over changes of the mixture of about a temperature.
        change = jnp.linalg.norm(jnp.einsum("k,kmn->mn", step, spread))
        return mix + step * jnp.minimum(1, 4 * temperature / (change + floor))

    def cool(index: int, mix: Array) -> Array:
        temperature = scale * 0.5 ** jnp.asarray(index).astype(scale.dtype)
        return jax.lax.fori_loop(0, NUM_CLIMBS, lambda _, mix: climb(mix, temperature), mix)

    mix = jax.lax.fori_loop(0, NUM_COOLINGS, cool, jnp.zeros(len(spread), mean.dtype))
    _, columns, p = at(mix, scale * 0.5**NUM_COOLINGS)
    return mix, p, columns


def _polished(mean: Array, basis: Array, spread: Array, direction: Array, mix: Array) -> Agreement:
    size = len(direction)

    def mixed(mix: Array) -> Array:
        return mean + jnp.einsum("k,kmn->mn", mix, spread)

    def newton(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        direction, mix = carry
        matrix, slopes = mixed(mix), spread @ direction
        eigenvalue = direction @ matrix @ direction
        top = jnp.concatenate(
            [matrix - eigenvalue * jnp.eye(size, dtype=mean.dtype), -direction[:, None], slopes.T],
            axis=1,
        )
        corner = jnp.zeros((1 + len(slopes), 1 + len(slopes)), mean.dtype)
        bottom = jnp.concatenate(
            [jnp.concatenate([-direction[None], slopes], axis=0), corner], axis=1
        )
        wrong = jnp.concatenate(
            [
                matrix @ direction - eigenvalue * direction,
                jnp.zeros(1, mean.dtype),
                slopes @ direction / 2,
            ]
        )
        system = jnp.concatenate([top, bottom], axis=0)
        step = -_least_squares(system, wrong)
        return unit(direction + step[:size]), mix + step[size + 1 :]

    direction, mix = jax.lax.fori_loop(0, NUM_NEWTON, newton, (unit(direction), mix))
    matrix = mixed(mix)
    return Agreement(
        direction=direction,
        weights=1 / jnp.asarray(basis.shape[1], mean.dtype) + mix @ basis,
        eigenvalue=direction @ mean @ direction,
        bound=jnp.linalg.eigvalsh(matrix)[0],
    )


def _least_squares(matrix: Float[Array, "m m"], right: Float[Array, " m"]) -> Float[Array, " m"]:
    """The shortest solution of a symmetric system, singular or not."""
    eigenvalues, columns = jnp.linalg.eigh(matrix)
    # Far above rounding, so that directions left open by repeated eigenvalues count as such.
    floor = jnp.finfo(matrix.dtype).eps ** (2 / 3) * jnp.max(jnp.abs(eigenvalues))
    is_open = jnp.abs(eigenvalues) <= floor
    return columns @ jnp.where(is_open, 0, (columns.T @ right) / jnp.where(is_open, 1, eigenvalues))
