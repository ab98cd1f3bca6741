"""For people who know `scipy.optimize`: a function in, its minima out, best first.

Within `bounds` a coordinate is replaced by one that is free, u:

    both:  x = low + (high - low) (1 + sin u) / 2        one:  x = low + (sqrt(1 + u^2) - 1)

A minimum on a bound is then a minimum in u, as smooth as any other.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import OptimizeResult

from ridgerider._check import check_callable, check_count
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.functions import Functions
from ridgerider._core.problem.numpy_functions import MAX_SIZE_OF_VALUES
from ridgerider._core.problem.problem import Problem
from ridgerider._core.problem.unit import measured
from ridgerider._core.ride.rider import Rider
from ridgerider._search.engine.explore import explore
from ridgerider._search.engine.lanes import finish_one
from ridgerider._search.engine.rides import branch_key
from ridgerider._search.tree.tree import Fingerprint

Bounds = Any  # a sequence of pairs, or scipy.optimize.Bounds
SAME = 1e-5  # minima closer than this, relative to their size, are one


def minimize_all(
    fun: Callable[..., Any],
    x0: Any,
    args: tuple[Any, ...] = (),
    jac: Callable[..., Any] | bool | None = None,
    bounds: Bounds | None = None,
    *,
    max_rides: int = 200,
    seed: int = 0,
) -> list[OptimizeResult]:
    """The different minima of a function that can be reached from `x0`, best first.

    It descends from `x0`, climbs from the minimum there to the saddles around it, rides down from
    these, and repeats (`explore`). Some may be missed; none is listed that is not one. In double
    precision, whatever JAX is set to.

    **Arguments**

    - `fun(x, *args)`: a float. NumPy will do; if it can be traced by JAX it is compiled, which
      gives exact derivatives.
    - `jac(x, *args)`: its gradient, or True if `fun` returns both. Without either the gradient is
      differences of values, for at most 100 parameters.
    - `bounds`: pairs (low, high), None or infinity for no bound, or `scipy.optimize.Bounds`.
    - `max_rides`: climbs and rides down, at most.
    - `seed`: every random choice derives from it.

    Each result has `x`, `fun`, `jac`, `success`, `message`, and `least_eigenvalue`, that of the
    Hessian; `nfev` and `njev` count the whole work. If no minimum could be verified, the end of a
    descent from `x0` is returned alone, without `success`.

    >>> import numpy as np
    >>> import ridgerider as rr
    >>> def fun(x):
    ...     return np.sum((x**2 - 1) ** 2) + 0.2 * x[0]
    >>> def jac(x):
    ...     return 4 * x * (x**2 - 1) + np.array([0.2, 0.0])
    >>> sorted(np.round(one.x, 2).tolist() for one in rr.minimize_all(fun, [0.1, 0.2], jac=jac))
    [[-1.02, -1.0], [-1.02, 1.0], [0.97, -1.0], [0.97, 1.0]]
    """
    check_callable("fun", fun, "fun(x, *args)")
    check_count("max_rides", max_rides)
    check_count("seed", seed, 0, 2**31 - 1)
    if not isinstance(jac, bool) and jac is not None:
        check_callable("jac", jac, "jac(x, *args)")
    start = _start(x0)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        box = Box(bounds, start)
        problem, spent = measured(_problem(fun, start, args, jac, box))
        found = _search_all(problem, max_rides, seed)
        found.cost += spent
        results = _results(problem, box, found)
        if isinstance(problem.loss, Functions):  # each call, also those of checks
            calls = problem.loss.calls
            for one in results:
                one.update(nfev=calls["values"], njev=calls["gradients"])
        return results


class Box:
    """The bounds, and free coordinates inside of them."""

    def __init__(self, bounds: Bounds | None, x: np.ndarray):
        low, high = _bounds(bounds, len(x))
        if not (low < high).all():
            raise ValueError("`bounds` must have each low below its high.")
        if not ((low <= x) & (x <= high)).all():
            raise ValueError(f"`x0` must be within `bounds`, but it is {x.tolist()}.")
        self.has_low, self.has_high = np.isfinite(low), np.isfinite(high)
        self.low = np.where(self.has_low, low, 0.0)
        self.high = np.where(self.has_high, high, 0.0)
        self.is_free = not (self.has_low | self.has_high).any()

    def to_x(self, u: Any, xp: Any = np) -> Any:
        """The point, with NumPy or JAX."""
        if self.is_free:
            return u
        both = self.low + (self.high - self.low) * (1 + xp.sin(u)) / 2
        far = xp.sqrt(1 + u**2) - 1
        one = xp.where(self.has_low, self.low + far, xp.where(self.has_high, self.high - far, u))
        return xp.where(self.has_low & self.has_high, both, one)

    def slopes(self, u: np.ndarray) -> np.ndarray:
        """dx / du."""
        both = (self.high - self.low) * np.cos(u) / 2
        far = u / np.sqrt(1 + u**2)
        one = np.where(self.has_low, far, np.where(self.has_high, -far, 1.0))
        return np.where(self.has_low & self.has_high, both, one)

    def to_u(self, x: np.ndarray) -> np.ndarray:
        """Free coordinates of a point, a little inside: on a bound x does not change with u."""
        if self.is_free:
            return x
        width = np.where(self.has_low & self.has_high, self.high - self.low, 1.0)
        share = np.clip((x - self.low) / width, 1e-3, 1 - 1e-3)
        far = np.maximum(np.where(self.has_low, x - self.low, self.high - x), 1e-3)
        one = np.where(self.has_low | self.has_high, np.sqrt((1 + np.abs(far)) ** 2 - 1), x)
        return np.where(self.has_low & self.has_high, np.arcsin(2 * share - 1), one)


class InBox:
    """The function, with its gradient, of free coordinates."""

    def __init__(self, fun: Any, jac: Any, args: tuple[Any, ...], box: Box):
        self.fun, self.jac, self.args, self.box = fun, jac, args, box
        self.__name__ = getattr(fun, "__name__", type(fun).__name__)

    def value(self, u: np.ndarray) -> float:
        return _scalar(self.fun(self.box.to_x(u), *self.args))

    def value_and_grad(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        x = self.box.to_x(u)
        if self.jac is True:
            value, grad = self.fun(x, *self.args)
        else:
            value, grad = self.fun(x, *self.args), self.jac(x, *self.args)
        grad = np.asarray(grad, float)
        return _scalar(value), grad if self.box.is_free else grad * self.box.slopes(u)

    def traced(self, u: Any) -> Any:
        return jnp.asarray(self.fun(self.box.to_x(u, jnp), *self.args)).astype(u.dtype)


def _problem(fun: Any, x: np.ndarray, args: tuple[Any, ...], jac: Any, box: Box) -> Problem:
    inside, u = InBox(fun, jac, args, box), box.to_u(x)
    if jac is not None and jac is not False:
        return Problem.from_functions(inside.value_and_grad, u)
    try:
        out = eqx.filter_eval_shape(inside.traced, jnp.asarray(u))
        if out.shape == ():
            return Problem(inside.traced, u)
    except Exception:  # whatever NumPy code may say to a tracer
        pass
    if len(u) > MAX_SIZE_OF_VALUES:
        raise ValueError(
            f"`jac` is needed for more than {MAX_SIZE_OF_VALUES} parameters, and there are "
            f"{len(u)}; or write `fun` with jax.numpy."
        )
    problem = Problem.from_functions(None, u, value=inside.value)
    assert isinstance(problem.loss, Functions)
    problem.loss.count(values=1)  # the call above, with a tracer
    return problem


class _Found:
    """Ends of descents in the order they were found, and what it all cost."""

    def __init__(self) -> None:
        self.ends: list[tuple[np.ndarray, Any]] = []
        self.cost = Cost()


def _search_all(problem: Problem, max_rides: int, seed: int) -> _Found:
    found, key = _Found(), branch_key(seed, Fingerprint())
    with problem.ledger() as ledger:
        end = jax.device_get(eqx.filter_jit(finish_one)(problem, Rider(), problem.x0, key))
    found.ends.append((np.asarray(end.x), end))
    found.cost += ledger.charge([end.cost])[0]
    if end.kind in ("minimum", "unverified"):
        with contextlib.suppress(ValueError):  # there may be no minimum below
            start = problem.with_start(jnp.asarray(end.x))
            landscape = explore(start, max_rides=max_rides, seed=seed)
            found.cost += landscape.cost
            found.ends += [(np.asarray(one.params), one) for one in landscape.minima()]
    return found


def _results(problem: Problem, box: Box, found: _Found) -> list[OptimizeResult]:
    minima = [(u, end) for u, end in found.ends if end.kind == "minimum"]
    results: list[OptimizeResult] = []
    for u, end in sorted(minima or found.ends[:1], key=lambda pair: float(pair[1].loss)):
        x = box.to_x(u)
        if any(_is_same(x, other.x, float(problem.unit)) for other in results):
            continue
        grad = np.asarray(problem.grad(jnp.asarray(u)))
        slopes = np.ones_like(u) if box.is_free else box.slopes(u)
        results.append(
            OptimizeResult(
                x=x,
                fun=float(end.loss),
                # On a bound the gradient in x is not seen from u.
                jac=np.where(slopes == 0, np.nan, grad / np.where(slopes == 0, 1, slopes)),
                success=end.kind == "minimum",
                message=f"{end.kind}{f': {end.doubt}' if end.doubt else ''}",
                least_eigenvalue=float(end.least_eigenvalue),
                nfev=int(found.cost.values),
                njev=int(found.cost.gradients),
            )
        )
    return results


def _is_same(one: np.ndarray, two: np.ndarray, unit: float) -> bool:
    return bool(np.linalg.norm(one - two) <= SAME * max(unit, float(np.linalg.norm(one))))


def _start(x0: Any) -> np.ndarray:
    try:
        x = np.array(x0, float)
    except (TypeError, ValueError):
        raise ValueError(f"`x0` must be a sequence of numbers, not {x0!r}.") from None
    if x.ndim > 1 or not x.size:
        raise ValueError(f"`x0` must be one row of numbers, not of shape {x.shape}.")
    return np.atleast_1d(x)


def _bounds(bounds: Bounds | None, size: int) -> tuple[np.ndarray, np.ndarray]:
    if bounds is None:
        return np.full(size, -np.inf), np.full(size, np.inf)
    if hasattr(bounds, "lb"):
        low, high = (np.broadcast_to(one, size).astype(float) for one in (bounds.lb, bounds.ub))
        return low, high
    if not isinstance(bounds, Sequence | np.ndarray) or len(bounds) != size:
        raise ValueError(f"`bounds` must be {size} pairs (low, high), not {bounds!r}.")
    pairs = [
        (-np.inf if low is None else low, np.inf if high is None else high) for low, high in bounds
    ]
    low, high = np.array(pairs, float).T
    return low, high


def _scalar(value: Any) -> float:
    value = np.asarray(value)
    if value.size != 1:
        raise ValueError(f"`fun` must return a real scalar, not shape {value.shape}.")
    return float(value.reshape(()))
