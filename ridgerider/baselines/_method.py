"""What all baselines share: runs under one budget, and where they ended."""

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int

from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem
from ridgerider._search.tree.tree import Budget

Until = Callable[[Float[np.ndarray, "k n"]], bool]


@dataclass(frozen=True)
class Ends:
    """Where the runs of a method ended, in the order they did, and what was spent until then.

    - `x`, `loss`: the end of each run.
    - `step`, `second`: what all runs together had used when it ended.
    - `num_steps`, `cost`: what was used altogether, also by runs that the budget cut off.

    >>> from ridgerider.baselines import GradientDescent
    >>> from ridgerider.problems import wells
    >>> ends = GradientDescent(step_size=0.5)(wells(2), max_steps=500)
    >>> ends.num_steps, int(ends.cost.gradients), ends.x.shape[1]
    (500, 500, 2)
    """

    x: Float[np.ndarray, "k n"]
    loss: Float[np.ndarray, " k"]
    step: Int[np.ndarray, " k"]
    second: Float[np.ndarray, " k"]
    num_steps: int
    cost: Cost


class Runs(NamedTuple):
    """Runs that have ended: where, and after how many of the last `num_steps` steps."""

    x: Float[np.ndarray, "k n"]
    loss: Float[np.ndarray, " k"]
    step: Int[np.ndarray, " k"]
    num_steps: int
    cost: Cost


class Method(eqx.Module):
    """Makes runs until the budget is used up, or `until` is true of points where runs ended."""

    @abstractmethod
    def runs(self, problem: Problem, max_steps: float, seed: int) -> Iterator[Runs]:
        """Runs without end, some at a time; `max_steps` may be infinite."""

    def __call__(
        self,
        problem: Problem,
        *,
        max_steps: int | None = None,
        max_seconds: float | None = None,
        seed: int = 0,
        until: Until | None = None,
    ) -> Ends:
        Budget(max_steps=max_steps, max_seconds=max_seconds)  # checks them
        if max_steps is None and max_seconds is None:
            raise ValueError("`max_steps` or `max_seconds` must be given, but both are None.")
        most = math.inf if max_steps is None else max_steps
        latest = math.inf if max_seconds is None else max_seconds
        began, num_steps, cost, found = time.perf_counter(), 0, Cost(), []
        for runs in self.runs(problem, most, seed):
            seconds = time.perf_counter() - began
            step = num_steps + np.asarray(runs.step, int)
            is_within = step <= most  # what ends beyond the budget does not count
            x = runs.x[is_within]
            found.append((x, runs.loss[is_within], step[is_within], np.full(len(x), seconds)))
            num_steps, cost = int(min(num_steps + runs.num_steps, most)), cost + runs.cost
            is_done = until is not None and len(x) > 0 and until(x)
            if is_done or num_steps >= most or time.perf_counter() - began >= latest:
                break
        x, loss, step, second = map(np.concatenate, zip(*found, strict=True))
        cost = cost + Cost(seconds=time.perf_counter() - began)
        return Ends(x, loss, step, second, num_steps, cost)
