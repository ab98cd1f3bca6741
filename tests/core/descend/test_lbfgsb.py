"""Descents on the host end in the well where they begin, at a bound or inside."""

import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._core.descend.lbfgsb import descend
from ridgerider._core.points.domain import Domain
from ridgerider._core.problem.calls import Calls


def from_(loss, x, first=0.05, low=None, high=None, **options):
    x = np.asarray(x, float)
    problem = rr.Problem(loss, jnp.asarray(x))
    return descend(Calls(problem), Domain(problem, None, low, high), x, first, **options)


def test_a_descent_stays_in_its_well():
    for begin in np.linspace(0.13, 5.77, 12):
        end = from_(lambda x: jnp.sum(jnp.cos(2 * np.pi * x)), [begin], first=0.02)
        assert abs(end.x[0] - (np.floor(begin) + 0.5)) < 0.05
        assert end.losses[0] >= end.loss and (np.diff(end.losses) <= 0).all()


def test_it_ends_at_a_bound():
    end = from_(lambda x: jnp.sum(x) + x[1] ** 2, [0.8, 0.9], low=-np.ones(2), high=np.ones(2))
    assert end.x[0] == -1.0
    assert end.x[1] == pytest.approx(-0.5, abs=1e-2)


def test_it_ends_far_away_and_where_there_is_no_number():
    assert from_(lambda x: -jnp.sum(x**2), [0.1], most=3.0).is_far
    end = from_(lambda x: jnp.sum(jnp.log(x)), [-1.0])
    assert not end.is_finite and len(end.losses) == 1


def test_less_gain_is_closer():
    ends = [
        from_(lambda x: jnp.sum(jnp.cosh(x - 0.3)), [2.0, -1.0], gain=gain)
        for gain in (1e-2, 1e-12)
    ]
    far = [np.abs(end.x - 0.3).max() for end in ends]
    assert far[1] < 1e-5 and far[1] <= far[0]
