"""The run file: one SQLite database, arrays as safetensors blobs, no pickle.

- `meta`: what the run is, as JSON: problem, rider, settings, budget, versions.
- `legs`: one row for the start and each leg; `arrays` (x, spectrum, directions, where the descent
  went), `trace` as blobs.
- `branches`: one row each; waiting (round NULL), chosen in a round, or ridden (its leg exists).
- `solutions`: one row for each descent from the end of a leg.

A leg, its solution and its children are one transaction: after any crash the file holds whole legs
only. Branches chosen together are marked with their round before any of them is ridden, so that a
resumed search finishes the round first and goes on to the same tree.

Each row has a digest (see `rows`), and `meta` the sum of them all, bit by bit without carry: no row
can change, go or come unnoticed. All of them are compared when a file is opened.
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
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import numpy as np
import safetensors.numpy

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from ridgerider._check import one_line
from ridgerider._core.descend.finish import Finish
from ridgerider._core.problem.cost import Cost
from ridgerider._search.runfile import rows as columns
from ridgerider._search.runfile.rows import BAD, Damage, DamagedRun, digest, leg_name, reading
from ridgerider._search.same.classes import TOLERANCE, reach_of
from ridgerider._search.tree.settings import Settings
from ridgerider._search.tree.tree import Branch, Fingerprint, Leg, Ridges, Turn

APPLICATION_ID = 0x52696467  # "Ridg"
VERSION = 3
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
    NULL, digest BLOB, PRIMARY KEY (fingerprint, name)) WITHOUT ROWID
"""
# What later versions added to the tables of version 1, with the value that it has in older files.
ADDED = {
    "meta": {"digest": "BLOB"},
    "branches": {"digest": "BLOB"},
    "measures": {"digest": "BLOB"},
    "legs": {"ways": "TEXT", "below": "TEXT", "linked_to": "TEXT", "digest": "BLOB"},
    "solutions": {
        "num_flat": "INTEGER NOT NULL DEFAULT 0",
        "error": "REAL",
        "doubt_number": "INTEGER NOT NULL DEFAULT 0",
        "is_at_infinity": "INTEGER NOT NULL DEFAULT 0",
        "limit": "REAL",
        "same_as": "TEXT",
        "digest": "BLOB",
    },
}

OF_STEPS = ("loss", "eigenvalue", "overlap", "residual", "gap", "step_size", "multiplicity")
TABLES = ("meta", "legs", "branches", "solutions")  # that every run has
KEYS = {"meta": "key"} | dict.fromkeys(("legs", "branches", "solutions", "measures"), "fingerprint")
REPAIRED = "repaired"  # in `meta`: whether branches may be missing
SUM = "sum"  # of all digests but its own, in `meta`

_DTYPES: dict[str, np.dtype] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}


FINISH_FIELDS: dict[str, Callable[[Any], Any]] = {
    "loss": columns.real,
    "grad_norm": columns.real,
    "least_eigenvalue": columns.real,
    "is_converged": columns.flag,
    "is_saddle": columns.flag,
    "num_steps": columns.whole,
    "num_kicks": columns.whole,
    "num_flat": columns.whole,
    "error": columns.real,
    "doubt_number": columns.whole,
    "is_at_infinity": columns.flag,
    "limit": columns.real,
}
HISTORY = "history "  # before the names of a training's columns, among its arrays


class Store:
    """A run file, or the same thing in memory. Used through `search`, `resume` and `load`."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None):
        self._db, self.path = connection, path
        self._kinds: dict[str, dict[str, str]] = {}
        self._change_of_sum = 0

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
            reason = one_line(error.__cause__ or error)
            raise OSError(f"`out` cannot be written at {one_line(path)}: {reason}.") from error
        finally:
            for file in (new, Path(f"{new}-journal"), Path(f"{new}-wal"), Path(f"{new}-shm")):
                file.unlink(missing_ok=True)
        return Store.open(path, write=True)

    def _begin(self, meta: list[tuple[str, str]], root: Leg, children: Iterable[Branch]) -> None:
        with self.closed_on_error(), self._transaction():
            self._make_tables()
            for key, value in meta:
                self._insert_row("meta", {"key": key, "value": value})
            self._insert(root, children)

    def _make_tables(self) -> None:
        for statement in SCHEMA.split(";"):
            self._db.execute(statement)
        self._add_columns()
        self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        self._db.execute(f"PRAGMA user_version = {VERSION}")
        self._insert_row("meta", {"key": SUM, "value": json.dumps("0")})

    @staticmethod
    def of_rows(path: Path, rows: dict[str, list[dict[str, Any]]]) -> None:
        """A new file that holds these rows of another."""
        with contextlib.closing(Store(_new_connection(path), path)) as store:
            with store._transaction():
                store._make_tables()
                if rows.get("measures"):
                    store._db.execute(MEASURES)
                for table in rows:
                    ours = columns_of(store._db, table)  # somebody may have added others
                    for row in rows[table]:
                        store._insert_row(table, {name: row[name] for name in row if name in ours})
            store.sign()
            store._db.execute("PRAGMA journal_mode = WAL")

    @staticmethod
    def open(path: str | os.PathLike, *, write: bool = False) -> "Store":
        """An existing run, checked before it is used."""
        path = Path(path)
        if not path.is_file():
            raise ValueError(f"`path` must be a run file, but there is none at {one_line(path)}.")
        if write and not os.access(path, os.W_OK):
            raise ValueError(
                f"`path` must be a run file that can be written, but {one_line(path)} is read-only."
            )
        try:
            store = Store(connect(path, write), path)
        except sqlite3.Error as error:
            raise ValueError(
                f"`path` must be a run file, but {one_line(path)} cannot be opened: "
                f"{one_line(error)}."
            ) from None
        with store.closed_on_error(), store._readable():
            store._check_kind()
            store._check_whole()
            if write and store._db.execute("PRAGMA user_version").fetchone()[0] < VERSION:
                with store._transaction():
                    store._add_columns()
                    store._db.execute(f"PRAGMA user_version = {VERSION}")
                store.sign()
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
            rows = self._db.execute("SELECT key, value FROM meta").fetchall()
            found = {key: columns.meta(key, value) for key, value in rows if key != SUM}
            missing = {"name", "problem", "rider", "settings", "budget"} - found.keys()
            if self.path is not None and missing:
                raise Damage("the run", sorted(missing)[0], "it is missing")
        return found

    @property
    def settings(self) -> Settings:
        """What decides the tree. Runs of 0.1 went on from the ends of rides, along rows."""
        settings = self.meta["settings"]
        with self._readable(), reading("the run", "settings"):
            if "go_on" not in settings:
                members = "rows" if settings["members"] == "all" else settings["members"]
                settings |= {"members": members, "go_on": "end"}
            return Settings(**settings)

    @property
    def is_old(self) -> bool:
        """Whether it was begun by 0.1, which did not look for points it had come to before."""
        return "go_on" not in self.meta["settings"]

    @property
    def has_digests(self) -> bool:
        """Whether damage would be noticed: files of earlier versions have no digests."""
        return has_digests(self._db)

    def set_meta(self, key: str, value: Any) -> None:
        with self._transaction():
            row = {"key": key, "value": json.dumps(value)}
            if not self._insert_row("meta", row):
                self._change("meta", key, value=row["value"])

    # --- writing

    def checkpoint(self) -> None:
        """Move everything into the one file, so that it can be copied."""
        # Where a reader is in the way, SQLite does it later.
        with contextlib.suppress(sqlite3.OperationalError):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def choose(self, branches: Iterable[Branch], round_number: int) -> None:
        """Mark the branches that are about to be ridden."""
        with self._transaction():
            for branch in branches:
                self._change("branches", str(branch.fingerprint), round=round_number)

    def add(self, leg: Leg, children: Iterable[Branch]) -> list[Branch]:
        """Store a leg, its solution and its children, all or nothing. What is there stays.

        Returns the children that were not there.
        """
        with self._transaction():
            return self._insert(leg, children)

    def complete(self, leg: Leg, children: Iterable[Branch]) -> None:
        """Add the branches of a stored leg that a repair has lost."""
        with self._transaction():
            self._insert_branches(leg, children)

    def _insert(self, leg: Leg, children: Iterable[Branch]) -> list[Branch]:
        row, end = _leg_row(leg), None
        if leg.finish is not None:
            end = self._stored("solutions", _finish_row(leg, leg.finish))
        signed = None if end is None else digest("solutions", end)
        if not self._insert_row("legs", row, signed):
            return []
        if end is not None:
            self._insert_row("solutions", end)
        return self._insert_branches(leg, children)

    def _insert_branches(self, leg: Leg, children: Iterable[Branch]) -> list[Branch]:
        parent = str(leg.fingerprint)
        return [
            branch
            for branch in children
            if self._insert_row("branches", _branch_row(branch, parent))
        ]

    def _insert_row(self, table: str, row: dict[str, Any], solution: bytes | None = None) -> bool:
        """Whether it was new."""
        row = self._stored(table, row)
        row["digest"] = digest(table, {**row, "solution": solution})
        names, values = ", ".join(f'"{name}"' for name in row), ", ".join("?" * len(row))
        insert = f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({values})"
        is_new = bool(self._db.execute(insert, tuple(row.values())).rowcount)
        if is_new and row.get("key") != SUM:
            self._toggle(row["digest"])
        return is_new

    def _stored(self, table: str, row: dict[str, Any]) -> dict[str, Any]:
        if table not in self._kinds:
            self._kinds[table] = columns_of(self._db, table)
        kinds = self._kinds[table]
        return {name: columns.stored(kinds[name], value) for name, value in row.items()}

    def _change(self, table: str, key: str, **values: Any) -> None:
        """Change columns of one row, and its digest with them."""
        rows = list(_rows(self._db, table, f"WHERE {KEYS[table]} = ?", [key]))
        if not rows:
            return
        row = {**rows[0], **self._stored(table, values)}
        query = "SELECT digest FROM solutions WHERE fingerprint = ?"
        end = self._db.execute(query, [key]).fetchone() if table == "legs" else None
        before, row["digest"] = row["digest"], digest(table, {**row, "solution": end and end[0]})
        changed = ", ".join(f'"{name}" = ?' for name in (*values, "digest"))
        self._db.execute(
            f"UPDATE {table} SET {changed} WHERE {KEYS[table]} = ?",
            [*(row[name] for name in (*values, "digest")), key],
        )
        self._toggle(before, row["digest"])

    def _toggle(self, *digests: bytes | None) -> None:
        """Add to the sum, or take from it: without carry that is the same."""
        for one in digests:
            self._change_of_sum ^= int.from_bytes(one or b"")

    def _write_sum(self) -> None:
        if self._change_of_sum:
            value = _sum_in(self._db) ^ self._change_of_sum
            row = {"key": SUM, "value": json.dumps(f"{value:x}")}
            update = "UPDATE meta SET value = ?, digest = ? WHERE key = ?"
            self._db.execute(update, (row["value"], digest("meta", row), SUM))
        self._change_of_sum = 0

    def sign(self) -> None:
        """Give each row the digest of what it holds now: of files that have none."""
        with self._transaction():
            self._db.execute("DELETE FROM meta WHERE key = ?", [SUM])
            self._insert_row("meta", {"key": SUM, "value": json.dumps("0")})
            self._change_of_sum, ends = 0, dict[str, bytes]()
            for table in _signed_tables(self._db):
                names = ("fingerprint", "name") if table == "measures" else (KEYS[table],)
                where = " AND ".join(f"{name} IS ?" for name in names)
                update = f"UPDATE {table} SET digest = ? WHERE {where}"
                keys = self._db.execute(f"SELECT {', '.join(names)} FROM {table}").fetchall()
                for key in keys:
                    if (table, key[0]) == ("meta", SUM):
                        continue
                    (row,) = _rows(self._db, table, f"WHERE {where}", key)
                    end = ends.get(key[0]) if table == "legs" else None
                    signed = digest(table, {**row, "solution": end})
                    self._db.execute(update, (signed, *key))
                    self._toggle(signed)
                    if table == "solutions":
                        ends[key[0]] = signed

    def settle(self, links: dict[Fingerprint, Fingerprint], round_number: int) -> None:
        """A round is over: these of its legs came to points that others had come to before."""
        with self._transaction():
            for one, other in links.items():
                self._change("legs", str(one), linked_to=str(other))
                self._remove_branches(str(one))
            row = {"key": "settled", "value": json.dumps(round_number)}
            if not self._insert_row("meta", row):
                self._change("meta", "settled", value=row["value"])

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
                self._remove("measures", name=name)
            if about is not None:
                self._remove("meta", key="measures")
                self._insert_row("meta", {"key": "measures", "value": json.dumps(about)})
            for (fingerprint, name), value in rows.items():
                key = {"fingerprint": fingerprint, "name": name}
                self._remove("measures", **key)
                self._insert_row("measures", {**key, "value": json.dumps(value)})

    def _remove(self, table: str, **values: str) -> None:
        self._remove_where(table, " AND ".join(f"{name} = ?" for name in values), *values.values())

    def _remove_branches(self, parent: str) -> None:
        """Those of one leg, whose addresses begin with its own: no other row is looked at."""
        where = "fingerprint > ? AND fingerprint < ? AND parent = ?"
        self._remove_where("branches", where, f"{parent} ", f"{parent}!", parent)

    def _remove_where(self, table: str, where: str, *values: str) -> None:
        gone = self._db.execute(f"SELECT digest FROM {table} WHERE {where}", values).fetchall()
        self._toggle(*(row[0] for row in gone))
        self._db.execute(f"DELETE FROM {table} WHERE {where}", values)

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
        return self._pairs(rows, "linked_to")

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
                with reading(leg_name(name), "ways"):
                    sizes[columns.text(name)] = _sizes(turns, ways, below)
        return sizes

    def unsettled(self) -> list[Fingerprint]:
        """The legs of a round that is not over."""
        query = (
            "SELECT b.fingerprint FROM branches b JOIN legs l USING (fingerprint) WHERE b.round > ?"
        )
        with self._readable():
            settled = self.meta.get("settled", self.num_rounds() if self.is_old else 0)
            return [self._address(text) for (text,) in self._db.execute(query, [settled])]

    def num_legs(self) -> int:
        """How many branches were ridden; the start does not count."""
        return self._one("SELECT count(*) FROM legs WHERE depth > 0")

    def num_steps(self) -> int:
        return self._one("SELECT coalesce(sum(num_steps), 0) FROM legs")

    def kinds(self) -> Counter[str]:
        """How many descents ended at each kind of point."""
        query = f"SELECT {finish_columns(self._db, without='arrays')} FROM solutions s"
        with self._readable():
            return Counter(read_finish(row, "a solution").kind for row in self._db.execute(query))

    def num_rounds(self) -> int:
        return self._one("SELECT coalesce(max(round), 0) FROM branches")

    def fingerprints(self) -> list[Fingerprint]:
        """Of the start and of every leg, in the order they were stored."""
        with self._readable():
            rows = self._db.execute("SELECT fingerprint FROM legs ORDER BY id").fetchall()
            return [self._address(text) for (text,) in rows]

    def _address(self, text: Any) -> Fingerprint:
        with reading(leg_name(text), "fingerprint"):
            return columns.address(text)

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
            name = leg_name(fingerprint)
            if row is None and not fingerprint:
                raise Damage(name, "fingerprint", "it is missing")
            if row is None:
                raise KeyError(str(fingerprint))
            finish = read_finish(row[13:], name) if row[-1] is not None else None
            leg = _leg(fingerprint, row[:9], finish, *row[9:13])
            self._check_size(name, leg.x, *([] if finish is None else [finish.x]))
            return leg

    def finishes(self) -> Iterator[tuple[Fingerprint, Finish]]:
        """Where descent ended, for every leg it was run from, shallow legs first."""
        query = (
            f"SELECT s.fingerprint, {finish_columns(self._db)}"
            " FROM solutions s JOIN legs l USING (fingerprint)"
            " ORDER BY l.depth, l.fingerprint"
        )
        with self._readable():
            for text, *row in self._db.execute(query):
                finish = read_finish(row, leg_name(text))
                self._check_size(leg_name(text), finish.x)
                yield self._address(text), finish

    def end(self, fingerprint: Fingerprint) -> Finish:
        """Where the descent from the end of a leg came to rest."""
        query = f"SELECT {finish_columns(self._db)} FROM solutions s WHERE fingerprint = ?"
        with self._readable():
            row, name = self._db.execute(query, [str(fingerprint)]).fetchone(), str(fingerprint)
            if row is None:
                raise Damage(leg_name(name), "solution", "it is missing")
            finish = read_finish(row, leg_name(name))
            self._check_size(leg_name(name), finish.x)
            return finish

    def same(self) -> dict[Fingerprint, Fingerprint]:
        """The ends that are the same solution as one before them, with that one."""
        query = "SELECT fingerprint, same_as FROM solutions WHERE same_as IS NOT NULL"
        if "same_as" not in columns_of(self._db, "solutions"):
            return {}
        with self._readable():
            rows = self._db.execute(query).fetchall()
        return self._pairs(rows, "same_as")

    def _pairs(self, rows: list[Any], column: str) -> dict[Fingerprint, Fingerprint]:
        with self._readable():
            found = {}
            for one, two in rows:
                with reading(leg_name(one), column):
                    found[columns.address(one)] = columns.address(two)
            return found

    def endings(self) -> Counter[str]:
        """How many legs ended by each rule."""
        query = "SELECT ended_by, count(*) FROM legs WHERE depth > 0 GROUP BY ended_by"
        reasons = Counter[str]()
        with self._readable():
            for text, count in self._db.execute(query):
                with reading("a leg", "ended_by"):
                    reasons.update(dict.fromkeys(columns.texts(text), count))
        return reasons

    def cost(self) -> Cost:
        """What all legs cost together."""
        return sum(self.costs().values(), Cost())

    def costs(self) -> dict[Fingerprint, Cost]:
        """What each leg cost, the descent at its end included."""
        costs = {}
        with self._readable():
            for text, cost in self._db.execute("SELECT fingerprint, cost FROM legs ORDER BY id"):
                with reading(leg_name(text), "cost"):
                    costs[columns.address(text)] = columns.cost(cost)
        return costs

    def open_branches(self, *, chosen: bool) -> list[Branch]:
        """Branches without a leg: those chosen in an unfinished round, or those still waiting."""
        query = (
            "SELECT b.fingerprint, b.loss, b.eigenvalue, b.multiplicity, b.priority FROM branches b"
            " LEFT JOIN legs l USING (fingerprint) WHERE l.id IS NULL AND b.round IS "
        )
        with self._readable():
            rows = self._db.execute(query + ("NOT NULL" if chosen else "NULL")).fetchall()
            branches = [_branch(*row) for row in rows]
            with reading("the branches", "priority"):
                return sorted(branches, key=lambda one: (one.priority, one.fingerprint.sort_key()))

    def load(self, branch: Branch) -> Branch:
        """The branch with its arrays, ready to ride. Reads these alone, whatever else is there."""
        turn, parent = branch.fingerprint[-1], str(branch.fingerprint.parent)
        query = f"SELECT id, {'below' if turn.below else 'turns'} FROM legs WHERE fingerprint = ?"
        name = leg_name(parent)
        with self._readable(), reading(name, "arrays"):
            found = self._db.execute(query, [parent]).fetchone()
            if found is None:
                raise Damage(name, "fingerprint", "it is missing, but a branch leaves it")
            data = columns.parsed(found[1], dict)["turns"] if turn.below else found[1]
            turns = columns.turns(data if turn.below else columns.parsed(data, list))
            row = turns.index((turn.index, turn.member))
            with self._db.blobopen("legs", "arrays", found[0], readonly=True) as blob:
                direction = _read(blob, "below" if turn.below else "directions", row)
                x = _read(blob, "x")
            columns.points(x, (None,))
            columns.points(direction, x.shape)
            self._check_size(name, x)
        if turn.below:
            x = np.asarray(self.end(branch.fingerprint.parent).x)
        return replace(branch, x=x, direction=turn.sign * direction)

    def num_open(self) -> int:
        """How many branches have no leg."""
        return self._one("SELECT count(*) FROM branches") - self.num_legs()

    # --- inside

    @cached_property
    def _size(self) -> int:
        """How many parameters there are."""
        return sum(math.prod(shape) for _, shape, _ in self.meta["problem"]["params"])

    def _check_size(self, name: str, *arrays: Any) -> None:
        if self.path is not None and any(array.size != self._size for array in arrays):
            raise Damage(name, "arrays", f"there are {self._size} parameters, but not here")

    def _one(self, query: str) -> int:
        with self._readable():
            return int(self._db.execute(query).fetchone()[0])

    def _check_kind(self) -> None:
        check_tables(self._db)
        if self._db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise ValueError(f"{one_line(self.path)} is not a run file of ridgerider.")
        found = self._db.execute("PRAGMA user_version").fetchone()[0]
        if not 1 <= found <= VERSION:
            raise ValueError(
                f"{one_line(self.path)} is a run file of version {found}, "
                f"but this ridgerider reads versions up to {VERSION}."
            )

    def _add_columns(self) -> None:
        for table, added in ADDED.items():
            present = columns_of(self._db, table)
            for name in added.keys() - present.keys() if present else ():
                self._db.execute(f'ALTER TABLE {table} ADD COLUMN "{name}" {added[name]}')
        self._kinds = {}

    def _check_whole(self) -> None:
        """Raise unless every page is there and every row is what was written."""
        pages, size = (
            self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size")
        )
        wal = Path(f"{self.path}-wal")
        has_wal = wal.exists() and wal.stat().st_size > 0
        name = one_line(self.path)
        if not has_wal and self.path is not None and self.path.stat().st_size < pages * size:
            raise ValueError(f"{name} is truncated: it should have {pages * size} bytes.")
        found = damages(self._db)
        if found:
            first, more = list(found.items())[:3], len(found) - 3
            what = "; ".join(f"{where} ({why})" for where, why in first)
            what += f"; and {more} more" if more > 0 else ""
            raise DamagedRun(
                f"{name} is damaged: {what}. `ridgerider check` names all of it, and with --repair "
                "lets `resume` ride it again."
            )

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except DamagedRun:
            raise
        except Damage as error:
            raise DamagedRun(f"{one_line(self.path)} is damaged: {error}.") from error
        except (sqlite3.Error, OverflowError) as error:
            raise DamagedRun(
                f"{one_line(self.path)} cannot be read as a run file: {one_line(error)}."
            ) from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._write_sum()
            except BaseException:
                self._change_of_sum = 0
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise OSError(
                f"{one_line(self.path)} cannot be written: {one_line(error)}. What was stored "
                "before is safe."
            ) from error


@contextlib.contextmanager
def held(path: Path | None) -> Iterator[None]:
    """While this process rides a run; raises if another does. A kill lets go of it."""
    if path is None or fcntl is None:
        yield
        return
    place = path.with_name(f".{path.name}.lock")
    with _locked(place, path) as file:
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {platform.node()}")
        file.flush()
        try:
            yield
        finally:
            place.unlink(missing_ok=True)


def _locked(place: Path, path: Path) -> IO[str]:
    """The lock file, open and ours."""
    for _ in range(100):  # whoever held it may be taking it away just now
        file = place.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            who = one_line(file.read(200) or "another process")
            file.close()
            raise OSError(
                f"{one_line(path)} is being ridden by {who}: wait for it, or stop it first."
            ) from None
        except OSError:  # a file system without locks
            return file
        if place.exists() and os.path.samestat(place.stat(), os.fstat(file.fileno())):
            return file
        file.close()
    raise OSError(f"{one_line(path)} cannot be locked: its lock file comes and goes.")


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
            f"`out` must be a new file, but {one_line(path)} exists; resume it or choose another "
            "name."
        )
    if not path.parent.is_dir():
        raise ValueError(
            f"`out` must be in a directory that exists, but {one_line(path.parent)} does not."
        )
    if not os.access(path.parent, os.W_OK):
        raise ValueError(
            f"`out` must be in a directory that can be written, but {one_line(path.parent)} cannot."
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
    if leg.finish is not None and leg.finish.path is not None:
        arrays["descent"] = np.asarray(leg.finish.path)
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
    values: dict[str, Any] = {"fingerprint": fingerprint}
    name = leg_name(fingerprint)
    with reading(name, "arrays"):
        found = columns.arrays(arrays)
        values["x"] = columns.points(found["x"], (None,))
        values["eigenvalues"] = columns.points(found["eigenvalues"], (None,))
        values["directions"] = columns.points(found["directions"], (None, values["x"].size))
        if finish is not None and "descent" in found:
            path = columns.points(found["descent"], (None, values["x"].size))
            finish = replace(finish, path=path)  # type: ignore[arg-type]  # on the host
    values["finish"] = finish
    of: dict[str, Callable[[], Any]] = {
        "loss": lambda: columns.real(loss),
        "num_steps": lambda: columns.whole(num_steps),
        "ended_by": lambda: columns.texts(ended_by),
        "num_ridges": lambda: columns.whole(num_ridges),
        "clusters": lambda: columns.clusters(columns.parsed(clusters, list)),
        "turns": lambda: columns.turns(columns.parsed(turns, list)),
        "cost": lambda: columns.cost(cost),
        "trace": lambda: _trace(trace, values["num_steps"]),
        "ways": lambda: () if ways is None else columns.ways(columns.parsed(ways, list)),
        "below": lambda: None if below is None else _below(columns.parsed(below, dict), found),
        "linked_to": lambda: None if linked_to is None else columns.address(linked_to),
        "same_as": lambda: None if same_as is None else columns.address(same_as),
    }
    for column, read in of.items():
        with reading(name, column):
            values[column] = read()
    leg = Leg(**values)
    with reading(name, "turns"):
        for ridges in (leg.ridges, *([] if leg.below is None else [leg.below])):
            _check_ridges(ridges)
        if leg.below is not None and leg.finish is None:
            raise ValueError("ridges leave a saddle below, but there is none")
    return leg


def _below(data: dict[str, Any], arrays: dict[str, np.ndarray]) -> Ridges:
    return Ridges(
        eigenvalues=columns.points(arrays["below_eigenvalues"], (None,)),
        clusters=columns.clusters(data["clusters"]),
        num_ridges=columns.whole(data["num_ridges"]),
        turns=columns.turns(data["turns"]),
        directions=columns.points(arrays["below"], (None, arrays["x"].size)),
        ways=columns.ways(data["ways"]),
    )


def _check_ridges(ridges: Ridges) -> None:
    if len(ridges.turns) != len(ridges.directions) or len(ridges.turns) != len(ridges.ways):
        raise ValueError("there are not as many as directions")
    if any(index >= len(ridges.clusters) for index, _ in ridges.turns):
        raise ValueError("one turns into a cluster that is not there")


def _trace(blob: Any, num_steps: int) -> dict[str, np.ndarray]:
    trace = columns.arrays(blob)
    for name, column in trace.items():
        if name in OF_STEPS and column.shape[:1] != (num_steps + 1,):
            raise ValueError(f"{name} has shape {column.shape}, not that of {num_steps} steps")
    return trace


def _sizes(turns: Any, ways: Any, below: Any) -> dict[str, int]:
    """For each turn from a leg: how many directions are like the one that it takes, if several."""
    places = [(False, columns.parsed(turns, list), columns.parsed(ways, list))]
    if below is not None:
        data = columns.parsed(below, dict)
        places.append((True, data["turns"], data["ways"]))
    return {
        str(Turn(index, sign, member, is_below)): way.class_size
        for is_below, taken, of in places
        for (index, member), way in zip(columns.turns(taken), columns.ways(of), strict=False)
        for sign in (1, -1)
        if way.class_size > 1
    }


def _finish_row(leg: Leg, finish: Finish) -> dict[str, Any]:
    arrays = {"x": np.asarray(finish.x)}
    if finish.is_at_infinity and finish.runaway is not None:
        arrays["runaway"] = np.asarray(finish.runaway)
    arrays |= {f"{HISTORY}{name}": column for name, column in (finish.history or {}).items()}
    return {
        "fingerprint": str(leg.fingerprint),
        **{name: _plain(kind, getattr(finish, name)) for name, kind in FINISH_FIELDS.items()},
        "same_as": None if leg.same_as is None else str(leg.same_as),
        "cost": _json_cost(finish.cost),
        "arrays": _pack(arrays),
    }


def _plain(kind: Callable[[Any], Any], value: Any) -> int | float:
    return float(value) if kind is columns.real else int(value)


def columns_of(connection: sqlite3.Connection, table: str) -> dict[str, str]:
    """The columns of a table, each with its kind."""
    return {row[1]: row[2] for row in connection.execute(f"PRAGMA table_info({table})")}


def _rows(
    db: sqlite3.Connection, table: str, where: str = "", values: Sequence[Any] = ()
) -> Iterator[dict[str, Any]]:
    cursor = db.execute(f"SELECT * FROM {table} {where}", values)
    names = [about[0] for about in cursor.description]
    return (dict(zip(names, row, strict=True)) for row in cursor)


def check_tables(db: sqlite3.Connection) -> None:
    """Raise if a file holds more than tables: whoever made it could have them compute for ever."""
    db.execute("PRAGMA trusted_schema = OFF")
    for kind, name, sql in db.execute("SELECT type, name, sql FROM sqlite_master"):
        is_odd = kind in ("view", "trigger") or str(sql).upper().startswith("CREATE VIRTUAL")
        is_known = kind == "table" and name in KEYS
        if is_odd or (
            is_known and any(row[6] for row in db.execute(f"PRAGMA table_xinfo({name})"))
        ):
            raise Damage("the file", one_line(name), "it is no plain table")
    missing = set(TABLES) - {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    if missing and db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID:
        raise Damage("the file", sorted(missing)[0], "there is no such table")


def _signed_tables(db: sqlite3.Connection) -> list[str]:
    """Solutions before legs, whose digests cover theirs."""
    measures = ["measures"] if columns_of(db, "measures") else []
    return ["meta", "solutions", "legs", "branches", *measures]


def has_digests(db: sqlite3.Connection) -> bool:
    return "digest" in columns_of(db, "legs")


def _sum_in(db: sqlite3.Connection) -> int:
    with reading("the run", SUM):
        (value,) = db.execute("SELECT value FROM meta WHERE key = ?", [SUM]).fetchone()
        return int(columns.parsed(value, str), 16)


def damages(db: sqlite3.Connection) -> dict[str, str]:
    """What is not as it was written: where, and why. All that is here is read, at one moment."""
    found: dict[str, str] = {}
    with contextlib.suppress(sqlite3.OperationalError):  # a transaction is under way: as good
        db.execute("BEGIN")
    try:
        for (line,) in db.execute("PRAGMA integrity_check(5)"):
            if line != "ok":
                found["the file"] = one_line(line)
        found |= damaged_rows(db)
    except KeyError as error:
        found["the file"] = f"there is no column {one_line(error)}"
    except (sqlite3.Error, *BAD) as error:
        found["the file"] = one_line(error)
    finally:
        with contextlib.suppress(sqlite3.Error):
            db.execute("COMMIT")
    return found


def damaged_rows(db: sqlite3.Connection) -> dict[str, str]:
    """The rows that are not what their digests say, by leg; and whether one is missing."""
    found, total, ends = dict[str, str](), 0, dict[str, bytes]()
    version = db.execute("PRAGMA user_version").fetchone()[0]
    wanted = {*ADDED["legs"], *ADDED["solutions"]} if version >= VERSION else set()
    known = columns_of(db, "legs") | columns_of(db, "solutions")
    if version < VERSION:  # a file of an earlier version, unless it has what those had not
        is_newer = has_digests(db) or db.execute("SELECT 1 FROM meta WHERE key = 'sum'").fetchone()
        return {"the file": f"it says that its version is {version}"} if is_newer else {}
    if not wanted <= known.keys():
        return {"the file": f"there is no column {sorted(wanted - known.keys())[0]}"}
    for table in _signed_tables(db):
        for row in _rows(db, table):
            name = row[KEYS[table]]
            end = ends.get(name) if table == "legs" else None
            right = digest(table, {**row, "solution": end})
            if row["digest"] != right:
                found[_row_name(table, row)] = "its digest does not fit"
            if (table, name) != ("meta", SUM):
                total ^= int.from_bytes(right)
            if table == "solutions":
                ends[name] = right
    if not found and total != _sum_in(db):
        found["the file"] = "rows are missing, or too many"
    return found


def _row_name(table: str, row: dict[str, Any]) -> str:
    key = row[KEYS[table]]
    if table == "meta":
        return f"the entry {one_line(key)} of the run"
    if table == "measures":
        return f"what was measured of leg {one_line(key)}"
    return f"branch {one_line(key)}" if table == "branches" else leg_name(key)


def read_measures(connection: sqlite3.Connection) -> dict[str, dict[str, Any]]:
    """What was measured of solutions, if anything was."""
    found: dict[str, dict[str, Any]] = {}
    query = "SELECT fingerprint, name, value FROM measures"
    if columns_of(connection, "measures"):
        for fingerprint, name, value in connection.execute(query):
            with reading(f"what was measured of leg {one_line(fingerprint)}", "value"):
                columns.address(fingerprint)
                found.setdefault(columns.text(name), {})[fingerprint] = columns.plain(value)
    return found


def finish_columns(connection: sqlite3.Connection, without: str = "") -> str:
    """What `read_finish` reads, from files of any version; it can do without the arrays."""
    known = columns_of(connection, "solutions").keys() - {without}
    names = (*FINISH_FIELDS, "cost", "arrays")
    return ", ".join(f's."{name}"' if name in known else "NULL" for name in names)


def read_finish(row: Sequence[Any], name: str) -> Finish:
    *scalars, cost, arrays = row
    fields: dict[str, Any] = {}
    for (column, kind), value in zip(FINISH_FIELDS.items(), scalars, strict=True):
        with reading(name, column):
            fields[column] = kind(0 if value is None and kind is not columns.real else value)
    with reading(name, "arrays"):
        found = {"x": np.zeros(0)} if arrays is None else columns.arrays(arrays)
        columns.points(found["x"], (None,))
        if "runaway" in found:
            columns.points(found["runaway"], found["x"].shape)
    with reading(name, "cost"):
        spent = columns.cost(cost)
    if math.isnan(fields["error"]):  # a file of 0.1, which had one tolerance for all
        fields["error"] = reach_of(found["x"], TOLERANCE)
    history = {
        key.removeprefix(HISTORY): array for key, array in found.items() if key.startswith(HISTORY)
    }
    with reading(name, "doubt_number"):
        finish = Finish(
            x=found["x"],  # type: ignore[arg-type]  # on the host
            cost=spent,
            runaway=found.get("runaway"),  # type: ignore[arg-type]
            history=history or None,
            **fields,
        )
        finish.doubt  # noqa: B018  # one that is known
        return finish


def _branch(text: Any, loss: Any, eigenvalue: Any, multiplicity: Any, priority: Any) -> Branch:
    with reading(f"branch {one_line(text)}", "fingerprint"):
        return Branch(
            columns.address(text),
            columns.real(loss),
            columns.real(eigenvalue),
            columns.whole(multiplicity),
            columns.priority(priority),
        )


def _branch_row(branch: Branch, parent: str) -> dict[str, Any]:
    try:
        priority = json.dumps(branch.priority)
    except TypeError:
        raise ValueError(
            "`order` must return numbers, strings or tuples of them, "
            f"not {type(branch.priority).__name__}."
        ) from None
    return {
        "fingerprint": f"{parent} {branch.fingerprint[-1]}".lstrip(),
        "parent": parent,
        "loss": branch.loss,
        "eigenvalue": branch.eigenvalue,
        "multiplicity": branch.multiplicity,
        "priority": priority,
        "round": None,
    }


def _json_cost(cost: Cost) -> str:
    counts = {name: int(value) for name, value in vars(cost).items() if name != "seconds"}
    return json.dumps({**counts, "seconds": float(cost.seconds)})


def _pack(arrays: dict[str, np.ndarray]) -> bytes:
    return safetensors.numpy.save(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    )


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
