"""The subspace and its Ritz pairs, against dense matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ridgerider._core.linalg.space import Space, krylov, outside, unit_outside
from tests.cases import make_matrix

KEY = jax.random.key(0)


def check_ritz_pairs(space, matrix):
    """Against the projected matrix and against residuals formed in full."""
    rows, ritz = np.asarray(space.rows), space.ritz()
    is_there = np.asarray(ritz.is_there)
    filled = rows[np.linalg.norm(rows, axis=1) > 0.5]
    np.testing.assert_allclose(filled @ filled.T, np.eye(is_there.sum()), atol=1e-12)
    exact = np.linalg.eigvalsh(filled @ matrix @ filled.T)
    np.testing.assert_allclose(ritz.eigenvalues[is_there], exact, atol=1e-13)
    assert float(ritz.scale) == pytest.approx(np.abs(exact).max())
    # Of the pairs and of mixtures of them.
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(is_there.sum(),) * 2))
    for coefficients in (ritz.coefficients[:, is_there], ritz.coefficients[:, is_there] @ turn):
        vectors = np.asarray(coefficients).T @ rows
        images = vectors @ matrix
        values = np.sum(vectors * images, axis=1)
        residuals = np.linalg.norm(images - values[:, None] * vectors, axis=1)
        np.testing.assert_allclose(space.residuals(coefficients), residuals, atol=1e-13)


def test_krylov_spans_the_krylov_space():
    matrix, _ = make_matrix(np.linspace(-1, 2, 8))
    start = jnp.arange(1.0, 9.0)
    space = krylov(lambda v: jnp.asarray(matrix) @ v, start, 4)
    np.testing.assert_allclose(space.rows @ space.rows.T, np.eye(4), atol=1e-14)
    rest = outside(space.rows, space.rows[3] @ matrix)
    np.testing.assert_allclose(space.images[0], rest, atol=1e-14)
    powers = np.stack([np.linalg.matrix_power(matrix, k) @ np.asarray(start) for k in range(4)])
    np.testing.assert_allclose(powers @ space.rows.T @ space.rows, powers, atol=1e-11)


@pytest.mark.parametrize("eigenvalues", [np.linspace(-1, 3, 30), [-1.0] * 20 + [1.0] * 6 + [3] * 4])
def test_a_krylov_space_knows_its_ritz_pairs(eigenvalues):
    matrix, _ = make_matrix(eigenvalues)
    start = jax.random.normal(KEY, (30,))
    space = krylov(lambda row: jnp.asarray(matrix) @ row, start, 9)
    # One vector of each eigenspace, and no more.
    assert space.ritz().is_there.sum() == min(9, len(set(eigenvalues)))
    check_ritz_pairs(space, matrix)


def test_a_space_of_given_vectors_knows_its_ritz_pairs():
    matrix, _ = make_matrix(np.linspace(-1, 3, 20))
    vectors = jax.random.normal(KEY, (4, 20))
    space = Space.empty(7, 20, vectors.dtype)
    for vector in (*vectors, vectors[0] - vectors[1]):  # the last one is in the span
        space = space.add(lambda v: jnp.asarray(matrix) @ v, vector)
    ritz, rows = space.ritz(), np.asarray(space.rows)[:4]
    assert int(space.count) == 5 and ritz.is_there.sum() == 4
    np.testing.assert_allclose(space.images, space.rows @ matrix, atol=1e-13)
    exact = np.linalg.eigvalsh(rows @ matrix @ rows.T)
    np.testing.assert_allclose(ritz.eigenvalues[:4], exact, atol=1e-13)


def test_what_is_kept_is_the_space_of_the_lowest_pairs():
    matrix, _ = make_matrix(np.linspace(-1, 3, 20))
    hvp = lambda v: jnp.asarray(matrix) @ v  # noqa: E731
    space = krylov(hvp, jax.random.normal(KEY, (20,)), 7)
    ritz = space.ritz()
    kept = space.keep(ritz, 4)
    np.testing.assert_allclose(kept.ritz().eigenvalues[:4], ritz.eigenvalues[:4], atol=1e-13)
    grown = kept.extend(hvp)
    assert int(grown.count) == 5
    check_ritz_pairs(grown, matrix)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_in_the_span_is_not_new(dtype):
    rows = jnp.asarray(np.linalg.qr(np.random.default_rng(0).normal(size=(50, 5)))[0].T, dtype)
    inside = 1e3 * jnp.arange(1.0, 6.0, dtype=dtype) @ rows
    np.testing.assert_array_equal(unit_outside(rows, inside), 0)
    new = jax.random.normal(KEY, (50,), dtype)
    row = unit_outside(rows, inside + new)
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(rows @ row, 0, atol=20 * eps)
    assert float(jnp.linalg.norm(row)) == pytest.approx(1, abs=20 * eps)
    # Several at once are those one by one; next to a large scale a small one is rounding.
    both = outside(rows, jnp.stack([inside, new]))
    np.testing.assert_allclose(both[1], outside(rows, new), atol=20 * eps)
    np.testing.assert_array_equal(unit_outside(rows, new, 1e3 / eps), 0)
