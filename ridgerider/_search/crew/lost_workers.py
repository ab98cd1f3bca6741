"""Who rides: this process, or the workers of an executor.

Branches are sent, legs come back in any order. A worker that dies, hangs beyond its lease or
returns something that is not a leg costs the legs it was riding: they are sent again, one by one. A
leg on which `max_deaths` workers were lost is marked as failed, and the search continues.

An executor says with `losses` which exceptions mean that a worker was lost, and with `capacity` how
many tasks it can use at a time; neither is needed.

The work of a search as something that can be sent: what to ride, and how to compute alike.

A `Job` is a mover's `move` with everything but the branches. Pickled, it is bytes that are made
once; a process that has opened them keeps the problem, its data and its compiled programs. Before
anything else is read, the process takes over the sender's JAX settings and compares versions.
"""

import hashlib
import math
import pickle
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from functools import cached_property
from queue import Empty, SimpleQueue
from typing import Any

import jax
import numpy as np

from ridgerider._check import one_line
from ridgerider._core.problem.problem import Problem
from ridgerider._core.runtime.clock import OutOfTime, check_time, limited, seconds_left
from ridgerider._search.crew.interrupt import interruptible
from ridgerider._search.runfile.rules_json import describe_problem, load_problem
from ridgerider._search.runfile.store import versions
from ridgerider._search.tree import Branch, Fingerprint, Leg, Settings

# What decides the numbers, and what saves a worker from compiling again.
FLAGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


class Job:
    """`job(branches) -> legs`, within some seconds if any are given.

    With a `path`, workers load the problem from there themselves.
    """

    def __init__(self, problem: Problem, mover: Any, settings: Settings, path: str | None = None):
        self.problem, self.mover = problem.with_unit(settings.unit), mover
        self.settings, self.path = settings, path

    def __call__(self, branches: list[Branch], seconds: float = math.inf) -> list[Leg]:
        try:
            with limited(seconds):
                return self.mover.move(self.problem, self.settings, branches)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" in str(error):
                raise MemoryError(str(error)) from error
            raise

    @cached_property
    def parcel(self) -> tuple[str, dict[str, Any], bytes]:
        """A name, what must agree before it is opened, and the job itself."""
        source: Any = self.problem
        if self.path is not None:
            source = (self.path, describe_problem(self.problem))
        try:
            content = pickle.dumps((source, self.mover, self.settings))
        except Exception as error:
            raise ValueError(
                f"`problem` or `rider` cannot be sent to workers: {one_line(error)}. Define "
                "functions at the top of a module, and pass what is in a file, not the open file."
            ) from error
        flags = {name: getattr(jax.config, name) for name in FLAGS}
        about = {"versions": versions(), "flags": flags}
        return hashlib.sha256(content).hexdigest()[:16], about, content

    def __reduce__(self) -> tuple[Callable[..., "Job"], tuple[Any, ...]]:
        return open_job, self.parcel


_opened: dict[str, Job] = {}


def open_job(name: str, about: dict[str, Any] | None = None, content: bytes = b"") -> Job:
    """The job in a parcel; opened once per process, after that its name is enough."""
    if name in _opened or about is None:
        return _opened[name]
    check_versions(about["versions"])
    for flag, value in about["flags"].items():
        if getattr(jax.config, flag) != value:
            jax.config.update(flag, value)
    _opened.clear()  # one search at a time: the data of the last one go
    try:
        source, mover, settings = pickle.loads(content)
    except (AttributeError, ImportError) as error:
        raise ValueError(
            f"a worker cannot import what the problem or the rider refers to: {error}. Define it "
            "in a module that is installed, or in the directory the workers were started in."
        ) from error
    problem, path = source, None
    if not isinstance(source, Problem):
        path, description = source
        problem = load_problem(path)
        if describe_problem(problem) != description:
            raise ValueError(
                f"{path} must be the same problem everywhere, but a worker that loads it gets "
                "another start or other data than the coordinator."
            )
    _opened[name] = Job(problem, mover, settings, path)
    return _opened[name]


def check_versions(wanted: dict[str, str]) -> None:
    """Raise unless this process computes with the versions of the one that sent the work."""
    found = versions()
    # A pickle made by one minor version of Python need not open in another.
    python = [given["python"].rpartition(".")[0] for given in (wanted, found)]
    names = wanted.keys() - {"python", "machine"}
    differ = sorted(name for name in names if wanted[name] != found[name])
    if differ or python[0] != python[1]:
        name = differ[0] if differ else "python"
        raise ValueError(
            f"workers must have the coordinator's versions, but a worker has {name} {found[name]} "
            f"and the coordinator {wanted[name]}."
        )


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
                left = seconds_left()
                try:
                    future = self._done.get(timeout=None if left == math.inf else max(left, 0))
                except Empty:
                    raise OutOfTime from None
                legs = self._outcome(future, self._riding.pop(future))
        self._num_out -= len(legs)
        return legs

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
                # Alone, so that it is blamed for itself only; last, so that others continue.
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
    if isinstance(executor, ProcessPoolExecutor):
        context = getattr(executor, "_mp_context", None)
        if context is not None and context.get_start_method() == "fork":
            raise ValueError(
                "`executor` must not fork, which deadlocks JAX; use workers.process_pool(n), which "
                "spawns."
            )
