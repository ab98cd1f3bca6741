"""What all experiments share: settings with a quick size, jobs that are stored, intervals.

An experiment is a module with `Settings`, `run(settings, runner)`, which returns results that JSON
can hold, and `table(results)`. It draws its figures into `runner.out`.
"""

import contextlib
import json
import math
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import jax
import numpy as np
from scipy import stats

from ridgerider.workers import WorkerLost, process_pool

T = TypeVar("T")
Job = dict[str, Any]


def sized(full: T, quick: T) -> T:
    """A field whose value is smaller with `--quick`."""
    return field(default=full, metadata={"quick": quick})


@dataclass(frozen=True)
class Base:
    """What all settings have.

    >>> @dataclass(frozen=True)
    ... class Settings(Base):
    ...     num_trees: int = sized(20, quick=3)
    >>> Settings().num_trees, Settings.quick(7)
    (20, Settings(seed=7, num_trees=3))
    """

    version: ClassVar[int] = 1  # raised with a change of the code that changes what a job gives
    seed: int = 0

    @classmethod
    def of(cls, job: Job) -> Self:
        """Those that a job was made with; JSON has lists where these have tuples."""
        known: dict[str, Any] = {one.name: job[one.name] for one in fields(cls) if one.name in job}
        known |= {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
        return cls(**known)

    def job(self, *others: str, **own: Any) -> Job:
        """What decides the result of a job: these settings without `others`, and its own values."""
        known = {name: of for name, of in asdict(self).items() if name not in others}
        return {"version": self.version, **known, **own}

    @classmethod
    def quick(cls, seed: int) -> Self:
        small = {one.name: one.metadata["quick"] for one in fields(cls) if "quick" in one.metadata}
        return cls(**{**small, "seed": seed})


@dataclass(frozen=True)
class Runner:
    """Where an experiment writes, what it says, and in how many processes it works."""

    out: Path
    say: Callable[[str], None] = print
    workers: int = 1

    def __call__(self, work: Callable[[Job], Any], jobs: Iterable[Job]) -> list[Any]:
        """What `work` makes of each job, in the order of the jobs.

        A job is plain data and `work` a module-level function. Results are appended to a file as
        they come; jobs whose result is there already are not done again, so that an experiment
        that was stopped goes on where it was.
        """
        jobs, path = list(jobs), self.out / "jobs.jsonl"
        done = {_name(entry["job"]): entry["result"] for entry in entries(path)}
        missing = [job for job in jobs if _name(job) not in done]
        if len(missing) < len(jobs):
            self.say(f"{len(jobs) - len(missing)} of {len(jobs)} are done already: {path}")
        for number, (job, result) in enumerate(self._work_on(work, missing), start=1):
            done[_name(job)] = result
            with path.open("a") as file:
                entry = {"job": job, "result": result, "commit": about()["commit"]}
                file.write("\n" + json.dumps(entry))
            if number % 10 == 0 or number == len(missing):
                self.say(f"{number} of {len(missing)} done")
        return [done[_name(job)] for job in jobs]

    def _work_on(self, work: Callable[[Job], Any], jobs: list[Job]) -> Iterator[tuple[Job, Any]]:
        if self.workers < 2:
            yield from ((job, work(job)) for job in jobs)
            return
        is_double = jax.config.jax_enable_x64  # type: ignore[attr-defined]
        with process_pool(self.workers) as pool:
            futures = {pool.submit(_as_here, is_double, work, job): job for job in jobs}
            for future in as_completed(futures):
                try:
                    yield futures[future], future.result()
                except WorkerLost as error:
                    raise OSError(f"a worker was lost: {error}. What is done is kept.") from None


def _as_here(is_double: bool, work: Callable[[Job], Any], job: Job) -> Any:
    jax.config.update("jax_enable_x64", is_double)
    return work(job)


def _name(job: Job) -> str:
    return json.dumps(job, sort_keys=True)


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """The jobs that are done, each with its result and the commit it was made by."""
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):  # an empty line, or the last of a killed process
            yield json.loads(line)


def grouped(jobs: Iterable[Job], done: Iterable[Any], name: str) -> dict[Any, list[Any]]:
    """The results by this entry of their jobs.

    >>> grouped([{"depth": 4}, {"depth": 6}, {"depth": 4}], [{"x": 1}, {"x": 2}, {"x": 3}], "depth")
    {4: [{'x': 1}, {'x': 3}], 6: [{'x': 2}]}
    """
    groups: dict[Any, list[Any]] = {}
    for job, result in zip(jobs, done, strict=True):
        groups.setdefault(job[name], []).append(result)
    return groups


def about() -> dict[str, Any]:
    """What a result was made by and on: version, commit if there is one, processor."""
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = ""
    made = {"version": metadata.version("ridgerider"), "commit": commit}
    return {**made, "cores": os.cpu_count(), "machine": platform.machine()}


# --- intervals


def interval(values: Iterable[float], num_tests: int = 1) -> dict[str, float]:
    """The mean with its t-interval, which holds with 95 % for all of `num_tests` at once.

    >>> one = interval([1.0, 2.0, 3.0])
    >>> round(one["mean"], 6), round(one["low"], 3), round(one["high"], 3)
    (2.0, -0.484, 4.484)
    """
    values = np.asarray(list(values))
    mean, half = float(values.mean()), math.inf
    if len(values) > 1:
        half = float(stats.t.ppf(1 - 0.025 / num_tests, len(values) - 1) * stats.sem(values))
    return {"mean": mean, "low": mean - half, "high": mean + half}


def accuracy_interval(values: Iterable[float]) -> dict[str, float]:
    """The same of accuracies, cut to [0, 1]."""
    found = interval(values)
    return {**found, "low": max(found["low"], 0.0), "high": min(found["high"], 1.0)}


def proportion(values: Sequence[float]) -> dict[str, float]:
    """The mean of some shares of what is to be found, with Wilson's 95 % interval for proportions.

    Each value counts as one draw. A share varies at most as much as a coin with the same mean, so
    the interval is too wide rather than too narrow; and it has a width where all draws agree.

    >>> {name: round(value, 2) for name, value in proportion([1.0] * 20).items()}
    {'mean': 1.0, 'low': 0.84, 'high': 1.0}
    """
    mean, z, count = float(np.mean(values)), float(stats.norm.ppf(0.975)), len(values)
    center = (mean + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z * (mean * (1 - mean) / count + (z / (2 * count)) ** 2) ** 0.5 / (1 + z**2 / count)
    # Rounding must not put the mean outside.
    return {"mean": mean, "low": min(center - half, mean), "high": max(center + half, mean)}


def percent(row: dict[str, float] | None) -> str:
    """A share and its interval as a cell of a table: `46 (27-67)`."""
    return (
        "-" if row is None else "{mean:.0%} ({low:.0%}-{high:.0%})".format(**row).replace("%", "")
    )


def plus_minus(row: dict[str, float], digits: int = 1) -> str:
    """An accuracy in percent with half of its interval, if there is one: `65.7 ± 1.4`."""
    mean, half = 100 * row["mean"], 50 * (row["high"] - row["low"])
    return f"{mean:.{digits}f}" + (f" ± {half:.{digits}f}" if half < 50 else "")
