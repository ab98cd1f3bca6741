"""Compilation: what most of the time of a first search goes into, and how to spend less of it.

One thread for LAPACK: on a busy machine, threads that wait for each other cost many times more.

`eigh` of a 610 x 610 Hessian, two processors with a load of twenty: 1.8 to 2.1 s with two threads,
0.4 to 0.5 s with one.
"""

import functools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache
from jaxtyping import Float
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from ridgerider._check import checked

Effort = Literal["full", "little", "none", "small"]
LEVEL = "xla_backend_optimization_level"
# XLA's older way to generate code for processors, in one part rather than many, takes less than
# half of the time, and rides are as fast. Other devices ignore these.
FAST_TO_COMPILE: dict[str, Any] = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
# With little optimisation programs compile in half of that time, and products of networks take a
# third longer at most; with none in a tenth, and convolutions take twenty times as long. Small
# programs that are called often take half of the time in the newer way, in fewer parts.
LEVELS: dict[str, dict[str, Any]] = {
    "full": {},
    "little": {LEVEL: 1},
    "none": {LEVEL: 0},
    "small": {LEVEL: 1, "xla_cpu_use_fusion_emitters": True},
}


@functools.cache
def compiled(function: Callable[..., Any], effort: Effort = "full") -> Callable[..., Any]:
    """`function` as a program that is fast to compile; arrays are traced, all else is static.

    What runs for a moment is worth little optimisation, and what runs once is worth none.

    >>> compiled(abs)(-1.0)
    1.0
    """
    return eqx.filter_jit(function, **_options(effort))


class Identity:
    """An object as a key of a cache: equal to itself alone, whatever its own `==` says."""

    def __init__(self, value: Any):
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value


def program_of(
    tree: Any, function: Callable[..., Any], effort: Effort = "little"
) -> Callable[..., Any]:
    """`function(tree, *arrays)` as a program of `arrays`, whose calls take little time.

    The arrays of the pytree are arguments of the program, all else of it is static: another pytree
    with the same functions needs no other program.

    >>> import numpy as np
    >>> float(program_of({"a": np.float32(2.0)}, lambda tree, x: tree["a"] * x)(np.float32(3.0)))
    6.0
    """
    arrays, static = eqx.partition(tree, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    others, whole = jax.tree.flatten(static)
    program = _program(function, structure, tuple(map(Identity, others)), whole, effort)
    return lambda *rest: program(leaves, *rest)


@functools.lru_cache(maxsize=256)
def _program(
    function: Callable[..., Any],
    structure: Any,
    others: tuple[Identity, ...],
    whole: Any,
    effort: Effort,
) -> Callable[..., Any]:
    static = jax.tree.unflatten(whole, [one.value for one in others])

    @functools.wraps(function)
    def run(leaves: list[Any], *rest: Any) -> Any:
        return function(eqx.combine(jax.tree.unflatten(structure, leaves), static), *rest)

    return jax.jit(run, **_options(effort))


@functools.cache
def _options(effort: Effort) -> dict[str, Any]:
    """The options above, unless this version of XLA no longer knows them."""
    options = FAST_TO_COMPILE | LEVELS[effort]
    try:
        jax.jit(lambda x: x).lower(0.0).compile(options)
    except jax.errors.JaxRuntimeError:
        return {}
    return {"compiler_options": options}


# What JAX reports of a program, each within the first of those that call it.
STAGES = ("jaxpr_trace_duration", "jaxpr_to_mlir_module_duration", "backend_compile_duration")
_spans: list[tuple[float, float]] = []  # when each began, and the seconds of all up to it


@functools.cache
def _listen() -> None:
    def add(event: str, duration_secs: float, **_: Any) -> None:
        if event.endswith(STAGES):
            began = time.perf_counter() - duration_secs
            while _spans and _spans[-1][0] >= began:  # inside this one
                _spans.pop()
            before = _spans[-1][1] if _spans else 0.0
            _spans.append((began, before + duration_secs))

    jax.monitoring.register_event_duration_secs_listener(add)


def seconds_compiling() -> float:
    """How long this process has traced and compiled programs, since it was first asked.

    >>> before = seconds_compiling()
    >>> float(jax.jit(lambda x: x + 1)(1.0)), seconds_compiling() > before
    (2.0, True)
    """
    _listen()
    return _spans[-1][1] if _spans else 0.0


@checked
def keep_compiled(folder: str | os.PathLike | None = None) -> Path:
    """Keep compiled programs on disk, for the next process, and return the folder.

    Call it once, before a search. A program that was compiled before, by this process, by one that
    it starts or by an earlier one, is then read and not compiled again.

    **Arguments**

    - `folder`: where to; None is what the environment variable `JAX_COMPILATION_CACHE_DIR` says, or
      else `ridgerider/compiled` in the user's cache.

    >>> import ridgerider as rr
    >>> folder = rr.keep_compiled()
    >>> folder.name
    'compiled'
    """
    own = os.environ.get("JAX_COMPILATION_CACHE_DIR")  # the user's, or a parent process's
    if folder is None and own:
        return Path(own)
    path = cache_folder("compiled") if folder is None else Path(folder)
    settings = {
        "jax_compilation_cache_dir": str(path),
        "jax_persistent_cache_min_compile_time_secs": 0.05,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in settings.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)
    compilation_cache.reset_cache()  # JAX decides at its first compilation whether it has one
    return path


def cache_folder(name: str) -> Path:
    """Where things of one kind are kept: `ridgerider/name` in `XDG_CACHE_HOME` or `~/.cache`."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "ridgerider" / name


@functools.cache
def _lapack() -> ThreadpoolController:
    """The library that JAX takes its LAPACK from: SciPy's, if SciPy ships one."""
    found = ThreadpoolController().select(user_api="blas")
    paths = [library["filepath"] for library in found.info()]
    own = [path for path in paths if "scipy.libs" in path]
    return found.select(filepath=own) if own else found


@contextmanager
def one_thread() -> Iterator[None]:
    """The LAPACK that eigendecompositions call computes with one thread inside this context.

    What is compiled by XLA, so gradients and Hessian-vector products, keeps all of its threads.

    >>> with one_thread():
    ...     {library["num_threads"] for library in _lapack().info()} <= {1}
    True
    """
    with _lapack().limit(limits=1):
        yield


@functools.cache
def _solver(num_bytes: int) -> Callable[..., Any]:
    from scipy.linalg import lapack  # imported when it is first used

    return {4: lapack.ssyevd, 8: lapack.dsyevd}[num_bytes]


def eigh(
    matrix: Float[np.ndarray, "n n"],
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n n"]]:
    """Eigenvalues, ascending, with columns; NaN and unit columns if the matrix is not finite.

    By SciPy's LAPACK, which `one_thread` limits to one thread: NumPy's shares the work on matrices
    as small as 33 x 33, and on a busy machine waits a hundred times longer than it works.

    >>> eigh(np.diag([2.0, 1.0]))[0].tolist()
    [1.0, 2.0]
    """
    if np.isfinite(matrix.sum()):
        values, columns, failed = _solver(matrix.dtype.itemsize)(matrix)
        if not failed:
            return values, columns
    return np.full(len(matrix), np.nan, matrix.dtype), np.eye(len(matrix), dtype=matrix.dtype)
