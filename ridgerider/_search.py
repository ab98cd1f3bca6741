"""Ride, branch, repeat: the search, and the one function in which core and shell meet.

`ride_batch` is pure and picklable: the problem, the rider, the settings and some branches in, legs out. Whoever
calls it, here or on another machine, gets the same legs.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, as_completed
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PRNGKeyArray

from ridgerider._describe import describe, describe_problem, rebuild
from ridgerider._problem import Cost, Problem, Vector
from ridgerider._result import Result, is_same
from ridgerider._ride import Ride
from ridgerider._rider import Rider
from ridgerider._spectrum import Ridge, Spectrum
from ridgerider._store import Store, check_new
from ridgerider._tree import (
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


@dataclass
class Progress:
    """What a search has done so far; handed to `progress` after every leg."""

    rides: int = 0
    steps: int = 0
    open_branches: int = 0
    best_loss: float = float("inf")
    cost: Cost = Cost()
    minima: list[np.ndarray] = field(default_factory=list, repr=False)

    def add(self, leg: Leg) -> None:
        self.rides += bool(leg.fingerprint)
        self.steps += leg.num_steps
        self.cost = self.cost + leg.cost
        finish = leg.finish
        if finish is not None and finish.is_converged and not finish.is_saddle:
            self.best_loss = min(self.best_loss, float(finish.loss))
            if not any(is_same(finish.x, known) for known in self.minima):
                self.minima.append(np.asarray(finish.x))


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
    """Ride the ridges that leave `problem.start`, branch, and repeat, until the budget or the branches are used up.

    **What is searched** (decides the tree)

    - `order`: which branch comes next: "breadth_first", "depth_first", "best_first", "steepest_first", "random", or
      your own key `order(branch)`, smallest first; `branch.x` is the point it leaves, e.g. for a validation loss.
    - `members`: of a repeated eigenvalue ride "one" member or "all" of them. Both signs are always ridden.
    - `max_ridges`: at each point only the so many most negative eigenvalues. `max_depth`: only so many turns.
    - `finish_at`: run `rider.finish` at the end of every "leg", or only of a "leaf", a leg that leads no further.
    - `round_size`: how many branches are chosen before their results come back.
    - `seed`: every random choice derives from it and from where in the tree it is made.

    **When to stop** (checked between rounds): `max_rides`, `max_steps`, `max_hvps`, `max_seconds`; None is no limit.

    **How it is computed** (changes nothing in the result)

    - `batch_size`: how many branches make one unit of work. `executor`: rides the batches; None rides here.
    - `out`: a new run file. Every leg is stored as it ends, and `resume` goes on after any interruption.
    - `name`: what the problem is called, best as `module:attribute` so that it can be loaded again.
    - `progress`: called with a `Progress` after every leg.

    >>> import jax.numpy as jnp
    >>> import ridgerider as rr
    >>> problem = rr.Problem(lambda x: jnp.sum(x**4 / 4 - x**2 / 2) + x[0] * x[1] / 4, jnp.zeros(2))
    >>> result = rr.search(problem, max_rides=20)
    >>> len(result.minima())
    4
    """
    settings = Settings(seed, order_name(order), members, max_ridges, max_depth, finish_at, round_size)
    budget = Budget(max_rides, max_steps, max_hvps, max_seconds)
    key = named_order(order, seed)
    _check_batch_size(batch_size)
    if out is not None:
        check_new(Path(out))
    root = look(problem, rider, settings)
    store = Store.create(out, _meta(problem, rider, settings, name))
    store.add(root, branches_at(root, settings, key))
    return _run(problem, rider, settings, key, budget, store, batch_size, executor, progress)


def resume(
    path: str | PathLike,
    problem: Problem,
    rider: Rider | None = None,
    *,
    order: Order | None = None,
    max_rides: int | None = 100,
    max_steps: int | None = None,
    max_hvps: int | None = None,
    max_seconds: float | None = None,
    batch_size: int = 1,
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Go on with a search from its run file, to the same tree it would have become uninterrupted.

    The problem must be the one the run began with. The rider is rebuilt from the file; hand it over if it has rules of your
    own, and `order` if that was a function of your own. Budgets count from the beginning of the run.

    >>> import tempfile, jax.numpy as jnp
    >>> import ridgerider as rr
    >>> problem = rr.Problem(lambda x: jnp.sum(x**4 / 4 - x**2 / 2), jnp.zeros(1))
    >>> path = f"{tempfile.mkdtemp()}/run.sqlite"
    >>> len(rr.search(problem, max_rides=1, out=path).legs())
    1
    >>> len(rr.resume(path, problem, max_rides=2).legs())
    2
    """
    budget = Budget(max_rides, max_steps, max_hvps, max_seconds)
    _check_batch_size(batch_size)
    store = Store.open(path, write=True)
    settings, meta = store.settings, store.meta
    rider = rebuild(meta["rider"]) if rider is None else rider
    _check_same_run(meta, _meta(problem, rider, settings, None), path)
    key = named_order(order if order is not None else settings.order, settings.seed)
    return _run(problem, rider, settings, key, budget, store, batch_size, executor, progress)


def look(problem: Problem, rider: Rider, settings: Settings) -> Leg:
    """The start as a leg of no steps. Raises if there is nothing to ride."""
    began = time.perf_counter()
    key = branch_key(settings.seed, Fingerprint())
    loss, spectrum = jax.device_get(_look(problem, rider, problem.x0, key))
    if not np.isfinite(loss) or not np.isfinite(spectrum.eigenvalues).all():
        what = "loss" if not np.isfinite(loss) else "Hessian"
        raise ValueError(f"the {what} at `start` must be finite, but it is NaN or infinite.")
    if not spectrum.num_downhill():
        raise ValueError(
            "`start` must have negative curvature to ride along, but its least eigenvalue is "
            f"{spectrum.eigenvalues[0]:.3g}; find_saddle(problem) looks for a saddle to start from."
        )
    turns, directions = _rideable(spectrum, settings)
    return Leg(
        fingerprint=Fingerprint(),
        x=np.asarray(problem.x0),
        loss=float(loss),
        num_steps=0,
        ended_by=("start",),
        eigenvalues=spectrum.eigenvalues,
        clusters=spectrum.clusters(),
        num_ridges=spectrum.num_downhill(),
        turns=turns,
        directions=directions,
        trace={},
        cost=spectrum.cost + Cost(values=1, seconds=time.perf_counter() - began),
    )


def ride_batch(problem: Problem, rider: Rider, settings: Settings, branches: list[Branch]) -> list[Leg]:
    """Ride each branch to its end: the unit of work, pure and picklable."""
    return [_ride_branch(problem, rider, settings, branch) for branch in branches]


def branch_key(seed: int, fingerprint: Fingerprint) -> PRNGKeyArray:
    """A key that depends on where a branch is in the tree, never on when it is reached."""
    key = jax.random.key(seed)
    for turn in fingerprint:
        key = jax.random.fold_in(jax.random.fold_in(key, turn.index), 2 * turn.member + (turn.sign > 0))
    return key


def _run(
    problem: Problem,
    rider: Rider,
    settings: Settings,
    order: Order,
    budget: Budget,
    store: Store,
    batch_size: int,
    executor: Executor | None,
    progress: Callable[[Progress], None] | None,
) -> Result:
    tree, done = Search(), Progress()
    for fingerprint in store.fingerprints():
        done.add(store.leg(fingerprint))
    tree.tell(store.open_branches(chosen=False))
    round_number, chosen = store.num_rounds(), store.open_branches(chosen=True)

    while True:
        if not chosen:
            # One round: choose, ride all, and only then look at what came back.
            count = min(settings.round_size, budget.rides_left(done.rides, done.steps, done.cost))
            chosen, round_number = tree.ask(int(count)), round_number + 1
            if not chosen:
                return Result(store, problem, rider)
            store.choose(chosen, round_number)
        found: list[Branch] = []
        branches = [store.load(branch) for branch in chosen]
        batches = [branches[i : i + batch_size] for i in range(0, len(branches), batch_size)]
        for leg in _legs(problem, rider, settings, batches, executor):
            children = branches_at(leg, settings, order)
            store.add(leg, children)
            found += children
            done.add(leg)
            done.open_branches = len(tree) + len(found)
            if progress is not None:
                progress(done)
        tree.tell(found)
        chosen = []


def _legs(
    problem: Problem, rider: Rider, settings: Settings, batches: list[list[Branch]], executor: Executor | None
) -> Iterator[Leg]:
    """Ride the batches, here or in the executor; legs come as they end, in any order."""
    if executor is None:
        for batch in batches:
            yield from ride_batch(problem, rider, settings, batch)
        return
    futures = [executor.submit(ride_batch, problem, rider, settings, batch) for batch in batches]
    for future in as_completed(futures):
        yield from future.result()


def _ride_branch(problem: Problem, rider: Rider, settings: Settings, branch: Branch) -> Leg:
    began = time.perf_counter()
    key = branch_key(settings.seed, branch.fingerprint)
    ridge = Ridge(
        direction=jnp.asarray(branch.direction),
        eigenvalue=jnp.asarray(branch.eigenvalue, problem.dtype),
        index=jnp.asarray(branch.fingerprint[-1].index),
        multiplicity=jnp.asarray(branch.multiplicity),
    )
    ride, ended, spectrum = jax.device_get(_ride_and_look(problem, rider, jnp.asarray(branch.x), ridge, key))
    ended_by = tuple(name for name, yes in zip(rider.rule_names(), ended, strict=True) if yes)
    # A ride that met a NaN ends there and then; its last finite point is kept, but nothing grows from it.
    num_ridges = spectrum.num_downhill() if ride.is_finite else 0
    turns, directions = _rideable(spectrum, settings) if ride.is_finite else ((), spectrum.eigenvectors[:0])
    is_leaf = not num_ridges or settings.is_last(branch.fingerprint)
    finish, cost = None, ride.cost + spectrum.cost
    if rider.finish is not None and ride.is_finite and (is_leaf or settings.finish_at == "leg"):
        finish = jax.device_get(_finish(problem, rider, jnp.asarray(ride.x), key))
        cost = cost + finish.cost
    return Leg(
        fingerprint=branch.fingerprint,
        x=ride.x,
        loss=float(ride.loss),
        num_steps=int(ride.num_steps),
        ended_by=ended_by,
        eigenvalues=spectrum.eigenvalues,
        clusters=spectrum.clusters(),
        num_ridges=num_ridges,
        turns=turns,
        directions=directions,
        trace=_rows(ride),
        cost=cost + Cost(seconds=time.perf_counter() - began),
        finish=finish,
    )


@eqx.filter_jit
def _look(problem: Problem, rider: Rider, x: Vector, key: PRNGKeyArray) -> tuple[Array, Spectrum]:
    return problem.value(x), rider.spectrum(problem, x, key)


@eqx.filter_jit
def _ride_and_look(
    problem: Problem, rider: Rider, x: Vector, ridge: Ridge, key: PRNGKeyArray
) -> tuple[Ride, Bool[Array, " rules"], Spectrum]:
    ride = rider.ride(problem, x, ridge, key)
    return ride, rider.ended(ride), rider.spectrum(problem, ride.x, key)


@eqx.filter_jit
def _finish(problem: Problem, rider: Rider, x: Vector, key: PRNGKeyArray) -> Any:
    assert rider.finish is not None
    return rider.finish(problem, x, key, rider.spectrum)


def _rideable(spectrum: Spectrum, settings: Settings) -> tuple[tuple[tuple[int, int], ...], np.ndarray]:
    """The (index, member) pairs that may be ridden under the settings, and their directions."""
    limit = settings.max_ridges if settings.max_ridges is not None else spectrum.num_downhill()
    turns, rows, first = [], [], 0
    for index, cluster in enumerate(spectrum.clusters()[: min(limit, spectrum.num_downhill())]):
        for member in range(cluster.multiplicity if settings.members == "all" else 1):
            turns.append((index, member))
            rows.append(first + member)
        first += cluster.multiplicity
    return tuple(turns), spectrum.eigenvectors[rows]


def _rows(ride: Ride) -> dict[str, np.ndarray]:
    """The part of the trace that was written."""
    columns = {name: column for name, column in vars(ride.trace).items() if column is not None}
    return {name: column[: int(ride.num_steps) + 1] for name, column in columns.items()}


def _meta(problem: Problem, rider: Rider, settings: Settings, name: str | None) -> dict[str, Any]:
    return {
        "name": name or getattr(problem.loss, "__name__", type(problem.loss).__name__),
        "problem": describe_problem(problem),
        "rider": describe(rider),
        "settings": asdict(settings),
    }


def _check_same_run(stored: dict[str, Any], given: dict[str, Any], path: str | PathLike) -> None:
    for part in ("params", "start", "data"):
        if stored["problem"][part] != given["problem"][part]:
            raise ValueError(f"{path} belongs to another problem: the {part} of the one given differ.")
    if stored["rider"] != given["rider"]:
        raise ValueError(f"{path} was ridden with another `rider`.")


def _check_batch_size(batch_size: int) -> None:
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"`batch_size` must be a whole number of at least 1, not {batch_size!r}.")
