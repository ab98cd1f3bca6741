"""Two workers against one, the cost of searching, and searches under fire.

    python -m ridgerider_experiments.bench.workers [speed | overhead | kills]

speed: steps per second of one and of two single-threaded workers, on rides of a few hundred
milliseconds. overhead: the part of the time that is spent on anything but rides, at rides of 50 ms.
kills: 20 random SIGKILLs of workers during a search, in a process pool and in a Dask cluster; the
tree must be that of the undisturbed search.
"""

import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import ridgerider as rr
from ridgerider import workers
from ridgerider.problems import wells


def coupled_loss(x, matrix, depths):
    """Double wells in rotated coordinates."""
    y = matrix @ x
    return jnp.sum(y**4 / 4 - depths * y**2 / 2)


def coupled(size):
    random = np.random.default_rng(0)
    matrix, _ = np.linalg.qr(random.normal(size=(size, size)))
    depths = jnp.linspace(0.5, 1.5, size)
    return rr.Problem(coupled_loss, jnp.zeros(size), jnp.asarray(matrix), depths)


def timed(problem, rider, num_rides, executor, **settings):
    """Seconds from the first leg to the last, steps and seconds of riding in between."""
    times, done_by_then = [], []

    def tell(done):
        times.append(time.perf_counter())
        done_by_then.append((done.num_steps, float(done.cost.seconds)))

    with tempfile.TemporaryDirectory() as directory:  # the first search compiles
        rr.search(problem, rider, executor=executor, max_rides=16, round_size=8, max_ridges=4)
        path = Path(directory) / "run.sqlite"
        rr.search(
            problem,
            rider,
            executor=executor,
            max_rides=num_rides,
            max_ridges=4,
            out=path,
            progress=tell,
            **settings,
        )
    steps, ride_seconds = np.subtract(done_by_then[-1], done_by_then[0])
    return times[-1] - times[0], int(steps), float(ride_seconds)


def speed(size=150, step=0.01, num_rides=48, repeats=3):
    problem, rider = coupled(size), rr.Rider(finish=None, step=rr.FixedStep(step))
    rates = {1: [], 2: []}
    with workers.process_pool(1) as one, workers.process_pool(2) as two:
        for _ in range(repeats):  # in turn; the best of each is the least disturbed
            for num_workers, pool in ((1, one), (2, two)):
                seconds, steps, ride_seconds = timed(problem, rider, num_rides, pool, round_size=8)
                rates[num_workers].append(steps / seconds)
                print(
                    f"{num_workers} workers: {steps} steps in {seconds:.1f} s, "
                    f"{steps / seconds:.0f} per second, "
                    f"{1e3 * ride_seconds / (num_rides - 1):.0f} ms per ride",
                    flush=True,
                )
    print(f"ratio {max(rates[2]) / max(rates[1]):.2f}")


def overhead(size=60, step=0.007, num_rides=300):
    problem, rider = coupled(size), rr.Rider(finish=None, step=rr.FixedStep(step))
    seconds, _, ride_seconds = timed(problem, rider, num_rides, None)
    mean = 1e3 * ride_seconds / (num_rides - 1)
    print(f"{mean:.1f} ms per ride, overhead {1 - ride_seconds / seconds:.1%}")


def kill(pids, is_over, count, longest, killed):
    random = np.random.default_rng(0)
    while len(killed) < count and not is_over.is_set():
        time.sleep(random.uniform(0, longest))
        alive = pids()
        if alive:
            os.kill(alive[random.integers(len(alive))], signal.SIGKILL)
            killed.append(time.perf_counter())


def under_fire(name, executor, pids, plain, settings, num_kills=20):
    is_over, killed = threading.Event(), []
    killer = threading.Thread(target=kill, args=(pids, is_over, num_kills, 3.0, killed))
    began = time.perf_counter()

    def slow_down(done):
        if killer.is_alive():  # the search must not end before the last kill
            time.sleep(0.15)

    killer.start()
    result = rr.search(wells(5), executor=executor, max_deaths=10, progress=slow_down, **settings)
    is_over.set()
    killer.join()
    failed = sum(leg.ended_by[0].startswith("failed") for leg in result)
    print(
        f"{name}: {len(killed)} kills in {time.perf_counter() - began:.0f} s, {len(result)} legs, "
        f"{failed} failed, same tree: {same_tree(plain, result)}",
        flush=True,
    )


def same_tree(one, two):
    ends = [
        sorted((str(leg.fingerprint), leg.loss, leg.x.tobytes()) for leg in r) for r in (one, two)
    ]
    return ends[0] == ends[1]


def kills():
    jax.config.update("jax_compilation_cache_dir", tempfile.mkdtemp())
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    settings = {"order": "best_first", "max_rides": 500, "round_size": 8}
    plain = rr.search(wells(5), **settings)
    with workers.process_pool(2) as pool:
        under_fire("process pool", pool, pool.pids, plain, settings)
    with workers.dask(num_workers=2) as cluster:

        def pids():
            nannies = cluster.cluster.workers.values()
            return [nanny.pid for nanny in nannies if nanny.pid is not None]

        under_fire("Dask", cluster, pids, plain, settings)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    for part in sys.argv[1:] or ("speed", "overhead", "kills"):
        {"speed": speed, "overhead": overhead, "kills": kills}[part]()
