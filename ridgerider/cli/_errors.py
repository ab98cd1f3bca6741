"""Whose error it is: a sentence and exit code 2 for the user's, the traceback and 3 for ours.

The innermost frame of a traceback that is neither Python's nor that of a library the work goes
through tells: in a file of ours it is a sentence of ours, or a bug; anywhere else it is the user's
own code, and its own frames are shown.
"""

import contextlib
import os
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Iterator
from importlib.metadata import version
from itertools import dropwhile
from pathlib import Path
from types import FrameType

import jax
import typer

import ridgerider
from ridgerider._check import one_line
from ridgerider.cli._shown import Terminal, console, hint

USER, BUG = 2, 3
GRACE = 1.5  # seconds that an interrupted command has to end by itself
MAX_FRAMES = 12
SENTENCES = (ValueError, OSError, MemoryError, OverflowError)
PASSED_THROUGH = (
    *("jax", "jaxlib", "equinox", "optax", "numpy", "jaxtyping", "typer", "click", "rich", "dask"),
    *("distributed", "tornado", "safetensors", "matplotlib"),
)
_HERE = Path(ridgerider.__file__).parent
_OURS = {_HERE, _HERE.with_name("ridgerider_experiments")}
_LIBRARIES = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
_PYTHON = Path(sysconfig.get_path("stdlib"))


class Stopped(KeyboardInterrupt):
    """SIGTERM: as Ctrl-C, with its own exit code."""

    code = 143


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Every way a command can end, but for success."""
    streams = sys.stdout, sys.stderr
    try:
        try:
            yield
        finally:
            sys.stdout, sys.stderr = streams  # a problem may have put others there, or none
    except KeyboardInterrupt as error:
        _leave(getattr(error, "code", 130))
    except SystemExit as error:
        if error.code in (130, 143) or isinstance(error.__context__, typer.Abort):
            _leave(error.code if error.code in (130, 143) else 130)
        if not frames_of_user(error):
            raise
        _say(f"the problem calls sys.exit({error.code!r}).", error)
        _leave(USER)
    except BrokenPipeError:  # whoever read what we print has gone
        _leave(1)
    except BaseException as error:
        _leave(_explain(error))


def _explain(error: BaseException) -> int:
    """Say what went wrong and whose error it is; the exit code."""
    if isinstance(error.__cause__, StopIteration):  # in a generator of ours Python makes it another
        error = error.__cause__
    said = f"{type(error).__name__}: {one_line(error)}"
    if frames_of_user(error):
        _say(f"the problem raised {said}.", error)
    elif isinstance(error, SENTENCES):
        first = error.__cause__
        while first is not None and first.__cause__ is not None:
            first = first.__cause__
        _say(str(error) or type(error).__name__, first)
    elif isinstance(error, jax.errors.JaxRuntimeError):
        _say(f"JAX cannot compute the problem: {one_line(error)}.")
    else:
        about = f"ridgerider {version('ridgerider')}, Python {sys.version.split()[0]}"
        _say(f"a bug in ridgerider, please report it with these lines: {said} ({about})", bug=error)
        return BUG
    return USER


def _say(
    sentence: str, error: BaseException | None = None, bug: BaseException | None = None
) -> None:
    """One sentence on one line, then the frames of the user's own code, or all those of a bug."""
    lines = [f"Error: {one_line(sentence)}."]
    if error is not None and (frames := frames_of_user(error)):
        where = _formatted(traceback.format_list(frames[-MAX_FRAMES:]))
        last = f"{type(error).__name__}: {one_line(error)}"
        lines += ["Where, in your own code:", *where, last]
    elif bug is not None:
        lines += _formatted(traceback.format_exception(bug))
    elif isinstance(error, SyntaxError):
        lines += _formatted(traceback.format_exception_only(error))
    with contextlib.suppress(OSError, ValueError):
        terminal = Terminal(stderr=True, highlight=False, markup=False)
        terminal.print("\n".join(lines), soft_wrap=True)


def _formatted(parts: list[str]) -> list[str]:
    return [line[:1000].rstrip() for part in parts for line in part.splitlines()[:50]]


def frames_of_user(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of the user's code, if that is where the error comes from."""
    try:
        trace = traceback.extract_tb(error.__traceback__)
    except Exception:  # a source file that is gone or garbled
        return []
    frames = [(_owner(one.filename), one) for one in trace]
    frames = [(owner, one) for owner, one in frames if owner != "passed"]
    inside = list(dropwhile(lambda pair: pair[0] == "user", frames))  # whoever called us is not it
    if not inside or inside[-1][0] == "ours":
        return []
    return [one for owner, one in inside if owner == "user"]


def _owner(filename: str) -> str:
    path = Path(filename)
    if path == Path(__file__):
        return "passed"
    if not _OURS.isdisjoint(path.parents):
        return "ours"
    for place in _LIBRARIES:
        if place in path.parents:
            package = path.relative_to(place).parts[0].removesuffix(".py")
            return "passed" if package in PASSED_THROUGH else "user"
    is_python = _PYTHON in path.parents or filename.startswith("<frozen")
    is_command = path.name in ("ridgerider", "pytest") and path.parent.name in ("bin", "Scripts")
    return "passed" if is_python or is_command else "user"


def _leave(code: int) -> None:
    """End now: a thread may still be riding."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if code > 128:
        os._exit(code)
    if code == 1:  # so that nothing is flushed into a closed pipe
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def listen() -> None:
    """Hear SIGTERM as Ctrl-C; and whatever the command is doing, end within two seconds."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped

    signal.signal(signal.SIGTERM, stop)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_wait_for_signal, args=[reading], daemon=True).start()


def _wait_for_signal(reading: int) -> None:
    while True:
        number = os.read(reading, 1)
        if number and number[0] in (signal.SIGINT, signal.SIGTERM):
            break
    time.sleep(GRACE)
    hint()
    with contextlib.suppress(OSError, ValueError):
        console.show_cursor()
        sys.stdout.flush()
    os._exit(128 + number[0])
