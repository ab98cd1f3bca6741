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


@pytest.fixture
def copper(tmp_path, monkeypatch):
    build = pytest.importorskip("ase.build", reason="ASE is not installed: ridgerider[ase]")
    monkeypatch.chdir(tmp_path)
    slab = build.fcc111("Cu", size=(1, 1, 3), vacuum=4.0)
    build.add_adsorbate(slab, "Cu", 2.0, "fcc")
    slab.info.clear()
    slab.write("slab.xyz")
    return slab


EMT = ("--calculator", "ase.calculators.emt:EMT")


def test_atoms_from_a_file(copper, tmp_path):
    run("explore", "slab.xyz", *EMT, "--fixed", "0-2", "--out", "whole")
    whole = rr.load("whole/run.sqlite")
    assert whole.leg("").x.size == 3 and whole.meta["problem"]["about"]["formula"] == "Cu4"
    few = ("--max-force-calls", "30")
    run("explore", "slab.xyz", *EMT, "--fixed", "0,1-2", "--option", "asap_cutoff=False", *few)
    part = rr.load("runs/slab/run.sqlite")
    assert len(part) < len(whole)
    run("resume", "runs/slab", *EMT, "--max-force-calls", "10000")
    names = [str(leg.fingerprint) for leg in rr.load("runs/slab/run.sqlite")]
    assert names == [str(leg.fingerprint) for leg in whole]
    copper.positions[-1, 0] += 0.5
    copper.write("other.xyz")
    run("explore", "slab.xyz", *EMT, "--fixed", "0-2", "--starts", "other.xyz", "--bonds", "any")
    assert len(rr.load("runs/slab-2/run.sqlite").starts()) == 2
    shown = run("show", "runs/slab-2")
    assert "energy / eV" in shown and "loss" not in shown and " force calls, " in shown


def test_bad_input_of_atoms(copper, tmp_path):
    for wanted, args in (
        ("there is no no.xyz", ("no.xyz", *EMT)),
        ("`--fixed` needs atoms with a `--calculator`", ("himmelblau", "--fixed", "1")),
        ("`--valid` is not for atoms", ("slab.xyz", *EMT, "--valid", "-1,1")),
        ("`--fixed` must be numbers below 4", ("slab.xyz", *EMT, "--fixed", "7")),
        ("`--fixed` must be numbers below 4", ("slab.xyz", *EMT, "--fixed", "Au")),
        ("`--calculator` must be module:attribute", ("slab.xyz", "--calculator", "EMT")),
        ("module 'nowhere' cannot be imported", ("slab.xyz", "--calculator", "nowhere:EMT")),
        ("`--option` must be NAME=VALUE", ("slab.xyz", *EMT, "--option", "charge")),
        (
            "must be a keyword of .*asap_cutoff.*; not cutof",
            ("slab.xyz", *EMT, "--option", "cutof=1"),
        ),
        ("cannot be made: ", ("slab.xyz", "--calculator", "math:sqrt", "--option", "a=1")),
        ("`--bonds` must be", ("slab.xyz", *EMT, "--bonds", "some")),
        ("`--max-force-calls` must be", ("slab.xyz", *EMT, "--max-force-calls", "-1")),
    ):
        with pytest.raises(ValueError, match=wanted):
            run("explore", *args)
    assert not (tmp_path / "runs").exists()
    (tmp_path / "empty.xyz").write_text("no atoms")
    with pytest.raises(ValueError, match=r"empty\.xyz cannot be read"):
        run("explore", "empty.xyz", *EMT)
    run("explore", "slab.xyz", *EMT, "--fixed", "0-2", "--max-force-calls", "20")
    with pytest.raises(ValueError, match="`--calculator` must be given again"):
        run("resume", "runs/slab")
    with pytest.raises(ValueError, match="`--max-rides` is not for atoms"):
        run("resume", "runs/slab", *EMT, "--max-rides", "5")
