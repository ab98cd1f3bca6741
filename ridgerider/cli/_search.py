"""Commands that search: search, explore and resume."""

import re
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
import typer

import ridgerider as rr
from ridgerider._check import check_choice, check_count
from ridgerider._core.spectra.spectrum import DENSE_BELOW
from ridgerider._search.runfile.rules import load_attribute
from ridgerider.cli._options import (
    BUDGET,
    EXPLORE,
    LOCAL_CLUSTER,
    SEARCH,
    Dask,
    Engine,
    Metrics,
    NewProblem,
    Out,
    Problem,
    Run,
    Signature,
    Trust,
    Workers,
    chosen_measures,
    new_run,
    problem_name,
    takes,
)
from ridgerider.cli._shown import print_run, say, shown_progress
from ridgerider.problems import load_problem

SYMMETRIES = {"none": lambda: None, "rigid": rr.symmetry.rigid, "point_set": rr.symmetry.point_set}
# What the landscapes of built-in problems are, unless the options say otherwise.
OWN = {
    "atoms": ("point_set", "ridgerider.problems:is_one_cluster"),
    "rastrigin": ("none", "-5.12,5.12"),
}


@contextmanager
def riding(
    place: AbstractContextManager[Path],
    workers: int | None,
    dask: str | None,
    round_size: int,
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A run file, and what every search is handed; afterwards, what was found is shown."""
    executor: AbstractContextManager[Executor | None] = nullcontext()
    if workers is not None:
        check_count("--workers", workers)
    if dask not in (None, LOCAL_CLUSTER) and not re.fullmatch(r"\w+://\S+:\d+", dask):
        raise ValueError(f"`--dask` must be an address such as tcp://host:8786, not {dask!r}.")
    if (workers or dask) and round_size < (workers or 2):
        say(f"no more than {round_size} at once will ride: that is the run's --round-size")
    if dask is not None:
        executor = rr.workers.dask(None if dask == LOCAL_CLUSTER else dask, num_workers=workers)
    elif workers is not None:
        executor = rr.workers.process_pool(workers)
    with executor as riders, place as path, shown_progress(path) as progress:
        yield path, {"executor": riders, "progress": progress}
    print_run(path)
    say(f"run file: {path}")


@takes(rr.search, SEARCH)
def search(
    *,
    problem: NewProblem,
    out: Out = None,
    engine: Engine = "auto",
    step_size: Annotated[float, typer.Option(help="The largest step along a ridge.")] = 0.1,
    signature: Signature = None,
    metric: Metrics = None,
    workers: Workers = None,
    dask: Dask = None,
    **settings: Any,
) -> None:
    """Search a problem for different solutions."""
    measures = chosen_measures(signature, metric, problem)
    check_choice("engine", engine, ("auto", "dense", "hvp"))
    is_small = load_problem(problem).size < DENSE_BELOW
    is_dense = engine == "dense" or (engine == "auto" and is_small)
    rider = rr.Rider(
        spectrum=rr.DenseSpectrum() if is_dense else rr.BlockSpectrum(),
        update=rr.QuasiNewton() if is_dense else rr.Davidson(),
        step=rr.Backtracking(step_size),
    )
    with riding(new_run(out, problem), workers, dask, settings["round_size"]) as (path, shared):
        result = rr.search(problem, rider, out=path, measures=measures, **shared, **settings)
    assert result.problem is not None
    start, norm = result.leg(""), float(jnp.linalg.norm(result.problem.grad(result.problem.x0)))
    if result.problem.dtype == "float32":
        say("note: the start is float32, and so was all of the search; use float64 for accuracy")
    size = max(1.0, float(np.linalg.norm(start.x))) * float(np.abs(start.eigenvalues).max())
    if norm > 0.1 * size:
        say(
            f"note: |grad| at the start is {norm:.3g}: it is not a saddle; rr.find_saddle finds one"
        )


@takes(rr.explore, EXPLORE)
def explore(
    *,
    problem: NewProblem,
    out: Out = None,
    engine: Engine = "auto",
    symmetry: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(SYMMETRIES)} or MODULE:SYMMETRY. Default: point_set for atoms, else "
            "none."
        ),
    ] = None,
    valid: Annotated[
        str | None,
        typer.Option(
            help="MODULE:FUNCTION of what belongs to the landscape, bounds LOW,HIGH, or none. "
            "Default: connected clusters for atoms, bounds for rastrigin, else none."
        ),
    ] = None,
    signature: Signature = None,
    metric: Metrics = None,
    workers: Workers = None,
    dask: Dask = None,
    **settings: Any,
) -> None:
    """Map a landscape: all minima, the transition states between them, and the barriers."""
    climb = rr.Climb(engine=engine)  # type: ignore[arg-type]  # which it checks
    own_symmetry, own_valid = OWN.get(problem, ("none", "none"))
    symmetry, valid = symmetry or own_symmetry, valid or own_valid
    found: Any = SYMMETRIES.get(symmetry) or load_attribute("`--symmetry` must be", symmetry)
    is_made = callable(found) and not isinstance(found, rr.Symmetry)
    settings["symmetry"] = found() if is_made else found
    if re.fullmatch(r"[-+.\de]+,[-+.\de]+", valid):
        low, high = map(float, valid.split(","))
        settings["valid"] = low, high
    elif valid != "none":
        settings["valid"] = load_attribute("`--valid` must be", valid)
    measures = chosen_measures(signature, metric, problem)
    with riding(new_run(out, problem), workers, dask, settings["round_size"]) as (path, shared):
        rr.explore(problem, climb, out=path, measures=measures, **shared, **settings)


@takes(rr.resume, BUDGET)
def resume(
    *,
    run: Run,
    problem: Problem = None,
    signature: Signature = None,
    metric: Metrics = None,
    trust: Trust = False,
    workers: Workers = None,
    dask: Dask = None,
    **settings: Any,
) -> None:
    """Continue a search that was interrupted, or that has another budget now."""
    before = rr.load(run)
    given = {name: value for name, value in settings.items() if value is not None}
    name = problem_name(run, problem, trust)
    measures = chosen_measures(signature, metric, problem or before.name)
    with riding(nullcontext(run), workers, dask, before.settings.round_size) as (_, shared):
        rr.resume(run, name, measures=measures, **shared, **given)
