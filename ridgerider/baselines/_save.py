"""What a baseline brought back, as a run file: a star of legs, one for each run that ended."""

from collections.abc import Iterator
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
from ridgerider._search.same.classes import Classes
from ridgerider._search.same.points import TOLERANCE, StationaryPoints, reach_of
from ridgerider._search.tree.settings import Budget, Settings
from ridgerider._search.tree.tree import Branch, Fingerprint, Leg, Turn

if TYPE_CHECKING:
    from ridgerider.baselines._ends import Ends

FAR = 1e15  # a run that diverged: squares of such numbers still fit single precision


def save(
    ends: "Ends",
    path: str | PathLike | None,
    problem: Problem,
    method: Any,
    name: str | None,
    seed: int,
    check: Descend,
) -> Result:
    """The run file of a method; see `Ends.save`."""
    settings = Settings(seed=seed)
    meta = {
        "name": name or getattr(problem.loss, "__name__", type(problem.loss).__name__),
        "problem": describe_problem(problem),
        "mover": "baseline",
        "rider": describe(method),
        "symmetry": None,
        "valid": None,
        "settings": asdict(settings),
        "budget": asdict(Budget(max_rides=None, max_steps=ends.num_steps)),
    }
    loss, x0 = float(problem.value(problem.x0)), np.asarray(fetch(problem.x0))
    root = _leg(Fingerprint(), x0, loss, 0, Cost(values=1), ())
    addresses = [Fingerprint([Turn(number, 1)]) for number in range(len(ends.x))]
    branches = [Branch(one, loss, 0.0, 1, priority=row) for row, one in enumerate(addresses)]
    store = Store.create(path, meta, root, branches)
    with store.closed_on_error():
        store.choose(branches)
        for leg in _legs(ends, addresses, problem, method, check, seed):
            store.settle(leg, [])
        store.checkpoint()
    return Result(store, problem)


def _legs(
    ends: "Ends",
    addresses: list[Fingerprint],
    problem: Problem,
    method: Any,
    check: Descend,
    seed: int,
) -> Iterator[Leg]:
    """Each end with what a descent from there comes to; ends that are close share one descent."""
    close, checked = Classes[int](), dict[Fingerprint, Finish]()
    different = StationaryPoints(problem, None, checked.__getitem__)
    keys = jax.random.split(jax.random.key(seed), max(1, len(addresses)))
    reason = (getattr(type(method), "__name__", str(method)),)
    for row, (address, cost) in enumerate(zip(addresses, _costs(ends), strict=True)):
        before = int(ends.step[row - 1]) if row else 0
        num_steps, loss = int(ends.step[row]) - before, float(ends.loss[row])
        if not (np.isfinite(loss) and np.abs(ends.x[row]).max() < FAR):
            yield _leg(address, ends.x[row], loss, num_steps, cost, ("not_finite",))
            continue
        number = close.add(row, ends.x[row], reach_of(ends.x[row], TOLERANCE))
        first = close.names[number]
        if first == row:
            point = jnp.asarray(ends.x[row], problem.dtype)
            end = jax.device_get(check(problem, point, keys[row], DenseSpectrum()))
            cost = cost + end.cost
        else:
            end = replace(checked[addresses[first]], cost=Cost())
        checked[address] = end
        leg = _leg(address, ends.x[row], loss, num_steps, cost, reason)
        yield replace(leg, finish=end, same_as=different.add(address, end))


def _costs(ends: "Ends") -> Iterator[Cost]:
    """What was spent until each run ended, taken apart so that it adds up to all of it."""
    whole, spent = {name: float(value) for name, value in vars(ends.cost).items()}, Cost()
    for row in range(len(ends.x)):
        is_last = row == len(ends.x) - 1
        share = 1.0 if is_last else float(ends.step[row]) / max(1, ends.num_steps)
        until: dict[str, Any] = {name: int(share * value) for name, value in whole.items()}
        until["seconds"] = whole["seconds"] if is_last else float(ends.second[row])
        now = Cost(**until)
        yield jax.tree.map(lambda after, before: after - before, now, spent)
        spent = now


def _leg(
    fingerprint: Fingerprint,
    x: np.ndarray,
    loss: float,
    num_steps: int,
    cost: Cost,
    ended_by: tuple[str, ...],
) -> Leg:
    nothing = np.zeros((0, len(x)), x.dtype)
    return Leg(
        fingerprint, x, loss, num_steps, ended_by, nothing[:, 0], (), 0, (), nothing, {}, cost
    )
