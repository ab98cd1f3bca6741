"""Exact, fixed and random updates, against `eigh`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from tests.cases import make_quadratic, perturbed, ridge_along

KEY = jax.random.key(0)


@eqx.filter_jit
def project(problem, ridge):
    return rr.Project()(problem, problem.x0, ridge, KEY)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", range(3))
def test_project_is_maximal_overlap_for_simple_eigenvalues(dtype, seed):
    # A second implementation: eigh and argmax, as the paper has it.
    problem, _ = make_quadratic(np.linspace(-3, 2, 12), seed, dtype)
    old = np.random.default_rng(seed).normal(size=12).astype(dtype)
    old /= np.linalg.norm(old)
    tracked = project(problem, ridge_along(old))
    eigenvalues, columns = np.linalg.eigh(np.asarray(problem.args[0]))
    best = np.argmax(np.abs(old @ columns))
    tolerance = 200 * float(np.finfo(dtype).eps)
    expected = columns[:, best] * np.sign(old @ columns[:, best])
    np.testing.assert_allclose(tracked.ridge.direction, expected, atol=tolerance)
    assert float(tracked.ridge.eigenvalue) == pytest.approx(eigenvalues[best], abs=tolerance)
    assert float(tracked.overlap) == pytest.approx(abs(old @ columns[:, best]), abs=tolerance)
    assert float(tracked.gap) == pytest.approx(5 / 11, abs=tolerance)
    assert tracked.residual < tolerance
    assert int(tracked.ridge.index) == best
    around = [best - 4, best - 3, best - 2, best - 1, best + 1, best + 2, best + 3, best + 4]
    expected = [eigenvalues[i] if 0 <= i < 12 else np.nan for i in around]
    np.testing.assert_allclose(tracked.neighbours, expected, atol=tolerance)


def test_project_keeps_the_direction_inside_an_eigenspace():
    problem, columns = make_quadratic([-3.0, -2.0, -2.0, -2.0, 1.0])
    inside = columns[:, 1] + 2 * columns[:, 2] - columns[:, 3]
    inside /= np.linalg.norm(inside)
    tracked = project(problem, ridge_along(inside))
    np.testing.assert_allclose(tracked.ridge.direction, inside, atol=1e-12)
    nan = np.nan  # the copies are no neighbours
    expected = [nan, nan, nan, -3.0, 1.0, nan, nan, nan]
    np.testing.assert_allclose(tracked.neighbours, expected, atol=1e-12)
    assert int(tracked.ridge.multiplicity) == 3 and float(tracked.gap) == pytest.approx(1)


def test_a_splitting_eigenspace_is_not_a_lost_ridge():
    # From a threefold eigenvalue into a simple one of its members, 55 degrees away.
    whole, columns = make_quadratic([-2.0, -2.0, -2.0, 1.0])
    split, _ = make_quadratic([-2.2, -2.1, -2.0, 1.0])
    inside = columns[:, :3] @ np.ones(3) / np.sqrt(3)
    first = project(whole, ridge_along(inside))
    then = project(split, first.ridge)
    assert float(first.ridge.direction @ then.ridge.direction) == pytest.approx(1 / np.sqrt(3))
    assert float(then.overlap) == pytest.approx(1)
    # A ridge that was simple before has no such freedom.
    lone = project(split, ridge_along(inside))
    assert float(lone.overlap) == pytest.approx(1 / np.sqrt(3))


def test_keep_never_turns_and_reports_the_rayleigh_quotient():
    problem, _ = make_quadratic([-3.0, -1.0, 2.0])
    direction = np.array([0.6, 0.8, 0.0])
    tracked = rr.Keep()(problem, problem.x0, ridge_along(direction), KEY)
    image = np.asarray(problem.args[0]) @ direction
    assert np.array_equal(tracked.ridge.direction, direction)
    assert float(tracked.ridge.eigenvalue) == pytest.approx(direction @ image)
    residual = np.linalg.norm(image - (direction @ image) * direction)
    assert float(tracked.residual) == pytest.approx(residual)


def test_random_ridges_lead_downhill_and_differ():
    problem, _ = perturbed(0, n=50)
    x = jnp.ones(50)
    draw = eqx.filter_jit(rr.RandomRidge())
    ridges = [draw(problem, x, ridge_along(jnp.ones(50)), jax.random.key(s)) for s in (0, 1)]
    for tracked in ridges:
        assert tracked.ridge.direction @ problem.grad(x) < 0
        assert float(jnp.linalg.norm(tracked.ridge.direction)) == pytest.approx(1)
    assert abs(ridges[0].ridge.direction @ ridges[1].ridge.direction) < 0.6
