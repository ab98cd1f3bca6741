"""The file of a run on disk: opened, locked, created whole, made readable if it was cut short."""

import contextlib
import os
import platform
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from ridgerider._check import one_line


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
