"""What can be taken from a result: tables, files, and what a notebook shows."""

import csv
import json
import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._search.results import export, progress
from ridgerider._search.results.export import MAX_COLUMNS
from tests.cases import blocks_loss


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    problem = rr.Problem(blocks_loss, {"a": jnp.zeros(2), "b": jnp.zeros(2)})
    path = tmp_path_factory.mktemp("run") / "run.sqlite"
    return rr.search(problem, max_rides=6, out=path, name="<b>blocks</b>")


def test_csv_has_a_row_for_each_solution_and_a_column_for_each_parameter(result, tmp_path):
    with result.export(tmp_path / "all.csv").open() as file:
        rows = list(csv.DictReader(file))
    solutions = result.solutions()
    assert [row["fingerprint"] for row in rows] == [str(one.fingerprint) for one in solutions]
    for row, one in zip(rows, solutions, strict=True):
        assert float(row["loss"]) == one.loss and row["kind"] == one.kind
        assert float(row["params['a'][1]"]) == one.params["a"][1]
    known = {str(one.fingerprint): one for one in result.minima()}
    assert {row["equivalent_to"] for row in rows} - {""} == set(known)


def test_json_says_what_was_run(result, tmp_path):
    content = json.loads(result.export(tmp_path / "minima.json", table="minima").read_text())
    assert content["run"]["settings"]["seed"] == 0 and content["cost"]["hvps"] == result.cost.hvps
    first = result.minima()[0]
    for name in ("a", "b"):
        assert content["minima"][0][f"params['{name}']"] == first.params[name].tolist()


def test_arrays_have_the_names_of_the_leaves_also_without_the_problem(result, tmp_path):
    stranger = rr.load(result.file)
    ends = result.solutions()
    with np.load(stranger.export(tmp_path / "all.npz")) as arrays:
        np.testing.assert_array_equal(arrays["loss"], [one.loss for one in ends])
        for name in ("a", "b"):
            found = arrays[f"params['{name}']"]
            np.testing.assert_array_equal(found, [one.params[name] for one in ends])


@pytest.mark.parametrize(
    ("name", "table", "message"),
    [
        ("a.txt", "minima", r"`path` must end in .csv, .json or .npz, not '.txt'"),
        ("a.csv", "rides", "`table` must be 'solutions', 'minima' or 'legs', not 'rides'"),
        ("no/where/a.csv", "minima", "`path` must be in a directory that exists"),
    ],
)
def test_export_says_what_is_wrong(result, tmp_path, name, table, message):
    with pytest.raises(ValueError, match=message):
        result.export(tmp_path / name, table=table)


def test_a_model_is_too_wide_for_csv(tmp_path):
    size = MAX_COLUMNS + 1
    start = jnp.zeros(size)
    problem = rr.Problem(lambda x: -(x[0] ** 2) + jnp.sum(x[1:] ** 2), start)
    rider = rr.Rider(spectrum=rr.BlockSpectrum(1, max_hvps=4), update=rr.Keep(), finish=None)
    wide = rr.search(problem, rider, max_rides=0)
    with pytest.raises(ValueError, match=f"each of {size} parameters.*choose npz"):
        wide.export(tmp_path / "a.csv")


def test_frames(result):
    frame = result.to_pandas()
    assert frame.fingerprint.tolist() == [str(name) for name in result.fingerprints()]
    for row in frame.itertuples():
        leg = result.leg(row.fingerprint)
        assert (row.ride_loss, row.num_steps, row.hvps) == (leg.loss, leg.num_steps, leg.cost.hvps)
        assert row.loss == leg.finish.loss and row.kind == leg.finish.kind
    minima = result.minima()
    assert minima.to_pandas().loss.tolist() == [one.level for one in minima]
    leg = result.leg("0+")
    np.testing.assert_array_equal(leg.to_pandas()["loss"], leg.trace["loss"])
    no_descents = rr.search(result.problem, rr.Rider(finish=None), max_rides=1).to_pandas()
    assert no_descents.kind.tolist() == [""] and math.isnan(no_descents.loss[0])


def test_a_notebook_shows_numbers_and_the_minima(result):
    shown = result._repr_html_()
    for cell in (len(result), *(one.fingerprint for one in result.minima())):
        assert f"<td style={export.LEFT}>{cell}</td>" in shown
    assert "<b>blocks" not in shown and "<script" not in shown and "http" not in shown


def test_long_tables_are_cut(result, monkeypatch):
    monkeypatch.setattr(export, "MAX_ROWS", 1)
    assert f"... and {len(result.minima()) - 1} more" in result._repr_html_()


def test_the_bar_fills_as_the_budget_is_used(monkeypatch):
    done = rr.types.Progress(num_rides=5, num_open=9, max_rides=20, num_minima=1, best_loss=-1.0)
    assert done.fraction == 5 / 14  # there is no more to ride
    assert replace(done, num_open=100).fraction == 0.25
    assert replace(done, num_open=0).fraction == 1 == replace(done, num_rides=20).fraction
    assert "width:35.7%" in done._repr_html_() and "lowest loss -1" in str(done)


class Display:
    """Stands for IPython's."""

    def __init__(self):
        self.shown = []

    def display(self, value, display_id):
        assert display_id is True
        self.shown.append(value.num_rides)
        return self

    def update(self, value):
        self.shown.append(value.num_rides)


def test_the_bar_is_one_display_that_is_updated(monkeypatch, capsys):
    module = pytest.importorskip("IPython.display")
    screen = Display()
    monkeypatch.setattr(module, "display", screen.display)
    monkeypatch.setattr(progress, "_is_notebook", lambda: True)
    monkeypatch.setattr(rr.Bar, "every", 0.0)
    rr.search(rr.Problem(lambda x: (x[0] ** 2 - 1) ** 2, jnp.zeros(1)), progress=rr.Bar())
    assert screen.shown == [1, 2] and not capsys.readouterr().out


def test_a_table_needs_pandas(result, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(
        ValueError, match=r"a table needs pandas.*pip install 'ridgerider\[pandas\]"
    ):
        result.to_pandas()
