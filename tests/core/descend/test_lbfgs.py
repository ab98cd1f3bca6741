"""L-BFGS against closed forms and a second implementation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize, rosen, rosen_der

from ridgerider._core.descend.lbfgs import MEMORY, Pairs, lbfgs

YES = jnp.array(True)


def is_flat(bound):
    return lambda x, grad: jnp.linalg.norm(grad) < bound


def descend(value, x, bound=1e-8, max_steps=500, is_wanted=YES):
    return jax.jit(lambda x: lbfgs(value, x, is_flat(bound), max_steps, is_wanted))(x)


def rosenbrock(x):
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def test_the_quasi_newton_direction_is_that_of_a_dense_bfgs_matrix():
    """Two loops over the pairs are a product with the inverse that updates build up."""
    random = np.random.default_rng(0)
    root = random.normal(size=(5, 5))
    hessian = root @ root.T + np.eye(5)
    pairs, used = Pairs.none(jnp.zeros(5)), []
    for _ in range(MEMORY + 3):
        step = random.normal(size=5)
        used.append((step, hessian @ step))
        pairs = pairs.add(*map(jnp.asarray, used[-1]), YES)
    newest_step, newest_change = used[-1]
    inverse = newest_step @ newest_change / (newest_change @ newest_change) * np.eye(5)
    for step, change in used[-MEMORY:]:
        weight = 1 / (step @ change)
        left = np.eye(5) - weight * np.outer(step, change)
        inverse = left @ inverse @ left.T + weight * np.outer(step, step)
    grad = random.normal(size=5)
    np.testing.assert_allclose(pairs.downhill(jnp.asarray(grad), 1.0), -inverse @ grad, rtol=1e-9)


def test_pairs_that_curve_downwards_or_are_not_wanted_are_left_out():
    pairs = Pairs.none(jnp.zeros(2)).add(jnp.ones(2), -jnp.ones(2), YES)
    pairs = pairs.add(jnp.ones(2), jnp.ones(2), ~YES)
    assert int(pairs.count) == 0
    grad = jnp.array([3.0, 4.0])
    np.testing.assert_allclose(pairs.downhill(grad, 1.0), -grad / 5)  # down the gradient, by 1


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-4), ("float64", 1e-8)])
def test_a_quadratic_ends_at_its_solution(dtype, bound):
    values = jnp.asarray(np.geomspace(1, 100, 8), dtype)
    centre = jnp.arange(8.0).astype(dtype)
    end = descend(lambda x: values @ (x - centre) ** 2 / 2, jnp.zeros(8, dtype), bound)
    np.testing.assert_allclose(end.x, centre, atol=bound)  # the least curvature is 1
    assert end.x.dtype == dtype and int(end.num_steps) < 60


def test_it_needs_no_more_gradients_than_that_of_scipy():
    start = np.linspace(-1.5, 1.5, 10)
    end = descend(rosenbrock, jnp.asarray(start))
    peer = minimize(rosen, start, jac=rosen_der, method="L-BFGS-B", options={"gtol": 1e-8})
    np.testing.assert_allclose(end.x, np.ones(10), atol=1e-6)
    assert int(end.num_gradients) <= 1.5 * peer.nfev


def test_accepted_steps_satisfy_the_wolfe_conditions():
    """Each step lowers the loss: the trial points between are not taken."""
    x, losses = jnp.array([-1.2, 1.0]), []
    for steps in range(12):
        end = descend(rosenbrock, x, max_steps=steps)
        losses.append(float(end.loss))
        assert int(end.num_steps) == steps
    assert losses == sorted(losses, reverse=True)


def test_what_is_not_wanted_evaluates_nothing():
    end = descend(rosenbrock, jnp.array([-1.2, 1.0]), is_wanted=~YES)
    assert int(end.num_gradients) == 0 and end.x.tolist() == [-1.2, 1.0]


def test_a_kink_ends_the_search_instead_of_looping():
    end = descend(lambda x: jnp.sum(jnp.abs(x)), jnp.array([1.0, -2.0]), max_steps=100)
    assert bool(end.is_stuck) or int(end.num_steps) == 100
    assert float(end.loss) < 1e-3
