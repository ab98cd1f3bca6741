"""Reading what there is of a run file: of a growing one what is new, of a damaged one what is left.

Only the file is read, never a process.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ridgerider._check import one_line
from ridgerider._search.runfile import schema
from ridgerider._search.runfile.files import connect, padded
from ridgerider._search.runfile.read import (
    RunFile,
    check_format,
    damages,
    last_row,
    select,
    select_one,
)
from ridgerider._search.runfile.rows import leg_from_rows
from ridgerider._search.runfile.schema import BAD, Damage, Row
from ridgerider._search.tree.tree import Fingerprint, Leg

MAX_MISSES = 1000  # rows that cannot be read, one after the other, until it is the end

T = TypeVar("T")


class AnotherRun(Exception):
    """The file holds another run than before."""


@dataclass
class PartialRun:
    """The legs of a run, as far as they can be read; `unreadable` says of what is missing why.

    >>> import tempfile
    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> path = f"{tempfile.mkdtemp()}/run.sqlite"
    >>> _ = rr.search(wells(1), rr.Rider(finish=None), out=path)
    >>> run = PartialRun(Path(path))
    >>> [str(leg.fingerprint) for leg in run.read()], run.read()
    (['', '0+', '0-'], [])
    """

    path: Path
    meta: dict[str, Any] = field(default_factory=dict)
    num_legs: int | None = None  # that the file should hold
    num_open: int = 0
    measures: dict[str, dict[str, Any]] = field(default_factory=dict)  # by name and fingerprint
    unreadable: dict[str, str] = field(default_factory=dict)
    _legs_unreadable: dict[str, str] = field(default_factory=dict)
    _last: int = 0
    _begun: list[Row | None] = field(default_factory=lambda: [None])  # what tells it from others
    _damages: dict[str, str] | None = None
    _size: int | None = None  # of the parameters

    def read(self) -> list[Leg]:
        """Read what is new, and return the legs among it, without the directions of their ridges.

        Raises ValueError if it is no run file, and `AnotherRun` if one has taken its place.
        """
        with self._opened() as db:
            self._check_same(db)
            self.unreadable = {}  # but for legs, which are read once, it is tried again
            if self._damages is None:  # once, and then row by row
                self._damages = damages(db)
            for what, why in self._damages.items():
                if what != "the start" and not what.startswith("leg "):
                    self.unreadable[what] = why
            self.meta |= self._read_meta(db)
            if "problem" in self.meta:
                self._size = schema.num_params(self.meta)
            legs = list(self._new_legs(db))
            run = RunFile(db, self.path)
            self.num_legs = self._tried("the number of legs", last_row, db, "legs")
            self.num_open = self._tried("the open branches", run.num_open) or 0
            self.measures = self._tried("what was measured", run.measures) or {}
            self.unreadable = {**self._legs_unreadable, **self.unreadable}
        return legs

    def ends(self, fingerprints: Iterable[Fingerprint]) -> dict[Fingerprint, np.ndarray]:
        """The points at which the descents of these legs ended, or else the rides themselves."""
        found = {}
        with self._opened() as db:
            for name in fingerprints:
                leg = self._tried(f"leg {name}", self._leg, db, str(name))
                if leg is not None:
                    found[name] = leg.x if leg.finish is None else np.asarray(leg.finish.x)
        return found

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        name = one_line(self.path)
        if not self.path.is_file():
            raise ValueError(f"`run` must be a run file, but there is none at {name}.")
        if not self.path.stat().st_size:
            raise ValueError(f"{name} is empty: there is nothing to read in it.")
        with padded(self.path) as path, closing(connect(path, write=False)) as db:
            try:
                check_format(db, self.path)
            except (sqlite3.Error, Damage) as error:
                raise ValueError(
                    f"{name} cannot be read as a run file: {one_line(error)}."
                ) from error
            yield db

    def _check_same(self, db: sqlite3.Connection) -> None:
        # To evaluate the start takes other seconds each time.
        start = self._tried("its beginning", select_one, db, "legs", ("digest",), "WHERE id = 1")
        name = self._tried("its name", select_one, db, "meta", ("value",), "WHERE key = 'name'")
        found = [start, name]
        if None not in self._begun and None not in found and found != self._begun:
            raise AnotherRun(str(self.path))
        self._begun = found

    def _read_meta(self, db: sqlite3.Connection) -> dict[str, Any]:
        rows = self._tried("the description of the run", lambda: list(select(db, "meta"))) or []
        found = {
            str(row["key"]): self._tried(
                schema.row_name("meta", row), schema.read_meta, row["key"], row["value"]
            )
            for row in rows
            if row["key"] != schema.SUM
        }
        return {key: value for key, value in found.items() if value is not None}

    def _new_legs(self, db: sqlite3.Connection) -> Iterator[Leg]:
        missing = self._legs_unreadable
        for number, row in readable_rows(db, "legs", self._last, missing):
            self._last = number
            name = row["fingerprint"]
            name = schema.row_name("legs", row) if isinstance(name, str) else f"leg number {number}"
            try:
                leg = self._leg(db, row["fingerprint"], row)
            except (sqlite3.Error, *BAD) as error:
                missing[name] = one_line(error)
                continue
            self._size = leg.x.size if self._size is None else self._size
            below = leg.below and replace(leg.below, directions=leg.below.directions[:, :0])
            yield replace(leg, directions=leg.directions[:, :0], below=below)

    def _leg(self, db: sqlite3.Connection, name: str, row: Row | None = None) -> Leg:
        where = (), "WHERE fingerprint = ?", [name]
        row = select_one(db, "legs", *where) if row is None else row
        return checked_leg(row or {}, select_one(db, "solutions", *where), self._size)

    def _tried(self, what: str, read: Callable[..., T], *args: Any) -> T | None:
        """What `read` returns, or None and a note that it could not be read."""
        try:
            return read(*args)
        except (sqlite3.Error, *BAD) as error:
            self.unreadable[what] = one_line(error)
            return None


def checked_leg(row: Row, end: Row | None, size: int | None) -> Leg:
    """A leg whose digest and that of its solution fit."""
    solution = None if end is None else schema.row_digest("solutions", end)
    is_right = end is None or end["digest"] == solution
    if not is_right or row["digest"] != schema.row_digest("legs", row, solution):
        raise Damage(schema.row_name("legs", row), "digest", "it does not fit")
    return leg_from_rows(row, end, size)


def readable_rows(
    db: sqlite3.Connection, table: str, after: int = 0, missing: dict[str, str] | None = None
) -> Iterator[tuple[int, Row]]:
    """Rows with their numbers, also those beyond rows that cannot be read, which go to `missing`.

    Where rows have no numbers, those before the first that cannot be read.
    """
    if table not in schema.NUMBERED:
        with contextlib.suppress(sqlite3.Error):
            yield from enumerate(select(db, table))
        return
    names = ("rowid", *schema.TABLES[table], "digest")
    where = "WHERE rowid > ? ORDER BY rowid LIMIT 1"
    last, misses = None, 0
    with contextlib.suppress(sqlite3.Error):
        last = last_row(db, table)
    while misses < MAX_MISSES and (last is None or after < last):
        try:
            row = select_one(db, table, names, where, [after])
        except sqlite3.Error as error:
            misses, after = misses + 1, after + 1
            if missing is not None:
                missing[f"leg number {after}"] = one_line(error)
            continue
        if row is None:
            return
        misses, after = 0, row.pop("rowid")
        yield after, row
