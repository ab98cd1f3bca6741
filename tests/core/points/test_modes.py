"""Modes against closed forms: with a symmetry, in a space, and what the Hessian predicts."""

import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._core.points.climb import modes_of, prediction_error, ritz_modes
from ridgerider._core.problem.calls import Calls

RANDOM = np.random.default_rng(0)
ROOT = RANDOM.normal(size=(6, 6))
MATRIX = ROOT + ROOT.T
NONE = np.zeros((6, 0))


def test_modes_are_eigenpairs():
    modes = modes_of(MATRIX, NONE)
    np.testing.assert_allclose(modes.eigenvalues, np.linalg.eigvalsh(MATRIX), atol=1e-12)
    np.testing.assert_allclose(
        modes.rows @ MATRIX, modes.eigenvalues[:, None] * modes.rows, atol=1e-12
    )


def test_what_a_symmetry_generates_is_projected_out():
    null, _ = np.linalg.qr(RANDOM.normal(size=(6, 2)))
    modes = modes_of(MATRIX, null)
    np.testing.assert_allclose(modes.rows @ null, np.zeros((4, 2)), atol=1e-12)
    across = np.eye(6) - null @ null.T
    values = np.linalg.eigvalsh(across @ MATRIX @ across)
    nonzero = np.sort(values[np.abs(values) > 1e-9])
    np.testing.assert_allclose(modes.eigenvalues, nonzero, atol=1e-12)


def test_a_whole_space_has_the_eigenpairs_and_a_part_residuals():
    calls = Calls(rr.Problem(lambda x: x @ MATRIX @ x / 2, jnp.zeros(6)))
    x, axes, none = np.zeros(6), np.eye(6), np.zeros((6, 0))
    whole = ritz_modes(calls, x, list(axes), none, 6)
    np.testing.assert_allclose(whole.eigenvalues, np.linalg.eigvalsh(MATRIX), atol=1e-12)
    np.testing.assert_allclose(whole.residuals, np.zeros(6), atol=1e-12)
    part = ritz_modes(calls, x, list(axes[:2]), none, 2)
    assert part.rows.shape == (2, 6)
    for value, row, residual in zip(part.eigenvalues, part.rows, part.residuals, strict=True):
        assert np.linalg.norm(MATRIX @ row - value * row) == pytest.approx(residual)


def test_predictions():
    grad, change = np.array([3.0, 0.0]), np.array([-1.0, 0.0])
    assert prediction_error(grad, grad + change, change) == 0
    assert prediction_error(grad, grad, change) == pytest.approx(1 / 3)
    assert prediction_error(0 * grad, 0 * grad, 0 * change) == 0


def test_images_may_be_those_of_one_vector_alone():
    """The space of two vectors and of the image of the second."""
    calls = Calls(rr.Problem(lambda x: x @ MATRIX @ x / 2, jnp.zeros(6)))
    x, none, matrix = np.zeros(6), np.zeros((6, 0)), MATRIX
    axis, slope = np.eye(6)[0], np.eye(6)[1]
    modes = ritz_modes(calls, x, [axis, slope], none, 3, first=1)
    wanted = np.array([axis, slope, matrix @ slope])
    np.testing.assert_allclose(wanted @ modes.rows.T @ modes.rows, wanted, atol=1e-9)
