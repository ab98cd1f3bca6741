"""What counts as one solution, against closed forms."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._search.same import StationaryPoints, _highest_between
from ridgerider._search.tree import Fingerprint, Turn
from ridgerider.problems import levers, wells


def classes_of(problem, starts):
    """The ends of descents, and the number of the class of each."""
    known, numbers = {}, {}
    ends = StationaryPoints(problem, None, known.__getitem__)
    for number, start in enumerate(starts):
        name = Fingerprint((Turn(number, 1),))
        known[name] = rr.Descend()(problem, jnp.asarray(start), jax.random.key(0))
        same = ends.add(name, known[name])
        numbers[name] = len(numbers) if same is None else numbers[same]
    return list(known.values()), list(numbers.values())


def check(problem, starts, mark):
    """Two ends are one exactly if their marks, which a closed form gives, are the same."""
    ends, numbers = classes_of(problem, starts)
    marks = [mark(end) for end in ends]
    for one in range(len(ends)):
        for two in range(one):
            assert (numbers[one] == numbers[two]) == (marks[one] == marks[two]), (one, two)
    return ends, len(set(marks))


def linear_network(sizes, target):
    def loss(x):
        product, at = None, 0
        for inner, outer in itertools.pairwise(sizes):
            layer = x[at : at + inner * outer].reshape(outer, inner)
            product, at = (layer if product is None else layer @ product), at + inner * outer
        return jnp.sum((product - target) ** 2)

    size = sum(inner * outer for inner, outer in itertools.pairwise(sizes))
    return rr.Problem(loss, jnp.zeros(size)), size


@pytest.mark.parametrize(
    ("sizes", "num_flat", "number"), [((3, 2, 3), 4, 12), ((4, 2, 2, 4), 8, 10)]
)
def test_deep_linear_networks_are_as_many_families_as_signs_of_determinants(
    sizes, num_flat, number
):
    # W -> G W, V -> V G^-1 changes nothing. G with det G > 0 and with det G < 0 are not connected:
    # the sign of the determinant of the first two columns of W tells the two families apart.
    random = np.random.default_rng(0)
    problem, size = linear_network(sizes, random.normal(size=(sizes[-1], sizes[0])))

    def mark(end):
        if end.kind != "minimum":
            return end.kind, float(end.loss)
        assert end.num_flat == num_flat
        first = end.x[: sizes[0] * 2].reshape(2, sizes[0])[:, :2]
        signs = [np.sign(np.linalg.det(first))]
        if len(sizes) == 4:
            second = end.x[sizes[0] * 2 : sizes[0] * 2 + 4].reshape(2, 2)
            signs.append(np.sign(np.linalg.det(second)))
        return tuple(signs)

    _, number_of = check(problem, 0.5 * random.normal(size=(number, size)), mark)
    assert number_of >= 2


def test_rotated_rings_are_one():
    def loss(x):
        points = x.reshape(5, 2)
        bonds = jnp.linalg.norm(jnp.roll(points, -1, axis=0) - points, axis=1)
        across = jnp.linalg.norm(jnp.roll(points, -2, axis=0) - points, axis=1)
        return jnp.sum((bonds - 1) ** 2) + 0.3 * jnp.sum(1 / across)

    def mark(end):  # all distances, and which way round
        points = end.x.reshape(5, 2)
        distances = np.linalg.norm(points[:, None] - points[None], axis=2)
        a, b = points[1] - points[0], points[2] - points[0]
        around = np.sign(np.round(a[0] * b[1] - a[1] * b[0], 6))
        return end.kind, tuple(np.round(distances.ravel(), 5)), around

    starts = np.random.default_rng(0).normal(size=(10, 10))
    ends, _ = check(rr.Problem(loss, jnp.ones(10)), starts, mark)
    assert all(end.num_flat == 3 for end in ends if end.kind == "minimum")
    # Turned and shifted copies of one of them.
    angle = 2.0
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    copies = [ends[0].x, (ends[0].x.reshape(5, 2) @ turn.T + 3).ravel()]
    assert classes_of(rr.Problem(loss, jnp.ones(10)), copies)[1] == [0, 0]


def test_wells_far_from_the_origin_are_two():
    problem = rr.Problem(lambda x: ((x[0] - 1000) ** 2 - 0.16) ** 2 + x[1] ** 2, jnp.ones(2))
    starts = [[1000 + step, 0.1] for step in (-1, -0.5, -0.1, 0.1, 0.5, 1)]
    assert classes_of(problem, starts)[1] == [0, 0, 0, 3, 3, 3]


def test_near_minima_are_two():
    problem = rr.Problem(lambda x: (x[0] ** 2 - 1e-8) ** 2 * 1e16 + x[1] ** 2, jnp.ones(2))
    assert classes_of(problem, [[1e-4, 0.1], [-1e-4, 0.1]])[1] == [0, 1]


def test_opposite_points_of_a_circle_are_one():
    problem = rr.Problem(lambda x: (x @ x - 1) ** 2, jnp.zeros(2))
    result = rr.search(problem, max_rides=4)
    (minimum,) = result.minima()
    assert minimum.num_flat == 1 and minimum.multiplicity == len(result)


def test_levers_are_one_solution_for_each_joint_action():
    problem = levers()
    result = rr.search(problem, max_rides=30)

    def actions(params):
        return jnp.argmax(params, axis=1).astype(float)

    for group in result.classes():
        assert len({tuple(np.argmax(one.params, axis=1)) for one in group}) == 1
    minima = result.minima()
    assert len(minima) == len(result.minima(signature=actions)) > 2
    assert {one.kind for one in minima} == {"at infinity"}
    best = minima[0]
    assert best.limit == pytest.approx(-1, abs=1e-6) and best.level == best.limit
    assert np.shape(best.direction) == np.shape(best.params)
    assert np.linalg.norm(best.direction) == pytest.approx(1)


def test_sameness_survives_the_run_file(tmp_path):
    path = tmp_path / "run.sqlite"
    whole = rr.search(levers(), max_rides=12)
    rr.search(levers(), max_rides=5, out=path)
    resumed = rr.resume(path, levers(), max_rides=12)
    for result in (resumed, rr.load(path)):
        assert [str(one.fingerprint) for one in result.minima()] == [
            str(one.fingerprint) for one in whole.minima()
        ]
    assert [one.same_as for one in resumed] == [one.same_as for one in whole]


def test_a_tolerance_of_ones_own_compares_distances():
    result = rr.search(wells(2), max_rides=30)
    assert len(result.minima()) == len(result.minima(1e-3)) == 4
    assert len(result.minima(10.0)) == 1


@pytest.mark.parametrize("far", [30.0, 500.0, 1e4])
def test_a_narrow_rise_between_two_choices_is_seen(far):
    problem = rr.Problem(lambda x: -jax.nn.softmax(x) @ jnp.array([1.0, 1.0, 0.0]), jnp.zeros(3))
    # Both choices pay, but from one to the other lies a third that does not.
    over = rr.Problem(
        lambda x: problem.value(x) + 4 * jnp.prod(jax.nn.softmax(x)[:2]), jnp.zeros(3)
    )
    one, two = jnp.array([20.0, 0.0, 0.0]), jnp.array([0.0, far, 0.0])
    for a, b in ((one, two), (two, one)):
        assert float(_highest_between(over, a, b)) == pytest.approx(0, abs=0.05)
        assert float(_highest_between(problem, a, b)) == pytest.approx(-1, abs=1e-3)
