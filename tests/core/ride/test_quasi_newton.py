"""The update from a kept model of the Hessian, against the exact one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from tests.cases import follow, make_quadratic, ride, ridge_along, spectrum_of

KEY = jax.random.key(0)
MODELLED = rr.QuasiNewton(exact_below=0)


def network_loss(x, inputs, targets):
    hidden = jnp.tanh(inputs @ x[:32].reshape(4, 8))
    return jnp.mean((hidden @ x[32:] - targets) ** 2) + 1e-3 * x @ x


def make_network():
    random = np.random.default_rng(0)
    inputs = random.normal(size=(60, 4))
    start = jnp.asarray(0.15 * random.normal(size=40))
    return rr.Problem(network_loss, start, jnp.asarray(inputs), jnp.sin(2 * inputs).sum(axis=1))


@pytest.mark.parametrize("step", [rr.FixedStep(0.02), rr.Backtracking()])
def test_the_ride_is_that_of_the_exact_update(step):
    problem = make_network()
    ridge = spectrum_of(problem).ridge(1)
    kept, exact = (
        ride(problem, rr.Rider(update=update, step=step, max_steps=20), problem.x0, ridge)
        for update in (MODELLED, rr.Project())
    )
    num = int(exact.num_steps) + 1
    assert int(kept.num_steps) + 1 == num
    np.testing.assert_array_equal(kept.trace.step_size[:num], exact.trace.step_size[:num])
    np.testing.assert_allclose(kept.x, exact.x, atol=1e-3)
    np.testing.assert_allclose(kept.trace.eigenvalue[:num], exact.trace.eigenvalue[:num], atol=1e-3)
    assert (kept.trace.residual[:num] <= 0.1 * exact.trace.gap[:num]).all()
    np.testing.assert_allclose(kept.trace.gap[0], exact.trace.gap[0], rtol=1e-6)
    ratio = np.asarray(kept.trace.gap / exact.trace.gap)[1:num]  # of nearly the same points
    assert (ratio > 0.25).all() and (ratio < 1.01).all() and (ratio < 0.8).any()
    assert 5 * int(kept.cost.hvps) < int(exact.cost.hvps)


def test_the_model_has_the_new_eigenpair_and_a_true_residual():
    problem = make_network()
    first = follow(MODELLED, problem, problem.x0, spectrum_of(problem).ridge(1))
    x = problem.x0 + 0.02 * first.ridge.direction
    tracked = follow(MODELLED, problem, x, first.ridge)
    ridge, model = tracked.ridge, tracked.ridge.memory
    hessian = problem.hessian(x)
    image = hessian @ ridge.direction
    assert int(first.cost.hessians) == 1 and int(tracked.cost.hessians) == 0
    residual = jnp.linalg.norm(image - ridge.eigenvalue * ridge.direction)
    np.testing.assert_allclose(tracked.residual, residual, atol=1e-12)
    modelled = model.columns @ (model.eigenvalues * (ridge.direction @ model.columns))
    np.testing.assert_allclose(modelled, image, atol=1e-12)
    assert int(jnp.argmin(jnp.abs(jnp.linalg.eigvalsh(hessian) - ridge.eigenvalue))) == ridge.index


@pytest.mark.parametrize("seed", range(3))
def test_a_model_of_another_hessian_is_replaced_by_the_exact_one(seed):
    other, _ = make_quadratic(np.linspace(-2, 2, 30), seed)
    problem, columns = make_quadratic(np.linspace(-3, 1, 30), seed + 10)
    old = jnp.asarray(columns[:, 3] + 0.3 * columns[:, 7]) / np.sqrt(1.09)
    memory = follow(MODELLED, other, other.x0, ridge_along(old)).ridge.memory
    ridge = dataclasses.replace(ridge_along(old), space=jnp.zeros((30, 30)).at[0].set(old))
    kept = follow(MODELLED, problem, problem.x0, dataclasses.replace(ridge, memory=memory))
    exact = follow(rr.Project(), problem, problem.x0, ridge)
    assert int(kept.cost.hessians) == 1
    np.testing.assert_array_equal(kept.ridge.direction, exact.ridge.direction)
    assert kept.overlap == exact.overlap and kept.gap == exact.gap


def test_a_repeated_eigenvalue_is_followed_as_one_space():
    problem, columns = make_quadratic([-3.0, -2.0, -2.0, -2.0, *np.linspace(0, 1, 16)])
    inside = columns[:, 1:4] @ np.array([1.0, 2.0, -1.0]) / np.sqrt(6)
    tracked = follow(MODELLED, problem, problem.x0, ridge_along(inside))
    for _ in range(2):
        tracked = follow(MODELLED, problem, problem.x0, tracked.ridge)
        np.testing.assert_allclose(tracked.ridge.direction, inside, atol=1e-12)
        assert int(tracked.ridge.multiplicity) == 3 and float(tracked.gap) == pytest.approx(1)


def value_and_grad(x):
    return np.sum(x**4 / 4 - x**2 / 2), x**3 - x


def data_loss(x, data):
    return jnp.sum(x**4 / 4 - x**2 / 2) * (1 + 0 * data[0])


@pytest.mark.parametrize(
    "problem, is_modelled",
    [
        (rr.Problem(data_loss, jnp.zeros(20), jnp.ones(5)), False),
        (rr.Problem(data_loss, jnp.zeros(20), jnp.ones(100_000)), True),
        (
            rr.Problem(data_loss, jnp.zeros(20), jnp.ones(100_000)).on_rows(jnp.ones((1, 4), int)),
            False,
        ),
        (rr.Problem.from_functions(value_and_grad, np.zeros(20)), True),
        (rr.Problem.from_functions(value_and_grad, np.zeros(4)), False),
    ],
)
def test_a_model_is_kept_where_hessians_are_expensive(problem, is_modelled):
    begun = rr.QuasiNewton().begin(problem, problem.x0, ridge_along(jnp.eye(problem.size)[0]))
    assert (begun.memory is not None) == is_modelled


def test_a_ridge_that_is_lost_needs_no_hessian():
    problem = make_network()
    first = follow(MODELLED, problem, problem.x0, spectrum_of(problem).ridge(1))
    x = problem.x0 + 1.0 * first.ridge.direction  # far beyond what the model knows
    tracked = follow(MODELLED, problem, x, first.ridge)
    exact = follow(rr.Project(), problem, x, first.ridge)
    assert exact.overlap < 0.7072 and tracked.overlap == 0 and np.isnan(tracked.gap)
    assert int(tracked.cost.hessians) == 0 and int(tracked.cost.hvps) < 15
