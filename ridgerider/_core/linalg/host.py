"""Eigendecompositions on the host."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float


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
