"""Mini-batches, chunks, noise and determinism."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._core.problem.batches import strata

KEY = jax.random.key(0)
DATA = np.random.default_rng(0).normal(size=(60, 3))


def wavy_loss(x, data):
    return jnp.mean(jnp.cos(data @ x)) + jnp.sum(x**4) / 10


PROBLEM = rr.Problem(wavy_loss, jnp.array([0.1, 0.2, -0.1]), jnp.asarray(DATA))


def test_chunks_change_nothing_but_memory():
    x, v = jnp.array([0.3, -0.2, 0.5]), jnp.array([1.0, 2.0, -1.0])
    chunked = PROBLEM.on_rows(jnp.arange(60).reshape(5, 12))
    growing = eqx.filter_jit(
        lambda num: PROBLEM.on_rows(jnp.arange(60).reshape(5, 12), num).hvp(x, v)
    )

    @eqx.filter_jit
    def derivatives(problem):
        return problem.value(x), problem.grad(x), problem.hvp(x, v), problem.hessian(x)

    whole = derivatives(PROBLEM)
    for one, two in zip(whole, derivatives(chunked), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-14)
    np.testing.assert_allclose(
        whole[1], jax.jit(jax.grad(lambda x: chunked.value(x)))(x), atol=1e-14
    )
    np.testing.assert_allclose(whole[2], growing(jnp.array(5)), atol=1e-14)
    some = rr.Problem(wavy_loss, x, jnp.asarray(DATA[:24]))
    np.testing.assert_allclose(growing(jnp.array(2)), derivatives(some)[2], atol=1e-14)


def test_strata_are_fair():
    draw = jax.jit(lambda step: rr.Batches(13)(PROBLEM, KEY, step).rows[0])
    rows = np.stack([draw(step) for step in range(2000)])
    assert all(len(set(row)) == 13 for row in rows.tolist())
    counts = np.bincount(rows.ravel(), minlength=60)
    # Each row is drawn with probability 13 / 60: within 5 standard deviations.
    np.testing.assert_allclose(counts, 2000 * 13 / 60, atol=5 * np.sqrt(2000 * 0.217 * 0.783))
    everything = rr.Batches(60)(PROBLEM, KEY, 0).rows
    np.testing.assert_array_equal(np.sort(everything[0]), np.arange(60))


def test_kinds_of_batches():
    resampled, fixed = rr.Batches(12), rr.Batches(12, "fixed", micro_size=4)
    one, two = (resampled(PROBLEM, KEY, step).rows for step in (0, 1))
    assert not np.array_equal(one, two)
    three, four = (fixed(PROBLEM, KEY, step).rows for step in (0, 1))
    np.testing.assert_array_equal(three, four)
    assert three.shape == (3, 4)


def test_strata_as_many_as_rows_are_all_of_the_data():
    for size in (60, jnp.array(60)):
        rows = strata(KEY, 60, size, 60)
        np.testing.assert_array_equal(np.sort(rows), np.arange(60))


def test_a_ride_on_batches_repeats():
    rider = rr.Rider(
        update=rr.Davidson(),
        batch=rr.Batches(30),
        step=rr.FixedStep(0.02),
        max_steps=6,
    )
    ridge = eqx.filter_jit(rider.spectrum_at)(PROBLEM, PROBLEM.x0, KEY).ridge(0)
    ride = eqx.filter_jit(rider.ride)
    one, two = (ride(PROBLEM, PROBLEM.x0, ridge, KEY) for _ in range(2))
    np.testing.assert_array_equal(one.x, two.x)


def test_a_search_on_batches_runs_and_repeats():
    rider = rr.Rider(update=rr.Davidson(), batch=rr.Batches(30, "fixed"), max_steps=50)
    one, two = (rr.search(PROBLEM, rider, max_rides=2) for _ in range(2))
    assert [leg.loss for leg in one] == [leg.loss for leg in two]
    assert len(one) == 2


def test_a_random_loss_is_named():
    noise = np.random.default_rng(0)

    def drawing(x):
        return jnp.sum(x**2) * noise.normal()

    def calling(x):
        out = jax.ShapeDtypeStruct((), x.dtype)
        return -jnp.sum(x**2) * jax.lax.stop_gradient(
            jax.pure_callback(lambda: noise.normal(), out)
        )

    with pytest.raises(ValueError, match="`loss` must be deterministic, but two traces of it"):
        rr.search(rr.Problem(drawing, jnp.ones(2)))
    with pytest.raises(ValueError, match="`loss` must be deterministic, but two calls at `start`"):
        rr.search(rr.Problem(calling, jnp.ones(2)))
    PROBLEM.check_deterministic()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: rr.Batches(0), "`size` must be a whole number of at least 1, not 0"),
        (lambda: rr.Batches(4, "some"), "`kind` must be 'resampled' or 'fixed', not 'some'"),  # type: ignore[arg-type]
        (lambda: rr.Batches(10, micro_size=3), "`micro_size` must divide `size`, 10, but it is 3"),
        (
            lambda: rr.search(PROBLEM, rr.Rider(batch=rr.Batches(61))),
            "`size` must be at most the number of examples, 60, not 61",
        ),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_data_of_different_lengths_cannot_be_cut():
    problem = rr.Problem(
        lambda x, a, b: a[0] * b[0] * x[0] ** 2, jnp.ones(1), jnp.ones(3), jnp.ones(4)
    )
    with pytest.raises(ValueError, match="`args` must be arrays of one leading length"):
        rr.Batches(2)(problem, KEY, 0)
