"""Processes on this machine that are replaced when they die, or a Dask cluster."""

import atexit
import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from ridgerider._check import Count, Seconds, checked, needs
from ridgerider._search.crew.lost_workers import Job, open_job
from ridgerider._search.tree import Leg

T = TypeVar("T")
START_SECONDS = 300  # what a process may take to start and import everything
NUM_STARTS = 3  # processes that die while they open a job, until it is an error
NUM_KILLS = 1000  # processes that others kill before they are up
PAUSES = (0.1, 5.0)  # seconds before the next start: the first, doubled each time, and the most

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

    Each has a thread of this process that waits for it, so that a death breaks nothing else.
    """

    losses = (WorkerLost,)

    @checked
    def __init__(self, num_workers: Count, lease: Seconds | None = None):
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise OSError("a worker must not start workers: protect the entry of your script.")
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

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        if kind is not None:  # nobody waits for what is being ridden
            self.shutdown(wait=False, cancel_futures=True)
        self.shutdown()

    def _begin(self) -> None:
        # Ctrl-C is for the process that searches; what a thread blocks, its children block.
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        self._own.worker = _Worker(self._lease)
        self._workers.append(self._own.worker)


class _Worker:
    """One process behind a pipe, started when it is needed and again after its death."""

    _starting = threading.Lock()  # the environment is changed while a process starts

    def __init__(self, lease: Seconds | None):
        self.pid: int | None = None  # once it is up
        self._lease, self._job, self._stopped = lease, "", threading.Event()
        self._child: BaseProcess | None = None
        atexit.register(self.stop)

    def run(self, work: Callable[..., Any], *args: Any) -> Any:
        if not isinstance(work, Job):
            self._start()
            return self._ask(self._lease, work, *args)
        for _ in range(NUM_STARTS):  # a death before that is not the next task's fault
            self._start()
            with contextlib.suppress(WorkerLost):
                if self._job != work.parcel[0]:
                    self._ask(None, _open, *work.parcel)
                    self._job = work.parcel[0]
                break
        else:
            raise WorkerLost("it died when it opened the job")
        return self._ask(self._lease, _ride, self._job, *args)

    def stop(self) -> None:
        self._stopped.set()
        if self._child is not None:
            self._child.kill()

    def _start(self) -> None:
        """Start a process if there is none."""
        if self.pid is not None:
            return
        pause = PAUSES[0]
        for _ in range(NUM_KILLS):
            if self._stopped.is_set():
                raise WorkerLost("the pool was shut down")
            context = multiprocessing.get_context("spawn")
            self._pipe, far = context.Pipe()
            child = context.Process(target=_serve, args=[far])
            with self._starting:
                before = dict(os.environ)
                os.environ.update(ONE_THREAD)
                try:
                    child.start()
                finally:
                    for name in ONE_THREAD:
                        del os.environ[name]
                    os.environ.update(before)
            self._child = child
            far.close()
            with contextlib.suppress(WorkerLost):
                self.pid = self._ask(START_SECONDS, os.getpid)
                if self._stopped.is_set():  # meanwhile
                    self.stop()
                return
            if self._child.exitcode != -signal.SIGKILL:
                raise OSError(
                    "a worker process cannot be started: it ended with exit code "
                    f"{self._child.exitcode} while it imported your script or the library; the "
                    'entry of your script must be protected by `if __name__ == "__main__":`, as '
                    "each worker imports it."
                )
            self._stopped.wait(pause)
            pause = min(2 * pause, PAUSES[1])
        raise OSError(f"a worker process cannot be started: it was killed {NUM_KILLS} times.")

    def _ask(self, seconds: float | None, work: Callable[..., Any], *args: Any) -> Any:
        """What `work` returns or raises in the process; one that does not answer is killed."""
        why = "it was killed, crashed or ran out of memory"
        with contextlib.suppress(EOFError, OSError):
            self._pipe.send((work, args))
            if self._pipe.poll(seconds):
                is_done, found = self._pipe.recv()
                why = ""
            else:
                why = f"it did not answer within its lease of {seconds} s"
        if why:
            self.clear()
            raise WorkerLost(why)
        if not is_done:
            raise found
        return found

    def clear(self) -> None:
        self.pid, self._job = None, ""
        if self._child is not None:
            self._child.kill()
            self._child.join()
            self._pipe.close()


def _serve(pipe: Connection) -> None:
    """Run in each worker: one whose parent was killed would wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    while True:
        asked = pipe.recv_bytes()
        try:
            work, args = pickle.loads(asked)
            answer = True, work(*args)
        except BaseException as error:
            error.add_note(traceback.format_exc())
            answer = False, error
        try:
            pipe.send(answer)
        except Exception as error:  # it cannot be pickled
            pipe.send((False, RuntimeError(f"{answer[1]!r} cannot be sent back: {error}")))


def _open(*parcel: Any) -> None:
    open_job(*parcel)


def _ride(name: str, *task: Any) -> list[Leg]:
    return open_job(name)(*task)


@checked
def dask(
    address: str | None = None,
    *,
    num_workers: Count | None = None,
    lease: Seconds | None = None,
) -> Executor:
    """A Dask cluster: the one whose scheduler is at `address`, or a new one on this machine.

    - `num_workers`: of a new cluster; default: a worker for each core.
    - `lease`: a worker that takes more seconds than this for a task ends itself, and Dask replaces
      it. The first task of a worker includes compiling.

    Workers may join and leave at any time. Needs `pip install 'ridgerider[cluster]'`, or Dask.

    >>> with dask(num_workers=1) as cluster:  # rr.search(problem, round_size=8, executor=cluster)
    ...     cluster.submit(pow, 2, 10).result()
    1024
    """
    with needs("cluster", "`dask`"):
        from ridgerider.workers._dask import DaskExecutor
    return DaskExecutor(address, num_workers, lease)
