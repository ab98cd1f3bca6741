"""What is the same: signatures, generators, and searches that ride equal branches once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import ridgerider as rr
from ridgerider.problems import lennard_jones


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_copy_has_the_signature_and_another_point_does_not(seed):
    points = jax.random.normal(jax.random.key(seed), (6, 3))
    for symmetry in (
        rr.symmetry.rigid(3),
        rr.symmetry.point_set(),
        rr.symmetry.point_set("AABBBC"),
    ):
        copy = symmetry.copy(points, jax.random.key(seed + 10))
        mark = symmetry.signature(points)
        assert np.allclose(mark, symmetry.signature(copy), atol=1e-10)
        assert not np.allclose(mark, symmetry.signature(points.at[0, 0].add(0.01)), atol=1e-4)


def test_what_each_symmetry_tells_apart():
    points = jax.random.normal(jax.random.key(3), (5, 3))
    mirrored, swapped = points * jnp.array([[1.0, 1.0, -1.0]]), points[jnp.array([1, 0, 2, 3, 4])]

    def is_same(symmetry, other):
        return np.allclose(symmetry.signature(points), symmetry.signature(other), atol=1e-9)

    rigid, equal, two = rr.symmetry.rigid(), rr.symmetry.point_set(), rr.symmetry.point_set("ABBBB")
    assert [is_same(one, mirrored) for one in (rigid, equal, two)] == [False, True, True]
    assert [is_same(one, swapped) for one in (rigid, equal, two)] == [False, True, False]


def test_generators_leave_the_loss_level():
    problem = lennard_jones(5)
    rows = [problem.ravel(one) for one in rr.symmetry.rigid().generators(problem.start)]
    assert len(rows) == 6
    assert np.allclose(jnp.stack(rows) @ problem.grad(problem.x0), 0, atol=1e-9)


def units_of(params):
    return jnp.concatenate([params["in"].T, params["out"][:, None]], axis=1)


def network():
    inputs = jax.random.normal(jax.random.key(0), (32, 2))
    targets = jnp.sin(3 * inputs) @ jnp.array([1.0, 0.8])
    start = {"in": jnp.zeros((2, 2)), "out": jnp.zeros(2)}
    return rr.Problem(network_loss, start, inputs, targets), inputs


def network_loss(params, inputs, targets):
    hidden = jnp.tanh(inputs @ params["in"])
    penalty = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
    return jnp.mean((hidden @ params["out"] - targets) ** 2) + 0.003 * penalty


def test_equal_branches_of_a_network_are_ridden_once():
    problem, inputs = network()

    def outputs(params):
        return jnp.tanh(inputs @ params["in"]) @ params["out"]

    symmetry = rr.symmetry.units(units_of, signs=True)
    every = rr.search(problem, members="all", max_rides=None)
    once = rr.search(problem, members="all", max_rides=None, symmetry=symmetry)
    losses = [
        sorted(round(one.loss, 6) for one in run.minima(signature=outputs)) for run in (every, once)
    ]
    assert sorted(set(losses[0])) == sorted(set(losses[1]))
    assert once.num_open() == every.num_open() == 0
    assert len(once) <= len(every) / 4


def test_a_search_with_a_symmetry_is_resumed(tmp_path):
    problem, _ = network()
    symmetry = rr.symmetry.units(units_of, signs=True)
    whole = rr.search(problem, members="all", max_rides=None, symmetry=symmetry)
    path = tmp_path / "run.sqlite"
    rr.search(problem, members="all", max_rides=2, symmetry=symmetry, out=path)
    with pytest.raises(ValueError, match=r"a custom `symmetry`, .*: pass it again"):
        rr.resume(path, problem)
    resumed = rr.resume(path, problem, symmetry=symmetry, max_rides=None)
    assert set(resumed.fingerprints()) == set(whole.fingerprints())


def test_a_search_notices_a_symmetry_that_ends_on_the_way():
    """Level at the start, a saddle, along both generators; along the second not where rides end."""

    def loss(x):
        return x[0] ** 4 / 4 - x[0] ** 2 / 2 + x[0] ** 2 * x[1]

    def generators(x):
        zero, one = jnp.zeros_like(x[0]), jnp.ones_like(x[0])
        return [jnp.stack([zero, zero, one]), jnp.stack([zero, one, zero])]

    problem = rr.Problem(loss, jnp.zeros(3))
    wanted = r"at the end of the leg 0.* changes along its generator number 1"
    with pytest.raises(ValueError, match=wanted):
        rr.search(problem, max_rides=1, symmetry=rr.Symmetry(generators))
    level = rr.Symmetry(lambda x: generators(x)[:1])
    assert len(rr.search(problem, max_rides=1, symmetry=level)) == 1


def test_bad_input():
    with pytest.raises(ValueError, match="`dim` must be"):
        rr.symmetry.rigid(4)
    with pytest.raises(ValueError, match="label for each of the 7 particles"):
        rr.explore(lennard_jones(7), symmetry=rr.symmetry.point_set("AB"))
    with pytest.raises(ValueError, match="points in 3 dimensions"):
        rr.symmetry.rigid().generators(jnp.ones(4))


def mixture_loss(means, samples):
    """The negative log-likelihood of normal distributions of unit width and equal shares."""
    return -jnp.mean(jax.nn.logsumexp(-0.5 * (samples[:, None] - means[None]) ** 2, axis=1))


@pytest.mark.parametrize("seed", [3, 6])
def test_minima_of_a_mixture_of_five_against_many_descents(seed):
    """The components have no order. A map with bounds has all minima.

    A map without bounds, and a search from the saddle of equal components, have some of them, each
    once; for seed 6 all.
    """
    random = np.random.default_rng(seed)
    samples = np.concatenate([at + random.normal(size=8) for at in (-4, -4, 0, 4, 4)])
    middle = float(samples.mean())
    problem = rr.Problem(mixture_loss, jnp.full(5, middle), jnp.asarray(samples))
    order = rr.symmetry.Symmetry(signature=jnp.sort)

    def listed(points):
        rows = [np.sort(x) for x in points]
        return np.array(sorted(rows, key=lambda x: float(problem.value(jnp.asarray(x)))))

    tree = rr.search(problem, symmetry=order, max_rides=150)
    apart = problem.with_start(middle + jnp.linspace(-1.0, 1.0, 5))
    graph = rr.explore(apart, symmetry=order, max_rides=400, bounds=[(-7.0, 7.0)] * 5)
    second = rr.explore(apart, rr.Climb(num_second=4), symmetry=order)
    function = jax.jit(jax.value_and_grad(problem.value))
    ends = [
        minimize(lambda x: tuple(map(np.asarray, function(x))), x, jac=True, tol=1e-12).x
        for x in random.uniform(-6, 6, size=(200, 5))
    ]
    hessian = jax.jit(problem.hessian)
    strict = [x for x in ends if np.linalg.eigvalsh(hessian(x))[0] > 1e-4]
    expected = listed({tuple(np.sort(x).round(3)): x for x in strict}.values())
    assert len(expected) >= 3
    whole, *others = (listed([one.params for one in run.minima()]) for run in (graph, second, tree))
    np.testing.assert_allclose(whole, expected, atol=1e-4)
    for some in others:
        nearest = [np.abs(expected - x).max(axis=1).argmin() for x in some]
        np.testing.assert_allclose(some, expected[nearest], atol=1e-4)
        assert len(set(nearest)) == len(some) and (seed != 6 or len(some) == len(expected))
