"""The lowest eigenpairs without a matrix, against `eigh`. Completeness is in `test_probe`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ridgerider._core.linalg.lowest import lowest_pairs
from tests.cases import make_matrix

EIGENVALUES = [-5.0, -3.0, -3.0, -2.0, *np.linspace(-1, 10, 96)]


def pairs_of(matrix, k, max_hvps=500, max_rows=20, seed=0):
    key = jax.random.key(seed)
    start = jax.random.normal(key, (len(matrix),), matrix.dtype)
    tolerance = float(np.finfo(matrix.dtype).eps) ** 0.5
    matrix = jnp.asarray(matrix)

    @jax.jit
    def solve(start):
        settings = (k, tolerance, max_hvps, max_rows, key)
        return lowest_pairs(lambda v: matrix @ v, start, *settings)

    return solve(start)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("max_rows", [8, 40])  # with restarts, and without many
@pytest.mark.parametrize("seed", range(3))
def test_pairs_are_those_of_eigh(dtype, max_rows, seed):
    matrix, columns = make_matrix(EIGENVALUES, seed, dtype)
    pairs = pairs_of(matrix, 4, max_rows=max_rows, seed=seed)
    eps = float(np.finfo(dtype).eps)
    np.testing.assert_allclose(pairs.eigenvalues, EIGENVALUES[:4], atol=2000 * eps)
    np.testing.assert_allclose(pairs.rows @ pairs.rows.T, np.eye(4), atol=100 * eps)
    inside = pairs.rows @ columns[:, :4]
    np.testing.assert_allclose(jnp.linalg.norm(inside, axis=1), 1, atol=100 * eps)
    remainders = pairs.rows @ matrix - pairs.eigenvalues[:, None] * pairs.rows
    np.testing.assert_allclose(pairs.remainders, remainders, atol=1000 * eps)
    assert pairs.is_converged(eps**0.5).all() and 5 < pairs.scale <= 10 * (1 + 100 * eps)


def test_no_more_hvps_than_allowed_and_then_no_floor():
    matrix, _ = make_matrix(np.linspace(-1, 1, 200))
    pairs = pairs_of(matrix, 4, max_hvps=12)
    assert int(pairs.num_hvps) == 12 and not pairs.is_converged(1e-8).all()
    assert pairs.floor == -np.inf


def test_the_floor_is_below_all_that_was_not_found():
    matrix, _ = make_matrix(EIGENVALUES)
    pairs = pairs_of(matrix, 4)
    assert -2 <= pairs.floor <= -1  # the fifth eigenvalue is -1


def test_a_hessian_of_few_eigenvalues_exhausts_no_search():
    # The Krylov space of a vector has as many dimensions as there are eigenvalues.
    matrix, _ = make_matrix([-2.0, -1.0, -1.0, *[0.0] * 40])
    pairs = pairs_of(matrix, 5)
    np.testing.assert_allclose(pairs.eigenvalues, [-2, -1, -1, 0, 0], atol=1e-12)
    assert pairs.is_converged(1e-7).all()


def test_a_nan_ends_the_search():
    matrix = np.full((10, 10), np.nan)
    assert int(pairs_of(matrix, 2).num_hvps) <= 4
