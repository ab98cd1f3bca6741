import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ridgerider as rr
from ridgerider.problems import wells
from ridgerider.problems.levers import (
    PAPER,
    entropy,
    lever_eigenvalues,
    lever_loss,
    lever_saddle,
)
from ridgerider.problems.wells import wells_loss
from tests.cases import make_quadratic

KEY = jax.random.key(0)


def finish(descend, problem, x):
    run = eqx.filter_jit(lambda d, p, x: d(p, x, KEY, rr.DenseSpectrum()))
    return jax.device_get(run(descend, problem, x))


# --- find_saddle


def negative_entropy(params):
    return -entropy(params)


@pytest.mark.parametrize("seed", range(3))
def test_the_saddle_of_the_lever_game(seed):
    problem = rr.Problem(lever_loss, jnp.zeros((2, 10)), jnp.asarray(PAPER))
    saddle = rr.find_saddle(problem, negative_entropy, noise=0.1, seed=seed)
    expected = jax.nn.softmax(lever_saddle(jnp.asarray(PAPER)))
    np.testing.assert_allclose(jax.nn.softmax(saddle.params), expected, atol=1e-8)
    assert saddle.grad_norm < 1e-10 and saddle.is_strict and saddle.morse_index == 9
    assert saddle.loss == pytest.approx(-1 / sum(1 / payoff for payoff in PAPER), abs=1e-12)
    found = [c.eigenvalue for c in saddle.clusters for _ in range(c.multiplicity)]
    np.testing.assert_allclose(found, lever_eigenvalues(PAPER), atol=1e-8)
    assert [c.multiplicity for c in saddle.clusters[:4]] == [1, 1, 1, 6]


def test_a_minimum_is_no_strict_saddle():
    saddle = rr.find_saddle(rr.Problem(lambda x: x @ x, jnp.ones(2)))
    assert saddle.is_stationary and not saddle.is_strict and saddle.morse_index == 0


def test_no_stationary_point_is_said_so():
    saddle = rr.find_saddle(rr.Problem(lambda x: jnp.sum(x), jnp.ones(2)), max_steps=10)
    assert not saddle.is_stationary and not saddle.is_strict
    assert saddle.grad_norm == pytest.approx(np.sqrt(2))


def test_the_polish_is_newton():
    # Quadratic convergence: from 1e-3 to rounding in three steps, in float32 too.
    for dtype in ("float32", "float64"):
        start = jnp.array([1e-2, -2e-2, 1e-2], dtype)
        problem = rr.Problem(wells_loss, start, jnp.array([0.5, 1.0, 1.5], dtype))
        saddle = rr.find_saddle(problem, max_steps=0, max_polish=4)
        assert saddle.grad_norm < 10 * jnp.finfo(dtype).eps
        assert saddle.cost.hessians <= 4 + 1


def test_null_directions_are_left_alone():
    # The loss does not depend on x[1]: the nearest saddle keeps it.
    problem = rr.Problem(lambda x: jnp.cos(x[0]), jnp.array([0.3, 7.0]))
    saddle = rr.find_saddle(problem, max_steps=0)
    np.testing.assert_allclose(saddle.params, [0, 7], atol=1e-8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_steps": -1}, "`max_steps` must be a whole number of at least 0"),
        ({"noise": -0.1}, "`noise` must be at least 0"),
        ({"learning_rate": 0.0}, "`learning_rate` must be positive"),
        ({"regularizer": 3}, "`regularizer` must be callable"),
    ],
)
def test_bad_saddle_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        rr.find_saddle(wells(2), **settings)


# --- Descend


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("optimizer", [None, optax.lbfgs, jax.tree_util.Partial(optax.sgd, 0.5)])
def test_descent_to_a_known_minimum(dtype, optimizer):
    problem, columns = make_quadratic([0.5, 1.0, 3.0], dtype=dtype)
    x = jnp.asarray(columns.sum(axis=1))
    end = finish(rr.Descend(optimizer), problem, x)
    # Converged means |grad| <= sqrt(eps) * 3, the largest eigenvalue; the least one is 0.5.
    tolerance = float(jnp.finfo(dtype).eps) ** 0.5 * 3
    assert end.is_converged and not end.is_saddle and end.x.dtype == dtype
    assert np.abs(end.x).max() < tolerance / 0.5
    assert float(end.least_eigenvalue) == pytest.approx(0.5, abs=tolerance)
    assert float(end.grad_norm) <= tolerance
    # One value and gradient for the start and one for each step, besides those of the line search.
    # The start, the end of the descent and what a Newton step makes of it are looked at.
    assert end.cost.gradients >= end.num_steps + 1 and end.cost.hessians >= 2


@pytest.mark.parametrize(("factor", "shift"), [(1e-8, 0.0), (1e6, 0.0), (1.0, 1e3)])
def test_convergence_does_not_depend_on_scale_and_zero_of_the_loss(factor, shift):
    def loss(x, depths):
        return factor * wells_loss(x, depths) + shift

    problem = rr.Problem(loss, jnp.zeros(2), *wells(2).args)
    end = finish(rr.Descend(), problem, jnp.array([0.4, 0.7]))
    np.testing.assert_allclose(end.x, np.sqrt([0.5, 1.5]), atol=1e-6)
    assert end.is_converged and rr.find_saddle(problem).is_strict


def test_descent_that_does_not_arrive_says_so():
    problem, columns = make_quadratic([0.5, 1.0])
    end = finish(
        rr.Descend(jax.tree_util.Partial(optax.sgd, 1e-3), max_steps=5), problem, columns[:, 0]
    )
    assert not end.is_converged and end.num_steps == 5


def rosenbrock(x):
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


@pytest.mark.parametrize("size", [2, 10])
def test_the_default_descent_spends_no_more_than_that_of_optax(size):
    problem = rr.Problem(rosenbrock, jnp.full(size, -0.5))
    ours, theirs = (finish(rr.Descend(how), problem, problem.x0) for how in (None, optax.lbfgs))
    np.testing.assert_allclose(ours.x, 1, atol=1e-5)
    assert ours.is_converged and ours.cost.gradients <= theirs.cost.gradients


def test_a_trial_that_is_not_finite_is_no_end():
    # The first step leads to the logarithm of a negative number.
    problem = rr.Problem(lambda x: x[0] - jnp.log(x[0]) / 100, jnp.array([0.5]))
    end = finish(rr.Descend(), problem, problem.x0)
    assert end.is_converged and float(end.x[0]) == pytest.approx(0.01, rel=1e-6)


def test_a_descent_evaluates_the_loss_in_one_place():
    num_traces = 0

    def loss(x):
        nonlocal num_traces
        num_traces += 1
        return jnp.sum(x**2)

    problem = rr.Problem(loss, jnp.ones(2))
    before = num_traces
    finish(rr.Descend(), problem, problem.x0)
    # The Hessian, the value and the gradient of a look, the descent, and a few values.
    assert num_traces - before <= 5


def test_descent_into_infinity_ends():
    end = finish(rr.Descend(), rr.Problem(lambda x: -jnp.exp(x[0]), jnp.ones(1)), jnp.ones(1))
    assert not end.is_converged


def test_kicks():
    problem = wells(2)
    on_axis = jnp.array([0.0, 0.5])
    left = finish(rr.Descend(), problem, on_axis)
    assert (
        left.is_saddle
        and left.num_kicks == 0
        and float(left.least_eigenvalue) == pytest.approx(-0.5)
    )
    kicked = finish(rr.Descend(max_kicks=3), problem, on_axis)
    assert not kicked.is_saddle and kicked.num_kicks == 1
    np.testing.assert_allclose(np.abs(kicked.x), np.sqrt([0.5, 1.5]), atol=1e-6)


def test_a_flat_minimum_is_a_minimum():
    problem = rr.Problem(lambda x: (x[0] + x[1] - 1) ** 2, jnp.zeros(2))
    end = finish(rr.Descend(), problem, jnp.array([0.2, 0.1]))
    assert end.kind == "minimum" and end.num_flat == 1
    assert float(end.least_eigenvalue) == pytest.approx(4)


def test_bad_descend_settings():
    with pytest.raises(ValueError, match="`optimizer` must be None or a function that builds"):
        rr.Descend(optimizer=optax.sgd(0.1))
    with pytest.raises(ValueError, match="`max_steps` must be at least 0"):
        rr.Descend(max_steps=-1)
