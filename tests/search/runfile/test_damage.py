"""Random damage to finished and unfinished runs: repaired and resumed, they are what they were."""

import contextlib
import json
import re
import shutil
import sqlite3

import numpy as np
import pytest

import ridgerider as rr
from ridgerider._search.runfile.repair import check_run, repair
from ridgerider._search.runfile.schema import KEYS
from ridgerider.problems import himmelblau, wells

SEARCH = {"members": "all", "max_depth": 2, "round_size": 5}
MAP = {"round_size": 5}
# What makes a run, of how many rides at most, and after how many it is cut off before it is damaged
RUNS = {
    "search": (rr.search, wells(3), SEARCH, 40, 40),
    "search, cut off": (rr.search, wells(3), SEARCH, 40, 17),
    "map": (rr.explore, himmelblau(), MAP, 60, 60),
    "map, cut off": (rr.explore, himmelblau(), MAP, 60, 23),
}
TOLD = re.compile("cannot be (repaired|read|opened)|is not a run file|must be a run file")
CHANGES = (
    "UPDATE legs SET loss = loss + 1e-9 WHERE {row}",
    "UPDATE legs SET arrays = substr(arrays, 1, length(arrays) / 2) WHERE {row}",
    "UPDATE legs SET linked_to = '' WHERE {row}",
    "UPDATE legs SET is_settled = 1 - is_settled WHERE {row}",
    "DELETE FROM legs WHERE {row}",
    "UPDATE legs SET finish = replace(finish, 'loss', 'Loss') WHERE {row}",
    "UPDATE legs SET same_as = NULL, end_arrays = zeroblob(9) WHERE {row}",
    "UPDATE legs SET finish = NULL, end_arrays = NULL WHERE {row}",
    "UPDATE branches SET priority = '[7]' WHERE {row}",
    "UPDATE branches SET round = 1 WHERE {row}",
    "UPDATE branches SET round = NULL WHERE {row}",
    "DELETE FROM branches WHERE {row}",
    "UPDATE meta SET value = '3' WHERE {row}",
    "DELETE FROM meta WHERE {row}",
)


def rows(path):
    """All legs and branches of a run, in order, without the seconds they took."""
    found = {}
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.row_factory = sqlite3.Row
        for table, order in (("legs", "id"), ("branches", "fingerprint")):
            some = db.execute(f"SELECT * FROM {table} ORDER BY {order}")
            found[table] = [dict(row) for row in some]
    for row in found["legs"]:
        row["cost"] = {**json.loads(row["cost"]), "seconds": 0}
        row["finish"] = row["finish"] and {**json.loads(row["finish"]), "cost.seconds": 0}
        del row["digest"], row["id"]
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """By name, the run file to be damaged, and all that it becomes when it is resumed."""
    folder, found = tmp_path_factory.mktemp("runs"), {}
    for name, (make, problem, settings, most, cut) in RUNS.items():
        path, whole = folder / f"{name}.sqlite", folder / f"{name}, whole.sqlite"
        make(problem, out=path, max_rides=cut, **settings)
        make(problem, out=whole, max_rides=most, **settings)
        found[name] = path, rows(whole)
    return found


def damage(path, random):
    """One to four rows changed or deleted, or bytes overwritten, or the end cut off."""
    content = bytearray(path.read_bytes())
    kind = random.choice(["rows"] * 8 + ["bytes", "end"])
    if kind == "end":
        path.write_bytes(content[: random.integers(len(content))])
        return "end"
    if kind == "bytes":
        where = random.integers(len(content) - 64)
        content[where : where + 64] = random.bytes(64)
        path.write_bytes(content)
        return f"bytes at {where}"
    done = []
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        for change in random.choice(CHANGES, random.integers(1, 5)):
            table = next(word for word in change.split() if word in KEYS)
            (key,), count = KEYS[table], 1 if table == "meta" else random.integers(1, 4)
            names = sorted(name for (name,) in db.execute(f"SELECT {key} FROM {table}"))
            for name in random.choice(names, min(len(names), count), replace=False):
                db.execute(change.format(row=f"{key} = ?"), [str(name)])
                done.append(f"{change} {name}")
    return "; ".join(done)


def restored(name, made, path, random):
    """What cannot be restored of a damaged run; empty if it becomes what it was."""
    _, problem, _, most, _ = RUNS[name]
    undamaged, whole = made[name]
    shutil.copy(undamaged, path)
    what = damage(path, random)
    try:
        if check_run(path)[1]:
            repair(path)
    except ValueError as error:
        assert TOLD.search(str(error)), f"{name}: {what}: {error}"
        return str(error)
    rr.resume(path, problem, max_rides=most)
    found = rows(path)
    for table in whole:
        assert found[table] == whole[table], f"{name}: {what}: {table}"
    assert not check_run(path)[1]
    return ""


@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(400), marks=pytest.mark.long)])
def test_a_damaged_run_becomes_what_it_was(made, tmp_path, seeds):
    """Or a sentence says what it is that cannot be restored."""
    lost = [
        restored(list(RUNS)[seed % len(RUNS)], made, tmp_path / f"{seed}", random)
        for seed in seeds
        if (random := np.random.default_rng(seed))
    ]
    print(f"{len(lost)} damaged, {sum(map(bool, lost))} cannot be restored")
    assert sum(map(bool, lost)) < len(lost) / 2
