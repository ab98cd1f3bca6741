"""For people who know `scipy.optimize`: a function in, its minima out, best first."""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np

from ridgerider._check import AtLeast0, Count, Limit, Seed, check_count, check_takes, checked
from ridgerider._core.points.climb import Climb
from ridgerider._core.points.symmetry import periodic
from ridgerider._core.problem.calls import measured
from ridgerider._core.problem.minimand import Minimand
from ridgerider._core.problem.numpy_functions import (
    MAX_SIZE_OF_VALUES,
    check_gradient,
    natural_length,
)
from ridgerider._core.problem.problem import Problem
from ridgerider._core.runtime.clock import OutOfTime
from ridgerider._search.engine.climbs import Climbs, NoMinimum, has_arrived, host
from ridgerider._search.engine.loop import Means
from ridgerider._search.engine.run import begin_run
from ridgerider._search.engine.starts import bounds_of, periods_of
from ridgerider._search.engine.wells import Wells, is_flat, modes_at
from ridgerider._search.results.landscape import Landscape
from ridgerider._search.tree import Budget, Fingerprint, Leg, Settings, fewest_visits

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult  # takes a while

DIFFERENCES = ("2-point", "3-point", "cs")  # names of SciPy for a gradient that is not given
ROUND = 4  # starts and climbs that are chosen at once


class Minima(list["OptimizeResult"]):
    """The minima, best first, with what concerns all of them.

    `nfev`, `njev` and `nhev` count every call; `message` says why it ended, `success` whether a
    minimum was found; `landscape` is the map (None if there is none), with the transition states
    between the minima; `completeness` is its estimate of what is missing. `undecided` are level
    points that may belong to another minimum, or lie above one: the budget did not tell.
    """

    nfev: int
    njev: int
    nhev: int
    success: bool
    message: str
    landscape: Landscape | None
    undecided: list["OptimizeResult"]

    @property
    def completeness(self) -> Any:
        return None if self.landscape is None else self.landscape.completeness()


@checked
def minimize_all(
    fun: Callable[..., Any],
    x0: Any,
    args: Any = (),
    jac: Callable[..., Any] | bool | Literal["2-point", "3-point", "cs"] | None = None,
    hess: Callable[..., Any] | None = None,
    bounds: Any = None,
    *,
    period: Any = None,
    tol: AtLeast0 | None = None,
    hessp: Callable[..., Any] | None = None,
    constraints: Any = (),
    options: dict[str, Any] | None = None,
    max_calls: Count | None = 20_000,
    max_seconds: Limit = None,
    seed: Seed = 0,
    callback: Callable[[Any], None] | None = None,
    verbose: bool = True,
) -> Minima:
    """The different minima of a function, best first.

    Descents from starts all over the bounds (or around `x0`, where there are none) take turns with
    climbs from the minima to the transition states around them, as either finds more: `explore`
    with other settings. It ends when `max_calls` or `max_seconds` are used up, or when the number
    of starts that led to known minima says that hardly any is missing. Some may be missed. Each
    minimum that is listed was verified by its curvature and by values around it. It works in double
    precision, whatever JAX is set to.

    **Arguments**

    - `fun(x, *args)`: a float, of a NumPy vector. If it returns an array of JAX it is
      differentiated by JAX.
    - `x0`: where to begin.
    - `jac(x, *args)`: its gradient, or True if `fun` returns both. Without either the gradient is
      differences of values: "2-point", "3-point" (central) or "cs" (complex steps, for functions
      that compute with complex numbers).
    - `hess(x, *args)`: its Hessian, or `hessp(x, p, *args)`, its product with a vector.
    - `bounds`: pairs (low, high), None or infinity for no bound, or `scipy.optimize.Bounds`. A
      minimum on a bound is one in the sense of Karush, Kuhn and Tucker.
    - `period` of each parameter, or of all (angles), None or 0 for one without a period: points are
      equal modulo it. Starts are all over it, no bound counts, and `x` is in the first one from the
      lower bound, or from 0.
    - `tol`: how accurate `x` has to be, relative to the width of the bounds; minima that are closer
      than ten times this are one. Default: as accurate as rounding allows.
    - `max_calls` of `fun`, those for differences included.
    - `seed`: every random choice derives from it.
    - `callback(progress)`: called after each descent and climb with an `rr.types.Progress`. Without
      it, and unless `verbose` is False, a line on a terminal tells how far it is, after two
      seconds.
    - `options`: those of SciPy that have a meaning here: `maxfun` or `maxfev`, as `max_calls`, and
      `disp`, as `verbose`. `constraints` are refused.

    Ctrl-C ends it and returns what was found.

    Each result has `x`, `fun`, `success`, `message`, `status`, `nit` (steps of its descent; 0 for
    that from `x0`),
    `active_bounds` (-1 at a lower, 1 at an upper bound, else 0) and `least_eigenvalue`, that of the
    Hessian of the other coordinates, 0 where a direction is level. The list has `nfev`, `njev`,
    `message`, `landscape` and `completeness`. If no minimum could be verified, the end of a descent
    is returned alone, without `success`.

    >>> import numpy as np
    >>> import ridgerider as rr
    >>> def fun(x):
    ...     return np.sum((x**2 - 1) ** 2) + 0.2 * x[0]
    >>> found = rr.minimize_all(fun, [0.1, 0.2], bounds=[(-2, 2), (-2, 2)])
    >>> sorted(np.round(one.x, 2).tolist() for one in found)
    [[-1.02, -1.0], [-1.02, 1.0], [0.97, -1.0], [0.97, 1.0]]
    """
    if constraints is not None and np.size(constraints):
        raise ValueError(
            "`constraints` must be empty: use `bounds`, or add a penalty for what violates them to "
            "`fun`."
        )
    for option, value in (options or {}).items():
        if option in ("maxfun", "maxfev"):
            max_calls = value
        elif option == "disp":
            verbose = bool(value)
        else:
            raise ValueError(f"`options` must be maxfun, maxfev or disp, not {option!r}.")
    if max_calls is not None:
        check_count("max_calls", max_calls)
    began, means = time.perf_counter(), Means(progress=callback, verbose=verbose)
    start, args = _start(x0), args if isinstance(args, tuple) else (args,)
    for name, function in {"fun": fun, "jac": jac, "hess": hess}.items():
        check_takes(name, function, 1 + len(args))
    low, high = bounds_of(bounds, len(start))
    if not ((low <= start) & (start <= high)).all():
        raise ValueError(f"`x0` must be within `bounds`, but it is {start.tolist()}.")
    first = np.where(np.isfinite(low), low, 0.0)
    periods = periods_of(period, low, high)
    is_closed = np.isfinite(low) & np.isfinite(high) | (periods > 0)
    origin = np.where(is_closed, first, 0.0)
    scale = np.where(periods > 0, periods, np.where(is_closed, high - first, 1.0))
    ends = (low - origin) / scale, (high - origin) / scale
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        own = _with_args(fun, jac, hess if hessp is None or hess else _columns(hessp), args)
        functions = Minimand(own[0], own[1], own[2], ends[0], ends[1], origin, scale)
        functions.difference = jac if isinstance(jac, str) else "2-point"
        functions.max_calls, functions.resolution = max_calls or math.inf, float(tol or 0)
        is_plain = own[1] is None and functions.difference == "2-point"
        if is_plain and isinstance(functions.first_value(start), jax.Array):
            functions.fun, functions.jac, functions.hess = _differentiated(own[0])
            problem, spent = measured(Problem(own[0], start))
            functions.num_fun += int(spent.values)
            unit = float(problem.unit)
        else:
            unit = 1.0
            with suppress(OutOfTime):
                if not is_closed.all():
                    unit = natural_length(functions, (start - origin) / scale, ~is_closed)
        scale = np.where(is_closed, scale, unit)
        ends = (low - origin) / scale, (high - origin) / scale
        functions.low, functions.high, functions.scale = *ends, scale
        if functions.jac is None and len(start) > MAX_SIZE_OF_VALUES:
            raise ValueError(
                f"`jac` is needed for more than {MAX_SIZE_OF_VALUES} parameters, and there are "
                f"{len(start)}; or write `fun` with jax.numpy."
            )
        if callable(own[1]):
            check_gradient(functions, (start - origin) / scale)
        problem = Problem(functions, (start - origin) / scale)
        symmetry = periodic(periods / scale) if periods.any() else None
        mover = Climbs(Climb(), symmetry, (tuple(ends[0].tolist()), tuple(ends[1].tolist())))
        settings = Settings(
            seed, "fewest_visits", round_size=ROUND, share_of_starts=None, until_enough=True
        )
        budget = Budget(None, max_seconds=max_seconds, max_calls=max_calls)
        landscape: Landscape | None = None
        reason = ""
        try:
            landscape = begin_run(problem, mover, settings, fewest_visits, budget, means)
        except OutOfTime:
            reason = "no minimum was found within the budget"
        except NoMinimum as error:
            why, count = error.leg.ended_by[-1], functions.num_fun
            if functions.lowest is None and why != "not_finite":
                raise ValueError(
                    f"`fun` must return a real scalar, but not one of {count} calls did: {why}."
                ) from error
            reason = str(error).replace("`problem`", "`fun`").replace("`start`", "`x0`")
        found, undecided = _settled(functions, problem, mover, landscape)
        if not found:
            reason = reason or "no point could be verified as a minimum"
            results = [_end_of_descent(functions, (start - origin) / scale, reason)]
        else:
            results = [_result(functions, *each) for each in found]
            results.sort(key=lambda one: one.fun)
    for one in results:
        turned = (one.x - origin) % np.where(periods > 0, periods, np.inf)
        one.x = np.where(periods > 0, origin + turned, one.x)
    minima = Minima(results)
    minima.nfev, minima.njev, minima.nhev = functions.num_fun, functions.num_jac, functions.num_hess
    minima.landscape, minima.success = landscape, not reason
    minima.undecided = [_result(functions, *each) for each in undecided]
    for one in minima.undecided:
        one.update(success=False, status=2, message="level, and perhaps a part of another minimum")
    seconds = time.perf_counter() - began
    why = "" if landscape is None else _why(functions, budget, seconds, landscape)
    functions.max_calls, functions.held_back = math.inf, None  # for `landscape.connect`
    minima.message = "; ".join(filter(None, (reason, why))).replace("`start`", "`x0`")
    for one in minima:
        one.update(nfev=minima.nfev, njev=minima.njev, nhev=minima.nhev)
    return minima


def _settled(
    functions: Minimand, problem: Problem, mover: Climbs, landscape: Landscape | None
) -> tuple[list[tuple[Any, Leg]], list[tuple[Any, Leg]]]:
    """The minima, each with its leg, and those that may belong to another or lead to a lower one.

    Level ones are compared again: what joins two of them, or lies below, may have come later.
    """
    if landscape is None:
        return [], []
    minima = [(one, landscape.leg(one.fingerprint)) for one in landscape.minima()]
    if not functions.held_back:
        return minima, []
    functions.held_back, wells, (calls, domain) = None, Wells(), host(problem, mover)
    ends: dict[Fingerprint, list[Leg]] = {one.fingerprint: [] for one, _ in minima}
    for leg in map(landscape.leg, [Fingerprint(), *landscape.fingerprints()]):
        name = leg.fingerprint if leg.linked_to is None else leg.linked_to
        if name in ends and leg.fingerprint != name and has_arrived(leg):
            ends[name].append(leg)
        if leg.finish is not None and name in ends:
            wells.keep(leg, leg.linked_to)
    found, undecided = dict[Fingerprint, tuple[Any, Leg]](), list[tuple[Any, Leg]]()
    for one, leg in minima:
        name = leg.fingerprint
        try:
            other = wells.beside(calls, domain, leg, found)
            if other is not None:
                wells.merge(name, other)
                ends[other] += ends.pop(name)
            elif not wells.leads_down(calls, leg):
                found[name] = one, leg
        except OutOfTime:
            if is_flat(leg):
                undecided.append((one, leg))
            else:
                found[name] = one, leg
    for one, leg in sorted(found.values(), key=lambda each: each[1].loss):
        some = ends[leg.fingerprint] if wells.is_level(leg) else []
        try:
            for end in wells.apart(calls, domain, leg, some):
                end = mover.classify(problem, end)
                if end.finish is not None and end.finish.kind == "minimum":
                    found[end.fingerprint] = _elsewhere(functions, one, end), end
        except OutOfTime:
            far = max(some, key=lambda end: float(np.linalg.norm(end.x - leg.x)))
            undecided.append((_elsewhere(functions, one, far), far))
    return list(found.values()), undecided


def _elsewhere(functions: Minimand, one: Any, end: Leg) -> Any:
    return replace(one, params=functions.params_of(end.x), loss=end.loss, multiplicity=1)


def _result(functions: Minimand, one: Any, leg: Leg) -> "OptimizeResult":
    from scipy.optimize import OptimizeResult

    x = np.asarray(one.params)
    z = (x - functions.origin) / functions.scale
    at_low, at_high = z <= functions.low, z >= functions.high
    return OptimizeResult(
        x=x,
        fun=one.loss,
        success=True,
        status=0,
        message="minimum",
        least_eigenvalue=_least_eigenvalue(functions, one.least_eigenvalue, leg),
        active_bounds=at_high.astype(int) - at_low.astype(int),
        visits=one.multiplicity,
        nit=leg.num_steps,
    )


def _least_eigenvalue(functions: Minimand, least: float, leg: Leg) -> float:
    """That of the Hessian of `fun`, of coordinates that no bound holds."""
    values, rows = modes_at(leg)
    if not (len(rows) and 0 < least < math.inf):
        return least
    is_free = np.abs(rows).max(axis=0) > 1e-6  # of a unit vector
    rows = rows[:, is_free] / functions.scale[is_free]
    return float(np.linalg.eigvalsh((rows.T * values) @ rows)[0])


def _end_of_descent(functions: Minimand, z: np.ndarray, reason: str) -> "OptimizeResult":
    """Where no minimum was found: the lowest point that was seen."""
    from scipy.optimize import OptimizeResult

    lowest = functions.lowest if functions.lowest is not None else (math.nan, z)
    return OptimizeResult(
        x=functions.params_of(lowest[1]),
        fun=lowest[0],
        success=False,
        status=1,
        message=reason,
        least_eigenvalue=math.nan,
        active_bounds=np.zeros(len(z), int),
        visits=0,
        nit=0,
    )


def _why(functions: Minimand, budget: Budget, seconds: float, landscape: Landscape) -> str:
    """Why it ended, and what failed."""
    if landscape.is_interrupted:
        why = "it was interrupted"
    elif functions.is_spent or functions.num_fun >= functions.max_calls:
        why = f"`max_calls`, {budget.max_calls:,}, were used up"
    elif budget.max_seconds is not None and seconds >= budget.max_seconds:
        why = f"`max_seconds`, {budget.max_seconds:g}, have passed"
    else:
        why = "hardly any minimum is missing, by how often each was found"
    reasons = [f"{count} calls failed with {what}" for what, count in functions.failures.items()]
    root = landscape.leg(Fingerprint()).ended_by[1:]
    return "; ".join([why, *root, *reasons])


def _differentiated(fun: Any) -> tuple:
    """A function written in JAX, with its gradient and Hessian."""
    both, matrix = jax.jit(jax.value_and_grad(fun)), jax.jit(jax.hessian(fun))

    def value_and_grad(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, grad = both(x)
        return float(value), np.asarray(grad)

    return value_and_grad, True, lambda x: np.asarray(matrix(x))


def _columns(hessp: Any) -> Callable[..., np.ndarray]:
    """The Hessian by its products with the axes."""

    def hess(x: np.ndarray, *args: Any) -> np.ndarray:
        return np.array([hessp(x, axis, *args) for axis in np.eye(len(x))])

    return hess


def _with_args(fun: Any, jac: Any, hess: Any, args: tuple[Any, ...]) -> tuple:
    """The functions of x alone."""
    if jac is False or jac in DIFFERENCES:
        jac = None
    if not args:
        return fun, jac, hess
    return (
        _bind(fun, args),
        jac if jac is None or jac is True else _bind(jac, args),
        None if hess is None else _bind(hess, args),
    )


def _bind(function: Any, args: tuple[Any, ...]) -> Callable[[np.ndarray], Any]:
    def bound(x: np.ndarray) -> Any:
        return function(x, *args)

    bound.__name__ = getattr(function, "__name__", type(function).__name__)
    return bound


def _start(x0: Any) -> np.ndarray:
    try:
        x = np.array(x0, float)
    except (TypeError, ValueError):
        raise ValueError(f"`x0` must be a sequence of numbers, not {x0!r}.") from None
    if x.ndim > 1 or not x.size:
        raise ValueError(f"`x0` must be one row of numbers, not of shape {x.shape}.")
    return np.atleast_1d(x)
