"""A run file that is read and written: every statement of SQL is here.

What is read is checked: a damaged row raises `DamagedRun`.

A leg and its children are one transaction: after any crash the file holds whole legs only. Branches
chosen together are marked with their round before any of them is ridden, so that a resumed search
finishes the round first and continues to the same tree.

At the end: the file on disk, opened, locked, and made readable if it was cut short.
"""

import contextlib
import json
import os
import platform
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from ridgerider._check import check_directory, one_line
from ridgerider._core.descend.finish import Finish
from ridgerider._core.problem.cost import Cost
from ridgerider._search.runfile import schema
from ridgerider._search.runfile.schema import (
    BRANCH,
    END,
    Damage,
    DamagedRun,
    Row,
    branch_to_row,
    end_from_row,
    leg_from_row,
    leg_to_row,
)
from ridgerider._search.tree import Branch, Fingerprint, Leg, Settings, Turn

RUN_FILE = "run.sqlite"  # in a directory of the command line


class RunFile:
    """A run file that was opened, or the same tables in memory."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None):
        self._db, self.path = connection, path

    @classmethod
    def open(cls, path: str | os.PathLike, *, write: bool = False) -> Self:
        """An existing run, checked before it is used; `path` may be its directory."""
        path = run_file(path)
        check_is_run(path)
        if write and not os.access(path, os.W_OK):
            raise ValueError(
                f"`path` must be a run file that can be written, but {one_line(path)} is read-only."
            )
        run = cls._connected(path, path, write=write)
        with run.closed_on_error(), run._readable():
            if found := run.damages():
                first, more = list(found.items())[:3], len(found) - 3
                what = "; ".join(f"{where} ({why})" for where, why in first)
                what += f"; and {more} more" if more > 0 else ""
                raise DamagedRun(
                    f"{one_line(path)} is damaged: {what}. `ridgerider check` names all of it, and "
                    "with --repair lets `resume` repeat it."
                )
            run._db.execute("PRAGMA synchronous = NORMAL")
        return run

    @classmethod
    @contextlib.contextmanager
    def open_damaged(cls, path: Path) -> Iterator[Self]:
        """What there is of a run file; only its format is checked."""
        with padded(path) as place, contextlib.closing(cls._connected(path, place)) as run:
            yield run

    @classmethod
    def _connected(cls, path: Path, place: Path, write: bool = False) -> Self:
        """The run at `path`, read from `place`."""
        try:
            run = cls(connect(place, write=write), path)
        except sqlite3.Error as error:
            raise ValueError(
                f"`path` must be a run file, but {one_line(path)} cannot be opened: "
                f"{one_line(error)}."
            ) from None
        with run.closed_on_error(), run._readable():
            _check_format(run._db, path)
        return run

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
            found = {
                row["key"]: schema.read_meta(row["key"], row["value"])
                for row in self._values("meta", ("key", "value"))
                if row["key"] != schema.SUM
            }
            missing = [name for name in schema.NEEDED if name not in found]
            if self.path is not None and missing:
                raise Damage(f"the run: {missing[0]} is missing")
        return found

    @property
    def settings(self) -> Settings:
        """What decides the tree."""
        with self._readable(), schema.reading("the run, column settings"):
            return Settings(**self.meta["settings"])

    # --- the tree

    def fingerprints(self) -> list[Fingerprint]:
        """Of the start and of every leg, in the order they were stored."""
        rows = self._values("legs", ("fingerprint",), "ORDER BY id")
        return [row["fingerprint"] for row in rows]

    def leg(self, fingerprint: Fingerprint) -> Leg:
        """One leg, whole. Raises KeyError if it was not ridden."""
        with self._readable():
            row = self._row(fingerprint)
            if row is None and not fingerprint:
                raise Damage("the start is missing")
            if row is None:
                raise KeyError(str(fingerprint))
            return leg_from_row(row, self._size)

    def finishes(self) -> Iterator[tuple[Fingerprint, Finish]]:
        """Where descent ended, for every leg it was run from, shallow legs first."""
        where = "WHERE finish IS NOT NULL ORDER BY depth, fingerprint"
        with self._readable():
            for row in select(self._db, "legs", END, where):
                finish = end_from_row(row, self._size)  # which checks the fingerprint
                yield Fingerprint.parse(row["fingerprint"]), finish

    def end(self, fingerprint: Fingerprint) -> Finish:
        """Where the descent from the end of a leg converged."""
        with self._readable():
            row = self._row(fingerprint, END)
            if row is None or row["finish"] is None:
                raise Damage(f"{schema.leg_name(fingerprint)}: its finish is missing")
            return end_from_row(row, self._size)

    def links(self, column: str = "linked_to") -> dict[Fingerprint, Fingerprint]:
        """The legs that reached a point that another had reached before, with that one.

        With "same_as", the ends that are the same solution as one before them.
        """
        rows = self._values("legs", ("fingerprint", column), f"WHERE {column} IS NOT NULL")
        return {row["fingerprint"]: row[column] for row in rows}

    def class_sizes(self) -> dict[Fingerprint, int]:
        """By fingerprint of a branch: how many directions are equivalent to its own, if several."""
        sizes = {}
        for row in self._values("legs", ("fingerprint", "ridges", "below")):
            for found, is_below in ((row["ridges"], False), (row["below"], True)):
                ridges = ((), ()) if found is None else (found["turns"], found["ways"])
                for (index, member), way in zip(*ridges, strict=True):
                    for sign in (1, -1) if way.class_size > 1 else ():
                        turn = Turn(index, sign, member, is_below)
                        sizes[row["fingerprint"].child(turn)] = way.class_size
        return sizes

    def num_legs(self) -> int:
        """How many branches were ridden; the start does not count."""
        return self._number("SELECT count(*) FROM legs WHERE depth > 0")

    def num_steps(self) -> int:
        return self._number("SELECT coalesce(sum(num_steps), 0) FROM legs")

    def num_rounds(self) -> int:
        return self._number("SELECT coalesce(max(round), 0) FROM branches")

    def num_open(self) -> int:
        """How many branches have no leg."""
        return self._number(
            "SELECT count(*) FROM branches LEFT JOIN legs USING (fingerprint) WHERE id IS NULL"
        )

    def endings(self) -> Counter[str]:
        """How many legs ended by each rule."""
        rows = self._values("legs", ("ended_by",), "WHERE depth > 0")
        return Counter(reason for row in rows for reason in dict.fromkeys(row["ended_by"]))

    def cost(self) -> Cost:
        """What all legs cost together."""
        return sum((row["cost"] for row in self._values("legs", ("cost",))), Cost())

    def measures(self) -> dict[str, dict[str, Any]]:
        """What was measured: by its name, the value at each fingerprint."""
        found: dict[str, dict[str, Any]] = {}
        for row in self._values("measures", ("fingerprint", "name", "value")):
            found.setdefault(row["name"], {})[str(row["fingerprint"])] = row["value"]
        return found

    # --- the branches

    def open_branches(self) -> list[Branch]:
        """The branches that wait to be chosen."""
        return [Branch(**row) for row in self._values("branches", BRANCH, "WHERE round IS NULL")]

    def pending(self) -> list[Branch]:
        """The branches that were chosen and whose legs are missing or not settled, in order."""
        settled = "SELECT fingerprint FROM legs WHERE is_settled"
        where = f"WHERE round IS NOT NULL AND fingerprint NOT IN ({settled})"
        rows = list(self._values("branches", (*BRANCH, "round"), where))
        with self._readable(), schema.reading("the branches, column priority"):
            rows.sort(
                key=lambda row: (row["round"], row["priority"], row["fingerprint"].sort_key())
            )
        return [Branch(**{name: row[name] for name in BRANCH}) for row in rows]

    def rounds(self) -> dict[Fingerprint, int]:
        """The round in which each branch was chosen, of those that were."""
        rows = self._values("branches", ("fingerprint", "round"), "WHERE round IS NOT NULL")
        return {row["fingerprint"]: row["round"] for row in rows}

    def load(self, branch: Branch) -> Branch:
        """The branch with its arrays, ready to ride."""
        turn, parent = branch.fingerprint[-1], branch.fingerprint.parent
        part, blob = ("below", "end_arrays") if turn.below else ("ridges", "arrays")
        with self._readable(), schema.reading(schema.leg_name(parent)):
            row = self._row(parent, ("fingerprint", part, blob))
            if row is None:
                raise ValueError("it is missing, but a branch leaves it")
            found = schema.decode("legs", row)
            x = schema.points(found[blob]["x"], (self._size,))
            number = found[part]["turns"].index((turn.index, turn.member))
            direction = schema.points(found[blob]["directions"], (None, x.size))[number]
        hessian = found[blob].get("hessian")
        return replace(branch, x=x, direction=turn.sign * direction, hessian=hessian)

    # --- what is damaged

    def damages(self) -> dict[str, str]:
        """What is not as it was written: where, and why. Everything is read, at one moment."""
        found, total = dict[str, str](), 0
        with contextlib.suppress(sqlite3.OperationalError):  # a transaction is under way: as good
            self._db.execute("BEGIN")
        try:
            for (line,) in self._db.execute("PRAGMA integrity_check(5)"):
                if line != "ok":
                    found["the file"] = one_line(line)
            for table in schema.TABLES:
                for row in select(self._db, table):
                    digest = schema.row_digest(table, row)
                    if row["digest"] != digest:
                        found[schema.row_name(table, row)] = "its digest does not fit"
                    if row.get("key") != schema.SUM:
                        total ^= int.from_bytes(digest)
            if not found and total != self._sum():
                found["the file"] = "rows are missing, or too many"
        except Exception as error:
            found["the file"] = one_line(error)
        finally:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("COMMIT")
        return found

    def _sum(self) -> int:
        """Of all digests, as the file has it."""
        with schema.reading("the run, column sum"):
            row = select_one(self._db, "meta", ("value",), "WHERE key = ?", [schema.SUM])
            return int(schema.is_a(str, json.loads(schema.is_a(dict, row)["value"])), 16)

    # --- inside

    @cached_property
    def _size(self) -> int | None:
        """How many parameters there are."""
        return None if self.path is None else schema.num_params(self.meta)

    def _values(
        self, table: str, names: Sequence[str], where: str = "", values: Sequence[Any] = ()
    ) -> Iterator[dict[str, Any]]:
        """Columns of rows, checked."""
        with self._readable():
            for row in select(self._db, table, names, where, values):
                yield schema.decode(table, row)

    def _row(self, fingerprint: Fingerprint, names: Sequence[str] = ()) -> Row | None:
        names = names or tuple(schema.TABLES["legs"])
        return select_one(self._db, "legs", names, "WHERE fingerprint = ?", [str(fingerprint)])

    def _number(self, query: str) -> int:
        with self._readable():
            return int(self._db.execute(query).fetchone()[0])

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
        entries = {schema.SUM: "0", **meta, "versions": versions()}
        rows = {
            "meta": [entry(key, value) for key, value in entries.items()],
            "legs": [leg_to_row(replace(root, is_settled=True))],
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
        """A new file that holds these rows, by table."""
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
            self._insert("legs", leg_to_row(replace(leg, is_settled=False)))

    def settle(self, leg: Leg, children: Iterable[Branch]) -> list[Branch]:
        """Store a settled leg and its children, all or nothing; returns those that were not there.

        A leg that was stored when it arrived goes to the end.
        """
        with self._transaction():
            self._replace("legs", leg_to_row(replace(leg, is_settled=True)))
            return [one for one in children if self._insert("branches", branch_to_row(one))]

    def reset_branches(self, branches: Iterable[Branch]) -> None:
        """Replace all branches by those that leave the start."""
        with self._transaction():
            self._remove("branches", "TRUE")
            for branch in branches:
                self._insert("branches", branch_to_row(branch))

    def choose(self, branches: Iterable[Branch]) -> dict[Fingerprint, int]:
        """Mark the branches of the next round, which are about to be ridden; returns its number."""
        number = self.num_rounds() + 1
        with self._transaction():
            for branch in branches:
                self._replace("branches", {**branch_to_row(branch), "round": number})
        return {branch.fingerprint: number for branch in branches}

    def set_meta(self, key: str, value: Any) -> None:
        with self._transaction():
            self._replace("meta", entry(key, value))

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
                self._replace("meta", entry("measures", about))
            for (fingerprint, name), value in values.items():
                row = {"fingerprint": fingerprint, "name": name, "value": json.dumps(value)}
                self._replace("measures", row)

    def checkpoint(self) -> None:
        """Move everything into the one file, so that it can be copied."""
        # Where a reader is in the way, SQLite does it later.
        with contextlib.suppress(sqlite3.OperationalError):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # --- rows, with their digests

    def _insert(self, table: str, row: Row) -> bool:
        """Whether it was new."""
        row = {**row, "digest": schema.row_digest(table, row)}
        names, values = ", ".join(f"[{name}]" for name in row), ", ".join("?" * len(row))
        insert = f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({values})"
        is_new = bool(self._db.execute(insert, tuple(row.values())).rowcount)
        if is_new and row.get("key") != schema.SUM:
            self._change_of_sum ^= int.from_bytes(row["digest"])
        return is_new

    def _replace(self, table: str, row: Row) -> None:
        """Insert a row in place of the one with its key."""
        keys = schema.KEYS[table]
        self._remove(table, " AND ".join(f"{key} = ?" for key in keys), *(row[key] for key in keys))
        self._insert(table, row)

    def _remove(self, table: str, where: str, *values: str) -> None:
        # Without carry, to take from the sum is to add to it.
        for row in select(self._db, table, ("digest",), f"WHERE {where}", values):
            self._change_of_sum ^= int.from_bytes(row["digest"] or b"")
        self._db.execute(f"DELETE FROM {table} WHERE {where}", values)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._change_of_sum = 0
                yield
                row = entry(schema.SUM, f"{self._sum() ^ self._change_of_sum:x}")
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


def entry(key: str, value: Any) -> Row:
    return {"key": key, "value": json.dumps(value)}


def versions() -> dict[str, str]:
    """Of the software that a run was made with."""
    packages = {
        name: version(name) for name in ("ridgerider", "jax", "jaxlib", "numpy", "equinox", "optax")
    }
    return {**packages, "python": platform.python_version(), "machine": platform.machine()}


def select(
    db: sqlite3.Connection,
    table: str,
    names: Sequence[str] = (),
    where: str = "",
    values: Sequence[Any] = (),
) -> Iterator[Row]:
    """Rows as SQLite holds them; all of our columns unless some are named."""
    names = names or (*schema.TABLES[table], "digest")
    # In brackets, as SQLite takes a name in quotes for text if there is no such column.
    listed = ", ".join(f"{table}.[{name}]" for name in names)
    for row in db.execute(f"SELECT {listed} FROM {table} {where}", values):
        yield dict(zip(names, row, strict=True))


def select_one(db: sqlite3.Connection, table: str, *rest: Any) -> Row | None:
    return next(select(db, table, *rest), None)


def _check_format(db: sqlite3.Connection, path: Path) -> None:
    """Raise unless it is a run file, of our format, that holds nothing but tables."""
    db.execute("PRAGMA trusted_schema = OFF")
    for kind, name, sql in db.execute("SELECT type, name, sql FROM sqlite_master"):
        # Whoever made the file could have other things than tables compute forever.
        is_odd = kind in ("view", "trigger") or str(sql).upper().startswith("CREATE VIRTUAL")
        is_ours = kind == "table" and name in schema.TABLES
        if is_odd or (is_ours and any(row[6] for row in db.execute(f"PRAGMA table_xinfo({name})"))):
            raise Damage(f"{one_line(name)} is not a plain table")
    if _pragma(db, "application_id") != schema.APPLICATION_ID:
        raise ValueError(f"{one_line(path)} is not a run file of ridgerider.")
    found = _pragma(db, "user_version")
    if found != schema.FORMAT:
        raise ValueError(
            f"{one_line(path)} is a run file of format {found}, but this version of ridgerider "
            f"reads format {schema.FORMAT} only."
        )
    known = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    if missing := [table for table in schema.TABLES if table not in known]:
        raise Damage(f"there is no table {missing[0]}")


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return db.execute(f"PRAGMA {name}").fetchone()[0]


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def connect(path: Path, *, write: bool) -> sqlite3.Connection:
    """An existing database."""
    # Reading a WAL file needs a place for its index; where there is none (a read-only directory)
    # nobody writes either.
    mode = "mode=rw" if write else "mode=ro"
    if not write and not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists():
        mode = "immutable=1"
    uri = f"{path.absolute().as_uri()}?{mode}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


def connect_new(path: Path | str) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


@contextlib.contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A place for a new file that is moved to `path` once it is whole; it is left clean."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        yield new
    finally:
        for end in ("", "-journal", "-wal", "-shm"):
            Path(f"{new}{end}").unlink(missing_ok=True)


def move(new: Path, path: Path) -> None:
    """Give a file its name, unless another has taken it."""
    try:
        os.link(new, path)
    except FileExistsError:
        check_new(path)
    except OSError:  # a file system without links
        new.rename(path)


def run_file(run: str | os.PathLike) -> Path:
    """The run file itself, from its path or its directory's."""
    path = Path(run)
    return path / RUN_FILE if path.is_dir() else path


def check_is_run(path: Path) -> None:
    """Raise unless there is something to read at `path`."""
    if not path.is_file():
        raise ValueError(f"`path` must be a run file, but there is none at {one_line(path)}.")
    if not path.stat().st_size:
        raise ValueError(f"{one_line(path)} is empty: there is nothing to read in it.")


def check_new(path: Path) -> None:
    """Raise unless a new file can be made at `path`."""
    if path.exists():
        raise ValueError(
            f"`out` must be a new file, but {one_line(path)} exists; resume it or choose another "
            "name."
        )
    check_directory("out", path)
    if not os.access(path.parent, os.W_OK):
        raise ValueError(
            f"`out` must be in a directory that can be written, but {one_line(path.parent)} cannot."
        )


@contextlib.contextmanager
def held(path: Path | None) -> Iterator[None]:
    """While this process rides a run; raises if another does. A kill lets go of it."""
    if path is None or fcntl is None:
        yield
        return
    place = path.with_name(f".{path.name}.lock")
    with place.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            who = one_line(file.read(200) or "another process")
            raise OSError(
                f"{one_line(path)} is being searched by {who}: wait for it, or stop it first."
            ) from None
        except OSError:  # a file system without locks
            pass
        if place.exists() and os.path.samestat(place.stat(), os.fstat(file.fileno())):
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}")
            file.flush()
            try:
                yield
            finally:
                place.unlink(missing_ok=True)
            return
    with held(path):  # whoever held it has just taken it away
        yield


def is_growing(path: Path) -> bool:
    """Whether more of it is in the log that SQLite keeps beside it."""
    wal = Path(f"{path}-wal")
    return wal.exists() and wal.stat().st_size > 0


@contextlib.contextmanager
def padded(path: Path) -> Iterator[Path]:
    """The file itself; of one that was cut short a copy with zeros in place of what is missing.

    SQLite does not even open a file that is shorter than it says.
    """
    check_is_run(path)
    with path.open("rb") as file:
        head = file.read(32)
    page_size = int.from_bytes(head[16:18])
    size = (65536 if page_size == 1 else page_size) * int.from_bytes(head[28:32])
    is_database = head.startswith(b"SQLite format 3")
    if path.stat().st_size >= size or is_growing(path) or not is_database:
        yield path
        return
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "run.sqlite"
        shutil.copy(path, copy)
        os.truncate(copy, size)
        yield copy
