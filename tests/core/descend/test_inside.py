"""Descents on the host end in the well where they begin, at a bound or inside."""

import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._core.descend.inside import descend
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


def test_it_ends_where_newtons_steps_take_over():
    end = from_(lambda x: jnp.sum(jnp.cosh(x - 0.3)), [2.0, -1.0])
    assert np.abs(end.x - 0.3).max() < 0.05
    from_a_known_hessian = from_(
        lambda x: jnp.sum(jnp.cosh(x - 0.3)), [0.32, 0.29], hessian=np.eye(2)
    )
    assert np.abs(from_a_known_hessian.x - 0.3).max() < 1e-3


def test_a_narrow_valley_is_followed_to_its_end():
    end = from_(lambda x: (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2, [-1.2, 1.0])
    assert np.abs(end.x - 1).max() < 1e-2 and len(end.losses) < 80


def test_a_trial_of_values_costs_no_gradient():
    calls = {"values": 0, "gradients": 0}

    class Counted(Calls):
        def trial(self, x):
            calls["values"] += 1
            return float(np.cos(40 * x[0]))

        def value_and_grad(self, x):
            calls["gradients"] += 1
            return float(np.cos(40 * x[0])), -40 * np.sin(40 * x)

    problem = rr.Problem(lambda x: jnp.cos(40 * x[0]), jnp.zeros(1))
    end = descend(Counted(problem), Domain(problem), np.array([0.01]), 0.3)
    assert abs(np.sin(40 * end.x[0])) < 0.1 and np.cos(40 * end.x[0]) < 0
    assert calls["gradients"] == len(end.losses) and calls["values"] >= calls["gradients"]
