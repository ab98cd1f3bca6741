"""Ridge Rider as a method under a budget, and the riders of its ablations.

`search` stores whole legs, so that it can be resumed; for the short legs of a small problem that
takes longer than riding them. Here a ride, the spectrum at its end and its descent are one compiled
call, of which only what the next round needs is kept. The branches that are ridden are those of
`search` with the same settings.
"""

from collections.abc import Iterator
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ridgerider._check import check_count
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Number, Problem, Scalar, Vector
from ridgerider._core.ride.rider import Rider
from ridgerider._core.ride.step import FixedStep
from ridgerider._core.ride.stop import Stalled, curvature_gone, not_finite
from ridgerider._core.ride.update import Keep, RandomRidge
from ridgerider._core.spectra.spectrum import Ridge, Spectrum
from ridgerider._search.engine.rides import branch_key
from ridgerider._search.tree.orders import Order, named_order, with_priority
from ridgerider._search.tree.tree import Branch, Fingerprint, Frontier, Turn
from ridgerider.baselines._descents import Method, Runs

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
    max_ridges: int | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        if self.max_ridges is not None:
            check_count("max_ridges", self.max_ridges)

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
        ends.append(jax.device_get(_ride(problem, rider, x, direction, eigenvalue, key)))
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
    x, loss = ride.x, ride.loss
    cost, num_steps = ride.cost + spectrum.cost, jnp.asarray(ride.cost.values) + 1
    if rider.finish is not None:
        finish = rider.finish(problem, ride.x, key, rider.spectrum)
        x, loss, cost = finish.x, finish.loss, cost + finish.cost
        num_steps = num_steps + finish.cost.gradients + finish.cost.eigendecompositions
    return RideEnd(ride.x, ride.loss, x, loss, num_steps, ride.is_finite, spectrum, cost)


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
