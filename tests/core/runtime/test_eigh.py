"""Eigendecompositions on the host."""

import numpy as np
import pytest

from ridgerider._core.runtime.compile import eigh


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 5, 40])
def test_eigenpairs(dtype, size):
    root = np.random.default_rng(size).normal(size=(size, size))
    matrix = (root + root.T).astype(dtype)
    values, columns = eigh(matrix)
    assert values.dtype == columns.dtype == dtype and (np.diff(values) >= 0).all()
    rounding = 100 * size * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(columns.T @ columns, np.eye(size), atol=rounding)
    np.testing.assert_allclose((columns * values) @ columns.T, matrix, atol=10 * rounding)


def test_what_is_not_finite():
    values, columns = eigh(np.array([[1.0, np.nan], [np.nan, 2.0]]))
    assert np.isnan(values).all()
    np.testing.assert_array_equal(columns, np.eye(2))
