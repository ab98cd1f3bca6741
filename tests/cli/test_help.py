"""What the command line says of itself, and the commands that take runs elsewhere."""

import json
import shlex

import pytest
import typer
from typer.testing import CliRunner

import ridgerider as rr
from ridgerider import cli
from ridgerider.problems import wells

COMMANDS = vars(typer.main.get_command(cli.app))["commands"]


def run(*args):
    result = CliRunner().invoke(cli.app, args, catch_exceptions=False, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_has_a_sentence_and_every_command_an_example(name):
    command = COMMANDS[name]
    assert command.help and all(
        one.help or getattr(one, "hidden", False) for one in command.params
    ), name
    shown = " ".join(run(name, "--help").replace("│", " ").split())
    assert shown.endswith(command.epilog)
    # The example can be read by the command that it is for.
    what, program, first, *rest = shlex.split(command.epilog)
    assert (what, program, first) == ("Example:", "ridgerider", name)
    command.make_context(name, rest, resilient_parsing=False)


def test_the_help_of_all_is_within_80_columns():
    shown = run("--help")
    assert max(map(len, shown.splitlines())) <= 80
    assert all(f" {name} " in shown for name in COMMANDS)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        rr.search(wells(1), out=tmp_path / name / "run.sqlite", max_rides=2)
    return tmp_path


def test_export(here):
    assert run("export", "one").strip() == "one/solutions.csv"
    assert "params[0]" in (here / "one" / "solutions.csv").read_text()
    run("export", "one", "--format", "json", "--table", "legs", "--out", "legs.json")
    assert len(json.loads((here / "legs.json").read_text())["legs"]) == 2
    run("export", "one/run.sqlite", "--format", "npz", "--out", ".")
    assert (here / "solutions.npz").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("export one --format xls", "`--format` must be 'csv', 'json' or 'npz'"),
        ("export one --table rides", "`--table` must be 'solutions', 'minima' or 'legs'"),
        ("export one --out a.txt", r"`path` must end in .csv, .json or .npz"),
        ("export three", "must be a run file, but there is none at three"),
        ("compare one", "`paths` must be two run files or more, not 1"),
        ("compare one three", "must be a run file, but there is none at three"),
    ],
)
def test_bad_input_is_one_sentence(here, args, message):
    with pytest.raises(ValueError, match=message) as error:
        run(*args.split())
    assert "\n" not in str(error.value)
    assert not [path for path in here.rglob("*.*") if "run.sqlite" not in path.name]


def test_compare(here):
    assert run("compare", "one", "two").strip() == "one/compare.html"
    run("compare", "one", "two", "--problem", "wells", "--out", ".")
    assert "one against two" in (here / "compare.html").read_text()
