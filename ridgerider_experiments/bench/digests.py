"""What the digests of a run file and the thread that rides cost, as parts of a ride of 50 ms.

python -m ridgerider_experiments.bench.digests
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import jax

import ridgerider as rr
from ridgerider._search.crew.interrupt import interruptible
from ridgerider._search.engine.rides import branches_at
from ridgerider._search.runfile import store as stores
from ridgerider._search.runfile.rows import digest
from ridgerider._search.runfile.store import Store
from ridgerider.problems import wells

RIDE = 0.05  # seconds
NUM_LEGS, NUM_ROUNDS = 200, 5
SIZES = (20, 200)  # of the problem; a leg of the larger one takes about 0.4 MB


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    print("| what | for a leg | of a ride of 50 ms |\n|---|---|---|")
    for size in SIZES:
        legs, space = _legs(size)
        _row(f"digests, {size} parameters, {space / 1e3:.0f} kB", _spent_on_digests(legs))
    calls = 1000
    _row("a thread that rides", _least(lambda: _called(calls)) / calls)


def _row(what: str, seconds: float) -> None:
    print(f"| {what} | {seconds * 1e3:.3f} ms | {seconds / RIDE:.2%} |")


def _legs(size: int) -> tuple[list[rr.Leg], int]:
    """Legs as a search of so many wells would store them, with 50 steps each."""
    problem = wells(size)
    rider = rr.Rider(finish=None, step=rr.FixedStep(0.02), max_steps=50)
    result = rr.search(problem, rider, max_rides=1)
    leg = result.leg("0+")
    legs = [
        rr.Leg(**{**vars(leg), "fingerprint": rr.Fingerprint.parse(f"{number}+")})
        for number in range(NUM_LEGS)
    ]
    legs[0] = rr.Leg(**{**vars(leg), "fingerprint": rr.Fingerprint()})
    space = sum(array.nbytes for array in (leg.x, leg.directions, *leg.trace.values()))
    return legs, space


def _spent_on_digests(legs: list[rr.Leg]) -> float:
    """Seconds for a leg: the digests of its rows, and the sum in the file."""
    clock = _Clock()
    best = float("inf")
    with (
        mock.patch.object(stores, "digest", clock.around(digest)),
        mock.patch.object(Store, "_write_sum", clock.around(Store._write_sum)),
    ):
        for _ in range(NUM_ROUNDS):
            clock.seconds = 0.0
            _stored(legs)
            best = min(best, clock.seconds / len(legs))
    return best


class _Clock:
    """How long some functions take together."""

    seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            began = time.process_time()
            result = function(*args)
            self.seconds += time.process_time() - began
            return result

        return timed


def _stored(legs: list[rr.Leg]) -> None:
    settings = rr.Settings(max_ridges=4)
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "run.sqlite", META, legs[0], [])
        for leg in legs[1:]:
            store.add(leg, branches_at(leg, settings, rr.breadth_first)[:8])
        store.close()


def _called(count: int) -> None:
    for _ in range(count):
        interruptible(int)


def _least(work: Callable[[], None]) -> float:
    """Seconds of the processor; the least of some times, as other work only adds to it."""
    times = []
    for _ in range(NUM_ROUNDS + 1):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


META = {
    "name": "wells",
    "problem": {"params": [["", [1], "float64"]], "start": "", "data": ""},
    "rider": {},
    "settings": {},
    "budget": {},
}

if __name__ == "__main__":
    main()
