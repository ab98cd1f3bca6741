"""What a point is called, against dense references."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider.problems import wells

KEY = jax.random.key(0)


def settle(problem, x, **settings):
    end = rr.Descend(**settings)(problem, jnp.asarray(x, problem.dtype), KEY, None)
    return jax.device_get(end)


# --- ten losses, two of them badly scaled, one with rotations, one a network


def wall(x):
    return 4 * (x[0] ** -12 - x[0] ** -6) + (x[1] ** 2 - 1) ** 2


def stiff(x):
    return jnp.sum(x**4 / 4) + (1e6 * x[0] ** 2 - 1e-6 * x[1] ** 2 - x[2] ** 2) / 2


def small(x):
    scaled = x * jnp.array([1e3, 1.0, 1e-3])
    return jnp.sum((scaled**2 - 1) ** 2) + 0.1 * scaled[0] * scaled[1]


def cluster(x):
    points = x.reshape(4, 2)
    i, j = np.triu_indices(4, 1)
    squares = jnp.sum((points[i] - points[j]) ** 2, axis=1)
    return jnp.sum(squares**-6 - 2 * squares**-3)


def ring(x):
    points = x.reshape(5, 2)
    bonds = jnp.linalg.norm(jnp.roll(points, -1, axis=0) - points, axis=1)
    across = jnp.linalg.norm(jnp.roll(points, -2, axis=0) - points, axis=1)
    return jnp.sum((bonds - 1) ** 2) + 0.3 * jnp.sum(1 / across)


INPUTS = np.random.default_rng(1).normal(size=(20, 2))
TARGETS = np.sin(2 * INPUTS[:, 0]) * INPUTS[:, 1]


def network(x):
    hidden = jnp.tanh(INPUTS @ x[:6].reshape(2, 3))
    return jnp.mean((hidden @ x[6:] - TARGETS) ** 2) + 0.01 * x @ x


def camel(x):
    a, b = x
    return (4 - 2.1 * a**2 + a**4 / 3) * a**2 + a * b + (4 * b**2 - 4) * b**2


def rastrigin(x):
    return jnp.sum(x**2 - 5 * jnp.cos(2 * np.pi * x))


def rank_one(x):
    return jnp.sum((jnp.outer(x[:3], x[3:]) - jnp.outer(jnp.arange(3.0), jnp.ones(2))) ** 2)


def double(x):
    return jnp.sum(x**4 / 4 - jnp.array([0.5, 1.0, 1.0]) * x**2 / 2)


LOSSES = {
    wall: (2, lambda r: r.uniform([0.5, -1.5], [1.5, 1.5])),
    stiff: (3, lambda r: r.choice([0.0, 1.0], 3) * r.normal(size=3)),
    small: (3, lambda r: r.choice([0.0, 1.0], 3) * r.normal(size=3) / [1e3, 1.0, 1e-3]),
    cluster: (8, lambda r: r.normal(size=8)),
    ring: (10, lambda r: r.normal(size=10)),
    network: (9, lambda r: r.choice([0.1, 1.0]) * r.normal(size=9)),
    camel: (2, lambda r: r.choice([0.0, 1.0], 2) * r.normal(size=2)),
    rastrigin: (3, lambda r: r.choice([0.5, 1.0, 0.3], 3) * r.integers(-3, 3, 3)),
    rank_one: (5, lambda r: r.choice([0.0, 1.0]) * r.normal(size=5)),
    double: (3, lambda r: r.choice([0.0, 1.0], 3) * r.normal(size=3)),
}


def faults(loss, number, seed):
    """Ends whose kind a dense Newton step and `eigh` contradict; and how many of each kind."""
    size, draw = LOSSES[loss]
    random = np.random.default_rng([seed, size])
    problem = rr.Problem(loss, jnp.ones(size))
    grad, hessian = jax.jit(jax.grad(loss)), jax.jit(jax.hessian(loss))
    wrong, kinds = [], {}
    for _ in range(number):
        end = settle(problem, draw(random))
        kinds[end.kind] = kinds.get(end.kind, 0) + 1
        eigenvalues, columns = np.linalg.eigh(hessian(end.x))
        scale = np.abs(eigenvalues).max()
        # What is zero but for rounding; the badly scaled ones have eigenvalues of 1e-12.
        is_flat = np.abs(eigenvalues) <= (1e-13 if loss in (stiff, small) else 1e-11) * scale
        slopes = columns.T @ np.asarray(grad(end.x))
        step = np.linalg.norm(slopes[~is_flat] / eigenvalues[~is_flat])
        is_stationary = step <= 1e-6 * max(1, np.linalg.norm(end.x))
        is_negative = (eigenvalues[~is_flat] < 0).any()
        if end.kind in ("minimum", "saddle"):
            is_right = is_stationary and is_negative == (end.kind == "saddle")
            is_right &= int(end.num_flat) == is_flat.sum()
        else:  # the loss must fall further out, or this is no stationary point
            is_right = not is_stationary or end.kind == "unverified"
        if not is_right:
            wrong.append((end.kind, step, eigenvalues[:4], end.num_flat, end.x))
    return wrong, kinds


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_kinds_against_dense_newton_steps_and_spectra(loss):
    wrong, kinds = faults(loss, 10, seed=0)
    assert not wrong and kinds.keys() & {"minimum", "saddle"}


@pytest.mark.long
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_kinds_of_five_hundred_ends(loss):
    wrong, _ = faults(loss, 50, seed=1)
    assert not wrong


# --- what was called a minimum and was none


def test_a_least_eigenvalue_that_was_not_found_verifies_nothing():
    eigenvalues = jnp.concatenate([jnp.array([-0.02]), jnp.linspace(0.05, 100, 399)])
    problem = rr.Problem(lambda x: eigenvalues @ x**2 / 2 + 0.01 * x[0] ** 4, jnp.zeros(400))
    x = jnp.zeros(400).at[5].set(1.0)  # a descent that never leaves x[0] = 0
    assert settle(problem, x).kind == "saddle"
    blind = settle(problem, x, max_hvps=12)
    assert blind.kind in ("saddle", "unverified")
    assert settle(problem, x, max_hvps=0).kind == "unverified"


def test_a_rider_that_cannot_see_across_an_axis_calls_no_saddle_a_minimum():
    rider = rr.Rider(spectrum=rr.BlockSpectrum(k=3, max_hvps=3, method="gradient"))
    result = rr.search(wells(3), rider, max_rides=12)
    for solution in result.solutions():
        least = np.linalg.eigvalsh(wells(3).hessian(jnp.asarray(solution.params)))[0]
        assert solution.kind == ("minimum" if least > 0 else "saddle")


def test_a_flat_direction_that_leads_down_is_seen():
    problem = rr.Problem(lambda x: x[1] ** 2 - x[0] ** 4 + x[0] ** 6, jnp.zeros(2))
    end = settle(problem, [0.0, 0.5])
    assert end.kind == "saddle"  # both ways
    end = settle(rr.Problem(lambda x: x[0] ** 3 + x[1] ** 2, jnp.zeros(2)), [1.0, 0.1])
    assert end.kind == "unverified" and "falls" in end.doubt
    assert settle(rr.Problem(lambda x: jnp.sum(x**4), jnp.zeros(2)), [0.3, 0.5]).kind == "minimum"


def test_a_part_of_the_data_verifies_nothing():
    data = jnp.linspace(-1, 1, 8)
    problem = rr.Problem(lambda x, data: jnp.mean((x[0] - data) ** 2), jnp.ones(1), data)
    assert settle(problem, [1.0]).kind == "minimum"
    part = settle(problem.on_rows(jnp.array([[0, 1, 2, 3]])), [1.0])
    assert part.kind == "unverified" and "batch" in part.doubt
    assert settle(problem.on_rows(jnp.arange(8).reshape(2, 4)), [1.0]).kind == "minimum"


# --- at infinity


AT_INFINITY = [
    (lambda x: jnp.exp(-x[0]) + jnp.exp(-10 * x[1]), [0.0, 0.0], 0.0),
    (lambda x: 1 + jnp.exp(-x[0]) + (x[1] - 1) ** 2, [0.0, 0.0], 1.0),
    (lambda x: -jax.nn.softmax(jnp.append(x, 0.0)) @ np.array([1.0, 0.5, 0.2]), [0.0, 0.0], -1.0),
    (lambda x: jnp.mean(jax.nn.softplus(-x[0] * np.array([1.0, 2.0]))), [0.0, 0.0], 0.0),
    (lambda x: 1 / (1 + x[0] ** 2) + x[1] ** 2, [1.0, 0.3], 0.0),
]
AT_HAND = [
    (lambda x: x[0] ** 4 + x[1] ** 2, [1.0, 0.1]),
    (lambda x: jnp.maximum(0, 1 - x[0]) ** 2 + x[1] ** 2, [-1.0, 0.1]),
    (lambda x: (x[0] + x[1] - 1) ** 2, [0.2, 0.1]),
    (lambda x: x[0] ** -12 - x[0] ** -6 + x[1] ** 2, [0.5, 1.0]),
    (lambda x: -1 / (1 + x[0] ** 2) ** 3 + x[1] ** 2, [5.0, 1.0]),
    (lambda x: -jnp.exp(-x @ x), [2.0, 1.0]),
]


def any_of_them(x, which):
    """All in one loss: one program is compiled for all."""
    return jax.lax.switch(which, [case[0] for case in AT_INFINITY + AT_HAND], x)


@pytest.mark.parametrize("which", range(len(AT_INFINITY)))
def test_solutions_at_infinity(which):
    _, x, limit = AT_INFINITY[which]
    problem = rr.Problem(any_of_them, jnp.zeros(2), jnp.array(which))
    end = settle(problem, x)
    assert end.kind == "at infinity" and float(end.limit) == pytest.approx(limit, abs=1e-3)
    far = [float(problem.value(end.x + part * end.runaway)) for part in (0, 0.3, 1)]
    assert far[0] > far[1] >= far[2] - 1e-9 >= limit - 1e-9


@pytest.mark.parametrize("which", range(len(AT_HAND)))
def test_what_is_at_hand_is_not_at_infinity(which):
    problem = rr.Problem(any_of_them, jnp.ones(2), jnp.array(len(AT_INFINITY) + which))
    assert settle(problem, AT_HAND[which][1]).kind in ("minimum", "unconverged")


# --- where rounding hides that there is nothing

SEPARABLE = np.random.default_rng(0).normal(size=(30, 2)).astype("float32")
CLASSES = (SEPARABLE @ np.array([1.0, 0.5]) > 0).astype(int)[:, None]


def cross_entropy(x):
    hidden = jnp.tanh(SEPARABLE @ x[:8].reshape(2, 4) + x[None, 8:12])
    outputs = hidden @ x[12:20].reshape(4, 2) + x[None, 20:]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(outputs), CLASSES, axis=1))


def test_a_loss_that_underflows_has_no_minimum():
    # It falls as long as weights grow, but the sums of its terms are zero in single precision.
    problem = rr.Problem(cross_entropy, jnp.zeros(22, "float32"))
    starts = [10 * np.random.default_rng(seed).normal(size=22) for seed in range(2, 6)]
    ends = [settle(problem, start) for start in starts]
    assert min(float(end.loss) for end in ends) < 1e-6
    assert not any(end.kind == "minimum" for end in ends)


@pytest.mark.parametrize(
    ("loss", "x"),
    [
        (lambda x: jnp.sum(x**4), [30.0, 20.0]),
        (lambda x: jnp.sum(x**6) + jnp.sum((x - 1) ** 2), [30.0, 20.0]),
        (cluster, [0, 0, 0.1, 0.05, 1, 0.3, 0.6, 0.9]),
    ],
)
def test_a_minimum_far_below_is_one_in_single_precision(loss, x):
    problem = rr.Problem(loss, jnp.asarray(x, "float32"))
    assert settle(problem, x).kind == "minimum"
