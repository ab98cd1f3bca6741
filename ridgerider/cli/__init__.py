"""The command line. Bad input is one sentence on stderr and exit code 2, a bug of ours exit 3."""

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from typing import Annotated

import jax
import typer

import ridgerider as rr
from ridgerider.cli import _commands, _experiments
from ridgerider.cli._errors import listen, told
from ridgerider.cli._options import Command
from ridgerider.cli._shown import say

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help=rr.__doc__.splitlines()[0],
    epilog="Example: ridgerider demo",
)


def _say_version(is_asked: bool) -> None:
    if is_asked:
        say(f"ridgerider {version('ridgerider')}")
        raise typer.Exit()


@app.callback()
def about(
    is_version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options of the command as a whole."""


def command(function: Callable[..., None], example: str) -> None:
    """A command with an example at the end of its help."""
    app.command(function.__name__, cls=Command, epilog=f"Example: {example}")(function)


command(_commands.search, "ridgerider search mine:problem --max-rides 200 --out runs/mine")
command(_commands.resume, "ridgerider resume runs/mine --max-rides 400")
command(_commands.explore, "ridgerider explore atoms --out runs/atoms")
command(_commands.show, "ridgerider show runs/mine '0+ 1-'")
command(_commands.replay, "ridgerider replay runs/mine '0+ 1-'")
command(_commands.report, "ridgerider report runs/mine")
command(_commands.watch, "ridgerider watch runs/mine")
command(_commands.check, "ridgerider check runs/mine --repair")
command(_commands.compare, "ridgerider compare runs/mine runs/other --out compare.html")
command(_commands.export, "ridgerider export runs/mine --format csv --table minima")
command(_experiments.reproduce, "ridgerider reproduce surface --quick")
command(_experiments.demo, "ridgerider demo --out runs/demo")
command(_experiments.bench, "ridgerider bench --out runs/bench")


def main() -> None:
    """Entry point: double precision, and errors as one sentence."""
    listen()
    logging.getLogger("jax._src.callback").disabled = True  # we tell what a callback raises
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    with told():
        jax.config.update("jax_enable_x64", True)
        with suppress(RuntimeError):  # no home directory
            rr.keep_compiled()
        app()
