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

`search` stores whole legs, so that it can be resumed; for the short legs of a small problem that
takes longer than riding them. In `RidgeRider` a ride, the spectrum at its end and its descent are
one compiled call, of which only what the next round needs is kept. The branches that are ridden are
those of `search` with the same settings.
"""

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

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
from ridgerider._core.spectra.spectrum import Ridge, Spectrum
from ridgerider._search.engine.rides import branch_key
from ridgerider._search.tree import (
    Branch,
    Fingerprint,
    Frontier,
    Order,
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


CHUNK = 256  # steps of a descent between two checks of the budget
MAX_DESCENT = 10_000  # steps of a run of gradient descent
# The line search along an eigenvector tries this size and halves it up to NUM_SIZES times in all.
LARGEST, NUM_SIZES = 8.0, 12
MAX_SEARCHES = 1000  # of a run
NUM_AT_ONCE = 8  # runs of `EigenvectorDescent` between two checks of the budget


class GradientDescent(Method):
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

    __check_init__ = check_fields

    def runs(self, problem: Problem, max_steps: float, seed: int) -> Iterator[Runs]:
        # Lanes run side by side, and each begins anew where its run ends. A small budget has few,
        # so that not all of it goes to runs that are cut off.
        lanes = next((count for count in (64, 8) if max_steps >= 2000 * count), 1)
        method = jax.tree.map(lambda number: jnp.asarray(number, problem.dtype), self)
        state, left = _first_starts(problem, method, lanes, jax.random.key(seed)), max_steps
        while True:
            state, *out = _descend(problem, method, state)
            is_end, x, loss = jax.device_get(out)
            step, lane = np.nonzero(is_end)
            num_steps = int(min(is_end.size, left))
            left -= num_steps
            cost = Cost(values=num_steps, gradients=num_steps)
            yield Runs(x[step, lane], loss[step, lane], (step + 1) * lanes, num_steps, cost)

    def start(self, problem: Problem, key: PRNGKeyArray) -> Vector:
        noise = jax.random.normal(key, (problem.size,), problem.dtype)
        return problem.x0 + jnp.asarray(self.spread, problem.dtype) * noise


DescentState = tuple[Float[Array, "lanes n"], Float[Array, " lanes"], PRNGKeyArray]


@eqx.filter_jit
def _first_starts(
    problem: Problem, method: GradientDescent, lanes: int, key: PRNGKeyArray
) -> DescentState:
    keys = jax.random.split(key, lanes)
    return jax.vmap(lambda key: method.start(problem, key))(keys), jnp.zeros(lanes), keys


@eqx.filter_jit
def _descend(
    problem: Problem, method: GradientDescent, state: DescentState
) -> tuple[DescentState, Bool[Array, "t lanes"], Float[Array, "t lanes n"], Float[Array, "..."]]:
    """`CHUNK` steps of each lane, and where its runs ended on the way."""

    def step(
        x: Vector, length: Scalar, key: PRNGKeyArray
    ) -> tuple[tuple[Vector, Scalar, PRNGKeyArray], tuple[Bool[Array, ""], Vector, Scalar]]:
        loss, grad = jax.value_and_grad(problem.value)(x)
        is_end = (
            ~(loss > method.target)  # written so that a NaN ends a run
            | ~(jnp.linalg.norm(grad) > method.tolerance)
            | (length + 1 >= MAX_DESCENT)
        )
        next_key = jax.random.split(key, 1)[0]
        again = method.start(problem, next_key)
        moved = (
            jnp.where(is_end, again, x - method.step_size * grad),
            jnp.where(is_end, 0, length + 1),
            jnp.where(is_end, next_key, key),
        )
        return moved, (is_end, x, loss)

    state, out = jax.lax.scan(lambda state, _: jax.vmap(step)(*state), state, None, length=CHUNK)
    return state, *out


class EigenvectorDescent(Method):
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

    __check_init__ = check_fields

    def runs(self, problem: Problem, max_steps: float, seed: int) -> Iterator[Runs]:
        method = eqx.tree_at(lambda m: m.spread, self, jnp.asarray(self.spread, problem.dtype))
        key = jax.random.key(seed)
        while True:
            key, here = jax.random.split(key)
            x, loss, lengths = jax.device_get(_search_lines(problem, method, here))
            total = int(lengths.sum())
            cost = Cost(
                values=total * 2 * NUM_SIZES * problem.size + len(x),
                hvps=total * problem.size,
                hessians=total,
                eigendecompositions=total,
            )
            yield Runs(x, loss, np.cumsum(lengths), total, cost)


@eqx.filter_jit
def _search_lines(
    problem: Problem, method: EigenvectorDescent, key: PRNGKeyArray
) -> tuple[Float[Array, "k n"], Float[Array, " k"], Int[Array, " k"]]:
    def should_continue(carry: tuple) -> Bool[Array, ""]:
        _, loss, fell, length = carry
        return (fell > method.tolerance) & (loss > method.target) & (length < MAX_SEARCHES)

    def step(carry: tuple) -> tuple:
        x, loss, _, length = carry
        rows = jnp.linalg.eigh(problem.hessian(x))[1].T
        sizes = jnp.asarray(LARGEST, x.dtype) * 0.5 ** jnp.arange(NUM_SIZES, dtype=x.dtype)
        moves = jnp.concatenate([sizes, -sizes])[:, None, None] * rows[None]
        points = x[None] + moves.reshape(-1, len(x))
        losses = jax.vmap(problem.value)(points)
        best = jnp.nanargmin(losses)
        is_lower = losses[best] < loss
        fell = jnp.where(is_lower, loss - losses[best], 0)
        return jnp.where(is_lower, points[best], x), loss - fell, fell, length + 1

    def run(key: PRNGKeyArray) -> tuple[Vector, Scalar, Array]:
        noise = jax.random.normal(key, (problem.size,), problem.dtype)
        x = problem.x0 + method.spread * noise
        begin = (x, problem.value(x), jnp.asarray(jnp.inf, x.dtype), jnp.array(0))
        x, loss, _, length = jax.lax.while_loop(should_continue, step, begin)
        return x, loss, length

    return jax.lax.map(run, jax.random.split(key, NUM_AT_ONCE))


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
        key = branch_key(seed, Fingerprint())
        ridden = [(Fingerprint(), jax.device_get(_start(problem, self.rider, key)))]
        cost = jax.tree.map(int, ridden[0][1].cost)
        yield Runs(np.zeros((0, problem.size)), np.zeros(0), np.zeros(0), 1, cost)
        while True:
            for name, end in ridden:
                for branch in end.branches(name, self.max_ridges):
                    priority = with_priority(branch, order).priority
                    tree.tell([replace(branch, priority=priority)])
            if not len(tree):
                return
            chosen = tree.ask(ROUND_SIZE)
            ends, runs = _ride_all(problem, self.rider, seed, chosen)
            ridden = [(branch.fingerprint, end) for branch, end in zip(chosen, ends, strict=True)]
            yield runs


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
        while True:
            directions = random.normal(size=(ROUND_SIZE, problem.size))
            directions /= np.linalg.norm(directions, axis=1, keepdims=True)
            branches = [
                Branch(Fingerprint([Turn(number + i, 1)]), 0.0, 0.0, 1, x=x0, direction=direction)
                for i, direction in enumerate(directions)
            ]
            number += ROUND_SIZE
            yield _ride_all(problem, self.rider, seed, branches)[1]


class RideEnd(eqx.Module):
    """Where a ride ended, and where the descent that finished it."""

    x: Vector
    loss: Scalar
    end_x: Vector
    end_loss: Scalar
    num_steps: Int[Array, ""]
    is_finite: Bool[Array, ""]
    spectrum: Spectrum
    cost: Cost

    def branches(self, fingerprint: Fingerprint, max_ridges: int | None) -> list[Branch]:
        """Both ways along the ridges where the ride ended, one member of each cluster."""
        spectrum, is_downhill = self.spectrum, self.spectrum.is_downhill & self.is_finite
        indices, firsts = np.unique(spectrum.labels[is_downhill], return_index=True)
        return [
            Branch(
                fingerprint=fingerprint.child(Turn(int(index), sign)),
                loss=float(self.loss),
                eigenvalue=float(spectrum.eigenvalues[first]),
                multiplicity=1,
                x=np.asarray(self.x),
                direction=sign * np.asarray(spectrum.eigenvectors[first]),
            )
            for index, first in list(zip(indices, firsts, strict=True))[:max_ridges]
            for sign in (1, -1)
        ]


def _ride_all(
    problem: Problem, rider: Rider, seed: int, branches: list[Branch]
) -> tuple[list[RideEnd], Runs]:
    """Ride these branches, one after the other."""
    ends = []
    for branch in branches:
        given = (branch.x, branch.direction, branch.eigenvalue)
        x, direction, eigenvalue = (jnp.asarray(one, problem.dtype) for one in given)
        key = branch_key(seed, branch.fingerprint)
        ends.append(
            _finished(problem, rider, _ride(problem, rider, x, direction, eigenvalue, key), key)
        )
    steps = np.cumsum([end.num_steps for end in ends])
    cost = jax.tree.map(lambda *spent: int(sum(spent)), *[end.cost for end in ends])
    points, losses = zip(*((end.end_x, end.end_loss) for end in ends), strict=True)
    return ends, Runs(np.stack(points), np.stack(losses), steps, int(steps[-1]), cost)


@eqx.filter_jit
def _start(problem: Problem, rider: Rider, key: PRNGKeyArray) -> RideEnd:
    """The start, as the end of a ride of no steps."""
    x, spectrum = problem.x0, rider.spectrum_at(problem, problem.x0, key)
    loss = rider.on_batch(problem, key, jnp.array(0)).value(x)
    cost = spectrum.cost + Cost(values=1)
    return RideEnd(x, loss, x, loss, jnp.array(1), jnp.isfinite(loss), spectrum, cost)


@eqx.filter_jit
def _ride(
    problem: Problem,
    rider: Rider,
    x: Vector,
    direction: Vector,
    eigenvalue: Float[Array, ""],
    key: PRNGKeyArray,
) -> RideEnd:
    ridge = Ridge(direction, eigenvalue, jnp.array(0), jnp.array(1))
    ride = rider.ride(problem, x, ridge, key)
    spectrum = rider.spectrum_at(problem, ride.x, jax.random.fold_in(key, 2**30))
    cost, num_steps = ride.cost + spectrum.cost, jnp.asarray(ride.cost.values) + 1
    ends = ride.x, ride.loss, ride.x, ride.loss
    return RideEnd(*ends, num_steps, ride.is_finite, spectrum, cost)


def _finished(problem: Problem, rider: Rider, end: RideEnd, key: PRNGKeyArray) -> RideEnd:
    """The end of a ride with what is below it."""
    end = jax.device_get(end)
    if rider.finish is None:
        return end
    finish = jax.device_get(rider.finish(problem, jnp.asarray(end.x), key, rider.spectrum))
    num_steps = end.num_steps + finish.cost.gradients + finish.cost.hessians
    given = {"end_x": finish.x, "end_loss": finish.loss, "cost": end.cost + finish.cost}
    return replace(end, num_steps=num_steps, **given)


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
