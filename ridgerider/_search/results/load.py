"""Opening a run file: a `Result` for a search, a `Landscape` for a map.

The mover of a run, from its run file.
"""

import contextlib
import os
from os import PathLike
from typing import Any

from ridgerider._check import one_line
from ridgerider._core.points.climb import Climb
from ridgerider._core.points.symmetry import Symmetry
from ridgerider._core.problem.problem import Problem
from ridgerider._core.ride.rider import Rider
from ridgerider._search.engine.climbs import Climbs
from ridgerider._search.engine.rides import Rides
from ridgerider._search.results.landscape import Landscape
from ridgerider._search.results.result import Result
from ridgerider._search.runfile.read import RunFile
from ridgerider._search.runfile.rules import check_problem, describe, rebuild

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
    check_symmetry_kind(symmetry)
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


def check_symmetry_kind(symmetry: Any) -> None:
    if symmetry is not None and not isinstance(symmetry, Symmetry):
        raise ValueError(
            "`symmetry` must be a Symmetry, such as rr.symmetry.point_set(), or None, not "
            f"{one_line(symmetry)}."
        )


def view(store: RunFile, problem: Problem | None, mover: Any) -> Any:
    """What to see a run as: a map as a `Landscape`, any other as a `Result`."""
    kind = Landscape if store.meta["mover"] == "climbs" else Result
    if problem is not None:
        problem = problem.with_unit(store.settings.unit)
    return kind(store, problem, mover)


def load(
    path: str | os.PathLike, problem: Problem | None = None, rider: Rider | None = None
) -> Any:
    """Open a run file, also while it is still being written.

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
    if not isinstance(problem, Problem | None):
        raise ValueError(f"`problem` must be a Problem or None, not {type(problem).__name__}.")
    store, mover = RunFile.open(path), None
    with store.closed_on_error():
        if problem is not None:
            check_problem(store.meta, problem, path)
        with contextlib.suppress(ValueError):  # custom rules: `replay` asks for the rider
            mover = stored_mover(path, store.meta, rider)
        return view(store, problem, mover)
