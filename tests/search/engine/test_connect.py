"""Connecting two minima: closed forms, gaps, copies, run files, and networks without a matrix."""

import time

import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._core.points.band import aligned, maxima, relaxed
from ridgerider._core.points.domain import Domain
from ridgerider._core.problem.calls import Calls
from ridgerider._search.engine import connect as connecting
from ridgerider.problems import mueller_brown, wells


def bent(x):
    """Two minima at (+-1, 0), and a saddle at (0, -1) of height 1, on the path y = x^2 - 1."""
    return (x[0] ** 2 - 1) ** 2 + (x[1] - x[0] ** 2 + 1) ** 2


def test_a_path_is_relaxed_to_the_valley_and_its_maximum_is_the_saddle():
    problem = rr.Problem(bent, jnp.zeros(2))
    ends = np.array([-1.0, 0.0]), np.array([1.0, 0.0])
    path = np.linspace(*ends, 11)
    images, losses, grads = relaxed(Calls(problem), Domain(problem), path, 60, 0.1)
    assert np.array_equal(images[0], ends[0]) and np.array_equal(images[-1], ends[1])
    tangents = np.gradient(images, axis=0)
    tangents /= np.linalg.norm(tangents, axis=1, keepdims=True)
    across = grads - np.sum(grads * tangents, axis=1, keepdims=True) * tangents
    assert np.abs(across[1:-1]).max() < 0.2  # 2 on the straight line
    lengths = np.linalg.norm(np.diff(images, axis=0), axis=1)
    np.testing.assert_allclose(lengths, lengths.mean(), rtol=0.05)
    (top,) = maxima(images, losses, grads)
    np.testing.assert_allclose(top, [0, -1], atol=0.05)


def test_maxima_of_a_cubic_are_exact():
    places = np.linspace(0, 3, 5)
    images = np.stack([places, 0 * places], 1)
    losses, slopes = places**3 - 4 * places**2 + 4 * places, 3 * places**2 - 8 * places + 4
    (top,) = maxima(images, losses, np.stack([slopes, 0 * places], 1))
    np.testing.assert_allclose(top, [2 / 3, 0], atol=1e-9)


def test_alignment_turns_and_does_not_stretch():
    points = np.random.default_rng(0).normal(size=(5, 3))
    turn, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))
    turn *= np.sign(np.linalg.det(turn))
    problem = rr.Problem(lambda x: jnp.sum(x**2), jnp.asarray(points))
    domain = Domain(problem, rr.symmetry.rigid(3))
    moved = (points @ turn.T + 1.0).ravel()
    found = aligned(domain, moved, points.ravel())
    np.testing.assert_allclose(found, points.ravel(), atol=0.02 * np.abs(points).max())


def test_a_path_through_a_wall_is_refused():
    def wall(x):
        return jnp.where(jnp.abs(x[0]) < 0.1, jnp.inf, bent(x))

    problem = rr.Problem(wall, jnp.ones(2))
    with pytest.raises(ValueError, match="must be finite, but that of image 2 of 3 is inf"):
        rr.connect(problem, jnp.array([-1.0, 0.0]), jnp.array([1.0, 0.0]), num_images=3)


def test_the_barrier_between_two_solutions():
    problem = rr.Problem(bent, jnp.zeros(2))
    landscape = rr.connect(problem, jnp.array([-0.8, 0.1]), jnp.array([1.1, 0.2]))
    one, two = landscape.starts()
    assert len(landscape) <= 6 and {one, two} == {0, 1}
    assert float(landscape.barrier(one, two)) == pytest.approx(1.0, abs=1e-9)


def test_gaps_are_closed_and_a_file_is_continued(tmp_path):
    path, problem = tmp_path / "run.sqlite", mueller_brown()
    one, two = jnp.array([-0.56, 1.44]), jnp.array([0.62, 0.03])
    landscape = rr.connect(problem, one, two, out=path)
    assert not np.isinf(landscape.barrier(*landscape.starts()))
    known = rr.explore(mueller_brown())
    highest = known.barrier(0, 1)
    assert float(landscape.barrier(*landscape.starts())) == pytest.approx(highest, abs=1e-6)
    again = rr.load(path, problem.with_start(one))
    assert len(again) == len(landscape)
    whole = rr.resume(path, problem.with_start(one), max_rides=200)
    assert len(whole.minima()) == len(known.minima())


def test_without_a_matrix():
    problem, climb = wells(4), rr.Climb(engine="hvp")
    one, two = jnp.full(4, 0.9), jnp.array([-0.9, 0.9, 0.9, 0.9])
    landscape = rr.connect(problem, one, two, climb)
    barrier = landscape.barrier(*landscape.starts())
    assert not np.isinf(barrier) and barrier.forward > 0


def test_the_problem_is_needed(tmp_path):
    path = tmp_path / "run.sqlite"
    rr.explore(mueller_brown(), max_rides=3, out=path)
    with pytest.raises(ValueError, match=r"needs the problem: open the file with rr\.load"):
        rr.load(path).connect(0, 0)


def ripples(x):
    return np.sin(3 * x[0]) * np.cos(2 * x[1]) + 0.1 * (x @ x) + 0.3 * x[0] * x[1]


def test_minima_of_a_numpy_function_inside_bounds_are_joined(monkeypatch):
    # The map itself has ended: no new start of it is wanted, whatever it would do next.
    minima = rr.minimize_all(ripples, [0.5, 0.5], bounds=[(-3, 3)] * 2, max_calls=3000)
    before = minima.landscape.cost
    landscape = minima.landscape.connect(0, 1)
    assert landscape.barrier(0, 1).saddle is not None
    assert landscape.cost.values > before.values
    monkeypatch.setattr(connecting, "_ride", raising(KeyboardInterrupt))
    assert landscape.connect(0, 2).minima()  # what was found


def raising(error):
    def ride(*args):
        raise error

    return ride


def test_given_starts_come_before_those_spread_over_bounds():
    problem = rr.Problem(lambda x: jnp.sum((x**2 - 1) ** 2 + 0.2 * x), jnp.array([0.8, 0.9]))
    inside = {"bounds": [(-2, 2)] * 2}
    landscape = rr.connect(problem, jnp.array([0.8, 0.9]), jnp.array([-1.1, 0.9]), **inside)
    here, there = landscape.starts()
    assert here != there and landscape.barrier(here, there).saddle is not None
    assert len(landscape.minima()) == 2
    mapped = rr.explore(problem, starts=[jnp.array([-1.1, 0.9])], max_rides=2, **inside)
    assert None not in mapped.starts()


def test_a_time_limit_holds_for_all_of_it():
    count = 0

    def slow(x):
        nonlocal count
        count += 1
        time.sleep(0.005)
        return float(np.sum(x**4 / 4 - x**2 / 2) + x[0] * x[1] / 4), x**3 - x + x[::-1] / 4

    problem = rr.Problem.from_functions(slow, np.array([0.5, 0.4]))
    ends = np.array([1.0, -1.0]), np.array([-1.0, 1.0])
    rr.connect(problem, *ends, max_calls=1)  # compiles
    for limit in (0.02, 0.4):
        before, began = count, time.perf_counter()
        found = rr.connect(problem, *ends, max_seconds=limit)
        assert time.perf_counter() - began < limit + 2
        # A leg that is cut off is not stored; calls of a start are counted all the same.
        is_begun = found.leg("").ended_by != ("max_seconds",)
        spent = count - before
        assert 0 < found.cost.values <= spent if is_begun else found.cost.values == spent
