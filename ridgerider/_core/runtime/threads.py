"""One thread for LAPACK: on a busy machine, threads that wait for each other cost many times more.

`eigh` of a 610 x 610 Hessian, two processors with a load of twenty: 1.8 to 2.1 s with two threads,
0.4 to 0.5 s with one.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]


@functools.cache
def _lapack() -> ThreadpoolController:
    """The library that JAX takes its LAPACK from: SciPy's, where that has one of its own."""
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
