"""Commands that ride: search and resume."""

from collections.abc import Iterator
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
import typer

import ridgerider as rr
from ridgerider._check import check_choice
from ridgerider._core.spectra.spectrum import DENSE_BELOW
from ridgerider.cli._crew import crew
from ridgerider.cli._explore import print_map
from ridgerider.cli._options import (
    BUDGET,
    LANES,
    SEARCH,
    Dask,
    EngineName,
    Lease,
    MetricNames,
    Out,
    ProblemName,
    RunPath,
    SignatureName,
    Trust,
    Workers,
    chosen_measures,
    takes,
)
from ridgerider.cli._places import new_run, problem_of, run_file
from ridgerider.cli._shown import console, print_summary, shown_progress
from ridgerider.problems import BUILT_IN, load_problem


@takes(SEARCH)
def search(
    *,
    problem: Annotated[
        str, typer.Argument(help=f"MODULE:PROBLEM, or one of {', '.join(BUILT_IN)}.")
    ],
    out: Out = None,
    engine: EngineName = "auto",
    step_size: Annotated[float, typer.Option(help="The largest step along a ridge.")] = 0.1,
    delta_break: Annotated[
        float, typer.Option(help="Halve a step until its overlap is at least this.")
    ] = 0.95,
    gauge: Annotated[
        str, typer.Option(help="Direction inside a repeated eigenvalue: gradient or random.")
    ] = "gradient",
    signature: SignatureName = None,
    metric: MetricNames = None,
    workers: Workers = None,
    dask: Dask = None,
    lease: Lease = None,
    **of_search: Any,
) -> None:
    """Search a problem for different solutions."""
    measures = chosen_measures(signature, metric, problem)
    rider = _rider(engine, load_problem(problem).size, step_size, delta_break, gauge)
    with (
        crew(workers, dask, lease, of_search["round_size"]) as executor,
        new_run(out, problem) as path,
        shown_progress(path, of_search["max_rides"]) as progress,
    ):
        result = rr.search(
            problem,
            rider,
            out=path,
            executor=executor,
            progress=progress,
            measures=measures,
            **of_search,
        )
    print_summary(result)
    for note in _notes(result):
        console.print(f"note: {note}", soft_wrap=True)
    console.print(f"run file: {path}", soft_wrap=True)


def _notes(result: rr.Result) -> Iterator[str]:
    """What may be other than the user thinks."""
    problem, start = result.problem, result.leg("")
    assert problem is not None
    if problem.dtype == "float32":
        yield "the start is float32, and so was all of the search; a float64 start is more exact"
    norm = float(jnp.linalg.norm(problem.grad(problem.x0)))
    size = max(1.0, float(np.linalg.norm(start.x))) * float(np.abs(start.eigenvalues).max())
    if norm > 0.1 * size:
        yield f"|grad| at the start is {norm:.3g}: it is no saddle; rr.find_saddle finds one"


def _rider(engine: str, size: int, step_size: float, delta_break: float, gauge: str) -> rr.Rider:
    check_choice("engine", engine, ("auto", "dense", "hvp"))
    is_dense = engine == "dense" or (engine == "auto" and size < DENSE_BELOW)
    look = rr.DenseSpectrum if is_dense else rr.BlockSpectrum
    return rr.Rider(
        spectrum=look(gauge=gauge),  # type: ignore[arg-type]  # checked there
        update=rr.Project() if is_dense else rr.Davidson(),
        step=rr.Backtracking(step_size, delta_break),
    )


@takes({**BUDGET, **LANES}, optional=BUDGET)
def resume(
    *,
    run: RunPath,
    problem: ProblemName = None,
    signature: SignatureName = None,
    metric: MetricNames = None,
    trust: Trust = False,
    workers: Workers = None,
    dask: Dask = None,
    lease: Lease = None,
    **of_search: Any,
) -> None:
    """Go on with a search that was interrupted, or further with another budget."""
    path = run_file(run)
    before = rr.load(path)
    name = problem or problem_of(path, trust)
    given = {name: value for name, value in of_search.items() if value is not None}
    max_rides = given.get("max_rides", before.meta["budget"].get("max_rides"))
    with (
        crew(workers, dask, lease, before.settings.round_size) as executor,
        shown_progress(path, max_rides) as progress,
    ):
        result = rr.resume(
            path,
            name,
            executor=executor,
            progress=progress,
            measures=chosen_measures(signature, metric, problem or before.name),
            **given,
        )
    if "map" in before.meta:
        print_map(rr.Landscape.load(path))
    else:
        print_summary(result)
    console.print(f"run file: {path}", soft_wrap=True)
