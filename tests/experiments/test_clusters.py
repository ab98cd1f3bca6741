"""`reproduce clusters`: what counts as found, and what the guide says of it."""

import json
from itertools import islice
from pathlib import Path

import jax.numpy as jnp

from ridgerider.problems import lennard_jones
from ridgerider_experiments import clusters

DOCS = Path(__file__).parents[2] / "docs"


def test_different_minima_of_descents_are_counted_with_their_cost():
    found = clusters._Found(5)
    ends = islice(clusters._descents(5, 0, found.loss), 6)
    kept = [x for x, value in ends if found.add(x, value)]
    assert len(kept) == 1  # five atoms have one minimum
    assert round(float(lennard_jones(5).value(jnp.asarray(kept[0]))), 4) == -9.1039
    assert found.loss.count > 6 * 5


def test_the_guide_says_what_the_stored_results_say():
    results = json.loads((DOCS / "results" / "clusters.json").read_text())
    page = " ".join((DOCS / "benchmarks.md").read_text().split())
    for atoms, of in results["clusters"].items():
        minima = f"{of['minima']}, {of['saddles']}"
        published = f"{of['published_minima']}, {of['published_saddles'] or '-'}"
        row = f"| {atoms} | {published} | {minima}"
        assert row in page, row
        cost = f"| {of['higher']} | {of['rides']:,} | {of['gradient_equivalents']:,} |"
        assert cost in page, cost
    assert sum(of["wrong_indices"] for of in results["clusters"].values()) == 0
