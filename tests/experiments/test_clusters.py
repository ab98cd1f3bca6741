"""`reproduce clusters`: what counts as found, and what the guide says of it."""

import json
from pathlib import Path

import jax.numpy as jnp

from ridgerider.problems import lennard_jones
from ridgerider_experiments import clusters

DOCS = Path(__file__).parents[2] / "docs"


def test_starts_are_different_minima_and_their_cost_is_counted():
    ends, spent = clusters._ends_of_descents(5, clusters.Settings(num_starts=6))
    assert [end.shape for end in ends] == [(5, 3)]  # five atoms have one minimum
    assert round(float(lennard_jones(5).value(jnp.ravel(jnp.asarray(ends[0])))), 4) == -9.1039
    assert spent > 6 * 5


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
