"""Who rides: this process, or the workers of an executor.

Branches are sent, legs come back in any order. A worker that dies, hangs beyond its lease or
returns something that is no leg costs the legs it was riding: they are sent again, one by one. A
leg on which `max_deaths` workers were lost is marked as failed, and the search goes on.

An executor says with `losses` which exceptions mean that a worker was lost, and with `capacity` how
many tasks it can use at a time; neither is needed.
"""

import math
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from ridgerider._core.runtime.clock import OutOfTime, check_time, seconds_left
from ridgerider._search.crew.interrupt import interruptible
from ridgerider._search.crew.job import Job
from ridgerider._search.tree.tree import Branch, Fingerprint, Leg

Task = list[Branch]


class Crew:
    """Rides what it is sent. `load` fetches a branch's arrays when it is about to be ridden."""

    def __init__(
        self,
        job: Job,
        load: Callable[[Branch], Branch],
        executor: Executor | None,
        max_deaths: int,
    ):
        self._job, self._load, self._executor = job, load, executor
        self._max_deaths, self._deaths = max_deaths, Counter[Fingerprint]()
        self._num_out = 0
        self._waiting: deque[Task] = deque()
        self._riding: dict[Future, Task] = {}
        self._done: SimpleQueue[Future] = SimpleQueue()
        self._losses = (MemoryError, *getattr(executor, "losses", ()))

    def __len__(self) -> int:
        """How many branches were sent and have not come back."""
        return self._num_out

    def send(self, branches: list[Branch]) -> None:
        size = self._job.mover.task_size
        self._num_out += len(branches)
        self._waiting.extend(branches[i : i + size] for i in range(0, len(branches), size))

    def receive(self) -> list[Leg]:
        """The next legs to end, of one task. Raises `OutOfTime` where a deadline passes.

        A task that a deadline cuts short in this process may bring some of its legs.
        """
        legs: list[Leg] = []
        while not legs:
            if self._executor is None:
                check_time()
                if not self._waiting:  # a task was cut short
                    raise OutOfTime
                legs = interruptible(self._job, list(map(self._load, self._waiting.popleft())))
            else:
                self._fill(self._executor)
                future = self._next(seconds_left())
                legs = self._outcome(future, self._riding.pop(future))
        self._num_out -= len(legs)
        return legs

    def _next(self, seconds: float) -> Future:
        try:
            return self._done.get(timeout=None if seconds == math.inf else max(seconds, 0))
        except Empty:
            raise OutOfTime from None

    def cancel(self) -> None:
        for future in self._riding:
            future.cancel()

    def _fill(self, executor: Executor) -> None:
        """Hand over as many tasks as the executor can use; the others need no memory."""
        room = getattr(executor, "capacity", len(self._waiting) + len(self._riding))
        while self._waiting and len(self._riding) < room:
            task = [self._load(branch) for branch in self._waiting.popleft()]
            future = executor.submit(self._job, task, seconds_left())
            self._riding[future] = task
            future.add_done_callback(self._done.put)

    def _outcome(self, future: Future, task: Task) -> list[Leg]:
        """The legs of a task, or those of its branches that are given up."""
        try:
            legs = future.result()
            check_time()
            fault = wrong_with(legs, task)
        except self._losses as error:
            fault = str(error) or type(error).__name__
        except BrokenExecutor as error:
            raise OSError(
                "a worker died and the executor cannot replace it; workers.process_pool can. What "
                f"was stored before is safe ({error})."
            ) from error
        return self._again(task, fault) if fault else legs

    def _again(self, task: Task, fault: str) -> list[Leg]:
        failed = []
        for branch in task:
            self._deaths[branch.fingerprint] += 1
            if self._deaths[branch.fingerprint] < self._max_deaths:
                # Alone, so that it is blamed for itself only; last, so that others go on.
                self._waiting.append([branch])
            else:
                reason = (f"failed: {self._max_deaths} workers lost, {fault}",)
                assert branch.x is not None
                leg = Leg.without_ridges(branch.fingerprint, branch.x, branch.loss, reason)
                failed.append(leg)  # it stays where it began
        return failed


def wrong_with(legs: Any, task: Task) -> str:
    """What a worker returned in place of the legs of a task; empty if all is well."""
    if not isinstance(legs, list) or not all(isinstance(leg, Leg) for leg in legs):
        return f"it returned a {type(legs).__name__} that does not hold legs"
    if [leg.fingerprint for leg in legs] != [branch.fingerprint for branch in task]:
        return "it returned the legs of other branches"
    for leg, branch in zip(legs, task, strict=True):
        assert branch.x is not None
        shapes = (np.shape(leg.x), np.shape(leg.directions))
        if shapes != (branch.x.shape, (len(leg.turns), branch.x.size)):
            return f"it returned arrays of shapes {shapes[0]} and {shapes[1]}"
        if leg.x.dtype != branch.x.dtype or not np.isfinite(leg.x).all():
            return f"it returned {leg.x.dtype} parameters that are not all finite {branch.x.dtype}"
    return ""


def check_sendable(job: Job, executor: Executor | None) -> None:
    """Raise, before any work is done, if workers in other processes could not get the job."""
    if getattr(executor, "losses", ()):
        job.parcel  # noqa: B018


def check_executor(executor: Executor | None) -> None:
    """Raise unless it can run JAX."""
    if executor is not None and not isinstance(executor, Executor):
        raise ValueError(
            f"`executor` must be a concurrent.futures.Executor, not {type(executor).__name__}."
        )
    if isinstance(executor, ProcessPoolExecutor):
        context = getattr(executor, "_mp_context", None)
        if context is not None and context.get_start_method() == "fork":
            raise ValueError(
                "`executor` must not fork, which deadlocks JAX; use workers.process_pool(n), which "
                "spawns."
            )
