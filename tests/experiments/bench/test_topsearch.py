"""The benchmark against TopSearch: which points count as correct."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ase", reason="ASE is not installed: ridgerider[ase]")
from ase import Atoms
from ase.calculators.lj import LennardJones

import ridgerider.ase
from ridgerider_experiments.bench import topsearch_peer

DOCS = Path(__file__).parents[3] / "docs"


def test_points_count_that_are_stationary_in_one_piece_and_different():
    points = [(0, 0, 0), (1.1, 0, 0), (0.5, 1, 0), (0.5, 0.4, 0.9)]
    atoms = Atoms("Ar4", points, calculator=LennardJones(rc=20))
    landscape = ridgerider.ase.explore(atoms)
    low, high = (one.positions for one in ridgerider.ase.to_atoms(landscape))
    turned, far = low[::-1, ::-1], low + np.array([[50], [0], [0], [0]])
    pair = np.array([(0, 0, 0), (2 ** (1 / 6), 0, 0)])
    given = [low, turned, high, far, np.concatenate([pair, pair + 100])]
    assert topsearch_peer._correct(atoms, given, 0) == 1
    assert topsearch_peer._correct(atoms, given, 1) == 1


def test_the_guide_says_what_was_measured():
    page, rows = (DOCS / "benchmarks.md").read_text(), DOCS / "results" / "bench" / "topsearch.json"
    rows = json.loads(rows.read_text())
    for ours, theirs in zip(rows[::2], rows[1::2], strict=True):
        said = [one["outcome"].split(";")[0] for one in (ours, theirs)]
        ratio = theirs["cost"] / ours["cost"]
        assert f"| {ours['task']} | {said[0]} | {said[1]} | {ratio:.1f} |" in page
        assert ratio >= 3
