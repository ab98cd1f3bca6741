"""Options, each declared once, and where new runs are written.

The options of `rr.search` and `rr.explore` have their defaults there.
"""

import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import ridgerider as rr
from ridgerider._core.spectra.spectrum import DENSE_BELOW
from ridgerider._search.runfile.rules_json import load_attribute, name_to_load, own_measures
from ridgerider._search.runfile.store import RUN_FILE as RUN_FILE
from ridgerider._search.runfile.store import run_file
from ridgerider._search.tree import MAP_ORDERS, SEARCH_ORDERS
from ridgerider.cli._errors import frames_of_user
from ridgerider.problems import BUILT_IN

LOCAL_CLUSTER = "local"  # of --dask


Out = Annotated[
    Path | None, typer.Option(help="Directory to write to. Default: a new one under runs/.")
]
Seed = Annotated[
    int, typer.Option(min=0, max=2**31 - 1, help="Every random choice derives from it.")
]
Engine = Annotated[
    str,
    typer.Option(
        help="dense Hessians, hvp (Hessian-vector products only), or auto: dense below "
        f"{DENSE_BELOW} parameters.",
    ),
]
NewProblem = Annotated[
    str, typer.Argument(help=f"MODULE:PROBLEM, or one of {', '.join(BUILT_IN)}.")
]
Problem = Annotated[
    str | None,
    typer.Option(help="The problem, as MODULE:PROBLEM, if the run file does not name it."),
]
Run = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", parser=run_file, help="A run file, or the directory that holds it."
    ),
]
Signature = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:FUNCTION",
        help="Function of the parameters that is equal for equivalent solutions.",
    ),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=MODULE:FUNCTION",
        help="A number for each solution, such as accuracy=mine:accuracy. May be given again.",
    ),
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Import and run the module that the run file names.")
]
Workers = Annotated[
    int | None,
    typer.Option(help="Number of processes; with --dask local, of its workers."),
]
Dask = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Use the Dask cluster whose scheduler is at ADDRESS, such as tcp://host:8786, or a "
        "`local` one.",
    ),
]

# Arguments of `rr.search`, `rr.explore` and `rr.resume` under their own names.
ARGUMENTS: dict[str, tuple[Any, str]] = {
    "order": (
        str,
        f"Which branch is next. For a search: {', '.join(SEARCH_ORDERS)}; for a map: "
        f"{', '.join(MAP_ORDERS)}.",
    ),
    "members": (
        str,
        "Directions inside a repeated eigenvalue: `branches` (one of each class), `all`, or `one`.",
    ),
    "branch_at": (str, "Branch at the `end` of a ride, or at the `saddle` below it."),
    "max_ridges": (
        int | None,
        "Follow at most this many of the most negative eigenvalues at each point.",
    ),
    "max_depth": (int | None, "The largest number of turns in a fingerprint."),
    "max_modes": (int | None, "Climb at most this many of the softest modes of each minimum."),
    "max_points": (int | None, "Stop once this many stationary points are known."),
    "max_rides": (int | None, "Stop after this many rides (for a map: climbs and descents)."),
    "max_steps": (int | None, "Stop after this many steps."),
    "max_hvps": (int | None, "Stop after this many Hessian-vector products."),
    "max_seconds": (float | None, "Stop after this many seconds, not counting compilation."),
    "round_size": (int, "How many branches are chosen before their results are known."),
    "seed": (int, "Every random choice derives from it."),
}
BUDGET = ("max_rides", "max_steps", "max_hvps", "max_seconds")
SEARCH = (
    *("order", "members", "branch_at", "max_ridges", "max_depth", *BUDGET),
    *("round_size", "seed"),
)
EXPLORE = ("order", "max_modes", "max_points", "max_rides", "max_seconds", "round_size", "seed")


def takes(
    function: Callable[..., Any], names: Iterable[str]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command arguments of `function` as options, which it gets as keywords.

    The default "same" of `rr.resume` is None here.
    """
    known = inspect.signature(function).parameters

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        *own, _ = inspect.signature(command).parameters.values()
        for name in names:
            kind, text = ARGUMENTS[name]
            default = None if known[name].default == "same" else known[name].default
            option: Any = {"default": default}
            option["annotation"] = Annotated[kind, typer.Option(help=text)]
            own.append(own[0].replace(name=name, **option))
        command.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in own}
        return command

    return decorate


def problem_name(path: Path, problem: str | None, trust: bool) -> str:
    """As the user names it, or as the run file does if that may be loaded."""
    return problem or name_to_load(rr.load(path).meta, path, trust=trust)


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
        named[name] = load_attribute("`--metric` must be", where)
    found = replace(own, metrics={**own.metrics, **named})
    if signature is not None:
        found = rr.Measures(load_attribute("`--signature` must be", signature), found.metrics)
    return found or None


class Command(TyperCommand):
    """A command whose errors name an option as it is typed, where a function names its argument."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ValueError as error:
            found = re.match(r"`(\w+)`", str(error))
            if found is not None and not frames_of_user(error):
                for one in self.params:
                    if one.name == found[1] and one.param_type_name == "option":
                        error.args = (f"`{one.opts[0]}`{str(error)[found.end() :]}",)
            raise


def directory_for(out: Path | None, name: str) -> Path:
    """Where to write: as asked for, or the first of runs/name, runs/name-2, ... that is free."""
    if out is not None:
        if out.exists() and not out.is_dir():
            raise ValueError(f"`--out` must be a directory, but {out} is a file.")
        return out
    ends = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    places = (Path("runs") / f"{name}{end}" for end in ends)
    return next(place for place in places if not place.exists())


@contextmanager
def new_run(out: Path | None, name: str) -> Iterator[Path]:
    """The path of a new run file; directories made for it go again if nothing came of it."""
    directory = directory_for(out, name.replace(":", "-"))
    if (directory / RUN_FILE).exists():
        raise ValueError(
            f"`--out` holds a run already: resume {directory} or choose another directory."
        )
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    try:
        yield directory / RUN_FILE
    finally:
        for path in missing:
            if not any(path.iterdir()):
                path.rmdir()
