"""Options that commands share. Those of `rr.search` take their defaults from there."""

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import ridgerider as rr
from ridgerider._core.spectra.spectrum import DENSE_BELOW
from ridgerider._search.runfile.locate import load_function, own_measures
from ridgerider.problems import BUILT_IN, load_problem

Out = Annotated[
    Path | None, typer.Option(help="Directory to write to. Default: a new one under runs/.")
]
Seed = Annotated[int, typer.Option(help="Every random choice derives from it.")]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="dense Hessians, hvp (Hessian-vector products only), or auto: dense below "
        f"{DENSE_BELOW} parameters.",
    ),
]
RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run file, or the directory that holds it.")
]
ProblemName = Annotated[
    str | None, typer.Option("--problem", help="Where the problem is now, as MODULE:PROBLEM.")
]
LegName = Annotated[
    str,
    typer.Argument(metavar="FINGERPRINT", help="A leg by its turns from the start, as '0+ 1-'."),
]
SignatureName = Annotated[
    str | None,
    typer.Option(
        "--signature",
        metavar="MODULE:FUNCTION",
        help="What a solution does, from its parameters: those that do the same are one.",
    ),
]
MetricNames = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        metavar="NAME=MODULE:FUNCTION",
        help="A number for each solution, such as accuracy=mine:accuracy. May be given again.",
    ),
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Import and run the module that the run file names.")
]
Workers = Annotated[
    int | None,
    typer.Option(help="Ride in this many processes. With --dask: of its local cluster."),
]
Dask = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS]",
        help="Ride on the Dask cluster whose scheduler is at ADDRESS, such as tcp://host:8786; "
        "without an address, on a local one.",
    ),
]
Lease = Annotated[
    float | None, typer.Option(help="Replace a worker that takes more seconds than this for a leg.")
]

BUDGET: dict[str, tuple[Any, str]] = {
    "max_rides": (int | None, "Stop after this many rides."),
    "max_steps": (int | None, "Stop after this many steps."),
    "max_hvps": (int | None, "Stop after this many Hessian-vector products."),
    "max_seconds": (float | None, "Stop after this many seconds of riding."),
}
LANES: dict[str, tuple[Any, str]] = {
    "num_lanes": (int, "Rides in one compiled program, for accelerators; best 1 on CPUs.")
}
TREE: dict[str, tuple[Any, str]] = {
    "order": (str, "breadth_first, depth_first, best_first, steepest_first or random."),
    "members": (
        str,
        "Inside a repeated eigenvalue ride `branches`, one of each class, `all` of them, or `one`.",
    ),
    "go_on": (str, "Take the next turns at the `end` of a ride, or at the `saddle` below it."),
    "max_ridges": (int | None, "At each point only this many of the most negative eigenvalues."),
    "max_depth": (int | None, "The longest fingerprint, in turns."),
    "round_size": (int, "Branches chosen before their results come back: at most as many ride."),
    "seed": (int, "Every random choice derives from it."),
}
FLAGS = {"num_lanes": ["--lanes"]}  # of those that are not called as the argument is
SEARCH = {**TREE, **BUDGET, **LANES}


def chosen_measures(
    signature: str | None, metrics: list[str] | None, problem: str | None = None
) -> rr.Measures | None:
    """The signature and metrics that options name, on top of those that the problem brings."""
    own = own_measures(problem or "") or rr.Measures()
    named = {}
    for one in metrics or []:
        name, _, where = one.partition("=")
        if not name.strip() or not where:
            raise ValueError(
                f"`--metric` must be NAME=MODULE:FUNCTION, such as accuracy=mine:accuracy, "
                f"not {one!r}."
            )
        named[name] = load_function("--metric", where)
    if signature is None:
        found = replace(own, metrics={**own.metrics, **named})
    else:
        found = rr.Measures(load_function("--signature", signature), {**own.metrics, **named})
    return found or None


def measure_run(
    path: Path, signature: str | None, metrics: list[str] | None, problem: str | None
) -> None:
    """Measure what the options ask for, and store it with the run."""
    if signature is None and not metrics:
        return
    name = problem or rr.load(path).name
    if problem is None and name not in BUILT_IN:  # nothing that a file names is imported
        raise ValueError(
            "`--signature` and `--metric` need the problem: say where it is with --problem "
            "MODULE:PROBLEM."
        )
    measures = chosen_measures(signature, metrics)
    assert measures is not None
    rr.measure(path, measures, load_problem(name))


def takes(
    options: dict[str, tuple[Any, str]], *, optional: Iterable[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options of `rr.search`, which it gets as keywords, under their own names.

    Those that are `optional` are None unless they are given.
    """
    of_search = inspect.signature(rr.search).parameters

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        added = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None if name in optional else of_search[name].default,
                annotation=Annotated[kind, typer.Option(*FLAGS.get(name, ()), help=text)],
            )
            for name, (kind, text) in options.items()
        ]
        own = [
            parameter
            for parameter in inspect.signature(command).parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]

        @functools.wraps(command)
        def called(**given: Any) -> None:
            command(**given)

        called.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in (*own, *added)}
        return called

    return decorate
