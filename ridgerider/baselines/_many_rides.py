"""Rides in bulk: a round of branches is one compiled call, and the search is kept in memory.

`search` stores whole legs, so that it can be resumed; for the short legs of a small problem that
takes longer than riding them. Here only what the next round needs comes back and nothing is stored.
The branches that are ridden are those of `search` with the same settings.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem
from ridgerider._core.ride.rider import Rider
from ridgerider._core.spectra.spectrum import Ridge, Spectrum
from ridgerider._search.tree.tree import Branch, Fingerprint, Turn, hashed


class Round(eqx.Module):
    """The ends of some rides, a row for each: of the ride, and of the descent that finished it."""

    x: Float[Array, "k n"]
    loss: Float[Array, " k"]
    end_x: Float[Array, "k n"]
    end_loss: Float[Array, " k"]
    num_steps: Int[Array, " k"]
    is_finite: Bool[Array, " k"]
    spectrum: Spectrum
    cost: Cost

    def branches(self, row: int, fingerprint: Fingerprint, max_ridges: int | None) -> list[Branch]:
        """Both ways along the ridges where ride `row` ended, one member of each cluster."""
        if not self.is_finite[row]:
            return []
        spectrum = self.spectrum
        labels = spectrum.labels[row][spectrum.is_downhill[row]]
        indices, firsts = np.unique(labels, return_index=True)
        return [
            Branch(
                fingerprint=fingerprint.child(Turn(int(index), sign)),
                loss=float(self.loss[row]),
                eigenvalue=float(spectrum.eigenvalues[row, first]),
                multiplicity=1,
                x=np.asarray(self.x[row]),
                direction=sign * np.asarray(spectrum.eigenvectors[row, first]),
            )
            for index, first in list(zip(indices, firsts, strict=True))[:max_ridges]
            for sign in (1, -1)
        ]


def ride_round(
    problem: Problem, rider: Rider, seed: int, branches: Sequence[Branch], room: int
) -> Round:
    """Ride the branches, at most `room` of them, one after the other."""
    words = np.zeros((room, 2), np.uint32)
    x, direction = np.zeros((2, room, problem.size), problem.dtype)
    eigenvalue = np.zeros(room, problem.dtype)
    for row, branch in enumerate(branches):
        words[row] = np.frombuffer(hashed("key", seed, branch.fingerprint), ">u4")
        x[row], direction[row], eigenvalue[row] = branch.x, branch.direction, branch.eigenvalue
    rows = tuple(map(jnp.asarray, (x, direction, eigenvalue, words)))
    is_real = jnp.arange(room) < len(branches)
    return jax.device_get(_ride_many(problem, rider, rows, is_real))


def look_around(problem: Problem, rider: Rider, seed: int) -> Round:
    """The start, as the end of a ride of no steps."""
    words = np.frombuffer(hashed("key", seed, Fingerprint()), ">u4").astype(np.uint32)
    return jax.device_get(_look(problem, rider, jnp.asarray(words)))


@eqx.filter_jit
def _look(problem: Problem, rider: Rider, words: UInt32[Array, " 2"]) -> Round:
    x, key = problem.x0, jax.random.wrap_key_data(words, impl="threefry2x32")
    spectrum, on_batch = rider.look(problem, x, key), rider.on_batch(problem, key, jnp.array(0))
    loss, cost = on_batch.value(x), spectrum.cost + Cost(values=1)
    one = Round(x, loss, x, loss, jnp.array(1), jnp.isfinite(loss), spectrum, cost)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], one)


@eqx.filter_jit
def _ride_many(
    problem: Problem,
    rider: Rider,
    rows: tuple[Array, ...],
    is_real: Bool[Array, " k"],
) -> Round:
    def ride_one(row: tuple[Array, ...]) -> Round:
        x, direction, eigenvalue, words = row
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
        ridge = Ridge(direction, eigenvalue, jnp.array(0), jnp.array(1))
        ride = rider.ride(problem, x, ridge, key)
        spectrum = rider.look(problem, ride.x, jax.random.fold_in(key, 2**30))
        end = (ride.x, ride.loss)
        cost, num_steps = ride.cost + spectrum.cost, jnp.asarray(ride.cost.values) + 1
        if rider.finish is not None:
            finish = rider.finish(problem, ride.x, key, rider.spectrum)
            end = (finish.x, finish.loss)
            cost = cost + finish.cost
            num_steps = num_steps + finish.cost.gradients + finish.cost.eigendecompositions
        return Round(ride.x, ride.loss, *end, num_steps, ride.is_finite, spectrum, cost)

    def arrays(round: Round) -> Round:
        return jax.tree.map(jnp.asarray, round)

    shapes = jax.eval_shape(
        lambda rows: arrays(ride_one(rows)), jax.tree.map(lambda leaf: leaf[0], rows)
    )
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def ride_if_real(given: tuple[Array, tuple[Array, ...]]) -> Round:
        return jax.lax.cond(
            given[0], lambda row: arrays(ride_one(row)), lambda _: nothing, given[1]
        )

    # One by one: side by side, all would take as long as the longest.
    return jax.lax.map(ride_if_real, (is_real, rows))
