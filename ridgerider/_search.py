"""Ride, branch, repeat: the search.

A round chooses branches, rides all of them, here or in an executor, and only then looks at what
came back. Legs are stored as they arrive; what is chosen next depends on whole rounds alone, so
neither the number of workers nor the order of arrival nor an interruption changes the tree.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, as_completed
from dataclasses import asdict, dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ridgerider._describe import check_problem, describe, describe_problem, rebuild
from ridgerider._finish import Finish
from ridgerider._problem import Cost, Problem
from ridgerider._result import Result, is_same
from ridgerider._ride_batch import look, ride_batch
from ridgerider._rider import Rider
from ridgerider._store import Store, check_new
from ridgerider._tree import (
    ORDERS,
    Branch,
    Budget,
    Fingerprint,
    Leg,
    Order,
    Search,
    Settings,
    branches_at,
    named_order,
    order_name,
)

Same = Literal["same"]
RideBatch = Callable[[list[Branch]], list[Leg]]


@dataclass
class Progress:
    """What a search has done so far; handed to `progress` after every leg.

    `num_open` counts the branches that wait, `num_minima` the minima, by distance; `best_loss` is
    the lowest loss at one of them.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> def tell(done):
    ...     print(done.num_rides, "rides,", done.num_minima, "minima")
    >>> result = rr.search(wells(1), progress=tell)
    1 rides, 1 minima
    2 rides, 2 minima
    """

    num_rides: int = 0
    num_steps: int = 0
    num_open: int = 0
    best_loss: float = float("inf")
    cost: Cost = Cost()
    _minima: list[np.ndarray] = field(default_factory=list, repr=False)

    @property
    def num_minima(self) -> int:
        return len(self._minima)

    @staticmethod
    def read(store: Store) -> "Progress":
        """As far as the run in the store has come."""
        cost = sum(store.costs().values(), Cost())
        done = Progress(store.num_legs(), store.num_steps(), cost=cost)
        for _, finish in store.finishes():
            done._add_finish(finish)
        return done

    def add(self, leg: Leg) -> None:
        self.num_rides += 1
        self.num_steps += leg.num_steps
        self.cost = self.cost + leg.cost
        if leg.finish is not None:
            self._add_finish(leg.finish)

    def _add_finish(self, finish: Finish) -> None:
        if finish.is_converged and not finish.is_saddle:
            self.best_loss = min(self.best_loss, float(finish.loss))
            if not any(is_same(finish.x, known) for known in self._minima):
                self._minima.append(np.asarray(finish.x))


def search(
    problem: Problem,
    rider: Rider = Rider(),
    *,
    order: str | Order = "breadth_first",
    members: Literal["one", "all"] = "one",
    max_ridges: int | None = None,
    max_depth: int | None = None,
    max_rides: int | None = 100,
    max_steps: int | None = None,
    max_hvps: int | None = None,
    max_seconds: float | None = None,
    finish_at: Literal["leg", "leaf"] = "leg",
    round_size: int = 1,
    batch_size: int = 1,
    seed: int = 0,
    out: str | PathLike | None = None,
    name: str | None = None,
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Ride the ridges that leave `problem.start`, branch, and repeat until the budget is used up.

    **What is searched** (decides the tree)

    - `order`: which branch comes next: "breadth_first", "depth_first", "best_first",
      "steepest_first", "random", or your own key `order(branch)`, smallest first; `branch.x` is the
      point it leaves, e.g. for a validation loss.
    - `members`: of a repeated eigenvalue ride "one" member or "all" of them. Both signs are always
      ridden.
    - `max_ridges`: at each point only the so many most negative eigenvalues. `max_depth`: only so
      many turns.
    - `finish_at`: run `rider.finish` at the end of every "leg", or only of a "leaf", a leg that
      leads no further.
    - `round_size`: how many branches are chosen before their results come back.
    - `seed`: every random choice derives from it and from where in the tree it is made.

    **When to stop** (checked between rounds): `max_rides`, `max_steps`, `max_hvps`, `max_seconds`;
    None is no limit.

    **How it is computed** (changes nothing in the result)

    - `executor`: rides batches of `batch_size` branches of a round; None rides one by one, here.
    - `out`: a new run file. Every leg is stored as it ends, and `resume` goes on after any
      interruption.
    - `name`: what the problem is called, best as `module:attribute` so that it can be loaded again.
    - `progress`: called with a `Progress` after every leg.

    >>> import jax.numpy as jnp
    >>> import ridgerider as rr
    >>> problem = rr.Problem(lambda x: jnp.sum(x**4 / 4 - x**2 / 2) + x[0] * x[1] / 4, jnp.zeros(2))
    >>> result = rr.search(problem, max_rides=20)
    >>> len(result.minima())
    4
    """
    settings = Settings(
        seed, order_name(order), members, max_ridges, max_depth, finish_at, round_size
    )
    budget = Budget(max_rides, max_steps, max_hvps, max_seconds)
    key = named_order(order, seed)
    _check_batch_size(batch_size)
    if out is not None:
        check_new(Path(out))
    root = look(problem, rider, settings)
    meta = _meta(problem, rider, settings, budget, name)
    store = Store.create(out, meta, root, branches_at(root, settings, key))
    ride = partial(ride_batch, problem, rider, settings)
    with store.closed_on_error():
        _run(ride, settings, key, budget, store, batch_size, executor, progress)
    return Result(store, problem, rider)


def resume(
    path: str | PathLike,
    problem: Problem,
    rider: Rider | None = None,
    *,
    order: Order | None = None,
    max_rides: int | Same | None = "same",
    max_steps: int | Same | None = "same",
    max_hvps: int | Same | None = "same",
    max_seconds: float | Same | None = "same",
    batch_size: int = 1,
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Go on with a search from its run file, to the same tree it would have become uninterrupted.

    The problem must be the one the run began with. The rider is rebuilt from the file; hand it over
    if it has rules of your own, and `order` if that was a function of your own. Budgets are those
    of the run unless given, and count from its beginning.

    >>> import tempfile, jax.numpy as jnp
    >>> import ridgerider as rr
    >>> problem = rr.Problem(lambda x: jnp.sum(x**4 / 4 - x**2 / 2), jnp.zeros(1))
    >>> path = f"{tempfile.mkdtemp()}/run.sqlite"
    >>> len(rr.search(problem, max_rides=1, out=path))
    1
    >>> len(rr.resume(path, problem, max_rides=2))
    2
    """
    _check_batch_size(batch_size)
    store = Store.open(path, write=True)
    with store.closed_on_error():
        settings, meta = store.settings, store.meta
        given: dict[str, Any] = {
            "max_rides": max_rides,
            "max_steps": max_steps,
            "max_hvps": max_hvps,
            "max_seconds": max_seconds,
        }
        budget = Budget(
            **{
                name: meta["budget"][name] if value == "same" else value
                for name, value in given.items()
            }
        )
        rider = rebuild(meta["rider"]) if rider is None else rider
        check_problem(meta, problem, path)
        if meta["rider"] != describe(rider):
            raise ValueError(f"{path} was ridden with another `rider`.")
        key = _order_again(settings, order)
        _check_loss(store.leg(Fingerprint()), look(problem, rider, settings), path)
        store.set_meta("budget", asdict(budget))
    ride = partial(ride_batch, problem, rider, settings)
    with store.closed_on_error():
        _run(ride, settings, key, budget, store, batch_size, executor, progress)
    return Result(store, problem, rider)


def _run(
    ride: RideBatch,
    settings: Settings,
    order: Order,
    budget: Budget,
    store: Store,
    batch_size: int,
    executor: Executor | None,
    progress: Callable[[Progress], None] | None,
) -> None:
    tree, done = Search(), Progress.read(store)
    tree.tell(store.open_branches(chosen=False))
    round_number, chosen = store.num_rounds(), store.open_branches(chosen=True)

    while left := budget.rides_left(done.num_rides, done.num_steps, done.cost):
        if not chosen:
            chosen, round_number = tree.ask(settings.round_size), round_number + 1
            store.choose(chosen, round_number)
        if not chosen:
            break
        # A round that the budget cuts short is finished on resume, before anything else is chosen.
        count = int(min(left, len(chosen)))
        now, chosen = chosen[:count], chosen[count:]
        found: list[Branch] = []
        for leg in _legs(ride, [store.load(branch) for branch in now], batch_size, executor):
            children = branches_at(leg, settings, order)
            store.add(leg, children)
            found += children
            done.add(leg)
            done.num_open = len(tree) + len(chosen) + len(found)
            if progress is not None:
                progress(done)
        tree.tell(found)
    store.checkpoint()


def _legs(
    ride: RideBatch, branches: list[Branch], batch_size: int, executor: Executor | None
) -> Iterator[Leg]:
    """Ride the branches, here or in the executor; legs come as they end, in any order."""
    if executor is None:
        for branch in branches:
            yield from ride([branch])
        return
    batches = [branches[i : i + batch_size] for i in range(0, len(branches), batch_size)]
    futures = [executor.submit(ride, batch) for batch in batches]
    try:
        for future in as_completed(futures):
            yield from future.result()
    finally:  # also when the search is interrupted
        for future in futures:
            future.cancel()


def _meta(
    problem: Problem, rider: Rider, settings: Settings, budget: Budget, name: str | None
) -> dict[str, Any]:
    return {
        "name": name or getattr(problem.loss, "__name__", type(problem.loss).__name__),
        "problem": describe_problem(problem),
        "rider": describe(rider),
        "settings": asdict(settings),
        "budget": asdict(budget),
    }


def _check_loss(stored: Leg, given: Leg, path: str | PathLike) -> None:
    """Raise if the loss itself is another one. Not to the last bit: the machine may be another."""
    one, two = (np.append(leg.eigenvalues, leg.loss) for leg in (stored, given))
    tolerance = float(np.finfo(one.dtype).eps) ** 0.5
    if not np.allclose(one, two, rtol=tolerance, atol=tolerance * float(np.abs(one).max())):
        raise ValueError(f"{path} belongs to another problem: the loss or its Hessian differ.")


def _order_again(settings: Settings, order: Order | None) -> Order:
    """The order a run was begun with."""
    if order is not None and order_name(order) != settings.order:
        raise ValueError(
            f"`order` must be the run's own, {settings.order}, not {order_name(order)}."
        )
    if order is not None or settings.order in (*ORDERS, "random"):
        return named_order(order if order is not None else settings.order, settings.seed)
    try:
        return rebuild(json.loads(settings.order))
    except ValueError:
        raise ValueError(
            f"the run has an order of your own, {settings.order}: pass it again as `order`."
        ) from None


def _check_batch_size(batch_size: int) -> None:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"`batch_size` must be a whole number of at least 1, not {batch_size!r}.")
