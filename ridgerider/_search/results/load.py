"""Opening a run file: a `Result` for a search, a `Landscape` for a map."""

import contextlib
import os
from typing import Any

from ridgerider._core.problem.problem import Problem
from ridgerider._core.ride.rider import Rider
from ridgerider._search.engine.movers import stored_mover
from ridgerider._search.results.landscape import Landscape
from ridgerider._search.results.result import Result
from ridgerider._search.runfile.problem import check_problem
from ridgerider._search.runfile.read import RunFile


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
