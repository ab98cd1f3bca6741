"""Python callables on NumPy arrays as a loss, checked before they are used."""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ridgerider._check import check_start, told_of
from ridgerider._core.problem.functions import CALLING, STEPS, Block, Functions, Point, Rows

MAX_SIZE_OF_VALUES = 100  # parameters of a function without its gradient, for `minimize_all`
CANDIDATES = (1.0, 0.25, 4.0, 0.0625, 16.0)  # steps of differences, times a typical one
MAX_COORDINATES = 200  # that are compared one by one to name the worst


class NumpyFunctions(Functions):
    """`value_and_grad(params)`, `hvp(params, v)` and `hessian(params)`, checked at `start`.

    The arguments are those of `Problem.from_functions`.
    """

    def __init__(
        self,
        start: PyTree,
        value_and_grad: Callable[..., Any],
        hvp: Callable[..., Any] | None = None,
        hessian: Callable[..., Any] | None = None,
        check: bool = True,
    ):
        leaves, structure = jax.tree.flatten(start)
        self._structure: Any = structure
        self._shapes = [np.shape(leaf) for leaf in leaves]
        self._is_vector = leaves[0] is start and len(self._shapes[0]) == 1
        self._ends = np.cumsum([np.size(leaf) for leaf in leaves])
        dtype = np.result_type(*(getattr(leaf, "dtype", np.float64) for leaf in leaves))
        name = getattr(value_and_grad, "__name__", type(value_and_grad).__name__)
        super().__init__(int(self._ends[-1]), dtype, 1, name)
        self._value_and_grad, self._hvp, self._hessian = value_and_grad, hvp, hessian
        x = self._ravel("start", jax.tree.map(np.asarray, start)).astype(self.dtype)
        with CALLING:
            _check_once(self, x)
            self.unit = natural_length(self, x)
            nearby = _nearby(self, x)
            if check:
                check_gradient(self, nearby)
            if hvp is None and hessian is None:
                measure_noise(self, nearby, _eps(self) ** (1 / 3))
            elif check:
                check_products(self, nearby)

    def evaluate(self, x: Block, rows: Rows) -> tuple[np.ndarray, Block]:
        del rows
        (point,) = x
        self.count(values=1, gradients=1)
        value, grad = _pair(self._value_and_grad(self._unravel(point)))
        if np.shape(value) != ():
            raise ValueError(
                f"`value_and_grad` must return a real scalar first, not shape {np.shape(value)}."
            )
        return np.reshape(value, 1), self._ravel("gradient", grad)[None]

    def multiply(self, x: Point, v: Block, rows: Rows) -> Block:
        if self._hvp is None and self._hessian is None:
            return super().multiply(x, v, rows)
        if self._hvp is None:
            return v @ self.dense(x, rows).T
        params, products = self._unravel(x), []
        for row in v:
            self.count(hvps=1)
            products.append(self._ravel("product", self._hvp(params, self._unravel(row))))
        return np.stack(products)

    def dense(self, x: Point, rows: Rows) -> np.ndarray:
        if self._hessian is None:
            return super().dense(x, rows)
        self.count(hvps=self.size, hessians=1)
        matrix = np.asarray(self._hessian(self._unravel(x)))
        if matrix.shape != (self.size, self.size):
            raise ValueError(
                f"`hessian` must return a matrix of shape {(self.size, self.size)}, "
                f"not {matrix.shape}."
            )
        return matrix

    def _unravel(self, x: np.ndarray) -> PyTree:
        if self._is_vector:
            return x
        parts = zip(np.split(x, self._ends[:-1]), self._shapes, strict=True)
        return jax.tree.unflatten(self._structure, [part.reshape(shape) for part, shape in parts])

    def _ravel(self, what: str, tree: PyTree) -> np.ndarray:
        """The pytree as a vector."""
        if self._is_vector and type(tree) is np.ndarray and tree.shape == (self.size,):
            return tree
        leaves, structure = jax.tree.flatten(tree)
        shapes = [np.shape(leaf) for leaf in leaves]
        if structure != self._structure or shapes != self._shapes:
            raise ValueError(
                f"the {what} must have the structure of `start` and shapes {self._shapes}, not "
                f"{shapes}."
            )
        if any(isinstance(leaf, jax.Array) for leaf in leaves):
            raise ValueError(
                f"the {what} must be NumPy arrays, not arrays of JAX, which must not be called "
                "from here; a loss written in JAX goes into rr.Problem(loss, start) as it is."
            )
        return np.concatenate([np.ravel(leaf) for leaf in leaves])


def natural_length(functions: Functions, x: Point, is_free: Any = True) -> float:
    """About the length over which a function is quadratic, a power of ten; 1 if ordinary."""
    row, last = np.random.default_rng(0).normal(size=len(x)) * is_free, 0.0

    def value_at(x: Point) -> float:
        return float(functions.safely(lambda: functions.value_at(x), np.nan))

    value = value_at(x)
    size = 10.0 ** round(math.log10(float(np.abs(x).max(initial=0)) or 1.0))
    for length in size * 10.0 ** np.arange(-3, 2, 0.5):
        ways = (x + sign * length * row / np.linalg.norm(row) for sign in (1, -1))
        values = np.array([value, *(value_at(way.astype(x.dtype)) for way in ways)])
        bend = values[1] + values[2] - 2 * value
        if last and not 0.5 <= bend / (10 * last) <= 2:
            power = round(math.log10(length / 2))
            # Far from the size of the start it is likely that of an inflection there.
            is_likely = abs(power - math.log10(size)) < 1.5
            return 10.0**power if is_likely and abs(power) > 1 else 1.0
        last = bend if abs(bend) > 1e4 * _eps(functions) * np.abs(values).max() else 0.0
    return 1.0


def measure_noise(functions: Functions, x: Point, typical: float) -> None:
    """Choose the step of differences at which two of them agree best, and say how well."""
    units = np.array([_random_unit(functions, seed) for seed in (1, 2)])
    sizes = [typical * factor for factor in CANDIDATES]
    found = []
    for size in sizes:
        functions.step = size
        images, errors = functions.differences(x, units, None)
        lengths = np.linalg.norm(images, axis=1)
        found.append(float(np.max(errors / np.where(lengths > 0, lengths, 1))))
    best = int(np.nanargmin([*found, np.inf]))
    if best == len(sizes):
        raise ValueError(
            "the gradients close to `start` must be finite, but their differences are not."
        )
    functions.step, functions.noise = sizes[best], found[best]


def check_gradient(functions: Functions, x: Point) -> None:
    """Raise unless the gradient is that of the values, and name the coordinate that is worst."""
    _, (grad,) = functions._in_blocks(x[None], None)
    slope, error = _slope(functions, x, _random_unit(functions))
    along = float(grad @ _random_unit(functions))
    size = abs(slope) + abs(along)
    if abs(slope - along) <= 1e-3 * size + error:
        return
    hint = ""
    if abs(slope + along) <= 1e-3 * size + error:
        hint = " It has the wrong sign: are these forces?"
    numbers = np.linspace(0, functions.size - 1, min(functions.size, MAX_COORDINATES)).astype(int)
    rows = np.zeros((len(numbers), functions.size), functions.dtype)
    rows[np.arange(len(numbers)), numbers] = 1
    slopes = np.array([_slope(functions, x, row)[0] for row in rows])
    worst = int(np.argmax(np.abs(slopes - grad[numbers])))
    raise ValueError(
        "the gradient must be that of the values, but at coordinate "
        f"{numbers[worst]} it is {grad[numbers[worst]]:.6g} where differences of values give "
        f"{slopes[worst]:.6g}.{hint} (check=False leaves this check out.)"
    )


def check_products(functions: Functions, x: Point) -> None:
    """Raise unless products are those of the gradients' own derivative."""
    unit = _random_unit(functions)
    product = functions.multiply(x, unit[None], None)[0]
    functions.step = _eps(functions) ** (1 / 3)
    (image,), (error,) = functions.differences(x, unit[None], None)
    functions.step = None
    off = np.abs(product - image)
    if np.linalg.norm(off) > 1e-3 * np.linalg.norm(image) + 10 * error:
        worst = int(np.argmax(off))
        raise ValueError(
            "`hvp` or `hessian` must be the derivative of the gradient, but at coordinate "
            f"{worst} an HVP is {product[worst]:.6g} where differences of gradients give "
            f"{image[worst]:.6g}. (check=False leaves this check out.)"
        )


def _check_once(functions: NumpyFunctions, x: Point) -> None:
    with told_of("value_and_grad", "value_and_grad(params), for this `start`"):
        (value,), (grad,) = functions._in_blocks(x[None], None)
    kind = np.result_type(value, grad)
    if kind not in (np.float32, np.float64):
        raise ValueError(f"values and gradients must be float32 or float64, not {kind}.")
    check_start(value=value, gradient=grad)
    (again,), (grad_again,) = functions._in_blocks(x[None], None)
    if again != value or not np.array_equal(grad, grad_again):
        raise ValueError(
            f"the functions must be deterministic, but two calls at `start` returned {value!r} and "
            f"{again!r}, with gradients that differ by {np.abs(grad - grad_again).max():.3g}."
        )


def _nearby(functions: Functions, x: Point) -> Point:
    """A point off the start, which is a saddle: there every gradient vanishes, right or wrong."""
    typical = max(functions.unit, float(np.linalg.norm(x)) / functions.size**0.5)
    noise = np.random.default_rng(0).normal(size=functions.size)
    moved = (x + 0.01 * typical * noise).astype(functions.dtype)
    try:
        value, grad = functions._in_blocks(moved[None], None)
    except Exception:
        return x
    return moved if np.isfinite(value).all() and np.isfinite(grad).all() else x


def _slope(functions: Functions, x: Point, row: Point) -> tuple[float, float]:
    """The derivative of the value along a row, and what it may be off by."""
    h = _eps(functions) ** (1 / 3) * max(functions.unit, float(np.linalg.norm(x)))
    points = np.array([x + step * h * row for step in STEPS])
    values, _ = functions._in_blocks(points, None)
    near, far = (values[0] - values[1]) / (2 * h), (values[2] - values[3]) / (4 * h)
    rounding = 10 * _eps(functions) * float(np.abs(values).max()) / h
    return float(near), 10 * float(abs(near - far)) + rounding


def _random_unit(functions: Functions, seed: int = 1) -> Point:
    row = np.random.default_rng(seed).normal(size=functions.size).astype(functions.dtype)
    return row / np.linalg.norm(row)


def _pair(result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise ValueError(
            "`value_and_grad` must return two things, the value and the gradient, not "
            f"{type(result).__name__}."
        )
    if type(result[0]).__module__.startswith("jaxlib"):  # faster than isinstance
        raise ValueError(
            "`value_and_grad` must return NumPy arrays, not arrays of JAX; a loss written in JAX "
            "goes into rr.Problem(loss, start) as it is."
        )
    return result[0], result[1]


def _eps(functions: Functions) -> float:
    return float(np.finfo(functions.dtype).eps)
