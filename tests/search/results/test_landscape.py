"""Barriers, paths, components and junctions of random maps, against all paths."""

import math

import numpy as np
import pytest

import ridgerider as rr
from ridgerider._search.results.completeness import Completeness, Estimate
from ridgerider._search.results.landscape import Edge
from ridgerider._search.results.result import Stationary
from ridgerider.problems import six_hump_camel, wells
from ridgerider.types import Cost, Fingerprint, Turn

NUM_MINIMA = 9


def random_map(seed):
    """A map with random passes, some of them equally high, some with one side unknown."""
    random = np.random.default_rng(seed)
    heights = np.sort(random.integers(1, 8, size=12) + 0.0)
    ends = [tuple(sorted(map(int, random.integers(NUM_MINIMA, size=2)))) for _ in heights]
    ends[3] = (ends[3][0], None)
    losses = np.sort(random.random(NUM_MINIMA))
    points = [
        Stationary(Fingerprint([Turn(number, 1)]), np.zeros(1), float(loss), 0.0, 0.0, kind,
                   Cost(), morse_index=index, number=number)
        for index, kind, those in ((0, "minimum", losses), (1, "saddle", heights))
        for number, loss in enumerate(those)
    ]  # fmt: skip
    landscape = rr.Landscape(rr.search(wells(1), rr.Rider(finish=None), max_rides=0)._store)
    vars(landscape)["_points"] = points
    vars(landscape)["_links"] = {}
    vars(landscape)["_edges"] = [
        Edge(number, pair, float(height))
        for number, (pair, height) in enumerate(zip(ends, heights, strict=True))
    ]
    return landscape


def barriers_of(landscape):
    """The least highest pass between each two minima, over all paths (Floyd and Warshall)."""
    found = np.full((NUM_MINIMA, NUM_MINIMA), math.inf)
    for edge in landscape.edges():
        a, b = edge.minima
        if b is not None:
            found[a, b] = found[b, a] = min(found[a, b], edge.loss)
    for k in range(NUM_MINIMA):
        found = np.minimum(found, np.maximum(found[:, k : k + 1], found[k]))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_barriers_and_paths_are_the_lowest(seed):
    landscape = random_map(seed)
    known = barriers_of(landscape)
    edges = {edge.saddle: edge for edge in landscape.edges()}
    for a in range(NUM_MINIMA):
        for b in set(range(NUM_MINIMA)) - {a}:
            barrier = landscape.barrier(a, b)
            assert barrier == known[a, b]
            if math.isinf(barrier):
                with pytest.raises(ValueError, match="no path is known between minima"):
                    landscape.path(a, b)
                continue
            path = landscape.path(a, b)
            numbers = [one.number for one in path.minima]
            assert (numbers[0], numbers[-1], path.maximum) == (a, b, barrier)
            for saddle, *ends in zip(path.saddles, numbers, numbers[1:], strict=False):
                assert sorted(ends) == sorted(edges[saddle.number].minima)
        assert landscape.barrier(a, a) == landscape.minima()[a].loss


@pytest.mark.parametrize("seed", range(3))
def test_components_and_junctions_join_what_paths_join(seed):
    landscape = random_map(seed)
    known = barriers_of(landscape)
    parts = landscape.components()
    assert sorted(number for part in parts for number in part) == list(range(NUM_MINIMA))
    for part in parts:
        others = [number for number in range(NUM_MINIMA) if number not in part]
        assert np.isinf(known[np.ix_(part, others)]).all()
    junctions = landscape.junctions()
    assert len(junctions) == NUM_MINIMA - len(parts)
    held = [{number} for number in range(NUM_MINIMA)]  # the minima below each minimum or junction
    for one in junctions:
        a, b = (held[number] for number in one.parts)
        assert min(known[i, j] for i in a for j in b) == one.loss
        held.append(a | b)
    assert [one.loss for one in junctions] == sorted(one.loss for one in junctions)


def test_a_map_without_climbs_says_so():
    found = Completeness(((0, 5), (0, 5)), 10, Estimate.of([1, 2]), Estimate.of([1]))
    assert str(found).startswith("no ascent direction was climbed. Minima: 2 found")
    assert "0 of" not in str(found)


def test_a_map_is_opened_by_its_directory(tmp_path):
    landscape = rr.explore(six_hump_camel(), out=tmp_path / "run.sqlite", max_rides=6)
    assert rr.load(tmp_path).kinds() == landscape.kinds()
    assert landscape.kinds()["minimum"] >= len(landscape.minima())
