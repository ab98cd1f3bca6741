"""Differences against closed forms, inside of bounds, and no call too many."""

import numpy as np
import pytest

from ridgerider._core.problem.minimand import Minimand
from ridgerider._core.runtime.clock import OutOfTime

LOW, HIGH = np.array([-1.0, 2.0, 0.0]), np.array([3.0, 2.5, 10.0])


def value(x):
    return np.sin(x[0]) * x[1] + x[2] ** 2 * x[0] / 10


def slopes(x):
    return np.array([np.cos(x[0]) * x[1] + x[2] ** 2 / 10, np.sin(x[0]), x[2] * x[0] / 5])


def curvature(x):
    cross = x[2] / 5
    return np.array(
        [
            [-np.sin(x[0]) * x[1], np.cos(x[0]), cross],
            [np.cos(x[0]), 0, 0],
            [cross, 0, x[0] / 5],
        ]
    )


def minimand(fun=value, jac=None, hess=None):
    return Minimand(fun, jac, hess, np.zeros(3), np.ones(3), LOW, HIGH - LOW)


@pytest.mark.parametrize("z", [[0.3, 0.5, 0.7], [0.0, 1.0, 0.4], [1.0, 0.0, 0.0]])
@pytest.mark.parametrize("given", [{}, {"jac": slopes}, {"jac": slopes, "hess": curvature}])
def test_derivatives_are_those_in_units_of_the_bounds(given, z):
    seen = []

    def inside(x):
        seen.append(x)
        return value(x)

    one, z = minimand(inside, **given), np.array(z)
    scale, x = HIGH - LOW, LOW + (HIGH - LOW) * z
    found, grad = one.pair_at(z)
    assert found == pytest.approx(value(x))
    np.testing.assert_allclose(grad, scale * slopes(x), rtol=1e-5, atol=1e-5)
    exact = scale[:, None] * curvature(x) * scale
    np.testing.assert_allclose(one.dense(z, None), exact, atol=2e-3 * np.abs(exact).max())
    assert ((np.array(seen) >= LOW) & (np.array(seen) <= HIGH)).all()
    assert one.num_fun == len(seen)


def test_an_expansion_costs_one_stencil():
    one, z = minimand(), np.array([0.3, 0.5, 0.7])
    matrix, (found, grad) = one.dense(z, None), one.pair_at(z)
    # The second coordinate has no curvature: longer steps, and mixed differences both ways.
    assert one.num_fun == 1 + (2 + 6 + 2) + 2 * 3
    assert one.num_fun == 17 and one.pair_at(z)[0] == found and one.num_fun == 17
    assert found == pytest.approx(value(LOW + (HIGH - LOW) * z))
    np.testing.assert_allclose(grad, one.pair_at(z)[1], rtol=1e-5)
    np.testing.assert_allclose(matrix, matrix.T)


def test_well_conditioned_curvature_needs_one_mixed_difference_a_pair():
    one, z = minimand(lambda x: float(((x - LOW) ** 2).sum())), np.array([0.3, 0.5, 0.7])
    one.scale = np.ones(3)
    matrix = one.dense(z, None)
    assert one.num_fun == 1 + 2 * 3 + 3
    np.testing.assert_allclose(matrix, 2 * np.eye(3), atol=1e-3)
    corrected = one.pair_at(z + 0.01)[1]  # by the diagonal of the Hessian
    np.testing.assert_allclose(corrected, 2 * (z + 0.01), atol=1e-8)


def test_what_fails_is_counted_and_a_budget_ends_it():
    def fails(x):
        raise ArithmeticError("no")

    one = minimand(fails)
    with one.ledger() as ledger:
        assert np.isnan(one.safely(lambda: one.value_at(np.full(3, 0.5)), np.nan))
    assert one.failures == {"ArithmeticError: no": 1}
    assert ledger.failure == "ArithmeticError: no"
    one.max_calls = 1
    with pytest.raises(OutOfTime):
        one.safely(lambda: one.value_at(np.full(3, 0.5)), np.nan)
