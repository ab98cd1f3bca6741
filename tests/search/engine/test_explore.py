"""Maps of landscapes whose stationary points are known."""

import math
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider.problems import himmelblau, lennard_jones, mueller_brown, six_hump_camel
from ridgerider.problems.landscapes import is_one_cluster

KNOWN = {  # minima, transition states
    six_hump_camel: (6, 6),
    himmelblau: (4, 4),
    mueller_brown: (3, 2),
}
BRIDGES = {  # from tables of the function, to 1e-6
    "minima": [-146.699517, -108.166724, -80.767818],
    "saddles": [-72.248940, -40.664844],
}


def check_against_dense_hessians(problem, landscape):
    """Every point, with a Hessian of its own and NumPy's eigenvalues."""
    for one in (*landscape.minima(), *landscape.saddles(None)):
        x = problem.ravel(one.params)
        hessian = np.asarray(problem.hessian(x))
        eigenvalues = np.linalg.eigvalsh((hessian + hessian.T) / 2)
        scale = np.abs(eigenvalues).max()
        assert np.linalg.norm(problem.grad(x)) <= 1e-8 * scale
        assert np.sum(eigenvalues < -1e-7 * scale) == one.morse_index
        assert (one.kind == "minimum") == (one.morse_index == 0)


@pytest.mark.parametrize("name", KNOWN, ids=lambda name: name.__name__)
def test_all_stationary_points_of_the_plane(name):
    problem = name()
    landscape = rr.explore(problem)
    num_minima, num_saddles = KNOWN[name]
    assert len(landscape.minima()) == num_minima
    assert len(landscape.saddles()) == num_saddles
    assert landscape.completeness().is_exhausted
    assert len(landscape.components()) == 1
    check_against_dense_hessians(problem, landscape)
    for a in range(num_minima):
        for b in range(num_minima):
            assert landscape.barrier(a, b) == landscape.barrier(b, a)


def points_of(loss, start):
    landscape = rr.explore(rr.Problem(loss, jnp.asarray(start)), max_rides=20)
    minima, saddles = landscape.minima(), landscape.saddles(None)
    rest = [one for one in landscape.solutions() if one.kind not in ("minimum", "saddle")]
    return [sorted(float(one.params[0]) for one in group) for group in (minima, saddles, rest)]


def test_points_of_one_dimension_without_curvature():
    minima, saddles, rest = points_of(lambda x: (2 * x**6 - x**4)[0], [0.3])
    assert minima == pytest.approx([-(3**-0.5), 3**-0.5]) and not rest
    assert saddles == pytest.approx([0], abs=1e-6)
    # An inflection on the way down is left.
    minima, saddles, rest = points_of(lambda x: (x**3 + x**6)[0], [0.1])
    assert minima == pytest.approx([-(0.5 ** (1 / 3))]) and not saddles
    assert rest == pytest.approx([0] * len(rest), abs=1e-6)
    assert points_of(lambda x: jnp.sum(x**4), [0.3])[0] == pytest.approx([0], abs=1e-6)


@pytest.mark.parametrize("loss", [jnp.sum, lambda x: jnp.sum(jnp.abs(x) + x**2 / 10)])
def test_no_point_with_a_slope_is_listed(loss):
    with pytest.raises(ValueError, match="`start` must lie above a minimum"):
        rr.explore(rr.Problem(loss, jnp.array([0.3, 1.0])))


def test_mueller_brown_to_six_digits():
    landscape = rr.explore(mueller_brown())
    assert np.allclose([one.loss for one in landscape.minima()], BRIDGES["minima"], atol=1e-6)
    assert np.allclose([one.loss for one in landscape.saddles()], BRIDGES["saddles"], atol=1e-6)
    way = landscape.path(0, 1)
    assert way.maximum == landscape.barrier(0, 1) == landscape.saddles()[1].loss
    assert [one.morse_index for one in way.points] == [0, 1, 0, 1, 0]


def test_four_atoms():
    """Four Lennard-Jones atoms have one minimum, the tetrahedron, with -6."""
    problem = lennard_jones(4)
    landscape = rr.explore(problem, symmetry=rr.symmetry.point_set(), valid=is_one_cluster)
    assert [round(one.loss, 9) for one in landscape.minima()] == [-6.0]
    check_descents(landscape)
    check_against_dense_hessians(problem, landscape)


def check_descents(landscape):
    """No descent stops short, and each transition state has two ends."""
    down = [name for name in landscape.fingerprints() if name and not name[-1].up]
    assert down and all("max_steps" not in landscape.leg(name).ended_by for name in down)
    assert all(None not in edge.minima for edge in landscape.edges())


@pytest.mark.long
def test_seven_atoms():
    symmetry = rr.symmetry.point_set()
    landscape = rr.explore(lennard_jones(7), symmetry=symmetry, valid=is_one_cluster)
    assert (len(landscape.minima()), len(landscape.saddles())) == (4, 12)
    check_descents(landscape)


def test_saddles_are_left_upwards_as_well():
    """Each saddle has a mixture, both ways, that is climbed; 0 climbs none."""
    problem, symmetry = lennard_jones(4), rr.symmetry.point_set()
    for num_aside, count in ((None, 2), (0, 0), (2, 4)):
        climb = rr.Climb(num_aside=num_aside, num_second=0)
        landscape = rr.explore(problem, climb, symmetry=symmetry, valid=is_one_cluster)
        names = [name for name in landscape.fingerprints() if name]
        for saddle in landscape.saddles(None):
            ups = [one for one in names if one.parent == saddle.fingerprint and one[-1].up]
            assert len(ups) == count
        assert landscape.completeness().is_exhausted
        check_against_dense_hessians(problem, landscape)
    with pytest.raises(ValueError, match="`num_aside`"):
        rr.Climb(num_aside=-1)


def wells(x):
    """Three double wells of different depths: 8 minima, 12, 6 and 1 saddles of index 1, 2 and 3."""
    return jnp.sum(jnp.array([1.0, 1.3, 1.7]) * (x**2 - 1) ** 2)


def test_second_climbs_lead_to_saddles_of_index_two():
    problem = rr.Problem(wells, jnp.array([0.9, 0.8, 1.1]))
    for num_second, count in ((0, 0), (2, 6)):
        landscape = rr.explore(problem, rr.Climb(num_second=num_second))
        found = [len(landscape.saddles(index)) for index in (1, 2, 3)]
        assert (len(landscape.minima()), *found) == (8, 12, count, 0)
        assert landscape.completeness().is_exhausted
        check_against_dense_hessians(problem, landscape)
    for saddle in landscape.saddles(2):  # on both crests, exactly
        assert np.sum(np.abs(saddle.params) < 1e-8) == 2
    name = landscape.saddles(2)[0].fingerprint
    assert name[-1].up and name[-2].up and name[-1].index > 0
    assert np.allclose(landscape.replay(name)[-1].x, landscape.leg(name).x, atol=1e-8)
    with pytest.raises(ValueError, match="`num_second`"):
        rr.Climb(num_second=-1)


def test_several_starts_make_one_map(tmp_path):
    known = [
        rr.Problem.ravel(himmelblau(), one.params) for one in rr.explore(himmelblau()).minima()
    ]
    starts = [x + 0.2 for x in known[::-1]]
    for executor in (None, ThreadPoolExecutor(2)):
        landscape = rr.explore(himmelblau(), starts=starts, max_rides=4, executor=executor)
        found = landscape.starts()
        # The four lie at the loss 0: by place.
        places = [np.asarray(landscape.minima()[number].params) for number in found[1:]]
        assert np.allclose(places, known[::-1], atol=1e-6) and found[0] in found[1:]
        assert len(landscape.minima()) == 4 and not landscape.saddles()
        assert math.isinf(landscape.barrier(*found[1:3]))
    whole = rr.explore(himmelblau(), starts=starts)
    assert (len(whole.minima()), len(whole.saddles())) == (4, 4)
    assert math.isfinite(whole.barrier(*whole.starts()[1:3]))
    name = next(name for name in whole.fingerprints() if name and not name[0].up)
    assert np.allclose(whole.replay(name)[-1].x, whole.leg(name).x, atol=1e-8)
    path = tmp_path / "map.sqlite"
    rr.explore(himmelblau(), starts=starts, max_rides=2, out=path, round_size=2)
    again = rr.resume(path, himmelblau(), max_rides=2000)
    assert table_of(again) == table_of(rr.explore(himmelblau(), starts=starts, round_size=2))


@pytest.mark.parametrize("start", [np.zeros(3), {"x": np.zeros(2)}, np.array([0.0, np.nan])])
def test_a_start_that_does_not_fit_is_named(start):
    with pytest.raises(ValueError, match=r"`starts\[1\]` must be"):
        rr.explore(himmelblau(), starts=[np.zeros(2), start])
    with pytest.raises(ValueError, match="`starts` must be a list"):
        rr.explore(himmelblau(), starts=np.zeros(2))


def test_an_address_is_replayed():
    landscape = rr.explore(himmelblau())
    name = max(landscape.fingerprints(), key=lambda name: name.depth)
    assert "^" in str(name) and rr.types.Fingerprint.parse(str(name)) == name
    last = landscape.replay(name)[-1]
    assert np.allclose(last.x, landscape.leg(name).x, atol=1e-8)


def test_a_barrier_is_infinite_without_a_way():
    landscape = rr.explore(mueller_brown(), max_rides=1)
    assert math.isfinite(landscape.barrier(0, 0))
    parts = rr.explore(mueller_brown(), max_points=2)
    assert len(parts.components()) == len(parts.minima())


def test_bad_input():
    with pytest.raises(ValueError, match=r"leads to infinity|does not converge"):
        rr.explore(rr.Problem(lambda x: -jnp.sum(x**2), jnp.ones(2)))
    with pytest.raises(ValueError, match="`order` must be one of"):
        rr.explore(himmelblau(), order="nearest")
    with pytest.raises(ValueError, match="generator number 0"):
        ring = rr.Symmetry(lambda x: [jnp.stack([-x[1], x[0]])])
        rr.explore(himmelblau().with_start(jnp.array([1.0, 2.0])), symmetry=ring)
    with pytest.raises(ValueError, match="signature of `symmetry` must be equal"):
        swapped = rr.Symmetry(None, lambda x: x, lambda x, key: x[::-1])
        problem = rr.Problem(lambda x: jnp.sum((x**2 - 1) ** 2), jnp.array([0.5, 0.7]))
        rr.explore(problem, symmetry=swapped)
    for untraceable in (np.sort, lambda x: x[x > 0]):
        with pytest.raises(ValueError, match="must be a function that JAX can trace"):
            rr.explore(problem, symmetry=rr.Symmetry(None, untraceable))


def table_of(landscape):
    """All that a map says, to the last bit."""
    points = (*landscape.minima(), *landscape.saddles(None))
    return [
        (str(one.fingerprint), one.loss.hex(), one.morse_index, one.multiplicity) for one in points
    ], landscape.edges()


def test_a_map_is_resumed_to_the_same(tmp_path):
    problem = himmelblau()
    whole = rr.explore(problem, round_size=5)
    for rides in (1, 7, 12):
        path = tmp_path / f"{rides}.sqlite"
        rr.explore(problem, round_size=5, max_rides=rides, out=path)
        resumed = rr.resume(path, problem, max_rides=2000)
        assert table_of(resumed) == table_of(whole)
        assert table_of(rr.load(path, problem)) == table_of(whole)


class Backwards(Executor):
    """Rides everything here, and gives it back in the wrong order."""

    def __init__(self):
        self.waiting = []

    @property
    def capacity(self):
        self.give_back()
        return 1000

    def give_back(self):
        while self.waiting:
            future, work, args = self.waiting.pop()
            future.set_result(work(*args))

    def submit(self, work, *args):
        future = Future()
        self.waiting.append((future, work, args))
        if len(self.waiting) > 2:
            self.give_back()
        return future


def test_the_order_of_arrival_changes_nothing(monkeypatch):
    monkeypatch.setattr("ridgerider._search.engine.climbs.Climbs.task_size", 1)
    problem = himmelblau()
    whole = rr.explore(problem, round_size=6)

    class Shuffled(Backwards):
        def submit(self, work, *args):
            future = super().submit(work, *args)
            if len(self.waiting) == 1 and len(args[0]) == 1:
                threading.Timer(0.05, self.give_back).start()
            return future

    assert table_of(rr.explore(problem, round_size=6, executor=Shuffled())) == table_of(whole)


def test_a_map_of_another_problem_is_refused(tmp_path):
    path = tmp_path / "map.sqlite"
    rr.explore(himmelblau(), max_rides=2, out=path, valid=(-6.0, 6.0))
    with pytest.raises(ValueError, match="another problem"):
        rr.resume(path, six_hump_camel())
    with pytest.raises(ValueError, match="`valid` must be the run's own"):
        rr.resume(path, himmelblau(), valid=(-1.0, 1.0))
    assert len(rr.resume(path, himmelblau(), max_rides=3)) == 3


@pytest.mark.long
def test_workers_make_the_same_map():
    whole = rr.explore("himmelblau", round_size=8)
    with rr.workers.process_pool(2) as pool:
        assert table_of(rr.explore("himmelblau", round_size=8, executor=pool)) == table_of(whole)


def test_what_is_measured_of_a_map(tmp_path):
    """Of each point, the one at the start as well, whenever it was found."""
    path, problem = tmp_path / "map.sqlite", himmelblau()
    measures = rr.Measures(lambda x: bool(x[0] > 0), {"norm": jnp.linalg.norm})
    rr.explore(problem, max_rides=7, out=path)
    landscape = rr.resume(path, problem, max_rides=2000, measures=measures)
    found = landscape.measures()
    for one in (*landscape.minima(), *landscape.saddles(None)):
        assert found["signature"][one.fingerprint] == bool(one.params[0] > 0)
        assert np.isclose(found["norm"][one.fingerprint], np.linalg.norm(one.params))
    whole = rr.explore(problem, measures=measures)
    assert whole.measures() == found
    with pytest.raises(ValueError, match="the metric `norm` must return"):
        rr.explore(problem, measures=rr.Measures(None, {"norm": lambda x: x["a"]}))


def test_points_are_exported_with_their_visits(tmp_path):
    landscape = rr.explore(himmelblau())
    lines = landscape.export(tmp_path / "points.csv").read_text().splitlines()
    rows = [dict(zip(lines[0].split(","), line.split(","), strict=True)) for line in lines[1:]]
    points = (*landscape.minima(), *landscape.saddles(None))
    assert [int(row["multiplicity"]) for row in rows] == [one.multiplicity for one in points]
    assert [int(row["morse_index"]) for row in rows] == [one.morse_index for one in points]
    text = landscape.export(tmp_path / "minima.csv", table="minima").read_text()
    assert len(text.splitlines()) == 1 + len(landscape.minima())


def test_a_symmetry_that_ends_on_the_way_is_noticed():
    """Level at the start, and where a climb leads no more."""

    def loss(x):
        beyond = jnp.maximum(x[0] - 1.05, 0)
        return (x[0] ** 2 + x[1] ** 2 - 1) ** 2 + beyond**3 * x[1]

    def generators(x):
        return [jnp.array([0.0, 0.0, 1.0]), jnp.stack([-x[1], x[0], 0 * x[2]])]

    problem = rr.Problem(loss, jnp.array([0.6, 0.3, 0.0]))
    with pytest.raises(ValueError, match=r"on the leg .*\^.* changes along its generator number 1"):
        rr.explore(problem, symmetry=rr.Symmetry(generators))


KILLED = """
import sys, jax
jax.config.update("jax_enable_x64", True)
import ridgerider as rr
say = lambda done: print(done.num_rides, flush=True)
rr.explore("himmelblau", round_size=8, out=sys.argv[1], progress=say)
"""


@pytest.mark.parametrize("num_rides", [3, pytest.param(13, marks=pytest.mark.long)])
def test_a_map_whose_process_is_killed(tmp_path, num_rides):
    """SIGKILL while it rides; resumed, the map is the same to the last bit."""
    path = tmp_path / "map.sqlite"
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    while int(child.stdout.readline()) < num_rides:
        pass
    child.kill()
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    assert num_rides <= len(rr.load(path)) < 24
    resumed = rr.resume(path, "himmelblau")
    assert table_of(resumed) == table_of(rr.explore("himmelblau", round_size=8))


@pytest.mark.long
def test_dask_makes_the_same_map():
    pytest.importorskip("distributed")
    with rr.workers.dask(num_workers=2) as cluster:
        found = rr.explore("himmelblau", round_size=8, executor=cluster)
    assert table_of(found) == table_of(rr.explore("himmelblau", round_size=8))


def test_bounds_hold_minima_on_faces_and_starts_fill_them():
    problem = rr.Problem(lambda x: -x[0] + (x[1] ** 2 - 1) ** 2, jnp.array([0.0, 0.2]))
    bounds = [(-1, 1), (-2, 2)]
    landscape = rr.explore(problem, bounds=bounds, max_rides=60, round_size=6)
    found = sorted(np.round(np.asarray(one.params), 3).tolist() for one in landscape.minima())
    assert found == [[1.0, -1.0], [1.0, 1.0]]
    (saddle,) = landscape.saddles()
    np.testing.assert_allclose(saddle.params, [1, 0], atol=1e-4)
    assert landscape.barrier(0, 1) == pytest.approx(0.0, abs=1e-6)
    names = [name for name in landscape.fingerprints() if name]
    assert any(name[-1].start for name in names) and any(name[-1].up for name in names)
    only = rr.explore(problem, bounds=bounds, max_rides=12, share_of_starts=1.0, round_size=6)
    assert all(name[-1].start for name in only.fingerprints() if name)
    few = rr.explore(problem, bounds=bounds, max_calls=60, round_size=6)
    assert len(few) < len(landscape)


def test_bounds_are_checked():
    problem = rr.Problem(lambda x: x @ x, jnp.array([0.5]))
    with pytest.raises(ValueError, match="`start` must be within `bounds`"):
        rr.explore(problem, bounds=[(1, 2)])
    with pytest.raises(ValueError, match="`bounds` must be 1 pairs"):
        rr.explore(problem, bounds=[(1, 2), (1, 2)])
    with pytest.raises(ValueError, match="`share_of_starts`"):
        rr.explore(problem, share_of_starts=2.0)


def test_inside_bounds_climbs_go_on_when_minima_are_complete():
    """The barrier between the two lowest minima; -0.2547 by a grid of 100 points each way."""

    def loss(x):
        waves = jnp.sin(2 * x[0]) * jnp.cos(1.5 * x[1]) + 0.6 * jnp.cos(2 * x[2] + x[0])
        bowl = 0.08 * (x[0] ** 2 + x[1] ** 2 + 1.5 * x[2] ** 2)
        return waves + bowl + x[0] * x[1] * x[2] / 30

    problem = rr.Problem(loss, jnp.array([0.3, 0.2, 0.1]))
    landscape = rr.explore(problem, bounds=[(-3, 3), (-2.5, 3), (-3, 2.8)])
    assert landscape.completeness().is_exhausted
    assert landscape.barrier(0, 1) == pytest.approx(-0.2547, abs=2e-4)


def test_a_descent_inside_bounds_ends_in_the_next_minimum():
    """Minima beside saddles, in bounds that are wide against the distance between them."""
    slope = jnp.poly(jnp.array([-2.0, 0.0, 0.3, 3.0, 3.4]))  # minima at the first, third and last
    line = jnp.polyint(slope)
    problem = rr.Problem(lambda x: jnp.polyval(line, x[0]) + x[1] ** 2, jnp.array([-1.0, 0.5]))
    found = rr.explore(problem, bounds=[(-10, 10), (-10, 10)], share_of_starts=0.0)
    assert [sorted(edge.minima) for edge in found.edges()] == [[0, 1], [1, 2]]


def test_a_map_on_a_torus():
    """Of cos 3a + cos 2b: as many minima as maxima, and twice as many saddles."""
    problem = rr.Problem(lambda x: jnp.cos(3 * x[0]) + jnp.cos(2 * x[1]), jnp.array([1.0, 1.0]))
    landscape = rr.explore(problem, period=2 * np.pi)
    assert len(landscape.minima()) == 6 and len(landscape.saddles()) == 12
    complete = landscape.completeness()
    ridden, total = map(sum, zip(*complete.climbed, strict=True))
    assert complete.num_open >= total - ridden
    with pytest.raises(ValueError, match="`symmetry` must be left out"):
        rr.explore(problem, period=2 * np.pi, symmetry=rr.symmetry.periodic([1, 1]))
