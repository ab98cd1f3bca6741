"""A chain of rides through one network: what Algorithm 2 of the paper does, ride after ride."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import ridgerider as rr
from ridgerider.types import Cost, Ride, Ridge, Spectrum

Vector = Float[Array, " n"]
# A ride of a chain; experiments replace some of its rules.
RIDER = rr.Rider(
    spectrum=rr.BlockSpectrum(k=8, max_hvps=20, method="gradient"),
    update=rr.Davidson(tolerance=None, max_hvps=4),
    step=rr.FixedStep(0.05),
    stop=(rr.curvature_gone, rr.not_finite),
    finish=None,
    max_steps=50,
)


@dataclass
class Point:
    """A chain between two rides: how far it is, what it has spent, and its running average."""

    x: Vector
    average: Vector
    cost: Cost
    num_rides: int = 0
    num_steps: int = 0


def chain(
    problem: rr.Problem,
    rider: rr.Rider,
    *,
    max_index: int | None = None,
    averaging: float = 0.0,
    seed: int = 0,
    start: Point | None = None,
) -> Iterator[Point]:
    """Ride, find the downhill ridge with the largest share of the gradient, ride on: without end.

    With `max_index` the paper's choice instead: one of that many ridges, at random.

    `averaging` is the weight of the past in the running average over ends of rides, which a chain
    on batches needs: each end is noisy. From `start`, a point of it, a chain goes on as it was.
    """
    point, key = start or Point(problem.x0, problem.x0, Cost()), jax.random.key(seed)
    index = None if max_index is None else jnp.asarray(max_index)
    while True:
        here = jax.random.fold_in(key, point.num_rides)
        ride, cost = next_ride(problem, rider, point.x, here, index)
        weight = averaging if point.num_rides else 0.0
        point = Point(
            x=ride.x,
            average=weight * point.average + (1 - weight) * ride.x,
            cost=point.cost + jax.tree.map(np.asarray, cost),
            num_rides=point.num_rides + 1,
            num_steps=point.num_steps + int(ride.num_steps),
        )
        yield point


def store(path: Path, point: Point, curve: list[list[float]]) -> None:
    """A point of a chain and its curve, written whole: a chain of hours resumes from it."""
    cost = np.array(jax.tree.leaves(point.cost), float)
    counts = [point.num_rides, point.num_steps]
    part = path.with_suffix(".part.npz")
    np.savez(part, x=point.x, average=point.average, cost=cost, counts=counts, curve=curve)
    part.replace(path)


def restore(path: Path) -> tuple[Point | None, list[list[float]]]:
    """What was stored, or nothing."""
    if not path.exists():
        return None, []
    with np.load(path) as kept:
        cost = jax.tree.unflatten(jax.tree.structure(Cost()), kept["cost"].tolist())
        x, average = jnp.asarray(kept["x"]), jnp.asarray(kept["average"])
        return Point(x, average, cost, *map(int, kept["counts"])), kept["curve"].tolist()


def halved(images: np.ndarray) -> np.ndarray:
    """Images of half the side, each pixel the mean of four."""
    count, side, _ = images.shape
    return images.reshape(count, side // 2, 2, side // 2, 2).mean(axis=(2, 4)).astype(np.float32)


@eqx.filter_jit
def guesses(problem: rr.Problem, x: Vector, images: Array) -> Array:
    """The class that a network takes each image for."""
    logits = problem.loss.logits(problem.unravel(x), images)  # type: ignore[attr-defined]
    return jnp.argmax(logits, axis=1)


def accuracy(problem: rr.Problem, x: Vector, images: Any, labels: Any) -> float:
    found = np.asarray(guesses(problem, x, jnp.asarray(images)))
    return float(np.mean(found == np.asarray(labels)))


@eqx.filter_jit
def next_ride(
    problem: rr.Problem,
    rider: rr.Rider,
    x: Vector,
    key: PRNGKeyArray,
    max_index: Array | None = None,
) -> tuple[Ride, Cost]:
    on_batch = rider.on_batch(problem, key, jnp.array(0))
    spectrum, grad = rider.spectrum(on_batch, x, key), on_batch.grad(x)
    share = jnp.where(spectrum.is_downhill, jnp.abs(spectrum.eigenvectors @ grad), -1)
    row = jnp.argmax(share)
    if max_index is not None:  # r in [1, R], among those that lead down
        count = jnp.clip(jnp.minimum(max_index, jnp.sum(spectrum.is_downhill)), 1)
        drawn = jax.random.randint(jax.random.fold_in(key, 2**30), (), 0, count)
        order = jnp.argsort(jnp.where(spectrum.is_downhill, spectrum.eigenvalues, jnp.inf))
        row = order[drawn]
    ridge = downhill_ridge(spectrum, row, grad)
    ride = rider.ride(problem, x, ridge, key)
    return ride, ride.cost + spectrum.cost + Cost(gradients=1)


def downhill_ridge(spectrum: Spectrum, row: Array, grad: Vector) -> Ridge:
    """The eigenvector in this row, pointing against the gradient as in the paper."""
    direction = spectrum.eigenvectors[row]
    return Ridge(
        direction=jnp.where(direction @ grad > 0, -direction, direction),
        eigenvalue=spectrum.eigenvalues[row],
        index=jnp.asarray(row, int),
        multiplicity=jnp.array(1),
    )
