"""Starts and climbs take turns by what they yield, whatever the order of legs in a round."""

import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from ridgerider._core.problem.cost import Cost
from ridgerider._search.engine.starts import Yields, spread
from ridgerider._search.tree import Fingerprint, Leg


def leg(name, is_new, work):
    bare = Leg.without_ridges(Fingerprint.parse(name), np.zeros(1), 0.0, ("stationary",))
    kind = SimpleNamespace(kind="minimum") if is_new else None
    return replace(bare, finish=kind, cost=Cost(values=work))


def test_the_better_arm_gets_the_round_and_the_other_a_share_of_the_work():
    yields = Yields()
    assert yields.num_starts(16, 100) == yields.num_starts(16, 0) == 16
    for number in range(1, 30):
        yields.add(number, leg(f"*{number}", number % 2 == 0, 30), None, False)
        yields.add(number, leg("0^+", False, 100), None, False)
    assert yields.num_starts(16, 100) == 16  # the other had more than its share
    for number in range(30, 60):
        yields.add(number, leg("0^+", True, 100), None, False)
        yields.add(number, leg(f"*{number}", False, 30), None, True)
    assert yields.num_starts(16, 100) == 0
    assert yields.num_starts(16, 3) == 13  # no more branches are open


def test_the_order_inside_a_round_does_not_matter():
    legs = [leg(f"*{n}", n % 3 == 0, 10 + n) for n in range(8)]
    legs += [leg(f"{n}^+", n == 2, 50) for n in range(8)]
    ratios = set()
    for seed in range(4):
        random.Random(seed).shuffle(legs)
        yields = Yields()
        for one in legs:
            yields.add(1, one, None, False)
        ratios.add((yields.starts.ratio(10), yields.climbs.ratio(100)))
    assert len(ratios) == 1


def test_enough_starts_end_it():
    yields = Yields()
    for number in range(200):
        assert not yields.is_enough(2) or number >= 40
        yields.add(number, leg(f"*{number}", number < 3, 10), None, True)
    assert yields.is_enough(2)


def test_starts_fill_the_bounds_and_depend_on_the_seed():
    bounds = ((0.0, -2.0, 1.0), (1.0, 2.0, 3.0))
    points = np.array([spread(k, 0, np.ones(3), bounds) for k in range(256)])
    low, high = np.array(bounds)
    assert ((points >= low) & (points <= high)).all()
    counts, _ = np.histogramdd((points - low) / (high - low), bins=(4, 4, 4))
    assert counts.min() >= 1
    assert not np.array_equal(spread(0, 0, np.ones(3), bounds), spread(0, 1, np.ones(3), bounds))
    half = ((0.0, -np.inf), (np.inf, 5.0))
    points = np.array([spread(k, 0, np.ones(2), half) for k in range(64)])
    assert (points[:, 0] >= 0).all() and (points[:, 1] <= 5).all()
    assert np.abs(points).max() > 5
