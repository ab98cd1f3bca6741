"""The command line. Bad input is one sentence on stderr and exit code 2."""

import os
import sys
from contextlib import suppress

import jax
import typer
from rich.console import Console

import ridgerider as rr
from ridgerider.cli import _experiments, _runs, _search
from ridgerider.cli._crew import with_local

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help=rr.__doc__.splitlines()[0],
)
app.callback()(_runs.about)
app.command("search")(_search.search)
app.command("resume")(_search.resume)
app.command("show")(_runs.show)
app.command("replay")(_runs.replay)
app.command("report")(_runs.report)
app.command("watch")(_runs.watch)
app.command("reproduce")(_experiments.reproduce)
app.command("demo")(_experiments.demo)
app.command("bench")(_experiments.bench)


def main() -> None:
    """Entry point: double precision, and errors as one sentence."""
    jax.config.update("jax_enable_x64", True)
    with suppress(RuntimeError):  # no home directory
        rr.keep_compiled()
    try:
        app(with_local(sys.argv[1:]))
    except (ValueError, OSError, MemoryError, OverflowError) as error:
        if os.environ.get("RIDGERIDER_DEBUG"):
            raise
        what = str(error) or type(error).__name__
        Console(stderr=True, highlight=False).print(f"Error: {what}", soft_wrap=True, markup=False)
        sys.exit(2)
