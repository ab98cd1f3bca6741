"""The work of a search as something that can be sent: what to ride, and how to compute alike.

A `Job` is a mover's `move` with everything but the branches. Pickled, it is bytes that are made
once; a process that has opened them keeps the problem, its data and its compiled programs. Before
anything else is read, the process takes over the sender's JAX settings and compares versions.
"""

import hashlib
import math
import pickle
from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax

from ridgerider._check import one_line
from ridgerider._core.problem.problem import Problem
from ridgerider._core.runtime.clock import limited
from ridgerider._search.runfile.locate import load_problem
from ridgerider._search.runfile.problem import describe_problem
from ridgerider._search.runfile.write import versions
from ridgerider._search.tree.settings import Settings
from ridgerider._search.tree.tree import Branch, Leg

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
COMPARED = ("ridgerider", "jax", "jaxlib", "numpy", "equinox", "optax")


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


def open_job(name: str, about: dict[str, Any], content: bytes) -> Job:
    """The job in a parcel; opened once per process."""
    if name not in _opened:
        check_versions(about["versions"])
        for flag, value in about["flags"].items():
            if getattr(jax.config, flag) != value:
                jax.config.update(flag, value)
        _opened.clear()  # one search at a time: the data of the last one go
        _opened[name] = _unpack(content)
    return _opened[name]


def opened_job(name: str) -> Job:
    return _opened[name]


def check_versions(wanted: dict[str, str]) -> None:
    """Raise unless this process computes with the versions of the one that sent the work."""
    found = versions()
    # A pickle made by one minor version of Python need not open in another.
    python = [given["python"].rpartition(".")[0] for given in (wanted, found)]
    differ = [name for name in COMPARED if wanted[name] != found[name]]
    if differ or python[0] != python[1]:
        name = differ[0] if differ else "python"
        raise ValueError(
            f"workers must have the coordinator's versions, but a worker has {name} {found[name]} "
            f"and the coordinator {wanted[name]}."
        )


def _unpack(content: bytes) -> Job:
    try:
        source, mover, settings = pickle.loads(content)
    except (AttributeError, ImportError) as error:
        raise ValueError(
            f"a worker cannot import what the problem or the rider refers to: {error}. Define it "
            "in a module that is installed, or in the directory the workers were started in."
        ) from error
    if isinstance(source, Problem):
        return Job(source, mover, settings)
    path, description = source
    problem = load_problem(path)
    if describe_problem(problem) != description:
        raise ValueError(
            f"{path} must be the same problem everywhere, but a worker that loads it gets another "
            "start or other data than the coordinator."
        )
    return Job(problem, mover, settings, path)
