"""Ridges of repeated eigenvalues in a search: each class once, each point once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider.problems.wells import wells_loss

INPUTS = jax.random.normal(jax.random.key(0), (64, 3))
TARGETS = jnp.sin(3 * INPUTS) @ jnp.array([1.0, 0.8, 0.6])


def network_loss(params, inputs, targets):
    hidden = jnp.tanh(inputs @ params["in"])
    penalty = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
    return jnp.mean((hidden @ params["out"] - targets) ** 2) + 0.003 * penalty


def network():
    start = {"in": jnp.zeros((3, 3)), "out": jnp.zeros(3)}
    return rr.Problem(network_loss, start, INPUTS, TARGETS)


def equal_wells(*depths):
    return rr.Problem(wells_loss, jnp.zeros(len(depths)), jnp.array(depths))


def turn_bases(monkeypatch, seed):
    """Let `eigh` return another basis of each eigenspace, as another machine may."""
    eigh = np.linalg.eigh

    def turned(matrix):
        values, vectors = eigh(np.asarray(matrix))
        width = np.finfo(values.dtype).eps ** (2 / 3) * np.abs(values).max()
        first = np.searchsorted(values, values - width)
        random = np.random.default_rng(seed)
        for label in np.unique(first):
            rows = np.flatnonzero(first == label)
            turn = np.linalg.qr(random.normal(size=(len(rows), len(rows))))[0]
            vectors[:, rows] = vectors[:, rows] @ turn
        return values, vectors

    def on_the_host(matrix, *args, **kwargs):
        matrix = (matrix + matrix.T) / 2
        shapes = [jax.ShapeDtypeStruct(matrix.shape[:n], matrix.dtype) for n in (1, 2)]
        return jax.pure_callback(turned, shapes, matrix)

    monkeypatch.setattr(jnp.linalg, "eigh", on_the_host)


def found(result):
    return [
        (str(leg.fingerprint), leg.finish.kind, float(leg.finish.loss))
        for leg in result
        if leg.finish is not None
    ]


def check_network(rider, expected):
    # A new function: nothing compiled before is used again.
    problem = rr.Problem(lambda *args: network_loss(*args), network().start, INPUTS, TARGETS)
    result = rr.search(problem, rider, max_rides=50)
    losses = {round(loss, 5) for _, kind, loss in found(result) if kind == "minimum"}
    assert {0.49053, 0.50422, 0.51633} <= losses
    for one, two in zip(found(result), expected, strict=True):
        assert one[:2] == two[:2] and one[2] == pytest.approx(two[2], abs=1e-8)
    return result


def test_the_three_minima_of_a_network_in_another_basis(monkeypatch):
    expected = found(rr.search(network(), max_rides=50))
    turn_bases(monkeypatch, 1)
    result = check_network(rr.Rider(), expected)
    best = result.minima()[0]
    assert best.loss == pytest.approx(0.490534, abs=1e-6) and best.num_copies > 1
    ways = result.leg("").ways
    assert [way.class_size for way in ways if way.order == 4][:3] == [4, 6, 3]


@pytest.mark.long
@pytest.mark.parametrize("engine", [rr.DenseSpectrum(), rr.BlockSpectrum(k=6, dense_below=0)])
def test_the_three_minima_of_a_network_in_twenty_bases(monkeypatch, engine):
    expected = found(rr.search(network(), max_rides=50))
    for seed in range(20):
        with monkeypatch.context() as other:
            turn_bases(other, seed)
            check_network(rr.Rider(spectrum=engine), expected)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_equal_wells_are_all_found(size):
    problem = equal_wells(*[1.0] * size)
    start = rr.search(problem, max_rides=0, members="all").leg("")
    assert len(start.turns) == (3**size - 1) // 2
    assert len(rr.search(problem, max_rides=0).leg("").turns) == size
    result = rr.search(problem, max_rides=None)
    points = {tuple(np.sign(np.round(one.params, 3))) for one in result.minima()}
    # One address for each class is enough up to symmetry, and here signs make up the rest.
    assert len(points) == len(result.minima()) and result.num_open() == 0
    assert max(one.num_copies for one in result.minima()) >= 2 ** (size - 1)


def test_points_are_branched_at_once():
    problem = equal_wells(1.0, 1.0, 0.8)
    result = rr.search(problem, members="all", max_rides=None)
    assert len(result.minima()) == 8 and result.num_open() == 0 and result.links()
    legs = {name: result.leg(name) for name in result.fingerprints()}
    assert len(legs) <= 27 * 10
    for name, other in result.links().items():
        np.testing.assert_allclose(legs[name].x, legs[other].x, atol=1e-5)
        assert not any(str(leg).startswith(f"{name} ") for leg in legs)
        assert legs[name].linked_to == other
    # Every address replays, also that of a linked leg.
    (name, *_) = result.links()
    np.testing.assert_allclose(result.replay(name)[-1].x, legs[name].x, atol=1e-12)


@pytest.mark.long
def test_six_wells_of_which_three_are_equal():
    problem = equal_wells(1.0, 1.0, 1.0, 0.9, 0.8, 0.7)
    result = rr.search(problem, members="all", max_rides=5000)
    assert len(result.minima()) == 64


def test_searches_branch_at_saddles():
    result = rr.search(equal_wells(1.0, 0.8), branch_at="saddle", max_rides=None)
    below = [leg for leg in result if leg.fingerprint[-1].below]
    assert below and len(result.minima()) == 4
    for leg in below[:4]:
        again = result.replay(leg.fingerprint)[-1]
        np.testing.assert_allclose(again.x, leg.x, atol=1e-12)
        parent = result.leg(leg.fingerprint.parent)
        assert parent.finish.kind == "saddle" and parent.below.num_ridges > 0


@pytest.mark.parametrize("cut", [1, 7, 20])
def test_links_do_not_depend_on_interruptions_and_workers(tmp_path, cut):
    problem = equal_wells(1.0, 1.0, 0.8)
    settings = {"members": "all", "round_size": 5}
    whole = rr.search(problem, max_rides=60, **settings)
    path = tmp_path / "run.sqlite"
    rr.search(problem, max_rides=cut, out=path, **settings)
    resumed = rr.resume(path, problem, max_rides=60)
    assert resumed.links() == whole.links()
    assert set(resumed.fingerprints()) == set(whole.fingerprints())
    assert resumed.num_open() == whole.num_open()
