r"""A function of NumPy vectors as SciPy's `minimize` takes it, with or without a gradient.

Derivatives that are not given are differences, with no more calls than they need. With f alone:

    gradient    (f(x + h e_i) - f(x)) / h                              n calls more
    Hessian     (f(x + h e_i) - 2 f(x) + f(x - h e_i)) / h^2           2 n calls more, and
                (f(x + h e_i + h e_j) - f(x + h e_i) - f(x + h e_j) + f(x)) / h^2    n (n - 1) / 2,
                and with -h as many more, where eigenvalues differ much

with steps relative to the scale of a coordinate, its width between bounds, inside of the bounds.
The h of second differences is short, for narrow wells; where rounding hides a curvature, it is
longer. The values of a Hessian are those of a central gradient, too, and its diagonal corrects the
gradients that follow.
Vectors are in units of that scale: z = (x - origin) / scale.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ridgerider._core.problem.functions import Block, Functions, Point, Rows
from ridgerider._core.runtime.clock import OutOfTime, check_time

EPS = float(np.finfo(float).eps)
FIRST = EPS**0.5  # the step of first differences
SECOND = (5e-6, 1e-4, 2e-3)  # steps of second differences
STIFF = 100  # of the largest eigenvalue, one that is smaller needs mixed differences both ways
HIDDEN = 1e5  # times its rounding: a second difference that is less needs a longer step


class Minimand(Functions):
    """`fun` and what is known of its derivatives, in units of the bounds.

    - `jac`: a function, True if `fun` returns both, or None; `hess`: a function, or None.
    - `low`, `high`: the bounds of z; `origin`, `scale`: x = origin + scale z.
    - `max_calls` of `fun`; the next one raises `OutOfTime`, and sooner if some are `held_back`.
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
        self.held_back: float | None = 0.0  # the share of `max_calls` that is left for later
        self.is_spent = False  # whether a call was refused
        self.difference = "2-point"  # or "3-point", "cs": how gradients are computed from values
        self.failures = dict[str, int]()
        self.num_fun = self.num_jac = self.num_hess = 0
        self.lowest: tuple[float, Point] | None = None  # of all that was seen
        self.step = SECOND[0] if hess is None else None
        self.forget()

    def first_value(self, x: Point) -> Any:
        """What `fun` returns, to see what kind of function it is; None if it fails."""
        try:
            return self._call((x - self.origin) / self.scale)
        except OutOfTime:
            raise
        except Exception:
            return None

    @property
    def has_values(self) -> bool:
        """Whether a value costs fewer calls than a value with its gradient."""
        return self.jac is not True

    def forget(self) -> None:
        self._last = self._known = None
        self._bends = np.zeros(self.size)

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

    def value_at(self, x: Point) -> float:
        return self._value(x)

    def multiply(self, x: Point, v: Block, rows: Rows) -> Block:
        return v @ self.dense(x, rows).T

    def dense(self, x: Point, rows: Rows) -> np.ndarray:
        del rows
        if self.hess is not None:
            check_time()
            self.num_hess += 1
            self.calls.update(hessians=1)
            matrix = np.asarray(self.hess(self.params_of(x)), float)
            return self.scale[:, None] * matrix * self.scale
        return self._by_values(x) if self.jac is None else self._by_gradients(x)

    def errors(self, x: Point, v: Block, rows: Rows) -> np.ndarray:
        """What a curvature may be off by: rounding of the values, or of the gradients."""
        del x, rows
        if self.jac is None:
            return 4 * EPS * self._size * (np.abs(v) @ (1 / self._steps)) ** 2
        return np.full(len(v), FIRST * self._size)

    _size: float = 0.0  # of the values, or of the Hessian, where it was last computed
    _steps: Point = np.ones(1)  # of the last Hessian by values

    def _by_gradients(self, x: Point) -> np.ndarray:
        steps = np.where(x + FIRST <= self.high, FIRST, -FIRST)
        grad = self.pair_at(x)[1]
        columns = []
        for step, unit in zip(steps, np.eye(self.size), strict=True):
            near = self.evaluate((x + step * unit)[None], None)[1][0]
            columns.append((near - grad) / step)
        matrix = np.array(columns)
        self._size = float(np.abs(matrix).max())
        return (matrix + matrix.T) / 2

    def _by_values(self, x: Point) -> np.ndarray:
        n, axes, steps = self.size, np.eye(self.size), np.full(self.size, SECOND[0])
        middle = np.clip(x, self.low + steps, np.maximum(self.high - steps, self.low + steps))
        value, ahead, behind = self._value(middle), np.zeros(n), np.zeros(n)
        room = np.minimum(middle - self.low, self.high - middle)
        for i in range(n):
            for step in np.minimum(SECOND, max(SECOND[0], room[i])):
                ahead[i], behind[i] = (self._value(middle + s * axes[i]) for s in (step, -step))
                steps[i], bend = step, abs(ahead[i] - 2 * value + behind[i])
                if bend >= HIDDEN * EPS * abs(value) or step >= room[i]:
                    break
        self._size, self._steps = float(np.abs([value, *ahead, *behind]).max()), steps
        mixed = self._mixed(middle, value, ahead, steps)
        sizes = np.abs(np.linalg.eigvalsh(mixed + np.diag(ahead - 2 * value + behind)))
        if n > 1 and not sizes.min() > sizes.max() / STIFF:  # first order is not enough
            mixed = (mixed + self._mixed(middle, value, behind, -steps)) / 2
        matrix = mixed + np.diag(ahead - 2 * value + behind)
        self._bends = np.diag(matrix) / steps**2
        if (middle == x).all():
            self._last = x.copy(), None, value, (ahead - behind) / (2 * steps)
        return matrix / np.outer(steps, steps)

    def _mixed(self, x: Point, value: float, near: Point, steps: Point) -> np.ndarray:
        """Mixed second differences, of first order; `near` are the values one step from `x`."""
        matrix, units = np.zeros((self.size, self.size)), np.diag(steps)
        for i in range(self.size):
            for j in range(i):
                both = self._value(x + units[i] + units[j])
                matrix[i, j] = matrix[j, i] = both - near[i] - near[j] + value
        return matrix

    def _slopes(self, x: Point, value: float) -> Point:
        self.calls.update(gradients=1)
        if self.difference == "cs":
            return np.array([self._imaginary(x, unit) for unit in np.eye(self.size)])
        if self.difference == "3-point":
            size = EPS ** (1 / 3)
            ahead, behind = np.minimum(x + size, self.high), np.maximum(x - size, self.low)
            ways = zip(np.diag(ahead - x), np.diag(behind - x), strict=True)
            rise = [self._value(x + up) - self._value(x + down) for up, down in ways]
            return np.array(rise) / (ahead - behind)
        steps = np.where(x + FIRST <= self.high, FIRST, -FIRST)
        slopes = np.array([self._value(x + unit) - value for unit in np.diag(steps)]) / steps
        return slopes - steps / 2 * self._bends

    def _imaginary(self, x: Point, unit: Point) -> float:
        """A slope by a step along the imaginary axis, which has no rounding."""
        self.calls.update(values=1)
        found = self._counted(self.params_of(x) + 1e-20j * self.scale * unit)
        return float(np.imag(np.asarray(found).reshape(()))) / 1e-20

    _known: tuple[Point, float] | None = None  # the last point, and its value

    def _value(self, x: Point) -> float:
        if self.jac is True:
            self.calls.update(values=1)
            return self._both(x)[0]
        if self._known is None or not np.array_equal(self._known[0], x):
            self.calls.update(values=1)
            self._known = x.copy(), self._noted(x, scalar(self._call(x)))
        return self._known[1]

    def _both(self, x: Point) -> tuple[float, Point]:
        if self.jac is True:
            found, grad = self._call(x)
            value = self._noted(x, scalar(found))
        else:
            value = self._value(x)
            self.num_jac += 1
            grad = self.jac(self.params_of(x))
        return value, np.asarray(grad, float).reshape(self.size) * self.scale

    def _noted(self, x: Point, value: float) -> float:
        if np.isfinite(value) and (self.lowest is None or value < self.lowest[0]):
            self.lowest = value, x
        return value

    def _call(self, x: Point) -> Any:
        return self._counted(self.params_of(x))

    def _counted(self, params: np.ndarray) -> Any:
        check_time()
        if self.num_fun >= self.max_calls * (1 - (self.held_back or 0)):
            self.is_spent = True
            raise OutOfTime
        self.num_fun += 1
        try:
            return self.fun(params)
        except Exception as error:
            name = f"{type(error).__name__}: {error}".rstrip(".")
            self.failures[name] = self.failures.get(name, 0) + 1
            raise


def scalar(value: Any) -> float:
    value = np.asarray(value)
    if value.size != 1:
        raise ValueError(f"`fun` must return a real scalar, not shape {value.shape}.")
    return float(value.reshape(()))
