"""The valley corrector, against Newton's step in closed form."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

import ridgerider as rr
from ridgerider.problems import surface
from tests.cases import make_matrix, perturbed, quadratic_loss, ride_from_start, ridge_along


def test_valley_is_newton_where_curvature_is_positive_and_rests_elsewhere():
    eigenvalues = np.array([-2.0, -0.5, 1.0, 3.0, 10.0])
    matrix, columns = make_matrix(eigenvalues)
    problem = rr.Problem(quadratic_loss, jnp.zeros(5), jnp.asarray(matrix))
    x = jnp.arange(1.0, 6.0)
    valley = eqx.filter_jit(rr.Valley(num_hvps=5, damping=0.1, size=0.8))
    moved, cost = valley(problem, x, ridge_along(columns[:, 0]))
    # damping is relative to the largest Ritz value, here the largest eigenvalue
    factors = np.where(eigenvalues > 0, 1 - 0.8 * eigenvalues / (eigenvalues + 0.1 * 10), 1)
    np.testing.assert_allclose(moved, columns @ (factors * (columns.T @ x)), atol=1e-9)
    assert cost.hvps == 5 and cost.gradients == 1


def test_valley_rests_at_a_stationary_point():
    problem, _ = perturbed(0, n=20)
    valley = eqx.filter_jit(rr.Valley())
    moved, _ = valley(problem, problem.x0, ridge_along(jnp.ones(20)))
    np.testing.assert_array_equal(moved, problem.x0)


def test_correct_moves_the_point_before_the_ridge_is_updated():
    def to_axis(problem, x, ridge):
        return x * jnp.array([1.0, 0.0]), rr.types.Cost(gradients=1)

    problem = surface()
    result = ride_from_start(
        problem, rr.Rider(correct=to_axis, step=rr.FixedStep(0.1), keep_path=True)
    )
    assert not np.asarray(result.trace.path)[:, 1].any()
    assert int(result.cost.gradients) == int(result.num_steps)
