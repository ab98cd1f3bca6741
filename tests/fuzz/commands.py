"""Commands as a user runs them, but in this process: a subprocess each would take hours."""

import contextlib
import io
import signal
import sqlite3
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from ridgerider.cli import app
from ridgerider.cli._errors import told

SECONDS = 60  # no command here takes one; a busy machine may make it many


class Hung(BaseException):
    """A command did not end."""


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said."""

    line: tuple[str, ...]
    code: int
    out: str
    err: str

    def check(self):
        """Raise unless it ended as every command has to."""
        said = f"{self.line} {self.code}\n{self.out}\n{self.err}"
        assert self.code in (0, 1, 2), said
        assert "Traceback" not in self.err and "a bug in ridgerider" not in self.err, said
        if self.code == 2:
            first = self.err.splitlines()[0] if self.err.strip() else ""
            is_usage = first.startswith(("Usage:", "╭─ Error"))  # typer's own
            is_sentence = first.startswith("Error: ") and first.endswith(".")
            assert is_usage or (is_sentence and not first.endswith("..")), said


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raises in here if it takes longer, where a signal can be heard."""

    def ring(*_):
        nonlocal has_rung
        has_rung = True
        raise Hung

    has_rung = False

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if has_rung:  # whatever was made of it
            raise Hung


def run(*line: object, seconds: float = SECONDS) -> Ended:
    """Run a command; its code is that of the process that it would be."""
    words = [str(word) for word in line]
    out, err, code = io.StringIO(), io.StringIO(), 0
    modules = set(sys.modules)
    try:
        with (
            alarm(seconds),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            told(),
        ):
            app(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        run.imported = set(sys.modules) - modules  # type: ignore[attr-defined]
    return Ended(tuple(words), code, out.getvalue(), err.getvalue())


def contents(path) -> dict[str, list] | None:
    """All rows of a run file, but for what repeats them and times; None if they cannot be read."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            return {
                table: sorted(
                    repr({name: row[name] for name in row if name not in ("digest", "id")})
                    for row in map(dict, _rows(db, table))
                )
                for table in ("meta", "legs", "branches", "measures")
            }
    except (sqlite3.Error, OverflowError):
        return None


def _rows(db, table):
    db.row_factory = sqlite3.Row
    where = "WHERE key NOT IN ('sum', 'seconds', 'seconds_compiling')" if table == "meta" else ""
    return db.execute(f"SELECT * FROM {table} {where}").fetchall()
