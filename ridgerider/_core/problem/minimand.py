r"""A function of NumPy vectors as SciPy's `minimize` takes it, with or without a gradient.

Derivatives that are not given are differences, with no more calls than they need. With f alone:

    gradient    (f(x + h e_i) - f(x)) / h                                  n calls more
    Hessian     (f(x + h e_i) - 2 f(x) + f(x - h e_i)) / h^2               2 n calls more, and
                (f(x + h e_i + h e_j) + f(x - h e_i - h e_j) - ...) / 2 h^2    n (n - 1) more

with steps relative to the scale of a coordinate, its width between bounds, inside of the bounds.
Vectors are in units of that scale: z = (x - origin) / scale.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ridgerider._core.problem.functions import Block, Functions, Point, Rows
from ridgerider._core.runtime.clock import OutOfTime, check_time

EPS = float(np.finfo(float).eps)
FIRST, SECOND = EPS**0.5, EPS**0.25  # steps of first and of second differences


class Minimand(Functions):
    """`fun` and what is known of its derivatives, in units of the bounds.

    - `jac`: a function, True if `fun` returns both, or None; `hess`: a function, or None.
    - `low`, `high`: the bounds of z; `origin`, `scale`: x = origin + scale z.
    - `max_calls` of `fun`; the next one raises `OutOfTime`.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        jac: Any,
        hess: Any,
        low: Point,
        high: Point,
        origin: Point,
        scale: Point,
    ):
        super().__init__(len(low), float, name=getattr(fun, "__name__", type(fun).__name__))
        self.fun, self.jac, self.hess = fun, jac, hess
        self.low, self.high, self.origin, self.scale = low, high, origin, scale
        self.max_calls: float = np.inf
        self.failures = dict[str, int]()
        self.num_fun = self.num_jac = self.num_hess = 0
        self.lowest: tuple[float, Point] | None = None  # of all that was seen
        self.step = SECOND if hess is None else None

    def first_value(self, x: Point) -> Any:
        """What `fun` returns, to see what kind of function it is; None if it fails."""
        try:
            return self._call((x - self.origin) / self.scale)
        except OutOfTime:
            raise
        except Exception:
            return None

    def params_of(self, x: Point) -> np.ndarray:
        return np.clip(
            self.origin + self.scale * x,
            self.origin + self.scale * self.low,
            self.origin + self.scale * self.high,
        )

    def evaluate(self, x: Block, rows: Rows) -> tuple[np.ndarray, Block]:
        del rows
        if self.jac is None:
            value = self._value(x[0])
            return np.array([value]), self._slopes(x[0], value)[None]
        self.calls.update(values=1, gradients=1)
        value, grad = self._both(x[0])
        return np.array([value]), grad[None]

    # Nobody calls these from a compiled program: time that is up ends the loop that called.

    def host_values(self, x: np.ndarray, *rows: np.ndarray) -> tuple[np.ndarray, ...]:
        return (self._safely(lambda: np.array(self._value(x)), ()),)

    def host_values_and_grads(self, x: np.ndarray, *rows: np.ndarray) -> tuple[np.ndarray, ...]:
        if self._last is None or not np.array_equal(self._last[0], x):  # one is remembered
            found = self._safely(lambda: np.append(*self.evaluate(x[None], None)), (1 + self.size,))
            self._last = x.copy(), found[0], found[1:]
        return self._last[1:]

    def host_hessians(self, x: np.ndarray, *rows: np.ndarray) -> tuple[np.ndarray, ...]:
        return (self._safely(lambda: self.dense(x, None), (self.size, self.size)),)

    def host_expansion(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Value, gradient and Hessian; those of differences share their calls."""
        matrix = self.host_hessians(x)[0]
        if self.jac is None and self.hess is None and self._middle is not None:
            middle, value, slopes = self._middle
            if np.array_equal(middle, x):
                return value, slopes, matrix
        value, grad = self.host_values_and_grads(x)
        return value, grad, matrix

    def host_products(self, x: np.ndarray, v: np.ndarray, *rows: np.ndarray) -> tuple:
        return (v @ self.host_hessians(x.reshape(-1))[0].T,)

    def _safely(self, compute: Callable[[], np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        """What raises an error is NaN here, and a reason in the ledgers."""
        try:
            return compute()
        except OutOfTime:
            raise
        except Exception as error:
            for ledger in self._ledgers:
                ledger.failure = f"{type(error).__name__}: {error}".rstrip(".")
            return np.full(shape, np.nan)

    def dense(self, x: Point, rows: Rows) -> np.ndarray:
        del rows
        if self.hess is not None:
            check_time()
            self.num_hess += 1
            self.calls.update(hessians=1)
            matrix = np.asarray(self.hess(self.params_of(x)), float)
            return self.scale[:, None] * matrix * self.scale
        return self._by_values(x) if self.jac is None else self._by_gradients(x)

    def host_errors(self, x: np.ndarray, v: np.ndarray, *rows: np.ndarray) -> tuple:
        """What a curvature may be off by: rounding of the values, or of the gradients."""
        del v, rows
        if self.jac is None:
            return (np.array(16 * EPS * self._size / SECOND**2),)
        return (np.array(FIRST * self._size),)

    _middle: tuple | None = None  # of the last Hessian by values: the point, value and gradient
    _size = 0.0  # of the values, or of the Hessian, where it was last computed

    def _by_gradients(self, x: Point) -> np.ndarray:
        steps = np.where(x + FIRST <= self.high, FIRST, -FIRST)
        grad = self.evaluate(x[None], None)[1][0]
        columns = []
        for step, unit in zip(steps, np.eye(self.size), strict=True):
            near = self.evaluate((x + step * unit)[None], None)[1][0]
            columns.append((near - grad) / step)
        matrix = np.array(columns)
        self._size = float(np.abs(matrix).max())
        return (matrix + matrix.T) / 2

    def _by_values(self, x: Point) -> np.ndarray:
        h, n, self._middle = SECOND, self.size, None
        middle = np.clip(x, self.low + h, np.maximum(self.high - h, self.low + h))
        value, units = self._value(middle), h * np.eye(n)
        ahead = np.array([self._value(middle + unit) for unit in units])
        behind = np.array([self._value(middle - unit) for unit in units])
        self._size = float(np.abs([value, *ahead, *behind]).max())
        self._middle = middle, np.array(value), (ahead - behind) / (2 * h)
        matrix = np.diag(ahead - 2 * value + behind)
        for i in range(n):
            for j in range(i):
                both = units[i] + units[j]
                far = self._value(middle + both) + self._value(middle - both)
                rest = ahead[i] + behind[i] + ahead[j] + behind[j] - 2 * value
                matrix[i, j] = matrix[j, i] = (far - rest) / 2
        return matrix / h**2

    def _slopes(self, x: Point, value: float) -> Point:
        steps = np.where(x + FIRST <= self.high, FIRST, -FIRST)
        units = np.diag(steps)
        self.calls.update(gradients=1)
        return np.array([self._value(x + unit) - value for unit in units]) / steps

    def _value(self, x: Point) -> float:
        self.calls.update(values=1)
        if self.jac is True:
            return self._both(x)[0]
        return self._noted(x, scalar(self._call(x)))

    def _both(self, x: Point) -> tuple[float, Point]:
        found = self._call(x)
        if self.jac is True:
            value, grad = found
        else:
            self.num_jac += 1
            value, grad = found, self.jac(self.params_of(x))
        return self._noted(x, scalar(value)), np.asarray(grad, float).reshape(
            self.size
        ) * self.scale

    def _noted(self, x: Point, value: float) -> float:
        if np.isfinite(value) and (self.lowest is None or value < self.lowest[0]):
            self.lowest = value, x
        return value

    def _call(self, x: Point) -> Any:
        check_time()
        if self.num_fun >= self.max_calls:
            raise OutOfTime
        self.num_fun += 1
        try:
            return self.fun(self.params_of(x))
        except Exception as error:
            name = f"{type(error).__name__}: {error}".rstrip(".")
            self.failures[name] = self.failures.get(name, 0) + 1
            raise


def scalar(value: Any) -> float:
    value = np.asarray(value)
    if value.size != 1:
        raise ValueError(f"`fun` must return a real scalar, not shape {value.shape}.")
    return float(value.reshape(()))
