"""What a map costs without a matrix, and with one.

ridgerider bench large-maps
"""

import time
from collections.abc import Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

import ridgerider as rr
from ridgerider.problems import is_one_cluster, lennard_jones
from ridgerider_experiments.bench import Row, memory
from ridgerider_experiments.clusters import wrong_indices


def rings(seed: int) -> Iterator[Row]:
    for size in (400, 20_000):
        yield mapped(f"ring, {size:,} parameters", ring(size), "hvp", seed, size < 1000, 16)


def atoms(seed: int) -> Iterator[Row]:
    options = {"symmetry": rr.symmetry.point_set(), "valid": is_one_cluster}
    engines: tuple[Literal["hvp", "dense"], ...] = ("hvp", "dense")
    for engine in engines:
        problem = lennard_jones(110)
        yield mapped("110 atoms, 330 parameters", problem, engine, seed, True, 8, **options)


def ring(size: int) -> rr.Problem:
    """Particles in double wells, each tied to the next; no two wells are as deep."""
    depths = 1 + 0.3 * np.random.default_rng(0).random(size)

    def loss(x: jax.Array) -> jax.Array:
        wells = jnp.sum(depths * (x**2 - 1) ** 2) / 4
        return wells + 0.1 * jnp.sum((x - jnp.roll(x, 1)) ** 2)

    return rr.Problem(loss, jnp.full(size, 0.9))


def mapped(
    task: str,
    problem: rr.Problem,
    engine: Literal["hvp", "dense"],
    seed: int,
    is_checked: bool,
    max_rides: int,
    **options: Any,
) -> Row:
    """A map of so many rides, and how many of its climbs converged."""
    began = time.perf_counter()
    climb = rr.Climb(engine=engine)
    landscape = rr.explore(problem, climb, max_rides=max_rides, max_modes=4, seed=seed, **options)
    spent = time.perf_counter() - began
    points = {one.fingerprint for one in (*landscape.minima(), *landscape.saddles(None))}
    legs = [landscape.leg(name) for name in landscape.fingerprints() if name and name[-1].up]
    arrived = [leg for leg in legs if "stationary" in leg.ended_by]
    rates = [int(leg.cost.hvps) / leg.num_steps for leg in arrived if leg.fingerprint not in points]
    outcome = [
        f"{len(arrived)} of {len(legs)} climbs converged",
        f"{len(points)} points",
        f"{np.mean([leg.num_steps for leg in arrived]):.0f} steps a climb",
        *([f"{np.mean(rates):.1f} HVPs a step"] if rates else []),
        *([f"{wrong_indices(landscape)} wrong indices"] if is_checked else []),
        f"{memory() / 1e3:.1f} GB",
    ]
    return Row(task, engine, spent, "s", ", ".join(outcome))


TASKS = (rings, atoms)
