"""Modes against closed forms: with a symmetry, in a space, and what the Hessian predicts."""

import jax.numpy as jnp
import numpy as np
import pytest

from ridgerider._core.linalg.space import Space
from ridgerider._core.points.modes import modes_of, next_radius, prediction_error, ritz_modes

RANDOM = np.random.default_rng(0)
ROOT = RANDOM.normal(size=(6, 6))
MATRIX = jnp.asarray(ROOT + ROOT.T)
NONE = jnp.zeros((6, 0))


def test_modes_are_eigenpairs():
    modes = modes_of(MATRIX, NONE)
    np.testing.assert_allclose(modes.eigenvalues, np.linalg.eigvalsh(MATRIX), atol=1e-12)
    np.testing.assert_allclose(
        modes.rows @ MATRIX, modes.eigenvalues[:, None] * modes.rows, atol=1e-12
    )
    parts = jnp.arange(6.0)
    np.testing.assert_allclose(modes.change(parts), MATRIX @ (parts @ modes.rows), atol=1e-12)
    assert int(modes.is_down.sum()) == int((np.linalg.eigvalsh(MATRIX) < 0).sum())


def test_what_a_symmetry_generates_is_projected_out_and_last():
    null, _ = np.linalg.qr(RANDOM.normal(size=(6, 2)))
    modes = modes_of(MATRIX, jnp.asarray(null))
    assert modes.is_null.tolist() == [False] * 4 + [True] * 2
    np.testing.assert_allclose(modes.rows[:4] @ null, np.zeros((4, 2)), atol=1e-12)
    across = np.eye(6) - null @ null.T
    values = np.linalg.eigvalsh(across @ MATRIX @ across)
    nonzero = np.sort(values[np.abs(values) > 1e-9])
    np.testing.assert_allclose(modes.eigenvalues[:4], nonzero, atol=1e-12)


def test_a_whole_space_has_the_eigenpairs_and_a_part_residuals():
    def product(vector):
        return MATRIX @ vector

    whole = Space.empty(6, 6, MATRIX.dtype).add_all(product, jnp.eye(6))
    np.testing.assert_allclose(
        ritz_modes(whole).eigenvalues, np.linalg.eigvalsh(MATRIX), atol=1e-12
    )
    np.testing.assert_allclose(ritz_modes(whole).residuals, np.zeros(6), atol=1e-12)
    part = Space.empty(4, 6, MATRIX.dtype).add_all(product, jnp.eye(6)[:2])
    modes = ritz_modes(part)
    assert modes.is_null.sum() == 2 and not np.any(modes.rows[np.asarray(modes.is_null)])
    for value, row, residual in zip(
        *(np.asarray(one)[:2] for one in (modes.eigenvalues, modes.rows, modes.residuals)),
        strict=True,
    ):
        assert np.linalg.norm(MATRIX @ row - value * row) == pytest.approx(residual)


def test_predictions():
    grad, change = jnp.array([3.0, 0.0]), jnp.array([-1.0, 0.0])
    assert float(prediction_error(grad, grad + change, change)) == 0
    assert float(prediction_error(grad, grad, change)) == pytest.approx(1 / 3)
    assert float(prediction_error(0 * grad, 0 * grad, 0 * change)) == 0


@pytest.mark.parametrize(
    ("error", "is_taken", "is_good", "wanted"),
    [
        (0.1, True, True, 1.0),  # up to the most
        (0.8, True, False, 0.6),
        (1.1, True, False, 0.3),
        (0.1, False, True, 0.3),
        (np.nan, True, False, 0.6),
    ],
)
def test_the_radius(error, is_taken, is_good, wanted):
    flags = jnp.array(is_taken), jnp.array(is_good)
    radius = next_radius(jnp.array(0.6), jnp.array(error), *flags, grow=2, shrink=2, most=1.0)
    assert float(radius) == pytest.approx(wanted)
