"""Commands that read a run: show, replay, report, watch."""

import shlex
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import ridgerider as rr
from ridgerider._check import one_line
from ridgerider._search.runfile.locate import OURS
from ridgerider._search.runfile.repair import check_run
from ridgerider._search.runfile.repair import repair as repair_run
from ridgerider.cli._explore import print_map
from ridgerider.cli._options import (
    LegName,
    MetricNames,
    ProblemName,
    RunPath,
    SignatureName,
    Trust,
    measure_run,
)
from ridgerider.cli._places import problem_of, run_file
from ridgerider.cli._shown import console, print_leg, print_summary
from ridgerider.problems import load_problem
from ridgerider.report._read import NO_DIGESTS
from ridgerider.report._watch import LOCAL, Server, Watched


def _say_version(is_asked: bool) -> None:
    if is_asked:
        console.print(f"ridgerider {version('ridgerider')}")
        raise typer.Exit()


def about(
    is_version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Say which it is."),
    ] = False,
) -> None:
    """Options of the command as a whole."""


def show(
    run: RunPath,
    leg: Annotated[
        str | None,
        typer.Argument(
            metavar="[FINGERPRINT]", help="Show this leg, step by step: its turns, as '0+ 1-'."
        ),
    ] = None,
    signature: SignatureName = None,
    metric: MetricNames = None,
    problem: ProblemName = None,
) -> None:
    """Show what a run found, or one of its legs."""
    path = run_file(run)
    measure_run(path, signature, metric, problem)
    result = rr.load(path)
    if leg is None and "map" in result.meta:
        print_map(rr.Landscape.load(path))
    elif leg is None:
        print_summary(result)
        if not result.has_digests:
            console.print(NO_DIGESTS, soft_wrap=True)
    else:
        print_leg(result.leg(leg))


def replay(
    run: RunPath, fingerprint: LegName, problem: ProblemName = None, trust: Trust = False
) -> None:
    """Ride one path of a run again and compare it with what is stored."""
    path = run_file(run)
    if not rr.Fingerprint.parse(fingerprint):
        raise ValueError(
            "`fingerprint` must name at least one turn, such as '0+', but it is empty."
        )
    result = rr.load(path, load_problem(problem or problem_of(path, trust)))
    known, is_same = set(map(str, result.fingerprints())), True
    for leg in result.replay(fingerprint):
        print_leg(leg)
        name = str(leg.fingerprint)
        if name in known:
            same = _is_equal(leg, result.leg(name), "map" in result.meta)
            is_same = is_same and same
            console.print(f"{name}: {'equal to' if same else 'NOT equal to'} the stored leg\n")
    if not is_same:
        raise typer.Exit(1)


def _is_equal(one: rr.Leg, two: rr.Leg, is_map: bool) -> bool:
    """To the last bit; of a map to 1e-6: a point that was known before is not polished."""
    if is_map:
        return bool(np.allclose(one.x, two.x, rtol=1e-6, atol=1e-6))
    return bool((one.x == two.x).all())


def report(
    run: RunPath,
    out: Annotated[
        Path | None, typer.Option(help="The page to write. Default: report.html beside the run.")
    ] = None,
    rides: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--landscape",
            metavar="RIDE RIDE",
            help="Two rides, such as '0+' '1+': adds the loss in their plane.",
        ),
    ] = None,
    signature: SignatureName = None,
    metric: MetricNames = None,
    problem: ProblemName = None,
) -> None:
    """Write a run as one HTML page: its tree, rides, solutions and cost."""
    path = run_file(run)
    measure_run(path, signature, metric, problem)
    if out is not None and out.is_dir():
        out = out / "report.html"
    loaded = load_problem(problem or _built_in(path)) if problem or rides else None
    scenes = [rides] if rides else []
    page = rr.report.report(path, out, problem=loaded, landscapes=scenes, say=console.print)
    console.print(str(page), soft_wrap=True)


def _built_in(path: Path) -> str:
    name = rr.load(path).name
    if name not in OURS:
        raise ValueError(
            f"`--landscape` needs the problem, {one_line(name)!r}, and a report imports nothing "
            "that a run file names: say --problem MODULE:NAME."
        )
    return name


def check(
    run: RunPath,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Drop what is damaged, so that `resume` rides it again."),
    ] = False,
) -> None:
    """Compare everything in a run file with its digests, and name the legs that are damaged."""
    path = run_file(run)
    num_legs, has_digests, damaged = check_run(path)
    for what, why in damaged.items():
        console.print(f"damaged: {what} ({why})", soft_wrap=True)
    if not has_digests:
        console.print(NO_DIGESTS, soft_wrap=True)
    if not damaged:
        console.print(f"{path}: {num_legs} legs, with the start, nothing damaged", soft_wrap=True)
    elif repair:
        dropped, kept = repair_run(path)
        names = ", ".join(name or "the start" for name in dropped) or "none"
        console.print(
            f"dropped legs: {names}; the damaged file is {kept}; go on with: "
            f"ridgerider resume {shlex.quote(str(path))}",
            soft_wrap=True,
        )
    else:
        console.print("--repair drops what is damaged, and `resume` rides it again")
        raise typer.Exit(1)


def watch(
    run: RunPath,
    port: Annotated[int, typer.Option(help="Where to listen; if taken, at the next.")] = 8765,
    host: Annotated[
        str,
        typer.Option(help="The interface to listen on. Any but this one shows the run to others."),
    ] = "127.0.0.1",
    signature: SignatureName = None,
    metric: MetricNames = None,
    problem: ProblemName = None,
    trust: Trust = False,
) -> None:
    """Show a run as a page that follows the search while it runs."""
    path = run_file(run)
    if not run.exists():  # a directory may still wait for its run
        raise ValueError(f"`run` must be a run file or its directory, but there is none at {run}.")

    def load() -> rr.Result:
        return rr.load(path, load_problem(problem or problem_of(path, trust)))

    def measure() -> None:
        measure_run(path, signature, metric, problem)

    if path.exists():
        measure()
    with Server(
        Watched(path, load, measure if signature or metric else None), host, port
    ) as server:
        if host not in LOCAL:
            console.print(f"{host} is not this machine alone: others can see the run.")
        console.print(f"watching {path}; stop with Ctrl-C", soft_wrap=True)
        console.print(server.url, soft_wrap=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
