"""Riding networks: the model that ridge, corrector and step share, and whole rides."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._core.ride import trust_region as follow
from tests.cases import reasons

KEY = jax.random.key(0)
INPUTS = jax.random.normal(KEY, (200, 6))
LABELS = jnp.argmax(INPUTS[:, :3], axis=1)


def quadratic(x, matrix, slope):
    return x @ matrix @ x / 2 + slope @ x


def with_spectrum(eigenvalues, dtype=jnp.float64, seed=0):
    """A quadratic loss with these eigenvalues, in a random basis, and that basis as rows."""
    random = np.random.default_rng(seed)
    size = len(eigenvalues)
    basis = np.linalg.qr(random.standard_normal((size, size)))[0]
    matrix = (basis * np.asarray(eigenvalues)) @ basis.T
    arrays = [matrix, random.standard_normal(size), np.zeros(size)]
    matrix, slope, start = (jnp.asarray(array, dtype) for array in arrays)
    return rr.Problem(quadratic, start, matrix, slope), basis.T


def followed(problem, rows, x, ridge=None, **settings):
    if ridge is None:
        ridge = rr.types.Ridge(jnp.asarray(rows[0]), jnp.array(-1.0), jnp.array(0), jnp.array(1))
    return rr.Follow(**settings)(problem, x, ridge, KEY)


def test_the_move_is_newtons_in_the_stiff_directions(monkeypatch):
    monkeypatch.setattr(follow, "MIN_HVPS", 10)
    eigenvalues = np.array([-1.0, -0.5, 1.0, 2.0, 3.0])
    problem, rows = with_spectrum(eigenvalues)
    footing = followed(problem, rows, problem.x0, max_hvps=10).ridge.memory
    slope = rows @ np.asarray(problem.args[1])
    damped = eigenvalues + 0.01 * 3.0
    newton = np.where(eigenvalues > 0, -slope / damped, 0) @ rows
    np.testing.assert_allclose(footing.move, newton, atol=1e-8)


def test_a_quadratic_loss_is_predicted_exactly():
    problem, rows = with_spectrum([-1.0, -0.5, 1.0, 2.0, 3.0])
    first = followed(problem, rows, problem.x0)
    x = problem.x0 + 0.03 * first.ridge.direction
    x, cost = rr.Follow().correct(problem, x, first.ridge)
    assert cost.hvps == 0
    # No longer than four times the step along the ridge.
    np.testing.assert_allclose(jnp.linalg.norm(x - problem.x0), 0.03 * np.sqrt(17), rtol=1e-9)
    second = followed(problem, rows, x, first.ridge)
    assert second.ridge.memory.mistake < 1e-9
    assert second.ridge.memory.damping < first.ridge.memory.damping
    np.testing.assert_allclose(second.ridge.eigenvalue, -1, atol=1e-8)
    wrong = eqx.tree_at(lambda ridge: ridge.memory.slope, first.ridge, jnp.array(50.0))
    third = followed(problem, rows, x, wrong)
    assert third.ridge.memory.mistake > 0.5
    assert third.ridge.memory.damping > first.ridge.memory.damping


def test_noise_is_no_signal():
    """A gradient of which the halves of a batch disagree altogether moves nothing."""

    def loss(x, data):
        return jnp.mean(x @ x / 2 + data * x[0])

    alternating = jnp.tile(jnp.array([1.0, -0.98]), 50)
    problem = rr.Problem(loss, jnp.array([0.1, 0.0, 0.0]), alternating)
    on_rows = rr.types.FixedRows()(problem, KEY, 0)
    ridge = rr.types.Ridge(jnp.array([0.0, 1.0, 0.0]), jnp.array(1.0), jnp.array(0), jnp.array(1))
    moved = rr.Follow()(problem, problem.x0, ridge, KEY).ridge.memory
    still = rr.Follow()(on_rows, problem.x0, ridge, KEY).ridge.memory
    assert jnp.linalg.norm(moved.move) > 0.05
    assert jnp.linalg.norm(still.move) == 0


def network(dtype=jnp.float32, seed=0):
    keys = jax.random.split(jax.random.key(seed))
    params = {
        "in": jax.random.normal(keys[0], (6, 8), dtype) / 2,
        "out": jax.random.normal(keys[1], (8, 3), dtype),
    }
    return rr.network_start(params, apply, INPUTS.astype(dtype), LABELS)


def apply(params, inputs):
    return jnp.tanh(inputs @ params["in"]) @ params["out"]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_every_leg_of_a_network_goes_somewhere(dtype):
    start = network(dtype)
    rider = rr.Rider.for_networks(finish=None, max_steps=60)
    result = rr.search(start.problem, rider, max_rides=6, max_depth=1)
    assert len(result) == 6
    for leg in result:
        assert leg.num_steps > 0 and leg.x.dtype == dtype
        hvps = np.asarray(leg.cost.hvps)
        assert hvps <= 8 * 5 * (leg.num_steps + 1) + 2 * 30  # halvings included
    assert min(leg.loss for leg in result) < 0.9 * start.loss


def test_a_leg_of_a_network_ends_trained():
    start = network()
    rider = rr.Rider.for_networks(finish=rr.Relax(min_steps=2000))
    result = rr.search(start.problem, rider, max_rides=1)
    (leg,) = result
    assert leg.finish.kind == "unverified" and leg.finish.x.dtype == np.float32
    assert leg.finish.loss < 0.3 * start.loss
    history = leg.finish.history
    assert history["loss"][-1] == leg.finish.loss and set(history["batch_size"][1:]) >= {128}


def test_fields_of_the_rider_can_be_set():
    rider = rr.Rider.for_networks(max_steps=7, finish=None)
    assert rider.max_steps == 7 and rider.finish is None
    assert dataclasses.replace(rider, max_steps=8).update == rider.update
    with pytest.raises(TypeError, match="nonsense"):
        rr.Rider.for_networks(nonsense=1)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: rr.BlockSpectrum.for_networks(k=0), "`k` must be"),
        (lambda: rr.BlockSpectrum.for_networks(k=8, max_hvps=4), "`max_hvps` must be"),
        (lambda: rr.Follow(max_hvps=2), "`max_hvps` must be"),
        (lambda: rr.Follow(size=0.0), "`size` must be"),
        (lambda: rr.types.FixedRows(0), "`size` must be"),
        (lambda: rr.Relax(epochs=0), "`epochs` must be"),
        (lambda: rr.Relax(target=-1.0), "`target` must be"),
    ],
)
def test_bad_settings(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_the_first_row_of_a_ride_is_its_start():
    start = network(jnp.float64)
    problem, rider = start.problem, rr.Rider.for_networks(max_steps=3)
    x, spectrum = problem.x0, rider.spectrum_at(problem, problem.x0, KEY)
    ride = rider.ride(problem, x, spectrum.ridge(0), KEY)
    assert int(ride.num_steps) == 3 and bool(ride.is_finite)
    np.testing.assert_allclose(ride.trace.loss[0], problem.value(x), rtol=1e-12)
    np.testing.assert_allclose(ride.trace.eigenvalue[0], spectrum.eigenvalues[0], rtol=1e-2)
    assert ride.trace.step_size[0] == 0
    np.testing.assert_allclose(ride.trace.step_size[1], rider.update.size)


def test_a_ride_that_begins_at_nan_ends_there():
    problem = rr.Problem(lambda x, y: jnp.mean(y * x[0] ** 2) + jnp.log(x[1]), -jnp.ones(2), INPUTS)
    rider = rr.Rider.for_networks()
    ridge = rr.types.Ridge(jnp.array([1.0, 0.0]), jnp.array(-1.0), jnp.array(0), jnp.array(1))
    ride = rider.ride(problem, problem.x0, ridge, KEY)
    names = np.array(rider.rule_names())[np.asarray(rider.ended(ride))]
    assert int(ride.num_steps) == 0 and "not_finite" in names
    assert (ride.x == problem.x0).all()


def test_a_search_compiles_no_second_look_at_the_start():
    traces = []

    def counted(params, inputs):
        traces.append(None)
        return apply(params, inputs)

    params = {"in": jnp.eye(6, 8), "out": jnp.ones((8, 3))}
    start = rr.network_start(params, counted, INPUTS, LABELS)
    before = len(traces)
    rr.search(start.problem, rr.Rider.for_networks(max_steps=7), max_rides=0)
    # Two to see that they are the same, one for the loss on all data.
    assert len(traces) - before <= 3


def test_follow_has_its_own_step_rule_and_corrector():
    for fields in ({"step": rr.FixedStep()}, {"correct": rr.Valley()}):
        with pytest.raises(ValueError, match="`step` and `correct` must be None with `Follow`"):
            rr.Rider.for_networks(**fields)
    with pytest.raises(ValueError, match="`step` and `correct` must be None with `Follow`"):
        rr.Rider(update=rr.Follow())
    with pytest.raises(
        ValueError, match=r"`step` must be callable, with a field `size`, .* not None"
    ):
        rr.Rider.for_networks(update=rr.Project())


def test_a_ride_that_loses_its_ridge_ends_and_says_so():
    """A direction that is no ridge is lost at once: each of three ridges has a third of it."""
    problem, rows = with_spectrum([-3.0, -2.0, -1.0])
    rider = rr.Rider.for_networks(finish=None)
    ridge = rr.types.Ridge(jnp.asarray(rows).sum(0) / np.sqrt(3), *map(jnp.array, (-2.0, 0, 1)))
    lost = rider.ride(problem, problem.x0, ridge, KEY)
    assert reasons(rider, lost) == ["RidgeLost"] and int(lost.num_steps) == 0
    assert float(lost.overlap) == pytest.approx(1 / np.sqrt(3))


def test_every_step_of_a_network_but_the_last_is_on_the_ridge():
    problem, rider = network().problem, rr.Rider.for_networks(finish=None, max_steps=60)
    spectrum = rider.spectrum_at(problem, problem.x0, KEY)
    for index in range(2):
        ride = rider.ride(problem, problem.x0, spectrum.ridge(index), KEY)
        overlaps = np.asarray(ride.trace.overlap)[: int(ride.num_steps) + 1]
        assert (overlaps[:-1] >= 0.7072).all()
        assert (overlaps[-1] < 0.7072) == ("RidgeLost" in reasons(rider, ride))
