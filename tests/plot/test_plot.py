from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import ridgerider as rr
from ridgerider._search.runfile.write import Store
from ridgerider.plot._landscape import plane_of_rides
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


def test_the_flow_goes_on_where_the_ride_before_ended(result, ax):
    assert rr.plot.eigenvalue_flow(result, ax) is ax
    legs = sorted(result, key=lambda leg: (leg.fingerprint.depth, leg.fingerprint.sort_key()))
    ways = {str(leg.fingerprint): line for leg, line in zip(legs, ax.lines[::2], strict=False)}
    assert ways["1+ 0-"].get_xdata()[0] == ways["1+"].get_xdata()[-1]
    np.testing.assert_array_equal(ways["1+"].get_ydata(), result.leg("1+").trace["eigenvalue"])


def test_a_landscape_is_the_loss_in_the_plane(result, ax):
    found = plane_of_rides(result, "0+", "1-", num_points=7)
    plane = found.plane
    np.testing.assert_allclose(
        [plane.first @ plane.first, plane.second @ plane.second, plane.first @ plane.second],
        [1, 1, 0],
        atol=1e-12,
    )
    for row, column in ((0, 0), (3, 5), (6, 2)):
        x = plane.origin + found.a[column] * plane.first + found.b[row] * plane.second
        value = float(result.problem.value(jnp.asarray(x)))
        assert found.loss[row, column] == pytest.approx(value, rel=1e-12)
    # In two dimensions nothing leaves the plane: projecting and going back is the identity.
    for path in found.paths:
        points = plane.origin + path.points @ np.stack([plane.first, plane.second])
        np.testing.assert_allclose(points, result.leg(path.fingerprint).trace["path"], atol=1e-12)
        assert found.a[0] <= path.points[:, 0].min() and path.points[:, 0].max() <= found.a[-1]
    assert rr.plot.landscape(result, ("0+", "1-"), ax, num_points=5) is ax


def test_descents_are_drawn_as_they_are_stored(result, ax):
    found = plane_of_rides(result, "0+", "1-", num_points=3)
    plane = found.plane
    for path in found.paths:
        leg = result.leg(path.fingerprint)
        points = plane.origin + path.descent @ np.stack([plane.first, plane.second])
        np.testing.assert_allclose(points[:-1], leg.finish.path, atol=1e-12)
        np.testing.assert_allclose(points[-1], leg.finish.x, atol=1e-12)
        assert found.a[0] < path.descent[-1, 0] < found.a[-1]  # minima are in view
        assert found.b[0] < path.descent[-1, 1] < found.b[-1]
    rr.plot.landscape(result, ("0+", "1-"), ax, num_points=3)
    drawn = [line.get_xydata() for line in ax.lines if line.get_linestyle() == ":"]
    assert sorted(map(len, drawn)) == sorted(len(path.descent) for path in found.paths)
    bare = without_paths(result)
    bare = rr.Result(bare._store, bare.problem)
    for path in plane_of_rides(bare, "0+", "1-", num_points=3).paths:
        assert len(path.descent) == 2


def test_two_ways_along_one_ridge_still_make_a_plane(result):
    # Their ends lie on a line with the start but for the bend of the ridge.
    plane = plane_of_rides(result, "0+", "0-", num_points=2).plane
    assert abs(plane.first @ plane.second) < 1e-12


@pytest.mark.parametrize(
    ("rides", "num_points", "message"),
    [
        (("0+", ""), 5, "the start is no ride"),
        (("0+", "9+"), 5, r"`fingerprint` must be a leg of this run, but '9\+' was not ridden"),
        (("0+", "1+"), 1, "`num_points` must be a whole number of at least 2, not 1"),
        (("0+", "0+"), 5, None),
    ],
)
def test_bad_landscapes_are_refused(result, rides, num_points, message):
    if message is None:  # one ride and its bend
        assert plane_of_rides(result, *rides, num_points=num_points).loss.shape == (5, 5)
        return
    with pytest.raises(ValueError, match=message):
        plane_of_rides(result, *rides, num_points=num_points)


def test_without_a_path_rides_are_straight_lines(result):
    bare = without_paths(result)
    exact = {str(path.fingerprint): path for path in plane_of_rides(bare, "0+", "1+ 0+", 3).paths}
    whole = {"0+", "1+", "1+ 0+"}  # ridden again
    assert {name for name, path in exact.items() if len(path.points) > 2} == whole
    assert len(exact["1-"].points) == 2
    found = plane_of_rides(result, "0+", "1+ 0+", 3)
    stored = {str(path.fingerprint): path for path in found.paths}
    for name in whole:
        np.testing.assert_array_equal(exact[name].points, stored[name].points)
    np.testing.assert_allclose(exact["1-"].points, stored["1-"].points[[0, -1]], atol=1e-12)
    bare = rr.Result(bare._store, bare.problem)
    assert {len(path.points) for path in plane_of_rides(bare, "0+", "1+", 3).paths} == {2}


def without_paths(result):
    store = Store.create(None, result.meta, result.leg(""), [])
    for leg in result:
        trace = {name: column for name, column in leg.trace.items() if name != "path"}
        store.settle(replace(leg, trace=trace, finish=replace(leg.finish, path=None)), [])
    return rr.Result(store, result.problem, result._mover)
