"""Processes on this machine that are replaced when they die."""

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from ridgerider._check import check_count, check_positive
from ridgerider._search.crew.job import Job, open_job, opened_job
from ridgerider._search.tree.tree import Branch, Leg

T = TypeVar("T")
START_SECONDS = 300  # what a process may take to start and import everything
NUM_STARTS = 3  # processes that end by themselves before they are up, until it is no accident
NUM_KILLS = 1000  # processes that others kill before they are up
PAUSES = (0.1, 5.0)  # seconds before the next start: the first, doubled each time, and the most
AT_ENTRY = "RIDGERIDER_WORKER_NOTE"  # where a process says that it came upon an entry unprotected

#: The environment of a process that computes with one thread. The number of threads decides how
#: sums are split, and so their last bits: set this before Python starts, and a search without an
#: executor is equal to one with workers to the last bit at any size.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NPROC": "1",  # of XLA
}


class WorkerLost(Exception):
    """A worker died or did not answer in time."""


def process_pool(num_workers: int, *, lease: float | None = None) -> "ProcessPool":
    """So many processes on this machine, spawned, with one thread each.

    - `lease`: a worker that takes more seconds than this for a task is killed. The first task of
      a worker includes compiling. None waits for ever.

    A script that uses it must protect its entry, `if __name__ == "__main__":`, as each worker
    imports it.

    >>> with process_pool(1) as pool:  # rr.search(problem, round_size=8, executor=pool)
    ...     pool.submit(pow, 2, 10).result()
    1024
    """
    return ProcessPool(num_workers, lease)


class ProcessPool(Executor):
    """Processes that are replaced when they die. Made by `process_pool`.

    Each is a pool of one behind a thread of this process, so that a death breaks nothing else.
    """

    losses = (WorkerLost,)

    def __init__(self, num_workers: int, lease: float | None = None):
        _check_entry()
        check_count("num_workers", num_workers)
        check_positive("lease", lease)
        self.capacity = 2 * num_workers  # so that none waits for its next task
        self._lease, self._workers = lease, list[_Worker]()
        self._own = threading.local()
        self._threads = ThreadPoolExecutor(num_workers, "ridgerider-worker", self._begin)

    def submit(  # type: ignore[override]  # no keywords
        self, work: Callable[..., T], /, *args: Any
    ) -> "Future[T]":
        return self._threads.submit(lambda: self._own.worker.run(work, *args))

    def pids(self) -> list[int]:
        """The ids of the processes that are up."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        for worker in self._workers:
            worker.stop()
            if wait:
                worker.clear()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:  # nobody waits for what is being ridden
            self._threads.shutdown(wait=False, cancel_futures=True)
            for worker in self._workers:
                worker.stop()
        self.shutdown()

    def _begin(self) -> None:
        # Ctrl-C is for the process that searches; what a thread blocks, its children block.
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        self._own.worker = _Worker(self._lease)
        self._workers.append(self._own.worker)


class _Worker:
    """One process, started when it is needed and again after its death."""

    _starting = threading.Lock()  # the environment is changed while a process starts

    def __init__(self, lease: float | None):
        self.pid: int | None = None
        self._pool: ProcessPoolExecutor | None = None
        self._lease, self._job, self._stopped = lease, "", threading.Event()
        self._child: BaseProcess | None = None  # while it starts

    def run(self, work: Callable[..., Any], *args: Any) -> Any:
        pool = self._ready(work)
        try:
            if isinstance(work, Job):
                return self._wait(pool.submit(_ride, work.parcel[0], *args))
            return self._wait(pool.submit(work, *args))
        except BrokenProcessPool:
            self.clear()
            raise WorkerLost("it was killed, crashed or ran out of memory") from None

    def _ready(self, work: Callable[..., Any]) -> ProcessPoolExecutor:
        """A process that has the job. One that dies before is no fault of the task to come."""
        for _ in range(NUM_STARTS):
            pool = self._pool or self._start()
            if not isinstance(work, Job) or work.parcel[0] == self._job:
                return pool
            try:
                pool.submit(_open, *work.parcel).result()
            except BrokenProcessPool:
                self.clear()
            else:
                self._job = work.parcel[0]
                return pool
        raise WorkerLost("it died when it opened the job")

    def stop(self) -> None:
        self._stopped.set()
        self._kill()

    def _start(self) -> ProcessPoolExecutor:
        ended, pause = 0, PAUSES[0]
        with tempfile.TemporaryDirectory() as scratch:
            note = Path(scratch) / "note"
            for _ in range(NUM_KILLS):
                pool = self._try_to_start(note)
                if pool is not None:
                    return pool
                if note.exists():
                    raise OSError(
                        "a worker process cannot be started: the entry of your script must be "
                        'protected by `if __name__ == "__main__":`, as each worker imports it.'
                    )
                code = None if self._child is None else self._child.exitcode
                ended += code is None or code >= 0  # else a signal ended it
                if ended == NUM_STARTS:
                    raise OSError(
                        f"a worker process cannot be started: it ends by itself, with exit code "
                        f"{code}, while it imports your script or the library."
                    )
                self._stopped.wait(pause)
                pause = min(2 * pause, PAUSES[1])
        raise OSError(f"a worker process cannot be started: it was killed {NUM_KILLS} times.")

    def _try_to_start(self, note: Path) -> ProcessPoolExecutor | None:
        """A process that is up; None if it died on the way there."""
        if self._stopped.is_set():
            raise WorkerLost("the pool was shut down")
        context = _Spawning()
        with self._starting, _environment({**ONE_THREAD, AT_ENTRY: str(note)}):
            pool = ProcessPoolExecutor(1, context, initializer=_die_with_parent)
            ready = pool.submit(os.getpid)
        self._child = context.child
        try:
            self.pid = ready.result(START_SECONDS)
        except BrokenProcessPool:
            pool.shutdown(wait=True)
            if self._child is not None:
                self._child.join(START_SECONDS)
            return None
        self._pool = pool
        if self._stopped.is_set():  # meanwhile
            self._kill()
        return pool

    def _wait(self, future: "Future[T]") -> T:
        try:
            return future.result(self._lease)
        except TimeoutError:
            if future.done():
                raise  # the work's own
            self._kill()
            self.clear()
            raise WorkerLost(f"it did not answer within its lease of {self._lease} s") from None

    def _kill(self) -> None:
        pid = self.pid or (self._child.pid if self._child is not None else None)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def clear(self) -> None:
        pool, self._pool, self._job, self.pid = self._pool, None, "", None
        if pool is not None:
            pool.shutdown(wait=True)


class _Spawning(SpawnContext):
    """A context that remembers the process it has made."""

    child: BaseProcess | None = None

    def Process(self, *args: Any, **keywords: Any) -> Any:  # type: ignore[override]
        self.child = SpawnContext.Process(*args, **keywords)
        return self.child


def _check_entry() -> None:
    """Raise in a worker that imports the script of its parent and comes upon another pool."""
    note = os.environ.get(AT_ENTRY)
    if note and getattr(multiprocessing.current_process(), "_inheriting", False):
        with contextlib.suppress(OSError):
            Path(note).touch()
        raise OSError("a worker must not start workers: protect the entry of your script.")


def _die_with_parent() -> None:
    """Run in each worker: one whose parent was killed would wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _open(*parcel: Any) -> None:
    open_job(*parcel)


def _ride(name: str, branches: list[Branch]) -> list[Leg]:
    return opened_job(name)(branches)


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
