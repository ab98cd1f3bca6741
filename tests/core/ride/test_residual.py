"""The paper's update, against autodiff of its own loss and against exact rides."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from tests.cases import (
    factorization,
    follow,
    make_matrix,
    perturbed,
    quadratic_loss,
    ridge_along,
    spectrum_of,
)

KEY = jax.random.key(0)


def eigen_loss(e, eigenvalue, matrix):
    u = e / jnp.linalg.norm(e)
    return jnp.sum((matrix @ u / eigenvalue - u) ** 2)


def test_residual_is_the_papers_update_to_the_letter():
    matrix, columns = make_matrix([-2.0, -1.0, 0.5, 1.5])
    problem = rr.Problem(_curved, jnp.zeros(4), jnp.asarray(matrix))
    old, e, eigenvalue = jnp.zeros(4), jnp.asarray(columns[:, 1]), jnp.array(-1.0)
    x, rates = old + 0.1 * e, (0.03, 0.02)
    hessian, hessian_old = map(eqx.filter_jit(problem.hessian), (x, old))
    update = rr.Residual(3, *rates)
    tracked = follow(update, problem, x, ridge_along(e, eigenvalue, memory=old))
    eigenvalue = eigenvalue + e @ (hessian - hessian_old) @ e
    slopes = jax.jit(jax.grad(eigen_loss, (0, 1)))
    for _ in range(3):
        eigenvalue = eigenvalue - rates[1] * slopes(e, eigenvalue, hessian)[1]
        e = e - rates[0] * slopes(e, eigenvalue, hessian)[0]
    np.testing.assert_allclose(tracked.ridge.direction, e / jnp.linalg.norm(e), atol=1e-12)
    assert float(tracked.ridge.eigenvalue) == pytest.approx(float(eigenvalue))
    assert int(tracked.cost.hvps) == 2 + 2 * 3 + 1


def _curved(x, matrix):
    return quadratic_loss(x, matrix) + jnp.sum(x**3)


def test_the_automatic_rate_is_stable_and_converges():
    problem, columns = perturbed(1, n=60, size=0.1)
    ridge = ridge_along(columns[:, 3], -1.4, memory=problem.x0)
    auto = follow(rr.Residual(400), problem, problem.x0, ridge)
    exact = np.linalg.eigh(problem.args[0])[1][:, 3]
    assert abs(exact @ auto.ridge.direction) > 0.999 and auto.residual < 0.05
    # The bound of the module's docstring: 1 / (lambda_max / lambda - 1)^2, about 0.34 here.
    before, tame, wild = (
        follow(rr.Residual(num_steps, rate), problem, problem.x0, ridge).residual
        for num_steps, rate in ((0, 0.0), (4, 0.3), (4, 1.0))
    )
    assert tame < before < wild


def test_a_ride_with_the_papers_update():
    problem = factorization((3.0, 2.0, 1.0), rank=1)
    ridge = spectrum_of(problem).ridge(1)
    rider = rr.Rider(update=rr.Residual(200), step=rr.FixedStep(0.02), max_steps=20)
    exact = rr.Rider(step=rr.FixedStep(0.02), max_steps=20)
    one, two = (
        eqx.filter_jit(rider.ride)(problem, problem.x0, ridge, KEY) for rider in (rider, exact)
    )
    np.testing.assert_allclose(one.x, two.x, atol=1e-3)
    assert int(one.cost.hvps) > 20 * 400
