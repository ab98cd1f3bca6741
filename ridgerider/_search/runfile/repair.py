"""What is damaged in a run file, and a file without it.

Damaged legs are dropped, and all other legs are kept, also those that set out from a dropped one:
when the run is resumed, it is replayed from its start, and what is missing is ridden again.
"""

import contextlib
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from ridgerider._check import one_line
from ridgerider._search.runfile import schema
from ridgerider._search.runfile.files import beside, held
from ridgerider._search.runfile.read import RunFile
from ridgerider._search.runfile.rows import checked_leg
from ridgerider._search.runfile.schema import Row
from ridgerider._search.runfile.write import Store


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
        for row in run.readable_rows("legs"):
            name = row["fingerprint"]
            try:
                checked_leg(row, run.rows(name)[1], size)
                names.add(name)
            except Exception as error:
                found[schema.row_name("legs", row)] = one_line(error)
    try:
        RunFile.open(path).close()
    except ValueError as error:
        found = found or {"the file": one_line(error)}
    return len(names), found


def repair(path: str | os.PathLike) -> tuple[list[str], Path]:
    """Leave out what is damaged; which legs those were, and where the damaged file is kept."""
    path = Path(path)
    with held(path), beside(path) as new:
        kept, dropped = _kept(path)
        damaged = _free(path)
        try:
            Store.create_from_rows(new, kept)
            for end in ("-wal", "-shm", ""):
                if Path(f"{path}{end}").exists():
                    Path(f"{path}{end}").replace(f"{damaged}{end}")
            new.replace(path)
        except (sqlite3.Error, OSError) as error:
            raise OSError(f"{one_line(path)} cannot be repaired: {one_line(error)}.") from error
    with closing(RunFile.open(path)):
        return dropped, damaged


def _kept(path: Path) -> tuple[dict[str, list[Row]], list[str]]:
    """The rows that are what was written and can be used, and the legs that are dropped."""
    with RunFile.open_damaged(path) as run:
        rows = {table: list(run.readable_rows(table)) for table in schema.TABLES}
    for table in schema.TABLES.keys() - {"legs"}:
        rows[table] = [row for row in rows[table] if _is_good(table, row)]
    meta = {}
    for row in rows["meta"]:
        with contextlib.suppress(ValueError):
            meta[row["key"]] = schema.read_meta(row["key"], row["value"])
    if missing := [name for name in schema.NEEDED if name not in meta]:
        raise ValueError(
            f"{one_line(path)} cannot be repaired: `{missing[0]}`, what the run is, is damaged."
        )
    meta |= {schema.SUM: "0", schema.REPAIRED: True}
    rows["meta"] = [{"key": key, "value": json.dumps(value)} for key, value in meta.items()]
    ends, legs = {row["fingerprint"]: row for row in rows["solutions"]}, dict[str, Row]()
    for row in rows["legs"]:
        with contextlib.suppress(Exception):
            checked_leg(row, ends.get(row["fingerprint"]), schema.num_params(meta))
            legs[row["fingerprint"]] = row
    if "" not in legs:
        raise ValueError(f"{one_line(path)} cannot be repaired: its start is damaged.")
    dropped = {str(row["fingerprint"]) for row in rows["legs"]} - legs.keys()
    rounds = [row["round"] for row in rows["branches"] if row["round"] is not None]
    for row in rows["branches"]:  # of rounds that were over
        if row["round"] is not None and row["round"] < max(rounds):
            dropped |= {row["fingerprint"]} - legs.keys()
    rows["legs"] = list(legs.values())
    rows["solutions"] = [row for name, row in ends.items() if name in legs]
    return rows, sorted(dropped)


def _is_good(table: str, row: Row) -> bool:
    """Whether a row is what was written, and can be read."""
    with contextlib.suppress(Exception):
        schema.decode(table, row)
        return row["digest"] == schema.row_digest(table, row)
    return False


def _free(path: Path) -> Path:
    """A name for the damaged file that is not taken."""
    number, name = 1, path.with_name(f"{path.name}.damaged")
    while name.exists():
        number, name = number + 1, path.with_name(f"{path.name}.damaged-{number + 1}")
    return name
