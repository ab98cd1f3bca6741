"""Damage is named by leg, and what is dropped is ridden again to the same tree."""

import shutil
import sqlite3
import subprocess
import sys
import threading

import numpy as np
import pytest

import ridgerider as rr
from ridgerider._search.runfile.repair import check_run, repair
from ridgerider._search.runfile.schema import KEYS, TABLES
from ridgerider._search.runfile.store import Store, held
from ridgerider.problems import wells
from tests.cases import same_tree

SEARCH = {"max_rides": None, "order": "best_first", "round_size": 3}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.sqlite"
    return rr.search(wells(2), out=path, name="wells", **SEARCH)


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copy(whole.file, tmp_path / "copy.sqlite")


def change(path, *statements):
    with sqlite3.connect(path) as db:
        for statement in statements:
            db.execute(statement)
    db.close()


def test_every_row_has_a_digest_and_all_of_them_fit(whole):
    assert check_run(whole.file) == (len(whole) + 1, {})
    db = sqlite3.connect(whole.file)
    for table in TABLES:
        assert db.execute(f"SELECT count(*) FROM {table} WHERE digest IS NULL").fetchone() == (0,)
    db.close()


def test_a_descent_that_was_changed_is_ridden_again(tmp_path):
    path, rider = tmp_path / "run.sqlite", rr.Rider()
    result = rr.search(wells(2), rider, out=path)
    before = result.leg("0+").finish.x
    content = path.read_bytes()
    assert content.count(before.tobytes()) == 1
    wrong = before + 1
    path.write_bytes(content.replace(before.tobytes(), wrong.tobytes()))
    assert list(check_run(path)[1]) == ["leg 0+"]
    dropped, _ = repair(path)
    assert dropped == ["0+"]
    again = rr.resume(path, wells(2), rider)
    np.testing.assert_array_equal(again.leg("0+").finish.x, before)


@pytest.mark.parametrize("table", sorted(TABLES.keys() - {"measures"}))
def test_a_change_of_any_column_is_noticed(copy, table):
    db = sqlite3.connect(copy)
    names = [row[1] for row in db.execute(f"PRAGMA table_info({table})") if row[1] != "id"]
    db.close()
    content = copy.read_bytes()
    for name in names:
        copy.write_bytes(content)
        key = KEYS[table][0]
        one = f"{key} = (SELECT max({key}) FROM {table})"
        change(copy, f"UPDATE {table} SET \"{name}\" = x'00' WHERE {one}")
        with pytest.raises(ValueError, match=r"is damaged|cannot be read"):
            rr.load(copy)


def change_some(path, random):
    """Damage of one kind or another, in two or three places."""
    legs = "fingerprint IN (SELECT fingerprint FROM legs WHERE depth > 0 ORDER BY random() LIMIT 2)"
    kinds = (
        f"UPDATE legs SET loss = loss + 1e-9 WHERE {legs}",
        f"UPDATE legs SET arrays = zeroblob(10) WHERE {legs}",
        f"DELETE FROM legs WHERE {legs}",
        f"UPDATE legs SET finish = NULL WHERE {legs}",
        f"UPDATE legs SET end_arrays = zeroblob(10) WHERE {legs}",
        "UPDATE branches SET round = 1 WHERE fingerprint LIKE '0+ %'",
        "DELETE FROM branches WHERE fingerprint LIKE '%-'",
        "UPDATE legs SET linked_to = '0+' WHERE fingerprint = '1-'",
    )
    change(path, *(kinds[number] for number in random.integers(len(kinds), size=3)))


@pytest.mark.parametrize("count", [4, pytest.param(60, marks=pytest.mark.long)])
def test_what_is_damaged_is_dropped_and_ridden_again(whole, copy, count):
    content = copy.read_bytes()
    for number in range(count):
        copy = copy.with_name(f"{number}.sqlite")
        copy.write_bytes(content)
        change_some(copy, np.random.default_rng(number))
        _, found = check_run(copy)
        if not found:  # one that changed nothing
            continue
        with pytest.raises(ValueError, match=r"is damaged: .*`ridgerider check` names all of it"):
            rr.load(copy)
        dropped, kept = repair(copy)
        assert kept.exists() and check_run(copy)[1] == {}
        rr.load(copy).minima()  # also before it is whole again
        assert len(rr.load(copy)) >= len(whole) - 6  # three changes, of two legs each
        resumed = rr.resume(copy, wells(2))
        assert same_tree(whole, resumed), f"{number}: {dropped}"
        assert resumed.links() == whole.links() and resumed.num_open() == whole.num_open()
        assert len(resumed.minima()) == len(whole.minima())
        assert check_run(copy)[1] == {}


def test_what_cannot_be_repaired_is_told(copy):
    content = copy.read_bytes()
    change(copy, "UPDATE legs SET loss = 3 WHERE depth = 0")
    with pytest.raises(ValueError, match="cannot be repaired: its start is damaged"):
        repair(copy)
    copy.write_bytes(content)
    change(copy, "UPDATE meta SET value = '{}' WHERE key = 'settings'")
    with pytest.raises(ValueError, match="cannot be repaired: `settings`, what the run is, is"):
        repair(copy)
    assert not list(copy.parent.glob("*.damaged"))


def test_an_interrupted_run_is_repaired_as_well(whole, tmp_path):
    path = tmp_path / "run.sqlite"
    rr.search(wells(2), out=path, name="wells", **{**SEARCH, "max_rides": 5})
    change(path, "UPDATE legs SET loss = 3 WHERE fingerprint = '0-'")
    assert repair(path)[0] == ["0-"]
    assert same_tree(whole, rr.resume(path, wells(2), max_rides=None))


# --- two at once

RESUME = """
import sys, jax
jax.config.update("jax_enable_x64", True)
import ridgerider as rr
from ridgerider.problems import wells
rr.resume(sys.argv[1], wells(2), max_rides=None)
"""


def test_a_second_resume_says_who_holds_the_run(copy):
    with held(copy):
        with pytest.raises(OSError, match=r"copy.sqlite is being searched by process \d+ on "):
            rr.resume(copy, wells(2))
        other = threading.Thread(target=lambda: None)
        other.start()
        other.join()
    assert len(rr.resume(copy, wells(2))) and not list(copy.parent.glob("*.lock"))


def test_a_lock_goes_with_the_process_that_held_it(copy):
    script = (
        "import sys, os, pathlib; from ridgerider._search.runfile.store import held\n"
        "with held(pathlib.Path(sys.argv[1])): os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", script, str(copy)], check=False)
    assert list(copy.parent.glob(".*.lock"))
    with held(copy):
        pass
    assert not list(copy.parent.glob(".*.lock"))


def test_a_row_that_another_writes_has_no_digest_that_fits(copy):
    store = Store(sqlite3.connect(copy, isolation_level=None), copy)
    store._db.execute("DELETE FROM branches WHERE fingerprint LIKE '%-'")
    store.close()
    with pytest.raises(ValueError, match="rows are missing, or too many"):
        rr.load(copy)
