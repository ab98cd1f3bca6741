"""What a baseline brought back, as a run file: a star of legs, one for each run that ended."""

from dataclasses import asdict, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

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

if TYPE_CHECKING:
    from ridgerider.baselines._method import Ends

FAR = 1e15  # a run that diverged: squares of such numbers still fit single precision


def save(
    ends: "Ends",
    path: str | PathLike | None,
    problem: Problem,
    method: Any,
    name: str | None,
    seed: int,
) -> Result:
    """The run file of a method; see `Ends.save`."""
    meta = {
        "name": name or getattr(problem.loss, "__name__", type(problem.loss).__name__),
        "problem": describe_problem(problem),
        "mover": "baseline",
        "rider": describe(method),
        "symmetry": None,
        "valid": None,
        "settings": asdict(Settings(seed=seed)),
        "budget": asdict(Budget(max_rides=None, max_steps=ends.num_steps)),
    }
    x0, loss = np.asarray(fetch(problem.x0)), float(problem.value(problem.x0))
    nothing = np.zeros((0, len(x0)), x0.dtype)
    root = Leg(
        fingerprint=Fingerprint(),
        x=x0,
        loss=loss,
        num_steps=0,
        ended_by=(),
        eigenvalues=nothing[:, 0],
        clusters=(),
        num_ridges=0,
        turns=(),
        directions=nothing,
        trace={},
        cost=Cost(values=1),
    )
    names = [Fingerprint([Turn(number, 1)]) for number in range(len(ends.x))]
    branches = [Branch(one, loss, 0.0, 1, priority=row) for row, one in enumerate(names)]
    finishes = dict[Fingerprint, Finish]()
    different = StationaryPoints(problem, None, finishes.__getitem__)
    steps, costs = np.diff(ends.step, prepend=0), _costs(ends)
    key = jax.random.key(seed)
    store = Store.create(path, meta, root, branches)
    with store.closed_on_error():
        store.choose(branches)
        for row, (one, x) in enumerate(zip(names, ends.x, strict=True)):
            leg = replace(
                root,
                fingerprint=one,
                x=x,
                loss=float(ends.loss[row]),
                num_steps=int(steps[row]),
                ended_by=("not_finite",),
                cost=costs[row],
            )
            if np.isfinite(leg.loss) and np.abs(x).max() < FAR:
                point, own = jnp.asarray(x, problem.dtype), jax.random.fold_in(key, row)
                end = jax.device_get(Descend()(problem, point, own, DenseSpectrum()))
                finishes[one] = end
                same_as = different.add(one, end)
                ended_by, cost = (type(method).__name__,), leg.cost + end.cost
                leg = replace(leg, ended_by=ended_by, cost=cost, finish=end, same_as=same_as)
            store.settle(leg, [])
        store.checkpoint()
    return Result(store, problem)


def _costs(ends: "Ends") -> list[Cost]:
    """What each run cost: shares of all of it, by its steps; the last has what is left."""
    share = np.append(ends.step[:-1] / max(1, ends.num_steps), 1.0)
    columns = {
        name: np.diff(np.floor(share * float(total)), prepend=0).astype(int).tolist()
        for name, total in vars(ends.cost).items()
    }
    seconds = np.append(ends.second[:-1], float(ends.cost.seconds))
    columns["seconds"] = np.diff(seconds, prepend=0).tolist()
    return [
        Cost(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)
    ]
