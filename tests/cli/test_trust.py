"""What a run file names is loaded only if the run was made here, or if the user says so."""

import contextlib
import json
import shutil
import sqlite3
import sys

import pytest

from tests.fuzz.commands import run
from tests.search.runfile.made_up_runs import sign_rows

MINE = """
import pathlib
import ridgerider.problems
pathlib.Path("imported").touch()
problem = ridgerider.problems.wells(2)
def order(branch):
    return 0
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a module of the user's; what earlier tests imported is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine.py").write_text(MINE)
    yield tmp_path
    sys.modules.pop("mine", None)


def search(name):
    ended = run("search", name, "--max-rides", "2", "--out", "out", "--max-steps", "20")
    assert ended.code == 0, ended
    return "out/run.sqlite"


def change(path, key, value):
    """As somebody would who knows the format: the digests fit."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE meta SET value = ? WHERE key = ?", [json.dumps(value), key])
        sign_rows(db)


def forget(folder):
    sys.modules.pop("mine", None)
    (folder / "imported").unlink(missing_ok=True)


@pytest.mark.parametrize("name", ["mine:problem", "mine.py:problem", "./mine.py:problem"])
def test_a_run_that_was_made_here_goes_on(here, name):
    path = search(name)
    for line in (("replay", path, "0+"), ("resume", path, "--max-rides", "3")):
        ended = run(*line)
        assert ended.code == 0, ended


def test_what_was_not_made_here_is_asked_for(here):
    path = search("mine:problem")
    (here / "mine.py").write_text(MINE + "# changed\n")
    forget(here)
    for command in (("resume", path), ("replay", path, "0+")):
        ended = run(*command)
        assert ended.code == 2 and "module 'mine' would be imported" in ended.err
        assert not (here / "imported").exists()
    assert run("resume", path, "--problem", "mine:problem").code == 0
    forget(here)
    assert run("replay", path, "0+", "--trust").code == 0


def test_another_folder_is_not_here(here, monkeypatch):
    path = (here / search("mine:problem")).resolve()
    (here / "other").mkdir()
    shutil.copy(here / "mine.py", here / "other")
    monkeypatch.chdir(here / "other")
    forget(here / "other")
    assert run("resume", path).code == 2
    assert not (here / "other/imported").exists()


@pytest.mark.parametrize("name", ["os:abort", "code:interact", "mine:problem", "os.path:join"])
def test_a_received_file_chooses_nothing(here, name):
    path = search("wells")
    change(path, "name", name)
    for command in ("show", "report", "check"):
        ended = run(command, path)
        assert ended.code == 0, ended
    for command in (("resume", path), ("replay", path, "0+")):
        ended = run(*command)
        assert ended.code == 2 and "would be imported" in ended.err
    assert not (here / "imported").exists() and "mine" not in sys.modules


@pytest.mark.parametrize("order", ["mine:order", {"function": "mine:order"}])
def test_nor_does_its_order(here, order):
    path = search("wells")
    with contextlib.closing(sqlite3.connect(path)) as db:
        text = db.execute("SELECT value FROM meta WHERE key = 'settings'").fetchone()[0]
    change(path, "settings", {**json.loads(text), "order": order})
    for command in (("show", path), ("report", path), ("check", path), ("resume", path)):
        ended = run(*command)
        ended.check()
    assert ended.code == 2
    assert not (here / "imported").exists() and "mine" not in sys.modules
