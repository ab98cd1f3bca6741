"""Figures and the page of a map."""

import json
import re

import numpy as np
import pytest

import ridgerider as rr
from ridgerider.plot._figures import tree_places
from ridgerider.problems import himmelblau, mueller_brown


def test_every_minimum_is_a_leaf_and_every_junction_a_saddle_between_its_parts():
    landscape = rr.explore(himmelblau())
    junctions, minima = landscape.junctions(), landscape.minima()
    places = tree_places(landscape)
    assert sorted(places[: len(minima)]) == list(range(len(minima)))
    assert len(junctions) == len(minima) - 1
    members = [{number} for number in range(len(minima))]
    for one in junctions:
        a, b = (members[part] for part in one.parts)
        for first in a:
            for second in b:
                assert landscape.barrier(first, second) == one.loss
        members.append(a | b)
    ax = rr.plot.disconnectivity(landscape)
    assert len(ax.collections[0].get_offsets()) == len(minima)


def test_a_plane_wants_two_parameters():
    landscape = rr.explore(mueller_brown())
    ax = rr.plot.plane(landscape)
    assert np.allclose(ax.collections[-2].get_offsets(), [one.params for one in landscape.minima()])
    landscape.problem = None
    with pytest.raises(ValueError, match="of 2 parameters"):
        rr.plot.plane(landscape)


def test_the_page_of_a_map_holds_all_points(tmp_path):
    path = tmp_path / "map.sqlite"
    landscape = rr.explore(mueller_brown(), out=path)
    page = rr.report.report(path)
    text = page.read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert [one["loss"] for one in data["minima"]] == [one.loss for one in landscape.minima()]
    assert [one["ends"] for one in data["saddles"]] == [[1, 2], [0, 2]]
    assert len(data["places"]) == len(data["minima"]) + len(data["junctions"])
