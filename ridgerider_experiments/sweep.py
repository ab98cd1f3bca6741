"""Many independent jobs in processes, each kept as a line of a file when it is done."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy import stats

from ridgerider.workers import WorkerLost, process_pool
from ridgerider_experiments.settings import about

Job = dict[str, Any]


def run_jobs(
    work: Callable[[Job], dict[str, Any]],
    jobs: Iterable[Job],
    path: Path,
    num_workers: int,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """What `work` makes of each job, in the order of the jobs.

    A job is plain data and `work` a module-level function. Results are appended to the file `path`
    as they come; jobs whose result is there already are not done again, so that a sweep that was
    stopped goes on where it was.
    """
    jobs = list(jobs)
    done = {_name(entry["job"]): entry["result"] for entry in entries(path)}
    missing = [job for job in jobs if _name(job) not in done]
    if len(missing) < len(jobs):
        say(f"{len(jobs) - len(missing)} of {len(jobs)} are done already: {path}")
    for number, (job, result) in enumerate(_work_on(work, missing, num_workers), start=1):
        done[_name(job)] = result
        with path.open("a") as file:
            entry = {"job": job, "result": result, "commit": about()["commit"]}
            file.write("\n" + json.dumps(entry))
        if number % 10 == 0 or number == len(missing):
            say(f"{number} of {len(missing)} done")
    return [done[_name(job)] for job in jobs]


def grouped(jobs: Iterable[Job], done: Iterable[Any], name: str) -> dict[Any, list[Any]]:
    """The results by this entry of their jobs.

    >>> grouped([{"depth": 4}, {"depth": 6}, {"depth": 4}], [{"x": 1}, {"x": 2}, {"x": 3}], "depth")
    {4: [{'x': 1}, {'x': 3}], 6: [{'x': 2}]}
    """
    groups: dict[Any, list[Any]] = {}
    for job, result in zip(jobs, done, strict=True):
        groups.setdefault(job[name], []).append(result)
    return groups


def _work_on(
    work: Callable[[Job], dict[str, Any]], jobs: list[Job], num_workers: int
) -> Iterator[tuple[Job, dict[str, Any]]]:
    if num_workers < 2:
        yield from ((job, work(job)) for job in jobs)
        return
    is_double = jax.config.jax_enable_x64  # type: ignore[attr-defined]
    with process_pool(num_workers) as pool:
        futures = {pool.submit(_as_here, is_double, work, job): job for job in jobs}
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except WorkerLost as error:
                raise OSError(f"a worker was lost: {error}. What is done is kept.") from None


def _as_here(is_double: bool, work: Callable[[Job], dict[str, Any]], job: Job) -> dict[str, Any]:
    jax.config.update("jax_enable_x64", is_double)
    return work(job)


def _name(job: Job) -> str:
    return json.dumps(job, sort_keys=True)


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """The jobs that are done, each with its result and the commit it was made by."""
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        with contextlib.suppress(ValueError):  # an empty line, or the last of a killed process
            yield json.loads(line)


def proportion(values: Iterable[float]) -> dict[str, float]:
    """The mean of some shares of what is to be found, with Wilson's 95 % interval for proportions.

    Each value counts as one draw. A share varies at most as much as a coin with the same mean, so
    the interval is too wide rather than too narrow; and it has a width where all draws agree.

    >>> {name: round(value, 2) for name, value in proportion([1.0] * 20).items()}
    {'mean': 1.0, 'low': 0.84, 'high': 1.0}
    """
    values = np.asarray(list(values))
    mean, z, count = float(values.mean()), float(stats.norm.ppf(0.975)), len(values)
    center = (mean + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z * np.sqrt(mean * (1 - mean) / count + (z / (2 * count)) ** 2) / (1 + z**2 / count)
    # Rounding must not put the mean outside.
    low, high = min(float(center - half), mean), max(float(center + half), mean)
    return {"mean": mean, "low": max(low, 0.0), "high": min(high, 1.0)}


def percent(row: dict[str, float] | None) -> str:
    """A share and its interval as a cell of a table: `46 (27-67)`."""
    if row is None:
        return "-"
    return f"{100 * row['mean']:.0f} ({100 * row['low']:.0f}-{100 * row['high']:.0f})"


def interval(values: Iterable[float]) -> dict[str, float]:
    """The mean of some accuracies with its 95 % t-interval, cut to [0, 1]."""
    values = np.asarray(list(values))
    mean = float(values.mean())
    if len(values) < 2:
        return {"mean": mean, "low": 0.0, "high": 1.0}
    half = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return {"mean": mean, "low": max(mean - half, 0.0), "high": min(mean + half, 1.0)}
