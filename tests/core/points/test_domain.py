"""Bounds hold coordinates, and a symmetry's directions are left out."""

import jax.numpy as jnp
import numpy as np

import ridgerider as rr
from ridgerider._core.points.domain import Domain

PROBLEM = rr.Problem(lambda x: jnp.sum(x**2), jnp.ones(3))
BOX = Domain(PROBLEM, None, np.zeros(3), np.ones(3))


def test_bounds_hold_what_would_cross_them():
    x = np.array([0.0, 1.0, 0.5])
    assert BOX.beyond(x, np.array([-1.0, 1.0, 9.0])).tolist() == [True, True, False]
    assert BOX.beyond(x, np.array([1.0, -1.0, 9.0])).tolist() == [False, False, False]
    grad = np.array([2.0, 3.0, 4.0])
    assert BOX.held(x, grad).tolist() == [True, False, False]
    assert BOX.slope(x, grad) == 5.0
    assert BOX.inside(x + 2.0).tolist() == [1.0, 1.0, 1.0]
    null = BOX.with_held(BOX.null(x), BOX.held(x, grad))
    np.testing.assert_array_equal(null, [[1.0], [0.0], [0.0]])
    assert BOX.inward(x).tolist() == [[1.0, 0.0, 0.0], [0.0, -1.0, 0.0]] and BOX.is_bounded


def test_without_bounds_nothing_is_held():
    free, x = Domain(PROBLEM), np.array([0.0, -5.0, 7.0])
    assert free.inside(x) is x and not free.held(x, x).any() and not free.is_bounded
    assert free.null(x).shape == (3, 0)


def test_generators_become_orthonormal_columns():
    shifts = rr.Symmetry(lambda x: [jnp.ones(3), 2 * jnp.ones(3), jnp.eye(3)[0]])
    null, slope, worst = Domain(PROBLEM, shifts).level(np.zeros(3), np.array([1.0, -1.0, 0.0]))
    np.testing.assert_allclose(null.T @ null, np.eye(2), atol=1e-12)
    np.testing.assert_allclose(null @ (null.T @ np.ones(3)), np.ones(3), atol=1e-12)
    np.testing.assert_allclose((slope, worst), (0.5**0.5, 2), atol=1e-12)
