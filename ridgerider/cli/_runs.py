"""Commands that read runs: show, replay, report, watch, check, compare and export."""

import shlex
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import ridgerider as rr
from ridgerider._check import check_choice
from ridgerider._search.results.export import FORMATS
from ridgerider._search.runfile.write import check_run
from ridgerider._search.runfile.write import repair as repair_run
from ridgerider.cli._options import (
    RUN_FILE,
    Metrics,
    Problem,
    Run,
    Signature,
    Trust,
    measure_run,
    problem_name,
    run_file,
)
from ridgerider.cli._shown import print_leg, print_run, say
from ridgerider.problems import load_problem
from ridgerider.report._watch import LOCAL, Server, Watched

TURNS = "A leg by its turns from the start, as '0+ 1-'"


def show(
    run: Run,
    leg: Annotated[
        str | None, typer.Argument(metavar="[FINGERPRINT]", help=f"{TURNS}: show its steps.")
    ] = None,
    signature: Signature = None,
    metric: Metrics = None,
    problem: Problem = None,
    trust: Trust = False,
) -> None:
    """Show what a run found, or one of its legs."""
    measure_run(run, signature, metric, problem, trust)
    if leg is None:
        print_run(run)
    else:
        print_leg(rr.load(run).leg(leg))


def replay(
    run: Run,
    fingerprint: Annotated[str, typer.Argument(metavar="FINGERPRINT", help=f"{TURNS}.")],
    problem: Problem = None,
    trust: Trust = False,
) -> None:
    """Ride one path of a run again and compare it with what is stored."""
    if not rr.types.Fingerprint.parse(fingerprint):
        raise ValueError(
            "`fingerprint` must name at least one turn, such as '0+', but it is empty."
        )
    result = rr.load(run, load_problem(problem_name(run, problem, trust)))
    known, is_same = set(result.fingerprints()), True
    for leg in result.replay(fingerprint):
        print_leg(leg)
        if leg.fingerprint not in known:
            continue
        stored = result.leg(leg.fingerprint)
        if isinstance(result, rr.Landscape):  # a point that was known before is not polished
            is_equal = np.allclose(leg.x, stored.x, rtol=1e-6, atol=1e-6)
        else:
            is_equal = np.array_equal(leg.x, stored.x)
        is_same = is_same and is_equal
        say(f"{leg.fingerprint}: {'equal to' if is_equal else 'NOT equal to'} the stored leg\n")
    if not is_same:
        raise typer.Exit(1)


def report(
    run: Run,
    out: Annotated[
        Path | None, typer.Option(help="The page to write. Default: report.html beside the run.")
    ] = None,
    signature: Signature = None,
    metric: Metrics = None,
    problem: Problem = None,
    trust: Trust = False,
) -> None:
    """Write a run as one HTML page: its tree, rides, solutions and cost."""
    measure_run(run, signature, metric, problem, trust)
    say(str(rr.report.report(run, out)))


def watch(
    run: Run,
    port: Annotated[
        int, typer.Option(help="The port to listen on; if it is taken, the next one.")
    ] = 8765,
    host: Annotated[
        str,
        typer.Option(
            help="The interface to listen on. Any other than the default shows the run to others."
        ),
    ] = LOCAL[0],
) -> None:
    """Show a run as a page that follows the search while it runs."""
    # A directory may still wait for its run.
    if not run.exists() and not (run.name == RUN_FILE and run.parent.is_dir()):
        raise ValueError(f"`run` must be a run file or its directory, but there is none at {run}.")
    with Server(Watched(run), host, port) as server:
        if host not in LOCAL:
            say(f"{host} is not this machine alone: others can see the run.")
        say(f"watching {run}; stop with Ctrl-C")
        say(server.url)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def check(
    run: Run,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Drop what is damaged, so that `resume` repeats it."),
    ] = False,
) -> None:
    """Compare everything in a run file with its digests, and name the legs that are damaged."""
    num_legs, damaged = check_run(run)
    for what, why in damaged.items():
        say(f"damaged: {what} ({why})")
    if not damaged:
        say(f"{run}: {num_legs} legs, with the start, nothing damaged")
    elif repair:
        dropped, kept = repair_run(run)
        names = ", ".join(name or "the start" for name in dropped) or "none"
        say(
            f"dropped legs: {names}; the damaged file is {kept}; continue with: "
            f"ridgerider resume {shlex.quote(str(run))}"
        )
    else:
        say("--repair drops what is damaged, and `resume` repeats it")
        raise typer.Exit(1)


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", parser=run_file, help="Two or more run files, or their directories."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page to write. Default: compare.html beside the first.")
    ] = None,
    problem: Problem = None,
) -> None:
    """Write several runs as one HTML page: what differs, what is shared, at what cost.

    With --problem, solutions with flat directions and at infinity are compared as a search does.
    """
    loaded = None if problem is None else load_problem(problem)
    say(str(rr.report.compare(runs, out, problem=loaded)))


def export(
    run: Run,
    file_format: Annotated[str, typer.Option("--format", help="csv, json or npz.")] = "csv",
    table: Annotated[
        str,
        typer.Option(
            help="solutions, every end of a descent, of a map all stationary points; minima, the "
            "different ones; or legs, rides and costs (csv and json only)."
        ),
    ] = "solutions",
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file to write, in the format that its name ends in. Default: TABLE.FORMAT "
            "beside the run."
        ),
    ] = None,
) -> None:
    """Write solutions, minima or legs of a run as a table or as arrays.

    A CSV file has a column for each parameter; arrays are named by the leaves of the parameters.
    """
    check_choice("--format", file_format, FORMATS)
    result = rr.load(run)
    if out is None:
        out = run.with_name(f"{table}.{file_format}")
    elif out.is_dir():
        out = out / f"{table}.{file_format}"
    say(str(result.export(out, table=table)))
