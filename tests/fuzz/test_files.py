"""Damaged and hostile run files: every command ends with a sentence, and no change is silent."""

import contextlib
import json
import os
import shutil
import sqlite3

import numpy as np
import pytest

import ridgerider as rr
from ridgerider.problems import wells
from tests.fuzz.commands import contents, run
from tests.search.runfile.made_up_runs import sign_rows

COMMANDS = (
    ("show",),
    ("show", "--leg", "0+"),
    ("report", "--out", "page.html"),
    ("check",),
    ("replay", "0+"),
    ("resume",),
)
SIZES = [40, pytest.param(2000, marks=pytest.mark.long)]
TABLES = ("meta", "legs", "legs", "branches")
VALUES = (
    *(None, "", "rust", "[]", "{}", "null", "[[1]]", '{"a": 1}', "1e999", "9" * 5000, "[" * 3000),
    *(-1, 0, 7, 2**40, 2**62, -(2**62), 1.5, float("inf"), -0.0, b"", b"rust", b"\xff" * 64),
    *("0+ 0+ 0+", "99999999999+", "v0+", "\x00", "\ud7ff", "mine:problem", "os:abort"),
    *('[{"eigenvalue": "a"}]', '["curvature_gone", 3]', '{"params": []}', '{"type": "os:abort"}'),
    *('{"function": "os:abort"}', '{"type": "ridgerider:Rider", "fields": {"stop": 3}}'),
)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.sqlite"
    rr.search(wells(), rr.Rider(max_steps=40), out=path, max_rides=3, name="wells")
    return path


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# --- bytes


def flip_bit(content, random):
    content[random.integers(len(content))] ^= 1 << random.integers(8)


def flip_bits(content, random):
    for _ in range(random.integers(2, 50)):
        flip_bit(content, random)


def zero_page(content, random):
    page = 4096 * random.integers(len(content) // 4096)
    content[page : page + 4096] = bytes(4096)


def zero_some(content, random):
    start = random.integers(len(content))
    count = int(min(len(content) - start, random.integers(1, 3000)))
    content[start : start + count] = bytes(count)


def shuffle_pages(content, random):
    one, two = 4096 * random.integers(len(content) // 4096, size=2)
    first, second = bytes(content[one : one + 4096]), bytes(content[two : two + 4096])
    content[one : one + 4096], content[two : two + 4096] = second, first


def noise(content, random):
    start, count = random.integers(len(content)), random.integers(1, 500)
    content[start : start + count] = random.bytes(count)


def cut(content, random):
    del content[random.integers(len(content)) :]


BYTES = (flip_bit, flip_bits, zero_page, zero_some, shuffle_pages, noise, cut)


def damaged_bytes(original, path, random):
    content = bytearray(original.read_bytes())
    damage = BYTES[random.integers(len(BYTES))]
    damage(content, random)
    path.write_bytes(content)
    return damage.__name__


# --- rows: what somebody could write who knows the format


def change_column(db, random):
    table = TABLES[random.integers(4)]
    names = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    name = names[random.integers(len(names))]
    value = VALUES[random.integers(len(VALUES))]
    which = "1" if random.random() < 0.3 else f"rowid % 2 = {random.integers(2)}"
    if table in ("meta", "branches"):
        which = "1" if random.random() < 0.2 else f"length({names[0]}) % 3 = {random.integers(3)}"
    if table == "meta":
        keys = [key for (key,) in db.execute("SELECT key FROM meta")]
        which = f"key = '{keys[random.integers(len(keys))]}'"
    db.execute(f'UPDATE OR IGNORE {table} SET "{name}" = ? WHERE {which}', [value])


def change_json(db, random):
    """Something inside of JSON that is well formed."""
    places = [("meta", "value"), ("legs", "ridges"), ("legs", "finish"), ("legs", "cost")]
    table, column = places[random.integers(4)]
    rows = db.execute(f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL").fetchall()
    (text,) = rows[random.integers(len(rows))]
    data = json.loads(text)
    value = VALUES[random.integers(len(VALUES))]
    value = repr(value) if isinstance(value, bytes) else value
    for _ in range(random.integers(1, 4)):  # a step down
        inner = list(data) if isinstance(data, dict) else range(len(data)) if data else ()
        if not isinstance(data, dict | list) or not inner:
            break
        key = list(inner)[random.integers(len(inner))]
        if not isinstance(data[key], dict | list) or random.random() < 0.4:
            text = text.replace(json.dumps(data[key]), json.dumps(value), 1)
            break
        data = data[key]
    update = f"UPDATE {table} SET {column} = ? WHERE {column} = ?"
    db.execute(update, [text, rows[0][0]])


def drop_rows(db, random):
    table = TABLES[random.integers(4)]
    db.execute(f"DELETE FROM {table} WHERE abs(random()) % 3 = 0")


def change_tables(db, random):
    changes = (
        "DROP TABLE branches",
        "DROP TABLE meta",
        "ALTER TABLE legs RENAME COLUMN trace TO traces",
        "ALTER TABLE measures RENAME TO others",
        "ALTER TABLE legs ADD COLUMN more TEXT DEFAULT 'x'",
        "CREATE TRIGGER t AFTER UPDATE ON meta BEGIN DELETE FROM legs; END",
        "CREATE TABLE other AS SELECT fingerprint, loss FROM legs",
        "ALTER TABLE legs ADD COLUMN g BLOB GENERATED ALWAYS AS (zeroblob(900000000))",
        "PRAGMA user_version = 1",
        "PRAGMA user_version = 77",
        "PRAGMA application_id = 7",
        "INSERT INTO branches SELECT fingerprint || ' 0+', 0, -1, 1, '1', 1, NULL FROM legs",
    )
    db.execute(changes[random.integers(len(changes))])


def endless_view(db, random):
    db.execute("ALTER TABLE legs RENAME TO old")
    db.execute(
        "CREATE VIEW legs AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
        " SELECT i AS id, old.* FROM n, old"
    )


ROWS = (change_column, change_column, change_json, change_json, drop_rows, change_tables)


def hostile_rows(original, path, random):
    shutil.copy(original, path)
    db = sqlite3.connect(path, isolation_level=None)
    hostile = endless_view if random.random() < 0.02 else ROWS[random.integers(len(ROWS))]
    for _ in range(random.integers(1, 3)):
        try:
            hostile(db, random)
        except (sqlite3.Error, KeyError, TypeError, ValueError):  # nothing to change there
            break
    is_signed = hostile is not endless_view and random.random() < 0.7
    if is_signed:  # whoever changes a file on purpose makes its digests fit
        try:
            sign_rows(db)
        except Exception:
            is_signed = False
    db.close()
    return f"{hostile.__name__}{' signed' * is_signed}"


# --- the proofs


@pytest.mark.parametrize("count", SIZES)
def test_damaged_bytes(original, tmp_path, count):
    before, noticed, unchanged = contents(original), 0, 0
    for number in range(count * 3 // 5):
        random = np.random.default_rng([1, number])
        path = tmp_path / f"{number}.sqlite"
        how = damaged_bytes(original, path, random)
        damaged = path.read_bytes()
        for command, *rest in COMMANDS:
            path = fresh(path, damaged)
            ended = run(command, path, *rest)
            ended.check()
            is_told = ended.code or "damaged" in ended.out
            assert is_told or contents(path) == before, f"{how} {number}: {ended}"
            noticed, unchanged = noticed + bool(is_told), unchanged + (not is_told)
    print(f"{noticed} noticed, {unchanged} without effect")
    assert noticed > unchanged


@pytest.mark.parametrize("count", SIZES)
def test_hostile_rows(original, tmp_path, count):
    codes = {0: 0, 1: 0, 2: 0}
    for number in range(count - count * 3 // 5):
        random = np.random.default_rng([2, number])
        path = tmp_path / f"{number}.sqlite"
        clear(path)
        hostile_rows(original, path, random)
        damaged = path.read_bytes()
        for command, *rest in COMMANDS:
            path = fresh(path, damaged)
            ended = run(command, path, *rest)
            ended.check()
            codes[ended.code] += 1
        run("check", fresh(path, damaged), "--repair").check()
    print(codes)
    assert codes[2] > count / 10


def fresh(path, content):
    """A file of another name: SQLite may still hold on to the last one."""
    clear(path)
    path.unlink(missing_ok=True)
    path = path.with_name(f"{path.stem}x.sqlite")
    path.write_bytes(content)
    return path


def clear(path):
    for end in ("-wal", "-shm", "-journal"):
        path.with_name(f"{path.name}{end}").unlink(missing_ok=True)
    for copy in path.parent.glob("*.damaged*"):
        copy.unlink()


@pytest.mark.parametrize("count", [3, pytest.param(200, marks=pytest.mark.long)])
def test_each_changed_bit_of_a_row_is_noticed_or_without_effect(original, tmp_path, count):
    """One bit of each cell of a row's content, in `count` files; the file is only opened."""
    content, before = original.read_bytes(), contents(original)
    path, tried, noticed = tmp_path / "run.sqlite", 0, 0
    for number in range(count):
        random = np.random.default_rng([3, number])
        for place in random.integers(len(content), size=60):
            changed = bytearray(content)
            changed[place] ^= 1 << random.integers(8)
            path.write_bytes(changed)
            clear(path)
            tried += 1
            try:
                rr.load(path)
            except ValueError:
                noticed += 1
            else:
                assert contents(path) == before, f"byte {place} of file {number}"
    print(f"{noticed} of {tried} noticed, the others without effect")
    assert noticed > tried / 4


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_what_is_no_file_is_told(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "/dev/null", "/dev/zero", "/proc/self/mem", "."):
        for command, *rest in COMMANDS:
            ended = run(command, name, *rest)
            ended.check()
            assert ended.code == 2


def test_a_run_with_other_things_in_it_is_told(original, tmp_path):
    path = tmp_path / "run.sqlite"
    for change in (
        "DELETE FROM legs WHERE fingerprint = ''",
        "UPDATE meta SET value = '[[1]]' WHERE key = 'symmetry'",
        "UPDATE meta SET value = '[]' WHERE key = 'seconds_compiling'",
        "UPDATE meta SET value = '[]' WHERE key = 'seconds'",
        "UPDATE meta SET value = '[[null]]' WHERE key = 'starts'",
        "UPDATE meta SET value = json_set(value, '$.unit', 'a') WHERE key = 'settings'",
        "UPDATE meta SET value = json_set(value, '$.unit', 0) WHERE key = 'settings'",
        "UPDATE meta SET value = json_set(value, '$.share_of_starts', 2) WHERE key = 'settings'",
        "UPDATE legs SET cost = '{\"hvps\": null}'",
        "UPDATE legs SET loss = NULL WHERE fingerprint = ''",
        """UPDATE meta SET value = '{"max_rides": "4"}' WHERE key = 'budget'""",
    ):
        shutil.copy(original, path)
        db = sqlite3.connect(path, isolation_level=None)
        db.execute(change)
        sign_rows(db)
        db.close()
        ended = run("resume", path, "--max-rides", "4")
        ended.check()
        assert ended.code == 2, ended
        path.unlink()


def test_a_repair_ends_whatever_the_keys_are(original, tmp_path):
    for number, change in enumerate(
        (
            "UPDATE OR IGNORE branches SET fingerprint = x'ff'",
            "UPDATE branches SET round = 'x'",
            "UPDATE meta SET key = x'ff' WHERE key = 'versions'",
        )
    ):
        path = tmp_path / f"{number}.sqlite"
        shutil.copy(original, path)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute(change)
            sign_rows(db)
        run("check", path, "--repair", seconds=30).check()


def test_a_repair_drops_legs_that_cannot_be_read_though_their_digests_fit(original, tmp_path):
    path = tmp_path / "run.sqlite"
    shutil.copy(original, path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE legs SET ridges = '' WHERE fingerprint = '0+'")
        sign_rows(db)
    ended = run("check", path, "--repair")
    ended.check()
    assert "dropped legs: 0+" in ended.out
    assert "nothing damaged" in run("check", path).out
    assert run("resume", path).code == 0


def test_a_repair_leaves_out_columns_that_are_not_ours(original, tmp_path):
    path = tmp_path / "run.sqlite"
    shutil.copy(original, path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("ALTER TABLE legs ADD COLUMN more TEXT DEFAULT 'x'")
    ended = run("check", path, "--repair")
    ended.check()
    run("resume", path).check()
