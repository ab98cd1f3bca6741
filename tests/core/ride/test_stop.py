"""Stop rules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider.problems import wells
from tests.cases import make_cliff, reasons, ride, ride_from_start, ridge_along, spectrum_of

STOPS = [rr.curvature_gone, rr.not_finite, rr.RidgeLost(), rr.Stalled()]


@pytest.mark.parametrize("rule", STOPS)
def test_stop_rules_return_a_scalar_bool(rule):
    result = ride_from_start(wells(2), rr.Rider(max_steps=3))
    out = jax.eval_shape(rule, result)
    assert out.shape == () and out.dtype == bool


def test_stalled_fires_where_the_loss_flattens_out():
    problem = rr.Problem(lambda x: jax.nn.sigmoid(x[0]), jnp.array([-0.5]))
    # Curvature is negative for x > 0: climb there, and the loss flattens towards 1.
    rider = rr.Rider(step=rr.FixedStep(1.0), stop=(rr.Stalled(5, 1e-3),), update=rr.Keep())
    result = ride(problem, rider, jnp.array([0.5]), ridge_along([1.0]))
    steps = int(result.num_steps)
    losses = np.asarray(result.trace.loss)
    assert reasons(rider, result) == ["Stalled"]
    threshold = 1e-3 * (losses[steps] - losses[0])
    assert losses[steps] - losses[steps - 5] <= threshold < losses[steps - 1] - losses[steps - 6]
    # Neither the scale of the loss nor its zero matters.
    scaled = rr.Problem(lambda x: 1e-9 * jax.nn.sigmoid(x[0]) + 1e-6, jnp.array([-0.5]))
    assert int(ride(scaled, rider, jnp.array([0.5]), ridge_along([1.0])).num_steps) == steps


def crest_loss(x):
    return x[0] ** 4 / 40 - x[0] ** 2 / 2 + x[1] ** 2


@pytest.mark.parametrize("start", [-1.0, -1.03])
def test_a_climb_over_a_crest_is_no_stall(start):
    """After twenty steps the loss is what it was, on the other side."""
    problem = rr.Problem(crest_loss, jnp.array([start, 0.0]))
    rider = rr.Rider(step=rr.FixedStep(0.1), finish=None)
    ridge = spectrum_of(problem).ridge(0)
    assert float(ridge.direction[0]) > 0  # uphill at first
    end = ride(problem, rider, problem.x0, ridge)
    assert "curvature_gone" in reasons(rider, end)
    assert float(end.x[0]) > 1.8


def test_a_nan_ends_the_ride_and_is_not_stepped_into():
    problem, rider = make_cliff(), rr.Rider(step=rr.FixedStep(0.2))
    result = ride_from_start(problem, rider)
    assert reasons(rider, result) == ["not_finite"]
    np.testing.assert_allclose(np.abs(result.x), [0.4, 0])
    assert np.isfinite(result.loss) and np.isnan(result.trace.loss[int(result.num_steps)])


def test_max_steps_ends_a_ride():
    rider = rr.Rider(step=rr.FixedStep(1e-3), max_steps=7)
    result = ride_from_start(wells(2), rider)
    assert reasons(rider, result) == ["max_steps"] and int(result.num_steps) == 7
