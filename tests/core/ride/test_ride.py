import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider.problems import surface, wells
from tests.cases import make_blocks, make_cliff, make_quadratic

KEY = jax.random.key(0)


@eqx.filter_jit
def ride(problem, rider, x, ridge):
    return rider.ride(problem, x, ridge, KEY)


@eqx.filter_jit
def look(problem, rider):
    return rider.spectrum(problem, problem.x0, KEY)


def ride_from_start(problem, rider, index=0, sign=1, member=0):
    spectrum = look(problem, rider)
    return ride(problem, rider, problem.x0, spectrum.ridge(index, sign, member))


def reasons(rider, ride):
    return [
        name for name, fired in zip(rider.rule_names(), rider.ended(ride), strict=True) if fired
    ]


# --- updates


@eqx.filter_jit
def project(problem, ridge):
    return rr.Project()(problem, problem.x0, ridge, KEY)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", range(3))
def test_project_is_maximal_overlap_for_simple_eigenvalues(dtype, seed):
    # A second implementation: eigh and argmax, as the paper has it.
    problem, _ = make_quadratic(np.linspace(-3, 2, 12), seed, dtype)
    old = np.random.default_rng(seed).normal(size=12).astype(dtype)
    old /= np.linalg.norm(old)
    tracked = project(problem, _ridge(old))
    eigenvalues, columns = np.linalg.eigh(np.asarray(problem.args[0]))
    best = np.argmax(np.abs(old @ columns))
    tolerance = 200 * float(np.finfo(dtype).eps)
    expected = columns[:, best] * np.sign(old @ columns[:, best])
    np.testing.assert_allclose(tracked.ridge.direction, expected, atol=tolerance)
    assert float(tracked.ridge.eigenvalue) == pytest.approx(eigenvalues[best], abs=tolerance)
    assert float(tracked.overlap) == pytest.approx(abs(old @ columns[:, best]), abs=tolerance)
    assert float(tracked.gap) == pytest.approx(5 / 11, abs=tolerance)
    assert tracked.residual < tolerance
    assert int(tracked.ridge.index) == best
    around = [best - 4, best - 3, best - 2, best - 1, best + 1, best + 2, best + 3, best + 4]
    expected = [eigenvalues[i] if 0 <= i < 12 else np.nan for i in around]
    np.testing.assert_allclose(tracked.neighbours, expected, atol=tolerance)


def test_project_keeps_the_direction_inside_an_eigenspace():
    problem, columns = make_quadratic([-3.0, -2.0, -2.0, -2.0, 1.0])
    inside = columns[:, 1] + 2 * columns[:, 2] - columns[:, 3]
    inside /= np.linalg.norm(inside)
    tracked = project(problem, _ridge(inside))
    np.testing.assert_allclose(tracked.ridge.direction, inside, atol=1e-12)
    nan = np.nan  # the copies are no neighbours
    expected = [nan, nan, nan, -3.0, 1.0, nan, nan, nan]
    np.testing.assert_allclose(tracked.neighbours, expected, atol=1e-12)
    assert int(tracked.ridge.multiplicity) == 3 and float(tracked.gap) == pytest.approx(1)


def test_a_splitting_eigenspace_is_not_a_lost_ridge():
    # From a threefold eigenvalue into a simple one of its members, 55 degrees away.
    whole, columns = make_quadratic([-2.0, -2.0, -2.0, 1.0])
    split, _ = make_quadratic([-2.2, -2.1, -2.0, 1.0])
    inside = columns[:, :3] @ np.ones(3) / np.sqrt(3)
    first = project(whole, _ridge(inside))
    then = project(split, first.ridge)
    assert float(first.ridge.direction @ then.ridge.direction) == pytest.approx(1 / np.sqrt(3))
    assert float(then.overlap) == pytest.approx(1)
    # A ridge that was simple before has no such freedom.
    lone = project(split, _ridge(inside))
    assert float(lone.overlap) == pytest.approx(1 / np.sqrt(3))


def test_keep_never_turns_and_reports_the_rayleigh_quotient():
    problem, _ = make_quadratic([-3.0, -1.0, 2.0])
    direction = np.array([0.6, 0.8, 0.0])
    tracked = rr.Keep()(problem, problem.x0, _ridge(direction), KEY)
    image = np.asarray(problem.args[0]) @ direction
    assert np.array_equal(tracked.ridge.direction, direction)
    assert float(tracked.ridge.eigenvalue) == pytest.approx(direction @ image)
    residual = np.linalg.norm(image - (direction @ image) * direction)
    assert float(tracked.residual) == pytest.approx(residual)


def _ridge(direction):
    direction = jnp.asarray(direction)
    zero = jnp.zeros((), direction.dtype)
    return rr.Ridge(direction, zero, jnp.array(0), jnp.array(1))


# --- rides with known ends


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


def test_backtracking_keeps_the_overlap_and_remembers_the_size():
    problem, rider = surface(), rr.Rider(step=rr.Backtracking(size=0.5, delta_break=0.99))
    result = jax.device_get(ride_from_start(problem, rider, 1))
    steps = int(result.num_steps)
    sizes, overlaps = result.trace.step_size[1 : steps + 1], result.trace.overlap[1 : steps + 1]
    assert sizes.min() < 0.5 and (overlaps >= 0.99).all()
    ratios = np.log2(sizes[1:] / sizes[:-1])
    assert np.allclose(ratios, np.round(ratios)) and ratios.max() <= 1
    # One Hessian for the start, one for each attempt.
    assert int(result.cost.hessians) == int(result.cost.values) > steps + 1


def test_backtracking_gives_up_below_min_size_and_the_ridge_is_lost():
    def turning(problem, x, ridge, key):
        """A ridge that turns by 60 degrees however small the step."""
        turned = jnp.array([[0.5, -(0.75**0.5)], [0.75**0.5, 0.5]]) @ ridge.direction
        overlap, zero = jnp.where(jnp.any(x != problem.x0), 0.5, 1.0), jnp.array(0.0)
        new = rr.Ridge(turned, jnp.array(-1.0), ridge.index, ridge.multiplicity)
        return rr.Tracked(new, rr.Certificate(overlap, zero, zero), rr.Cost())

    problem, _ = make_quadratic([-2.0, -1.0])
    rider = rr.Rider(update=turning, step=rr.Backtracking(size=1.0, min_size=0.1))
    result = ride_from_start(problem, rider)
    assert reasons(rider, result) == ["RidgeLost"]
    assert float(result.trace.step_size[int(result.num_steps)]) == 0.125


def test_stalled_fires_where_the_loss_flattens_out():
    problem = rr.Problem(lambda x: jax.nn.sigmoid(x[0]), jnp.array([-0.5]))
    # Curvature is negative for x > 0: climb there, and the loss flattens towards 1.
    rider = rr.Rider(step=rr.FixedStep(1.0), stop=(rr.Stalled(5, 1e-3),), update=rr.Keep())
    result = ride(problem, rider, jnp.array([0.5]), _ridge([1.0]))
    steps = int(result.num_steps)
    losses = np.asarray(result.trace.loss)
    assert reasons(rider, result) == ["Stalled"]
    threshold = 1e-3 * (losses[steps] - losses[0])
    assert losses[steps] - losses[steps - 5] <= threshold < losses[steps - 1] - losses[steps - 6]
    # Neither the scale of the loss nor its zero matters.
    scaled = rr.Problem(lambda x: 1e-9 * jax.nn.sigmoid(x[0]) + 1e-6, jnp.array([-0.5]))
    assert int(ride(scaled, rider, jnp.array([0.5]), _ridge([1.0])).num_steps) == steps


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


def test_correct_moves_the_point_before_the_ridge_is_updated():
    def to_axis(problem, x, ridge):
        return x * jnp.array([1.0, 0.0]), rr.Cost(gradients=1)

    problem = surface()
    result = ride_from_start(
        problem, rr.Rider(correct=to_axis, step=rr.FixedStep(0.1), keep_path=True)
    )
    assert not np.asarray(result.trace.path)[:, 1].any()
    assert int(result.cost.gradients) == int(result.num_steps)


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

UPDATES = [rr.Project(), rr.Keep(), rr.RandomRidge()]
STEPS = [rr.FixedStep(0.1), rr.Backtracking()]
STOPS = [rr.curvature_gone, rr.not_finite, rr.RidgeLost(), rr.Stalled(), rr.WithinNoise()]


@pytest.mark.parametrize("rule", STOPS)
def test_stop_rules_return_a_scalar_bool(rule):
    result = ride_from_start(wells(2), rr.Rider(max_steps=3))
    out = jax.eval_shape(rule, result)
    assert out.shape == () and out.dtype == bool


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("update", UPDATES)
def test_rides_keep_the_dtype_and_do_not_depend_on_jit(update, step, dtype):
    problem, _ = make_quadratic([-2.0, -1.0, 1.0], dtype=dtype)
    rider = rr.Rider(update=update, step=step, max_steps=3)
    compiled = ride_from_start(problem, rider)
    with jax.disable_jit():
        eager = ride_from_start(problem, rider)
    floats = eqx.filter(compiled, eqx.is_inexact_array)
    cost = jax.tree.leaves(compiled.cost)
    floats = dataclasses.replace(floats, cost=None)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(floats)} == {dtype}
    assert all(np.ndim(leaf) == 0 for leaf in cost)
    tolerance = 100 * jnp.finfo(dtype).eps
    for one, two in zip(jax.tree.leaves(compiled), jax.tree.leaves(eager), strict=True):
        np.testing.assert_allclose(one, two, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("update", UPDATES)
def test_vmap_is_a_loop(update, step):
    problem, rider = wells(3), rr.Rider(update=update, step=step, max_steps=20)
    xs = 0.1 * jax.random.normal(KEY, (4, 3))
    ridge = _ridge([0.0, 0.0, 1.0])
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
        (lambda: rr.Rider(stop=rr.not_finite), "`stop` must be a tuple of callables"),
        (lambda: rr.Rider(update=None), "`update` must be callable, not None"),
        (
            lambda: rr.Rider(spectrum=rr.DenseSpectrum(cluster_tolerance=0.05)),
            "`cluster_tolerance` must be the same for `spectrum` and `update`, not 0.05 and None",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            make()


def crest_loss(x):
    return x[0] ** 4 / 40 - x[0] ** 2 / 2 + x[1] ** 2


@pytest.mark.parametrize("start", [-1.0, -1.03])
def test_a_climb_over_a_crest_is_no_stall(start):
    """After twenty steps the loss is what it was, on the other side."""
    problem = rr.Problem(crest_loss, jnp.array([start, 0.0]))
    rider = rr.Rider(step=rr.FixedStep(0.1), finish=None)
    ridge = look(problem, rr.Rider()).ridge(0)
    assert float(ridge.direction[0]) > 0  # uphill at first
    end = ride(problem, rider, problem.x0, ridge)
    assert "curvature_gone" in reasons(rider, end)
    assert float(end.x[0]) > 1.8
