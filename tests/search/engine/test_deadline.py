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
from ridgerider._core.runtime.compile import compiled, seconds_compiling
from ridgerider._search.engine.rides import ride_one
from ridgerider.problems import wells

PROBLEM, KEY = wells(2), jax.random.key(0)
RIDGE = rr.DenseSpectrum()(PROBLEM, PROBLEM.x0, KEY).ridge(0)


def test_a_clock_changes_no_ride():
    rider, lane = rr.Rider(step=rr.FixedStep(0.01), max_steps=60), (PROBLEM.x0, RIDGE, KEY)
    ride = compiled(ride_one)
    whole, ended = ride(PROBLEM, rider, *lane)
    with clock.limited(1e6):
        timed, ended_too = ride(PROBLEM.timed(), rider, *lane)
    assert whole.num_steps == timed.num_steps and (ended == ended_too).all()
    np.testing.assert_allclose(whole.trace.loss, timed.trace.loss, rtol=1e-12)


def test_a_loss_is_not_evaluated_when_the_time_is_up():
    """Nor its derivatives, alone and side by side."""
    with clock.limited(0.0):
        timed = PROBLEM.timed()
    several = jnp.ones((3, 2))
    for of in (timed.value, timed.grad, lambda x: timed.hvp(x, x), timed.hessian):
        assert np.isnan(of(PROBLEM.x0)).all() and np.isnan(jax.vmap(of)(several)).all()
    assert np.isfinite(PROBLEM.value(PROBLEM.x0))


def test_a_ride_without_end_ends_in_time():
    # A million steps take longer than a second anywhere.
    endless = rr.Rider(step=rr.FixedStep(1e-9), stop=(), finish=None, max_steps=1_000_000)
    result = rr.search(PROBLEM, endless, max_seconds=1.0)
    assert len(result) == 0


class Slow:
    """A function that takes a while, and knows how often it was called."""

    def __init__(self, seconds):
        self.seconds, self.num_calls = seconds, 0

    def __call__(self, x):
        self.num_calls += 1
        time.sleep(self.seconds)
        return float(np.sum(x**4 / 4 - x**2 / 2)), x**3 - x


@pytest.mark.parametrize("make", [rr.search, rr.explore])
@pytest.mark.parametrize("limit", [0.001, 0.3, 1.0])
def test_the_start_and_all_else_are_inside_the_limit(make, limit, tmp_path):
    """Met within a call and a second; what was found is returned, and resumed to the whole."""
    function, start = Slow(0.02), np.zeros(2) if make is rr.search else np.array([0.7, 0.4])
    problem = rr.Problem.from_functions(function, start)
    before, began, compiling = function.num_calls, time.perf_counter(), seconds_compiling()
    path = tmp_path / "run.sqlite"
    cut = make(problem, max_seconds=limit, max_rides=4, out=path)
    seconds = time.perf_counter() - began - (seconds_compiling() - compiling)
    assert seconds < limit + function.seconds + 1
    assert int(cut.cost.gradients) <= function.num_calls - before
    calls = function.num_calls
    time.sleep(0.1)
    assert function.num_calls == calls  # nobody calls it any more
    function.seconds = 0.0
    resumed, whole = rr.resume(path, problem, max_seconds=1e6), make(problem, max_rides=4)
    assert resumed.leg("").loss == whole.leg("").loss and len(resumed) == len(whole) == 4
    for name in whole._store.fingerprints():
        np.testing.assert_array_equal(resumed.leg(name).x, whole.leg(name).x)


def test_workers_that_do_not_come_back_in_time(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    class Waiting(eqx.Module):
        def __call__(self, problem, x, ridge, key):
            jax.debug.callback(partial(time.sleep, 0.05))
            return rr.Keep()(problem, x, ridge, key)

    rider = rr.Rider(update=Waiting(), step=rr.FixedStep(1e-3), stop=(), finish=None, max_steps=60)
    with ThreadPoolExecutor(1) as executor:
        result = rr.search(PROBLEM, rider, max_seconds=0.5, executor=executor)
    assert len(result) == 0


def test_a_relaxation_stops_in_time():
    problem = rr.Problem(lambda x, y: jnp.mean((x - y) ** 2), jnp.zeros(()), jnp.ones(8))
    with clock.limited(0.0), pytest.raises(clock.OutOfTime):
        rr.Relax()(problem, problem.x0, KEY)
