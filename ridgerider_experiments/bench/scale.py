"""How far one coordinator reaches: a real search with short rides, and simulated workers.

    ridgerider bench scale

What the search spends besides riding is the coordinator's work: it takes a leg, stores it with its
children, asks for the next branch, marks it and loads its arrays. The workers are simulated: each
rides for a random time, then queues up at the coordinator, which serves one at a time and takes as
long as was measured.
"""

import heapq
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import ridgerider as rr
from ridgerider.types import Progress
from ridgerider_experiments.bench import Row, memory, timed

WORKERS = (1, 10, 100, 1_000, 10_000)
RIDE_SECONDS = (0.05, 1.0, 60.0)
MAX_OPEN = 1_000_000


class _Enough(Exception):
    """There are as many open branches as asked for."""


def wavy_loss(x: Any, frequencies: Any) -> Any:
    return jnp.sum(jnp.cos(frequencies * x))


def cheap_search(
    path: Path,
    size: int,
    seed: int,
    *,
    max_rides: int | None = None,
    tell: Callable[[Progress], None] | None = None,
) -> None:
    """Rides of two steps on a sum of waves, where every leg leaves many ridges."""
    problem = rr.Problem(wavy_loss, jnp.zeros(size), jnp.linspace(1.0, 2.0, size))
    rider = rr.Rider(step=rr.FixedStep(1e-3), stop=(), finish=None, max_steps=2)
    rr.search(
        problem, rider, max_rides=max_rides, max_ridges=10, seed=seed, out=path, progress=tell
    )


def frontier(seed: int) -> Iterator[Row]:
    """Memory and the coordinator's time per leg as the frontier grows to a million branches."""
    marks, times = [MAX_OPEN * tenth // 10 for tenth in (1, 2, 5, 10)], list[float]()
    rows, before = list[Row](), list[float]()

    def tell(done: Progress) -> None:
        now = time.perf_counter() - float(done.cost.seconds)
        times.append(now)
        if not before:
            before.append(memory())
        if done.num_open >= marks[0]:
            recent = 1e3 * np.diff(times[-500:])
            outcome = f"{memory() - before[0]:.0f} MB, at most {recent.max():.1f} ms"
            who = f"{marks.pop(0):,} open branches"
            rows.append(Row("the coordinator, per leg", who, np.median(recent), "ms", outcome))
        if not marks:
            raise _Enough

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.sqlite"
        try:
            cheap_search(path, 100, seed, tell=tell)
        except _Enough:
            yield from rows
        size = f"{path.stat().st_size / 1e6:.0f} MB"
        yield Row("a million open branches", "reading", timed(rr.load, path)[1], "s", size)
    served = np.diff(times)[len(times) // 2 :]  # with a large frontier
    yield from sweep(np.random.default_rng(seed).permutation(served), seed)


def sweep(service: np.ndarray, seed: int) -> Iterator[Row]:
    random = np.random.default_rng(seed)
    for ride_seconds in RIDE_SECONDS:
        most = ride_seconds / service.mean()
        task = f"simulated workers, rides of {ride_seconds:g} s, saturated at {most:.0f}"
        for num_workers in WORKERS:
            busy, wait = simulate(num_workers, ride_seconds, service, random)
            outcome = f"wait {1e3 * wait:.2f} ms"
            yield Row(task, f"{num_workers:,} workers", 100 * busy, "% riding", outcome)


def simulate(
    num_workers: int, ride_seconds: float, service: np.ndarray, random: np.random.Generator
) -> tuple[float, float]:
    """The part of the time that workers ride, and how long one waits for the coordinator."""
    num_events = max(20_000, 20 * num_workers)
    ends = list(random.exponential(ride_seconds, size=num_workers))
    heapq.heapify(ends)
    free, ridden, waited = 0.0, 0.0, 0.0
    for event in range(num_events):
        if event == num_events // 2:
            ridden, waited = 0.0, 0.0  # what came before was the beginning
        ended, ride = heapq.heappop(ends), random.exponential(ride_seconds)
        free = max(free, ended) + service[event % len(service)]
        waited += free - ended
        ridden += ride
        heapq.heappush(ends, free + ride)
    return ridden / (ridden + waited), waited / (num_events - num_events // 2)


TASKS = (frontier,)
