r"""What happens at the end of a leg: descend, and find out what kind of point is there.

A finish is a callable `finish(problem, x, key, spectrum) -> Finish`; `spectrum` is the rider's. It
runs on the host and compiles what it needs itself.

What a point is called follows from what was verified there, by the curvature there and not where
the descent began:

- *converged*: its Newton step, outside of flat directions, is short;
- *saddle*: there is negative curvature beyond its error, or, where there is hardly any curvature,
  the loss falls both ways;
- *minimum*: a computation of the least eigenvalue, which does not start from the gradient, has
  converged and found none, and the loss falls along no direction of hardly any curvature;
- *at infinity*: the loss falls to a limit while the parameters grow and the gradient vanishes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from ridgerider._check import AtLeast0, Whole, check_fields
from ridgerider._core.descend.descent import descend
from ridgerider._core.points.classify import (
    BATCH,
    DOUBTS,
    LEVEL,
    NUM_PAIRS,
    UNKNOWN,
    View,
    is_dense,
    lowest_curvature,
    verdict,
    view,
)
from ridgerider._core.points.domain import Domain
from ridgerider._core.problem.calls import Calls, Point
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem, Scalar, Vector, fetch, place
from ridgerider._core.runtime.clock import check_time
from ridgerider._core.runtime.compile import compiled
from ridgerider._core.spectra.spectrum import tolerance_of

Kind = Literal["minimum", "saddle", "at infinity", "unverified", "unconverged"]

MAX_ROUNDS = 6  # descents, each with the scale of the curvature where the one before it ended
MAX_POLISH = 50  # Newton steps
FAR = 4  # points ahead, each four times as far, before a descent is said to run off
KICK = 0.1  # how far a kick off a saddle goes, in units of the problem
MAX_BACK = 30  # times that a descent which ran off is halved


class Finish(eqx.Module):
    """Where a descent ended, and what was verified there.

    - `kind`: "minimum", "saddle", "at infinity", "unverified" (`doubt` says why) or "unconverged".
    - `num_flat`: how many eigenvalues are zero but for rounding, such as those of rotations; where
      the Hessian does not fit, 8 means 8 or more. `least_eigenvalue` is the least of the others.
    - `error`: how far the exact stationary point may be from `x`, across flat directions.
    - `limit`, `runaway`: at infinity, what the loss falls to, and a long step in that direction.
    - `history`: of a training (`Train`), the loss and each metric by epoch.

    >>> from ridgerider import DenseSpectrum
    >>> from ridgerider.problems import wells
    >>> end = Descend()(wells(2), jnp.array([0.0, 0.3]), jax.random.key(0), DenseSpectrum())
    >>> bool(end.is_converged), bool(end.is_saddle), end.kind
    (True, True, 'saddle')
    """

    x: Vector
    loss: Scalar
    grad_norm: Scalar
    least_eigenvalue: Scalar
    is_converged: Bool[Array, ""]
    is_saddle: Bool[Array, ""]
    num_steps: Int[Array, ""]
    num_kicks: Int[Array, ""]
    cost: Cost
    num_flat: int | Int[Array, ""] = 0
    error: float | Scalar = 0.0
    doubt_number: int | Int[Array, ""] = 0
    is_at_infinity: bool | Bool[Array, ""] = False
    limit: float | Scalar = float("nan")
    runaway: Vector | None = None
    history: dict[str, np.ndarray] | None = None

    @property
    def kind(self) -> Kind:
        """What was found, once it is computed."""
        if self.is_at_infinity and not self.is_saddle:
            return "unverified" if self.doubt_number in (UNKNOWN, BATCH) else "at infinity"
        if not self.is_converged and not self.is_at_infinity:
            return "unconverged"
        if self.is_saddle and self.doubt_number != BATCH:
            return "saddle"
        return "unverified" if self.doubt_number else "minimum"

    @property
    def doubt(self) -> str:
        """Why the kind is "unverified"; empty if it is another one."""
        return DOUBTS[int(self.doubt_number)] if self.kind == "unverified" else ""


@dataclass(frozen=True)
class Epoch:
    """How far a training has come; epoch 0 is before it.

    >>> str(Epoch(3, 20, 0.125, {"accuracy": 0.5}))
    'epoch 3 of 20, loss 0.125, accuracy 0.5'
    """

    number: int
    most: int
    loss: float
    metrics: dict[str, float]

    def __str__(self) -> str:
        shown = {"loss": self.loss, **self.metrics}
        numbers = [f"{name} {value:.4g}" for name, value in shown.items()]
        return ", ".join([f"epoch {self.number} of {self.most}", *numbers])


_listener: ContextVar[Callable[[Epoch], None] | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Callable[[Epoch], None] | None) -> Iterator[None]:
    """Trainings inside this context call `listener` after each epoch."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(epoch: Epoch) -> None:
    listener = _listener.get()
    if listener is not None:
        listener(epoch)


def finish_of(here: View, doubt: int, *, is_converged: Any, is_saddle: Any, **more: Any) -> Finish:
    """What was verified at a point; `more` are further fields."""
    numbers = {
        "loss": here.loss,
        "grad_norm": np.linalg.norm(here.grad),
        "least_eigenvalue": here.curvature.least,
        "error": here.error,
    }
    counts = {"num_steps": 0, "num_kicks": 0, "is_converged": is_converged, "is_saddle": is_saddle}
    fields: dict[str, Any] = {
        "x": here.x,
        "cost": Cost(),
        "num_flat": int(here.curvature.is_flat.sum()),
        "doubt_number": doubt,
        **{name: np.asarray(one, here.x.dtype) for name, one in numbers.items()},
        **{name: np.asarray(one) for name, one in counts.items()},
    }
    return Finish(**(fields | more))


class Descend(eqx.Module):
    """Descend until the gradient vanishes, and verify what is there.

    A descent is followed by Newton steps as long as they lower the gradient, which leaves rounding
    of it. Problems below 300 parameters are classified by dense Hessians, others by Hessian-vector
    products (HVPs).

    Descent along a symmetry axis stays on it and ends at a saddle. `max_kicks` > 0 kicks it off: a
    move of 0.1 along the most negative eigenvector, to the lower side, and on.

    **Arguments**

    - `optimizer`: None, for L-BFGS on the host, or a function that builds an optimizer of
      optax, e.g. `optax.lbfgs` or `jax.tree_util.Partial(optax.sgd, 0.5)`. It sees the loss divided
      by the largest |eigenvalue| at the start: a learning rate of 1 is then a step of 1 /
      curvature, which stays in the valley at hand whatever the scale of the loss.
    - `max_steps`: in all descents between two kicks.
    - `tolerance`: converged once the Newton step is at most tolerance * max(unit, |x|) long, with
      the problem's unit of length, or, where that is below 1e-3 * max(unit, |x|), would lower the
      loss by less than its rounding. Default: eps^(1/2).
    - `max_hvps`: HVPs for the least eigenvalue of a problem with 300 parameters or more; what they
      do not suffice for is "unverified". 0: no minimum is verified.

    >>> import jax, jax.numpy as jnp
    >>> from ridgerider import DenseSpectrum
    >>> problem = Problem(lambda x: (x[0] ** 2 - 1) ** 2 + x[1] ** 2, jnp.array([0.3, 0.2]))
    >>> end = Descend()(problem, problem.x0, jax.random.key(0), DenseSpectrum())
    >>> [round(float(entry), 3) for entry in end.x], round(float(end.least_eigenvalue), 2)
    ([1.0, 0.0], 2.0)
    """

    optimizer: Annotated[Callable[[], Any], "optax.lbfgs()"] | None = None
    max_steps: Whole = 2000
    tolerance: AtLeast0 | None = None
    max_kicks: Whole = 0
    max_hvps: Whole = eqx.field(static=True, default=1000)

    __check_init__ = check_fields

    @np.errstate(all="ignore")
    def __call__(
        self, problem: Problem, x: Vector, key: PRNGKeyArray, spectrum: Any = None
    ) -> Finish:
        del spectrum  # the curvature at the end is computed by other means
        check_not_traced(self, x)
        calls, start = Calls.of(problem), np.array(fetch(x))
        num_steps = num_kicks = 0
        while True:
            end, rows = self._settled(calls, start, key)
            num_steps += int(end.num_steps)
            if not end.is_saddle or num_kicks >= self.max_kicks:
                break
            kick = KICK * float(problem.unit) * rows[0]
            start = min((end.x - kick, end.x + kick), key=calls.value)
            num_kicks += 1
        counts = {"num_steps": np.asarray(num_steps), "num_kicks": np.asarray(num_kicks)}
        return replace(end, cost=calls.cost, **counts)  # type: ignore[arg-type]  # on the host

    def _settled(self, calls: Calls, x: Point, key: PRNGKeyArray) -> tuple[Finish, np.ndarray]:
        """Descend from `x` and classify where that ended; the end, and its eigenvectors."""
        here, begin = view(calls, x, key), x
        tolerance = float(tolerance_of(self.tolerance, x.dtype))
        short = np.array([tolerance, here.eps**0.25 * here.unit])
        num_steps = num_rounds = num_polish = num_back = 0
        is_settled = is_new = has_looked = False  # the last Newton step did not help; a descent did
        ahead, scale, largest = None, here.curvature.scale, 0.0
        while True:
            largest = max(largest, here.curvature.scale)
            # Of the curvature that can be told from rounding.
            floor = min(100 * here.eps * abs(here.loss) / here.unit**2, 1e-3 * scale)
            if not (np.isfinite(here.loss) and np.isfinite(here.grad).all()):
                break
            # Two rounds on, that is as good as converged.
            is_level = _is_level(
                here, here.grad, here.size, short * 100.0 ** -min(num_rounds - 1, 2)
            )
            is_done = here.reach <= here.eps**0.875 or (
                is_settled and _is_converged(here, tolerance)
            )
            is_long = _norm(here.downhill) > 100 * here.eps**0.5 * here.size
            # A descent that runs off may go so far that nothing is left to be seen.
            is_beyond = is_new and here.curvature.scale <= floor * (1e4 if num_back else 1)
            is_beyond = is_beyond and _norm(here.x - begin) > here.size / 100
            if num_rounds and is_beyond and num_back < MAX_BACK:
                here, num_back = view(calls, (begin + here.x) / 2, key, floor), num_back + 1
                continue
            if num_rounds and is_level and is_done:
                break
            if num_rounds and (is_long or (is_settled and not is_done)) and not has_looked:
                ahead, has_looked = _ahead(calls, here, key, floor), True
                if ahead is not None:
                    break
            can_descend = num_steps < self.max_steps and num_rounds < MAX_ROUNDS
            if not num_rounds or (can_descend and (is_settled or not is_level)):
                begin, num_back = here.x, 0
                left = self.max_steps - num_steps
                x, count = self._descended(calls, here, short * 100.0**-num_rounds, left)
                here, is_new = view(calls, x, key, floor), True
                num_steps, num_rounds, is_settled, has_looked = (
                    num_steps + count,
                    num_rounds + 1,
                    False,
                    False,
                )
            elif is_level and not is_settled and num_polish < MAX_POLISH:
                seen = view(calls, here.x + here.step, key, floor)
                is_lower = seen.loss <= here.loss + 1000 * here.eps * abs(here.loss)
                is_settled = not (is_lower and _norm(seen.grad) < 0.9 * _norm(here.grad))
                num_polish, is_new = num_polish + 1, False
                if not is_settled:
                    # It is worth another look ahead where this has brought the end no nearer.
                    if _norm(seen.downhill) > 0.7 * _norm(here.downhill):
                        has_looked = False
                    here, num_steps = seen, num_steps + 1
            else:
                break
        is_level, is_converged = here.curvature.scale <= floor, _is_converged(here, tolerance)
        if not is_dense(calls.problem) and self.max_hvps > NUM_PAIRS:
            found = lowest_curvature(calls, here.x, here.grad, key, self.max_hvps)
            here = replace(here, curvature=found)
        # At infinity negative curvature fades, unless it is that of a saddle.
        may_be_saddle = ahead is None or ahead[2]
        modes = verdict(calls, Domain(calls.problem), here, may_be_saddle, largest)
        end = finish_of(
            here,
            LEVEL if is_level and not modes.doubt else modes.doubt,
            is_converged=is_converged,
            is_saddle=bool(modes.is_down.any() and may_be_saddle),
            num_steps=np.asarray(num_steps),
            is_at_infinity=np.asarray(ahead is not None),
            limit=np.asarray(np.nan if ahead is None else ahead[0], here.x.dtype),
            runaway=np.zeros_like(here.x) if ahead is None else ahead[1],
        )
        if ahead is not None:  # there is no stationary point: no other end is as near as that
            end = replace(end, error=100 * here.eps * here.size)
        return end, here.curvature.rows

    def _descended(
        self, calls: Calls, here: View, short: Point, max_steps: int
    ) -> tuple[Point, int]:
        """The end of a descent, not yet classified, and how many steps it took."""
        problem, scale = calls.problem, here.curvature.scale
        scale = scale if scale > 0 else 1.0
        if self.optimizer is not None:
            numbers = np.append(short, [scale, here.unit]).astype(here.x.dtype)
            check_time()
            run, x = compiled(_optimized, "little"), place(problem, here.x)
            given = self.optimizer, problem, x, numbers, np.asarray(max_steps)
            x, num_steps, count = fetch(run(*given))
            check_time()
            calls.charge(Cost(values=int(count), gradients=int(count)))
            return x, int(num_steps)

        def is_over(x: Point, grad: Point) -> bool:
            return _is_level(here, grad, max(_norm(x), here.unit), short)

        first = min(_norm(here.grad) / scale, here.unit)
        end = descend(calls, Domain(problem), here.x, first, is_over=is_over, max_steps=max_steps)
        return end.x, len(end.losses) - 1


# Functions, since each access to a method of an `eqx.Module` makes an object.


def _ahead(
    calls: Calls, here: View, key: PRNGKeyArray, floor: float
) -> tuple[float, Point, bool] | None:
    """Whether the loss falls on and on: its limit, a long step, if curvature stays negative.

    Ahead it goes down and down, ever less steeply, until nothing is left of the gradient. (In a
    bowl a Newton step leads to where it is level, and a longer one up again.)
    """
    loss, first, stays = here.loss, -float(here.grad @ here.downhill), False
    slope, rounding = first, 10 * here.eps * here.curvature.scale * here.size
    for number in range(FAR):
        away = 4.0**number * here.downhill
        seen = view(calls, here.x + away, key, floor)
        new_slope = -float(seen.grad @ here.downhill)
        least = (-1e-6 if number else 0.05) * first
        is_gentle = least <= new_slope <= 0.9 * slope + 1e-6 * first
        most = (0.01 if number == FAR - 1 else 1.01) * _norm(here.grad) + rounding
        is_lower = seen.loss <= loss + 1000 * here.eps * abs(here.loss)
        if not (is_lower and is_gentle and _norm(seen.grad) <= most):
            return None
        loss, slope = seen.loss, new_slope
        stays = seen.curvature.least < here.curvature.least / 2 and here.curvature.least < 0
    return loss, away, stays


def _is_converged(here: View, tolerance: float) -> bool:
    gain = abs(float(here.grad @ here.step)) / 2
    is_rounding = here.reach <= 1e-3 and gain <= 10 * here.eps * abs(here.loss)
    bound = tolerance * here.curvature.scale * here.size
    is_flat = np.isfinite(bound) and _norm(here.grad) <= bound
    return bool(is_flat and (here.reach <= tolerance or is_rounding) and np.isfinite(here.loss))


def _is_level(here: View, grad: Point, size: float, short: Point) -> bool:
    """Whether the gradient is what a short displacement makes of a zero one.

    Short enough for Newton steps, which end at the saddle of a symmetry axis. A descent that is
    left to itself is carried off it by rounding, here or there, sooner or later. `short` is
    relative to the size of the parameters, and a length at least.
    """
    bound = max(short[0] * size, short[1]) * here.curvature.scale
    return bool(np.isfinite(bound) and _norm(grad) <= bound)  # at infinity all is level


def check_not_traced(finish: Any, x: Vector) -> None:
    if isinstance(x, jax.core.Tracer):
        name = type(finish).__name__
        raise ValueError(f"`finish={name}(...)` cannot be part of a compiled program: call it.")


def _optimized(
    build: Callable[[], Any],
    problem: Problem,
    x: Vector,
    numbers: Vector,
    max_steps: Int[Array, ""],
) -> tuple[Vector, Int[Array, ""], Int[Array, ""]]:
    """Descend with an optimizer of optax: the end, steps, and evaluations.

    `numbers`: the gradient that ends it, relative to the size of the parameters and at least; what
    the loss is divided by, and the unit.
    """
    import optax  # when it is needed: it takes a while

    optimizer = optax.with_extra_args_support(build())
    relative, least, scale, unit = numbers

    def value(x: Vector) -> Scalar:
        return problem.value(x) / scale

    value_and_grad = jax.value_and_grad(value)

    def should_continue(carry: tuple) -> Bool[Array, ""]:
        x, loss, grad, _, num_steps, _ = carry
        is_finite = jnp.isfinite(loss) & jnp.all(jnp.isfinite(grad))
        bound = jnp.maximum(relative * jnp.maximum(jnp.linalg.norm(x), unit), least)
        return (jnp.linalg.norm(grad) > bound) & is_finite & (num_steps < max_steps)

    def step(carry: tuple) -> tuple:
        x, loss, grad, state, num_steps, count = carry
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            updates, state = optimizer.update(grad, state, x, value=loss, grad=grad, value_fn=value)
        x = optax.apply_updates(x, updates)
        count += 1 + jnp.asarray(optax.tree.get(state, "num_linesearch_steps", 0))
        return x, *value_and_grad(x), state, num_steps + 1, count

    first = (x, *value_and_grad(x), optimizer.init(x), jnp.array(0), jnp.array(1))
    end, _, _, _, num_steps, count = jax.lax.while_loop(should_continue, step, first)
    return end, num_steps, count


def _norm(vector: Point) -> float:
    return float(np.linalg.norm(vector))
