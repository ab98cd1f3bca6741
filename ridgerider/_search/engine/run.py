"""Begin a run, or resume one: checks, the run file, and then the one loop."""

import contextlib
import math
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from ridgerider._check import check_callable, check_finite
from ridgerider._core.points.climb import Climb
from ridgerider._core.points.symmetry import Symmetry
from ridgerider._core.problem.calls import measured
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem, fetch
from ridgerider._core.ride.rider import Rider
from ridgerider._core.runtime.clock import OutOfTime, limited, now
from ridgerider._core.runtime.compile import seconds_compiling
from ridgerider._search.crew.crew import Job, check_sendable
from ridgerider._search.crew.interrupt import interruptible
from ridgerider._search.engine.climbs import with_starts
from ridgerider._search.engine.loop import Engine, Means, Mover, Valid
from ridgerider._search.results.load import stored_mover, stored_part, view
from ridgerider._search.results.measures import Measures
from ridgerider._search.results.progress import Line
from ridgerider._search.runfile.files import check_new, held
from ridgerider._search.runfile.locate import loaded, made_here
from ridgerider._search.runfile.rules import check_problem, describe, describe_problem
from ridgerider._search.runfile.write import Store
from ridgerider._search.same.symmetry import check_symmetry
from ridgerider._search.tree.orders import Order, stored_order, with_priority
from ridgerider._search.tree.tree import Branch, Budget, Fingerprint, Leg, Settings

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
    check_valid(valid)
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
        with problem.ledger() as ledger:
            if mover.symmetry is not None:
                check_symmetry(problem, mover.symmetry, job.settings.seed)
        (spent,) = ledger.charge([Cost()])
        root = interruptible(mover.begin, problem, job.settings)
    except OutOfTime:
        return Leg.without_ridges(Fingerprint(), fetch(problem.x0), math.nan, NOT_BEGUN), []
    root = replace(root, cost=root.cost + spent)
    if starts:
        root = with_starts(root, starts)
    if valid is not None and not valid(problem, root.x, root.loss):
        raise ValueError("`valid` must hold where the descent from `start` ends, but it does not.")
    children = mover.branches_at(problem, job.settings, root)
    return root, [with_priority(one, order) for one in children]


def resume(
    path: str | PathLike,
    problem: Problem | str,
    rider: Rider | Climb | None = None,
    *,
    order: Order | None = None,
    max_rides: int | Same | None = "same",
    max_steps: int | Same | None = "same",
    max_hvps: int | Same | None = "same",
    max_seconds: float | Same | None = "same",
    max_points: int | Same | None = "same",
    max_calls: int | Same | None = "same",
    symmetry: Symmetry | None = None,
    valid: Any = None,
    executor: Executor | None = None,
    max_deaths: int = 3,
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
        raise ValueError(f"{path} belongs to another problem: the loss or its Hessian differ.")


def _vector(problem: Problem, number: int, params: Any) -> np.ndarray:
    """One of `starts` as a vector."""
    wanted, shapes = (_shapes(tree) for tree in (problem.start, params))
    if shapes != wanted:
        raise ValueError(
            f"`starts[{number}]` must be parameters like the problem's start, {wanted}, not "
            f"{shapes}."
        )
    x = np.asarray(problem.ravel(params)).astype(problem.dtype)
    check_finite(f"`starts[{number}]`", x)
    return x


def _shapes(tree: Any) -> Any:
    return jax.tree.map(np.shape, tree)


def check_valid(valid: Any) -> None:
    if valid is not None and not _is_box(valid):
        check_callable("valid", valid, "valid(params), or be bounds (low, high)")


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
