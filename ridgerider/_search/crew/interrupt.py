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
from queue import SimpleQueue
from typing import Any, ClassVar, ParamSpec, TypeVar

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
    helper = _Helper.idle()
    if helper is not None:
        # The limit on threads is one of the process, and best set by its main thread.
        with contextlib.suppress(_OnlyHere), one_thread():
            return helper.ask(_same, _configuration(), work, args, keywords)
    return work(*args, **keywords)


class _OnlyHere(Exception):
    """Settings of JAX hold for another thread alone."""


def _same(configuration: list[Any], work: Callable[..., T], args: Any, keywords: Any) -> T:
    if _configuration() != configuration:
        raise _OnlyHere
    return work(*args, **keywords)


class _Helper:
    """A thread that does one thing after the other."""

    _all: ClassVar[list["_Helper"]] = []

    def __init__(self) -> None:
        self._tasks: SimpleQueue[tuple[Future, Callable[[], Any]]] = SimpleQueue()
        self.thread = threading.Thread(target=self._serve, daemon=True, name="ridgerider")
        self.is_left = False  # while it was busy
        self.thread.start()

    @staticmethod
    def idle() -> "_Helper | None":
        """One that is free; None where no thread can be started any more."""
        known = _Helper._all
        known[:] = [one for one in known if one.thread.is_alive()]  # a fork has no threads
        for one in known:
            if not one.is_left:
                return one
        try:
            known.append(_Helper())
        except RuntimeError:
            return None
        return known[-1]

    def ask(self, work: Callable[P, T], /, *args: P.args, **keywords: P.kwargs) -> T:
        future: Future[T] = Future()
        context = contextvars.copy_context()
        self._tasks.put((future, lambda: context.run(work, *args, **keywords)))
        try:
            # A signal that comes just before a wait begins does not end it: waits are short.
            while not future.done():
                wait((future,), timeout=HEARD_WITHIN)
            return future.result()
        finally:
            if not future.done():  # interrupted
                self.is_left = True
                self._tasks.put((Future(), sys.exit))

    def _serve(self) -> None:
        while True:
            future, work = self._tasks.get()
            if work is sys.exit:
                return
            try:
                result = work()
            except BaseException as error:
                future.set_exception(error)
                del error
            else:
                future.set_result(result)
                del result
            del future, work


def _configuration() -> list[Any]:
    """The settings of JAX as this thread sees them."""
    values = [getattr(jax.config, name, None) for name in jax.config.values]
    return [*values, jax.sharding.get_abstract_mesh()]


@atexit.register
def _leave() -> None:
    """End with what is left under way: Python cannot, while a thread runs compiled code.

    After an interrupt that nobody caught the process ends at once, by that signal as always.
    """
    busy = [one.thread for one in _Helper._all if one.is_left and one.thread.is_alive()]
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if busy and isinstance(error, KeyboardInterrupt):
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    for thread in busy:
        thread.join()
