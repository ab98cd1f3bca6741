"""The rider: its settings, and rides with ends that are known."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider.problems import surface, wells
from tests.cases import make_blocks, make_quadratic, reasons, ride, ride_from_start, ridge_along

KEY = jax.random.key(0)


@pytest.mark.parametrize("sign", [1, -1])
def test_riding_a_well_ends_at_the_inflexion(sign):
    # Along axis i the curvature is 3 x^2 - depth_i, so the ridge ends at x = sqrt(depth_i / 3).
    problem, rider = wells(3), rr.Rider(step=rr.FixedStep(0.01))
    for index, depth in enumerate([1.5, 1.0, 0.5]):
        result = ride_from_start(problem, rider, index, sign)
        assert reasons(rider, result) == ["curvature_gone"]
        end = result.x[2 - index] * sign
        assert 0 <= end - np.sqrt(depth / 3) <= 0.01
        assert np.count_nonzero(result.x) == 1


def test_every_step_of_the_trace_is_what_it_says():
    problem, rider = surface(), rr.Rider(keep_path=True)
    result = jax.device_get(ride_from_start(problem, rider, 1))
    trace, steps = result.trace, int(result.num_steps)
    path = trace.path[: steps + 1]
    value, hessian = eqx.filter_jit(problem.value), eqx.filter_jit(problem.hessian)
    np.testing.assert_array_equal(path[-1], result.x)
    np.testing.assert_allclose(
        np.linalg.norm(np.diff(path, axis=0), axis=1), trace.step_size[1 : steps + 1]
    )
    for step, x in enumerate(map(jnp.asarray, path)):
        eigenvalues = np.linalg.eigvalsh(hessian(x))
        assert trace.loss[step] == pytest.approx(float(value(x)))
        assert np.abs(eigenvalues - trace.eigenvalue[step]).min() < 1e-12
        assert trace.gap[step] == pytest.approx(np.ptp(eigenvalues))
    assert (trace.overlap[: steps + 1] >= 0.95).all() and (trace.residual < 1e-12).all()
    assert not trace.loss[steps + 1 :].any()


def test_a_ride_may_climb_while_its_curvature_is_negative():
    # Off the maximum at 0, the way back is uphill at first.
    problem = rr.Problem(lambda x: x[0] ** 4 / 4 - x[0] ** 2 / 2, jnp.array([-0.2]))
    result = jax.device_get(ride_from_start(problem, rr.Rider()))
    losses = result.trace.loss[: int(result.num_steps) + 1]
    assert losses.max() > losses[0] and result.x[0] > 0.5


@pytest.mark.parametrize("gauge", ["gradient", "random"])
@pytest.mark.parametrize("member", range(4))
def test_members_of_a_symmetric_cluster_are_ridden_to_the_end(gauge, member):
    # Four of the five ways out of the symmetric maximum are equal: the eigenspace splits at the
    # first step, and no ride is lost.
    rider = rr.Rider(spectrum=rr.DenseSpectrum(gauge=gauge))
    result = jax.device_get(ride_from_start(make_blocks(), rider, 0, member=member))
    assert reasons(rider, result) == ["curvature_gone"]
    assert result.trace.multiplicity[0] == 4
    assert (result.trace.overlap[: int(result.num_steps) + 1] >= 0.95).all()


def test_a_nearly_repeated_eigenvalue_is_ridden_as_one_cluster():
    problem, columns = make_quadratic([-1.01, -1.0, 1.0])
    middle = (columns[:, 0] + columns[:, 1]) / np.sqrt(2)

    def probe(problem, x):
        return jnp.asarray(middle)

    spectrum, update = rr.DenseSpectrum(probe, 0.05), rr.Project(0.05)
    rider = rr.Rider(spectrum=spectrum, update=update, step=rr.FixedStep(0.1), max_steps=5)
    result = ride_from_start(problem, rider)
    assert reasons(rider, result) == ["max_steps"]
    np.testing.assert_allclose(np.abs(result.x @ middle), 0.5)


# --- contracts: every shipped rule, whatever it computes

UPDATES = [rr.Project(), rr.QuasiNewton(exact_below=0), rr.Davidson(), rr.Keep()]
UPDATES.append(rr.RandomRidge())
STEPS = [rr.FixedStep(0.1), rr.Backtracking()]
# Each update and each step rule once; all pairs of them are a long proof.
RULES = [(update, STEPS[0]) for update in UPDATES] + [(UPDATES[0], step) for step in STEPS[1:]]
PAIRS = [(update, step) for update in UPDATES for step in STEPS]
EACH = RULES + [pytest.param(*pair, marks=pytest.mark.long) for pair in PAIRS if pair not in RULES]


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.long)])
@pytest.mark.parametrize(("update", "step"), EACH)
def test_rides_keep_the_dtype_and_do_not_depend_on_jit(update, step, dtype):
    problem, _ = make_quadratic([-2.0, -1.0, 1.0], dtype=dtype)
    rider = rr.Rider(update=update, step=step, max_steps=3)
    compiled = ride_from_start(problem, rider)
    with jax.disable_jit():
        eager = ride_from_start(problem, rider)
    # What an update remembers may have eigenvectors of either sign.
    compiled, eager = (
        dataclasses.replace(one, ridge=dataclasses.replace(one.ridge, memory=None))
        for one in (compiled, eager)
    )
    floats = eqx.filter(compiled, eqx.is_inexact_array)
    cost = jax.tree.leaves(compiled.cost)
    floats = dataclasses.replace(floats, cost=None)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(floats)} == {dtype}
    assert all(np.ndim(leaf) == 0 for leaf in cost)
    tolerance = 100 * jnp.finfo(dtype).eps
    for one, two in zip(jax.tree.leaves(compiled), jax.tree.leaves(eager), strict=True):
        np.testing.assert_allclose(one, two, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("update", "step"), EACH)
def test_vmap_is_a_loop(update, step):
    problem, rider = wells(3), rr.Rider(update=update, step=step, max_steps=20)
    xs = 0.1 * jax.random.normal(KEY, (4, 3))
    ridge = ridge_along([0.0, 0.0, 1.0])
    batched = eqx.filter_jit(eqx.filter_vmap(lambda x: rider.ride(problem, x, ridge, KEY)))(xs)
    for row, x in enumerate(xs):
        np.testing.assert_allclose(batched.x[row], ride(problem, rider, x, ridge).x, atol=1e-12)


def test_settings_are_checked_at_construction():
    for make, message in [
        (lambda: rr.FixedStep(0.0), "`size` must be positive, not 0.0"),
        (lambda: rr.Backtracking(delta_break=1.0), "`delta_break` must be at least 0 and below 1"),
        (lambda: rr.Backtracking(min_size=-1), "`min_size` must be positive"),
        (lambda: rr.RidgeLost(1.5), "`min_overlap` must be between 0 and 1"),
        (lambda: rr.Stalled(patience=0), "`patience` must be a whole number of at least 1"),
        (lambda: rr.Stalled(tolerance=-1.0), "`tolerance` must be at least 0"),
        (lambda: rr.Rider(max_steps=0), "`max_steps` must be a whole number of at least 1"),
        (
            lambda: rr.Rider(stop=rr.not_finite),
            "`stop` must be a list, each entry callable with 1 argument",
        ),
        (lambda: rr.Rider(update=None), "`update` must be callable with 4 arguments, not None"),
        (
            lambda: rr.Rider(spectrum=rr.DenseSpectrum(cluster_tolerance=0.05)),
            "`cluster_tolerance` must be the same for `spectrum` and `update`, not 0.05 and None",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            make()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: rr.Davidson(max_hvps=1), "`max_hvps` must be .* at least 2, not 1"),
        (lambda: rr.Davidson(tolerance=2.0), "`tolerance` must be at least 0 and below 1, not 2.0"),
        (lambda: rr.QuasiNewton(exact_below=-1), "`exact_below` must be .* at least 0, not -1"),
        (lambda: rr.Residual(-1), "`num_steps` must be a whole number of at least 0, not -1"),
        (lambda: rr.Residual(1, -0.1), "`direction_rate` must be at least 0, not -0.1"),
        (lambda: rr.Valley(num_hvps=0), "`num_hvps` must be a whole number of at least 1, not 0"),
        (lambda: rr.Valley(damping=-1.0), "`damping` must be at least 0, not -1.0"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
