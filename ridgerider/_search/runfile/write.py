"""Writing a run file.

A leg, its solution and its children are one transaction: after any crash the file holds whole legs
only. Branches chosen together are marked with their round before any of them is ridden, so that a
resumed search finishes the round first and continues to the same tree.

`check_run` says what is damaged, and `repair` writes a file without it. Damaged legs are dropped,
and all other legs are kept, also those that set out from a dropped one: when the run is resumed, it
is replayed from its start, and what is missing is ridden again.
"""

import contextlib
import json
import os
import platform
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ridgerider._check import one_line
from ridgerider._search.runfile import schema
from ridgerider._search.runfile.read import (
    RunFile,
    beside,
    check_new,
    connect_new,
    held,
    move,
    select,
    select_one,
    sum_of_digests,
)
from ridgerider._search.runfile.schema import Row, branch_to_row, checked_leg, leg_to_rows
from ridgerider._search.tree import Branch, Fingerprint, Leg


class Store(RunFile):
    """A run file that is written, or the same tables in memory."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None):
        super().__init__(connection, path)
        self._change_of_sum = 0

    @staticmethod
    def create(
        path: str | os.PathLike | None, meta: dict[str, Any], root: Leg, children: Iterable[Branch]
    ) -> "Store":
        """A new run with its start, all or nothing; `None` keeps it in memory."""
        row, end = leg_to_rows(replace(root, is_settled=True))
        entries = {schema.SUM: "0", **meta, "versions": versions()}
        rows = {
            "meta": [_entry(key, value) for key, value in entries.items()],
            "solutions": [] if end is None else [end],
            "legs": [row],
            "branches": [branch_to_row(branch) for branch in children],
        }
        if path is None:
            store = Store(connect_new(":memory:"), None)
            store._fill(rows)
            return store
        path = Path(path)
        check_new(path)
        # Made beside its place and moved there whole: a kill leaves no incomplete file.
        with beside(path) as new:
            try:
                Store.create_from_rows(new, rows)
                move(new, path)
            except (sqlite3.Error, OSError) as error:
                reason = one_line(error.__cause__ or error)
                raise OSError(f"`out` cannot be written at {one_line(path)}: {reason}.") from error
        return Store.open(path, write=True)

    @staticmethod
    def create_from_rows(path: Path, rows: dict[str, list[Row]]) -> None:
        """A new file that holds these rows, by table; solutions come before their legs."""
        with contextlib.closing(Store(connect_new(path), path)) as store:
            store._fill(rows)
            store._db.execute("PRAGMA journal_mode = WAL")

    def _fill(self, rows: dict[str, list[Row]]) -> None:
        with self.closed_on_error(), self._transaction():
            for table in schema.TABLES:
                self._db.execute(schema.create_table(table))
            self._db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
            self._db.execute(f"PRAGMA user_version = {schema.FORMAT}")
            for table, some in rows.items():
                for row in some:
                    self._insert(table, row)

    # --- what a search writes

    def add(self, leg: Leg) -> None:
        """Store a leg that has arrived and is not settled yet."""
        with self._transaction():
            self._add(replace(leg, is_settled=False), ())

    def settle(self, leg: Leg, children: Iterable[Branch]) -> list[Branch]:
        """Store a settled leg, its solution and its children, all or nothing.

        Returns the children that were not there.
        """
        with self._transaction():
            for table in ("solutions", "legs"):
                self._remove(table, "fingerprint = ?", str(leg.fingerprint))
            return self._add(replace(leg, is_settled=True), children)

    def reset_branches(self, branches: Iterable[Branch]) -> None:
        """Replace all branches by those that leave the start."""
        with self._transaction():
            self._remove("branches", "TRUE")
            for branch in branches:
                self._insert("branches", branch_to_row(branch))

    def choose(self, branches: Iterable[Branch]) -> dict[Fingerprint, int]:
        """Mark the branches of the next round, which are about to be ridden; returns its number."""
        round_number = self.num_rounds() + 1
        with self._transaction():
            for branch in branches:
                if branch.fingerprint[-1].start:
                    self._insert("branches", branch_to_row(branch))
                self._change("branches", str(branch.fingerprint), round=round_number)
        return {branch.fingerprint: round_number for branch in branches}

    def set_meta(self, key: str, value: Any) -> None:
        with self._transaction():
            self._replace("meta", _entry(key, value))

    def set_measures(
        self,
        about: dict[str, Any] | None,
        values: dict[tuple[str, str], Any],
        *,
        forget: Iterable[str] = (),
    ) -> None:
        """Store what was measured of solutions, and `forget` what other functions of a name did."""
        with self._transaction():
            for name in forget:
                self._remove("measures", "name = ?", name)
            if about is not None:
                self._replace("meta", _entry("measures", about))
            for (fingerprint, name), value in values.items():
                row = {"fingerprint": fingerprint, "name": name, "value": json.dumps(value)}
                self._replace("measures", row)

    def checkpoint(self) -> None:
        """Move everything into the one file, so that it can be copied."""
        # Where a reader is in the way, SQLite does it later.
        with contextlib.suppress(sqlite3.OperationalError):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # --- rows, with their digests

    def _add(self, leg: Leg, children: Iterable[Branch]) -> list[Branch]:
        row, end = leg_to_rows(leg)
        if end is not None:
            self._insert("solutions", end)
        if not self._insert("legs", row):
            return []
        return [branch for branch in children if self._insert("branches", branch_to_row(branch))]

    def _insert(self, table: str, row: Row) -> bool:
        """Whether it was new."""
        row = {**row, "digest": self._digest(table, row)}
        names, values = ", ".join(f"[{name}]" for name in row), ", ".join("?" * len(row))
        insert = f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({values})"
        is_new = bool(self._db.execute(insert, tuple(row.values())).rowcount)
        if is_new and row.get("key") != schema.SUM:
            self._toggle(row["digest"])
        return is_new

    def _digest(self, table: str, row: Row) -> bytes:
        """Of a row; for a leg, whose solution is there already, that of the solution is in it."""
        end = None
        if table == "legs":
            where = "WHERE fingerprint = ?"
            end = select_one(self._db, "solutions", ("digest",), where, [row["fingerprint"]])
        return schema.row_digest(table, row, None if end is None else end["digest"])

    def _replace(self, table: str, row: Row) -> None:
        """Insert a row in place of the one with its key."""
        keys = schema.KEYS[table]
        self._remove(table, " AND ".join(f"{key} = ?" for key in keys), *(row[key] for key in keys))
        self._insert(table, row)

    def _change(self, table: str, key: str, **values: Any) -> None:
        """Change columns of one row, and its digest with them."""
        names = tuple(schema.TABLES[table])
        row = select_one(self._db, table, names, f"WHERE {schema.KEYS[table][0]} = ?", [key])
        if row is not None:
            self._replace(table, row | values)

    def _remove(self, table: str, where: str, *values: str) -> None:
        rows = select(self._db, table, ("digest",), f"WHERE {where}", values)
        self._toggle(*(row["digest"] for row in rows))
        self._db.execute(f"DELETE FROM {table} WHERE {where}", values)

    def _toggle(self, *digests: bytes | None) -> None:
        """Add to the sum, or take from it: without carry that is the same."""
        for one in digests:
            self._change_of_sum ^= int.from_bytes(one or b"")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._change_of_sum = 0
                yield
                row = _entry(schema.SUM, f"{sum_of_digests(self._db) ^ self._change_of_sum:x}")
                update = "UPDATE meta SET value = ?, digest = ? WHERE key = ?"
                self._db.execute(update, (row["value"], schema.row_digest("meta", row), schema.SUM))
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise OSError(
                f"{one_line(self.path)} cannot be written: {one_line(error)}. What was stored "
                "before is safe."
            ) from error


def _entry(key: str, value: Any) -> Row:
    return {"key": key, "value": json.dumps(value)}


def versions() -> dict[str, str]:
    """Of the software that a run was made with."""
    packages = {
        name: version(name) for name in ("ridgerider", "jax", "jaxlib", "numpy", "equinox", "optax")
    }
    return {**packages, "python": platform.python_version(), "machine": platform.machine()}


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
                where = (), "WHERE fingerprint = ?", [name]
                checked_leg(row, select_one(run._db, "solutions", *where), size)
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
    rows["meta"] = [_entry(key, value) for key, value in meta.items()]
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
