"""Conjugate gradients, against `numpy.linalg.solve` and closed forms."""

import jax.numpy as jnp
import numpy as np
import pytest

from ridgerider._core.linalg.solve import conjugate_gradients
from tests.cases import make_matrix


@pytest.mark.parametrize("seed", range(3))
def test_the_solution_is_that_of_a_direct_solver(seed):
    matrix, _ = make_matrix(np.linspace(0.1, 3, 40), seed)
    side = np.random.default_rng(seed).normal(size=40)
    found = conjugate_gradients(lambda v: jnp.asarray(matrix) @ v, jnp.asarray(side), 1e-9, 200)
    np.testing.assert_allclose(found.x, np.linalg.solve(matrix, side), atol=1e-7)
    assert found.error <= 1e-9 and bool(found.is_convex)


def test_as_many_hvps_as_there_are_distinct_eigenvalues():
    eigenvalues = jnp.repeat(jnp.array([1.0, 2.0, 5.0]), 20)
    found = conjugate_gradients(lambda v: eigenvalues * v, jnp.ones(60), 1e-12, 100)
    assert int(found.num_hvps) == 3
    few = conjugate_gradients(lambda v: eigenvalues * v, jnp.ones(60), 1e-12, 2)
    assert int(few.num_hvps) == 2 and few.error > 1e-3


def test_flat_directions_are_left_alone_and_negative_curvature_ends_it():
    eigenvalues = jnp.array([1.0, 2.0, 0.0])
    found = conjugate_gradients(lambda v: eigenvalues * v, jnp.array([1.0, 1.0, 0.0]), 1e-12, 9)
    np.testing.assert_allclose(found.x, [1, 0.5, 0], atol=1e-12)
    bent = conjugate_gradients(lambda v: -v, jnp.ones(3), 1e-12, 9)
    assert not bool(bent.is_convex) and int(bent.num_hvps) == 1
    np.testing.assert_array_equal(bent.x, 0)
