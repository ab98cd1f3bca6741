"""`find_saddle`: it ends at a strict saddle, close by if there is one, or says why not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider.problems import wells
from ridgerider.problems.levers import (
    PAPER,
    entropy,
    lever_eigenvalues,
    lever_loss,
    lever_saddle,
)
from ridgerider.problems.wells import wells_loss

RANDOM = np.random.default_rng(0)
INPUTS = RANDOM.normal(size=(24, 2))
TARGETS = np.cos(2 * INPUTS[:, 0]) - INPUTS[:, 1] * INPUTS[:, 0]
PAIRS = np.triu_indices(7, 1)
ANGLES = 2 * np.pi * np.arange(7) / 7


def four_wells(x):
    """After Himmelblau: four minima, four saddles, one maximum, steep walls."""
    return (x[0] ** 2 + x[1] - 10) ** 2 + (x[0] + x[1] ** 2 - 8) ** 2 + 0.4 * x[1]


def camel(x):
    """Two deep minima and four shallow ones on a back with humps."""
    back = 4 * x[0] ** 2 - 2 * x[0] ** 4 + 0.3 * x[0] ** 6
    return back + 0.9 * x[0] * x[1] - 4 * x[1] ** 2 + 4 * x[1] ** 4


def valleys(x):
    """After Mueller and Brown: narrow bent valleys, flat and steep regions side by side."""
    heights = jnp.array([-190.0, -110.0, -160.0, 14.0])
    a, c = jnp.array([-1.0, -1.1, -6.0, 0.7]), jnp.array([-9.0, -10.0, -6.5, 0.65])
    b = jnp.array([0.0, 0.1, 10.0, 0.6])
    p = x[0] - jnp.array([1.0, 0.0, -0.5, -1.0])
    q = x[1] - jnp.array([0.0, 0.5, 1.5, 1.0])
    return jnp.sum(heights * jnp.exp(a * p**2 + b * p * q + c * q**2))


def network(x):
    """Three hidden units, twelve weights: swaps and signs of units repeat every saddle."""
    hidden = jnp.tanh(jnp.asarray(INPUTS) @ x[:6].reshape(2, 3) + x[None, 6:9])
    return jnp.mean((hidden @ x[9:] - jnp.asarray(TARGETS)) ** 2) + 1e-3 * x @ x


def ring(x):
    """Seven particles that attract each other; shifts and turns change nothing."""
    points = x.reshape(7, 2)
    distances = jnp.sqrt(jnp.sum((points[PAIRS[0]] - points[PAIRS[1]]) ** 2, axis=1))
    return jnp.sum((1 - jnp.exp(-2 * (distances - 1))) ** 2)


CIRCLE = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1).ravel() / (2 * np.sin(np.pi / 7))
# Each with random starts, and the largest median of gradients + products + values allowed.
SURFACES = {
    four_wells: (lambda random: random.uniform(-5, 5, 2), 60),
    camel: (lambda random: random.uniform([-2, -1.2], [2, 1.2]), 60),
    valleys: (lambda random: random.uniform([-1.5, -0.5], [1.2, 2.0]), 60),
    network: (lambda random: random.normal(size=12), None),
    ring: (lambda random: CIRCLE + 0.2 * random.normal(size=14), None),
}


def spent(saddle):
    return int(saddle.cost.gradients + saddle.cost.hvps + saddle.cost.values)


def check_strict(loss, saddle):
    """By derivatives of our own."""
    x = saddle.params
    eigenvalues = np.linalg.eigvalsh(jax.jit(jax.hessian(loss))(x))
    scale = np.abs(eigenvalues).max()
    assert eigenvalues[0] < -1e-8 * scale and saddle.reason == ""
    assert np.sum(eigenvalues < -1e-8 * scale) == saddle.morse_index
    assert np.linalg.norm(jax.grad(loss)(x)) < 2e-8 * scale * max(1, np.linalg.norm(x))


def check_surface(loss, num_starts):
    draw, most = SURFACES[loss]
    random, found = np.random.default_rng(99), []
    for seed in range(num_starts):
        found.append(rr.find_saddle(rr.Problem(loss, jnp.asarray(draw(random))), seed=seed))
    strict = [saddle for saddle in found if saddle.is_strict]
    assert len(strict) >= 0.95 * num_starts
    # Of few starts the median is an accident.
    assert (
        most is None or num_starts < 100 or np.median([spent(saddle) for saddle in found]) <= most
    )
    for saddle in strict[:20]:
        check_strict(loss, saddle)
    # From a point within 1e-2 of any of them, back to it; a shift or a turn of it is as good.
    for saddle in strict[: num_starts // 4]:
        away = random.normal(size=saddle.params.shape)
        close = saddle.params + 1e-2 * random.uniform() * away / np.linalg.norm(away)
        again = rr.find_saddle(rr.Problem(loss, close), num_starts=1)
        assert again.is_strict and again.morse_index == saddle.morse_index
        assert again.loss == pytest.approx(saddle.loss, abs=1e-9 * max(1, abs(saddle.loss)))
        assert np.linalg.norm(again.params - saddle.params) < 2e-2
    return found


@pytest.mark.parametrize("loss", SURFACES)
def test_random_starts_end_at_strict_saddles(loss):
    check_surface(loss, 8)


@pytest.mark.long
@pytest.mark.parametrize("loss", SURFACES)
def test_two_hundred_random_starts_end_at_strict_saddles(loss):
    found = check_surface(loss, 200)
    costs = [spent(saddle) for saddle in found]
    print(loss.__name__, sum(s.is_strict for s in found), np.median(costs), max(costs))


def test_a_start_on_a_saddle_stays_and_costs_next_to_nothing():
    saddle = rr.find_saddle(wells(3))
    np.testing.assert_array_equal(saddle.params, 0)
    # Two Hessians of three products, the gradients with them, one for the gauge, and a value; and
    # a few gradients along four directions for the unit of length.
    assert spent(saddle) <= 10 + 4 * 10


@pytest.mark.parametrize("index", [1, 2, 3])
def test_the_index_asked_for(index):
    def waves(x):
        return jnp.sum(jnp.cos(x) * jnp.array([1.0, 1.3, 0.7])) + 0.1 * x[0] * x[1]

    for seed in range(3):
        problem = rr.Problem(waves, jnp.array([0.3, 2.0, -1.0]))
        saddle = rr.find_saddle(problem, index=index, noise=0.5, seed=seed)
        assert saddle.morse_index == index and saddle.is_strict
        check_strict(waves, saddle)


def test_another_index_is_said_so():
    problem = rr.Problem(lambda x: x[0] ** 2 - x[1] ** 2, jnp.array([0.1, 0.1]))
    saddle = rr.find_saddle(problem, index=2, num_starts=2)
    assert not saddle.is_strict or saddle.morse_index == 1
    assert saddle.reason and saddle.reason in str(saddle)


def chain(x):
    """Coupled double wells, too many to form the Hessian."""
    return jnp.sum(x**4 / 4 - x**2 / 2) + 0.05 * jnp.sum((x[1:] - x[:-1]) ** 2)


def test_a_saddle_from_products_alone():
    size, random = 320, np.random.default_rng(0)
    start = random.choice([-1, 1], size) + 0.05 * random.normal(size=size)
    start[7] = 0.3  # one of them on its way to the other well
    saddle = rr.find_saddle(rr.Problem(chain, jnp.asarray(start)), num_starts=2)
    assert saddle.is_strict and saddle.cost.hessians == 0
    check_strict(chain, saddle)


def test_close_to_a_saddle_of_high_index_products_alone_end_at_it():
    size, random = 310, np.random.default_rng(1)
    depths = jnp.where(jnp.arange(size) < 20, 1.0, -1.0) * jnp.linspace(0.5, 2, size)
    problem = rr.Problem(wells_loss, jnp.asarray(3e-4 * random.normal(size=size)), depths)
    saddle = rr.find_saddle(problem, num_starts=1)
    assert saddle.is_strict and saddle.morse_index == 20 and saddle.cost.hessians == 0
    assert np.abs(saddle.params).max() < 1e-7


def test_a_minimum_is_no_strict_saddle():
    saddle = rr.find_saddle(rr.Problem(lambda x: x @ x, jnp.ones(2)))
    assert saddle.is_stationary and not saddle.is_strict and saddle.morse_index == 0
    assert saddle.reason == "No negative curvature: the least eigenvalue is 2."


def test_out_of_a_symmetric_minimum():
    # The curvature of a cosine has no slope at its minimum.
    saddle = rr.find_saddle(rr.Problem(lambda x: -jnp.cos(x[0]) + x[1] ** 2, jnp.zeros(2)))
    assert saddle.morse_index == 1 and saddle.is_strict
    np.testing.assert_allclose(np.cos(saddle.params[0]), -1)


@pytest.mark.parametrize("loss", [lambda x: jnp.sum(x), lambda x: jnp.sum(x**3 + x)])
def test_no_stationary_point_is_said_so(loss):
    saddle = rr.find_saddle(rr.Problem(loss, jnp.ones(2)), num_starts=2)
    assert not saddle.is_stationary and not saddle.is_strict
    assert saddle.reason.startswith("No stationary point: the gradient norm is")
    assert np.isfinite(saddle.params).all() and np.isfinite(saddle.grad_norm)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_last_steps_are_newtons(dtype):
    # Quadratic convergence: from 1e-2 to rounding in four steps.
    start = jnp.array([1e-2, -2e-2, 1e-2], dtype)
    problem = rr.Problem(wells_loss, start, jnp.array([0.5, 1.0, 1.5], dtype))
    saddle = rr.find_saddle(problem, max_steps=4, num_starts=1)
    assert saddle.grad_norm < 10 * jnp.finfo(dtype).eps and saddle.params.dtype == dtype
    assert saddle.cost.hessians <= 4 + 2


def test_null_directions_are_left_alone():
    # The loss does not depend on x[1]: the nearest saddle keeps it.
    problem = rr.Problem(lambda x: jnp.cos(x[0]), jnp.array([0.3, 7.0]))
    saddle = rr.find_saddle(problem)
    np.testing.assert_allclose(saddle.params, [0, 7], atol=1e-8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_steps": -1}, "`max_steps` must be a whole number of at least 0"),
        ({"num_starts": 0}, "`num_starts` must be a whole number of at least 1"),
        ({"index": 3}, "`index` must be a whole number between 1 and 2, not 3"),
        ({"noise": -0.1}, "`noise` must be at least 0"),
        ({"regularizer": 3}, "`regularizer` must be callable"),
        ({"symmetry": 3}, "`symmetry` must be a Symmetry, not 3"),
    ],
)
def test_bad_saddle_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        rr.find_saddle(wells(2), **settings)


# --- with a regularizer


def negative_entropy(params):
    return -entropy(params)


@pytest.mark.parametrize("seed", range(3))
def test_the_saddle_of_the_lever_game(seed):
    problem = rr.Problem(lever_loss, jnp.zeros((2, 10)), jnp.asarray(PAPER))
    saddle = rr.find_saddle(problem, negative_entropy, noise=0.1, seed=seed)
    expected = jax.nn.softmax(lever_saddle(jnp.asarray(PAPER)))
    np.testing.assert_allclose(jax.nn.softmax(saddle.params), expected, atol=1e-8)
    assert saddle.grad_norm < 1e-10 and saddle.is_strict and saddle.morse_index == 9
    assert saddle.loss == pytest.approx(-1 / sum(1 / payoff for payoff in PAPER), abs=1e-12)
    found = [c.eigenvalue for c in saddle.clusters for _ in range(c.multiplicity)]
    np.testing.assert_allclose(found, lever_eigenvalues(PAPER), atol=1e-8)
    assert [c.multiplicity for c in saddle.clusters[:4]] == [1, 1, 1, 6]


def test_the_regularizer_chooses_on_a_line_of_saddles():
    # Every point with x[0] = x[1] = 0 is a saddle; the regularizer is least at x[2] = 2.
    problem = rr.Problem(lambda x: x[0] ** 2 - x[1] ** 2, jnp.array([0.2, -0.3, 0.5]))
    saddle = rr.find_saddle(problem, lambda x: (x[2] - 2) ** 2)
    assert saddle.is_strict and saddle.morse_index == 1
    np.testing.assert_allclose(saddle.params, [0, 0, 2], atol=1e-3)


def tied_levers(seed):
    """A random lever game with ties, its symmetry, and its only interior stationary point."""
    payoffs = np.random.default_rng(seed).choice([0.5, 0.75, 1.0], size=6)
    groups = [jnp.asarray(np.flatnonzero(payoffs == one)) for one in np.unique(payoffs)]

    def copy(params, key):
        for number, group in enumerate(groups):
            mixed = jax.random.permutation(jax.random.fold_in(key, number), group)
            params = params.at[:, group].set(params[:, mixed])
        return params

    problem = rr.Problem(lever_loss, jnp.zeros((2, 6)), jnp.asarray(payoffs))
    return problem, rr.symmetry.Symmetry(copy=copy), jax.nn.softmax(lever_saddle(payoffs))


@pytest.mark.parametrize("seed", [1045, 1066, 1077, 1084, 1093, 0, 1, 2])
def test_a_gradient_that_vanishes_at_infinity_is_not_a_saddle(seed):
    # From the first five of these starts one lever's probability goes to zero: on that way the
    # gradient falls below any tolerance.
    problem, _, expected = tied_levers(seed)
    saddle = rr.find_saddle(problem, negative_entropy, noise=0.3, seed=seed)
    assert saddle.is_strict
    np.testing.assert_allclose(jax.nn.softmax(saddle.params), expected, atol=1e-6)


@pytest.mark.parametrize("seed", range(2))
def test_the_maximally_invariant_saddle(seed):
    problem, symmetry, expected = tied_levers(seed)
    saddle = rr.find_saddle(problem, negative_entropy, noise=1.0, seed=seed, symmetry=symmetry)
    assert saddle.is_strict
    np.testing.assert_allclose(jax.nn.softmax(saddle.params), expected, atol=1e-10)
    copied = symmetry.copy(saddle.params, jax.random.key(7))
    np.testing.assert_allclose(copied, saddle.params, atol=1e-12)
