"""`rr.search`: ride, branch, repeat, from a saddle."""

from collections.abc import Callable
from concurrent.futures import Executor
from os import PathLike
from typing import Literal

from ridgerider._core.points.symmetry import Symmetry
from ridgerider._core.problem.problem import Problem
from ridgerider._core.ride.rider import Rider
from ridgerider._search.engine.loop import Means
from ridgerider._search.engine.rides import Rides
from ridgerider._search.engine.run import begin_run
from ridgerider._search.results.load import check_rule, check_symmetry_kind
from ridgerider._search.results.measures import Measures
from ridgerider._search.results.progress import Progress
from ridgerider._search.results.result import Result
from ridgerider._search.tree.orders import Order, named_order, order_name
from ridgerider._search.tree.tree import Budget, Settings


def search(
    problem: Problem | str,
    rider: Rider = Rider(),
    *,
    order: str | Order = "breadth_first",
    members: Literal["branches", "all", "one"] = "branches",
    branch_at: Literal["end", "saddle"] = "end",
    symmetry: Symmetry | None = None,
    max_ridges: int | None = None,
    max_depth: int | None = None,
    max_rides: int | None = 100,
    max_steps: int | None = None,
    max_hvps: int | None = None,
    max_seconds: float | None = None,
    round_size: int = 1,
    seed: int = 0,
    out: str | PathLike | None = None,
    name: str | None = None,
    executor: Executor | None = None,
    max_deaths: int = 3,
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
    check_rule("rider", rider, Rider)
    check_symmetry_kind(symmetry)
    mover = Rides(rider, symmetry)
    return begin_run(problem, mover, settings, key, budget, means, out=out, name=name)
