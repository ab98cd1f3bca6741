"""A leg becomes rows, and the same leg again; a column that holds another thing is named."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import ridgerider as rr
from ridgerider._search.runfile import schema
from ridgerider._search.runfile.schema import branch_to_row, leg_from_row, leg_to_row
from ridgerider.problems import six_hump_camel, wells
from tests.search.runfile.made_up_runs import make_leg


def legs():
    searched = rr.search(wells(2), rr.Rider(keep_path=True), max_rides=6)
    yield from (searched.leg(""), *searched)
    yield from rr.explore(six_hump_camel(), max_rides=6)
    made = make_leg("0+")
    yield replace(made, loss=math.nan, same_as=rr.types.Fingerprint.parse("1-"), below=made)
    far = replace(made.finish, is_at_infinity=True, limit=-1.0, runaway=np.ones(6))
    yield replace(made, finish=replace(far, history={"loss": np.arange(3.0)}))


def test_a_leg_comes_back_from_its_rows():
    found = list(legs())
    for leg in found:
        row = leg_to_row(leg)
        again = leg_from_row(row, leg.x.size)
        for name in ("x", "eigenvalues", "directions"):
            np.testing.assert_array_equal(getattr(again, name), getattr(leg, name))
        for name in ("fingerprint", "num_steps", "ended_by", "clusters", "turns", "same_as"):
            assert getattr(again, name) == getattr(leg, name), name
        np.testing.assert_equal(again.loss, leg.loss)
        np.testing.assert_equal(again.trace, leg.trace)
        assert vars(again.cost) == vars(leg.cost)
        assert (again.finish is None) == (leg.finish is None)
        assert (again.below is None) == (leg.below is None)
        assert leg_to_row(again) == row  # nothing is lost on the way


def test_a_column_that_holds_another_thing_is_named():
    row = leg_to_row(replace(make_leg("0+"), below=make_leg("0-")))
    for name in schema.TABLES["legs"]:
        with pytest.raises(schema.Damage, match=f"column {name}: "):
            leg_from_row({**row, name: b"rust"})


def test_parameters_of_another_size_are_named():
    with pytest.raises(schema.Damage, match=r"leg 0\+: it has float64 of shape"):
        leg_from_row(leg_to_row(make_leg("0+")), 7)


def test_an_order_must_return_what_json_can_hold():
    leg = make_leg("0+")
    branch = leg.branch(rr.types.Turn(0, 1))
    assert json.loads(branch_to_row(replace(branch, priority=(1, "a")))["priority"]) == [1, "a"]
    with pytest.raises(ValueError, match="`order` must return numbers, strings or tuples of them"):
        branch_to_row(replace(branch, priority=object()))
