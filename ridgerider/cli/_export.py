"""The command that takes the tables of a run elsewhere: export."""

from pathlib import Path
from typing import Annotated

import typer

import ridgerider as rr
from ridgerider._check import check_choice
from ridgerider._search.results.result import FORMATS
from ridgerider.cli._options import RunPath
from ridgerider.cli._places import run_file
from ridgerider.cli._shown import console


def export(
    run: RunPath,
    file_format: Annotated[
        str, typer.Option("--format", help="csv, json, npz or safetensors.")
    ] = "csv",
    table: Annotated[
        str,
        typer.Option(
            help="solutions, every end of a descent, of a map all stationary points; minima, the "
            "different ones; or legs, rides and costs (csv and json only)."
        ),
    ] = "solutions",
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write. Default: TABLE.FORMAT beside the run."),
    ] = None,
) -> None:
    """Write solutions, minima or legs of a run as a table or as arrays.

    A CSV file has a column for each parameter; arrays are named by the leaves of the parameters.
    """
    check_choice("--format", file_format, FORMATS)
    path = run_file(run)
    result = rr.load(path)
    tables = rr.Landscape.load(path) if "map" in result.meta else result
    if out is None:
        out = path.with_name(f"{table}.{file_format}")
    elif out.is_dir():
        out = out / f"{table}.{file_format}"
    elif out.suffix != f".{file_format}":
        raise ValueError(f"`--out` must end in .{file_format}, not {out.suffix!r}.")
    console.print(str(tables.export(out, table=table)), soft_wrap=True)  # type: ignore[arg-type]
