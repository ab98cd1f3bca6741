"""A problem as plain functions of NumPy vectors, for loops on the host.

A loop on the host compiles the loss with its derivatives, and nothing else; for a function outside
of JAX it compiles nothing. It looks at the clock before each call, and counts each call.

The natural unit of length of a problem, in which step sizes and tolerances are given.

Along a direction e the gradient changes by h H e over a distance h, as long as that is short. The
distance at which this prediction is off by half is a length of the problem itself; it scales with
the parameters and does not depend on the scale and the zero of the loss. The unit is the mean of
this distance over some directions, along one parameter, rounded to a power of ten: problems whose
parameters are of ordinary size have the unit 1.
"""

from collections.abc import Callable
from copy import copy
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from ridgerider._core.problem.cost import COUNTED, Cost
from ridgerider._core.problem.functions import Functions
from ridgerider._core.problem.problem import Problem, Scalar, Vector, fetch, place
from ridgerider._core.runtime.clock import check_time
from ridgerider._core.runtime.compile import Effort, Identity, program_of

Point = Float[np.ndarray, " n"]
Rows = Float[np.ndarray, "k n"]
Named = dict[str, Callable[..., Any]]


class Calls:
    """The loss, its gradient, Hessian-vector products (HVPs) and Hessian, each call counted.

    What a function outside of JAX raises is NaN here; the open ledgers of the problem have the
    reason. `cost` is what was asked for so far.

    >>> import jax.numpy as jnp
    >>> calls = Calls(Problem(lambda x: x @ x, jnp.ones(2)))
    >>> value, grad = calls.value_and_grad(np.array([3.0, 4.0]))
    >>> value, grad.tolist(), calls.cost.gradients
    (25.0, [6.0, 8.0], 1)
    """

    def __init__(self, problem: Problem):
        self.problem, self.dtype, loss = problem, problem.dtype, problem.loss
        self.is_outside = isinstance(loss, Functions)
        self.has_values = getattr(loss, "has_values", False)  # which cost less than gradients
        self._functions = _outside(loss) if isinstance(loss, Functions) else _programs(problem)
        self._counts = dict.fromkeys(COUNTED, 0)

    @staticmethod
    def of(problem: Problem) -> "Calls":
        """Those of the problem, which are remembered, with a separate count."""
        return _calls_of(Identity(problem)).anew()

    def anew(self) -> "Calls":
        """The same functions with a separate count."""
        new = copy(self)
        new._counts = dict.fromkeys(COUNTED, 0)
        return new

    @property
    def cost(self) -> Cost:
        return Cost(**self._counts)

    def value(self, x: Point) -> float:
        self._count(values=1)
        return float(self._functions["value"](x))

    def trial(self, x: Point) -> tuple[float, Point | None]:
        """The value, where a gradient is likely to follow: with it, if that costs no call more."""
        return (self.value(x), None) if self.has_values else self.value_and_grad(x)

    def value_and_grad(self, x: Point) -> tuple[float, Point]:
        self._count(values=1, gradients=1)
        value, grad = self._functions["value_and_grad"](x)
        return float(value), np.asarray(grad)

    def hvps(self, x: Point, rows: Rows) -> Rows:
        """The HVP of each row."""
        self._count(hvps=len(rows))
        return np.broadcast_to(self._functions["hvps"](x, rows), rows.shape)

    def hessian(self, x: Point) -> Float[np.ndarray, "n n"]:
        self._count(hvps=len(x), hessians=1)
        return np.asarray(self._functions["hessian"](x))

    def expansion(self, x: Point) -> tuple[float, Point, Float[np.ndarray, "n n"]]:
        """Value, gradient and Hessian."""
        self._count(values=1, gradients=1, hvps=len(x), hessians=1)
        # That of differences of values brings the gradient with it.
        hessian = np.asarray(self._functions["hessian"](x))
        value, grad = self._functions["value_and_grad"](x)
        return float(value), np.asarray(grad), hessian

    def hvp_error(self, x: Point, row: Point) -> float:
        """What an HVP may be off by beyond rounding."""
        if "error" not in self._functions:
            return 0.0
        self._count(hvps=1)
        return float(self._functions["error"](x, row))

    def charge(self, cost: Cost) -> None:
        """Add what a program has cost."""
        self._count(**{name: int(getattr(cost, name)) for name in COUNTED})

    def _count(self, **counts: int) -> None:
        check_time()
        for name, count in counts.items():
            self._counts[name] += count


@lru_cache(maxsize=4)
def _calls_of(problem: Identity) -> Calls:
    return Calls(problem.value)


def _outside(functions: Functions) -> Named:
    """A loss outside of JAX. The functions may keep and change the arrays that they get."""
    size, dtype = functions.size, functions.dtype
    own = partial(np.array, dtype=dtype)
    row, matrix = np.full(size, np.nan, dtype), np.full((size, size), np.nan, dtype)

    def named(compute: Callable[..., Any], otherwise: Any) -> Callable[..., Any]:
        return lambda *given: functions.safely(lambda: compute(*map(own, given)), otherwise)

    found: Named = {
        "value": named(functions.value_at, np.nan),
        "value_and_grad": named(functions.pair_at, (np.nan, row)),
        "hvps": named(lambda x, rows: functions.multiply(x, rows, None), row),
        "hessian": named(lambda x: functions.dense(x, None), matrix),
    }
    if functions.step is not None:
        error = named(lambda x, row: functions.errors(x, row[None], None)[0], np.nan)
        found["error"] = error
    return found


def _programs(problem: Problem) -> Named:
    """Compiled functions of the vector."""
    problem = problem.timeless()  # calls look at the clock
    spread = any(len(one.sharding.device_set) > 1 for one in jax.tree.leaves(problem.start))

    def program(function: Callable[..., Any], effort: Effort = "little") -> Callable[..., Any]:
        run = program_of(problem, function, effort)
        return (lambda x, *rest: fetch(run(place(problem, x), *rest))) if spread else run

    return {
        "value": program(Problem.value),
        "value_and_grad": program(_value_and_grad),
        "hvps": program(_hvps, "small"),
        "hessian": program(Problem.hessian),
    }


def _value_and_grad(problem: Problem, x: Vector) -> tuple[Scalar, Vector]:
    return jax.value_and_grad(problem.value)(x)


def _hvps(problem: Problem, x: Vector, rows: Float[Array, "k n"]) -> Float[Array, "k n"]:
    return jax.vmap(problem.hvp_at(x))(rows)


NUM_DIRECTIONS = 4
ORDINARY = 0.35  # the middle of the distances, along one parameter, whose unit is 1
MAX_DOUBLINGS = 60


def measured(problem: Problem) -> tuple[Problem, Cost]:
    """The problem with its unit of length, as it is around its start, and what that cost.

    >>> import jax.numpy as jnp
    >>> problem = Problem(lambda x: jnp.sum(jnp.cos(1e6 * x)), jnp.zeros(2))
    >>> problem, _ = measured(problem)
    >>> 1e-7 < float(problem.unit) < 1e-4
    True
    """
    if isinstance(problem.loss, Functions):
        return problem.with_unit(problem.loss.unit), problem.loss.preparation
    calls, x = Calls(problem), fetch(problem.x0)
    rows = np.random.default_rng(0).normal(size=(NUM_DIRECTIONS, len(x))).astype(x.dtype)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    grad = calls.value_and_grad(x)[1]
    lengths = []
    for row, image in zip(rows, calls.hvps(x, rows), strict=True):

        def is_predicted(length: float, row: np.ndarray = row, image: np.ndarray = image) -> bool:
            with np.errstate(all="ignore"):
                new = calls.value_and_grad((x + length * row).astype(x.dtype))[1]
                off = np.linalg.norm(new - grad - length * image)
                return bool(off <= length * np.linalg.norm(image) / 2)

        length, count = float(len(x)) ** 0.5, 0
        factor = 2.0 if is_predicted(length) else 0.5
        while count < MAX_DOUBLINGS and is_predicted(factor * length) == (factor > 1):
            length, count = factor * length, count + 1
        if count < MAX_DOUBLINGS:
            lengths.append(length / len(x) ** 0.5)
    if not lengths:  # no length at all, as of a quadratic loss
        return problem, calls.cost
    mean = float(np.exp(np.mean(np.log(lengths))))
    # A start that is not at the origin has a size, which counts if it is of this order.
    mean = float(np.clip(np.sqrt(np.mean(x**2)) / 4, mean, 10 * mean))
    return problem.with_unit(10.0 ** round(np.log10(mean / ORDINARY))), calls.cost
