r"""What happens at the end of a leg: descend, and find out what kind of point is there.

A finish is a callable `finish(problem, x, key, spectrum) -> Finish`; `spectrum` is the rider's.

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
from typing import TYPE_CHECKING, Annotated, Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from ridgerider._check import AtLeast0, Whole, check_fields
from ridgerider._core.descend.lbfgs import lbfgs
from ridgerider._core.points.classify import (
    BATCH,
    DOUBTS,
    LEVEL,
    NUM_PAIRS,
    UNKNOWN,
    Curvature,
    View,
    is_dense,
    loss_rounding,
    lowest_curvature,
    verdict,
    view,
)
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem, Scalar, Vector
from ridgerider._core.spectra.spectrum import Spectrum, tolerance_of

if TYPE_CHECKING:
    import optax  # takes a while

Kind = Literal["minimum", "saddle", "at infinity", "unverified", "unconverged"]

MAX_ROUNDS = 6  # descents, each with the scale of the curvature where the one before it ended
MAX_POLISH = 50  # Newton steps
FAR = 4  # points ahead, each four times as far, before a descent is said to run off
KICK = 0.1  # how far a kick off a saddle goes, in units of the problem
# What comes next: to descend, to go halfway back, to try a Newton step, to look far ahead, nothing.
DESCENT, BACK, NEWTON, AHEAD, DONE = range(5)
MAX_BACK = 30


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


class HostFinish(eqx.Module):
    """The base of finishes that run on the host, step by step, and not in a compiled program.

    Any other finish is traced and compiled.
    """

    def __call__(
        self, problem: Problem, x: Vector, key: PRNGKeyArray, spectrum: Any = None
    ) -> Finish:
        raise NotImplementedError

    def check_not_traced(self, x: Vector) -> None:
        if isinstance(x, jax.core.Tracer):
            name = type(self).__name__
            raise ValueError(f"`finish={name}(...)` cannot be part of a compiled program: call it.")


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


def finish_of(
    here: View,
    doubt: Int[Array, ""],
    cost: Cost,
    *,
    is_converged: Bool[Array, ""],
    is_saddle: Bool[Array, ""],
    **more: Any,
) -> Finish:
    """What was verified at a point; `more` are further fields."""
    fields = {"num_steps": jnp.array(0), "num_kicks": jnp.array(0), **more}
    return Finish(
        x=here.x,
        loss=here.loss,
        grad_norm=jnp.linalg.norm(here.grad),
        least_eigenvalue=here.curvature.least,
        is_converged=is_converged,
        is_saddle=is_saddle,
        cost=cost,
        num_flat=here.curvature.num_flat,
        error=here.error,
        doubt_number=doubt,
        **fields,
    )


class Descend(eqx.Module):
    """Descend until the gradient vanishes, and verify what is there.

    A descent is followed by Newton steps as long as they lower the gradient, which leaves rounding
    of it. Problems below 300 parameters are classified by dense Hessians, others by Hessian-vector
    products (HVPs).

    Descent along a symmetry axis stays on it and ends at a saddle. `max_kicks` > 0 kicks it off: a
    move of 0.1 along the most negative eigenvector, to the lower side, and on.

    **Arguments**

    - `optimizer`: None, for an L-BFGS that compiles fast, or a function that builds an optimizer of
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

    @eqx.filter_jit
    def __call__(
        self,
        problem: Problem,
        x: Vector,
        key: PRNGKeyArray,
        spectrum: Callable[[Problem, Vector, PRNGKeyArray], Spectrum],
    ) -> Finish:
        del spectrum  # the curvature at the end is computed by other means
        zero, none, no = jnp.zeros((), x.dtype), jnp.array(0), jnp.array(False)
        cost = jax.tree.map(jnp.asarray, Cost())
        first = Finish(x, zero, zero, zero, no, no, none, none, cost, none, zero, none, no, zero, x)

        def settle(carry: tuple) -> tuple:
            before, x, _ = carry
            end, lowest = self._settled(problem, x, key, before)
            is_due = end.is_saddle & (end.num_kicks < self.max_kicks)
            up, down = (end.x + sign * KICK * problem.unit * lowest for sign in (1, -1))
            kicked = jnp.where(problem.value(up) < problem.value(down), up, down)
            one = is_due.astype(int)
            cost = end.cost + Cost(values=2 * one)
            end = replace(end, num_kicks=end.num_kicks + one, cost=cost)
            return end, kicked, is_due

        if self.max_kicks == 0:
            return self._settled(problem, x, key, first)[0]
        carry = (first, x, jnp.array(True))
        return jax.lax.while_loop(lambda carry: carry[2], settle, carry)[0]

    def _settled(
        self, problem: Problem, x: Vector, key: PRNGKeyArray, before: Finish
    ) -> tuple[Finish, Vector]:
        """Descend from `x` and classify where that ended; the end, and its lowest eigenvector."""

        def turn(state: _Settling) -> _Settling:
            seen = view(problem, state.next, key, state.floor)
            return self._next(problem, self._taken(state, seen))

        start = _start(problem, x)
        state = jax.lax.while_loop(lambda state: state.todo != DONE, turn, start)
        here, cost = state.here, before.cost + state.cost
        is_level, is_converged = here.curvature.scale <= state.floor, self._is_converged(here)
        if not is_dense(problem) and self.max_hvps > NUM_PAIRS:
            curvature, spent = lowest_curvature(problem, here.x, here.grad, key, self.max_hvps)
            here, cost = replace(here, curvature=curvature), cost + spent
        has_run_off = state.has_run_off
        # At infinity negative curvature fades, unless it is that of a saddle.
        may_be_saddle = ~has_run_off | state.stays_negative
        modes = verdict(problem, here, may_be_saddle)
        end = finish_of(
            here,
            jnp.where((modes.doubt == 0) & is_level, LEVEL, modes.doubt),
            cost + modes.cost,
            is_converged=is_converged,
            is_saddle=jnp.any(modes.is_down) & may_be_saddle,
            num_steps=before.num_steps + state.num_steps,
            num_kicks=before.num_kicks,
            is_at_infinity=has_run_off,
            limit=jnp.where(has_run_off, state.ahead_loss, jnp.nan),
            runaway=jnp.where(has_run_off, state.next - here.x, 0),
        )
        return end, here.curvature.rows[0]

    def _taken(self, state: "_Settling", seen: View) -> "_Settling":
        """With what was seen at `state.next`: a new point, or what lies ahead of the old one."""
        here, norm = state.here, jnp.linalg.norm(seen.grad)
        is_newton, is_ahead = state.todo == NEWTON, state.todo == AHEAD
        slack = loss_rounding(here.loss)
        is_lower = seen.loss <= jnp.where(is_ahead, state.ahead_loss, here.loss) + slack
        is_better = is_lower & (norm < 0.9 * jnp.linalg.norm(here.grad))
        # Ahead it goes down and down, ever less steeply, until nothing is left of the gradient.
        # (In a bowl a Newton step leads to where it is level, and a longer one up again.)
        slope, first = -(seen.grad @ here.downhill), -(here.grad @ here.downhill)
        least = jnp.where(state.num_ahead == 0, 0.05, -1e-6) * first
        is_gentle = (slope <= 0.9 * state.ahead_slope + 1e-6 * first) & (slope >= least)
        most = jnp.where(state.num_ahead == FAR - 1, 0.01, 1.01) * jnp.linalg.norm(here.grad)
        is_level = norm <= most + 10 * _eps(here.x) * here.curvature.scale * here.size
        falls = is_ahead & is_lower & is_gentle & is_level
        is_taken = (state.todo == DESCENT) | (state.todo == BACK) | (is_newton & is_better)
        taken = jax.tree.map(lambda new, old: jnp.where(is_taken, new, old), seen, here)
        # It is worth another look ahead where a Newton step has brought the end no nearer.
        is_no_nearer = jnp.linalg.norm(seen.downhill) > 0.7 * jnp.linalg.norm(here.downhill)
        is_anew = (state.todo <= BACK) | (is_newton & is_better & is_no_nearer)
        num_ahead = jnp.select(
            [falls, is_ahead, is_anew], [state.num_ahead + 1, -1, 0], state.num_ahead
        )
        stays = is_ahead & (seen.curvature.least < here.curvature.least / 2)
        unit = jnp.where(state.num_rounds == 0, seen.curvature.scale, state.unit)
        return replace(
            state,
            here=taken,
            unit=unit,
            floor=jnp.minimum(100 * _eps(here.x) * jnp.abs(taken.loss) / here.unit**2, 1e-3 * unit),
            num_polish=state.num_polish + is_newton.astype(int),
            num_ahead=num_ahead,
            ahead_loss=jnp.where(falls, seen.loss, taken.loss),
            ahead_slope=jnp.where(falls, slope, -(taken.grad @ taken.downhill)),
            is_settled=is_newton & ~is_better,
            stays_negative=stays & (here.curvature.least < 0),
            num_steps=state.num_steps + (is_newton & is_better).astype(int),
            cost=state.cost + seen.cost,
        )

    def _next(self, problem: Problem, state: "_Settling") -> "_Settling":
        """Decide what to do, and where to look next."""
        here = state.here
        is_long = jnp.linalg.norm(here.downhill) > 100 * _eps(here.x) ** 0.5 * here.size
        is_untried = state.num_ahead >= 0
        can_descend = (state.num_steps < self.max_steps) & (state.num_rounds < MAX_ROUNDS)
        # Two rounds on, that is as good as converged.
        rounds = jnp.minimum(state.num_rounds - 1, 2)
        is_flat = self._is_level(here.x, here.grad, here.curvature.scale, rounds, here.unit)
        is_done = (here.reach <= jnp.finfo(here.x.dtype).eps ** 0.875) | (
            state.is_settled & self._is_converged(here)
        )
        is_finite = jnp.isfinite(here.loss) & jnp.all(jnp.isfinite(here.grad))
        # A descent that runs off may go so far that nothing is left to be seen.
        margin = jnp.where(state.todo == BACK, 1e4, 1.0).astype(here.x.dtype)
        is_beyond = (here.curvature.scale <= margin * state.floor) & (state.num_back < MAX_BACK)
        is_beyond &= (state.todo <= BACK) & (
            jnp.linalg.norm(here.x - state.begin) > here.size / 100
        )
        todo = jnp.select(
            [
                state.has_run_off | ~is_finite,
                state.num_rounds == 0,
                is_beyond,
                is_flat & is_done,
                (is_long | (state.is_settled & ~is_done)) & is_untried,
                ~(is_flat & ~state.is_settled) & can_descend,
                is_flat & ~state.is_settled & (state.num_polish < MAX_POLISH),
            ],
            [DONE, DESCENT, BACK, DONE, AHEAD, DESCENT, NEWTON],
            DONE,
        )
        x, num_steps, cost = self._descended(problem, here, state, todo == DESCENT)
        halfway = (state.begin + here.x) / 2
        num_ahead = jnp.where((todo == DONE) | (todo == AHEAD), state.num_ahead, -1)
        ahead = here.x + 4.0 ** jnp.maximum(num_ahead, 0).astype(here.x.dtype) * here.downhill
        return replace(
            state,
            next=jnp.select(
                [todo == DESCENT, todo == BACK, todo == NEWTON, todo == AHEAD],
                [x, halfway, here.x + here.step, ahead],
                state.next,
            ),
            todo=todo,
            begin=jnp.where(todo == DESCENT, here.x, state.begin),
            num_back=state.num_back + (todo == BACK).astype(int),
            num_rounds=state.num_rounds + (todo == DESCENT).astype(int),
            num_steps=state.num_steps + num_steps,
            cost=state.cost + cost,
        )

    def _is_converged(self, here: View) -> Bool[Array, ""]:
        tolerance = tolerance_of(self.tolerance, here.x.dtype)
        gain = jnp.abs(here.grad @ here.step) / 2
        is_rounding = (here.reach <= 1e-3) & (gain <= 10 * _eps(here.x) * jnp.abs(here.loss))
        bound = tolerance * here.curvature.scale * here.size
        is_flat = (jnp.linalg.norm(here.grad) <= bound) & jnp.isfinite(bound)
        return is_flat & ((here.reach <= tolerance) | is_rounding) & jnp.isfinite(here.loss)

    def _is_level(
        self, x: Vector, grad: Vector, scale: Scalar, num_rounds: Int[Array, ""], unit: Scalar
    ) -> Bool[Array, ""]:
        """Whether the gradient is what a short displacement makes of a zero one.

        Short enough for Newton steps, which end at the saddle of a symmetry axis. A descent that
        is left to itself is carried off it by rounding, here or there, sooner or later.
        """
        size = jnp.maximum(jnp.linalg.norm(x), unit)
        short = jnp.maximum(tolerance_of(self.tolerance, x.dtype) * size, _eps(x) ** 0.25 * unit)
        bound = short * 100.0 ** -num_rounds.astype(x.dtype) * scale
        return (jnp.linalg.norm(grad) <= bound) & jnp.isfinite(bound)  # at infinity all is level

    def _descended(
        self, problem: Problem, here: View, state: "_Settling", is_wanted: Bool[Array, ""]
    ) -> tuple[Vector, Int[Array, ""], Cost]:
        """The end of a descent, not yet looked at."""
        scale = here.curvature.scale
        unit = jnp.where(scale > 0, scale, 1)

        def value(x: Vector) -> Scalar:
            return problem.value(x) / unit

        def is_over(x: Vector, grad: Vector) -> Bool[Array, ""]:
            return self._is_level(x, grad * unit, scale, state.num_rounds, problem.unit)

        max_steps = self.max_steps - state.num_steps
        if self.optimizer is not None:
            return _optimized(self.optimizer(), value, here.x, is_over, max_steps, is_wanted)
        descent = lbfgs(value, here.x, is_over, max_steps, is_wanted, problem.unit)
        cost = Cost(values=descent.num_gradients, gradients=descent.num_gradients)
        return descent.x, jnp.maximum(descent.num_steps, 0), cost


def _optimized(
    optimizer: "optax.GradientTransformation",
    value: Callable[[Vector], Scalar],
    x: Vector,
    is_over: Callable[[Vector, Vector], Bool[Array, ""]],
    max_steps: int | Int[Array, ""],
    is_wanted: Bool[Array, ""],
) -> tuple[Vector, Int[Array, ""], Cost]:
    """Descend with an optimizer of optax, if it is wanted."""
    import optax  # when it is needed: it takes a while

    optimizer = optax.with_extra_args_support(optimizer)
    value_and_grad = jax.value_and_grad(value)

    def should_continue(carry: tuple) -> Bool[Array, ""]:
        x, loss, grad, _, num_steps, _ = carry
        is_finite = jnp.isfinite(loss) & jnp.all(jnp.isfinite(grad))
        return ~is_over(x, grad) & is_finite & (num_steps < max_steps)

    def step(carry: tuple) -> tuple:
        x, loss, grad, state, num_steps, count = carry
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            updates, state = optimizer.update(grad, state, x, value=loss, grad=grad, value_fn=value)
        x = optax.apply_updates(x, updates)
        count += 1 + jnp.asarray(optax.tree.get(state, "num_linesearch_steps", 0))
        return x, *value_and_grad(x), state, num_steps + 1, count

    def descend() -> tuple:
        first = (x, *value_and_grad(x), optimizer.init(x), jnp.array(0), jnp.array(1))
        end, _, _, _, *counts = jax.lax.while_loop(should_continue, step, first)
        return end, *counts

    nothing = (x, jnp.array(0), jnp.array(0))
    end, num_steps, count = jax.lax.cond(is_wanted, descend, lambda: nothing)
    return end, num_steps, Cost(values=count, gradients=count)


class _Settling(eqx.Module):
    """A descent on its way: the point it has reached, where it looks next, and what for.

    `num_ahead` counts the points ahead that went well; -1 once one did not.
    """

    here: View
    next: Vector
    todo: Int[Array, ""]
    begin: Vector  # where the last descent began
    unit: Scalar  # the largest |eigenvalue| where the first one did
    floor: Scalar  # of the curvature that can be told from rounding
    num_back: Int[Array, ""]
    num_rounds: Int[Array, ""]
    num_polish: Int[Array, ""]
    num_ahead: Int[Array, ""]
    ahead_loss: Scalar
    ahead_slope: Scalar
    is_settled: Bool[Array, ""]  # the last Newton step did not help
    stays_negative: Bool[Array, ""]
    num_steps: Int[Array, ""]
    cost: Cost

    @property
    def has_run_off(self) -> Bool[Array, ""]:
        return self.num_ahead == FAR


def _start(problem: Problem, x: Vector) -> _Settling:
    """Before anything is known: the first thing to do is to evaluate `x`."""
    zero, none, no = jnp.zeros((), x.dtype), jnp.array(0), jnp.array(False)
    cost = jax.tree.map(jnp.asarray, Cost())
    counts = ("todo", "num_back", "num_rounds", "num_polish", "num_ahead", "num_steps")
    return _Settling(
        here=View(x, zero, x, x, x, Curvature.unknown(problem, zero), cost, problem.unit),
        next=x,
        begin=x,
        cost=cost,
        **dict.fromkeys(counts, none),
        **dict.fromkeys(("unit", "floor", "ahead_loss", "ahead_slope"), zero),
        **dict.fromkeys(("is_settled", "stays_negative"), no),
    )


def _eps(x: Vector) -> float:
    return float(jnp.finfo(x.dtype).eps)
