"""Minima that are whole sets: each is one solution, and a plateau above a well is none."""

import numpy as np
import pytest

import ridgerider as rr

# Functions, their bounds, and the number of connected sets of minima, by their formulas.
LEVEL = {
    "a ring": (lambda x: (x @ x - 1) ** 2, [(-2, 2)] * 2, 1),
    "an arc": (lambda x: (x @ x - 1) ** 2, [(0, 2)] * 2, 1),
    "two rings": (
        lambda x: ((abs(x[0]) - 1.5) ** 2 + x[1] ** 2 - 1) ** 2,
        [(-3, 3), (-3, 3)],
        2,
    ),
    "a coordinate that does not matter": (lambda x: (x[0] ** 2 - 1) ** 2, [(-2, 2)] * 2, 2),
    "a plateau": (lambda x: max(0, x @ x - 1) ** 2, [(-2, 2)] * 2, 1),
    "two plateaus": (
        lambda x: max(0, abs(abs(x[0]) - 2) - 1) ** 2 + x[1] ** 2,
        [(-4, 4)] * 2,
        2,
    ),
    "a hyperbola": (lambda x: (x[0] * x[1] - 1) ** 2, [(-3, 3)] * 2, 2),
    "a parabola": (lambda x: (x[1] - x[0] ** 2) ** 2 + 3, [(-2, 2)] * 2, 1),
    "without bounds": (lambda x: (x[0] ** 2 - 1) ** 2, None, 2),
    "a well on a plain": (
        lambda x: -(max(0, 6 - np.sum((x - 1) ** 2)) ** 2),
        [(-9, 9)] * 2,
        1,
    ),
    "wells that are not joined": (
        lambda x: (x @ x - 1) ** 2 + 0.02 * np.cos(5 * np.arctan2(x[1], x[0])),
        [(-2, 2)] * 2,
        5,
    ),
}


@pytest.mark.parametrize("name", LEVEL)
def test_a_connected_set_of_minima_is_one(name):
    fun, bounds, wanted = LEVEL[name]
    found = rr.minimize_all(fun, [0.37, 0.61], bounds=bounds)
    assert len(found) == wanted and found.success and not found.undecided
    for one in found:
        assert one.fun == pytest.approx(found[0].fun, abs=1e-8)
    assert found.nfev <= 20_000


def test_parallel_lines_are_not_joined():
    """Between two lines lies another, which the middle of a straight way may hit."""
    found = rr.minimize_all(lambda x: np.sin(x[0] + x[1]) ** 2, [0.4, 0.6], bounds=[(-3, 3)] * 2)
    lines = sorted(round(np.sum(one.x) / np.pi, 3) for one in found if one.fun < 1e-6)
    assert lines == [-1, 0, 1]


def test_what_no_calls_are_left_to_compare_is_undecided():
    found = rr.minimize_all(
        lambda x: (x[0] ** 2 - 1) ** 2, [0.37, 0.61], bounds=[(-2, 2)] * 2, max_calls=60
    )
    assert found.nfev <= 60 and len(found) + len(found.undecided) >= 1
    assert all(one.status == 2 and not one.success for one in found.undecided)


def test_rings_leave_calls_for_the_minimum_in_their_middle():
    """Each ring is level, and a few calls recognise it: hundreds of starts are made."""

    def fun(x):
        square = np.sum((x - [3, -4]) ** 2)
        return 0.02 * np.sqrt(square + 1) - np.cos(np.sqrt(square + 0.04))

    found = rr.minimize_all(fun, [17.0, 11.0], bounds=[(-30, 30)] * 2)
    assert np.allclose(found[0].x, [3, -4], atol=1e-4) and len(found.landscape) > 200
    radii = sorted(np.linalg.norm(one.x - [3, -4]) for one in found[:5])
    assert np.diff(radii).min() > 5  # each ring once, 2 pi apart
