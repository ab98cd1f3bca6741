"""One climb or descent at a time: closed forms of steps, ends, updates and projections."""

import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._core.points.climb import ENDINGS, TRACE, Climb, Plan, move_from, updated
from ridgerider._core.points.domain import Domain
from ridgerider._core.points.morse_index import without
from ridgerider._core.problem.calls import Calls
from ridgerider.problems import himmelblau


def quartic(x):
    """Minima at (+-1, 0), a saddle of index 1 at zero."""
    return (x[0] ** 2 - 1) ** 2 + 2 * x[1] ** 2 + x[0] * x[1] ** 2 / 2


def go(problem, climb, x, direction, is_up, symmetry=None, bounds=(None, None)):
    calls, domain = Calls(problem), Domain(problem, symmetry, *bounds)
    x, plan = np.array(x), Plan.of(climb, problem)
    known = np.asarray(problem.hessian(jnp.asarray(x))) if Plan.of(climb, problem).is_kept else None
    move = move_from(calls, plan, domain, x, np.array(direction), known, is_up)
    move.cost = calls.cost
    return move


def column(move, name):
    return np.array([row[TRACE.index(name)] for row in move.trace])


CLIMBS = {
    "formed": Climb(num_products=0),
    "kept": Climb(num_products=1),
    "without a matrix": Climb(engine="hvp"),
}


@pytest.mark.parametrize("name", CLIMBS)
def test_up_to_the_saddle_and_down_again(name):
    climb, problem = CLIMBS[name], rr.Problem(quartic, jnp.zeros(2))
    up = go(problem, climb, [1.0, 0.0], [-1.0, 0.0], True)
    assert ENDINGS[int(up.ending)] == "stationary"
    np.testing.assert_allclose(up.x, [0.0, 0.0], atol=1e-6)
    assert float(up.loss) == pytest.approx(1)
    eigenvalues = column(up, "eigenvalue")
    assert eigenvalues[0] > 0 > eigenvalues[-1]  # from the valley to the crest
    down = go(problem, climb, [0.0, 0.0], [-1.0, 0.0], False)
    assert ENDINGS[int(down.ending)] == "stationary"
    np.testing.assert_allclose(down.x, [-1.0, 0.0], atol=1e-6)
    losses = column(down, "loss")
    assert (np.diff(losses) <= 1e-12).all()


def test_a_mode_moves_by_the_radius_at_most():
    problem = himmelblau()
    climb = Climb(radius=0.05, max_radius=0.1, num_products=0)
    end = go(problem, climb, [3.0, 2.0], [1.0, 0.0], True)
    sizes = column(end, "step_size")
    assert sizes.max() <= 0.1 * 2**0.5 + 1e-12 and sizes[0] >= 0.05 - 1e-12


def test_the_ends_that_are_not_stationary():
    slope = rr.Problem(lambda x: x[1] ** 2 - jnp.sqrt(1 + x[0] ** 2), jnp.zeros(2))
    far = go(slope, Climb(max_distance=2.0), [0.0, 0.0], [-1.0, 0.0], False)
    assert ENDINGS[int(far.ending)] == "ran_away" and float(far.x[0]) < -1.5
    short = go(slope, Climb(max_steps=2, max_distance=1e6), [0.0, 0.0], [-1.0, 0.0], False)
    assert ENDINGS[int(short.ending)] == "max_steps" and len(short.trace) == 20
    wall = rr.Problem(lambda x: jnp.where(x[0] > 0.2, x @ x, jnp.nan), jnp.ones(2))
    end = go(wall, Climb(max_steps=100), [0.5, 0.0], [-1.0, 0.0], False)
    assert ENDINGS[int(end.ending)] == "not_finite"
    assert float(end.x[0]) == pytest.approx(0.2, abs=1e-6)


def test_costs_are_those_of_the_steps():
    problem = rr.Problem(quartic, jnp.zeros(2))
    for climb, per_step, first in ((CLIMBS["formed"], 2, 2), (CLIMBS["kept"], 1, 0)):
        end = go(problem, climb, [1.0, 0.0], [-1.0, 0.0], True)
        assert int(end.cost.gradients) == len(end.trace) + 1
        assert int(end.cost.hvps) == per_step * len(end.trace) + first


def test_an_update_takes_the_step_to_the_change():
    random = np.random.default_rng(0)
    root, exact = random.normal(size=(2, 5, 5))
    hessian, exact = root + root.T, exact + exact.T
    step = random.normal(size=5)
    new = updated(hessian, step, exact @ step)
    np.testing.assert_allclose(new @ step, exact @ step, atol=1e-12)
    np.testing.assert_allclose(new, new.T, atol=1e-14)
    # An orthogonal direction, if the error is along the step alone, keeps its image.
    right = updated(hessian, step, hessian @ step + 0.3 * step)
    np.testing.assert_allclose(
        right, hessian + 0.3 * np.outer(step, step) / (step @ step), atol=1e-12
    )
    np.testing.assert_array_equal(updated(hessian, 0 * step, step), hessian)


def test_without_a_symmetry():
    null, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(4, 1)))
    across = np.eye(4) - null @ null.T
    product = without(jnp.asarray(null), lambda v: jnp.arange(4.0) * v, level=7.0)
    matrix = np.array([product(row) for row in jnp.eye(4)])
    np.testing.assert_allclose(
        matrix, across @ np.diag(np.arange(4.0)) @ across + 7 * null @ null.T, atol=1e-12
    )


def test_a_climb_stays_across_a_symmetry():
    """In a ring potential the angle is level: it is neither climbed nor moved along."""

    def loss(x):
        radius = jnp.linalg.norm(x[:2])
        return (radius - 2) ** 2 + (x[2] ** 2 - 1) ** 2

    ring = rr.Symmetry(lambda x: [jnp.stack([-x[1], x[0], jnp.zeros(())])])
    problem, climb = rr.Problem(loss, jnp.ones(3)), Climb(num_products=0)
    end = go(problem, climb, [2.0, 0.0, 1.0], [0.0, 0.0, -1.0], True, ring)
    np.testing.assert_allclose(end.x, [2.0, 0.0, 0.0], atol=1e-6)
    assert float(end.asymmetry) < 1e-12


@pytest.mark.parametrize("name", ["formed", "kept"])
def test_a_climb_slides_along_a_face(name):
    """Beyond the bound the valley turns: on it the crest is where the slope along it vanishes."""

    def loss(x):
        return (x[0] ** 2 - 1) ** 2 + (x[1] - 0.8 * x[0] + 1) ** 2

    problem, bounds = rr.Problem(loss, jnp.ones(2)), (np.array([-2.0, -0.6]), np.array([2.0, 2.0]))
    end = go(problem, CLIMBS[name], [1.0, -0.2], [-1.0, -0.5], True, bounds=bounds)
    assert ENDINGS[end.ending] == "stationary" and end.x[1] == -0.6
    slope = 4 * end.x[0] * (end.x[0] ** 2 - 1) - 1.6 * (0.4 - 0.8 * end.x[0])
    assert slope == pytest.approx(0, abs=1e-6)
    corner = rr.Problem(lambda x: x[0] + x[1], jnp.ones(2))
    end = go(corner, CLIMBS[name], [0.5, 0.5], [1.0, 0.0], False, bounds=(np.zeros(2), np.ones(2)))
    assert ENDINGS[end.ending] == "stationary" and end.x.tolist() == [0.0, 0.0]
