"""A Dask cluster as an executor. Imported only where `dask.distributed` is installed."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

import dask
from distributed import Client, KilledWorker, LocalCluster
from distributed import Future as DaskFuture
from distributed.cfexecutor import ClientExecutor

from ridgerider._check import Seconds
from ridgerider._search.crew.lost_workers import Job, open_job
from ridgerider._search.tree import Leg
from ridgerider.workers._pool import ONE_THREAD

# Each death is told to us, who count them, and is blamed on one task alone.
OWN_CLUSTER = {
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.worker-saturation": 1.0,
    "distributed.nanny.pre-spawn-environ": ONE_THREAD,
}
TIMEOUT = 10  # seconds to wait for a scheduler


class DaskExecutor(ClientExecutor):
    """Made by `workers.dask`. A job reaches each worker once, also those that join later."""

    losses = (KilledWorker, CancelledError)

    def __init__(self, address: str | None, num_workers: int | None, lease: Seconds | None):
        self.cluster, self._lease, self._job = None, lease, ""
        self._content: DaskFuture | None = None  # of the job
        self._capacity, self._counted = 1, 0.0
        if address is None:
            # Read when a worker dies: 15 s later, a local cluster closes one that is not back.
            dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"})
            with dask.config.set(OWN_CLUSTER):
                self.cluster = LocalCluster(
                    n_workers=num_workers, threads_per_worker=1, dashboard_address="127.0.0.1:0"
                )
        try:
            client = Client(self.cluster or address, timeout=TIMEOUT, set_as_default=False)
        except (OSError, ValueError) as error:
            raise ConnectionError(
                f"`address` must be that of a Dask scheduler, but none answers at {address} within "
                f"{TIMEOUT} s."
            ) from error
        super().__init__(client, pure=False)
        self._closing = threading.Event()
        if self.cluster is not None:
            threading.Thread(target=self._keep_up, args=[self.cluster], daemon=True).start()

    @property
    def capacity(self) -> int:
        """How many tasks can be ridden now. Asked once a second."""
        if time.monotonic() > self._counted + 1:
            self._counted = time.monotonic()
            self._capacity = max(1, sum(self._client.nthreads().values()))
        return self._capacity

    def submit(  # type: ignore[override]  # as Dask has it
        self, fn: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Future:
        if self._client.status != "running":
            raise ConnectionError(
                "the Dask scheduler is gone. What was stored before is safe: resume with another."
            )
        if not isinstance(fn, Job):
            return super().submit(fn, *args, **kwargs)
        name, about, content = fn.parcel
        is_there = self._content is not None and self._content.status in ("pending", "finished")
        if name != self._job or not is_there:
            # As a separate result, which Dask brings to each worker that rides, once.
            self._job, self._content = name, self._client.submit(bytes, content, pure=False)
        return super().submit(ride_job, self._content, name, about, self._lease, *args)

    def _wrap_future(self, future: Any) -> Future:
        # Dask's own asks for the status after the result: that of a worker which has left meanwhile
        # is "lost", and its result would be taken for an error.
        ours: Future = Future()
        ours.add_done_callback(lambda done: future.cancel() if done.cancelled() else None)
        self._client.loop.add_callback(hand_over, future, ours)
        return ours

    def shutdown(self, wait: bool = True, **keywords: Any) -> None:
        super().shutdown(wait)
        self._closing.set()
        self._content = None
        with contextlib.suppress(OSError):
            self._client.close()
            if self.cluster is not None:
                self.cluster.close()

    def _keep_up(self, cluster: LocalCluster) -> None:
        # A local cluster may give up a worker that died while it started; asked to scale, it starts
        # those that are missing.
        while not self._closing.wait(2):
            if len(cluster.workers) < len(cluster.worker_spec):
                cluster.scale(len(cluster.worker_spec))


async def hand_over(future: Any, ours: Future) -> None:
    """Give `ours` what Dask's `future` comes to."""
    try:
        result, error = await future, None
    except BaseException as raised:
        result, error = None, raised
    if not ours.set_running_or_notify_cancel():
        return
    if error is None:
        ours.set_result(result)
    else:
        ours.set_exception(error)


def ride_job(
    content: bytes, name: str, about: dict[str, Any], lease: Seconds | None, *task: Any
) -> list[Leg]:
    """Run in a worker. If it takes longer than its lease, the alarm ends the process."""
    job = open_job(name, about, content)
    if lease is not None:
        signal.setitimer(signal.ITIMER_REAL, lease)
    try:
        return job(*task)
    finally:
        if lease is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
