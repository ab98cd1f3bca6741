"""Ridge Rider as a method under a budget, and the riders of its ablations."""

from dataclasses import replace

import equinox as eqx
import jax
import numpy as np

from ridgerider._check import check_count
from ridgerider._core.problem.problem import Number, Problem
from ridgerider._core.ride.rider import Rider
from ridgerider._core.ride.step import FixedStep
from ridgerider._core.ride.stop import Stalled, curvature_gone, not_finite
from ridgerider._core.ride.update import Keep, RandomRidge
from ridgerider._search.tree.orders import Order, named_order, with_priority
from ridgerider._search.tree.tree import Branch, Fingerprint, Frontier, Turn
from ridgerider.baselines._ends import Ends, Tally, Until
from ridgerider.baselines._many_rides import Round, look_around, ride_round


class Rides(eqx.Module):
    """Ride, branch, repeat, as `search` does, with every leg's end kept in memory and no run file.

    **Arguments**

    - `rider`, `order`, `max_ridges`: as in `search`.
    - `round_size`: how many branches are chosen at a time and ridden in one compiled call.

    >>> from ridgerider.problems import wells
    >>> ends = Rides(Rider())(wells(2), max_steps=2000)
    >>> len({tuple(x) for x in np.sign(np.round(ends.x, 3))})  # four minima and four saddles
    8
    """

    rider: Rider = Rider()
    order: str | Order = eqx.field(static=True, default="breadth_first")
    max_ridges: int | None = eqx.field(static=True, default=None)
    round_size: int = eqx.field(static=True, default=16)

    def __check_init__(self) -> None:
        check_count("round_size", self.round_size)
        if self.max_ridges is not None:
            check_count("max_ridges", self.max_ridges)

    def __call__(
        self,
        problem: Problem,
        *,
        max_steps: int | None = None,
        max_seconds: float | None = None,
        seed: int = 0,
        until: Until | None = None,
    ) -> Ends:
        tally, tree = Tally(problem, max_steps, max_seconds, until), Frontier()
        order = named_order(self.order, seed)

        def branch_from(round: Round, row: int, fingerprint: Fingerprint) -> None:
            found = round.branches(row, fingerprint, self.max_ridges)
            tree.tell(with_priority(branch, order) for branch in found)

        start = look_around(problem, self.rider, seed)
        tally.num_steps, tally.cost = 1, jax.tree.map(lambda column: column[0], start.cost)
        branch_from(start, 0, Fingerprint())
        while len(tree) and not tally.is_over():
            chosen = tree.ask(self.round_size)
            round = ride_round(problem, self.rider, seed, chosen, self.round_size)
            _add(tally, round, len(chosen))
            for row, branch in enumerate(chosen):
                branch_from(round, row, branch.fingerprint)
        return tally.ends()


class RandomVectors(eqx.Module):
    """Rides from the start along random directions of length one that are never turned.

    >>> from ridgerider.problems import wells
    >>> ends = RandomVectors()(wells(2), max_steps=500)
    >>> bool((ends.loss < 0).all())
    True
    """

    rider: Rider = Rider(
        update=Keep(), step=FixedStep(0.1), stop=(curvature_gone, Stalled(), not_finite)
    )
    round_size: int = eqx.field(static=True, default=16)

    def __check_init__(self) -> None:
        check_count("round_size", self.round_size)

    def __call__(
        self,
        problem: Problem,
        *,
        max_steps: int | None = None,
        max_seconds: float | None = None,
        seed: int = 0,
        until: Until | None = None,
    ) -> Ends:
        tally, number = Tally(problem, max_steps, max_seconds, until), 0
        random, x0 = np.random.default_rng(seed), np.asarray(problem.x0)
        while not tally.is_over():
            directions = random.normal(size=(self.round_size, problem.size))
            directions /= np.linalg.norm(directions, axis=1, keepdims=True)
            chosen = [
                Branch(Fingerprint([Turn(number + i, 1)]), 0.0, 0.0, 1, x=x0, direction=direction)
                for i, direction in enumerate(directions)
            ]
            number += self.round_size
            round = ride_round(problem, self.rider, seed, chosen, self.round_size)
            _add(tally, round, len(chosen))
        return tally.ends()


def _add(tally: Tally, round: Round, count: int) -> None:
    steps = np.cumsum(round.num_steps[:count])
    cost = jax.tree.map(lambda column: column[:count].sum().item(), round.cost)
    x, loss = np.asarray(round.end_x[:count]), np.asarray(round.end_loss[:count])
    tally.add(x, loss, steps, int(steps[-1]), cost)


def fixed_ridge(rider: Rider) -> Rider:
    """The same rider on a ridge that is never updated: the paper's Fixed-EV.

    >>> type(fixed_ridge(Rider()).update).__name__
    'Keep'
    """
    return replace(rider, update=Keep())


def fixed_step(rider: Rider, size: Number = 0.1) -> Rider:
    """The same rider with steps of one size.

    >>> fixed_step(Rider()).step
    FixedStep(size=0.1)
    """
    return replace(rider, step=FixedStep(size))


def random_ridge(rider: Rider) -> Rider:
    """The same rider along a new random direction, downhill, at each step: Rand-Ridge+.

    The curvature of a random direction says nothing about when to end, so that rule goes.

    >>> random_ridge(Rider()).rule_names()
    ('RidgeLost', 'Stalled', 'not_finite', 'max_steps')
    """
    stop = tuple(rule for rule in rider.stop if rule is not curvature_gone)
    return replace(rider, update=RandomRidge(), stop=stop)
