"""Ctrl-C while compiled code runs: a thread does the work, and the main thread listens.

Python tells of a signal only between two of its steps, and only in its main thread. A compiled
ride or a compilation is one such step, however long it takes.
"""

import atexit
import contextlib
import contextvars
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, ParamSpec, TypeVar

import jax

from ridgerider._core.runtime.compile import one_thread

P = ParamSpec("P")
T = TypeVar("T")
HEARD_WITHIN = 0.5  # seconds


def interruptible(work: Callable[P, T], /, *args: P.args, **keywords: P.kwargs) -> T:
    """`work(...)`, which an interrupt ends at once for the caller, whatever it is doing.

    The computation continues until it is done, and its result is dropped. Outside of the main
    thread, and where settings of JAX hold for this thread alone (`with jax.default_device(...)`),
    the work is simply done here.

    >>> interruptible(pow, 2, 10)
    1024
    """
    if threading.current_thread() is not threading.main_thread():
        return work(*args, **keywords)
    future: Future[T] = Future()
    context, configuration = contextvars.copy_context(), _configuration()

    def serve() -> None:
        try:
            if _configuration() != configuration:
                raise _OnlyHere
            future.set_result(context.run(work, *args, **keywords))
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=serve, daemon=True, name="ridgerider")
    # The limit on threads is one of the process, and best set by its main thread.
    with contextlib.suppress(_OnlyHere), one_thread():
        try:
            thread.start()
        except RuntimeError:  # where no thread can be started any more
            return work(*args, **keywords)
        try:
            # A signal that comes just before a wait begins does not end it: waits are short.
            while not future.done():
                wait((future,), timeout=HEARD_WITHIN)
            return future.result()
        finally:
            if not future.done():  # interrupted
                _left.append(thread)
    return work(*args, **keywords)


_left: list[threading.Thread] = []  # whose work continues, though nobody waits for it


class _OnlyHere(Exception):
    """Settings of JAX hold for another thread alone."""


def _configuration() -> list[Any]:
    """The settings of JAX as this thread sees them."""
    values = [getattr(jax.config, name, None) for name in jax.config.values]
    return [*values, jax.sharding.get_abstract_mesh()]


@atexit.register
def _leave() -> None:
    """End with what is left under way: Python cannot, while a thread runs compiled code.

    After an interrupt that nobody caught the process ends at once, by that signal as always.
    """
    busy = [thread for thread in _left if thread.is_alive()]
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if busy and isinstance(error, KeyboardInterrupt):
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    for thread in busy:
        thread.join()
