"""What is damaged in a run file, and a file without it.

Damaged legs are dropped, and all other legs are kept, also those that set out from a dropped one:
when the run is resumed, it is replayed from its start, and what is missing is ridden again.
"""

import contextlib
import math
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from ridgerider._check import one_line
from ridgerider._search.runfile import schema
from ridgerider._search.runfile.schema import DamagedRun, Row, leg_from_row
from ridgerider._search.runfile.store import (
    RunFile,
    Store,
    beside,
    entry,
    held,
    select,
    select_one,
)

MAX_MISSES = 1000  # rows that cannot be read, one after the other, until it is the end


def check_run(path: str | os.PathLike) -> tuple[int, dict[str, str]]:
    """How many legs can be read, and all that is damaged, with why.

    >>> import tempfile
    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> path = f"{tempfile.mkdtemp()}/run.sqlite"
    >>> _ = rr.search(wells(1), rr.Rider(finish=None), out=path)
    >>> check_run(path)
    (3, {})
    """
    with RunFile.open_damaged(Path(path)) as run:
        found, size, names = run.damages(), None, set[str]()
        with contextlib.suppress(ValueError):
            size = schema.num_params(run.meta)
        for row in readable_rows(run, "legs"):
            if why := wrong_with("legs", row, size):
                found[schema.row_name("legs", row)] = why
            else:
                names.add(row["fingerprint"])
    try:
        RunFile.open(path).close()
    except ValueError as error:
        found = found or {"the file": one_line(error)}
    return len(names), found


def wrong_with(table: str, row: Row, size: int | None = None) -> str:
    """Why a row is not what was written, or cannot be read; empty if all is well."""
    try:
        if row["digest"] != schema.row_digest(table, row):
            return "its digest does not fit"
        leg_from_row(row, size) if table == "legs" else schema.decode(table, row)
    except Exception as error:
        return one_line(error)
    return ""


def repair(path: str | os.PathLike) -> tuple[list[str], Path]:
    """Leave out what is damaged; which legs those were, and where the damaged file is kept."""
    path, number = Path(path), 1
    damaged = path.with_name(f"{path.name}.damaged")
    with held(path), beside(path) as new:
        kept, dropped = _kept(path)
        while damaged.exists():
            number, damaged = number + 1, path.with_name(f"{path.name}.damaged-{number + 1}")
        try:
            Store.create_from_rows(new, kept)
            for end in ("-wal", "-shm", ""):
                if Path(f"{path}{end}").exists():
                    Path(f"{path}{end}").replace(f"{damaged}{end}")
            new.replace(path)
        except (sqlite3.Error, OSError) as error:
            raise OSError(f"{one_line(path)} cannot be repaired: {one_line(error)}.") from error
    RunFile.open(path).close()
    return dropped, damaged


def _kept(path: Path) -> tuple[dict[str, list[Row]], list[str]]:
    """The rows that are what was written and can be used, and the legs that are dropped."""
    with RunFile.open_damaged(path) as run:
        rows = {table: list(readable_rows(run, table)) for table in schema.TABLES}
    meta = {}
    for row in rows["meta"]:
        with contextlib.suppress(ValueError):
            if not wrong_with("meta", row):
                meta[row["key"]] = schema.read_meta(row["key"], row["value"])
    if missing := [name for name in schema.NEEDED if name not in meta]:
        raise ValueError(
            f"{one_line(path)} cannot be repaired: `{missing[0]}`, what the run is, is damaged."
        )
    size, names = schema.num_params(meta), {str(row["fingerprint"]) for row in rows["legs"]}
    for table in ("legs", "branches", "measures"):
        rows[table] = [row for row in rows[table] if not wrong_with(table, row, size)]
    rows["meta"] = [
        entry(key, value)
        for key, value in (meta | {schema.SUM: "0", schema.REPAIRED: True}).items()
    ]
    legs = {row["fingerprint"] for row in rows["legs"]}
    if "" not in legs:
        raise ValueError(f"{one_line(path)} cannot be repaired: its start is damaged.")
    rounds = {row["fingerprint"]: row["round"] or 0 for row in rows["branches"]}
    last = max(rounds.values(), default=0)
    # Those of rounds that were over are missing as well.
    names |= {name for name, number in rounds.items() if 0 < number < last}
    return rows, sorted(names - legs)


def readable_rows(run: RunFile, table: str) -> Iterator[Row]:
    """Rows; of legs, which have numbers, also those beyond rows that cannot be read."""
    if table != "legs":
        with contextlib.suppress(sqlite3.Error):
            yield from select(run._db, table)
        return
    names = ("id", *schema.TABLES[table], "digest")
    last, after, misses = math.inf, 0, 0
    with contextlib.suppress(DamagedRun):
        last = run._number("SELECT coalesce(max(id), 0) FROM legs")
    while misses < MAX_MISSES and after < last:
        try:
            row = select_one(run._db, table, names, "WHERE id > ? ORDER BY id LIMIT 1", [after])
        except sqlite3.Error:
            misses, after = misses + 1, after + 1
            continue
        if row is None or row["id"] <= after:  # which a damaged index may find
            return
        misses, after = 0, row.pop("id")
        yield row
