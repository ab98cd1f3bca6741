"""Ends: what a baseline brings back; Tally: how it keeps to its budget."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ridgerider._core.descend.finish import Descend
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem
from ridgerider._search.results.result import Result
from ridgerider._search.tree.settings import Budget
from ridgerider.baselines._save import save

Until = Callable[[Float[np.ndarray, "k n"]], bool]


@dataclass(frozen=True)
class Ends:
    """Where the runs of a method ended, in the order they did, and what was spent until then.

    - `x`, `loss`: the end of each run.
    - `step`, `second`: what all runs together had used when it ended.
    - `num_steps`, `cost`: what was used altogether, also by runs that the budget cut off.

    >>> from ridgerider.baselines import Descent
    >>> from ridgerider.problems import wells
    >>> ends = Descent(step_size=0.5)(wells(2), max_steps=500)
    >>> ends.num_steps, int(ends.cost.gradients), ends.x.shape[1]
    (500, 500, 2)
    """

    x: Float[np.ndarray, "k n"]
    loss: Float[np.ndarray, " k"]
    step: Int[np.ndarray, " k"]
    second: Float[np.ndarray, " k"]
    num_steps: int
    cost: Cost

    def save(
        self,
        path: str | PathLike | None,
        problem: Problem,
        method: Any,
        *,
        name: str | None = None,
        seed: int = 0,
        check: Descend = Descend(),
    ) -> Result:
        """Write a run file like that of a search, which every viewer and `compare` can read.

        Each run is a leg from the start, `0+`, `1+`, ... in the order they ended. Where it ended is
        finished and checked as the end of a ride is, and counted; ends that are the same to 1e-3 of
        their size are checked once.

        **Arguments**

        - `path`: a new file, or None to keep it in memory.
        - `problem`, `method`, `seed`: what was run. `name`: what the problem is called.

        >>> from ridgerider.baselines import Descent
        >>> from ridgerider.problems import wells
        >>> problem, method = wells(2), Descent(step_size=0.5)
        >>> len(method(problem, max_steps=500).save(None, problem, method).minima())
        4
        """
        return save(self, path, problem, method, name, seed, check)


@dataclass
class Tally:
    """Collects ends, and knows when it is over."""

    problem: Problem
    max_steps: int | None
    max_seconds: float | None
    until: Until | None
    num_steps: int = 0
    cost: Cost = Cost()
    is_done: bool = False
    rows: list[tuple[np.ndarray, float, int, float]] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        Budget(max_steps=self.max_steps, max_seconds=self.max_seconds)  # checks them
        if self.max_steps is None and self.max_seconds is None:
            raise ValueError("`max_steps` or `max_seconds` must be given, but both are None.")

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    @property
    def steps_left(self) -> float:
        return math.inf if self.max_steps is None else self.max_steps - self.num_steps

    def is_over(self) -> bool:
        is_late = self.max_seconds is not None and self.seconds >= self.max_seconds
        return self.is_done or self.steps_left <= 0 or is_late

    def add(
        self, x: np.ndarray, loss: np.ndarray, step: np.ndarray, num_steps: int, cost: Cost
    ) -> None:
        """Runs that ended at `x`, after `step` of the last `num_steps` steps."""
        second = self.seconds
        rows = [
            (one, float(value), self.num_steps + int(at), second)
            for one, value, at in zip(x, loss, step, strict=True)
            if at <= self.steps_left  # what ends beyond the budget does not count
        ]
        self.rows += rows
        self.num_steps += int(min(num_steps, self.steps_left))
        self.cost = self.cost + cost
        if rows and self.until is not None:
            self.is_done = self.until(np.stack([row[0] for row in rows]))

    def ends(self) -> Ends:
        empty = np.zeros((0, self.problem.size))
        x = np.stack([row[0] for row in self.rows]) if self.rows else empty
        loss, step, second = (np.array([row[column] for row in self.rows]) for column in (1, 2, 3))
        cost = self.cost + Cost(seconds=self.seconds)
        return Ends(x, loss, step, second, self.num_steps, cost)
