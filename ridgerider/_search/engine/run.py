"""`rr.search`, `rr.resume` and `rr.load`: begin a run, continue it, open it.

Checks, the run file, and then the one loop; the view of a run is a `Result` for a search, a
`Landscape` for a map.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from ridgerider._check import Count, Limit, Seed, came, check_finite, checked, one_line
from ridgerider._core.points.climb import Climb
from ridgerider._core.points.symmetry import Symmetry
from ridgerider._core.problem.calls import measured
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem, check_params, fetch
from ridgerider._core.ride.rider import Rider
from ridgerider._core.runtime.clock import OutOfTime, check_time, limited, now
from ridgerider._core.runtime.compile import seconds_compiling
from ridgerider._search.crew.interrupt import interruptible
from ridgerider._search.crew.lost_workers import Job, check_sendable
from ridgerider._search.engine.climbs import Climbs, Valid, with_starts
from ridgerider._search.engine.loop import Engine, Means, Mover
from ridgerider._search.engine.rides import Rides
from ridgerider._search.results.landscape import Landscape
from ridgerider._search.results.measures import Measures
from ridgerider._search.results.progress import Line, Progress
from ridgerider._search.results.result import Result
from ridgerider._search.runfile.rules_json import (
    check_problem,
    describe,
    describe_problem,
    loaded,
    made_here,
    rebuild,
)
from ridgerider._search.runfile.store import RunFile, Store, check_new, held
from ridgerider._search.same import check_symmetry
from ridgerider._search.tree import (
    Branch,
    Budget,
    Fingerprint,
    Leg,
    Order,
    Settings,
    named_order,
    order_name,
    stored_order,
    with_priority,
)

Same = Literal["same"]
NOT_BEGUN = ("max_seconds",)  # how a start ended that was not evaluated in time


def begin_run(
    problem: Problem | str,
    mover: Mover,
    settings: Settings,
    order: Order,
    budget: Budget,
    means: Means,
    *,
    out: str | PathLike | None = None,
    name: str | None = None,
    valid: Any = None,
    starts: Any = (),
) -> Any:
    """A new run; returns its view, a `Result` or a `Landscape`."""
    if valid is not None and not _is_box(valid) and not callable(valid):
        raise ValueError(
            "`valid` must be callable as valid(params), or be bounds (low, high), not "
            f"{came(valid)}."
        )
    if out is not None:
        check_new(Path(out))
    problem, path = loaded(problem)
    before = now(), seconds_compiling()
    others = [_vector(problem, number, one) for number, one in enumerate(starts)]
    check_sendable(Job(problem, mover, settings, path), means.executor)
    if means.measures:
        means.measures.check(problem)
    spent = Cost()
    if not mover.has_batches:
        # No limit cuts it off: it decides the run.
        problem, spent = interruptible(_measured, problem)
    settings = replace(settings, unit=float(problem.unit))
    job = Job(problem, mover, settings, path)
    name = name or path
    meta = {
        "name": name or getattr(problem.loss, "__name__", type(problem.loss).__name__),
        "made": made_here(name or ""),
        "problem": describe_problem(problem),
        "mover": mover.name,
        "rider": describe(mover.rule),
        "symmetry": describe(mover.symmetry),
        "valid": describe(_plain(valid)),
        "settings": asdict(settings),
        "budget": asdict(budget),
        "starts": [one.tolist() for one in others],
        "bounds": mover.bounds,
    }
    order, guard = mover.ordered(order), guard_of(valid)
    with limited(budget.seconds_left(0.0)), Line(means.verbose and not means.progress) as line:
        root, children = _begin(job, order, others, guard)
        store = Store.create(out, meta, replace(root, cost=root.cost + spent), children)
        with _under_way(store, means.executor, before):
            engine = Engine(job, order, budget, store, means, guard)
            line.done = engine.done
            try:
                engine.run()
            except KeyboardInterrupt:
                if not settings.until_enough:  # it can be resumed, or its file
                    raise
                store.set_meta("is_interrupted", True)
    return view(store, problem, mover)


def _measured(problem: Problem) -> tuple[Problem, Cost]:
    """The problem with its unit of length, and what that cost."""
    began = time.perf_counter()
    try:
        problem, spent = measured(problem)
    except Exception:
        problem.check_deterministic()  # tells what the loss itself raises, without derivatives
        raise
    return problem, replace(spent, seconds=time.perf_counter() - began)


def _begin(
    job: Job, order: Order, starts: list[np.ndarray], valid: Valid | None
) -> tuple[Leg, list[Branch]]:
    """The start of a run and the branches that leave it; none if the time is up before."""
    problem, mover = job.problem, job.mover
    try:
        with problem.ledger() as whole:
            with problem.ledger() as ledger:
                if mover.symmetry is not None:
                    try:
                        check_symmetry(problem, mover.symmetry, job.settings.seed)
                    except ValueError:
                        check_time()  # what is not evaluated in time is NaN
                        raise
            spent = ledger.charge(Cost())
            root = interruptible(mover.begin, problem, job.settings)
    except OutOfTime:
        root = Leg.without_ridges(Fingerprint(), fetch(problem.x0), math.nan, NOT_BEGUN)
        return replace(root, cost=whole.charge(root.cost)), []
    root = replace(root, cost=root.cost + spent)
    if starts:
        root = with_starts(root, starts)
    if valid is not None and not valid(problem, root.x, root.loss):
        raise ValueError("`valid` must hold where the descent from `start` ends, but it does not.")
    children = mover.branches_at(problem, job.settings, root)
    return root, [with_priority(one, order) for one in children]


@checked
def resume(
    path: str | PathLike,
    problem: Problem | str,
    rider: Rider | Climb | None = None,
    *,
    order: Order | str | None = None,
    max_rides: Limit | Same = "same",
    max_steps: Limit | Same = "same",
    max_hvps: Limit | Same = "same",
    max_seconds: Limit | Same = "same",
    max_points: Limit | Same = "same",
    max_calls: Limit | Same = "same",
    symmetry: Symmetry | None = None,
    valid: Any = None,
    executor: Executor | None = None,
    max_deaths: Count = 3,
    progress: Any = None,
    measures: Measures | None = None,
    verbose: bool = True,
) -> Any:
    """Continue a search or a map from its run file, to what it would have become uninterrupted.

    Returns a `Result`, or the `Landscape` of a map.

    The problem must be the one the run began with. The rider (the `Climb` of a map), the symmetry
    and `valid` are rebuilt from the file; pass them again if they contain custom functions, and
    `order` if it is one. Budgets are those of the run unless given, and count from its
    beginning.

    >>> import tempfile, jax.numpy as jnp
    >>> import ridgerider as rr
    >>> problem = rr.Problem(lambda x: jnp.sum(x**4 / 4 - x**2 / 2), jnp.zeros(1))
    >>> path = f"{tempfile.mkdtemp()}/run.sqlite"
    >>> len(rr.search(problem, max_rides=1, out=path))
    1
    >>> len(rr.resume(path, problem, max_rides=2))
    2
    """
    means = Means(executor, max_deaths, progress, measures, verbose)
    limits: dict[str, Any] = {"max_rides": max_rides, "max_steps": max_steps, "max_hvps": max_hvps}
    limits |= {"max_seconds": max_seconds, "max_points": max_points, "max_calls": max_calls}
    problem, source = loaded(problem)
    store, before = Store.open(path, write=True), (now(), seconds_compiling())
    with _under_way(store, executor, before):
        settings, meta = store.settings, store.meta
        given = {key: value for key, value in limits.items() if value != "same"}
        budget = Budget(**{**meta["budget"], **given})
        mover = stored_mover(path, meta, rider, symmetry)
        check_problem(meta, problem, path)
        own = mover.ordered(stored_order(settings.order, settings.seed, order))
        valid = stored_valid(meta, valid)
        problem = problem.with_unit(settings.unit)
        job, guard = Job(problem, mover, settings, source), guard_of(valid)
        check_sendable(job, executor)
        if measures:
            measures.check(problem)
        store.set_meta("budget", asdict(budget))
        root = store.leg(Fingerprint())
        with limited(budget.seconds_left(meta.get("seconds", 0.0))):
            if root.ended_by != NOT_BEGUN:
                _check_loss(problem, mover, root, path)
            else:
                starts = [np.asarray(one, problem.dtype) for one in meta.get("starts", ())]
                begun, children = _begin(job, own, starts, guard)
                store.settle(replace(begun, cost=begun.cost + root.cost), children)
            engine = Engine(job, own, budget, store, means, guard)
            with Line(means.verbose and not means.progress, engine.done):
                engine.run()
    return view(store, problem, mover)


@contextlib.contextmanager
def _under_way(
    store: Store, executor: Executor | None, before: tuple[float, float]
) -> Iterator[None]:
    """Hold the run file, and note the seconds since `before`: of work, and of compilation."""
    with store.closed_on_error(), held(store.path):
        yield
        spent = {"seconds": now() - before[0]}
        if executor is None:  # others compile for themselves
            spent["seconds_compiling"] = seconds_compiling() - before[1]
        for name, seconds in spent.items():
            store.set_meta(name, store.meta.get(name, 0.0) + seconds)
        store.checkpoint()


def _check_loss(problem: Problem, mover: Mover, root: Leg, path: str | PathLike) -> None:
    """Raise if the loss is another one. Not to the last bit: the machine may be another."""
    x = jnp.asarray(root.x)
    tolerance = float(np.finfo(root.x.dtype).eps) ** 0.5
    scale = max(abs(root.loss), float(np.abs(root.eigenvalues).max(initial=0)))
    is_same = abs(float(problem.value(x)) - root.loss) <= tolerance * scale
    index, member = root.turns[0] if root.turns else (0, 0)
    is_mode = bool(root.turns) and member < root.clusters[index].multiplicity
    if is_same and is_mode and not mover.has_batches:
        direction = jnp.asarray(root.directions[0])
        off = problem.hvp(x, direction) - root.clusters[index].eigenvalue * direction
        is_same = float(jnp.linalg.norm(off)) <= 1e-2 * scale * float(jnp.linalg.norm(direction))
    if not is_same:
        what = "the loss or its Hessian differ"
        raise ValueError(f"`path` {path} belongs to another problem: {what}.")


def _vector(problem: Problem, number: int, params: Any) -> np.ndarray:
    """One of `starts` as a vector."""
    check_params(f"starts[{number}]", problem.start, params)
    x = np.asarray(problem.ravel(params)).astype(problem.dtype)
    check_finite(f"`starts[{number}]`", x)
    return x


def _is_box(valid: Any) -> bool:
    return isinstance(valid, tuple | list) and len(valid) == 2


def guard_of(valid: Any) -> Valid | None:
    """`valid` as a function of the vector and its loss, which its own `max_loss` limits."""
    if valid is None:
        return None
    if _is_box(valid):
        low, high = (np.asarray(one) for one in valid)
        return lambda problem, x, loss: bool(np.all((low <= x) & (x <= high)))
    most = getattr(valid, "max_loss", math.inf)
    return lambda problem, x, loss: bool(not loss > most and valid(problem.unravel(jnp.asarray(x))))


def stored_valid(meta: dict[str, Any], valid: Any = None) -> Any:
    """`valid` of a run, from its file or as it is given again."""
    return stored_part("valid", meta["valid"], _plain(valid))


def _plain(valid: Any) -> Any:
    """Bounds as lists, which a run file can hold."""
    return [np.asarray(one).tolist() for one in valid] if _is_box(valid) else valid


KINDS = {"rides": Rider, "climbs": Climb}


def stored_mover(
    path: str | PathLike | None,
    meta: dict[str, Any],
    rule: Rider | Climb | None = None,
    symmetry: Symmetry | None = None,
) -> Rides | Climbs:
    """What a run was made with; parts of the user's own have to be given again."""
    kind = KINDS[meta["mover"]]
    rule = rebuild(meta["rider"]) if rule is None else rule
    check_rule("rider", rule, kind)
    if meta["rider"] != describe(rule):
        raise ValueError(f"{path} was made with another `rider`: pass its rr.{kind.__name__}.")
    symmetry = stored_part("symmetry", meta["symmetry"], symmetry)
    if symmetry is not None:
        check_rule("symmetry", symmetry, Symmetry)
    if isinstance(rule, Rider):
        return Rides(rule, symmetry)
    ends = meta.get("bounds")
    return Climbs(rule, symmetry, None if ends is None else (tuple(ends[0]), tuple(ends[1])))


def stored_part(name: str, stored: Any, given: Any) -> Any:
    """A part of a run, from its file or as it is given again."""
    if given is None:
        try:
            return None if stored is None else rebuild(stored)
        except ValueError:
            raise ValueError(
                f"the run has a custom `{name}`, {one_line(stored)}: pass it again."
            ) from None
    if stored is None or stored != describe(given):
        what = one_line(describe(given))
        raise ValueError(f"`{name}` must be the run's own, {one_line(stored)}, not {what}.")
    return given


def check_rule(name: str, rule: Any, kind: type) -> None:
    if not isinstance(rule, kind):
        what = f"the class {rule.__name__}" if isinstance(rule, type) else repr(rule)
        raise ValueError(
            f"`{name}` must be a {kind.__name__}, such as rr.{kind.__name__}(), not {what}."
        )


def view(store: RunFile, problem: Problem | None, mover: Any) -> Any:
    """What to see a run as: a map as a `Landscape`, any other as a `Result`."""
    kind = Landscape if store.meta["mover"] == "climbs" else Result
    if problem is not None:
        problem = problem.with_unit(store.settings.unit)
    return kind(store, problem, mover)


@checked
def load(
    path: str | os.PathLike, problem: Problem | None = None, rider: Rider | None = None
) -> Any:
    """Open a run file, or the directory that holds one, also while it is still being written.

    Returns the `Result` of a search, or the `Landscape` of a map. Without the `problem`, parameters
    come as one vector and `replay` is not possible. The rider is rebuilt from the file unless it
    has custom rules.

    >>> import tempfile, jax.numpy as jnp
    >>> import ridgerider as rr
    >>> problem = rr.Problem(lambda x: jnp.sum(x**4 / 4 - x**2 / 2), jnp.zeros(1))
    >>> path = f"{tempfile.mkdtemp()}/run.sqlite"
    >>> result = rr.search(problem, out=path, name="one well")
    >>> rr.load(path).name, len(rr.load(path, problem).minima())
    ('one well', 2)
    """
    store, mover = RunFile.open(path), None
    with store.closed_on_error():
        if problem is not None:
            check_problem(store.meta, problem, path)
        with contextlib.suppress(ValueError):  # custom rules: `replay` asks for the rider
            mover = stored_mover(path, store.meta, rider)
        return view(store, problem, mover)


@checked
def search(
    problem: Problem | str,
    rider: Rider = Rider(),
    *,
    order: str | Order = "breadth_first",
    members: Literal["branches", "all", "one"] = "branches",
    branch_at: Literal["end", "saddle"] = "end",
    symmetry: Symmetry | None = None,
    max_ridges: Count | None = None,
    max_depth: Count | None = None,
    max_rides: Limit = 100,
    max_steps: Limit = None,
    max_hvps: Limit = None,
    max_seconds: Limit = None,
    round_size: Count = 1,
    seed: Seed = 0,
    out: str | PathLike | None = None,
    name: str | None = None,
    executor: Executor | None = None,
    max_deaths: Count = 3,
    progress: Callable[[Progress], None] | None = None,
    measures: Measures | None = None,
    verbose: bool = True,
) -> Result:
    """Follow the ridges from `problem.start`, branch where they end, and repeat within the budget.

    - `problem`: a `Problem`, or where to find one, as `module:attribute`. Workers then load it
      themselves, and only its name is sent to them.

    **What is searched** (decides the tree)

    - `order`: which branch comes next: "breadth_first", "depth_first", "best_first",
      "steepest_first", "random", or your own key `order(branch)`, smallest first; `branch.x` is the
      point it leaves, e.g. for a validation loss.
    - `members`: which directions inside a repeated eigenvalue are followed, each both ways.
      "branches": of those that stay ridges (see `Spectrum.branches`) one of each class, as the
      others of a class lead to copies; "all" of them, or, if `rider.spectrum` has a custom
      gauge, of the rows of its basis; "one": the first of these rows.
    - `branch_at`: where the next turns are taken. "end": at the end of a ride, as in the paper, or,
      if no ridge leaves it, at the saddle at which the descent from there ends (`v1+` in a
      fingerprint). "saddle": at that saddle, or, if the descent ends elsewhere, at the end of the
      ride. No point is branched at twice: a leg that ends where another had ended before is linked
      to that (`Leg.linked_to`).
    - `symmetry`: which points are equivalent, e.g. `rr.symmetry.units(...)` for a network.
      Of equivalent branches one is followed; a leg that ends at a copy of a point is linked to it.
    - `max_ridges`: at each point only this many of the most negative eigenvalues. `max_depth`: the
      longest fingerprint, in turns.
    - `round_size`: how many branches are chosen before their results come back; no more workers
      than that are busy.
    - `seed`: every random choice derives from it and from where in the tree it is made.

    **When to stop**: after `max_rides`; after the round in which `max_steps` or `max_hvps`, the sum
    over all legs, was reached; when `max_seconds` have passed, without those of compilation: a leg
    that is cut off is not stored, and `resume` rides it from its beginning. None means no limit.

    **How it is computed** (changes nothing in the result)

    - `executor`: rides the branches of a round; any `concurrent.futures.Executor` that does not
      fork, such as those of `ridgerider.workers`. None rides one by one, here.
    - `max_deaths`: a leg during which this many workers died is stored as failed.
    - `out`: a new run file. Every leg is stored as it ends, and `resume` continues after any
      interruption.
    - `name`: what the problem is called, best as `module:attribute` so that it can be loaded again.
    - `verbose`: without `progress`, a line on a terminal, or in a notebook, tells after two seconds
      how far it is; False, or `RIDGERIDER_QUIET` in the environment, switches it off.
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
    key = named_order(order, seed)
    settings = Settings(
        seed, order_name(order), members, max_ridges, max_depth, round_size, branch_at
    )
    budget = Budget(max_rides, max_steps, max_hvps, max_seconds)
    means = Means(executor, max_deaths, progress, measures, verbose)
    mover = Rides(rider, symmetry)
    return begin_run(problem, mover, settings, key, budget, means, out=out, name=name)
