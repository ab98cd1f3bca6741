"""Ride, branch, repeat: the search.

A round chooses branches, rides all of them, here or in an executor, and only then looks at what
came back. Legs are stored as they arrive; what is chosen next depends on whole rounds alone, so
neither the number of workers nor the order of arrival nor an interruption changes the tree.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import asdict, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ridgerider._check import check_callable, check_count, one_line
from ridgerider._core.descend.train import Epoch, listening
from ridgerider._core.points.symmetry import Symmetry
from ridgerider._core.problem.problem import Problem
from ridgerider._core.ride.rider import Rider
from ridgerider._core.runtime.clock import OutOfTime, limited
from ridgerider._core.runtime.compile import seconds_compiling
from ridgerider._search.crew.crew import Crew, check_executor, check_sendable
from ridgerider._search.crew.interrupt import interruptible
from ridgerider._search.crew.job import Job
from ridgerider._search.engine.rides import branches_at, look
from ridgerider._search.results.measures import Measures, measure_missing, measured
from ridgerider._search.results.progress import Progress
from ridgerider._search.results.result import Result
from ridgerider._search.runfile.files import check_new, held
from ridgerider._search.runfile.locate import loaded, made_here
from ridgerider._search.runfile.problem import check_problem, describe_problem
from ridgerider._search.runfile.rules import describe, is_same_rule, rebuild
from ridgerider._search.runfile.schema import REPAIRED
from ridgerider._search.runfile.write import Store
from ridgerider._search.same.branches import Marks, distinct
from ridgerider._search.same.points import Ends, Points
from ridgerider._search.same.symmetry import check_leg, check_symmetry
from ridgerider._search.tree.orders import ORDERS, Order, RandomOrder, named_order, order_name
from ridgerider._search.tree.settings import Budget, Settings
from ridgerider._search.tree.tree import Branch, Fingerprint, Leg, Search

Same = Literal["same"]


def search(
    problem: Problem | str,
    rider: Rider = Rider(),
    *,
    order: str | Order = "breadth_first",
    members: Literal["branches", "all", "rows", "one"] = "branches",
    go_on: Literal["end", "saddle", "both"] = "end",
    symmetry: Symmetry | None = None,
    max_ridges: int | None = None,
    max_depth: int | None = None,
    max_rides: int | None = 100,
    max_steps: int | None = None,
    max_hvps: int | None = None,
    max_seconds: float | None = None,
    finish_at: Literal["leg", "leaf"] = "leg",
    round_size: int = 1,
    asynchronous: bool = False,
    num_lanes: int = 1,
    seed: int = 0,
    out: str | PathLike | None = None,
    name: str | None = None,
    executor: Executor | None = None,
    max_deaths: int = 3,
    progress: Callable[[Progress], None] | None = None,
    measures: Measures | None = None,
) -> Result:
    """Ride the ridges that leave `problem.start`, branch, and repeat until the budget is used up.

    - `problem`: a `Problem`, or where to find one, as `module:attribute`. Workers then load it
      themselves, and only its name is sent to them.

    **What is searched** (decides the tree)

    - `order`: which branch comes next: "breadth_first", "depth_first", "best_first",
      "steepest_first", "random", or your own key `order(branch)`, smallest first; `branch.x` is the
      point it leaves, e.g. for a validation loss.
    - `members`: which directions inside a repeated eigenvalue are ridden, each both ways.
      "branches": of those that stay ridges (see `Spectrum.branches`) one of each class, as the
      others of a class lead to copies; "all" of them; "rows": every row of the basis that the gauge
      of `rider.spectrum` picks; "one": the first of these rows.
    - `go_on`: where the next turns are taken. "end": at the end of a ride, as in the paper, or, if
      no ridge leaves it, at the saddle at which the descent from there ends (`v1+` in an address).
      "saddle": at that saddle, or, if the descent ends elsewhere, at the end of the ride. "both".
      No point is branched at twice: a leg that comes to one where another had come before is linked
      to that (`Leg.linked_to`).
    - `symmetry`: what is the same before it is ridden, e.g. `rr.symmetry.units(...)` for a network.
      Of equal branches one is ridden, and a leg that ends at a copy of a point is linked to it.
    - `max_ridges`: at each point only this many of the most negative eigenvalues. `max_depth`: the
      longest fingerprint, in turns.
    - `finish_at`: run `rider.finish` at the end of every "leg", or only of a "leaf", a leg that
      leads no further.
    - `round_size`: how many branches are chosen before their results come back; no more workers
      than that are busy.
    - `asynchronous`: choose again as soon as one leg is back, with what is known then, so that no
      worker waits for a round to end. Which branches a budget still reaches then depends on the
      order of arrival.
    - `seed`: every random choice derives from it and from where in the tree it is made.

    **When to stop**: after `max_rides`; after the round in which `max_steps` or `max_hvps`, the sum
    over all legs, was reached; at the step at which `max_seconds` have passed, the sum over all
    legs and what the last one took: a leg that is cut off is not stored, and `resume` rides it from
    its beginning. None is no limit.

    **How it is computed** (changes nothing in the result)

    - `executor`: rides the branches of a round; any `concurrent.futures.Executor` that does not
      fork, such as those of `ridgerider.workers`. None rides one by one, here.
    - `max_deaths`: a leg during which this many workers died is stored as failed.
    - `num_lanes`: how many branches are ridden in one compiled program, which takes as many steps
      as the longest ride: for accelerators. Results agree to rounding.
    - `out`: a new run file. Every leg is stored as it ends, and `resume` goes on after any
      interruption.
    - `name`: what the problem is called, best as `module:attribute` so that it can be loaded again.
    - `progress`: called with a `Progress` after every leg, such as `Bar()`, and after every epoch
      of a training (`Train`) that ends one in this process.
    - `measures`: a signature and metrics, noted of each solution as it is found; see `Measures`.

    >>> import jax.numpy as jnp
    >>> import ridgerider as rr
    >>> problem = rr.Problem(lambda x: jnp.sum(x**4 / 4 - x**2 / 2) + x[0] * x[1] / 4, jnp.zeros(2))
    >>> result = rr.search(problem, max_rides=20)
    >>> len(result.minima())
    4
    """
    settings = Settings(
        seed,
        order_name(order),
        members,
        max_ridges,
        max_depth,
        finish_at,
        round_size,
        asynchronous,
        go_on,
    )
    budget = Budget(max_rides, max_steps, max_hvps, max_seconds)
    key = named_order(order, seed)
    _check_crew(executor, num_lanes, max_deaths, progress)
    if out is not None:
        check_new(Path(out))
    problem, path = loaded(problem)
    _check_rider(rider)
    before = seconds_compiling()
    job = Job(problem, rider, settings, num_lanes, path)
    check_sendable(job, executor)
    if measures:
        measures.check(problem)
    if symmetry is not None:
        check_symmetry(problem, symmetry, seed)
    root = interruptible(look, problem, rider, settings)
    meta = _meta(problem, rider, settings, budget, name or path)
    meta["symmetry"] = describe(symmetry)
    first = distinct(problem, symmetry, root, branches_at(root, settings, key))
    store = Store.create(out, meta, root, first)
    with store.closed_on_error(), held(store.path), _compilation(store, executor, before):
        _run(job, key, budget, store, executor, max_deaths, progress, measures, symmetry)
    return Result(store, problem, rider)


def resume(
    path: str | PathLike,
    problem: Problem | str,
    rider: Rider | None = None,
    *,
    order: Order | None = None,
    max_rides: int | Same | None = "same",
    max_steps: int | Same | None = "same",
    max_hvps: int | Same | None = "same",
    max_seconds: float | Same | None = "same",
    num_lanes: int = 1,
    symmetry: Symmetry | None = None,
    valid: Any = None,
    executor: Executor | None = None,
    max_deaths: int = 3,
    progress: Callable[[Progress], None] | None = None,
    measures: Measures | None = None,
) -> Result:
    """Go on with a search from its run file, to the same tree it would have become uninterrupted.

    Hand over the `symmetry`, too, if parts of it are your own.

    The run file of a map is gone on with in the same way, and a `Landscape` is returned; hand over
    what it had as `valid`, unless that was bounds or is part of the library.

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
    _check_crew(executor, num_lanes, max_deaths, progress)
    problem, source = loaded(problem)
    store = Store.open(path, write=True)
    began = seconds_compiling()
    with store.closed_on_error(), held(store.path), _compilation(store, executor, began):
        settings, meta = store.settings, store.meta
        given: dict[str, Any] = {
            "max_rides": max_rides,
            "max_steps": max_steps,
            "max_hvps": max_hvps,
            "max_seconds": max_seconds,
        }
        budget = Budget(
            **{
                name: meta["budget"].get(name) if value == "same" else value
                for name, value in given.items()
            }
        )
        if "map" in meta:
            return _resume_map(
                store,
                problem,
                source,
                rider,
                order,
                valid,
                budget,
                executor,
                max_deaths,
                progress,
                measures,
            )
        rider = rebuild(meta["rider"]) if rider is None else rider
        _check_rider(rider)
        check_problem(meta, problem, path)
        if not is_same_rule(meta["rider"], rider):
            raise ValueError(f"{path} was ridden with another `rider`.")
        key = _order_again(settings, order)
        start = interruptible(look, problem, rider, settings)
        _check_loss(store.leg(Fingerprint()), start, path)
        store.set_meta("budget", asdict(budget))
        job = Job(problem, rider, settings, num_lanes, source)
        check_sendable(job, executor)
        if measures:
            measures.check(problem)
        symmetry = _symmetry_again(meta.get("symmetry"), symmetry)
        if meta.get(REPAIRED):
            _complete(store, settings, key, problem, symmetry)
        _run(job, key, budget, store, executor, max_deaths, progress, measures, symmetry)
    return Result(store, problem, rider)


@contextlib.contextmanager
def _compilation(store: Store, executor: Executor | None, before: float) -> Iterator[None]:
    """Note the seconds that go into compiling, which are among those of the legs that waited."""
    yield
    if executor is None:  # others compile for themselves
        known = store.meta.get("seconds_compiling", 0.0)
        store.set_meta("seconds_compiling", known + seconds_compiling() - before)


def _resume_map(
    store: Store,
    problem: Problem,
    source: str | None,
    rider: Any,
    order: Order | None,
    valid: Any,
    budget: Budget,
    executor: Executor | None,
    max_deaths: int,
    progress: Callable[[Progress], None] | None,
    measures: Measures | None,
) -> Any:
    from ridgerider._search.engine.explore import resume_map  # which imports much of what is here

    return resume_map(
        store,
        problem,
        source,
        climber=rider,
        order=order,
        valid=valid,
        budget=budget,
        executor=executor,
        max_deaths=max_deaths,
        progress=progress,
        measures=measures,
    )


def _symmetry_again(stored: Any, symmetry: Symmetry | None) -> Symmetry | None:
    """The symmetry a run was begun with."""
    if symmetry is None and stored is not None:
        try:
            symmetry = rebuild(stored)
        except ValueError:
            raise ValueError("the run has a symmetry of your own: pass it again.") from None
        if not isinstance(symmetry, Symmetry):
            raise ValueError(f"the run's symmetry must be a Symmetry, not {one_line(symmetry)}.")
        return symmetry
    if symmetry is not None and (stored is None or not is_same_rule(stored, symmetry)):
        raise ValueError("`symmetry` must be the one that the run was begun with.")
    return symmetry


def _run(
    job: Job,
    order: Order,
    budget: Budget,
    store: Store,
    executor: Executor | None,
    max_deaths: int,
    progress: Callable[[Progress], None] | None,
    measures: Measures | None,
    symmetry: Symmetry | None,
) -> None:
    crew = Crew(job, store.load, executor, max_deaths)
    if measures:
        measure_missing(store, measures, job.problem)
    try:
        _ride_all(crew, job, order, budget, store, progress, measures, symmetry)
    finally:  # also when the search is interrupted
        crew.cancel()
    store.checkpoint()


def _ride_all(
    crew: Crew,
    job: Job,
    order: Order,
    budget: Budget,
    store: Store,
    progress: Callable[[Progress], None] | None,
    measures: Measures | None,
    symmetry: Symmetry | None,
) -> None:
    def grow(leg: Leg) -> list[Branch]:
        return distinct(job.problem, symmetry, leg, branches_at(leg, settings, order))

    settings, tree, done = job.settings, Search(), Progress.read(store)
    ends = _known_ends(job.problem, store)
    done.num_minima, done.max_rides = len(ends), budget.max_rides
    round_number, chosen = store.num_rounds(), store.open_branches(chosen=True)
    points = interruptible(Points, job.problem, store, Marks(job.problem, symmetry))
    found = {name: grow(store.leg(name)) for name in store.unsettled()}
    waiting = store.open_branches(chosen=False)
    tree.tell(branch for branch in waiting if branch.fingerprint.parent not in found)
    known = set[Fingerprint]()
    # A round that has begun is ridden whole, also if it was interrupted and is resumed.
    of_a_round = Budget(max_rides=budget.max_rides)

    while True:
        allowed = of_a_round if chosen else budget
        left = allowed.rides_left(done.num_rides, done.num_steps, done.cost) - len(crew)
        room = settings.round_size - len(crew)
        if (not crew and not chosen) or settings.asynchronous:
            settled = interruptible(_settled, found, points, store, round_number)
            tree.tell(branch for branch in settled if branch.fingerprint not in known)
            done.num_open = len(tree) + len(chosen)
            found = {}
        if left > 0 and (room > 0 if settings.asynchronous else not crew):
            if not chosen:
                chosen, round_number = tree.ask(room), round_number + 1
                store.choose(chosen, round_number)
            # A round that the budget cuts short is finished on resume, before anything else is
            # chosen.
            count = int(min(left, len(chosen)))
            crew.send(chosen[:count])
            chosen = chosen[count:]
        if not crew:
            break
        listener = None if progress is None else partial(_tell_training, done, progress)
        try:
            with listening(listener), limited(budget.seconds_left(done.cost)):
                legs = crew.receive()
        except OutOfTime:  # what was under way is ridden from its beginning on resume
            break
        if job.num_lanes > 1:
            done.add_lanes(legs, job.num_lanes)
        for leg in legs:
            check_leg(job.problem, symmetry, leg)
            if leg.finish is not None:
                same = interruptible(ends.add, leg.fingerprint, leg.finish)
                leg = replace(leg, same_as=same)
            children = grow(leg)
            if measures:  # first, so that whoever reads the leg finds them
                has_finish = getattr(job.rider, "finish", None) is not None
                store.set_measures(None, measured(measures, job.problem, leg, has_finish))
            fresh = store.add(leg, children)
            found[leg.fingerprint] = children
            if len(fresh) < len(children):  # a leg that was damaged, and its children were not
                known |= {one.fingerprint for one in children} - {one.fingerprint for one in fresh}
            done.add(leg)
            done.num_minima = len(ends)
            done.num_open = len(tree) + len(chosen) + sum(map(len, found.values()))
            if progress is not None:
                progress(done)


def _tell_training(done: Progress, progress: Callable[[Progress], None], epoch: Epoch) -> None:
    done.training = str(epoch)
    progress(done)


def _complete(
    store: Store, settings: Settings, order: Order, problem: Problem, symmetry: Symmetry | None
) -> None:
    """Bring back the branches that a repair has lost."""
    links = store.links()
    for name in store.fingerprints():
        if name not in links:
            leg = store.leg(name)
            branches = branches_at(leg, settings, order)
            store.complete(distinct(problem, symmetry, leg, branches))
    store.set_meta(REPAIRED, False)


def _settled(
    found: dict[Fingerprint, list[Branch]], points: Points, store: Store, round_number: int
) -> list[Branch]:
    """The branches of legs that came to new points; the other legs are linked.

    Legs are taken in the order of their addresses, so that the order of arrival changes nothing.
    """
    links = {}
    for name in sorted(found, key=lambda name: (name.depth, name.sort_key())):
        other = points.add(store.leg(name)) if found[name] else None
        if other is not None:
            links[name] = other
    if found:
        store.settle(links, round_number)
    return [branch for name in found if name not in links for branch in found[name]]


def _known_ends(problem: Problem, store: Store) -> Ends:
    ends, same = Ends(problem, store.end), store.same()
    for fingerprint, finish in store.finishes():
        if fingerprint not in same:
            ends.keep(fingerprint, finish)
    return ends


def _meta(
    problem: Problem, rider: Rider, settings: Settings, budget: Budget, name: str | None
) -> dict[str, Any]:
    return {
        "name": name or getattr(problem.loss, "__name__", type(problem.loss).__name__),
        "made": made_here(name or ""),
        "problem": describe_problem(problem),
        "rider": describe(rider),
        "settings": asdict(settings),
        "budget": asdict(budget),
    }


def _check_loss(stored: Leg, given: Leg, path: str | PathLike) -> None:
    """Raise if the loss itself is another one. Not to the last bit: the machine may be another."""
    one, two = (np.append(leg.eigenvalues, leg.loss) for leg in (stored, given))
    tolerance = float(np.finfo(one.dtype).eps) ** 0.5
    scale = float(np.abs(one).max())
    if not np.isfinite(scale) or not np.allclose(one, two, rtol=tolerance, atol=tolerance * scale):
        raise ValueError(f"{path} belongs to another problem: the loss or its Hessian differ.")


def _order_again(settings: Settings, order: Order | None) -> Order:
    """The order a run was begun with."""
    if order is not None and not _is_same_order(settings.order, order):
        raise ValueError(
            f"`order` must be the run's own, {settings.order}, not {order_name(order)}."
        )
    if order is not None or settings.order in (*ORDERS, "random"):
        return named_order(order if order is not None else settings.order, settings.seed)
    with contextlib.suppress(ValueError, TypeError):
        rebuilt = rebuild(json.loads(settings.order))
        if isinstance(rebuilt, RandomOrder) or rebuilt in ORDERS.values():
            return rebuilt
    raise ValueError(
        f"the run has an order of your own, {one_line(settings.order)}: pass it again as `order`."
    )


def _is_same_order(stored: str, order: Order) -> bool:
    if order_name(order) == stored:
        return True
    with contextlib.suppress(json.JSONDecodeError):  # only orders with settings are JSON
        return is_same_rule(json.loads(stored), order)
    return False


def _check_rider(rider: Any) -> None:
    if not isinstance(rider, Rider):
        what = f"the class {rider.__name__}" if isinstance(rider, type) else repr(rider)
        raise ValueError(f"`rider` must be a Rider, such as rr.Rider(), not {what}.")


def _check_crew(executor: Executor | None, num_lanes: int, max_deaths: int, progress: Any) -> None:
    if progress is not None:
        check_callable("progress", progress, "progress(done)")
    check_executor(executor)
    check_count("num_lanes", num_lanes)
    check_count("max_deaths", max_deaths)
