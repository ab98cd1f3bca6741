"""How long this work may last: a deadline that evaluations of the loss and loops on the host obey.

Once it has passed, a loss is NaN without being evaluated (`Problem.timed`), so that compiled
programs soon end. Whoever ran one calls `check_time` before anything is made of its results. The
clock stands still while programs are compiled.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ridgerider._core.runtime.compile import seconds_compiling

_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)

SLICE = 0.1  # seconds of work between two looks at the clock


class OutOfTime(Exception):
    """The time is up; what was under way is given up."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """What runs inside this context may last so long.

    >>> with limited(0.0):
    ...     seconds_left() <= 0
    True
    """
    token = _deadline.set(min(now() + seconds, _deadline.get()))
    try:
        yield
    finally:
        _deadline.reset(token)


def now() -> float:
    """Seconds without those of compilation."""
    return time.perf_counter() - seconds_compiling()


def deadline() -> float:
    return _deadline.get()


def seconds_left() -> float:
    return _deadline.get() - now()


def check_time() -> None:
    """Raise if the time is up."""
    if seconds_left() <= 0:
        raise OutOfTime


def slices(count: int) -> Iterator[tuple[int, int]]:
    """The steps from 0 to `count` as runs (first, last), each a moment's work; one if in no hurry.

    Whoever iterates waits for a run to be done before it asks for the next.

    >>> list(slices(10))
    [(0, 10)]
    >>> with limited(60.0):
    ...     runs = list(slices(10))
    >>> runs[0], runs[-1][1]
    ((0, 1), 10)
    """
    first, more = 0, count if seconds_left() == math.inf else 1
    while first < count:
        check_time()
        last = min(first + more, count)
        began = time.perf_counter()
        yield first, last
        seconds = time.perf_counter() - began
        more = 2 * more if seconds < SLICE / 2 else max(1, int(more * SLICE / seconds))
        first = last
