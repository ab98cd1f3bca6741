import json
import re
from pathlib import Path

import pytest

import ridgerider_experiments as experiments
from ridgerider_experiments import page

DOCS = Path(__file__).parents[2] / "docs"


def test_reproduce_says_what_it_was_made_with(tmp_path):
    results = experiments.reproduce("surface", tmp_path, quick=True, say=lambda line: None)
    run = results["run"]
    assert run["experiment"] == "surface" and run["is_quick"] and run["settings"]["seed"] == 0
    assert run["version"] and run["cores"] >= 1 and run["seconds"] > 0
    assert page.is_done(tmp_path, quick=True, seed=0)
    assert not page.is_done(tmp_path, quick=False, seed=0)
    assert not page.is_done(tmp_path, quick=True, seed=1)
    (tmp_path / "results.json").write_text('{"run": ')  # half a file is no result
    assert not page.is_done(tmp_path, quick=True, seed=0)


def test_options_are_checked(tmp_path):
    with pytest.raises(ValueError, match="`full` must be left out but for clusters, not surface"):
        experiments.reproduce("surface", tmp_path, full=True)
    assert not list(tmp_path.iterdir())


def test_all_runs_in_order_resumes_and_names_what_failed(tmp_path, monkeypatch):
    calls, broken = [], {"theory"}

    def reproduce(name, out, *, quick, seed, workers, say):
        calls.append(name)
        if name in broken:
            raise OSError("no data")
        out.mkdir(parents=True)
        results = {"gd": {"minima": 2, "global_minima": 0}, "rr": {"minima": 4, "rides": 8}}
        results["rr"]["global_minima"] = 2
        results["run"] = {"is_quick": quick, "settings": {"seed": seed}, "seconds": 1.0}
        results["run"] |= experiments.about()
        (out / "results.json").write_text(json.dumps(results))
        (out / "surface.png").touch()

    surface = experiments.module("surface")
    monkeypatch.setattr(experiments, "EXPERIMENTS", ("surface", "theory", "levers"))
    monkeypatch.setattr(experiments.module("levers"), "table", surface.table)
    monkeypatch.setattr(experiments, "reproduce", reproduce)
    failed = page.run_all(tmp_path, quick=True, say=lambda line: None)
    assert failed == {"theory": "no data"} and calls == ["surface", "theory", "levers"]
    text = (tmp_path / "index.md").read_text()
    assert "Not run: no data" in text and "![surface](surface/surface.png)" in text
    assert "| 2 local, 2 global | 4 (2 global) |" in text
    broken.clear()
    monkeypatch.setattr(experiments.module("theory"), "table", surface.table)
    assert not page.run_all(tmp_path, quick=True, say=lambda line: None)
    assert calls[3:] == ["theory"]  # what is done is not done again


def test_holes_are_filled(tmp_path):
    (tmp_path / "one.json").write_text('{"depths": {"4": [{"mean": 0.523}]}}')
    template = "{{one/depths/4/0/mean:.1f}} and {{100*one/depths/4/0/mean:.0f}} %"
    assert page.filled(template, tmp_path) == "0.5 and 52 %"
    with pytest.raises(KeyError):
        page.filled("{{one/depths/6}}", tmp_path)


# --- the page of the documentation

# Numbers of the text that are no results: settings, sizes, definitions and what the paper says.
SETTINGS = {
    "0.001": "the scale of a start",
    "0.01": "the scale of a start",
    "0.1": "a step size",
    "0.4": "the generator of trees; a flip rate",
    "0.5": "a step size",
    "0.2": "a step size; a flip rate",
    "0.6": "a lever",
    "0.8": "delta_break",
    "0.9": "the flip rate of the test",
    "0.95": "delta_break",
    "0.00264": "the paper's step",
    "2.32e-4": "the paper's step",
    "1e-4": "the decay",
    "0.1.0": "a version",
    "3.2": "the name of a ridge",
    "95 %": "of an interval",
    "30 %": "the paper's, Figure 4",
    "50 %": "the paper's, Figure 2",
    "90 %": "the paper's, Figures 2 and 4",
    "98 %": "the paper's, Figure 4",
    "17.8": "the paper's, Table 1",
    "58.4": "the paper's, Table 1",
    "65.5": "the paper's, Table 1",
    "65.7": "the paper's, Table 1",
    "60,000": "HVPs, a setting",
    "10,000": "images",
    "2,500": "images",
    "84": "the interval of 20 of 20, which another test computes",
}


@pytest.mark.parametrize("name", ["reproducing", "theory"])
def test_the_documentation_is_what_the_stored_results_say(name):
    text = page.filled((DOCS / f"{name}.md.in").read_text(), DOCS / "results")
    assert (DOCS / f"{name}.md").read_text() == text


def test_every_experiment_has_its_command_table_and_provenance():
    template = (DOCS / "reproducing.md.in").read_text()
    for name in (path.stem for path in (DOCS / "results").glob("*.json")):
        command = name.partition("@")[0]
        for hole in (f"`reproduce {command}`", f"{{{{table {name}}}}}", f"{{{{run {name}}}}}"):
            assert hole in template, hole


def test_the_number_of_tested_items_is_that_of_the_table():
    text = (DOCS / "reproducing.md").read_text()
    rows = re.findall(r"^\| (\d+)\. (?:[^|]*\|){3} ([^|]*) \|", text, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    tested = sum(not verdict.startswith("not tested") for _, verdict in rows)
    assert f"{tested} of the {len(rows)} items are tested" in text


def test_no_result_is_typed_by_hand():
    text = page.HOLE.sub("", (DOCS / "reproducing.md.in").read_text())
    typed = re.findall(r"\b\d+(?:[.,]\d+)+(?:e-?\d+)?\b|\b\d+e-?\d+\b|\b\d+ %|±", text)
    assert {number for number in typed if number not in SETTINGS} == set()
