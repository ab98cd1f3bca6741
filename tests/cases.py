"""Problems the tests share. Top-level functions, so that they can be pickled."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import ridgerider as rr


def quadratic_loss(x, matrix):
    return x @ matrix @ x / 2


def make_matrix(eigenvalues, seed=0, dtype=float):
    """A symmetric matrix with the given eigenvalues, and its eigenvectors as columns."""
    random = np.random.default_rng(seed)
    columns, _ = np.linalg.qr(random.normal(size=(len(eigenvalues),) * 2))
    return (columns * np.asarray(eigenvalues) @ columns.T).astype(dtype), columns.astype(dtype)


def make_quadratic(eigenvalues, seed=0, dtype=float):
    matrix, columns = make_matrix(eigenvalues, seed, dtype)
    return rr.Problem(
        quadratic_loss, jnp.zeros(len(eigenvalues), dtype), jnp.asarray(matrix)
    ), columns


def blocks_loss(params):
    """Five equal blocks (a_i, b_i): permuting them changes nothing."""
    a, b = params["a"], params["b"]
    return jnp.sum(a**4 / 4 - a**2 / 2 + b**2 / 2 + 0.3 * a * b) + 0.05 * jnp.sum(a) ** 2


def make_blocks():
    return rr.Problem(blocks_loss, {"a": jnp.zeros(5), "b": jnp.zeros(5)})


def cliff_loss(x):
    """Downhill to x = 0.5, and NaN behind it."""
    return jnp.where(x[0] < 0.5, 1.0, jnp.nan) * (-(x[0] ** 2)) + x[1] ** 4 / 4 - x[1] ** 2 / 2


def make_cliff():
    return rr.Problem(cliff_loss, jnp.zeros(2))


def same_tree(one, two):
    """Same fingerprints; losses, parameters and solutions equal to the last bit."""
    if sorted(map(str, one.fingerprints())) != sorted(map(str, two.fingerprints())):
        return False
    return all(same_leg(leg, two.leg(leg.fingerprint)) for leg in one)


def same_leg(one, two):
    same = one.loss == two.loss and np.array_equal(one.x, two.x) and one.ended_by == two.ended_by
    if (one.finish is None) != (two.finish is None):
        return False
    if one.finish is None:
        return same
    return same and np.array_equal(one.finish.x, two.finish.x)


def ridge_along(direction, eigenvalue=-1.0, memory=None):
    direction = jnp.asarray(direction)
    eigenvalue = jnp.asarray(eigenvalue, direction.dtype)
    return rr.types.Ridge(direction, eigenvalue, jnp.array(0), jnp.array(1), memory=memory)


@eqx.filter_jit
def follow(update, problem, x, ridge):
    return update(problem, x, ridge, jax.random.key(0))


@eqx.filter_jit
def spectrum_of(problem, spectrum=rr.DenseSpectrum()):
    return spectrum(problem, problem.x0, jax.random.key(0))


@eqx.filter_jit
def ride(problem, rider, x, ridge):
    return rider.ride(problem, x, ridge, jax.random.key(0))


def ride_from_start(problem, rider, index=0, sign=1, member=0):
    spectrum = spectrum_of(problem, rider.spectrum)
    return ride(problem, rider, problem.x0, spectrum.ridge(index, sign, member))


def reasons(rider, ride):
    return [
        name for name, fired in zip(rider.rule_names(), rider.ended(ride), strict=True) if fired
    ]


def perturbed(seed, n=400, size=0.05):
    """Eight ridges above a bulk, an interior one of them, and the Hessian one step further."""
    random = np.random.default_rng(seed)
    eigenvalues = np.r_[np.linspace(-2, -0.6, 8), random.uniform(-0.3, 1, n - 8)]
    matrix, columns = make_matrix(eigenvalues, seed)
    noise = random.normal(size=(n, n))
    matrix = matrix + size * (noise + noise.T) / np.sqrt(8 * n)
    return rr.Problem(quadratic_loss, jnp.zeros(n), jnp.asarray(matrix)), columns


def factorization_loss(params, target):
    return jnp.sum((params["u"] @ params["v"].T - target) ** 2) / 2


def factorization(singular_values=(3.0, 2.0, 1.0), rank=1, seed=0):
    """|U V^T - M|^2 / 2 from the origin, M a random matrix with the given singular values.

    It is stationary exactly where U V^T keeps some of the singular directions of M.
    """
    size, random = len(singular_values), np.random.default_rng(seed)
    left, right = (np.linalg.qr(random.normal(size=(size, size)))[0] for _ in range(2))
    target = jnp.asarray(left * np.asarray(singular_values) @ right.T)
    zeros = jnp.zeros((size, rank), target.dtype)
    return rr.Problem(factorization_loss, {"u": zeros, "v": zeros}, target)


def stationary_losses(singular_values, rank):
    """The losses at all stationary points, lowest first; the lowest one is that of the minima."""
    squares = np.asarray(singular_values) ** 2 / 2
    kept = np.stack(np.meshgrid(*[(0, 1)] * len(squares), indexing="ij"), axis=-1).reshape(
        -1, len(squares)
    )
    return sorted({float(squares @ (1 - row)) for row in kept if row.sum() <= rank})
