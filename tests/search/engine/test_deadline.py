"""`max_seconds` ends a search in mid-leg, and what is cut off is ridden again on resume."""

import time
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._core.runtime import clock
from ridgerider._search.engine.lanes import ride_one, side_by_side
from ridgerider.problems import wells

PROBLEM, KEY = wells(2), jax.random.key(0)
RIDGE = rr.DenseSpectrum()(PROBLEM, PROBLEM.x0, KEY).ridge(0)


def test_slices_are_the_whole_ride():
    rider, lane = rr.Rider(step=rr.FixedStep(0.01), max_steps=60), (PROBLEM.x0, RIDGE, KEY)
    ((whole, ended),) = side_by_side(ride_one, PROBLEM, rider, [lane], 1)
    with clock.limited(1e6):
        ((cut, ended_too),) = side_by_side(ride_one, PROBLEM, rider, [lane], 1)
    assert whole.num_steps == cut.num_steps and (ended == ended_too).all()
    np.testing.assert_allclose(whole.trace.loss, cut.trace.loss, rtol=1e-12)


def test_a_ride_without_end_ends_in_time():
    # A million steps take longer than a second anywhere.
    endless = rr.Rider(step=rr.FixedStep(1e-9), stop=(), finish=None, max_steps=1_000_000)
    result = rr.search(PROBLEM, endless, max_seconds=1.0)
    assert len(result) == 0


class Clock:
    """The time is up when it is looked at for the `most`-th time."""

    def __init__(self, most):
        self.left = most

    def __call__(self):
        self.left -= 1
        return 1.0 if self.left > 0 else 0.0


@pytest.mark.parametrize("most", [3, 12, 25])
def test_what_is_cut_off_is_ridden_on_resume(most, tmp_path, monkeypatch):
    rider = rr.Rider(max_steps=40)
    whole = rr.search(PROBLEM, rider, max_rides=6)
    with monkeypatch.context() as patch:
        patch.setattr(clock, "seconds_left", Clock(most))
        patch.setattr("ridgerider._search.engine.lanes.seconds_left", clock.seconds_left)
        cut = rr.search(PROBLEM, rider, max_rides=6, max_seconds=1e6, out=tmp_path / "run.sqlite")
    assert len(cut) < len(whole)
    result = rr.resume(tmp_path / "run.sqlite", PROBLEM, max_seconds=None)
    assert result.fingerprints() == whole.fingerprints()
    for name in whole.fingerprints():
        np.testing.assert_allclose(result.leg(name).x, whole.leg(name).x, rtol=1e-9, atol=1e-9)


def test_workers_that_do_not_come_back_in_time(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    class Slow(eqx.Module):
        def __call__(self, problem, x, ridge, key):
            jax.debug.callback(partial(time.sleep, 0.05))
            return rr.Keep()(problem, x, ridge, key)

    rider = rr.Rider(update=Slow(), step=rr.FixedStep(1e-3), stop=(), finish=None, max_steps=60)
    with ThreadPoolExecutor(1) as executor:
        result = rr.search(PROBLEM, rider, max_seconds=0.5, executor=executor)
    assert len(result) == 0


def test_a_relaxation_stops_in_time():
    problem = rr.Problem(lambda x, y: jnp.mean((x - y) ** 2), jnp.zeros(()), jnp.ones(8))
    with clock.limited(0.0), pytest.raises(clock.OutOfTime):
        rr.Relax()(problem, problem.x0, KEY)
