import inspect
import json
import os
import re
import subprocess
import sys
from importlib.metadata import version as rr_version
from pathlib import Path

import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

import ridgerider as rr
from ridgerider import cli
from ridgerider._search.runfile.rules_json import describe_problem
from ridgerider.cli import _commands, _options, _shown
from ridgerider.problems import load_problem
from ridgerider.report._read import Reader
from ridgerider.report._verdict import verdict
from ridgerider_experiments import demo

PROBLEM_FILE = """
import jax.numpy as jnp
import ridgerider as rr

def loss(params):
    return jnp.sum(params["x"] ** 4 / 4 - params["x"] ** 2 / 2)

problem = rr.Problem(loss, {"x": jnp.zeros(1)})
bowl = rr.Problem(lambda x: x @ x, jnp.zeros(2))
number = 3

def make():
    return problem

def needs(something):
    return problem
"""


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(PROBLEM_FILE)
    (tmp_path / "broken.py").write_text("def (")
    return tmp_path


def run(*args):
    """In this process; errors come back as exceptions."""
    result = CliRunner().invoke(cli.app, args, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_search_show_resume_replay_report():
    out = run("search", "mine:problem", "--max-rides", "1")
    assert (
        "run file: runs/mine-problem/run.sqlite" in out
        and "after 1 ride, as `max_rides` says, with 1 branch open" in out
    )
    out = run("resume", "runs/mine-problem", "--max-rides", "2")
    assert "2 different minima" in out and "all 2 branches that were found were ridden" in out
    out = run("show", "runs/mine-problem/run.sqlite")
    assert "-0.25" in out and "curvature_gone 2" in out and "Hessian-vector products" in out
    out = run("show", "runs/mine-problem", "0-")
    assert "ended by curvature_gone" in out and "overlap" in out
    out = run("replay", "runs/mine-problem", "0-")
    assert "0-: equal to the stored leg" in out
    assert run("report", "runs/mine-problem").splitlines()[-1] == "runs/mine-problem/report.html"
    assert "mine:problem" in Path("runs/mine-problem/report.html").read_text()
    run("report", "runs/mine-problem/run.sqlite", "--out", "page.html")
    assert Path("page.html").exists()


def test_signatures_and_metrics_are_stored_with_the_run():
    Path("mine.py").write_text(PROBLEM_FILE + MEASURES_FILE)
    options = ["--signature", "mine:size", "--metric", "twice=mine:twice"]
    out = run("search", "mine:problem", "--out", "here", *options)
    assert "1 different solution by `size` (2 points)" in out and "twice" in out
    assert set(rr.load("here/run.sqlite").measures()) == {"signature", "twice"}
    Path("mine.py").unlink()  # values are read, nothing that the file names is imported
    assert "1 different solution by `size`" in run("show", "here")
    run("report", "here")
    assert '"signature":"size"' in Path("here/report.html").read_text()


def test_a_run_that_is_there_is_measured():
    Path("mine.py").write_text(PROBLEM_FILE + MEASURES_FILE)
    run("search", "mine:problem", "--out", "here")
    Path("mine.py").write_text(PROBLEM_FILE + MEASURES_FILE + "# changed")
    with pytest.raises(ValueError, match="module 'mine' would be imported and run"):
        run("report", "here", "--signature", "mine:size")
    given = ["--problem", "mine:problem"]
    run("report", "here", "--signature", "mine:size", *given)
    assert "1 different solution by" in run("show", "here")
    run("report", "here", "--metric", "twice=mine:twice", *given)
    assert '"twice"' in Path("here/report.html").read_text()
    assert {"signature", "twice"} == set(rr.load("here/run.sqlite").measures())
    for option, name, message in (
        ("--metric", "mine:twice", "must be NAME=MODULE:FUNCTION"),
        ("--metric", "twice=mine", "must be module:attribute"),
        ("--signature", "mine:nothing", "has no attribute 'nothing'"),
        ("--signature", "mine:number", "must be callable with 1 argument, not"),
    ):
        with pytest.raises(ValueError, match=message):
            run("report", "here", option, name, *given)


def test_help_has_an_example():
    for command in ("search", "resume", "show", "replay", "report", "watch", "reproduce", "demo"):
        out = run(command, "--help")
        assert f"Example: ridgerider {command}" in out
    assert "FINGERPRINT" in run("show", "--help") and "FINGERPRINT" in run("replay", "--help")


def test_no_number_is_cut_at_80_columns():
    columns = {"fingerprint": ["0+ 1-" * 3], "loss": ["-1.23456e-10"], "payoff": ["0.98765"]}
    for width in range(10, 80):
        kept = _shown.fitting(columns, width)
        used = sum(2 + max(map(len, [name, *cells])) for name, cells in kept.items()) - 2
        assert used <= width or list(kept) == ["fingerprint"]
    run("search", "mine:problem", "--out", "here")
    out = run("show", "here")
    losses = [row.split()[1] for row in out.splitlines() if row.startswith("0")]
    assert losses == ["-0.25", "-0.25"]


MEASURES_FILE = """
def size(params):
    return [round(abs(float(params["x"][0])), 2)]

def twice(params):
    return 2 * params["x"][0]
"""


def test_watch_serves_until_it_is_stopped(monkeypatch):
    Path("soon").mkdir()  # the search is yet to begin
    monkeypatch.setattr(_commands.Server, "serve_forever", interrupted)
    out = run("watch", "soon", "--port", "0").splitlines()
    assert out[0] == "watching soon/run.sqlite; stop with Ctrl-C"
    assert out[1].startswith("http://127.0.0.1:")


def interrupted(server):
    raise KeyboardInterrupt


def test_demo_ends_with_the_page_to_open(monkeypatch):
    (first, *others) = demo.parts()
    assert [part.name for part in others] == ["tree", "levers", "digits"]
    for part in (first, *others):
        loaded = load_problem(part.settings.get("name", part.name))
        assert describe_problem(loaded) == describe_problem(part.problem)
    monkeypatch.setattr(demo, "parts", lambda: [first])
    out = run("demo", "--out", "shown")
    assert "A surface with four minima: 4 of 4 minima in 8 rides" in out
    assert out.splitlines()[-1] == "shown/report.html"
    index = Path("shown/report.html").read_text()
    assert 'href="surface.html"' in index and "http:" not in index.replace("http://www.w3.org", "")
    assert "0+ (white" not in index and Path("shown/surface.html").stat().st_size > 50_000
    assert "4 of 4 minima" in index
    page = Path("shown/surface.html").read_text()
    assert "4 of 4 minima" in page and "4 different minima (8 points)" in page
    assert '"index":"report.html"' in page  # the way back
    with pytest.raises(ValueError, match="`--out` holds a demo already: shown"):
        run("demo", "--out", "shown")


@pytest.mark.long
def test_the_cards_of_the_demo_and_its_reports_agree():
    run("demo", "--out", "shown")
    index = Path("shown/report.html").read_text()
    for part in demo.parts():
        result = rr.load(f"shown/{part.name}.sqlite")
        card = part.found(result)
        reader = Reader(result.file)
        reader.read()
        found = verdict(reader)
        assert card in index and card in Path(f"shown/{part.name}.html").read_text()
        if part.name == "tree":
            assert card.startswith("5 of 5") and found["headline"].startswith("5 different sol")
        if part.name == "levers":
            payoff, met = re.findall(r", payoff (\S+), with strangers (0\.\d+)", found["text"])[0]
            assert card == (
                "payoff 0.60 with strangers on ridge 0, "
                f"{float(met):.2f} where partners get {float(payoff):.2f}"
            )
        if part.name == "digits":
            (accuracy,) = re.findall(r"accuracy (0\.\d+)", found["text"])
            assert card.startswith(f"{float(accuracy):.0%} of unseen")


def test_a_function_that_makes_the_problem():
    assert "2 minima" in run("search", "mine:make", "--out", "here")


def test_new_runs_get_new_directories():
    for name in ("wells", "wells-2", "wells-3"):
        run("search", "wells", "--max-rides", "1")
        assert Path(f"runs/{name}/run.sqlite").exists()


def test_reproduce_writes_results_table_and_figures():
    run("reproduce", "surface", "--quick", "--out", "figure")
    results = json.loads(Path("figure/results.json").read_text())
    assert results["gd"]["minima"] == 2 and results["gd"]["global_minima"] == 0
    assert results["rr"]["minima"] == 4 and results["rr"]["global_minima"] == 2
    assert results["rr"]["rides"] == 8
    assert Path("figure/surface.png").stat().st_size > 10_000
    assert (
        "| minima found by Ridge Rider | 2 local, 2 global | 4 (2 global) |"
        in Path("figure/table.md").read_text()
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["search", "nowhere:problem"], "No module named 'nowhere'"),
        (["search", "mine:nothing"], "module 'mine' has no attribute 'nothing'"),
        (
            ["search", "mine:number"],
            "mine:number must be a Problem or a function that returns one, not int",
        ),
        (
            ["search", "mine"],
            "must be one of surface, wells, levers, digits, tree, camel, "
            "himmelblau, mueller-brown, rastrigin, atoms or module",
        ),
        (
            ["search", "../mine.py:problem"],
            "mine:problem for `problem` in mine.py, not '../mine.py:problem'",
        ),
        (["search", "mine:needs"], "mine:needs must be callable without arguments"),
        (["search", "broken:problem"], "module 'broken' cannot be imported in .*: SyntaxError"),
        (["search", "mine:bowl"], "`start` must have negative curvature"),
        (["search", "wells", "--order", "sideways"], "`--order` must be one of"),
        (["search", "wells", "--engine", "steam"], "`--engine` must be 'auto', 'dense' or 'hvp'"),
        (["search", "wells", "--max-rides", "-1"], "`--max-rides` must be a number of at least 0"),
        (["explore", "camel", "--max-points", "-1"], "`--max-points` must be"),
        (["explore", "camel", "--engine", "steam"], "`--engine` must be 'auto', 'dense' or"),
        (
            ["search", "wells", "--out", "mine.py"],
            "`--out` must be a directory, but mine.py is a file",
        ),
        (
            ["search", "wells", "--workers", "0"],
            "`--workers` must be a whole number of at least 1",
        ),
        (
            ["search", "wells", "--dask", "here"],
            "`--dask` must be an address such as tcp://host:8786, not 'here'",
        ),
        (["resume", "nothing"], "must be a run file, but there is none at nothing"),
        (["show", "mine.py"], "cannot be read as a run file: file is not a database"),
        (["report", "nothing"], "`path` must be a run file, but there is none at nothing"),
        (["report", "mine.py"], "cannot be read as a run file: file is not a database"),
        (["watch", "nothing"], "`run` must be a run file or its directory, but there is none at"),
        (["reproduce", "everything"], "the experiment must be one of surface, trees, ablation"),
        (
            ["reproduce", "surface", "--full"],
            "`--full` must be left out but for clusters, not surface",
        ),
        (
            ["reproduce", "trees", "--workers", "0"],
            "`--workers` must be a whole number of at least 1",
        ),
        (
            ["reproduce", "surface", "--data", "."],
            "`--data` must be left out but for mnist, mnist-diversity",
        ),
        (["reproduce", "mnist", "--data", "nowhere"], "`--data` must be a folder of images, but"),
        (["reproduce", "mnist", "--data", "."], "has no train-images-idx3-ubyte, compressed"),
        *(
            (line.split(), "`--out` must be a directory, but mine.py is a file")
            for line in (
                "reproduce surface --out mine.py",
                "reproduce all --quick --out mine.py",
                "bench --out mine.py",
                "demo --out mine.py",
            )
        ),
    ],
)
def test_bad_input_raises_one_sentence_and_leaves_nothing(args, message, directory):
    with pytest.raises(ValueError, match=message) as error:
        run(*args)
    assert "\n" not in str(error.value)
    assert (
        not list(directory.glob("runs/*/*")) and (directory / "mine.py").read_text() == PROBLEM_FILE
    )


def test_workers_ride_a_problem_from_a_file():
    run("search", "mine:problem", "--max-rides", "1")
    out = run("resume", "runs/mine-problem", "--workers", "1", "--max-rides", "2")
    assert (
        "2 different minima" in out
        and "all 2 branches that were found were ridden" in out
        and "at once" not in out
    )


def test_idle_workers_are_told():
    out = run("search", "mine:problem", "--workers", "2", "--round-size", "1", "--max-rides", "1")
    assert "no more than 1 at once will ride: that is the run's --round-size" in out


def test_a_directory_of_the_users_stays(directory):
    (directory / "own").mkdir()
    with pytest.raises(ValueError, match="`--order` must be one of"):
        run("search", "wells", "--out", "own", "--order", "sideways")
    assert (directory / "own").is_dir()
    run("search", "wells", "--out", "a[/b]", "--max-rides", "1")  # no markup
    assert (directory / "a[" / "b]" / "run.sqlite").exists()


def test_a_second_run_does_not_touch_the_first():
    run("search", "wells", "--max-rides", "1", "--out", "here")
    before = Path("here/run.sqlite").read_bytes()
    with pytest.raises(ValueError, match="holds a run already: resume here"):
        run("search", "wells", "--out", "here")
    assert Path("here/run.sqlite").read_bytes() == before


def test_the_program_itself_exits_with_2_and_one_sentence():
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-m", "ridgerider.cli", "search", "nowhere:problem"],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert (
        done.stderr.startswith("Error: module 'nowhere' cannot be imported in ")
        and done.stderr.count("\n") == 1
    )


def test_a_report_into_a_directory_and_a_replay_of_nothing(directory):
    run("search", "mine:problem", "--max-rides", "1", "--out", "here")
    (directory / "pages").mkdir()
    run("report", "here", "--out", "pages")
    assert (directory / "pages" / "report.html").exists()
    with pytest.raises(ValueError, match="`fingerprint` must name at least one turn"):
        run("replay", "here", "")


def test_nothing_in_a_run_file_controls_the_terminal():
    attack = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\r"
    for name, search in (("search", rr.search), ("map", rr.explore)):
        problem = load_problem("himmelblau" if name == "map" else "wells")
        search(problem, name=attack, out=f"{name}.sqlite", max_rides=1, measures=MEASURES)
        for words in (["show"], ["show", ""], ["check"], ["report"]):
            out = run(words[0], f"{name}.sqlite", *words[1:])
            assert all(one.isprintable() for one in out.replace("\n", "")), (name, words)


def signature(x):
    return "\x1b[31m" if x[0] > 0 else "\x07"


MEASURES = rr.Measures(signature, {"\x1b[32m": jnp.linalg.norm})


NETWORK_FILE = """
from collections.abc import Callable
import equinox as eqx, jax, jax.numpy as jnp
import ridgerider as rr

class Net(eqx.Module):
    w: jax.Array
    act: Callable = eqx.field(static=True)

def act(x):
    return x**4 / 4 - x**2 / 2

def loss(net, key):
    return jnp.sum(net.act(net.w) + 0 * jax.random.normal(key, net.w.shape))

problem = rr.Problem(loss, Net(jnp.zeros(1), act), jax.random.key(0))
"""


def test_functions_in_a_model_and_keys_in_its_data_resume_in_another_process(
    directory, monkeypatch
):
    (directory / "net.py").write_text(NETWORK_FILE)
    monkeypatch.delitem(sys.modules, "net", raising=False)
    run("search", "net:problem", "--max-rides", "1", "--out", "net")
    command = [sys.executable, "-m", "ridgerider.cli", "resume", "net", "--max-rides", "2"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=directory)
    assert done.returncode == 0, done.stderr
    assert "2 different minima" in done.stdout


def test_version():
    assert run("--version").split() == ["ridgerider", rr_version("ridgerider")]


def test_options_of_search_have_its_defaults():
    options = inspect.signature(_commands.search).parameters
    known = inspect.signature(rr.search).parameters
    for name in _options.SEARCH:
        assert options[name].default == known[name].default
    # Nothing that decides a search is missing from the command line, but for what it makes itself.
    made = {"rider", "name", "executor", "max_deaths", "measures", "symmetry"}
    made |= {"progress", "verbose"}
    assert known.keys() - options.keys() == made
