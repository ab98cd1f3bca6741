"""Signatures and metrics: what solutions do."""

import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._search.results.measures import signature_classes
from ridgerider._search.runfile.rules_json import own_measures
from ridgerider.problems import load_problem, wells
from ridgerider.report._read import Reader
from ridgerider.report._verdict import verdict


def side(x):
    return "right" if x[0] > 0 else "left"


def read(path):
    reader = Reader(path)
    reader.read()
    return reader


def test_solutions_that_do_the_same_are_one(tmp_path):
    path = tmp_path / "run.sqlite"
    result = rr.search(wells(2), out=path, measures=rr.Measures(side, {"size": jnp.linalg.norm}))
    minima = {one.fingerprint: one.params for one in result.solutions() if one.kind == "minimum"}
    sides = result.measures()["signature"]
    assert all(sides[name] == side(x) for name, x in minima.items())
    sizes = result.measures()["size"]
    assert all(sizes[name] == pytest.approx(np.linalg.norm(x)) for name, x in minima.items())
    reader = read(path)
    assert len(reader.groups) == 2 and reader.num_points == len(minima)  # saddles do not count
    assert verdict(reader)["headline"] == f"2 different solutions by `side` ({len(minima)} points)"
    lowest = min(one.loss for one in result.minima())
    assert reader.level(reader.best()) == lowest
    about = result.meta["measures"]
    assert about["signature"]["name"] == "tests.search.results.test_measures:side"
    assert len(about["signature"]["source"]) == 16


def test_what_was_measured_is_kept_and_the_rest_added(tmp_path):
    path = tmp_path / "run.sqlite"
    rr.search(wells(1), out=path, max_rides=1, measures=rr.Measures(side))
    rr.resume(path, wells(1), max_rides=2)  # without
    assert len(rr.load(path).measures()["signature"]) == 1
    assert rr.measure(path, rr.Measures(side), wells(1)) == 1
    assert rr.measure(path, rr.Measures(metrics={"size": jnp.linalg.norm}), wells(1)) == 2
    found = rr.load(path).measures()
    assert {len(values) for values in found.values()} == {2}
    assert rr.load(path).meta["measures"]["signature"] is not None
    # Another function of the same name takes its place.
    assert rr.measure(path, rr.Measures(metrics={"size": jnp.sum}), wells(1)) == 2
    assert min(rr.load(path).measures()["size"].values()) < 0
    rr.resume(path, wells(1), max_rides=2, measures=rr.Measures(lambda x: "one"))
    assert set(rr.load(path).measures()["signature"].values()) == {"one"}


def test_scores_of_examples_are_kept_with_their_number(tmp_path):
    def right(x):
        return np.array([True, False, bool(x[0] > 0), True])

    path = tmp_path / "run.sqlite"
    rr.search(wells(1), out=path, measures=rr.Measures(metrics={"right": right, "sum": jnp.sum}))
    assert sorted(rr.load(path).measures()["right"].values()) == [[0.5, 4], [0.75, 4]]
    legs = {leg["fingerprint"]: leg for leg in read(path).legs}
    assert read(path).metric(legs["0+"], "right") == 0.75


def test_numbers_are_compared_with_a_tolerance_and_all_else_exactly():
    assert signature_classes([[1, 2], [1, 2], [1, 3], {"a": 1.0}, {"a": 1.0001}]) == [0, 0, 1, 2, 2]
    assert signature_classes([None, 1.0, "1.0", True, 1]) == [None, 0, 1, 2, 3]
    assert signature_classes([[float(i) for i in range(3)], [0.0, 1.0]]) == [0, 1]


def test_a_function_that_fails_is_refused_at_the_start_and_survived_later(tmp_path):
    def fails(x):
        if x[0] > 0.1:
            raise RuntimeError("not here")
        return float("nan") if x[0] < -0.1 else 1.0

    path = tmp_path / "run.sqlite"
    rr.search(wells(1), out=path, measures=rr.Measures(metrics={"odd": fails}))
    assert set(rr.load(path).measures()["odd"].values()) == {None}
    assert "odd" not in verdict(read(path))["text"]
    for bad, message in (
        (
            rr.Measures(metrics={"odd": lambda x: x[:, None]}),
            "the metric `odd` must return a number",
        ),
        (rr.Measures(lambda x: object()), "`signature` must return what JSON can hold"),
    ):
        with pytest.raises(ValueError, match=message):
            rr.search(wells(1), out=tmp_path / "new.sqlite", measures=bad)
        assert not (tmp_path / "new.sqlite").exists()
    with pytest.raises(ValueError, match="`signature` must be callable with 1 argument, not"):
        rr.Measures("mine:function")
    with pytest.raises(ValueError, match="must not use the name signature"):
        rr.Measures(metrics={"signature": side})


def test_rides_without_descents_are_measured_at_their_ends(tmp_path):
    path = tmp_path / "run.sqlite"
    result = rr.search(wells(1), rr.Rider(finish=None), out=path, measures=rr.Measures(side))
    assert [str(leg.fingerprint) for leg in result] == ["0+", "0-"]
    reader = read(path)
    assert len(reader.groups) == 2
    points = reader.points()
    for leg, point in zip(reader.groups, points, strict=True):
        np.testing.assert_array_equal(point, result.leg(leg["fingerprint"]).x)
    assert "Rides were not followed by descents." in verdict(reader)["text"]


@pytest.mark.parametrize("name", ["levers", "tree", "digits"])
def test_built_in_problems_bring_their_own(name):
    problem, measures = load_problem(name), own_measures(name)
    measures.check(problem)
    found = measures.of(problem, problem.x0)
    assert set(found) == {"", *measures.metrics}
    assert own_measures("wells") is None
    if name == "digits":
        mean, num = found["accuracy"]
        assert 0 <= mean <= 1 and num > 300 and len(found[""]) == 100
    else:
        assert found[""] is None and np.isfinite(found[next(iter(measures.metrics))])


def test_seconds_of_compilation_are_told_apart(tmp_path):
    path = tmp_path / "run.sqlite"

    def fresh(x):  # a loss that no other test has compiled
        return jnp.sum(x**4 / 4 - 1.25 * x**2 / 2)

    problem = rr.Problem(fresh, jnp.zeros(1))
    result = rr.search(problem, out=path, max_rides=1)
    first = result.meta["seconds_compiling"]
    assert 0 < first <= float(result.cost.seconds)
    again = rr.resume(path, problem, max_rides=2)
    assert again.meta["seconds_compiling"] >= first
