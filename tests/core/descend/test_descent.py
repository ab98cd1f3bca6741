"""Descents on the host end in the well where they begin, at a bound or inside."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize, rosen, rosen_der

import ridgerider as rr
from ridgerider._core.descend.descent import MEMORY, Dense, Limited, descend
from ridgerider._core.points.domain import Domain
from ridgerider._core.problem.calls import Calls

ALL = np.ones(6, bool)


def from_(loss, x, first=0.05, low=None, high=None, **options):
    x = np.asarray(x, float)
    problem = rr.Problem(loss, jnp.asarray(x))
    return descend(Calls(problem), Domain(problem, None, low, high), x, first, **options)


def rosenbrock(x):
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


# --- models


def test_an_update_takes_the_step_to_the_change():
    random = np.random.default_rng(0)
    root, change = random.normal(size=(6, 6)), random.normal(size=6)
    step = 0.05 * change + 0.005 * random.normal(size=6)
    model = Dense(root @ root.T + np.eye(6))
    np.testing.assert_allclose(model.matrix, root @ root.T + np.eye(6), atol=1e-12)
    model.add(step, change)
    np.testing.assert_allclose(model.matrix @ step, change, atol=1e-12)
    np.testing.assert_allclose(model.matrix, model.matrix.T, atol=1e-12)
    # Where the loss curves downwards the model stays positive definite.
    model.add(step, -change)
    assert np.linalg.eigvalsh(model.matrix).min() > 0
    np.testing.assert_allclose(Dense(np.diag([-2.0, 1e-3]), 1e-2).matrix, np.diag([2.0, 0.01]))


def test_a_limited_memory_is_that_of_a_dense_bfgs_matrix():
    """Two loops over the pairs are a product with the inverse that updates build up."""
    random = np.random.default_rng(0)
    root = random.normal(size=(6, 6))
    hessian, limited, used = root @ root.T + np.eye(6), Limited(1.0), []
    for _ in range(MEMORY + 3):
        step = random.normal(size=6)
        used.append((step, hessian @ step))
        limited.add(*used[-1])
    step, change = used[-1]
    dense = Dense(change @ change / (step @ change) * np.eye(6))
    dense.matrix = np.linalg.inv(dense.matrix)
    for step, change in used[-MEMORY:]:
        weight = 1 / (step @ change)
        left = np.eye(6) - weight * np.outer(step, change)
        dense.matrix = left @ dense.matrix @ left.T + weight * np.outer(step, step)
    grad = random.normal(size=6)
    np.testing.assert_allclose(limited.step(grad, ALL), -dense.matrix @ grad, rtol=1e-9)
    limited.add(step, -change)  # curves downwards
    np.testing.assert_allclose(limited.step(grad, ALL), -dense.matrix @ grad, rtol=1e-9)


# --- from a start


def test_a_descent_stays_in_its_well():
    for begin in np.linspace(0.13, 5.77, 12):
        end = from_(lambda x: jnp.sum(jnp.cos(2 * np.pi * x)), [begin], first=0.02)
        assert abs(end.x[0] - (np.floor(begin) + 0.5)) < 0.05
        assert end.losses[0] >= end.loss and (np.diff(end.losses) <= 1e-12).all()


def test_it_ends_at_a_bound():
    end = from_(lambda x: jnp.sum(x) + x[1] ** 2, [0.8, 0.9], low=-np.ones(2), high=np.ones(2))
    assert end.x[0] == -1.0
    assert end.x[1] == pytest.approx(-0.5, abs=1e-2)


def test_it_ends_far_away_and_where_there_is_no_number():
    assert from_(lambda x: -jnp.sum(x**2), [0.1], most=3.0).is_far
    end = from_(lambda x: jnp.sum(jnp.log(x)), [-1.0])
    assert not end.is_finite and len(end.losses) == 1


def test_it_ends_where_newtons_steps_take_over():
    end = from_(lambda x: jnp.sum(jnp.cosh(x - 0.3)), [2.0, -1.0])
    assert np.abs(end.x - 0.3).max() < 0.05
    from_a_known_hessian = from_(
        lambda x: jnp.sum(jnp.cosh(x - 0.3)), [0.32, 0.29], hessian=np.eye(2)
    )
    assert np.abs(from_a_known_hessian.x - 0.3).max() < 1e-3


def test_a_narrow_valley_is_followed_to_its_end():
    end = from_(rosenbrock, [-1.2, 1.0])
    assert np.abs(end.x - 1).max() < 1e-2 and len(end.losses) < 80


@pytest.mark.parametrize("size", [10, 400])
def test_it_needs_hardly_more_gradients_than_that_of_scipy(size):
    start = np.linspace(-1.5, 1.5, 10)

    def loss(x):  # of 400 parameters most are those of a bowl
        return rosenbrock(x[:10]) + jnp.sum(x[10:] ** 2)

    start = np.append(start, np.ones(size - 10))
    problem = rr.Problem(loss, jnp.asarray(start))
    calls = Calls(problem)
    end = descend(
        calls,
        Domain(problem),
        start,
        is_over=lambda x, grad: np.linalg.norm(grad) < 1e-8,
        max_steps=2000,
    )
    peer = minimize(rosen, start[:10], jac=rosen_der, method="L-BFGS-B", options={"gtol": 1e-8})
    np.testing.assert_allclose(end.x[:10], np.ones(10), atol=1e-6)
    assert calls.cost.gradients <= 2 * peer.nfev


def test_a_trial_of_values_costs_no_gradient():
    calls = {"values": 0, "gradients": 0}

    class Counted(Calls):
        def trial(self, x):
            calls["values"] += 1
            return float(np.cos(40 * x[0])), None

        def value_and_grad(self, x):
            calls["gradients"] += 1
            return float(np.cos(40 * x[0])), -40 * np.sin(40 * x)

    problem = rr.Problem(lambda x: jnp.cos(40 * x[0]), jnp.zeros(1))
    end = descend(Counted(problem), Domain(problem), np.array([0.01]), 0.3)
    assert abs(np.sin(40 * end.x[0])) < 0.1 and np.cos(40 * end.x[0]) < 0
    assert calls["gradients"] == len(end.losses) and calls["values"] >= calls["gradients"] - 1


def test_a_trial_in_jax_is_evaluated_once():
    problem = rr.Problem(lambda x: jnp.sum(jnp.cosh(x)), jnp.ones(2))
    calls = Calls(problem)
    end = descend(calls, Domain(problem), np.ones(2), 0.1)
    assert calls.cost.gradients == calls.cost.values < 2 * len(end.losses)


def test_a_kink_ends_the_descent():
    end = from_(lambda x: jnp.sum(jnp.abs(x)), [1.0, -2.0], first=1.0)
    assert end.loss < 1e-3


# --- with a known Hessian


def test_bounds_hold_coordinates():
    hessian = np.array([[4.0, 2.0], [2.0, 2.0]])
    low, high = np.full(2, -1.0), np.array([0.5, 1.0])
    end = from_(
        lambda x: (x[0] - 2) ** 2 + (x[1] + x[0] - 1) ** 2,
        np.zeros(2),
        low=low,
        high=high,
        hessian=hessian,
    )
    np.testing.assert_allclose(end.x, [0.5, 0.5], atol=1e-7)


def test_a_long_way_and_a_wall():
    given = {"hessian": np.diag([-1.0, 2.0])}
    slope = lambda x: -x[0] + x[1] ** 2  # noqa: E731
    assert from_(slope, np.zeros(2), most=1.0, **given).is_far
    assert from_(slope, np.zeros(2), max_steps=3, **given).is_long
    wall = lambda x: jnp.where(x[0] < 1, -x[0], jnp.nan) + x[1] ** 2  # noqa: E731
    end = from_(wall, np.zeros(2), **given)
    assert end.is_lost and not end.is_finite and end.x[0] == pytest.approx(1, abs=1e-6)
