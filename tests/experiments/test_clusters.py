"""`reproduce clusters`: what counts as found, and what the guide says of it."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from ridgerider.problems import lennard_jones
from ridgerider_experiments import clusters
from ridgerider_experiments.bench.peers import Gradients

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def minimum():
    loss = Gradients(lennard_jones(5))
    start = np.asarray(lennard_jones(5).x0)
    return scipy.optimize.minimize(loss, start, jac=True, options={"gtol": 1e-9}).x


def test_of_a_peers_points_those_count_that_are_there_and_differ(minimum):
    turned = minimum.reshape(5, 3)[::-1, ::-1].ravel()  # swapped and mirrored
    far = minimum.copy()
    far[:3] += 50  # an atom has flown off; the others are not at rest, either
    points = [minimum.tolist(), turned.tolist(), far.tolist()]
    assert clusters._different(5, points, 0) == 1 and clusters._different(5, points, 1) == 0
    pair = [2 ** (1 / 6), 0, 0, 0, 0, 0]
    apart = np.concatenate([pair, np.array(pair) + 100])
    assert float(jnp.linalg.norm(lennard_jones(4).grad(jnp.asarray(apart)))) < 1e-3
    assert clusters._different(4, [apart.tolist()], 0) == 0  # at rest, in two pieces


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
    top, seven = results["topsearch"], results["clusters"]["7"]
    ratio = top["per_point"] / seven["per_point"]
    assert f"needs {ratio:.0f} times as many gradients" in page
