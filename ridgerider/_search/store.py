"""The run file: one SQLite database, arrays as safetensors blobs, no pickle.

- `meta`: what the run is, as JSON: problem, rider, settings, budget, versions.
- `legs`: one row for the start and each leg; `arrays` (x, spectrum, directions), `trace` as blobs.
- `branches`: one row each; waiting (round NULL), chosen in a round, or ridden (its leg exists).
- `solutions`: one row for each descent from the end of a leg.

A leg, its solution and its children are one transaction: after any crash the file holds whole legs
only. Branches chosen together are marked with their round before any of them is ridden, so that a
resumed search finishes the round first and goes on to the same tree.
"""

import contextlib
import json
import math
import os
import platform
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from ridgerider._core.cost import Cost
from ridgerider._core.finish import Finish
from ridgerider._core.spectrum import Cluster
from ridgerider._search.classes import TOLERANCE, reach_of
from ridgerider._search.settings import Settings
from ridgerider._search.tree import Branch, Fingerprint, Leg, Ridges, Turn, Way

APPLICATION_ID = 0x52696467  # "Ridg"
VERSION = 2
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE legs (
    id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL UNIQUE, parent TEXT, depth INTEGER NOT NULL,
    loss REAL, num_steps INTEGER NOT NULL, ended_by TEXT NOT NULL, num_ridges INTEGER NOT NULL,
    clusters TEXT NOT NULL, turns TEXT NOT NULL, cost TEXT NOT NULL, arrays BLOB NOT NULL, trace
    BLOB NOT NULL);
CREATE TABLE branches (
    fingerprint TEXT PRIMARY KEY, parent TEXT NOT NULL, loss REAL, eigenvalue REAL NOT NULL,
    multiplicity INTEGER NOT NULL, priority TEXT NOT NULL, round INTEGER) WITHOUT ROWID;
CREATE TABLE solutions (
    fingerprint TEXT PRIMARY KEY REFERENCES legs (fingerprint), loss REAL, grad_norm REAL,
    least_eigenvalue REAL, is_converged INTEGER NOT NULL, is_saddle INTEGER NOT NULL, num_steps
    INTEGER NOT NULL, num_kicks INTEGER NOT NULL, cost TEXT NOT NULL, arrays BLOB NOT NULL);
"""
# Made when something is measured; older versions do not look for it.
MEASURES = """
CREATE TABLE IF NOT EXISTS measures (fingerprint TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT
    NULL, PRIMARY KEY (fingerprint, name)) WITHOUT ROWID
"""
# What version 2 added to the tables of version 1, with the value that it has in older files.
ADDED = {
    "legs": {"ways": "TEXT", "below": "TEXT", "linked_to": "TEXT"},
    "solutions": {
        "num_flat": "INTEGER NOT NULL DEFAULT 0",
        "error": "REAL",
        "doubt_number": "INTEGER NOT NULL DEFAULT 0",
        "is_at_infinity": "INTEGER NOT NULL DEFAULT 0",
        "limit": "REAL",
        "same_as": "TEXT",
    },
}

_DTYPES: dict[str, np.dtype] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}


def number(value: float | None) -> float:
    """SQLite keeps NaN as NULL."""
    return float("nan") if value is None else float(value)


FINISH_FIELDS: dict[str, Callable[[Any], Any]] = {
    "loss": number,
    "grad_norm": number,
    "least_eigenvalue": number,
    "is_converged": bool,
    "is_saddle": bool,
    "num_steps": int,
    "num_kicks": int,
    "num_flat": int,
    "error": number,
    "doubt_number": int,
    "is_at_infinity": bool,
    "limit": number,
}
HISTORY = "history "  # before the names of a training's columns, among its arrays


class Store:
    """A run file, or the same thing in memory. Used through `search`, `resume` and `load`."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None):
        self._db, self.path = connection, path

    @staticmethod
    def create(
        path: str | os.PathLike | None, meta: dict[str, Any], root: Leg, children: Iterable[Branch]
    ) -> "Store":
        """A new run with its start, all or nothing; `None` keeps it in memory."""
        rows = [(key, json.dumps(value)) for key, value in {**meta, "versions": versions()}.items()]
        if path is None:
            store = Store(_new_connection(":memory:"), None)
            store._begin(rows, root, children)
            return store
        path = Path(path)
        check_new(path)
        # Made beside its place and moved there whole: a kill leaves no file that is no run.
        new = path.with_name(f".{path.name}.{os.getpid()}.new")
        try:
            store = Store(_new_connection(new), path)
            with contextlib.closing(store):
                store._begin(rows, root, children)
                store._db.execute("PRAGMA journal_mode = WAL")
            _move(new, path)
        except (sqlite3.Error, OSError) as error:
            raise OSError(
                f"`out` cannot be written at {path}: {error.__cause__ or error}."
            ) from error
        finally:
            for file in (new, Path(f"{new}-journal"), Path(f"{new}-wal"), Path(f"{new}-shm")):
                file.unlink(missing_ok=True)
        return Store.open(path, write=True)

    def _begin(self, meta: list[tuple[str, str]], root: Leg, children: Iterable[Branch]) -> None:
        with self.closed_on_error(), self._transaction():
            for statement in SCHEMA.split(";"):
                self._db.execute(statement)
            self._add_columns()
            self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._db.execute(f"PRAGMA user_version = {VERSION}")
            self._db.executemany("INSERT INTO meta VALUES (?, ?)", meta)
            self._insert(root, children)

    @staticmethod
    def open(path: str | os.PathLike, *, write: bool = False) -> "Store":
        """An existing run, checked before it is used."""
        path = Path(path)
        if not path.is_file():
            raise ValueError(f"`path` must be a run file, but there is none at {path}.")
        if write and not os.access(path, os.W_OK):
            raise ValueError(
                f"`path` must be a run file that can be written, but {path} is read-only."
            )
        try:
            store = Store(connect(path, write), path)
        except sqlite3.Error as error:
            raise ValueError(
                f"`path` must be a run file, but {path} cannot be opened: {error}."
            ) from None
        with store.closed_on_error(), store._readable():
            store._check_kind()
            store._check_whole(thoroughly=write)
            if write and store._db.execute("PRAGMA user_version").fetchone()[0] < VERSION:
                with store._transaction():
                    store._add_columns()
                    store._db.execute(f"PRAGMA user_version = {VERSION}")
            store._db.execute("PRAGMA synchronous = NORMAL")
        return store

    def close(self) -> None:
        self._db.close()

    def __del__(self) -> None:
        self.close()

    @contextlib.contextmanager
    def closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    # --- what the run is

    @property
    def meta(self) -> dict[str, Any]:
        with self._readable():
            return {
                key: json.loads(value)
                for key, value in self._db.execute("SELECT key, value FROM meta")
            }

    @property
    def settings(self) -> Settings:
        """What decides the tree. Runs of 0.1 went on from the ends of rides, along rows."""
        settings = self.meta["settings"]
        if "go_on" not in settings:
            members = "rows" if settings["members"] == "all" else settings["members"]
            settings |= {"members": members, "go_on": "end"}
        return Settings(**settings)

    @property
    def is_old(self) -> bool:
        """Whether it was begun by 0.1, which did not look for points it had come to before."""
        return "go_on" not in self.meta["settings"]

    def set_meta(self, key: str, value: Any) -> None:
        with self._transaction():
            self._db.execute("UPDATE meta SET value = ? WHERE key = ?", (json.dumps(value), key))

    # --- writing

    def checkpoint(self) -> None:
        """Move everything into the one file, so that it can be copied."""
        # Where a reader is in the way, SQLite does it later.
        with contextlib.suppress(sqlite3.OperationalError):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def choose(self, branches: Iterable[Branch], round_number: int) -> None:
        """Mark the branches that are about to be ridden."""
        rows = [(round_number, str(branch.fingerprint)) for branch in branches]
        with self._transaction():
            self._db.executemany("UPDATE branches SET round = ? WHERE fingerprint = ?", rows)

    def add(self, leg: Leg, children: Iterable[Branch]) -> None:
        """Store a leg, its solution and its children, all or nothing. One that is there stays."""
        with self._transaction():
            self._insert(leg, children)

    def _insert(self, leg: Leg, children: Iterable[Branch]) -> None:
        if not self._insert_row("legs", _leg_row(leg)):
            return
        if leg.finish is not None:
            self._insert_row("solutions", _finish_row(leg, leg.finish))
        parent = str(leg.fingerprint)
        rows = [_branch_row(branch, parent) for branch in children]
        self._db.executemany("INSERT INTO branches VALUES (?, ?, ?, ?, ?, ?, NULL)", rows)

    def _insert_row(self, table: str, row: dict[str, Any]) -> bool:
        """Whether it was new."""
        names, values = ", ".join(f'"{name}"' for name in row), ", ".join("?" * len(row))
        insert = f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({values})"
        return bool(self._db.execute(insert, tuple(row.values())).rowcount)

    def settle(self, links: dict[Fingerprint, Fingerprint], round_number: int) -> None:
        """A round is over: these of its legs came to points that others had come to before."""
        with self._transaction():
            for one, other in links.items():
                update = "UPDATE legs SET linked_to = ? WHERE fingerprint = ?"
                self._db.execute(update, (str(other), str(one)))
                self._db.execute("DELETE FROM branches WHERE parent = ?", [str(one)])
            self._db.execute(
                "INSERT OR REPLACE INTO meta VALUES ('settled', ?)", [json.dumps(round_number)]
            )

    def set_measures(
        self,
        about: dict[str, Any] | None,
        rows: dict[tuple[str, str], Any],
        *,
        forget: Iterable[str] = (),
    ) -> None:
        """Store what was measured of solutions, and `forget` what other functions of a name did."""
        with self._transaction():
            self._db.execute(MEASURES)
            for name in forget:
                self._db.execute("DELETE FROM measures WHERE name = ?", [name])
            if about is not None:
                row = [json.dumps(about)]
                self._db.execute("INSERT OR REPLACE INTO meta VALUES ('measures', ?)", row)
            self._db.executemany(
                "INSERT OR REPLACE INTO measures VALUES (?, ?, ?)",
                [(*key, json.dumps(value)) for key, value in rows.items()],
            )

    def measures(self) -> dict[str, dict[str, Any]]:
        """What was measured: by its name, the value at each fingerprint."""
        with self._readable():
            return read_measures(self._db)

    # --- reading

    def links(self) -> dict[Fingerprint, Fingerprint]:
        """The legs that came to a point that another had come to before, with that one."""
        if "linked_to" not in columns_of(self._db, "legs"):
            return {}
        query = "SELECT fingerprint, linked_to FROM legs WHERE linked_to IS NOT NULL"
        with self._readable():
            rows = self._db.execute(query).fetchall()
        return {Fingerprint.parse(one): Fingerprint.parse(two) for one, two in rows}

    def class_sizes(self) -> dict[str, dict[str, int]]:
        """For each leg and each turn from it: how many directions are like the one that it takes.

        Only where there is more than one.
        """
        if "ways" not in columns_of(self._db, "legs"):
            return {}
        sizes: dict[str, dict[str, int]] = {}
        query = "SELECT fingerprint, turns, ways, below FROM legs WHERE ways IS NOT NULL"
        with self._readable():
            for name, turns, ways, below in self._db.execute(query):
                places = [(False, json.loads(turns), json.loads(ways))]
                if below is not None:
                    data = json.loads(below)
                    places.append((True, data["turns"], data["ways"]))
                sizes[name] = {
                    str(Turn(index, sign, member, is_below)): way["class_size"]
                    for is_below, taken, of in places
                    for (index, member), way in zip(taken, of, strict=False)
                    for sign in (1, -1)
                    if way["class_size"] > 1
                }
        return sizes

    def unsettled(self) -> list[Fingerprint]:
        """The legs of a round that is not over."""
        query = (
            "SELECT b.fingerprint FROM branches b JOIN legs l USING (fingerprint) WHERE b.round > ?"
        )
        with self._readable():
            settled = self.meta.get("settled", self.num_rounds() if self.is_old else 0)
            rows = self._db.execute(query, [settled]).fetchall()
        return [Fingerprint.parse(text) for (text,) in rows]

    def num_legs(self) -> int:
        """How many branches were ridden; the start does not count."""
        return self._one("SELECT count(*) FROM legs WHERE depth > 0")

    def num_steps(self) -> int:
        return self._one("SELECT coalesce(sum(num_steps), 0) FROM legs")

    def kinds(self) -> Counter[str]:
        """How many descents ended at each kind of point."""
        query = f"SELECT {finish_columns(self._db, without='arrays')} FROM solutions s"
        with self._readable():
            return Counter(read_finish(row).kind for row in self._db.execute(query))

    def num_rounds(self) -> int:
        return self._one("SELECT coalesce(max(round), 0) FROM branches")

    def fingerprints(self) -> list[Fingerprint]:
        """Of the start and of every leg, in the order they were stored."""
        with self._readable():
            rows = self._db.execute("SELECT fingerprint FROM legs ORDER BY id").fetchall()
        return [Fingerprint.parse(text) for (text,) in rows]

    def leg(self, fingerprint: Fingerprint) -> Leg:
        """One leg, whole. Raises KeyError if it was not ridden."""
        known = columns_of(self._db, "legs") | columns_of(self._db, "solutions")
        added = ("l.ways", "l.below", "l.linked_to", "s.same_as")
        more = ", ".join(name if name[2:] in known else "NULL" for name in added)
        query = (
            f"SELECT l.loss, l.num_steps, l.ended_by, l.num_ridges, l.clusters, l.turns, l.cost,"
            f" l.arrays, l.trace, {more}, {finish_columns(self._db)}"
            " FROM legs l LEFT JOIN solutions s USING (fingerprint) WHERE l.fingerprint = ?"
        )
        with self._readable():
            row = self._db.execute(query, [str(fingerprint)]).fetchone()
            if row is None:
                raise KeyError(str(fingerprint))
            finish = read_finish(row[13:]) if row[-1] is not None else None
            return _leg(fingerprint, row[:9], finish, *row[9:13])

    def finishes(self) -> Iterator[tuple[Fingerprint, Finish]]:
        """Where descent ended, for every leg it was run from, shallow legs first."""
        query = (
            f"SELECT s.fingerprint, {finish_columns(self._db)}"
            " FROM solutions s JOIN legs l USING (fingerprint)"
            " ORDER BY l.depth, l.fingerprint"
        )
        with self._readable():
            for text, *row in self._db.execute(query):
                yield Fingerprint.parse(text), read_finish(row)

    def end(self, fingerprint: Fingerprint) -> Finish:
        """Where the descent from the end of a leg came to rest."""
        query = f"SELECT {finish_columns(self._db)} FROM solutions s WHERE fingerprint = ?"
        with self._readable():
            return read_finish(self._db.execute(query, [str(fingerprint)]).fetchone())

    def same(self) -> dict[Fingerprint, Fingerprint]:
        """The ends that are the same solution as one before them, with that one."""
        query = "SELECT fingerprint, same_as FROM solutions WHERE same_as IS NOT NULL"
        if "same_as" not in columns_of(self._db, "solutions"):
            return {}
        with self._readable():
            rows = self._db.execute(query).fetchall()
        return {Fingerprint.parse(one): Fingerprint.parse(two) for one, two in rows}

    def endings(self) -> Counter[str]:
        """How many legs ended by each rule."""
        query = "SELECT ended_by, count(*) FROM legs WHERE depth > 0 GROUP BY ended_by"
        reasons = Counter[str]()
        with self._readable():
            for text, count in self._db.execute(query):
                reasons.update(dict.fromkeys(json.loads(text), count))
        return reasons

    def cost(self) -> Cost:
        """What all legs cost together."""
        total = Counter[str]()
        with self._readable():
            for (cost,) in self._db.execute("SELECT cost FROM legs ORDER BY id"):
                total.update(json.loads(cost))
        return Cost(**total)

    def costs(self) -> dict[Fingerprint, Cost]:
        """What each leg cost, the descent at its end included."""
        with self._readable():
            rows = self._db.execute("SELECT fingerprint, cost FROM legs ORDER BY id").fetchall()
        return {Fingerprint.parse(text): Cost(**json.loads(cost)) for text, cost in rows}

    def open_branches(self, *, chosen: bool) -> list[Branch]:
        """Branches without a leg: those chosen in an unfinished round, or those still waiting."""
        query = (
            "SELECT b.fingerprint, b.loss, b.eigenvalue, b.multiplicity, b.priority FROM branches b"
            " LEFT JOIN legs l USING (fingerprint) WHERE l.id IS NULL AND b.round IS "
        )
        with self._readable():
            rows = self._db.execute(query + ("NOT NULL" if chosen else "NULL")).fetchall()
        branches = [
            Branch(
                Fingerprint.parse(text),
                number(loss),
                eigenvalue,
                multiplicity,
                _tuples(json.loads(priority)),
            )
            for text, loss, eigenvalue, multiplicity, priority in rows
        ]
        return sorted(branches, key=lambda one: (one.priority, one.fingerprint.sort_key()))

    def load(self, branch: Branch) -> Branch:
        """The branch with its arrays, ready to ride. Reads these alone, whatever else is there."""
        turn, parent = branch.fingerprint[-1], str(branch.fingerprint.parent)
        query = f"SELECT id, {'below' if turn.below else 'turns'} FROM legs WHERE fingerprint = ?"
        with self._readable():
            leg, turns = self._db.execute(query, [parent]).fetchone()
            turns = json.loads(turns)["turns"] if turn.below else json.loads(turns)
            row = turns.index([turn.index, turn.member])
            with self._db.blobopen("legs", "arrays", leg, readonly=True) as blob:
                direction = _read(blob, "below" if turn.below else "directions", row)
                x = _read(blob, "x")
        if turn.below:
            x = np.asarray(self.end(branch.fingerprint.parent).x)
        return replace(branch, x=x, direction=turn.sign * direction)

    def num_open(self) -> int:
        """How many branches have no leg."""
        return self._one("SELECT count(*) FROM branches") - self.num_legs()

    # --- inside

    def _one(self, query: str) -> int:
        with self._readable():
            return int(self._db.execute(query).fetchone()[0])

    def _check_kind(self) -> None:
        if self._db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise ValueError(f"{self.path} is not a run file of ridgerider.")
        found = self._db.execute("PRAGMA user_version").fetchone()[0]
        if not 1 <= found <= VERSION:
            raise ValueError(
                f"{self.path} is a run file of version {found}, "
                f"but this ridgerider reads versions up to {VERSION}."
            )

    def _add_columns(self) -> None:
        for table, columns in ADDED.items():
            for name, kind in columns.items():
                self._db.execute(f'ALTER TABLE {table} ADD COLUMN "{name}" {kind}')

    def _check_whole(self, thoroughly: bool) -> None:
        """Cheap when reading (the pages are all there), complete before writing."""
        pages, size = (
            self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size")
        )
        wal = Path(f"{self.path}-wal")
        has_wal = wal.exists() and wal.stat().st_size > 0
        if not has_wal and self.path is not None and self.path.stat().st_size < pages * size:
            raise ValueError(f"{self.path} is truncated: it should have {pages * size} bytes.")
        if thoroughly and self._db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise ValueError(f"{self.path} is damaged: SQLite's quick check failed.")

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, safetensors.SafetensorError, json.JSONDecodeError) as error:
            raise ValueError(f"{self.path} cannot be read as a run file: {error}.") from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise OSError(
                f"{self.path} cannot be written: {error}. What was stored before is safe."
            ) from error


def _new_connection(path: Path | str) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


def connect(path: Path, write: bool) -> sqlite3.Connection:
    # Reading a WAL file needs a place for its index; where there is none (a read-only directory)
    # nobody writes either.
    mode = "mode=rw" if write else "mode=ro"
    if not write and not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists():
        mode = "immutable=1"
    uri = f"{path.absolute().as_uri()}?{mode}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


def check_new(path: Path) -> None:
    """Raise unless a new file can be made at `path`."""
    if path.exists():
        raise ValueError(
            f"`out` must be a new file, but {path} exists; resume it or choose another name."
        )
    if not path.parent.is_dir():
        raise ValueError(f"`out` must be in a directory that exists, but {path.parent} does not.")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(
            f"`out` must be in a directory that can be written, but {path.parent} cannot."
        )


def _move(new: Path, path: Path) -> None:
    """Give a file its name, unless another has taken it."""
    try:
        os.link(new, path)
    except FileExistsError:
        check_new(path)
    except OSError:  # a file system without links
        new.rename(path)


def versions() -> dict[str, str]:
    packages = {
        name: version(name) for name in ("ridgerider", "jax", "jaxlib", "numpy", "equinox", "optax")
    }
    return {**packages, "python": platform.python_version(), "machine": platform.machine()}


def _leg_row(leg: Leg) -> dict[str, Any]:
    arrays, below = {"x": leg.x, "eigenvalues": leg.eigenvalues, "directions": leg.directions}, None
    if leg.below is not None:
        arrays |= {"below": leg.below.directions, "below_eigenvalues": leg.below.eigenvalues}
        below = {
            "num_ridges": leg.below.num_ridges,
            "clusters": [vars(cluster) for cluster in leg.below.clusters],
            "turns": leg.below.turns,
            "ways": [vars(way) for way in leg.below.ways],
        }
    return {
        "fingerprint": str(leg.fingerprint),
        "parent": str(leg.fingerprint.parent) if leg.fingerprint else None,
        "depth": leg.fingerprint.depth,
        "loss": leg.loss,
        "num_steps": leg.num_steps,
        "ended_by": json.dumps(leg.ended_by),
        "num_ridges": leg.num_ridges,
        "clusters": json.dumps([vars(cluster) for cluster in leg.clusters]),
        "turns": json.dumps(leg.turns),
        "ways": json.dumps([vars(way) for way in leg.ways]),
        "below": None if below is None else json.dumps(below),
        "cost": _json_cost(leg.cost),
        "arrays": _pack(arrays),
        "trace": _pack(leg.trace),
    }


def _leg(
    fingerprint: Fingerprint,
    row: tuple[Any, ...],
    finish: Finish | None,
    ways: str | None,
    below: str | None,
    linked_to: str | None,
    same_as: str | None,
) -> Leg:
    loss, num_steps, ended_by, num_ridges, clusters, turns, cost, arrays, trace = row
    unpacked = unpack(arrays)
    return Leg(
        fingerprint=fingerprint,
        x=unpacked["x"],
        loss=number(loss),
        num_steps=num_steps,
        ended_by=tuple(json.loads(ended_by)),
        eigenvalues=unpacked["eigenvalues"],
        clusters=tuple(Cluster(**cluster) for cluster in json.loads(clusters)),
        num_ridges=num_ridges,
        turns=_tuples(json.loads(turns)),
        directions=unpacked["directions"],
        trace=unpack(trace),
        cost=Cost(**json.loads(cost)),
        finish=finish,
        same_as=None if same_as is None else Fingerprint.parse(same_as),
        ways=() if ways is None else tuple(Way(**way) for way in json.loads(ways)),
        below=None if below is None else _below(json.loads(below), unpacked),
        linked_to=None if linked_to is None else Fingerprint.parse(linked_to),
    )


def _below(data: dict[str, Any], arrays: dict[str, np.ndarray]) -> Ridges:
    return Ridges(
        eigenvalues=arrays["below_eigenvalues"],
        clusters=tuple(Cluster(**cluster) for cluster in data["clusters"]),
        num_ridges=data["num_ridges"],
        turns=_tuples(data["turns"]),
        directions=arrays["below"],
        ways=tuple(Way(**way) for way in data["ways"]),
    )


def _finish_row(leg: Leg, finish: Finish) -> dict[str, Any]:
    arrays = {"x": np.asarray(finish.x)}
    if finish.is_at_infinity and finish.runaway is not None:
        arrays["runaway"] = np.asarray(finish.runaway)
    arrays |= {f"{HISTORY}{name}": column for name, column in (finish.history or {}).items()}
    return {
        "fingerprint": str(leg.fingerprint),
        **{name: kind(getattr(finish, name)) for name, kind in FINISH_FIELDS.items()},
        "same_as": None if leg.same_as is None else str(leg.same_as),
        "cost": _json_cost(finish.cost),
        "arrays": _pack(arrays),
    }


def columns_of(connection: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}


def read_measures(connection: sqlite3.Connection) -> dict[str, dict[str, Any]]:
    """What was measured of solutions, if anything was."""
    found: dict[str, dict[str, Any]] = {}
    if columns_of(connection, "measures"):
        for fingerprint, name, value in connection.execute("SELECT * FROM measures"):
            found.setdefault(name, {})[fingerprint] = json.loads(value)
    return found


def finish_columns(connection: sqlite3.Connection, without: str = "") -> str:
    """What `read_finish` reads, from files of any version; it can do without the arrays."""
    known = columns_of(connection, "solutions") - {without}
    names = (*FINISH_FIELDS, "cost", "arrays")
    return ", ".join(f's."{name}"' if name in known else "NULL" for name in names)


def read_finish(row: Sequence[Any]) -> Finish:
    *scalars, cost, arrays = row
    fields = {
        name: kind(0 if value is None and kind is not number else value)
        for (name, kind), value in zip(FINISH_FIELDS.items(), scalars, strict=True)
    }
    arrays = {"x": np.zeros(0)} if arrays is None else unpack(arrays)
    if math.isnan(fields["error"]):  # a file of 0.1, which had one tolerance for all
        fields["error"] = reach_of(arrays["x"], TOLERANCE)
    history = {
        name.removeprefix(HISTORY): array
        for name, array in arrays.items()
        if name.startswith(HISTORY)
    }
    return Finish(
        x=arrays["x"],  # type: ignore[arg-type]  # on the host
        cost=Cost(**json.loads(cost)),
        runaway=arrays.get("runaway"),  # type: ignore[arg-type]
        history=history or None,
        **fields,
    )


def _branch_row(branch: Branch, parent: str) -> tuple[Any, ...]:
    try:
        priority = json.dumps(branch.priority)
    except TypeError:
        raise ValueError(
            "`order` must return numbers, strings or tuples of them, "
            f"not {type(branch.priority).__name__}."
        ) from None
    return (
        f"{parent} {branch.fingerprint[-1]}".lstrip(),
        parent,
        branch.loss,
        branch.eigenvalue,
        branch.multiplicity,
        priority,
    )


def _json_cost(cost: Cost) -> str:
    counts = {name: int(value) for name, value in vars(cost).items() if name != "seconds"}
    return json.dumps({**counts, "seconds": float(cost.seconds)})


def _pack(arrays: dict[str, np.ndarray]) -> bytes:
    return safetensors.numpy.save(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    )


def unpack(blob: bytes) -> dict[str, np.ndarray]:
    return safetensors.numpy.load(blob)


def _read(blob: sqlite3.Blob, name: str, row: int | None = None) -> np.ndarray:
    """One array of a packed blob, or one row of it, without the others."""
    blob.seek(0)
    length = int.from_bytes(blob.read(8), "little")
    about = json.loads(blob.read(length))[name]
    dtype, shape, start = _DTYPES[about["dtype"]], about["shape"], about["data_offsets"][0]
    if row is not None:
        shape = shape[1:]
        start += row * math.prod(shape) * dtype.itemsize
    blob.seek(8 + length + start)
    return np.frombuffer(blob.read(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
