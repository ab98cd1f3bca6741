"""What a page shows of a run file, read row by row: a damaged file shows what is left of it.

A `Reader` reads the file only, never a process, and only the rows that it does not have yet: a run
that is still growing is read again and again. It looks columns up by name, so that it can show what
it knows of a file from a newer version.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors

from ridgerider._search.store import APPLICATION_ID, VERSION, _connect, _unpack
from ridgerider._search.tree import Fingerprint
from ridgerider.report._classes import Classes
from ridgerider.report._plain import number, plain, plain_cluster, plain_cost, whole
from ridgerider.report._trace import pack_trace

LEG_COLUMNS = "id, fingerprint, loss, num_steps, ended_by, num_ridges, clusters, turns, cost, trace"
SOLUTION_COLUMNS = (
    "loss, grad_norm, least_eigenvalue, is_converged, is_saddle, num_steps, num_kicks, cost, arrays"
)
BLOCK = 256  # rows read at once, and how many missing ones in a row end a damaged table
# Of all traces and of all spectra together. Of a spectrum the most negative clusters are kept.
MAX_POINTS, MAX_CLUSTERS = 250_000, 300_000

Row = tuple[Any, ...]
Found = tuple[dict[str, Any], dict[str, Any], np.ndarray | None]  # leg, details, end of descent
T = TypeVar("T")


class AnotherRun(Exception):
    """The file holds another run than before."""


@dataclass
class Reader:
    """The legs and solutions of a run, as far as they can be read.

    `legs` are what the page's tree and tables need, `details` what it needs once a leg is looked
    at, both as plain data for JSON; `notes` say in a sentence each what could not be read.

    >>> import tempfile
    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> path = f"{tempfile.mkdtemp()}/run.sqlite"
    >>> _ = rr.search(wells(1), rr.Rider(finish=None), out=path)
    >>> reader = Reader(Path(path))
    >>> reader.read()
    3
    >>> [leg["fingerprint"] for leg in reader.legs], reader.read()
    (['', '0+', '0-'], 0)
    """

    path: Path
    meta: dict[str, Any] = field(default_factory=dict)
    legs: list[dict[str, Any]] = field(default_factory=list)
    details: list[dict[str, Any]] = field(default_factory=list)
    classes: Classes = field(default_factory=Classes)
    num_open: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)
    version: int = VERSION
    trouble: str = ""
    _last: int = 0
    _max_points: int = 0
    _max_clusters: int = 0
    _begun: Row | None = None

    def read(self) -> int:
        """Read what is new, and return how many legs that are.

        Raises ValueError if it is no run file, and `AnotherRun` if one has taken its place.
        """
        if not self.path.is_file():
            raise ValueError(f"`run` must be a run file, but there is none at {self.path}.")
        if not self.path.stat().st_size:
            raise ValueError(f"{self.path} is empty: there is nothing to read in it.")
        with whole(self.path) as path, closing(_connect(path, write=False)) as connection:
            self._check_kind(connection)
            self._check_same(connection)
            # Legs are read once; what else could not be read is tried again.
            self.unreadable = {
                what: why for what, why in self.unreadable.items() if what.startswith("leg ")
            }
            self.meta = {**self.meta, **self._read_meta(connection)}
            legs = (self._leg(connection, row) for row in self._rows(connection))
            found = [leg for leg in legs if leg is not None]
            self._add(found)
            self.num_open = self._count_open(connection)
        return len(found)

    @property
    def notes(self) -> list[str]:
        """What a reader of the page should know about the file."""
        if self.trouble and not self.legs:
            return [self.trouble]
        notes = []
        if self.version > VERSION:
            notes.append(
                f"The file is of version {self.version}, newer than the version {VERSION} that "
                "this ridgerider knows: what it does not know is not shown."
            )
        if self.unreadable:
            what, why = next(iter(self.unreadable.items()))
            more = f" and {len(self.unreadable) - 1} more" if len(self.unreadable) > 1 else ""
            notes.append(
                f"The file is damaged: {len(self.legs)} legs could be read, but not {what}{more} "
                f"({why})."
            )
        if not any(leg["fingerprint"] for leg in self.legs):
            notes.append("No leg has been ridden yet.")
        return notes

    # --- rows

    def _check_kind(self, connection: sqlite3.Connection) -> None:
        try:
            kind, version = (
                connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("application_id", "user_version")
            )
        except sqlite3.Error as error:
            raise ValueError(f"{self.path} cannot be read as a run file: {error}.") from error
        if kind != APPLICATION_ID:
            raise ValueError(f"{self.path} is not a run file of ridgerider.")
        self.version = version

    def _check_same(self, connection: sqlite3.Connection) -> None:
        query = "SELECT value, cost FROM meta, legs WHERE key = 'name' AND id = 1"
        # To look at the start takes other seconds each time.
        found = self._tried("the start", lambda: connection.execute(query).fetchone())
        if self._begun is not None and found not in (None, self._begun):
            raise AnotherRun(str(self.path))
        self._begun = found

    def _read_meta(self, connection: sqlite3.Connection) -> dict[str, Any]:
        def read() -> dict[str, Any]:
            rows = connection.execute("SELECT key, value FROM meta")
            return {key: plain(json.loads(value)) for key, value in rows}

        return self._tried("the description of the run", read) or {}

    def _rows(self, connection: sqlite3.Connection) -> Iterator[Row]:
        """The new rows of legs, block by block; one by one where a block cannot be read."""
        query = f"SELECT {LEG_COLUMNS} FROM legs WHERE id > ? AND id <= ? ORDER BY id"
        first, missing = self._last, 0
        last = self._tried(
            "the number of legs",
            lambda: connection.execute("SELECT coalesce(max(id), 0) FROM legs").fetchone()[0],
        )
        if not self._max_points:  # a page of ten thousand legs stays small
            self._max_points = max(24, min(240, MAX_POINTS // max(1, last or 1)))
            self._max_clusters = max(12, min(200, MAX_CLUSTERS // max(1, last or 1)))
        while missing < BLOCK and (last is None or first < last):
            try:
                block = connection.execute(query, (first, first + BLOCK)).fetchall()
            except sqlite3.Error:
                block = list(self._one_by_one(connection, query, first, last))
            self._last = max([self._last, *(row[0] for row in block)])
            missing = 0 if block else missing + BLOCK
            first += BLOCK
            yield from block

    def _one_by_one(
        self, connection: sqlite3.Connection, query: str, first: int, last: int | None
    ) -> Iterator[Row]:
        end = first + BLOCK if last is None else min(first + BLOCK, last)
        for row in range(first, end):
            try:
                yield from connection.execute(query, (row, row + 1)).fetchall()
            except sqlite3.Error as error:
                self.unreadable[f"leg number {row + 1}"] = str(error)

    def _count_open(self, connection: sqlite3.Connection) -> int:
        query = (
            "SELECT count(*) FROM branches b LEFT JOIN legs l USING (fingerprint)"
            " WHERE l.id IS NULL"
        )
        found = self._tried("the open branches", lambda: connection.execute(query).fetchone()[0])
        return self.num_open if found is None else found

    # --- legs

    def _leg(self, connection: sqlite3.Connection, row: Row) -> Found | None:
        _, text, loss, num_steps, ended_by, num_ridges, clusters, turns, cost, blob = row

        def read() -> Found:
            Fingerprint.parse(text)
            trace = _unpack(blob)
            found = [plain_cluster(one) for one in json.loads(clusters)]
            leg = {
                "fingerprint": text,
                "loss": number(loss),
                "num_steps": int(num_steps),
                "ended_by": json.loads(ended_by),
                "num_ridges": int(num_ridges),
                "num_branches": 2 * len(json.loads(turns)),
                "eigenvalue": number(trace["eigenvalue"][0]) if len(trace) else None,
                "cost": plain_cost(json.loads(cost)),
            }
            details = {
                "clusters": found[: self._max_clusters],
                "num_clusters": len(found),
                "trace": pack_trace(trace, self._max_points),
            }
            end = self._solution(connection, text)
            if end is not None:
                leg["solution"] = end[0]
            return leg, details, None if end is None else end[1]

        return self._tried(f"leg {text}", read)

    def _solution(
        self, connection: sqlite3.Connection, text: str
    ) -> tuple[dict[str, Any], np.ndarray] | None:
        query = f"SELECT {SOLUTION_COLUMNS} FROM solutions WHERE fingerprint = ?"
        row = connection.execute(query, [text]).fetchone()
        if row is None:
            return None
        loss, grad_norm, least, is_converged, is_saddle, num_steps, num_kicks, cost, arrays = row
        found = {
            "loss": number(loss),
            "grad_norm": number(grad_norm),
            "least_eigenvalue": number(least),
            "kind": ("saddle" if is_saddle else "minimum") if is_converged else "unconverged",
            "num_steps": int(num_steps),
            "num_kicks": int(num_kicks),
            "cost": plain_cost(json.loads(cost)),
        }
        return found, _unpack(arrays)["x"]

    def _add(self, found: Sequence[Found]) -> None:
        ends = [
            (Fingerprint.parse(leg["fingerprint"]), leg["solution"], x)
            for leg, _, x in found
            if x is not None and leg["solution"]["kind"] == "minimum"
        ]
        # Shallow legs first, as `Result.classes` has it: the first of a class stands for it.
        for fingerprint, solution, x in sorted(
            ends, key=lambda end: (end[0].depth, end[0].sort_key())
        ):
            solution["class"] = self.classes.add(fingerprint, x, solution["loss"])
        self.legs += [leg for leg, _, _ in found]
        self.details += [details for _, details, _ in found]

    def _tried(self, what: str, read: Callable[[], T]) -> T | None:
        """What `read` returns, or None and a note that it could not be read."""
        try:
            return read()
        except (sqlite3.Error, safetensors.SafetensorError, ValueError, KeyError, TypeError) as bad:
            self.unreadable[what] = str(bad)
            return None
