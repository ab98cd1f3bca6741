"""Two workers against one, the cost of searching, and a long frontier.

    ridgerider bench workers [speed | overhead | frontier]

speed: steps per second of one and of two single-threaded workers, on rides of a few hundred
milliseconds. overhead: the part of the time that is spent on anything but rides, at rides of 50 ms.
frontier: the coordinator's time per leg besides the rides (it stores the leg with its children,
asks for the next branch, marks it and loads its arrays), and its memory, as the frontier grows to a
million open branches.
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ridgerider as rr
from ridgerider import workers
from ridgerider.types import Progress
from ridgerider_experiments.bench import Row, memory


def coupled_loss(x: jax.Array, matrix: jax.Array, depths: jax.Array) -> jax.Array:
    """Double wells in rotated coordinates."""
    y = matrix @ x
    return jnp.sum(y**4 / 4 - depths * y**2 / 2)


def timed(size: int, step: float, num_rides: int, executor: Any) -> tuple[float, int, float]:
    """Seconds from the first leg to the last, steps and seconds of riding in between."""
    matrix, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(size, size)))
    depths = jnp.linspace(0.5, 1.5, size)
    problem = rr.Problem(coupled_loss, jnp.zeros(size), jnp.asarray(matrix), depths)
    rider = rr.Rider(finish=None, step=rr.FixedStep(step))
    seen: list[tuple[float, int, float]] = []

    def tell(done: Progress) -> None:
        seen.append((time.perf_counter(), done.num_steps, float(done.cost.seconds)))

    settings: dict[str, Any] = {"executor": executor, "max_ridges": 4, "round_size": 8}
    rr.search(problem, rider, max_rides=16, **settings)  # the first search compiles
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run.sqlite"
        rr.search(problem, rider, max_rides=num_rides, out=path, progress=tell, **settings)
    seconds, steps, ride_seconds = np.subtract(seen[-1], seen[0])
    return float(seconds), int(steps), float(ride_seconds)


def speed(seed: int, num_rides: int = 48, repeats: int = 3) -> Iterator[Row]:
    rates: dict[int, list[float]] = {1: [], 2: []}
    with workers.process_pool(1) as one, workers.process_pool(2) as two:
        for _ in range(repeats):  # in turn; the best of each is the least disturbed
            for num_workers, pool in ((1, one), (2, two)):
                seconds, steps, ride_seconds = timed(150, 0.01, num_rides, pool)
                rates[num_workers].append(steps / seconds)
    each = f"{1e3 * ride_seconds / (num_rides - 1):.0f} ms per ride"
    for num_workers, of in rates.items():
        yield Row("steps per second", f"{num_workers} workers", max(of), "steps/s", each)


def overhead(seed: int, num_rides: int = 300) -> Iterator[Row]:
    seconds, _, ride_seconds = timed(60, 0.007, num_rides, None)
    for who, spent in (("rides", ride_seconds), ("anything else", seconds - ride_seconds)):
        each = 1e3 * spent / (num_rides - 1)
        yield Row("a leg", who, each, "ms", f"{spent / seconds:.1%} of the time")


class _Enough(Exception):
    """There are as many open branches as asked for."""


def wavy_loss(x: jax.Array, frequencies: jax.Array) -> jax.Array:
    return jnp.sum(jnp.cos(frequencies * x))


def frontier(seed: int) -> Iterator[Row]:
    """Rides of two steps on a sum of waves, where every leg leaves many ridges."""
    problem = rr.Problem(wavy_loss, jnp.zeros(100), jnp.linspace(1.0, 2.0, 100))
    rider = rr.Rider(step=rr.FixedStep(1e-3), stop=(), finish=None, max_steps=2)
    marks, times, before = [100_000, 200_000, 500_000, 1_000_000], list[float](), memory()
    rows = list[Row]()

    def tell(done: Progress) -> None:
        times.append(time.perf_counter() - float(done.cost.seconds))
        if done.num_open >= marks[0]:
            recent = 1e3 * np.diff(times[-500:])
            outcome = f"{memory() - before:.0f} MB, at most {recent.max():.1f} ms"
            who = f"{marks.pop(0):,} open branches"
            rows.append(Row("the coordinator, per leg", who, np.median(recent), "ms", outcome))
        if not marks:
            raise _Enough

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.sqlite"
        try:
            rr.search(problem, rider, max_ridges=10, seed=seed, out=path, progress=tell)
        except _Enough:
            yield from rows
        began = time.perf_counter()
        rr.load(path)
        spent, size = time.perf_counter() - began, f"{path.stat().st_size / 1e6:.0f} MB"
        yield Row("a million open branches", "reading", spent, "s", size)


TASKS = (speed, overhead, frontier)
