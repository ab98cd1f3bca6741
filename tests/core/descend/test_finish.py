import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ridgerider as rr
from ridgerider.problems import wells
from ridgerider.problems.wells import wells_loss
from tests.cases import make_quadratic

KEY = jax.random.key(0)


def finish(descend, problem, x):
    return descend(problem, x, KEY, rr.DenseSpectrum())


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
    # The value with its gradient, and the Hessian.
    assert num_traces - before <= 2


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
    with pytest.raises(ValueError, match=r"`optimizer` must be callable as optax\.lbfgs"):
        rr.Descend(optimizer=optax.sgd(0.1))
    with pytest.raises(ValueError, match="`max_steps` must be a whole number of at least 0"):
        rr.Descend(max_steps=-1)


# --- where a descent went
