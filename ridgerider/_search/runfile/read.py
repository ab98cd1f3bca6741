"""Reading a run file: every SELECT is here, and what comes back is checked.

A damaged row raises `DamagedRun`. `RunFile.open_damaged` opens a file whose rows were not checked,
and `readable_rows` then reads around what is damaged.

At the end: the file on disk, opened, locked, and made readable if it was cut short.
"""

import contextlib
import json
import math
import os
import platform
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Self

from ridgerider._check import one_line
from ridgerider._core.descend.finish import Finish
from ridgerider._core.problem.cost import Cost
from ridgerider._search.runfile import schema
from ridgerider._search.runfile.schema import (
    BRANCH,
    Damage,
    DamagedRun,
    Row,
    finish_from_row,
    hessian_of,
    leg_from_rows,
)
from ridgerider._search.tree import Branch, Fingerprint, Leg, Settings, Turn

MAX_MISSES = 1000  # rows that cannot be read, one after the other, until it is the end


class RunFile:
    """A run file that was opened, or the same tables in memory."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None):
        self._db, self.path = connection, path

    @classmethod
    def open(cls, path: str | os.PathLike, *, write: bool = False) -> Self:
        """An existing run, checked before it is used."""
        path = Path(path)
        check_is_run(path)
        if write and not os.access(path, os.W_OK):
            raise ValueError(
                f"`path` must be a run file that can be written, but {one_line(path)} is read-only."
            )
        run = cls._connected(path, path, write=write)
        with run.closed_on_error(), run._readable():
            size = _pragma(run._db, "page_count") * _pragma(run._db, "page_size")
            if not is_growing(path) and path.stat().st_size < size:
                raise ValueError(f"{one_line(path)} is truncated: it should have {size} bytes.")
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
                raise Damage("the run", missing[0], "it is missing")
        return found

    @property
    def settings(self) -> Settings:
        """What decides the tree."""
        with self._readable(), schema.reading("the run", "settings"):
            return Settings(**self.meta["settings"])

    # --- the tree

    def fingerprints(self) -> list[Fingerprint]:
        """Of the start and of every leg, in the order they were stored."""
        rows = self._values("legs", ("fingerprint",), "ORDER BY id")
        return [row["fingerprint"] for row in rows]

    def leg(self, fingerprint: Fingerprint) -> Leg:
        """One leg, whole. Raises KeyError if it was not ridden."""
        with self._readable():
            row = self._row("legs", fingerprint)
            if row is None and not fingerprint:
                raise Damage("the start", "fingerprint", "it is missing")
            if row is None:
                raise KeyError(str(fingerprint))
            return leg_from_rows(row, self._row("solutions", fingerprint), self._size)

    def finishes(self) -> Iterator[tuple[Fingerprint, Finish]]:
        """Where descent ended, for every leg it was run from, shallow legs first."""
        order = "JOIN legs USING (fingerprint) ORDER BY legs.depth, legs.fingerprint"
        with self._readable():
            for row in select(self._db, "solutions", tuple(schema.TABLES["solutions"]), order):
                finish = finish_from_row(row, self._size)  # which checks the fingerprint
                yield Fingerprint.parse(row["fingerprint"]), finish

    def end(self, fingerprint: Fingerprint) -> Finish:
        """Where the descent from the end of a leg converged."""
        with self._readable():
            row = self._row("solutions", fingerprint)
            if row is None:
                raise Damage(schema.leg_name(fingerprint), "solution", "it is missing")
            return finish_from_row(row, self._size)

    def links(self) -> dict[Fingerprint, Fingerprint]:
        """The legs that reached a point that another had reached before, with that one."""
        return self._pairs("legs", "linked_to")

    def same(self) -> dict[Fingerprint, Fingerprint]:
        """The ends that are the same solution as one before them, with that one."""
        return self._pairs("solutions", "same_as")

    def class_sizes(self) -> dict[Fingerprint, int]:
        """By fingerprint of a branch: how many directions are equivalent to its own, if several."""
        sizes, names = {}, ("fingerprint", "turns", "ways")
        for table in ("legs", "solutions"):
            for row in self._values(table, names, "WHERE ways IS NOT NULL"):
                for (index, member), way in zip(row["turns"], row["ways"], strict=False):
                    for sign in (1, -1) if way.class_size > 1 else ():
                        turn = Turn(index, sign, member, below=table == "solutions")
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
        with self._readable(), schema.reading("the branches", "priority"):
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
        table, name = "solutions" if turn.below else "legs", schema.leg_name(parent)
        with self._readable(), schema.reading(name, "arrays"):
            row = self._row(table, parent, ("turns", "arrays"))
            if row is None:
                raise Damage(name, "fingerprint", "it is missing, but a branch leaves it")
            found = schema.decode(table, row)
            x = schema.points(found["arrays"]["x"], (self._size,))
            directions = schema.points(found["arrays"]["directions"], (None, x.size))
            direction = directions[found["turns"].index((turn.index, turn.member))]
            hessian = hessian_of(found["arrays"], x.size)
        return replace(branch, x=x, direction=turn.sign * direction, hessian=hessian)

    # --- what is damaged

    def damages(self) -> dict[str, str]:
        """What is not as it was written: where, and why. Everything is read, at one moment."""
        found, total, ends = dict[str, str](), 0, dict[str, bytes]()
        with contextlib.suppress(sqlite3.OperationalError):  # a transaction is under way: as good
            self._db.execute("BEGIN")
        try:
            for (line,) in self._db.execute("PRAGMA integrity_check(5)"):
                if line != "ok":
                    found["the file"] = one_line(line)
            for table in schema.TABLES:
                for row in select(self._db, table):
                    key = row[schema.KEYS[table][0]]
                    solution = ends.get(key) if table == "legs" else None
                    digest = schema.row_digest(table, row, solution)
                    if row["digest"] != digest:
                        found[schema.row_name(table, row)] = "its digest does not fit"
                    if (table, key) != ("meta", schema.SUM):
                        total ^= int.from_bytes(digest)
                    if table == "solutions":
                        ends[key] = digest
            if not found and total != sum_of_digests(self._db):
                found["the file"] = "rows are missing, or too many"
        except Exception as error:
            found["the file"] = one_line(error)
        finally:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("COMMIT")
        return found

    def readable_rows(self, table: str) -> Iterator[Row]:
        """Rows, also beyond rows that cannot be read.

        Where rows have no numbers, those before the first that cannot be read.
        """
        if table not in schema.NUMBERED:
            with contextlib.suppress(sqlite3.Error):
                yield from select(self._db, table)
            return
        names = ("rowid", *schema.TABLES[table], "digest")
        where = "WHERE rowid > ? ORDER BY rowid LIMIT 1"
        last, after, misses = math.inf, 0, 0
        with contextlib.suppress(DamagedRun):
            last = self._number(f"SELECT coalesce(max(rowid), 0) FROM {table}")
        while misses < MAX_MISSES and after < last:
            try:
                row = select_one(self._db, table, names, where, [after])
            except sqlite3.Error:
                misses, after = misses + 1, after + 1
                continue
            if row is None or row["rowid"] <= after:  # which a damaged index may find
                return
            misses, after = 0, row.pop("rowid")
            yield row

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

    def _pairs(self, table: str, column: str) -> dict[Fingerprint, Fingerprint]:
        rows = self._values(table, ("fingerprint", column), f"WHERE {column} IS NOT NULL")
        return {row["fingerprint"]: row[column] for row in rows}

    def _row(self, table: str, fingerprint: Fingerprint, names: Sequence[str] = ()) -> Row | None:
        names = names or tuple(schema.TABLES[table])
        return select_one(self._db, table, names, "WHERE fingerprint = ?", [str(fingerprint)])

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
            raise Damage("the file", one_line(name), "it is not a plain table")
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
        raise Damage("the file", missing[0], "there is no such table")


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return db.execute(f"PRAGMA {name}").fetchone()[0]


def sum_of_digests(db: sqlite3.Connection) -> int:
    """As the file has it."""
    with schema.reading("the run", schema.SUM):
        row = select_one(db, "meta", ("value",), "WHERE key = ?", [schema.SUM])
        return int(schema.text(json.loads(schema.is_a(dict, row)["value"])), 16)


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
    if not path.parent.is_dir():
        raise ValueError(
            f"`out` must be in a directory that exists, but {one_line(path.parent)} does not."
        )
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
                f"{one_line(path)} is being searched by {who}: wait for it, or stop it first."
            ) from None
        except OSError:  # a file system without locks
            return file
        if place.exists() and os.path.samestat(place.stat(), os.fstat(file.fileno())):
            return file
        file.close()
    raise OSError(f"{one_line(path)} cannot be locked: its lock file comes and goes.")


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
