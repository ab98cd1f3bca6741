"""Walks along flat directions, on families whose shape is known."""

import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._core.points.families import walk

NEAR = 1e-6


def leads(loss, a, b):
    problem = rr.Problem(loss, jnp.zeros(len(a)))
    return walk(problem, *(np.asarray(one, problem.dtype) for one in (a, b)), NEAR)


def circle(x):
    return (x[0] ** 2 + x[1] ** 2 - 1) ** 2


def two_circles(x):
    return circle(x) * ((x[0] - 4) ** 2 + x[1] ** 2 - 1) ** 2


def at(angle):
    return np.array([np.cos(angle), np.sin(angle)])


@pytest.mark.parametrize("angle", [0.1, 1.0, 2.5, np.pi])
def test_points_of_a_circle_are_one_family(angle):
    assert leads(circle, at(0.3), at(0.3 + angle))


def test_a_product_of_two_numbers_is_a_family_for_each_sign():
    """(x y - 1)^2 = 0 is a hyperbola with two branches."""
    loss = lambda x: (x[0] * x[1] - 1) ** 2  # noqa: E731
    assert leads(loss, [1.0, 1.0], [2.0, 0.5])
    assert not leads(loss, [1.0, 1.0], [-1.0, -1.0])


def test_two_circles_are_two_families():
    assert not leads(two_circles, at(0.5), at(0.5) + np.array([4.0, 0.0]))


def test_isolated_minima_are_not_joined():
    loss = lambda x: (x[0] ** 2 - 1) ** 2 + x[1] ** 2  # noqa: E731
    assert not leads(loss, [1.0, 0.0], [-1.0, 0.0])


def test_a_point_is_in_its_own_family():
    assert leads(circle, at(1.0), at(1.0))
