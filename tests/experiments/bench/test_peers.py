import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ridgerider import cli
from ridgerider_experiments import bench
from ridgerider_experiments.bench import peers


def test_copies_of_an_eigenvalue_that_lanczos_drops():
    ours, scipy, jax = peers.lowest_eigenpairs(0)
    assert ours.outcome == jax.outcome == "10 of 10" != scipy.outcome
    assert ours.cost < jax.cost / 5


def test_lanczos_counts_its_products():
    matrix = peers.symmetric(np.array([-3.0, -2.0, *np.linspace(1, 2, 18)]), 0)
    products = peers.Products(matrix)
    values, vectors = peers.lanczos(products, 2, 1e-10)
    np.testing.assert_allclose(values, [-3, -2])
    np.testing.assert_allclose(matrix @ vectors, vectors * values, atol=1e-8)
    assert 2 < products.count <= 40


def test_a_ridge_is_followed_with_fewer_products():
    ours, *others = peers.ridge_after(0.2, 0)
    assert all(row.outcome.startswith(("overlap 1.0", "overlap 0.999")) for row in (ours, *others))
    assert ours.cost <= 30 and all(ours.cost < row.cost for row in others)


def test_minima_and_what_they_cost():
    ours, near, anywhere, hopping = peers.all_minima(0)
    assert ours.outcome == near.outcome == anywhere.outcome == "4 of 4"
    assert hopping.outcome != "4 of 4" and hopping.cost >= 10 * ours.cost


def test_the_table_has_ratios_to_ours(monkeypatch, tmp_path):
    rows = [bench.Row("task", who, cost, "HVPs", "all") for who, cost in (("we", 4), ("they", 10))]
    asked = []

    def made_up(seed):
        asked.append(seed)
        return iter(rows)

    monkeypatch.setattr(peers, "TASKS", [made_up])
    out = tmp_path / "new" / "bench"
    result = CliRunner().invoke(cli.app, ["bench", "--out", str(out), "--seed", "3"])
    assert result.exit_code == 0 and asked == [3]
    assert "| task | they | 10 HVPs | 2.5 | all |" in (out / "table.md").read_text()
    assert "| task | they | 10 HVPs | 2.5 | all |" in result.output
    found = json.loads(Path(out / "results.json").read_text())
    assert [row["cost"] for row in found] == [4, 10]


def test_every_benchmark_has_tasks_and_names_its_parts():
    for name in bench.BENCHES:
        with pytest.raises(ValueError, match=f"the part of {name} must be one of"):
            next(bench.compare(name, "no such part"))
    with pytest.raises(ValueError, match="the benchmark must be one of peers, networks"):
        next(bench.compare("everything"))
