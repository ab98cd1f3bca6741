from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import ridgerider as rr
from ridgerider._search.runfile.store import Store
from ridgerider.plot._figures import plane_of, ridden
from ridgerider.problems import surface


@pytest.fixture(scope="module")
def result():
    return rr.search(surface(), rr.Rider(keep_path=True))


@pytest.fixture
def ax():
    return Figure().subplots()


def test_the_tree_has_a_line_for_each_ride(result, ax):
    assert rr.plot.tree(result, ax) is ax
    lines = ax.collections[0].get_segments()
    rides = list(result)
    for line, leg in zip(lines, rides, strict=True):
        assert line[0, 1] == result.leg(leg.fingerprint.parent).loss and line[-1, 1] == leg.loss
    eigenvalues = [leg.trace["eigenvalue"][0] for leg in rides]
    np.testing.assert_array_equal(ax.collections[0].get_array(), eigenvalues)
    # The loss is symmetric, so the tree is its own mirror image.
    ends = sorted(line[-1, 0] for line in lines)
    middle = lines[0][0, 0]
    np.testing.assert_allclose(np.sort(2 * middle - np.array(ends)), ends, atol=1e-9)
    # Every minimum, also below legs from which others lead on: the page draws those once one of
    # them is chosen.
    minima = [one for one in result.solutions() if one.kind == "minimum"]
    assert {one.fingerprint for one in minima} & {leg.fingerprint.parent for leg in rides}
    (points,) = [line.get_ydata() for line in ax.lines if line.get_label() == "minimum"]
    np.testing.assert_array_equal(np.sort(points), sorted(one.loss for one in minima))
    assert sorted(np.round(points, 6)) == [-1.125] * 4 + [-0.5] * 4


def test_a_ride_is_its_trace(result):
    leg = result.leg("1+ 0-")
    axes = rr.plot.ride(leg)
    names = ("loss", "eigenvalue", "overlap", "residual", "step_size")
    for name, drawn in zip(names, axes, strict=True):
        np.testing.assert_array_equal(drawn.lines[0].get_ydata(), leg.trace[name])
    assert any("neighbours" in leg.trace and len(line.get_xdata()) for line in axes[1].lines[1:])
    own = Figure().subplots(5)
    assert list(rr.plot.ride(leg, own)) == list(own)
    with pytest.raises(ValueError, match=r"`axes` must be 5, one for each of loss, .*, not 2"):
        rr.plot.ride(leg, own[:2])
    with pytest.raises(
        ValueError, match="`leg` must be a ride with steps, but this one is the start"
    ):
        rr.plot.ride(result.leg(""))


def test_a_spectrum_has_a_stem_for_each_cluster(result, ax):
    leg = result.leg("")
    assert rr.plot.spectrum(leg, ax) is ax
    stems = [line.get_xdata()[0] for line in ax.lines[:-1:2]]
    assert stems == [cluster.eigenvalue for cluster in leg.clusters]


def test_a_plane_holds_both_rides(result, ax):
    one, two = result.leg("0+"), result.leg("1-")
    plane = plane_of(result, one, two)
    np.testing.assert_allclose(
        [plane.first @ plane.first, plane.second @ plane.second, plane.first @ plane.second],
        [1, 1, 0],
        atol=1e-12,
    )
    a, b = np.array([0.1, 0.7]), np.array([-0.2, 0.3, 0.5])
    losses = plane.loss(result.problem, a, b)
    x = plane.origin + a[1] * plane.first + b[2] * plane.second
    assert losses[2, 1] == pytest.approx(float(result.problem.value(jnp.asarray(x))), rel=1e-12)
    # In two dimensions nothing leaves the plane: projecting and going back is the identity.
    path = one.trace["path"]
    back = plane.origin + plane.project(path) @ np.stack([plane.first, plane.second])
    np.testing.assert_allclose(back, path, atol=1e-12)
    assert rr.plot.landscape(result, ("0+", "1-"), ax, num_points=5) is ax


def test_two_ways_along_one_ridge_still_make_a_plane(result):
    plane = plane_of(result, result.leg("0+"), result.leg("0-"))
    assert abs(plane.first @ plane.second) < 1e-12


@pytest.mark.parametrize(
    ("rides", "num_points", "message"),
    [
        (("0+", ""), 5, "the start is not a ride"),
        (("0+", "9+"), 5, r"`fingerprint` must be a leg of this run, but '9\+' was not ridden"),
        (("0+", "1+"), 1, "`num_points` must be a whole number of at least 2, not 1"),
    ],
)
def test_bad_landscapes_are_refused(result, rides, num_points, message):
    with pytest.raises(ValueError, match=message):
        rr.plot.landscape(result, rides, num_points=num_points)


def test_rides_without_paths_are_ridden_again_where_that_is_possible(result):
    bare = without_paths(result)
    for one, two in zip(ridden(bare, "1+ 0+"), ridden(result, "1+ 0+"), strict=True):
        np.testing.assert_array_equal(one.trace["path"], two.trace["path"])
    bare = rr.Result(bare._store, bare.problem)
    assert all("path" not in leg.trace for leg in ridden(bare, "1+ 0+"))


def without_paths(result):
    store = Store.create(None, result.meta, result.leg(""), [])
    for leg in result:
        trace = {name: column for name, column in leg.trace.items() if name != "path"}
        store.settle(replace(leg, trace=trace), [])
    return rr.Result(store, result.problem, result._mover)
