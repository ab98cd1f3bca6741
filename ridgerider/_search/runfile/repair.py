"""What is damaged in a run file, and a file without it.

Damaged legs are dropped; their branches stay, or come back when the search is resumed, so that it
rides them again. All other legs are kept, also those that set out from a dropped one: ridden again
it ends at the same point.
"""

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from ridgerider._check import one_line
from ridgerider._search.runfile import rows as columns
from ridgerider._search.runfile.reader import RunReader, whole
from ridgerider._search.runfile.rows import digest
from ridgerider._search.runfile.store import (
    KEYS,
    REPAIRED,
    SUM,
    TABLES,
    Store,
    columns_of,
    connect,
    has_digests,
    held,
)

MAX_MISSES = 1000  # rows that cannot be read, one after the other, until it is the end
NEEDED = ("name", "problem", "rider", "settings", "budget")  # without these it is no run

Row = dict[str, Any]


def check_run(path: str | os.PathLike) -> tuple[int, bool, dict[str, str]]:
    """How many legs can be read, whether they have digests, and all that is damaged, with why.

    >>> import tempfile
    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> path = f"{tempfile.mkdtemp()}/run.sqlite"
    >>> _ = rr.search(wells(1), rr.Rider(finish=None), out=path)
    >>> check_run(path)
    (3, True, {})
    """
    reader = RunReader(Path(path))
    legs = reader.read()
    found = dict(reader.unreadable)
    with contextlib.suppress(ValueError):
        for name, why in _unusable(path).items():
            found.setdefault(columns.leg_name(name), why)
    try:
        Store.open(path).close()
    except ValueError as error:
        found = found or {"the file": one_line(error)}
    return len(legs), reader.has_digests, found


def _unusable(path: str | os.PathLike) -> dict[str, str]:
    """The legs that cannot be read although their digests fit, with why."""
    found = {}
    with closing(Store.open(path)) as store:
        for name in store.fingerprints():
            try:
                store.leg(name)
            except ValueError as error:
                found[str(name)] = one_line(error)
    return found


def repair(path: str | os.PathLike) -> tuple[list[str], Path]:
    """Leave out what is damaged; which legs those were, and where the damaged file is kept."""
    path = Path(path)
    with held(path):
        return _repair(path)


def _repair(path: Path) -> tuple[list[str], Path]:
    RunReader(path).read()  # raises if it is no run file at all
    with whole(path) as readable, closing(connect(readable, write=False)) as old:
        try:
            tables = [table for table in KEYS if table in TABLES or columns_of(old, table)]
            kept = {table: list(_good_rows(old, table)) for table in tables}
            dropped = _dropped(path, old, kept)
        except sqlite3.Error as error:
            raise ValueError(f"{one_line(path)} cannot be repaired: {one_line(error)}.") from error
    new, damaged = path.with_name(f".{path.name}.{os.getpid()}.new"), _free(path)
    try:
        Store.of_rows(new, _unsigned(kept))
        if bad := _unusable(new):
            new.unlink()
            _leave_out(path, kept, set(bad))
            Store.of_rows(new, _unsigned(kept))
            dropped = sorted({*dropped, *bad})
        for end in ("-wal", "-shm", ""):
            if Path(f"{path}{end}").exists():
                Path(f"{path}{end}").replace(f"{damaged}{end}")
        new.replace(path)
    except (sqlite3.Error, OSError) as error:
        raise OSError(f"{one_line(path)} cannot be repaired: {one_line(error)}.") from error
    finally:
        for end in ("", "-journal", "-wal", "-shm"):
            Path(f"{new}{end}").unlink(missing_ok=True)
    with closing(Store.open(path)):
        return dropped, damaged


def _good_rows(old: sqlite3.Connection, table: str) -> Iterator[Row]:
    """The rows that are what was written; those of files without digests that can be read."""
    for row in _readable_rows(old, table):
        signed = row.get("digest")
        if table == "legs" or signed is None or signed == digest(table, row):
            yield row


def _readable_rows(old: sqlite3.Connection, table: str) -> Iterator[Row]:
    """Row by row; in tables whose rows are numbered, beyond those that cannot be read."""
    if table not in ("legs", "solutions"):
        with contextlib.suppress(sqlite3.Error):
            cursor = old.execute(f"SELECT * FROM {table}")
            yield from (_row(cursor, found) for found in cursor)
        return
    last, misses = 0, 0
    while misses < MAX_MISSES:
        try:
            query = f"SELECT rowid, * FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT 1"
            cursor = old.execute(query, [last])
            found = cursor.fetchone()
        except sqlite3.Error:
            misses, last = misses + 1, last + 1
            continue
        if found is None:
            return
        misses, last = 0, found[0]
        yield _row(cursor, found, first=1)


def _row(cursor: sqlite3.Cursor, found: tuple, first: int = 0) -> Row:
    names = [about[0] for about in cursor.description]
    return dict(zip(names[first:], found[first:], strict=True))


def _dropped(path: Path, old: sqlite3.Connection, kept: dict[str, list[Row]]) -> list[str]:
    """Take out the legs that are damaged, or whose solution is; raise if nothing can be done."""
    known = {row["key"] for row in kept["meta"] if _is_entry(row)}
    kept["meta"] = [row for row in kept["meta"] if row["key"] in known and row["key"] != SUM]
    missing = [name for name in NEEDED if name not in known]
    if missing:
        raise ValueError(
            f"{one_line(path)} cannot be repaired: `{missing[0]}`, what the run is, is damaged."
        )
    ends = {row["fingerprint"]: row for row in kept["solutions"]}
    is_signed, good, dropped = has_digests(old), list[Row](), list[str]()
    for row in kept["legs"]:
        end = ends.get(row["fingerprint"])
        solution = end and end.get("digest")
        is_good = not is_signed or row["digest"] == digest("legs", {**row, "solution": solution})
        if is_good and _is_leg(row):
            good.append(row)
        else:
            dropped.append(str(row["fingerprint"]))
    names = {row["fingerprint"] for row in good}
    kept["legs"], kept["solutions"] = good, list(ends.values())
    _leave_out(path, kept, set())
    lost = {row["fingerprint"] for row in kept["branches"] if row["round"] is not None} - names
    return sorted({*dropped, *(name for name in lost if _was_settled(name, kept))})


def _leave_out(path: Path, kept: dict[str, list[Row]], names: set[str]) -> None:
    """Legs of these names, and what belongs to no leg."""
    kept["legs"] = [row for row in kept["legs"] if row["fingerprint"] not in names]
    left = {row["fingerprint"] for row in kept["legs"]}
    if "" not in left:
        raise ValueError(f"{one_line(path)} cannot be repaired: its start is damaged.")
    kept["solutions"] = [row for row in kept["solutions"] if row["fingerprint"] in left]
    kept["branches"] = [row for row in kept["branches"] if _is_branch(row, left)]


def _is_entry(row: Row) -> bool:
    with contextlib.suppress(ValueError):
        columns.meta(row["key"], row["value"])
        return True
    return False


def _is_leg(row: Row) -> bool:
    with contextlib.suppress(*columns.BAD):
        columns.address(row["fingerprint"])
        columns.arrays(row["arrays"]), columns.arrays(row["trace"])
        return True
    return False


def _is_branch(row: Row, legs: set[str]) -> bool:
    """One that waits below a leg that was dropped comes back with it."""
    with contextlib.suppress(*columns.BAD):
        columns.address(row["fingerprint"]), columns.priority(row["priority"])
        if row["round"] is not None:
            columns.whole(row["round"])
        return row["parent"] in legs or row["fingerprint"] in legs
    return False


def _was_settled(name: str, kept: dict[str, list[Row]]) -> bool:
    settled = [json.loads(row["value"]) for row in kept["meta"] if row["key"] == "settled"]
    rounds = {row["fingerprint"]: row["round"] for row in kept["branches"]}
    return bool(settled) and rounds[name] <= settled[0]


def _unsigned(kept: dict[str, list[Row]]) -> dict[str, list[Row]]:
    rows = {**kept, "meta": [*kept["meta"], {"key": REPAIRED, "value": "true"}]}
    return {
        table: [{name: row[name] for name in row if name != "digest"} for row in rows[table]]
        for table in rows
    }


def _free(path: Path) -> Path:
    """A name for the damaged file that is not taken."""
    number, name = 1, path.with_name(f"{path.name}.damaged")
    while name.exists():
        number, name = number + 1, path.with_name(f"{path.name}.damaged-{number + 1}")
    return name
