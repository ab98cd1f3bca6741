"""What all baselines share: runs under one budget, and where they ended."""

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from os import PathLike
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from ridgerider._core.descend.finish import Descend, Finish
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.placement import fetch
from ridgerider._core.problem.problem import Problem
from ridgerider._core.spectra.spectrum import DenseSpectrum
from ridgerider._search.results.result import Result
from ridgerider._search.runfile.problem import describe_problem
from ridgerider._search.runfile.rules import describe
from ridgerider._search.runfile.write import Store
from ridgerider._search.same.points import StationaryPoints
from ridgerider._search.tree.settings import Budget, Settings
from ridgerider._search.tree.tree import Branch, Fingerprint, Leg, Turn

FAR = 1e15  # a run that diverged: squares of such numbers still fit single precision
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

    def save(
        self,
        path: str | PathLike | None,
        problem: Problem,
        method: Any,
        *,
        name: str | None = None,
        seed: int = 0,
    ) -> Result:
        """Write a run file like that of a search, which every viewer and `compare` can read.

        Each run is a leg from the start, `0+`, `1+`, ... in the order they ended. Where it ended is
        finished and checked as the end of a ride is, and that is counted.

        **Arguments**

        - `path`: a new file, or None to keep it in memory.
        - `problem`, `method`, `seed`: what was run. `name`: what the problem is called.

        >>> from ridgerider.baselines import GradientDescent
        >>> from ridgerider.problems import wells
        >>> problem, method = wells(2), GradientDescent(step_size=0.5)
        >>> len(method(problem, max_steps=500).save(None, problem, method).minima())
        4
        """
        meta = {
            "name": name or getattr(problem.loss, "__name__", type(problem.loss).__name__),
            "problem": describe_problem(problem),
            "mover": "baseline",
            "rider": describe(method),
            "symmetry": None,
            "valid": None,
            "settings": asdict(Settings(seed=seed)),
            "budget": asdict(Budget(max_rides=None, max_steps=self.num_steps)),
        }
        x0, key = np.asarray(fetch(problem.x0)), jax.random.key(seed)
        root = Leg.without_ridges(Fingerprint(), x0, float(problem.value(problem.x0)), ())
        names = [Fingerprint([Turn(row, 1)]) for row in range(len(self.x))]
        branches = [Branch(one, root.loss, 0.0, 1, priority=row) for row, one in enumerate(names)]
        finishes = dict[Fingerprint, Finish]()
        known = StationaryPoints(problem, None, finishes.__getitem__)
        steps, costs = np.diff(self.step, prepend=0), self._costs()
        store = Store.create(path, meta, replace(root, cost=Cost(values=1)), branches)
        with store.closed_on_error():
            store.choose(branches)
            for row, (one, x) in enumerate(zip(names, self.x, strict=True)):
                leg = Leg.without_ridges(one, x, float(self.loss[row]), ("not_finite",))
                leg = replace(leg, num_steps=int(steps[row]), cost=costs[row])
                if np.isfinite(leg.loss) and np.abs(x).max() < FAR:
                    point, own = jnp.asarray(x, problem.dtype), jax.random.fold_in(key, row)
                    end = jax.device_get(Descend()(problem, point, own, DenseSpectrum()))
                    finishes[one], ended_by = end, (type(method).__name__,)
                    leg = replace(leg, ended_by=ended_by, cost=leg.cost + end.cost, finish=end)
                    leg = replace(leg, same_as=known.add(one, end))
                store.settle(leg, [])
            store.checkpoint()
        return Result(store, problem)

    def _costs(self) -> list[Cost]:
        """What each run cost: shares of all of it, by its steps; the last has what is left."""
        share = np.append(self.step[:-1] / max(1, self.num_steps), 1.0)
        columns = {
            name: np.diff(np.floor(share * float(total)), prepend=0).astype(int).tolist()
            for name, total in vars(self.cost).items()
        }
        seconds = np.append(self.second[:-1], float(self.cost.seconds))
        columns["seconds"] = np.diff(seconds, prepend=0).tolist()
        rows = zip(*columns.values(), strict=True)
        return [Cost(**dict(zip(columns, row, strict=True))) for row in rows]


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
