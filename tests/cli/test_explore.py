"""The command that maps a landscape."""

import pytest
from typer.testing import CliRunner

import ridgerider as rr
from ridgerider import cli


def run(*args):
    result = CliRunner().invoke(cli.app, args, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_explore_show_resume_and_replay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = run("explore", "himmelblau", "--out", "map", "--max-rides", "5", "--valid", "-9,9")
    assert "ascent directions climbed" in said
    said = run("resume", "map", "--max-rides", "2000")
    assert "4 minima, 4 transition states, 1 component;" in said
    said = run("show", "map")
    assert "4 minima, 4 transition states" in said and "between" in said
    name = str(rr.load("map/run.sqlite").minima()[1].fingerprint)
    assert "NOT equal" not in run("replay", "map", name)
    run("report", "map")
    assert "<canvas" in (tmp_path / "map" / "report.html").read_text()


def test_bad_input(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="`--symmetry` must be module:attribute"):
        run("explore", "himmelblau", "--symmetry", "round")
    with pytest.raises(ValueError, match="`--order` must be one of"):
        run("explore", "himmelblau", "--order", "nearest")
