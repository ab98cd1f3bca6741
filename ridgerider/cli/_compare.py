"""The command that sets runs side by side: compare."""

from pathlib import Path
from typing import Annotated

import typer

import ridgerider as rr
from ridgerider.cli._options import ProblemName
from ridgerider.cli._places import run_file
from ridgerider.cli._shown import console
from ridgerider.problems import load_problem


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Two or more run files, or their directories."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page to write. Default: compare.html beside the first.")
    ] = None,
    problem: ProblemName = None,
) -> None:
    """Write several runs as one HTML page: what differs, what is shared, at what cost.

    With --problem, solutions with flat directions and at infinity are compared as a search does.
    """
    if out is not None and out.is_dir():
        out = out / "compare.html"
    loaded = None if problem is None else load_problem(problem)
    page = rr.report.compare(
        [run_file(run) for run in runs], out, problem=loaded, say=console.print
    )
    console.print(str(page), soft_wrap=True)
