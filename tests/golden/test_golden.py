"""Golden runs give what they gave when `golden.json` was written; see `runs.py`."""

import json

import pytest

from tests.golden import runs
from tests.golden.compare import match

SLOW = ("lj8",)
NAMES = [pytest.param(name, marks=pytest.mark.long if name in SLOW else ()) for name in runs.RUNS]
GOLDEN = json.loads(runs.FILE.read_text())


def test_every_run_is_in_the_file():
    assert GOLDEN.keys() == runs.RUNS.keys()


@pytest.mark.parametrize("name", NAMES)
def test_a_run_gives_what_it_gave(name):
    if not runs.is_possible(name):
        pytest.skip(f"{runs.NEEDS[name]} is not installed")
    found, wanted = runs.outcome(name), GOLDEN[name]
    assert found.keys() == wanted.keys()
    for table in wanted:
        missing, new = match(found[table], wanted[table])
        if name in runs.PARTIAL:
            new = []
        assert not missing and not new, f"{table}: lost {missing}, new {new}"


def test_a_difference_is_seen():
    rows = GOLDEN["camel"]["points"]
    assert match(rows[::-1], rows) == ([], [])
    assert match(rows[1:], rows) == ([rows[0]], [])
    assert match([*rows, rows[0]], rows) == ([], [rows[0]])
    higher = {**rows[0], "loss": rows[0]["loss"] + 1e-5}
    assert match([higher, *rows[1:]], rows) == ([rows[0]], [higher])
