"""Rides side by side: `num_lanes` of them in one compiled program, or each by itself.

Rides, looks and finishes are programs of their own, so that each is compiled once: the start is
looked at by the program that looks at the ends of rides.
"""

from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

from ridgerider._core.descend.finish import Descend, Finish, HostFinish
from ridgerider._core.problem.placement import fetch
from ridgerider._core.problem.problem import Problem, Scalar, Vector
from ridgerider._core.ride.ride import Ride
from ridgerider._core.ride.rider import Rider, spectrum_on_batch
from ridgerider._core.runtime.clock import check_time
from ridgerider._core.runtime.compile import compiled
from ridgerider._core.spectra.spectrum import Ridge, Spectrum


def side_by_side(
    one: Callable[..., Any], problem: Problem, rider: Rider, lanes: list[Any], num_lanes: int
) -> list[Any]:
    """`one(problem, rider, *lane)` for each lane; all at once if there is room.

    Raises `OutOfTime` where a deadline passes.
    """
    check_time()
    if one is finish_one and isinstance(rider.finish, HostFinish):
        return [fetch(one(problem, rider, *lane)) for lane in lanes]
    if num_lanes == 1:
        run = spectrum_alone if one is spectrum_at else compiled(one, rider.effort)
        return [fetch(run(problem, rider, *lane)) for lane in lanes]
    if not lanes:
        return []
    # Free lanes repeat the first one: they take no more steps than it does.
    filled = lanes + lanes[:1] * (num_lanes - len(lanes))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *filled)
    ends = fetch(compiled(_many, rider.effort)(one, problem, rider, stacked))
    return [jax.tree.map(itemgetter(row), ends) for row in range(len(lanes))]


def value_at(problem: Problem, x: Vector) -> Scalar:
    return problem.value(x)


def spectrum_at(problem: Problem, rider: Rider, x: Vector, key: PRNGKeyArray) -> Spectrum:
    return spectrum_on_batch(problem, rider.spectrum, rider.batch, x, key)


def spectrum_alone(problem: Problem, rider: Rider, x: Vector, key: PRNGKeyArray) -> Spectrum:
    """`spectrum_at`, as a program that riders with other finishes or steps share."""
    return compiled(spectrum_on_batch, rider.effort)(problem, rider.spectrum, rider.batch, x, key)


def ride_one(
    problem: Problem, rider: Rider, x: Vector, ridge: Ridge, key: PRNGKeyArray
) -> tuple[Ride, Bool[Array, " rules"]]:
    ride = rider.ride(problem, x, ridge, key)
    return ride, rider.ended(ride)


def finish_one(problem: Problem, rider: Rider, x: Vector, key: PRNGKeyArray) -> Finish:
    assert rider.finish is not None
    finish = rider.finish
    if rider.keep_path and isinstance(finish, Descend):
        finish = replace(finish, keep_path=True)
    return finish(problem, x, key, rider.spectrum)


def _many(one: Callable[..., Any], problem: Problem, rider: Rider, lanes: Any) -> Any:
    return jax.vmap(lambda lane: _arrays(one(problem, rider, *lane)))(lanes)


def _arrays(tree: Any) -> Any:
    return jax.tree.map(jnp.asarray, tree)
