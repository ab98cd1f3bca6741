"""Descents from saddles."""

import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._core.descend.bfgs import _updated, slide
from ridgerider._core.points.domain import Domain
from ridgerider._core.problem.calls import Calls
from ridgerider.problems import six_hump_camel


def test_an_update_takes_the_change_to_the_step():
    random = np.random.default_rng(0)
    root, change = random.normal(size=(6, 6)), random.normal(size=6)
    inverse, step = root @ root.T + np.eye(6), change + 0.1 * random.normal(size=6)
    new = _updated(inverse, step, change, np.zeros(6))
    np.testing.assert_allclose(new @ change, step, atol=1e-12)
    np.testing.assert_allclose(new, new.T, atol=1e-12)
    # Where the loss curves downwards the model stays positive definite.
    down = _updated(inverse, step, -change, np.linalg.solve(inverse, step))
    assert np.linalg.eigvalsh(down).min() > 0


@pytest.mark.parametrize("sign", [1, -1])
def test_from_a_saddle_to_the_minima_on_both_sides(sign):
    problem = six_hump_camel()
    calls, x = Calls(problem), np.zeros(2, problem.dtype)
    hessian = calls.hessian(x)
    row = np.linalg.eigh(hessian)[1][:, 0]
    row = sign * row * np.sign(row[1])
    end = slide(calls, Domain(problem), x + 0.1 * row, hessian, 0.1)
    np.testing.assert_allclose(end.x, sign * np.array([-0.089842, 0.712656]), atol=1e-5)
    assert (np.diff(end.losses) <= 1e-12).all()
    # Less than a gradient for each of the Hessian's rows in each of the steps.
    assert calls.cost.gradients < 2 * len(end.losses)


def test_bounds_hold_coordinates():
    problem = rr.Problem(lambda x: (x[0] - 2) ** 2 + (x[1] + x[0] - 1) ** 2, jnp.zeros(2))
    domain = Domain(problem, None, np.full(2, -1.0), np.array([0.5, 1.0]))
    end = slide(Calls(problem), domain, np.zeros(2), np.array([[4.0, 2.0], [2.0, 2.0]]), 0.1)
    np.testing.assert_allclose(end.x, [0.5, 0.5], atol=1e-7)


def test_a_long_way_and_a_wall():
    slope = rr.Problem(lambda x: -x[0] + x[1] ** 2, jnp.zeros(2))
    args = (np.zeros(2), np.diag([-1.0, 2.0]), 0.1)
    assert slide(Calls(slope), Domain(slope), *args, most=1.0).is_far
    assert slide(Calls(slope), Domain(slope), *args, max_steps=3).is_long
    wall = rr.Problem(lambda x: jnp.where(x[0] < 1, -x[0], jnp.nan) + x[1] ** 2, jnp.zeros(2))
    end = slide(Calls(wall), Domain(wall), *args)
    assert end.is_lost and not end.is_finite and end.x[0] == pytest.approx(1, abs=1e-6)
