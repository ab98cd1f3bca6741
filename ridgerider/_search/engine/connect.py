"""Connect two minima: relax a path between them, and climb from its maxima, until they are joined.

The legs are those of a map: a guess is a jump from the first minimum, and a climb from where it
lands. Saddles that are found are left as in `explore`.
"""

import math
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from ridgerider._check import Count, Limit, checked
from ridgerider._core.points.band import NoPath, aligned, maxima, relaxed
from ridgerider._core.points.climb import Climb
from ridgerider._core.points.symmetry import Symmetry
from ridgerider._core.problem.problem import Problem, check_params
from ridgerider._core.runtime.clock import OutOfTime, check_time, limited, now
from ridgerider._search.crew.lost_workers import Job
from ridgerider._search.engine.climbs import Climbs, host, plan_of, with_starts
from ridgerider._search.engine.explore import explore
from ridgerider._search.engine.loop import Engine, Means
from ridgerider._search.engine.run import guard_of, stored_valid
from ridgerider._search.results.landscape import Landscape
from ridgerider._search.results.progress import Line
from ridgerider._search.runfile.store import Store
from ridgerider._search.tree import Budget, Fingerprint, stored_order, with_priority

NUM_STEPS = 12  # of a path; those of a network, without a Hessian, twice as many
MAX_ROUNDS = 6


@checked
def connect(
    problem: Problem,
    a: Any,
    b: Any,
    climb: Climb = Climb(),
    *,
    symmetry: Symmetry | None = None,
    num_images: Count = 7,
    max_calls: Limit = None,
    max_seconds: Limit = None,
    **settings: Any,
) -> Landscape:
    """What lies between two solutions: the transition states on a path from `a` to `b`.

    Descends from both, relaxes a path between the minima with `num_images` images, climbs from its
    maxima and leaves the saddles; then between minima that are not joined yet, until `a` and `b`
    are, or `max_calls` gradients and Hessian-vector products are used up. Ctrl-C ends it with what
    was found.

    - `a`, `b`: parameters.
    - `max_seconds`: in all; what was found until then is returned.
    - `settings`: others of `rr.explore`.

    Returns a `Landscape`, whose `starts()` are the minima below `a` and `b`.

    >>> import jax.numpy as jnp
    >>> import ridgerider as rr
    >>> def loss(x):
    ...     return (x[0] ** 2 - 1) ** 2 + (x[1] - x[0] ** 2 + 1) ** 2
    >>> problem = rr.Problem(loss, jnp.zeros(2))
    >>> landscape = rr.connect(problem, jnp.array([-0.9, 0.1]), jnp.array([1.1, 0.0]))
    >>> one, two = landscape.starts()
    >>> round(float(landscape.barrier(one, two)), 3)
    1.0
    """
    a, b = (check_params(name, problem.start, one) for name, one in (("a", a), ("b", b)))
    settings |= {"max_rides": 1, "round_size": 1, "share_of_starts": 0.0}  # no climb is begun
    settings |= {"symmetry": symmetry, "starts": [b], "max_seconds": max_seconds}
    began = now()
    first = explore(problem.with_start(a), climb, **settings)
    with limited(math.inf if max_seconds is None else max(0.0, max_seconds - (now() - began))):
        return connected(first, num_images=num_images, max_calls=max_calls)


def connected(
    landscape: Landscape,
    names: tuple[Fingerprint, Fingerprint] | None = None,
    num_images: int = 7,
    max_calls: Limit = None,
) -> Landscape:
    """The map with what lies between two ends of its legs, those of the starts if none are given.

    Copies of one minimum are joined as well: a path leads from one end to the other.
    """
    problem, mover = landscape.problem, landscape._mover
    if problem is None or not isinstance(mover, Climbs):
        raise ValueError("connecting needs the problem: open the file with rr.load(path, problem).")
    store = landscape._store
    if not isinstance(store, Store):
        store = Store.open(str(store.path), write=True)
    if names is None:
        starts = landscape.start_names()
        if len(starts) < 2 or None in landscape.starts()[:2]:
            return landscape
        names = starts[0], starts[1]
    pairs, tried, before = [(names[0], names[1])], set[tuple[int, int]](), _num_calls(store)
    is_double = problem.dtype == np.float64 or bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]
    try:
        for _ in range(MAX_ROUNDS):
            is_spent = max_calls is not None and _num_calls(store) - before >= max_calls
            if not pairs or is_spent:
                break
            points = []
            for one, two in pairs:
                try:
                    with jax.enable_x64(is_double):
                        points += _guesses(problem, mover, store, one, two, num_images)
                except NoPath:
                    if not tried:  # no gap but the whole
                        raise
            if points:
                with jax.enable_x64(is_double):
                    _ride(problem, mover, store, points)
            landscape = Landscape(store, problem, mover)
            ends, minima = [landscape._minimum_at[name] for name in names], landscape.minima()
            gaps = [gap for gap in _gaps(landscape, ends[0], ends[1]) if gap not in tried]
            tried.update(gaps)
            pairs = [(minima[i].fingerprint, minima[j].fingerprint) for i, j in gaps]
    except (KeyboardInterrupt, OutOfTime):
        landscape = Landscape(store, problem, mover)
    return landscape


def _num_calls(store: Store) -> int:
    spent = store.cost()
    return int(spent.values + spent.hvps)


def _gaps(landscape: Landscape, one: int, two: int) -> list[tuple[int, int]]:
    """The nearest minima of parts that are not joined, between those of the two."""
    if one == two or not math.isinf(landscape.barrier(one, two)):
        return []
    parts = [set(part) for part in landscape.components()]
    minima = landscape.minima()
    here, there = (next(part for part in parts if end in part) for end in (one, two))

    def apart(i: int, j: int) -> float:
        one, two = (landscape._legs[minima[end].fingerprint].x for end in (i, j))
        return float(np.linalg.norm(one - two))

    rest = [n for part in parts if part is not here and part is not there for n in part]
    groups = [(here, there), *((here, {n}) for n in rest), *(({n}, there) for n in rest)]
    return [
        min(((i, j) for i in left for j in right), key=lambda pair: apart(*pair))
        for left, right in groups[:3]
    ]


def _guesses(
    problem: Problem, mover: Climbs, store: Store, one: Fingerprint, two: Fingerprint, count: int
) -> list[np.ndarray]:
    """The maxima of a path between the ends of two legs, charged to the start."""
    calls, domain = host(problem, mover)
    legs, plan = [store.leg(name) for name in (one, two)], plan_of(problem, mover)
    try:
        with problem.ledger() as ledger:
            begin, end = legs[0].x, aligned(domain, legs[1].x, legs[0].x)
            hessian = legs[0].hessian
            if hessian is None and plan.has_matrix:
                hessian = calls.hessian(begin)
            steps = NUM_STEPS * (1 if plan.has_matrix else 2)
            between = getattr(problem.loss, "between", np.linspace)
            images = between(begin, end, count + 2)
            return maxima(*relaxed(calls, domain, images, steps, plan.radius, hessian))
    finally:  # also of what was cut off
        root = store.leg(Fingerprint())
        cost = root.cost + ledger.charge(calls.cost)
        store.settle(replace(root, cost=cost), [])


def _ride(problem: Problem, mover: Climbs, store: Store, points: list[np.ndarray]) -> None:
    """Climb from guesses, and leave what was found; nothing else of the map is continued."""
    settings, meta = replace(store.settings, share_of_starts=0.0, until_enough=False), store.meta
    order = mover.ordered(stored_order(settings.order, settings.seed, None))
    root = with_starts(store.leg(Fingerprint()), points, is_guess=True)
    children = mover.branches_at(problem, settings, root)
    store.settle(root, [with_priority(one, order) for one in children])
    job, guard = Job(problem, mover, settings, None), guard_of(stored_valid(meta))
    while count := sum(not one.fingerprint[-1].up for one in store.open_branches()):
        check_time()
        engine = Engine(job, order, Budget(store.num_legs() + count), store, Means(), guard)
        with Line(True, engine.done):
            engine.run()
