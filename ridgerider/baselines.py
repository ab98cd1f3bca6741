"""What Ridge Rider has to beat, and its ablations, under one budget.

A *method* is a value that is called as

    method(problem, max_steps=..., max_seconds=..., seed=..., until=...) -> Ends

and works on any `Problem`. It makes run after run until the budget is used up or `until(x)`, called
with the points where new runs ended, reads true. A *step* is one move that was tried: a gradient of
a descent, a try of a ride together with its spectrum, a line search of
`EigenvectorDescent`. What it computes is counted in the same ledger as a search, `Ends.cost`.

================================================  ===========================================
method                                            the paper's name
================================================  ===========================================
`GradientDescent(spread=1.0)`                     gradient descent from random starts
`GradientDescent(spread=1e-3)`                    gradient descent from the saddle
`RandomVectors()`                                 random norm-one vectors from the saddle
`RidgeRider(rider)`                               Ridge Rider itself, without a run file
`RidgeRider(fixed_ridge(rider))`                  Fixed-EV
`RidgeRider(random_ridge(rider))`                 Rand-Ridge+
`RidgeRider(fixed_step(rider))`                   fixed alpha + UpdateRidge
`RidgeRider(fixed_step(fixed_ridge(rider)))`      fixed alpha + fixed ridge
`EigenvectorDescent()`                            EVD
================================================  ===========================================

`RidgeRider` makes the legs of a `search` with the same settings, and stores none of them.
"""

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ridgerider._check import AtLeast0, Count, Limit, Positive, Seed, check_fields, checked
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Number, Problem, Scalar, Vector
from ridgerider._core.ride.rider import Rider
from ridgerider._core.ride.step import FixedStep
from ridgerider._core.ride.stop import Stalled, curvature_gone, not_finite
from ridgerider._core.ride.update import Keep, RandomRidge
from ridgerider._search.engine.rides import Rides
from ridgerider._search.tree import (
    Branch,
    Fingerprint,
    Frontier,
    Leg,
    Order,
    Settings,
    Turn,
    named_order,
    with_priority,
)

Until = Callable[[Float[np.ndarray, "k n"]], bool]


@dataclass(frozen=True)
class Ends:
    """Where the runs of a method ended, in the order they did, and what was spent until then.

    - `x`, `loss`: the end of each run.
    - `step`, `second`: what all runs together had used when it ended.
    - `num_steps`, `cost`: what was used altogether, also by runs that the budget cut off.

    >>> from ridgerider.baselines import GradientDescent
    >>> from ridgerider.problems import wells
    >>> ends = GradientDescent(step_size=0.5)(wells(2), max_steps=500)
    >>> ends.num_steps, int(ends.cost.gradients), ends.x.shape[1]
    (500, 500, 2)
    """

    x: Float[np.ndarray, "k n"]
    loss: Float[np.ndarray, " k"]
    step: Int[np.ndarray, " k"]
    second: Float[np.ndarray, " k"]
    num_steps: int
    cost: Cost


class Runs(NamedTuple):
    """Runs that have ended: where, and after how many of the last `num_steps` steps."""

    x: Float[np.ndarray, "k n"]
    loss: Float[np.ndarray, " k"]
    step: Int[np.ndarray, " k"]
    num_steps: int
    cost: Cost


class Method(eqx.Module):
    """Makes runs until the budget is used up, or `until` is true of points where runs ended."""

    @abstractmethod
    def runs(self, problem: Problem, max_steps: float, seed: int) -> Iterator[Runs]:
        """Runs without end, some at a time; `max_steps` may be infinite."""

    @checked
    def __call__(
        self,
        problem: Problem,
        *,
        max_steps: Limit = None,
        max_seconds: Limit = None,
        seed: Seed = 0,
        until: Until | None = None,
    ) -> Ends:
        if max_steps is None and max_seconds is None:
            raise ValueError("`max_steps` or `max_seconds` must be given, but both are None.")
        most = math.inf if max_steps is None else max_steps
        latest = math.inf if max_seconds is None else max_seconds
        began, num_steps, cost, found = time.perf_counter(), 0, Cost(), []
        for runs in self.runs(problem, most, seed):
            seconds = time.perf_counter() - began
            step = num_steps + np.asarray(runs.step, int)
            is_within = step <= most  # what ends beyond the budget does not count
            x = runs.x[is_within]
            found.append((x, runs.loss[is_within], step[is_within], np.full(len(x), seconds)))
            num_steps, cost = int(min(num_steps + runs.num_steps, most)), cost + runs.cost
            is_done = until is not None and len(x) > 0 and until(x)
            if is_done or num_steps >= most or time.perf_counter() - began >= latest:
                break
        x, loss, step, second = map(np.concatenate, zip(*found, strict=True))
        cost = cost + Cost(seconds=time.perf_counter() - began)
        return Ends(x, loss, step, second, num_steps, cost)


class Descents(Method):
    """Runs from normal starts around the problem's own, in lanes side by side.

    A lane begins anew where its run ends. `chunk` steps are made between two checks of the budget,
    and at most `max_length` in one run.
    """

    chunk: ClassVar[int]
    max_length: ClassVar[int]
    max_lanes: ClassVar[int]
    spread: eqx.AbstractVar[Number]

    @abstractmethod
    def advance(
        self, problem: Problem, x: Vector
    ) -> tuple[Bool[Array, ""], Vector, Scalar, Vector]:
        """Whether a run ends with this step, where, with which loss, and where it continues."""

    @abstractmethod
    def cost_of(self, problem: Problem, num_steps: int) -> Cost:
        """The cost of a number of steps."""

    def start(self, problem: Problem, key: PRNGKeyArray) -> Vector:
        noise = jax.random.normal(key, (problem.size,), problem.dtype)
        return problem.x0 + jnp.asarray(self.spread, problem.dtype) * noise

    def runs(self, problem: Problem, max_steps: float, seed: int) -> Iterator[Runs]:
        # A small budget has few lanes, so that not all of it goes to runs that are cut off.
        lanes = next((count for count in (64, 8) if max_steps >= 2000 * count), 1)
        lanes, left = min(lanes, self.max_lanes), max_steps
        method = jax.tree.map(lambda number: jnp.asarray(number, problem.dtype), self)
        keys = jax.random.split(jax.random.key(seed), lanes)
        starts = jnp.stack([method.start(problem, key) for key in keys])
        state = starts, jnp.zeros(lanes, int), keys
        while True:
            state, out = _descend(problem, method, state)
            is_end, x, loss = jax.device_get(out)
            step, lane = np.nonzero(is_end)
            num_steps = int(min(is_end.size, left))
            left -= num_steps
            cost = self.cost_of(problem, num_steps)
            yield Runs(x[step, lane], loss[step, lane], (step + 1) * lanes, num_steps, cost)


@eqx.filter_jit
def _descend(problem: Problem, method: Descents, state: tuple) -> tuple[tuple, tuple]:
    """Some steps of each lane, and where its runs ended on the way."""

    def step(x: Vector, length: Int[Array, ""], key: PRNGKeyArray) -> tuple[tuple, tuple]:
        is_end, end, loss, ahead = method.advance(problem, x)
        is_end |= length + 1 >= method.max_length
        next_key = jax.random.split(key, 1)[0]
        again = (method.start(problem, next_key), jnp.zeros_like(length), next_key)
        moved = [
            jnp.where(is_end, *pair) for pair in zip(again, (ahead, length + 1, key), strict=True)
        ]
        return tuple(moved), (is_end, end, loss)

    return jax.lax.scan(lambda state, _: jax.vmap(step)(*state), state, None, length=method.chunk)


class GradientDescent(Descents):
    """Gradient descent with a fixed step, from normal starts around the problem's own.

    **Arguments**

    - `spread`: the standard deviation of the starts; a small one is descent from the saddle.
    - `target`: a run ends once its loss is as low as this,
    - `tolerance`: or its gradient's norm is. After 10,000 steps it ends as well.

    >>> from ridgerider.problems import wells
    >>> ends = GradientDescent(spread=1.0, step_size=0.5)(wells(2), max_steps=2000)
    >>> len({tuple(x) for x in np.sign(ends.x)})
    4
    """

    spread: Positive = 1.0
    step_size: Positive = 0.1
    target: Number = -math.inf
    tolerance: Positive = 1e-3
    chunk, max_length, max_lanes = 256, 10_000, 64

    __check_init__ = check_fields

    def advance(
        self, problem: Problem, x: Vector
    ) -> tuple[Bool[Array, ""], Vector, Scalar, Vector]:
        loss, grad = jax.value_and_grad(problem.value)(x)
        # Written so that a NaN ends a run.
        is_end = ~((loss > self.target) & (jnp.linalg.norm(grad) > self.tolerance))
        return is_end, x, loss, x - self.step_size * grad

    def cost_of(self, problem: Problem, num_steps: int) -> Cost:
        return Cost(values=num_steps, gradients=num_steps)


# The line search along an eigenvector tries this size and halves it up to NUM_SIZES times in all.
LARGEST, NUM_SIZES = 8.0, 12


class EigenvectorDescent(Descents):
    """EVD: search along every eigenvector, both ways, move to the lowest point found, and repeat.

    **Arguments**

    - `spread`: the standard deviation of the starts around the problem's own.
    - `target`, `tolerance`: a run ends at this loss, or when a search lowers the loss by no more
      than `tolerance`, or after 1000 searches.

    >>> from ridgerider.problems import wells
    >>> ends = EigenvectorDescent()(wells(2), max_steps=100)
    >>> round(float(ends.loss.min()), 2)
    -0.62
    """

    spread: Positive = 1e-3
    target: Number = -math.inf
    tolerance: AtLeast0 = 1e-6
    chunk, max_length, max_lanes = 16, 1000, 1

    __check_init__ = check_fields

    def advance(
        self, problem: Problem, x: Vector
    ) -> tuple[Bool[Array, ""], Vector, Scalar, Vector]:
        rows, loss = jnp.linalg.eigh(problem.hessian(x))[1].T, problem.value(x)
        sizes = jnp.asarray(LARGEST, x.dtype) * 0.5 ** jnp.arange(NUM_SIZES, dtype=x.dtype)
        moves = jnp.concatenate([sizes, -sizes])[:, None, None] * rows[None]
        points = x[None] + moves.reshape(-1, len(x))
        losses = jax.vmap(problem.value)(points)
        best = jnp.nanargmin(losses)
        lowest = jnp.minimum(losses[best], loss)
        end = jnp.where(losses[best] < loss, points[best], x)
        is_end = ~((loss - lowest > self.tolerance) & (lowest > self.target))
        return is_end, end, lowest, end

    def cost_of(self, problem: Problem, num_steps: int) -> Cost:
        return Cost(
            values=num_steps * (2 * NUM_SIZES * problem.size + 1),
            hvps=num_steps * problem.size,
            hessians=num_steps,
            eigendecompositions=num_steps,
        )


ROUND_SIZE = 16  # branches that are chosen at a time


class RidgeRider(Method):
    """Ride, branch, repeat, as `search` does, with every leg's end kept in memory and no run file.

    - `rider`, `order`, `max_ridges`: as in `search`.

    >>> from ridgerider.problems import wells
    >>> ends = RidgeRider(Rider())(wells(2), max_steps=2000)
    >>> len({tuple(x) for x in np.sign(np.round(ends.x, 3))})  # four minima and four saddles
    8
    """

    rider: Rider = Rider()
    order: str | Order = eqx.field(static=True, default="breadth_first")
    max_ridges: Count | None = eqx.field(static=True, default=None)

    __check_init__ = check_fields

    def runs(self, problem: Problem, max_steps: float, seed: int) -> Iterator[Runs]:
        tree, order = Frontier(), named_order(self.order, seed)
        settings = Settings(seed=seed, members="one", max_ridges=self.max_ridges)
        mover = Rides(self.rider)
        legs = [mover.begin(problem, settings)]
        cost = jax.tree.map(int, replace(legs[0].cost, seconds=0))
        yield Runs(np.zeros((0, problem.size)), np.zeros(0), np.zeros(0), 1, cost)
        while True:
            branches = [one for leg in legs for one in mover.branches_at(problem, settings, leg)]
            tree.tell(replace(one, priority=with_priority(one, order).priority) for one in branches)
            if not len(tree):
                return
            legs = mover.move(problem, settings, tree.ask(ROUND_SIZE))
            yield _ends_of(legs)


class RandomVectors(Method):
    """Rides from the start along random directions of length one that are never turned.

    >>> from ridgerider.problems import wells
    >>> ends = RandomVectors()(wells(2), max_steps=500)
    >>> bool((ends.loss < 0).all())
    True
    """

    rider: Rider = Rider(
        update=Keep(), step=FixedStep(0.1), stop=(curvature_gone, Stalled(), not_finite)
    )

    def runs(self, problem: Problem, max_steps: float, seed: int) -> Iterator[Runs]:
        random, x0, number = np.random.default_rng(seed), np.asarray(problem.x0), 0
        mover, settings = Rides(self.rider), Settings(seed=seed, max_depth=1)
        while True:
            directions = random.normal(size=(ROUND_SIZE, problem.size)).astype(x0.dtype)
            directions /= np.linalg.norm(directions, axis=1, keepdims=True)
            branches = [
                Branch(Fingerprint([Turn(number + i, 1)]), 0.0, 0.0, 1, x=x0, direction=direction)
                for i, direction in enumerate(directions)
            ]
            number += ROUND_SIZE
            yield _ends_of(mover.move(problem, settings, branches))


def _ends_of(legs: list[Leg]) -> Runs:
    """Where legs ended, and their steps: tries of the ride, and gradients of the descent."""
    ends = [leg if leg.finish is None else leg.finish for leg in legs]
    spent = [Cost() if leg.finish is None else leg.finish.cost for leg in legs]
    steps = np.cumsum(
        [
            leg.cost.values - one.values + 1 + one.gradients + one.hessians
            for leg, one in zip(legs, spent, strict=True)
        ]
    )
    cost = jax.tree.map(lambda *counts: int(sum(counts)), *(leg.cost for leg in legs))
    points, losses = zip(*((end.x, end.loss) for end in ends), strict=True)
    return Runs(np.stack(points), np.stack(losses), steps, int(steps[-1]), replace(cost, seconds=0))


@checked
def fixed_ridge(rider: Rider) -> Rider:
    """The same rider on a ridge that is never updated: the paper's Fixed-EV.

    >>> type(fixed_ridge(Rider()).update).__name__
    'Keep'
    """
    return replace(rider, update=Keep())


@checked
def fixed_step(rider: Rider, size: Positive = 0.1) -> Rider:
    """The same rider with steps of one size.

    >>> fixed_step(Rider()).step
    FixedStep(size=0.1)
    """
    return replace(rider, step=FixedStep(size))


@checked
def random_ridge(rider: Rider) -> Rider:
    """The same rider along a new random direction, downhill, at each step: Rand-Ridge+.

    The curvature of a random direction says nothing about when to end, so that rule goes.

    >>> random_ridge(Rider()).rule_names()
    ('RidgeLost', 'Stalled', 'not_finite', 'max_steps')
    """
    stop = tuple(rule for rule in rider.stop if rule is not curvature_gone)
    return replace(rider, update=RandomRidge(), stop=stop)
