"""`rr.explore`: climb from minima, ride down from saddles, repeat: the map of a landscape."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from os import PathLike
from typing import Any

import numpy as np

from ridgerider._check import Count, Limit, Seed, Share, checked
from ridgerider._core.points.climb import Climb
from ridgerider._core.points.symmetry import Symmetry, periodic
from ridgerider._core.problem.problem import Problem
from ridgerider._search.engine.climbs import Climbs
from ridgerider._search.engine.loop import Means
from ridgerider._search.engine.run import begin_run
from ridgerider._search.engine.starts import bounds_of, periods_of
from ridgerider._search.results.landscape import Landscape
from ridgerider._search.results.measures import Measures
from ridgerider._search.results.progress import Progress
from ridgerider._search.runfile.rules_json import loaded
from ridgerider._search.tree import MAP_ORDERS, Budget, Order, Settings, named_order, order_name


@checked
def explore(
    problem: Problem | str,
    climb: Climb = Climb(),
    *,
    bounds: Any = None,
    period: Any = None,
    share_of_starts: Share | None = None,
    max_rides: Limit = 2000,
    max_points: Limit = None,
    max_calls: Limit = None,
    max_seconds: Limit = None,
    order: str | Order = "fewest_visits",
    starts: list[Any] | tuple[Any, ...] = (),
    symmetry: Symmetry | None = None,
    valid: Callable[[Any], bool] | Sequence[Any] | None = None,
    max_modes: Count | None = None,
    round_size: Count = 64,
    seed: Seed = 0,
    out: str | PathLike | None = None,
    name: str | None = None,
    executor: Executor | None = None,
    max_deaths: Count = 3,
    progress: Callable[[Progress], None] | None = None,
    measures: Measures | None = None,
    verbose: bool = True,
) -> Landscape:
    """Map a landscape: descend from the start, climb from minima, ride down from saddles, repeat.

    - `problem`: a `Problem`, or where to find one, as `module:attribute`; its start may be anywhere
      above a minimum.
    - `climb`: how ridges are climbed.

    **What is explored** (decides the map)

    - `bounds`: pairs (low, high) for each parameter, None for no bound, or `scipy.optimize.Bounds`.
      Climbs and descents slide along faces, and a minimum on a face is one in the sense of Karush,
      Kuhn and Tucker.
    - `period`: of each parameter, or of all, None or 0 where there is none: points are equal
      modulo it, and no bound counts there. In place of `symmetry`.
    - `share_of_starts`: how many of the legs are descents from starts all over the bounds, or
      around the start where there are none: 0 to 1. Default: inside bounds, as starts and climbs
      find new minima, and climbs only once hardly any minimum is missing; else 0.
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

    **When to stop**: after `max_rides` climbs and descents, when `max_seconds` have passed, after
    the round in which `max_points` stationary points were known or `max_calls` evaluations of the
    loss (values and Hessian-vector products) were made, or when no climb from a known point is
    left.

    **How it is computed** (changes nothing in the map): `executor`, `max_deaths`, `out`, `name`,
    `progress`, `measures` and `verbose` are those of `search`; `resume` continues from the run
    file.

    >>> import jax.numpy as jnp
    >>> import ridgerider as rr
    >>> problem = rr.Problem(lambda x: (x[0] ** 2 - 1) ** 2 + x[1] ** 2, jnp.array([0.7, 0.1]))
    >>> landscape = rr.explore(problem)
    >>> len(landscape.minima()), len(landscape.saddles())
    (2, 1)
    >>> round(float(landscape.barrier(0, 1)), 6)
    1.0
    """
    key, ends = named_order(order, seed, MAP_ORDERS), None
    if bounds is not None or period is not None:
        x = np.asarray(loaded(problem)[0].x0)
        low, high = bounds_of(bounds, x.size)
        if not ((low <= x) & (x <= high)).all():
            raise ValueError(f"`start` must be within `bounds`, but it is {x.tolist()}.")
        lengths = periods_of(period, low, high)
        if lengths.any() and symmetry is not None:
            raise ValueError("`symmetry` must be left out where there is a `period`.")
        symmetry = periodic(lengths) if lengths.any() else symmetry
        if bounds is not None or lengths.all():
            ends = tuple(low.tolist()), tuple(high.tolist())
    share = 0.0 if share_of_starts is None and ends is None else share_of_starts
    settings = Settings(
        seed,
        order_name(order),
        max_ridges=max_modes,
        round_size=round_size,
        share_of_starts=share,
    )
    budget = Budget(max_rides, max_seconds=max_seconds, max_points=max_points, max_calls=max_calls)
    means = Means(executor, max_deaths, progress, measures, verbose)
    mover = Climbs(climb, symmetry, ends)
    of_map = {"valid": valid, "starts": starts}
    return begin_run(problem, mover, settings, key, budget, means, out=out, name=name, **of_map)
