"""What can be read of a run file, row by row: of a damaged file what is left of it.

A `RunReader` reads the file only, never a process, and only the rows that it does not have yet: a
run that is still growing is read again and again. It looks columns up by name, so that it can read
what it knows of a file from a newer version.
"""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ridgerider._check import one_line
from ridgerider._core.descend.finish import Finish
from ridgerider._core.problem.cost import Cost
from ridgerider._core.spectra.spectrum import Cluster
from ridgerider._search.runfile import rows as columns
from ridgerider._search.runfile.rows import BAD, Damage, digest, leg_name, reading
from ridgerider._search.runfile.store import (
    APPLICATION_ID,
    SUM,
    VERSION,
    check_tables,
    columns_of,
    connect,
    damages,
    finish_columns,
    has_digests,
    read_finish,
    read_measures,
)
from ridgerider._search.tree.tree import Fingerprint, Turn, Way

LEG_COLUMNS = "id, fingerprint, loss, num_steps, ended_by, num_ridges, clusters, turns, cost, trace"
BLOCK = 256  # rows read at once, and how many missing ones in a row end a damaged table

Row = tuple[Any, ...]
T = TypeVar("T")


class AnotherRun(Exception):
    """The file holds another run than before."""


@dataclass(frozen=True)
class LegRow:
    """A leg without its points and directions."""

    fingerprint: Fingerprint
    loss: float
    num_steps: int
    ended_by: tuple[str, ...]
    num_ridges: int
    num_branches: int
    clusters: tuple[Cluster, ...]
    cost: Cost
    trace: dict[str, np.ndarray]
    finish: Finish | None
    same_as: Fingerprint | None = None
    linked_to: str | None = None
    ways: dict[str, Way] = field(default_factory=dict)  # by turn; only of repeated eigenvalues


@dataclass
class RunReader:
    """The legs of a run, as far as they can be read; `unreadable` says of what is missing why.

    >>> import tempfile
    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> path = f"{tempfile.mkdtemp()}/run.sqlite"
    >>> _ = rr.search(wells(1), rr.Rider(finish=None), out=path)
    >>> reader = RunReader(Path(path))
    >>> [str(leg.fingerprint) for leg in reader.read()], reader.read()
    (['', '0+', '0-'], [])
    """

    path: Path
    meta: dict[str, Any] = field(default_factory=dict)
    num_legs: int | None = None  # that the file should hold
    num_open: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)
    version: int = VERSION
    measures: dict[str, dict[str, Any]] = field(default_factory=dict)  # by name and fingerprint
    has_digests: bool = True
    _last: int = 0
    _begun: Row | None = None
    _damages: dict[str, str] | None = None

    def read(self) -> list[LegRow]:
        """Read what is new, and return the legs among it.

        Raises ValueError if it is no run file, and `AnotherRun` if one has taken its place.
        """
        if not self.path.is_file():
            raise ValueError(
                f"`run` must be a run file, but there is none at {one_line(self.path)}."
            )
        if not self.path.stat().st_size:
            raise ValueError(f"{one_line(self.path)} is empty: there is nothing to read in it.")
        with whole(self.path) as path, closing(connect(path, write=False)) as connection:
            self._check_kind(connection)
            self._check_same(connection)
            self.has_digests = bool(self._tried("its tables", lambda: has_digests(connection)))
            # Legs are read once; what else could not be read is tried again.
            self.unreadable = {
                what: why
                for what, why in self.unreadable.items()
                if what.startswith("leg ") or what == "the start"
            }
            if self._damages is None:  # once, and then row by row
                self._damages = damages(connection)
            self.unreadable |= {
                what: why
                for what, why in self._damages.items()
                if not what.startswith("leg ") and what != "the start"
            }
            self.meta = {**self.meta, **self._read_meta(connection)}
            self.num_legs = self._tried(
                "the number of legs",
                lambda: connection.execute("SELECT coalesce(max(id), 0) FROM legs").fetchone()[0],
            )
            legs = [self._leg(connection, row) for row in self._rows(connection)]
            self.num_open = self._count_open(connection)
            found = self._tried("what was measured", lambda: read_measures(connection))
            self.measures = found or {}
        return [leg for leg in legs if leg is not None]

    def ends(self, fingerprints: Iterable[Fingerprint]) -> dict[Fingerprint, np.ndarray]:
        """The points at which the descents of these legs ended, or else the rides themselves."""
        query = (
            "SELECT coalesce(s.arrays, l.arrays) FROM legs l LEFT JOIN solutions s"
            " USING (fingerprint) WHERE fingerprint = ?"
        )
        found = {}
        with whole(self.path) as path, closing(connect(path, write=False)) as connection:
            for name in fingerprints:
                point = self._tried(
                    f"leg {name}",
                    lambda name=name: columns.arrays(  # type: ignore[misc]
                        connection.execute(query, [str(name)]).fetchone()[0]
                    ),
                )
                if point is not None:
                    found[name] = point["x"]
        return found

    def _check_kind(self, connection: sqlite3.Connection) -> None:
        try:
            kind, version = (
                connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("application_id", "user_version")
            )
            check_tables(connection)
        except (sqlite3.Error, Damage) as error:
            raise ValueError(
                f"{one_line(self.path)} cannot be read as a run file: {one_line(error)}."
            ) from error
        if kind != APPLICATION_ID:
            raise ValueError(f"{one_line(self.path)} is not a run file of ridgerider.")
        self.version = version

    def _check_same(self, connection: sqlite3.Connection) -> None:
        query = "SELECT value, cost FROM meta, legs WHERE key = 'name' AND id = 1"
        # To look at the start takes other seconds each time.
        found = self._tried("its beginning", lambda: connection.execute(query).fetchone())
        if self._begun is not None and found not in (None, self._begun):
            raise AnotherRun(str(self.path))
        self._begun = found

    def _read_meta(self, connection: sqlite3.Connection) -> dict[str, Any]:
        def rows() -> list[Row]:
            return connection.execute("SELECT key, value FROM meta").fetchall()

        found = {
            str(key): self._tried(
                f"the entry {one_line(key)} of the run", partial(columns.meta, key, value)
            )
            for key, value in self._tried("the description of the run", rows) or []
            if key != SUM
        }
        return {key: value for key, value in found.items() if value is not None}

    def _rows(self, connection: sqlite3.Connection) -> Iterator[Row]:
        """The new rows of legs, block by block; one by one where a block cannot be read."""
        query = f"SELECT {LEG_COLUMNS} FROM legs WHERE id > ? AND id <= ? ORDER BY id"
        first, missing, last = self._last, 0, self.num_legs
        while missing < BLOCK and (last is None or first < last):
            try:
                block = connection.execute(query, (first, first + BLOCK)).fetchall()
            except sqlite3.Error:
                block = list(self._one_by_one(connection, query, first))
            self._last = max([self._last, *(row[0] for row in block)])
            missing = 0 if block else missing + BLOCK
            first += BLOCK
            yield from block

    def _one_by_one(self, connection: sqlite3.Connection, query: str, first: int) -> Iterator[Row]:
        end = first + BLOCK if self.num_legs is None else min(first + BLOCK, self.num_legs)
        for row in range(first, end):
            try:
                yield from connection.execute(query, (row, row + 1)).fetchall()
            except sqlite3.Error as error:
                self.unreadable[f"leg number {row + 1}"] = one_line(error)

    def _count_open(self, connection: sqlite3.Connection) -> int:
        query = (
            "SELECT count(*) FROM branches b LEFT JOIN legs l USING (fingerprint)"
            " WHERE l.id IS NULL"
        )
        found = self._tried("the open branches", lambda: connection.execute(query).fetchone()[0])
        return self.num_open if found is None else found

    def _leg(self, connection: sqlite3.Connection, row: Row) -> LegRow | None:
        number, text, loss, num_steps, ended_by, num_ridges, clusters, turns, cost, trace = row
        name = leg_name(text) if isinstance(text, str) else f"leg number {number}"
        of: dict[str, Callable[[], Any]] = {
            "digest": lambda: self._check_digest(connection, number),
            "fingerprint": lambda: columns.address(text),
            "loss": lambda: columns.real(loss),
            "num_steps": lambda: columns.whole(num_steps),
            "ended_by": lambda: columns.texts(ended_by),
            "num_ridges": lambda: columns.whole(num_ridges),
            "num_branches": lambda: 2 * len(columns.turns(columns.parsed(turns, list))),
            "clusters": lambda: columns.clusters(columns.parsed(clusters, list)),
            "cost": lambda: columns.cost(cost),
            "trace": lambda: _shown_trace(trace),
            "finish": lambda: self._finish(connection, text, name),
            "same_as": lambda: self._same_as(connection, text),
        }

        def read() -> LegRow:
            values: dict[str, Any] = {}
            for column, get in of.items():
                with reading(name, column):
                    values[column] = get()
            del values["digest"]
            with reading(name, "ways"):
                values |= self._branching(connection, text, turns)
            return LegRow(**values)

        return self._tried(name, read)

    def _check_digest(self, connection: sqlite3.Connection, number: int) -> None:
        """Raise unless a leg and its solution are what was written."""
        if not has_digests(connection):
            return
        row = _row(connection, "legs", "id", number)
        end = _row(connection, "solutions", "fingerprint", row["fingerprint"])
        signed = digest("solutions", end) if end else None
        if end.get("digest") != signed or row["digest"] != digest(
            "legs", {**row, "solution": signed}
        ):
            raise ValueError("it does not fit")

    def _finish(self, connection: sqlite3.Connection, text: str, name: str) -> Finish | None:
        query = f"SELECT {finish_columns(connection)} FROM solutions s WHERE fingerprint = ?"
        row = connection.execute(query, [text]).fetchone()
        return None if row is None else read_finish(row, name)

    def _branching(self, connection: sqlite3.Connection, text: str, turns: Any) -> dict[str, Any]:
        if "ways" not in columns_of(connection, "legs"):
            return {}
        query = "SELECT ways, below, linked_to FROM legs WHERE fingerprint = ?"
        ways, below, linked_to = connection.execute(query, [text]).fetchone()
        places = [(False, columns.parsed(turns, list), columns.parsed(ways or "[]", list))]
        if below is not None:
            data = columns.parsed(below, dict)
            places.append((True, data["turns"], data["ways"]))
        found = {
            str(Turn(index, sign, member, is_below)): way
            for is_below, taken, of in places
            for (index, member), way in zip(columns.turns(taken), columns.ways(of), strict=False)
            for sign in (1, -1)
            if way.class_size > 1 or way.order != 1
        }
        return {
            "ways": found,
            "linked_to": None if linked_to is None else str(columns.address(linked_to)),
        }

    def _same_as(self, connection: sqlite3.Connection, text: str) -> Fingerprint | None:
        if "same_as" not in columns_of(connection, "solutions"):
            return None
        query = "SELECT same_as FROM solutions WHERE fingerprint = ?"
        row = connection.execute(query, [text]).fetchone()
        return None if row is None or row[0] is None else columns.address(row[0])

    def _tried(self, what: str, read: Callable[[], T]) -> T | None:
        """What `read` returns, or None and a note that it could not be read."""
        try:
            return read()
        except (sqlite3.Error, *BAD) as bad:
            self.unreadable[what] = one_line(bad)
            return None


def _shown_trace(blob: Any) -> dict[str, np.ndarray]:
    """A trace whose columns are as long as each other."""
    trace = columns.arrays(blob)
    lengths = {len(one) for one in trace.values()}
    if trace and ("eigenvalue" not in trace or len(lengths) > 1 or 0 in lengths):
        raise ValueError("its columns do not fit together")
    if any(column.ndim != 1 + (name in ("neighbours", "path")) for name, column in trace.items()):
        raise ValueError("a column has another shape")
    return trace


def _row(connection: sqlite3.Connection, table: str, key: str, value: Any) -> dict[str, Any]:
    cursor = connection.execute(f"SELECT * FROM {table} WHERE {key} = ?", [value])
    found = cursor.fetchone()
    names = [about[0] for about in cursor.description]
    return {} if found is None else dict(zip(names, found, strict=True))


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """The file itself; of one that was cut short a copy with zeros in place of what is missing.

    SQLite does not even look at a file that is shorter than it says.
    """
    with path.open("rb") as file:
        head = file.read(32)
    page_size = int.from_bytes(head[16:18])
    size = (65536 if page_size == 1 else page_size) * int.from_bytes(head[28:32])
    wal = Path(f"{path}-wal")
    is_growing = wal.exists() and wal.stat().st_size > 0
    if path.stat().st_size >= size or is_growing or not head.startswith(b"SQLite format 3"):
        yield path
        return
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "run.sqlite"
        shutil.copy(path, copy)
        os.truncate(copy, size)
        yield copy
