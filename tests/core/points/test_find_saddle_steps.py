"""Steps to a saddle: stable ends, radius, null directions, with and without a matrix."""

import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._core.points.find_saddle import MAX_RADIUS, Penalty, to_saddle
from ridgerider._core.problem.calls import Calls

RANDOM = np.random.default_rng(0).normal(size=100)


def wavy(x):
    """Saddles of index k where k of the cosines are at a maximum."""
    return jnp.sum(jnp.cos(x)) + 0.05 * x[0] * x[1]


def run(loss, x, index, known=None, penalty=None, max_steps=100):
    problem = rr.Problem(loss, jnp.asarray(x))
    calls, start = Calls(problem), np.asarray(problem.x0)
    penalty = None if penalty is None else Penalty(problem, penalty, 1e-2)
    here = to_saddle(
        calls, penalty, index, max_steps, start, known=known, random=RANDOM[: start.size]
    )
    return here, calls.cost, problem


@pytest.mark.parametrize("index", [1, 2, 3])
def test_only_saddles_of_the_index_are_stable(index):
    here, _, problem = run(wavy, [0.8, 2.0, 2.6], index)
    assert np.linalg.norm(problem.grad(jnp.asarray(here.x))) < 1e-10
    assert (np.linalg.eigvalsh(problem.hessian(jnp.asarray(here.x))) < 0).sum() == index
    assert here.is_saddle(index) and here.num_downhill == index


def test_the_modes_are_eigenpairs():
    here, _, problem = run(wavy, [0.8, 2.0, 2.6], 1)
    hessian = np.asarray(problem.hessian(jnp.asarray(here.x)))
    rows, values = here.modes.rows, here.modes.eigenvalues
    np.testing.assert_allclose(rows @ hessian, values[:, None] * rows, atol=1e-12)


def test_close_to_a_saddle_steps_are_newtons():
    """Quadratic convergence: three steps from 0.05 are at rounding."""
    here, cost, _ = run(lambda x: x[0] ** 2 - x[1] ** 2 + x[0] ** 3 / 3, [0.05, 0.05], 1)
    np.testing.assert_allclose(here.x, [0, 0], atol=1e-12)
    assert int(cost.gradients) <= 6


def test_the_first_step_is_no_longer_than_the_radius():
    start = np.array([10.0, 10.0])
    here, _, _ = run(lambda x: x[0] ** 2 - x[1] ** 2, start, 1, max_steps=1)
    assert np.abs(here.x - start).max() == pytest.approx(0.2)
    here, _, _ = run(lambda x: x[0] ** 2 - x[1] ** 2, start, 1, max_steps=5)
    assert np.abs(here.x - start).max() <= 5 * MAX_RADIUS


def test_null_directions_are_neither_climbed_nor_divided_by():
    here, _, _ = run(lambda x: (x[0] - 1) ** 2 - (x[1] - 2) ** 2 + 0 * x[2], [0.7, 1.8, 5.0], 1)
    np.testing.assert_allclose(here.x, [1, 2, 5], atol=1e-9)
    assert here.modes.is_curved.sum() == 2


def test_hvps_alone_lead_to_the_same_saddle():
    values = jnp.concatenate([jnp.array([-1.0]), jnp.linspace(1.0, 3.0, 59)])

    def loss(x):
        return values @ x**2 / 2 + jnp.sum(x**4) / 4

    start = 0.1 * np.random.default_rng(0).normal(size=60)
    dense, _, _ = run(loss, start, 1)
    known = np.eye(60)[:8]
    lean, cost, _ = run(loss, start, 1, known)
    np.testing.assert_allclose(dense.x, np.zeros(60), atol=1e-9)
    np.testing.assert_allclose(lean.x, np.zeros(60), atol=1e-9)
    assert int(lean.num_downhill) == 1 and int(cost.hessians) == 0


def test_a_penalty_chooses_on_a_line_of_stationary_points():
    """|grad| + weight (z - 3)^2 has its minimum where the gradient vanishes and z = 3."""
    penalty = lambda x: (x[2] - 3.0) ** 2  # noqa: E731
    here, _, _ = run(
        lambda x: x[0] ** 2 - x[1] ** 2 + 0 * x[2], [0.4, 0.3, 0.0], -1, penalty=penalty
    )
    np.testing.assert_allclose(here.x[:2], [0, 0], atol=1e-8)
    assert float(here.x[2]) == pytest.approx(3, abs=1e-3)
