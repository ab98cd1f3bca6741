"""Mini-batches, chunks, noise and determinism."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._core.problem.batches import strata
from ridgerider._search.runfile.rules import describe, rebuild

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


def test_a_ride_on_batches_is_audited_for_noise():
    rider = rr.Rider(
        update=rr.Davidson(),
        batch=rr.Batches(30),
        step=rr.FixedStep(0.02),
        max_steps=6,
        audit_every=3,
    )
    ridge = eqx.filter_jit(rider.spectrum_at)(PROBLEM, PROBLEM.x0, KEY).ridge(0)
    ride = eqx.filter_jit(rider.ride)
    one, two = (ride(PROBLEM, PROBLEM.x0, ridge, KEY) for _ in range(2))
    np.testing.assert_array_equal(one.x, two.x)
    found = one.trace.audit
    assert np.isfinite(found.eigenvalue_error[3]) and np.isnan(found.eigenvalue_error[2])
    assert found.drift[3] < 1e-3 and 0 <= found.overlap_error[3] < 0.5


def test_the_standard_error_covers_the_truth():
    """The halves' spread estimates the error of the batch: rms of the ratio near 1."""
    exact = np.linalg.eigvalsh(eqx.filter_jit(PROBLEM.hessian)(PROBLEM.x0))[0]

    @jax.jit
    def errors(key):
        on_batch = rr.Batches(20)(PROBLEM, key, 0)
        halves = [jnp.linalg.eigvalsh(half.hessian(PROBLEM.x0))[0] for half in on_batch.halves()]
        mean = jnp.linalg.eigvalsh(on_batch.hessian(PROBLEM.x0))[0]
        return (mean - exact) ** 2, (halves[0] - halves[1]) ** 2 / 4

    actual, estimated = jax.vmap(errors)(jax.random.split(KEY, 500))
    ratio = float(jnp.sqrt(jnp.mean(actual) / jnp.mean(estimated)))
    # Drawing a third of the rows without putting them back lowers the actual error by sqrt(2/3).
    assert 0.5 < ratio < 1.2


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
        (
            lambda: rr.Problem(wavy_loss, jnp.ones(3), jnp.ones((2, 3))).halves(),
            "only a problem on a batch can be halved",
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


# --- the rule that reads the standard errors

NUM, SIZE = 2000, 50
SPREAD = np.random.default_rng(1).normal(size=(NUM, 3))
SPREAD = (SPREAD - SPREAD.mean(axis=0)) / SPREAD.std(axis=0)
ERROR = 1 / np.sqrt(SIZE)  # the standard error of a batch's mean of a column of SPREAD


def noisy_quadratic(x, data):
    """Eigenvalues x.curvatures on all of the data; a batch adds a random symmetric matrix."""
    spread, curvatures = data[:, :3], data[0, 3:5]
    mean = jnp.mean(spread, axis=0)
    noise = mean[0] * x[0] ** 2 + mean[1] * x[1] ** 2 + 2 * mean[2] * x[0] * x[1]
    return (curvatures @ x**2 + noise) / 2


def noisy_rides(curvatures, is_careful, num_rides=200):
    """For each rule, how many rides along the first axis it ended, and the last points."""
    data = np.concatenate([SPREAD, np.broadcast_to(np.asarray(curvatures), (NUM, 2))], axis=1)
    problem = rr.Problem(noisy_quadratic, jnp.array([1e-3, 0.0]), jnp.asarray(data))
    # In two dimensions one of two directions has an overlap of 0.7071 at least.
    rules = (rr.curvature_gone, rr.RidgeLost(0.9), rr.not_finite)
    rider = rr.Rider(
        step=rr.FixedStep(0.01),
        batch=rr.Batches(SIZE),
        stop=((rr.WithinNoise(min_overlap=0.9), *rules) if is_careful else rules),
        audit_every=1,
        max_steps=20,
    )
    ridge = rr.types.Ridge(jnp.array([1.0, 0.0]), jnp.array(-1.0), jnp.array(0), jnp.array(1))

    def ride(key):
        end = rider.ride(problem, problem.x0, ridge, key)
        return rider.ended(end), end.x, end.num_steps

    ended, x, num_steps = jax.jit(jax.vmap(ride))(jax.random.split(KEY, num_rides))
    return rider.rule_names(), np.asarray(ended), np.asarray(x), np.asarray(num_steps)


def ended_by(rides, *which):
    """Rides that ended by one of these rules."""
    names, ended, *_ = rides
    return ended[:, [names.index(name) for name in which]].any(axis=1)


@pytest.mark.parametrize(
    ("curvatures", "rule"),
    # The truth: the ridge curves down for ever, by one standard error; or it is three of them away
    # from the other eigenvalue, and the same everywhere.
    [((-ERROR, 3.0), "curvature_gone"), ((-1.0, -1.0 + 3 * ERROR), "RidgeLost")],
)
def test_what_noise_would_decide_is_left_undecided(curvatures, rule):
    plain, careful = (noisy_rides(curvatures, is_careful) for is_careful in (False, True))
    # Where a ride begins there is no audit yet, and nothing to be done.
    wrong = ended_by(plain, "curvature_gone", "RidgeLost") & (plain[3] > 0)
    assert wrong.mean() > 0.5 and ended_by(plain, rule).any()
    doubted = ended_by(careful, "WithinNoise")
    still_wrong = ended_by(careful, "curvature_gone", "RidgeLost") & (careful[3] > 0) & ~doubted
    assert doubted.mean() > 0.5 and still_wrong.sum() < wrong.sum() / 3


def test_far_from_thresholds_the_noise_rule_changes_nothing():
    plain, careful = (noisy_rides((-20 * ERROR, 3.0), is_careful) for is_careful in (False, True))
    assert not ended_by(careful, "WithinNoise").any()
    np.testing.assert_array_equal(plain[2], careful[2])
    np.testing.assert_array_equal(plain[3], 20)
    np.testing.assert_array_equal(careful[3], 20)


def test_the_noise_rule_needs_errors_and_is_remembered():
    with pytest.raises(ValueError, match="`WithinNoise` must have standard errors"):
        rr.Rider(stop=(rr.WithinNoise(),))
    with pytest.raises(ValueError, match="`num_errors` must be positive"):
        rr.WithinNoise(num_errors=0.0)
    with pytest.raises(ValueError, match="`min_overlap` must be between 0 and 1"):
        rr.WithinNoise(min_overlap=2.0)
    rider = rr.Rider(stop=(rr.WithinNoise(3.0, 0.8),), batch=rr.Batches(30), audit_every=2)
    again = rebuild(json.loads(json.dumps(describe(rider))))
    assert again.stop == rider.stop and again.rule_names() == ("WithinNoise", "max_steps")


def test_a_run_file_remembers_the_noise_rule(tmp_path):
    stop = (rr.WithinNoise(1.5), rr.curvature_gone, rr.not_finite)
    rider = rr.Rider(stop=stop, batch=rr.Batches(30), audit_every=1, max_steps=20)
    path = tmp_path / "run.sqlite"
    rr.search(PROBLEM, rider, out=path, max_rides=1)
    resumed, whole = rr.resume(path, PROBLEM, max_rides=3), rr.search(PROBLEM, rider, max_rides=3)
    for one, two in zip(resumed, whole, strict=True):
        assert one.loss == two.loss and one.ended_by == two.ended_by
