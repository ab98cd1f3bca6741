from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import norm

import ridgerider as rr
from ridgerider.environments import (
    Agree,
    Algorithm4,
    Environments,
    RidgeLosses,
    consistency,
    consistent_ridge,
    from_groups,
    ride_common,
    shared_features,
)
from ridgerider.environments._consistent_ridge import polished, steepest
from tests.cases import make_matrix, quadratic_loss

RIDDEN = {"features": False, "weights": True, "out": True}


def network_loss(params, x, y):
    """Features tanh(x F), a head of two layers, cross-entropy."""
    features = jnp.tanh(x @ params["features"])
    logits = jnp.tanh(features @ params["weights"]) @ params["out"]
    return jnp.mean(jax.nn.softplus(logits) - y * logits)


def make_network(num_environments=2, scale=0.5, seed=0):
    """Labels follow x[0] alike everywhere and x[1] more in one environment than in another."""
    random = np.random.default_rng(seed)
    start = {
        "features": jnp.asarray(random.normal(size=(4, 3))),
        "weights": jnp.asarray(scale * random.normal(size=(3, 2))),
        "out": jnp.asarray(scale * random.normal(size=2)),
    }
    problems = []
    for number in range(num_environments):
        x = random.normal(size=(60, 4))
        y = (x[:, 0] + (1 + number) * x[:, 1] > 0).astype(float)
        problems.append(rr.Problem(network_loss, start, jnp.asarray(x), jnp.asarray(y)))
    return Environments(problems, RIDDEN)


def quadratics(matrices):
    zero = jnp.zeros(matrices[0].shape[0])
    return Environments([rr.Problem(quadratic_loss, zero, jnp.asarray(m)) for m in matrices])


def bilinear(signals, num_units=2):
    """The Hessian of a head of two layers at zero: off-diagonal blocks -c for each unit."""
    width = len(signals)
    matrix = np.zeros(((width + 1) * num_units,) * 2)
    for unit in range(num_units):
        rows, column = slice(unit * width, (unit + 1) * width), width * num_units + unit
        matrix[rows, column] = matrix[column, rows] = -signals
    return matrix


# --- Hessians of the ridden part


def test_hessians_and_products_of_the_ridden_part_against_the_whole():
    both = make_network(3)
    marks = {name: jnp.full(both.start[name].shape, float(RIDDEN[name])) for name in RIDDEN}
    entries = np.flatnonzero(both.problems[0].ravel(marks))
    hessians = eqx.filter_jit(both.hessians)(both.start)
    whole = [eqx.filter_jit(one.hessian)(one.x0)[np.ix_(entries, entries)] for one in both.problems]
    # Ravelled alike: the ridden leaves come in the order of the whole.
    np.testing.assert_allclose(hessians, np.stack(whole), atol=1e-14)
    directions = jax.random.normal(jax.random.key(0), (4, both.size))
    images = eqx.filter_jit(both.hvps)(both.start, directions)
    np.testing.assert_allclose(images, np.einsum("irs,ks->ikr", whole, directions), atol=1e-14)


# --- L1 and L2


def dense_losses(losses, hessians, values, e, probes):
    """The formulas of the module's docstring, from explicit Hessians."""

    def cosine(a, b):
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    one, two = hessians
    e = e / np.linalg.norm(e)
    ridge = losses.correlation * (cosine(one @ e, e) + cosine(two @ e, e))
    ridge += losses.curvature * (e @ one @ e + e @ two @ e) + losses.loss * sum(values)
    ridge += losses.gap * abs(e @ (one - two) @ e)
    squares = np.array([[cosine(h @ u, u) ** 2 for u in probes] for h in hessians])
    forms = np.array([[u @ h @ u for u in probes] for h in hessians])
    tops = np.abs(squares[0] - squares[1]), np.abs(forms[0] - forms[1])
    agreement = losses.probe_correlation * tops[0].mean()
    agreement /= (squares[0] + losses.second * squares[1]).mean()
    ratio = tops[1].mean() / (abs(forms[0]) + abs(forms[1])).mean()
    return ridge, agreement + losses.probe_gap * ratio


def test_losses_against_dense_hessians_and_finite_differences():
    both = make_network()
    losses = RidgeLosses(3.0, 0.7, 1.3, 5.0, 0.9, 1.1, 2.0)
    e = jax.random.normal(jax.random.key(1), (both.size,))
    probes = jax.random.normal(jax.random.key(2), (5, both.size))
    probes = probes / jnp.linalg.norm(probes, axis=1, keepdims=True)
    x, unravel = jax.flatten_util.ravel_pytree((both.start, e))

    @jax.jit
    def parts(x):
        params, e = unravel(x)
        return losses.values(both, params, e, probes)

    @jax.jit
    def total(x):
        return sum(losses.values(both, *unravel(x), probes))

    values = [float(eqx.filter_jit(one.value)(one.x0)) for one in both.problems]
    hessians = np.asarray(eqx.filter_jit(both.hessians)(both.start))
    expected = dense_losses(losses, hessians, values, np.asarray(e), np.asarray(probes))
    np.testing.assert_allclose(parts(x), expected, rtol=1e-12)
    assert float(total(x)) == pytest.approx(sum(expected), rel=1e-12)
    gradient = jax.jit(jax.grad(total))(x)
    step = 1e-5  # central differences: errors of step^2 and eps / step
    for direction in np.random.default_rng(0).normal(size=(4, len(x))):
        slope = (total(x + step * direction) - total(x - step * direction)) / (2 * step)
        assert float(gradient @ direction) == pytest.approx(float(slope), rel=1e-6, abs=1e-6)


def test_agreement_vanishes_for_equal_environments_only():
    matrix, _ = make_matrix([-2.0, -1.0, 1.0, 3.0])
    probes = jnp.eye(4)
    losses = eqx.filter_jit(RidgeLosses().values)
    equal, other = quadratics([matrix] * 3), quadratics([matrix, matrix, 2 * matrix])
    assert float(losses(equal, equal.start, probes[0], probes)[1]) == 0
    assert float(losses(other, other.start, probes[0], probes)[1]) > 1


# --- the consistent ridge


def agree(matrices, seed=0):
    matrices = jnp.asarray(matrices)
    return jax.jit(polished)(matrices, *steepest(matrices, jax.random.key(seed)))


def test_shared_and_specific_ridges_in_closed_form_50_times():
    """Steeper on average than the shared ridge is one of environment 1 alone."""
    random = np.random.default_rng(0)
    for seed in range(50):
        frame = np.linalg.qr(random.normal(size=(6, 6)))[0]
        shared, bulk = random.uniform(0.5, 1.0), random.uniform(0.1, 1.0, 4)
        pair = [frame * np.array([-shared, other, *bulk]) @ frame.T for other in (-4.0, 0.5)]
        found = agree(pair, seed)
        assert abs(found.ridge.direction @ frame[:, 0]) > 1 - 1e-9
        assert float(found.ridge.eigenvalue) == pytest.approx(-shared, rel=1e-9)
        # The pooled loss's steepest ridge is the other one.
        assert np.linalg.eigvalsh(np.mean(pair, axis=0))[0] < -1.7


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_environments_agree_on_the_steepest_ridge(dtype):
    matrix, columns = make_matrix([-2.0, -1.0, 1.0, 3.0], dtype=dtype)
    found = agree([matrix] * 2)
    tolerance = 100 * float(
        np.finfo(dtype).eps
    )  # of a few dozen operations on entries of order one
    assert found.ridge.direction.dtype == dtype
    assert abs(float(found.ridge.direction @ columns[:, 0])) == pytest.approx(1, abs=tolerance)
    assert float(found.ridge.eigenvalue) == pytest.approx(-2, abs=tolerance)


@pytest.mark.parametrize("count", [2, 3])
def test_a_head_of_two_layers_in_closed_form(count):
    """The consistent ridge is the mean signal with the differences projected out."""
    signals = np.random.default_rng(count).normal(size=(count, 6)) + 1
    both = quadratics([bilinear(one) for one in signals])
    found = consistent_ridge(both)
    basis = np.linalg.qr((signals[1:] - signals[0]).T)[0]
    mean = signals.mean(axis=0)
    expected = mean - basis @ (basis.T @ mean)
    np.testing.assert_allclose(found.eigenvalues, -np.linalg.norm(expected), rtol=1e-9)
    assert abs(float(found.duality_gap)) < 1e-9 and float(found.residual) < 1e-9
    weights = np.asarray(found.ridge.direction)[:12].reshape(2, 6)
    inside = weights @ expected / np.linalg.norm(expected)
    assert np.linalg.norm(inside) == pytest.approx(np.linalg.norm(weights), rel=1e-9)
    # A mean over three rows as in `shared_features`, whose signals are those of the features.
    rows = [jnp.asarray(np.stack([one, one])) for one in signals]
    projected = shared_features(rows, [jnp.ones(2)] * count).consistent
    np.testing.assert_allclose(projected, expected, atol=1e-12)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_two_random_environments_against_a_search_over_mixtures(seed):
    random = np.random.default_rng(seed)
    one, two = (m + m.T for m in random.normal(size=(2, 12, 12)))
    found = consistent_ridge(quadratics([one, two]), seed=seed)

    def least(mix):
        return -np.linalg.eigvalsh((one + two) / 2 + mix * (one - two))[0]

    best = -minimize_scalar(least, bracket=(-1, 1), tol=1e-12).fun
    assert float(found.ridge.eigenvalue) == pytest.approx(best, rel=1e-9)
    assert float(found.disagreement) < 1e-9 and abs(float(found.duality_gap)) < 1e-9


def test_three_environments_with_a_known_answer():
    """Two ridges that change places and one that stays: three pairs of environments disagree."""
    frame = np.linalg.qr(np.random.default_rng(3).normal(size=(8, 8)))[0]
    diagonals = [[-1, -3, 1, -2], [-1, 1, -3, 0.5], [-1, -2, -2.5, -4]]
    matrices = [frame * np.array([*d, 1, 1, 2, 3]) @ frame.T for d in diagonals]
    found = consistent_ridge(quadratics(matrices))
    assert float(found.disagreement) < 1e-8 and float(found.duality_gap) < 1e-8
    np.testing.assert_allclose(found.eigenvalues, found.ridge.eigenvalue, atol=1e-8)
    # On the diagonal the answer is a linear programme over squared coefficients.
    from scipy.optimize import linprog

    costs = np.array([[*d, 1, 1, 2, 3] for d in diagonals])
    equal = np.stack([np.ones(8), costs[1] - costs[0], costs[2] - costs[0]])
    best = linprog(costs.mean(axis=0), A_eq=equal, b_eq=[1, 0, 0]).fun
    assert float(found.ridge.eigenvalue) == pytest.approx(best, rel=1e-8)


# --- noise


def noisy_loss(x, one, two):
    return -jnp.mean(one) * x[0] ** 2 / 2 - jnp.mean(two) * x[1] ** 2 / 2


@pytest.mark.parametrize("gap", [0.1, 0.3, 0.6])
def test_the_wrong_ridge_is_ranked_first_as_often_as_predicted(gap):
    """Curvatures that differ by `gap` or not at all, each with a standard error of 0.1.

    The gaps seen are X ~ N(gap, s^2) and Y ~ N(0, s^2) with s = 0.1 sqrt(2), and the wrong ridge
    wins if |X| < |Y|, that is (X - Y) (X + Y) < 0. Both factors are independent with mean gap and
    variance 2 s^2, so that happens with probability 2 F(a) F(-a), a = gap / (s sqrt(2)).
    """
    count, size = 400, 30
    random = np.random.default_rng(int(100 * gap))
    noise = 0.1 * np.sqrt(size) * random.normal(size=(count, 2, 2, size))
    means = np.array([[1.5, 1.5], [1.5 - gap, 1.5]])
    data = jnp.asarray(means[None, :, :, None] + noise)

    @jax.jit
    @jax.vmap
    def chosen(data):
        problems = [rr.Problem(noisy_loss, jnp.zeros(2), *one) for one in data]
        scores = consistency(Environments(problems), jnp.zeros(2), jnp.eye(2))
        return jnp.argmin(scores.gap), scores.standard_errors

    picked, errors = chosen(data)
    s = 0.1 * np.sqrt(2)
    a = gap / (s * np.sqrt(2))
    predicted = 2 * norm.cdf(a) * norm.cdf(-a)
    allowed = 4 * np.sqrt(predicted * (1 - predicted) / count)
    assert np.mean(np.asarray(picked) == 0) == pytest.approx(predicted, abs=allowed)
    # Blocks see the standard error itself: its square is unbiased.
    assert np.sqrt(np.mean(np.asarray(errors) ** 2)) == pytest.approx(0.1, rel=0.1)


# --- riding


def curved_loss(x, steep):
    """The shared ridge x[0] bends towards x[2]; the other one is x[1]."""
    bent = x[2] - x[0] ** 2
    return x[0] ** 4 / 4 - x[0] ** 2 / 2 - steep * x[1] ** 2 / 2 + x[1] ** 4 / 4 + 2 * bent**2


def test_a_ride_on_the_consistent_ridge_carries_certificates():
    steeps = (3.0, 0.5, 2.0)
    both = Environments([rr.Problem(curved_loss, jnp.zeros(3), s) for s in steeps])
    found = consistent_ridge(both)
    rider = rr.Rider(update=Agree(), step=rr.FixedStep(0.05), max_steps=20, keep_path=True)
    ride = jax.jit(partial(rider.ride, both.pooled()))(both.x0, found.ridge, jax.random.key(0))
    at_end = consistency(both, both.with_ridden(both.start, ride.x), ride.ridge.direction[None])
    assert float(at_end.gap[0]) < 1e-8
    assert abs(float(ride.x[1])) < 1e-8 < 0.3 < abs(float(ride.x[0]))
    assert float(ride.trace.residual.max()) < 1e-8
    look = eqx.filter_jit(rr.DenseSpectrum())
    steepest = look(both.pooled(), both.x0, jax.random.key(0)).ridge(0)
    assert abs(float(steepest.direction[1])) == pytest.approx(1)  # pooled would ride another


def test_a_ridge_without_agreement_has_no_certificate():
    both = quadratics([np.diag([-1.0, -2.0, -3.0]), np.diag([-2.0, -4.0, -5.0])])
    ridge = rr.DenseSpectrum()(both.pooled(), both.x0, jax.random.key(0)).ridge(0)
    rider = rr.Rider(update=Agree(), max_steps=3)
    ride = jax.jit(partial(rider.ride, both.pooled()))(both.x0, ridge, jax.random.key(0))
    assert float(ride.overlap) == 0 and bool(rider.ended(ride)[1])


def test_algorithm_4_finds_a_common_ridge():
    both = make_network(scale=0.01)
    rates = {"feature_rate": 0.01, "direction_rate": 0.03}
    settings = Algorithm4(batch=None, num_pretrain=600, num_steps=3, num_inner=5, **rates)
    ride = ride_common(both, settings, seed=1)
    scores = ride.scores
    assert len(ride.params) == 4 and scores.eigenvalues.shape == (2, 4)
    spectrum = rr.DenseSpectrum()(both.pooled(), both.x0, jax.random.key(0))
    before = consistency(both, both.start, spectrum.eigenvectors)
    assert float(scores.correlations[:, 0].max()) < -0.95  # a ridge in both environments
    assert float(scores.relative_gap[0]) < 0.1 < float(before.relative_gap[0])
    moved = jnp.linalg.norm(both.ravel(ride.params[-1]) - both.ravel(ride.params[0]))
    assert 0.1 < float(moved) <= 3 * 0.06 + 1e-9
    assert float(ride.overlaps.min()) > 0.9


def shifted_loss(params, x, y):
    return network_loss(params, x, y) + jnp.sum((params["features"] * params["shift"]) ** 2)


def test_only_the_chosen_part_of_a_featurizer_is_trained():
    both = make_network(scale=0.01)
    more = {**both.start, "shift": jnp.ones((4, 3))}
    problems = [rr.Problem(shifted_loss, more, *one.args) for one in both.problems]
    both = Environments(problems, {**RIDDEN, "shift": False})
    mask = {"features": True, "weights": False, "out": False, "shift": False}
    settings = Algorithm4(batch=None, num_pretrain=5, num_steps=1, num_inner=2, trained=mask)
    ride = ride_common(both, settings)
    before, after = both.start, ride.params[-1]
    assert (before["shift"] == after["shift"]).all()
    assert (before["features"] != after["features"]).all()
    with pytest.raises(ValueError, match="`trained` must select at least one parameter"):
        ride_common(both, Algorithm4(trained=False))


def test_the_cost_of_algorithm_4():
    both = make_network(scale=0.01)
    ride = ride_common(both, Algorithm4(batch=None, num_pretrain=2, num_steps=1, num_inner=0))
    # Two steps with nine HVPs in each of two environments; the scores of two points.
    assert int(ride.cost.hvps) == 2 * 9 * 2 + 2 * 2


# --- bad input


def test_groups_become_environments():
    x, y = jnp.arange(6.0).reshape(6, 1), jnp.array([0, 1, 0, 1, 0, 1])
    both = from_groups(grouped_loss, jnp.zeros(1), (x, y), ["b", "a", "a", "b", "a", "a"])
    assert [one.args[0].ravel().tolist() for one in both.problems] == [[1, 2, 4, 5], [0, 3]]


def grouped_loss(w, x, y):
    return jnp.mean((x @ w - y.astype(x.dtype)) ** 2)


def test_bad_environments():
    x, y = jnp.ones((4, 2)), jnp.array([0, 1, 0, 1])
    good = rr.Problem(grouped_loss, jnp.zeros(2), x, y)
    wide = rr.Problem(grouped_loss, jnp.zeros(3), jnp.ones((4, 3)), y)
    other = rr.Problem(grouped_loss, jnp.zeros(2), x, jnp.array([0, 1, 2, 1]))
    empty = rr.Problem(grouped_loss, jnp.zeros(2), x[:0], y[:0])
    for problems, message in [
        ([good], "`problems` must be at least two environments to compare, not 1"),
        ([good, wide], r"`problems\[1\]` must have parameters and data shaped like"),
        ([good, other], r"`problems\[1\]` must have the classes of .*\[\[0, 1\]\], not"),
        ([good, empty], r"`problems\[1\]` must hold at least one example, but it is empty"),
    ]:
        with pytest.raises(ValueError, match=message):
            Environments(problems)
    with pytest.raises(ValueError, match="`ridden` must select at least one parameter"):
        Environments([good, good], False)
    with pytest.raises(ValueError, match="`ridden` must hold booleans"):
        Environments([good, good], np.array([1, 0]))
    with pytest.raises(ValueError, match=r"a linear last layer under a convex loss has no such"):
        consistent_ridge(Environments([good, good]))
    with pytest.raises(ValueError, match="`groups` must name one group for each example"):
        from_groups(grouped_loss, jnp.zeros(2), (x, y), list("aab"))
    with pytest.raises(ValueError, match=r"`problem` must be `Environments\.pooled`"):
        Agree()(good, good.x0, consistent_ridge(quadratics([-np.eye(2)] * 2)).ridge, None)


def bilinear_head_loss(x, signal):
    return -x[2] * (x[:2] @ signal) + 0.1 * jnp.sum(x**4)


def test_a_ride_from_a_bilinear_saddle_keeps_its_ridge():
    """Its Hessians have nothing but zeros on the diagonal."""
    signals = jnp.array([2.0, 1.0]), jnp.array([2.0, -1.0])
    both = Environments([rr.Problem(bilinear_head_loss, jnp.zeros(3), c) for c in signals])
    found = consistent_ridge(both)
    rider = rr.Rider(update=Agree(), step=rr.FixedStep(0.1), max_steps=5)
    ride = jax.jit(partial(rider.ride, both.pooled()))(both.x0, found.ridge, jax.random.key(0))
    assert int(ride.num_steps) == 5 and float(ride.trace.overlap[:6].min()) > 0.99
    # The shared signal is (2, 0): along its weight and the output.
    np.testing.assert_allclose(jnp.abs(ride.x), [0.5 / 2**0.5, 0, 0.5 / 2**0.5], atol=1e-6)
    assert int(found.cost.hessians) == 2
