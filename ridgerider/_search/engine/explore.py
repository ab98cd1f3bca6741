"""Climb from minima, ride down from saddles, repeat: the map of a landscape.

As in `search`, a round chooses branches, rides all of them, and only then looks at what came back,
in the order of addresses: neither the number of workers nor the order of arrival nor an
interruption changes the map. A leg that comes to a point where another had come before is linked to
that, and nothing grows from it.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgerider._check import check_callable, check_count
from ridgerider._core.points.climb import Climb
from ridgerider._core.points.symmetry import Symmetry
from ridgerider._core.problem.placement import fetch
from ridgerider._core.problem.problem import Problem
from ridgerider._search.crew.crew import Crew, check_executor, check_sendable
from ridgerider._search.crew.interrupt import interruptible
from ridgerider._search.crew.job import Job
from ridgerider._search.engine.climbs import (
    Climber,
    begin,
    branches_of,
    has_arrived,
    look_at_end,
    with_starts,
)
from ridgerider._search.results.landscape import Landscape
from ridgerider._search.results.measures import Measures, measure_missing, measured
from ridgerider._search.results.progress import Progress
from ridgerider._search.runfile.files import check_new, held
from ridgerider._search.runfile.locate import loaded, made_here
from ridgerider._search.runfile.problem import check_problem, describe_problem
from ridgerider._search.runfile.rules import describe, is_same_rule, rebuild
from ridgerider._search.runfile.write import Store
from ridgerider._search.same.atlas import Atlas
from ridgerider._search.same.symmetry import check_symmetry
from ridgerider._search.tree.orders import ORDERS, Order, order_name
from ridgerider._search.tree.settings import Budget, Settings
from ridgerider._search.tree.tree import Branch, Fingerprint, Leg, Search

ROUND_SIZE = 64
TASK_SIZE = 32  # legs that are sent to a worker together


def lowest_first(branch: Branch) -> Any:
    """Climb from the lowest minimum first, its softest modes first.

    >>> import ridgerider as rr
    >>> rr.lowest_first(rr.Branch(rr.Fingerprint.parse("2^+"), -1.0, 0.5, 1))
    (-1.0, 2)
    """
    return (float(f"{branch.loss:.6g}"), branch.fingerprint[-1].index)


def fewest_visits(branch: Branch) -> Any:
    """Climb from the minimum first that was climbed from least often, along its softest mode.

    Saddles, which climbs led to, are climbed from after all minima.

    >>> import ridgerider as rr
    >>> rr.fewest_visits(rr.Branch(rr.Fingerprint.parse("2^+"), -1.0, 0.5, 1))
    (False, 2, -1.0)
    """
    *before, last = branch.fingerprint
    is_saddle = bool(before) and before[-1].up
    return (is_saddle, last.index, float(f"{branch.loss:.6g}"))


MAP_ORDERS: dict[str, Order] = {
    "fewest_visits": fewest_visits,
    "lowest_first": lowest_first,
    "breadth_first": ORDERS["breadth_first"],
}


def explore(
    problem: Problem | str,
    climb: Climb = Climb(),
    *,
    max_rides: int | None = 2000,
    max_points: int | None = None,
    max_seconds: float | None = None,
    order: str | Order = "fewest_visits",
    starts: Sequence[Any] = (),
    symmetry: Symmetry | None = None,
    valid: Callable[[Any], bool] | Sequence[Any] | None = None,
    max_modes: int | None = None,
    round_size: int = ROUND_SIZE,
    seed: int = 0,
    out: str | PathLike | None = None,
    name: str | None = None,
    executor: Executor | None = None,
    max_deaths: int = 3,
    progress: Callable[[Progress], None] | None = None,
    measures: Measures | None = None,
) -> Landscape:
    """Map a landscape: descend from the start, climb from minima, ride down from saddles, repeat.

    - `problem`: a `Problem`, or where to find one, as `module:attribute`; its start may be anywhere
      above a minimum.
    - `climb`: how ridges are climbed.

    **What is explored** (decides the map)

    - `order`: from which minimum to climb next: "fewest_visits" (of the softest modes that were not
      climbed yet), "lowest_first", "breadth_first", or your own key `order(branch)`, smallest
      first. Saddles are left before anything else is climbed.
    - `starts`: parameters of other places to descend from, besides the problem's own start: your
      own solutions, between which you want to know the barrier, or random points.
    - `symmetry`: what is the same, e.g. `rr.symmetry.point_set()` for equal atoms. Its directions
      are projected out, equal points count once, and of equal ways on one is ridden.
    - `valid`: what belongs to the landscape, a function `valid(params)`, or bounds `(low, high)`. A
      leg that ends elsewhere ends there.
    - `max_modes`: of each minimum climb only this many of the softest modes.
    - `round_size`: how many branches are chosen before their results come back.

    **When to stop**: after `max_rides` climbs and descents, after the round in which `max_points`
    stationary points were known or `max_seconds` spent, or when nothing is left to climb.

    **How it is computed** (changes nothing in the map): `executor`, `max_deaths`, `out`, `name`,
    `progress` and `measures` are those of `search`; `resume` goes on with the run file.

    >>> import jax.numpy as jnp
    >>> import ridgerider as rr
    >>> problem = rr.Problem(lambda x: (x[0] ** 2 - 1) ** 2 + x[1] ** 2, jnp.array([0.7, 0.1]))
    >>> landscape = rr.explore(problem)
    >>> len(landscape.minima()), len(landscape.saddles())
    (2, 1)
    >>> round(float(landscape.barrier(0, 1)), 6)
    1.0
    """
    for what, value in (("max_points", max_points), ("max_modes", max_modes)):
        if value is not None:
            check_count(what, value)
    settings = Settings(
        seed=seed, order=_order_name(order), max_ridges=max_modes, round_size=round_size
    )
    budget = Budget(max_rides=max_rides, max_seconds=max_seconds)
    check_executor(executor)
    check_count("max_deaths", max_deaths)
    guard = _guard(valid)
    if out is not None:
        check_new(Path(out))
    problem, path = loaded(problem)
    if measures:
        measures.check(problem)
    _check_kinds(climb, symmetry)
    if not isinstance(starts, list | tuple):
        raise ValueError(f"`starts` must be a list of parameters, not {type(starts).__name__}.")
    others = [_start(problem, number, one) for number, one in enumerate(starts)]
    climber = Climber(climb, symmetry)
    if symmetry is not None:
        check_symmetry(problem, symmetry, seed)
    job = Job(problem, climber, settings, TASK_SIZE, path)
    check_sendable(job, executor)
    key = _with_descents(_named(order))
    root = with_starts(interruptible(begin, problem, climber, settings), others)
    if guard is not None and not guard(problem, root.x):
        raise ValueError("`valid` must hold where the descent from `start` ends, but it does not.")
    meta = {
        "name": name or path or getattr(problem.loss, "__name__", type(problem.loss).__name__),
        "made": made_here(name or path or ""),
        "problem": describe_problem(problem),
        "rider": describe(climber),
        "settings": asdict(settings),
        "budget": asdict(budget),
        "map": {"max_points": max_points, "valid": _guard_name(valid)},
        "settled": 0,
    }
    store = Store.create(out, meta, root, _branches(root, settings, key))
    with store.closed_on_error(), held(store.path):
        _run(job, key, budget, max_points, guard, store, executor, max_deaths, progress, measures)
    return Landscape(store, problem, climber)


def resume_map(
    store: Store,
    problem: Problem,
    path: str | None,
    *,
    climber: Climber | None = None,
    order: Order | None = None,
    valid: Any = None,
    budget: Budget,
    executor: Executor | None = None,
    max_deaths: int = 3,
    progress: Callable[[Progress], None] | None = None,
    measures: Measures | None = None,
) -> Landscape:
    """Go on with a map, to what it would have become uninterrupted; called by `resume`."""
    meta, settings = store.meta, store.settings
    check_problem(meta, problem, store.path)
    root = store.leg(Fingerprint())
    loss = float(problem.value(jnp.asarray(root.x)))
    if not abs(loss - root.loss) <= 1e-5 * max(1.0, abs(root.loss)):
        raise ValueError(f"{store.path} belongs to another problem: the losses differ.")
    climber = rebuild(meta["rider"]) if climber is None else climber
    if not isinstance(climber, Climber) or not is_same_rule(meta["rider"], climber):
        raise ValueError(f"{store.path} was made with another `rider`: pass its rr.Climber again.")
    valid = _valid_again(meta["map"]["valid"], valid)
    if measures:
        measures.check(problem)
    if order is None and settings.order not in MAP_ORDERS:
        raise ValueError(f"the run has an order of your own, {settings.order}: pass it again.")
    key = _with_descents(_named(settings.order if order is None else order))
    store.set_meta("budget", asdict(budget))
    job = Job(problem, climber, settings, TASK_SIZE, path)
    check_sendable(job, executor)
    most = meta["map"]["max_points"]
    guard = _guard(valid)
    _run(job, key, budget, most, guard, store, executor, max_deaths, progress, measures)
    return Landscape(store, problem, climber)


def _start(problem: Problem, number: int, params: Any) -> np.ndarray:
    """One of `starts` as a vector."""
    wanted, shapes = (_shapes(tree) for tree in (problem.start, params))
    if shapes != wanted:
        raise ValueError(
            f"`starts[{number}]` must be parameters like the problem's start, {wanted}, not "
            f"{shapes}."
        )
    x = fetch(problem.ravel(params)).astype(problem.dtype)
    if not np.isfinite(x).all():
        raise ValueError(f"`starts[{number}]` must be finite, but it has nan or infinity.")
    return x


def _shapes(tree: Any) -> Any:
    return jax.tree.map(np.shape, tree)


Guard = Callable[[Problem, np.ndarray], bool]


def _valid_again(stored: Any, valid: Any) -> Any:
    """What a map was made with as `valid`."""
    if valid is None and stored is not None:
        try:
            return rebuild(stored)
        except ValueError:
            raise ValueError(
                f"the map has a `valid` of your own, {stored}: pass it again."
            ) from None
    if stored != _guard_name(valid):
        raise ValueError(f"`valid` must be the map's own, {stored}, not {_guard_name(valid)}.")
    return valid


def _run(
    job: Job,
    order: Order,
    budget: Budget,
    max_points: int | None,
    guard: Guard | None,
    store: Store,
    executor: Executor | None,
    max_deaths: int,
    progress: Callable[[Progress], None] | None,
    measures: Measures | None,
) -> None:
    crew = Crew(job, store.load, executor, max_deaths)
    if measures:
        measure_missing(store, measures, job.problem)
    explorer = _Explorer(job, order, guard, store, measures)
    try:
        explorer.go_on(crew, budget, max_points, progress)
    finally:  # also when it is interrupted
        crew.cancel()
    store.checkpoint()


class _Explorer:
    """The rounds of a map."""

    def __init__(
        self,
        job: Job,
        order: Order,
        guard: Guard | None,
        store: Store,
        measures: Measures | None,
    ):
        assert isinstance(job.rider, Climber)
        self.job, self.climber, self.order = job, job.rider, order
        self.guard, self.store, self.measures = guard, store, measures
        self.atlas = Atlas(job.problem, self.climber.symmetry, store.end)
        self.tree, self.done = Search(), Progress.read(store)
        self.arrived: dict[Fingerprint, tuple[Leg, np.ndarray]] = {}  # in this round
        self.minima = set[Fingerprint]()
        unsettled = store.unsettled()
        self._read(set(unsettled))
        waiting = store.open_branches(chosen=False)
        self.tree.tell(one for one in waiting if one.fingerprint.parent not in set(unsettled))
        self.done.num_minima = len(self.minima)

    def go_on(
        self,
        crew: Crew,
        budget: Budget,
        max_points: int | None,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        store, done = self.store, self.done
        round_number, chosen = store.num_rounds(), store.open_branches(chosen=True)
        if not chosen:
            self._settle(round_number)
        while True:
            if not chosen:
                left = budget.rides_left(done.num_rides, done.num_steps, done.cost)
                if left <= 0 or (max_points is not None and len(self.atlas) >= max_points):
                    break
                chosen = self.tree.ask(int(min(left, self.job.settings.round_size)))
                if not chosen:
                    break
                round_number += 1
                store.choose(chosen, round_number)
            crew.send(chosen)
            chosen = []
            while crew:
                legs = [self._guarded(leg) for leg in crew.receive()]
                marks = self.atlas.marks(np.stack([leg.x for leg in legs]))
                for leg, mark in zip(legs, marks, strict=True):
                    self._take(leg, mark)
                    if progress is not None:
                        progress(done)
            self._settle(round_number)

    def _guarded(self, leg: Leg) -> Leg:
        if has_arrived(leg) and self.guard is not None and not self.guard(self.job.problem, leg.x):
            return replace(leg, ended_by=("not_valid",))
        return leg

    def _take(self, leg: Leg, mark: np.ndarray) -> None:
        """Store a leg; if it came to a point that is new as far as one can tell, look at that."""
        is_known = not has_arrived(leg) or self.atlas.find(leg, mark) is not None
        if not is_known and not self._is_second(leg, mark):
            leg = look_at_end(self.job.problem, self.climber, leg)
            (mark,) = self.atlas.marks(leg.x[None])
        children = _branches(leg, self.job.settings, self.order)
        if self.measures:  # first, so that whoever reads the leg finds them
            found = measured(self.measures, self.job.problem, leg, has_finish=True)
            self.store.set_measures(None, found)
        self.store.add(leg, children)
        self.done.add(leg)
        self.done.num_open = len(self.tree) + len(children)
        self.done.num_minima = len(self.minima)
        if has_arrived(leg):
            self.arrived[leg.fingerprint] = (replace(leg, trace={}), mark)

    def _is_second(self, leg: Leg, mark: np.ndarray) -> bool:
        """Whether one of this round with an address before this one's came to the same point."""
        before = Atlas(self.job.problem, self.climber.symmetry, self.store.end)
        for name, (other, its_mark) in self.arrived.items():
            if _place(name) < _place(leg.fingerprint) and other.finish is not None:
                before.add(other, its_mark)
        return before.find(leg, mark) is not None

    def _settle(self, round_number: int) -> None:
        """A round is over: new points are kept, legs to known ones are linked to them."""
        links = {}
        new: list[Branch] = []
        for name in sorted(self.arrived, key=_place):
            leg, mark = self.arrived[name]
            known = self.atlas.find(leg, mark)
            if known is not None:
                links[name] = known
            elif leg.finish is not None:
                self._keep(leg, mark)
                new += _branches(leg, self.job.settings, self.order)
        self.arrived = {}
        self.store.settle(links, round_number)
        self.tree.tell(new)
        self.done.num_open, self.done.num_minima = len(self.tree), len(self.minima)

    def _keep(self, leg: Leg, mark: np.ndarray) -> None:
        self.atlas.add(leg, mark)
        if leg.finish is not None and leg.finish.kind == "minimum":
            self.minima.add(leg.fingerprint)

    def _read(self, unsettled: set[Fingerprint]) -> None:
        """What is known already."""
        links = self.store.links()
        for name in self.store.fingerprints():
            if name in links:
                continue
            leg = self.store.leg(name)
            if not has_arrived(leg):
                continue
            (mark,) = self.atlas.marks(leg.x[None])
            if name in unsettled:
                self.arrived[name] = (leg, mark)
            elif leg.finish is not None:
                self._keep(leg, mark)


def _place(name: Fingerprint) -> tuple[int, bytes]:
    return name.depth, name.sort_key()


def _branches(leg: Leg, settings: Settings, order: Order) -> list[Branch]:
    branches = branches_of(leg, order)
    if settings.max_ridges is None:
        return branches
    return [
        one
        for one in branches
        if not one.fingerprint[-1].up or one.fingerprint[-1].index < settings.max_ridges
    ]


class _with_descents:
    """An order in which saddles are left before anything is climbed."""

    def __init__(self, order: Order):
        self.order = order

    def __call__(self, branch: Branch) -> Any:
        if not branch.fingerprint[-1].up:
            return (0, ())
        key = self.order(branch)
        return (1, key if isinstance(key, tuple) else (key,))


def _named(order: str | Order) -> Order:
    if callable(order):
        return order
    if order not in MAP_ORDERS:
        raise ValueError(
            f"`order` must be one of {', '.join(MAP_ORDERS)} or a callable order(branch), "
            f"not {order!r}."
        )
    return MAP_ORDERS[order]


def _order_name(order: str | Order) -> str:
    for name, known in MAP_ORDERS.items():
        if order in (name, known):
            return name
    if not callable(order):
        _named(order)
    return order_name(order)


def _check_kinds(climb: Any, symmetry: Any) -> None:
    if not isinstance(climb, Climb):
        raise ValueError(f"`climb` must be a Climb, such as rr.Climb(), not {climb!r}.")
    if symmetry is not None and not isinstance(symmetry, Symmetry):
        raise ValueError(
            "`symmetry` must be a Symmetry, such as rr.symmetry.point_set(), or None, not "
            f"{symmetry!r}."
        )


def _guard(valid: Any) -> Guard | None:
    """`valid` as a function of the vector."""
    if valid is None:
        return None
    if isinstance(valid, tuple | list) and len(valid) == 2:
        low, high = (np.asarray(one) for one in valid)
        return lambda problem, x: bool(np.all((low <= x) & (x <= high)))
    check_callable("valid", valid, "valid(params), or be bounds (low, high)")
    return lambda problem, x: bool(valid(problem.unravel(jnp.asarray(x))))


def _guard_name(valid: Any) -> Any:
    if valid is None or isinstance(valid, tuple | list):
        return None if valid is None else [np.asarray(one).tolist() for one in valid]
    return describe(valid)
