"""The command that maps a landscape."""

from typing import Annotated, Any

import typer
from rich.table import Table

import ridgerider as rr
from ridgerider._search.engine.explore import MAP_ORDERS
from ridgerider._search.runfile.locate import load_attribute
from ridgerider.cli._crew import crew
from ridgerider.cli._options import (
    Dask,
    EngineName,
    Lease,
    MetricNames,
    Out,
    Seed,
    SignatureName,
    Workers,
    chosen_measures,
)
from ridgerider.cli._places import new_run
from ridgerider.cli._shown import console, shown_progress
from ridgerider.problems import BUILT_IN
from ridgerider.report._plain import count

SYMMETRIES = {"none": None, "rigid": rr.symmetry.rigid, "point_set": rr.symmetry.point_set}
# What the landscapes of built-in problems are, unless the options say otherwise.
OWN = {
    "atoms": ("point_set", "ridgerider.problems:is_one_cluster"),
    "rastrigin": ("none", "-5.12,5.12"),
}


def explore(
    *,
    problem: Annotated[
        str, typer.Argument(help=f"MODULE:PROBLEM, or one of {', '.join(BUILT_IN)}.")
    ],
    out: Out = None,
    max_rides: Annotated[
        int, typer.Option(help="Stop after this many climbs and descents.")
    ] = 2000,
    max_points: Annotated[
        int | None, typer.Option(help="Stop once this many stationary points are known.")
    ] = None,
    max_modes: Annotated[
        int | None, typer.Option(help="Of each minimum climb only this many of its softest modes.")
    ] = None,
    order: Annotated[str, typer.Option(help=f"{', '.join(MAP_ORDERS)}.")] = "fewest_visits",
    engine: EngineName = "auto",
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
            "Default: what atoms and rastrigin are known for, else none."
        ),
    ] = None,
    seed: Seed = 0,
    signature: SignatureName = None,
    metric: MetricNames = None,
    workers: Workers = None,
    dask: Dask = None,
    lease: Lease = None,
) -> None:
    """Map a landscape: all minima, the transition states between them, and the barriers."""
    climb = rr.Climb(engine=engine)  # type: ignore[arg-type]  # which it checks
    own = OWN.get(problem, ("none", "none"))
    same = _symmetry(own[0] if symmetry is None else symmetry)
    guard = _valid(own[1] if valid is None else valid)
    measures = chosen_measures(signature, metric, problem)
    with (
        crew(workers, dask, lease, 64) as executor,
        new_run(out, problem) as path,
        shown_progress(path, max_rides) as progress,
    ):
        landscape = rr.explore(
            problem,
            climb,
            max_rides=max_rides,
            max_points=max_points,
            max_modes=max_modes,
            order=order,
            symmetry=same,
            valid=guard,
            seed=seed,
            out=path,
            executor=executor,
            progress=progress,
            measures=measures,
        )
    print_map(landscape)
    console.print(f"run file: {path}", soft_wrap=True)


def print_map(landscape: rr.Landscape) -> None:
    """The lowest points and passes, how complete they are, and what it cost."""
    measured = landscape.result.measures()
    table = Table("minimum")
    table.add_column("loss", min_width=12)  # an exponent is never cut off
    for title in ("least eigenvalue", *measured, "found by", "address"):
        table.add_column(title, overflow="fold")
    for number, one in enumerate(landscape.minima()[:20]):
        noted = (_short(name, of.get(one.fingerprint)) for name, of in measured.items())
        row = (str(number), f"{one.loss:.6g}", f"{one.least_eigenvalue:.3g}", *noted)
        found = count(one.multiplicity, "leg", "legs")
        table.add_row(*row, found, str(one.fingerprint) or "start")
    console.print(table)
    passes = Table("transition state", "loss", "between", "address")
    saddles = landscape.saddles()
    for edge in landscape.edges()[:20]:
        ends = " and ".join("-" if end is None else str(end) for end in edge.minima)
        address = str(saddles[edge.saddle].fingerprint)
        passes.add_row(str(edge.saddle), f"{edge.loss:.6g}", ends, address)
    console.print(passes)
    cost = landscape.cost
    console.print(
        f"{count(len(landscape.minima()), 'minimum', 'minima')}, "
        f"{count(len(saddles), 'transition state', 'transition states')}, "
        f"{count(len(landscape.components()), 'component', 'components')}; "
        f"{landscape.completeness()}",
        soft_wrap=True,
    )
    console.print(
        f"cost: {cost.hvps} Hessian-vector products ({cost.hessians} Hessians), "
        f"{cost.gradients} gradients, {cost.values} values, {cost.seconds:.1f} s",
        soft_wrap=True,
    )


def _short(name: str, value: Any) -> str:
    """A measured value in a cell; of a score on examples the mean."""
    if value is None:
        return "-"
    if name != "signature" and isinstance(value, list):
        value = value[0]
    if isinstance(value, float):
        return f"{value:.5g}"
    text = str(value)
    return text if len(text) <= 24 else f"{text[:21]}..."


def _symmetry(name: str) -> rr.Symmetry | None:
    if name in SYMMETRIES:
        make = SYMMETRIES[name]
        return None if make is None else make()
    found: Any = load_attribute(name, "`--symmetry`")
    return found() if callable(found) and not isinstance(found, rr.Symmetry) else found


def _valid(text: str) -> Any:
    if text == "none":
        return None
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        return load_attribute(text, "`--valid`")
    return low, high
