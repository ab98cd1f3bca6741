"""What is shown on a terminal: progress, what was found, one leg."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import ridgerider as rr
from ridgerider._check import count, printable
from ridgerider.report._read import Reader
from ridgerider.report._verdict import verdict

TEXT = ("fingerprint", "does", "kind", "between")  # columns that are not numbers
MAX_ROWS = 20


class Terminal(Console):
    """A console that no string can control: those of a run file may be anybody's."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


console = Terminal(highlight=False, markup=False)
_under_way: list[Path] = []  # the run that a command rides


def say(text: str, style: str | None = None) -> None:
    """Print a line as long as it is: whoever reads it through a pipe gets it whole."""
    console.print(text, style=style, soft_wrap=True)


def hint() -> None:
    """Say once how to continue with a run that is interrupted."""
    if _under_way:
        path = _under_way.pop()
        how = "nothing was ridden yet"
        if path.exists():
            how = f"continue with: ridgerider resume {shlex.quote(str(path))}"
        with suppress(OSError, ValueError):
            say(f"stopped; {how}")


@contextmanager
def shown_progress(path: Path) -> Iterator[Callable[[rr.types.Progress], None]]:
    """A line that is kept up to date on a terminal, a new one every few seconds elsewhere."""
    _under_way[:] = [path]
    try:
        if console.is_terminal:
            with console.status("evaluating the start") as status:
                yield lambda done: status.update(str(done))
        else:
            yield rr.Bar()
    except KeyboardInterrupt as error:
        hint()
        raise typer.Exit(getattr(error, "code", 130)) from None
    finally:
        _under_way.clear()


def print_run(path: Path) -> None:
    """What a run found and what it cost: of a search its solutions, of a map its points."""
    result = rr.load(path)
    if isinstance(result, rr.Landscape):
        _print_map(result)
    else:
        _print_search(path, result)
    cost, compiling = result.cost, result.meta.get("seconds_compiling")
    line = (
        f"cost: {cost.hvps} Hessian-vector products ({cost.hessians} Hessians), "
        f"{cost.gradients} gradients, {cost.values} values, {cost.seconds:.1f} s"
    )
    if result.meta["problem"].get("about"):  # atoms
        line = f"cost: {cost.gradients} force calls, {cost.seconds:.1f} s"
    if compiling is not None:
        line += f", {min(compiling, float(cost.seconds)):.1f} s of it compiling"
    say(line)


def _print_search(path: Path, result: rr.Result) -> None:
    """The verdict, the solutions of lowest loss, and how legs ended."""
    reader = Reader(path)
    reader.read()
    found, minima, num_links = verdict(reader), result.minima(), len(result.links())
    settings = [
        f"{name} {value}"
        for name, value in result.meta["settings"].items()
        if value is not None and value is not False
    ]
    say(f"{result.name}: {', '.join(settings)}")
    say(f"{found['headline']}.", "bold")
    say(" ".join(found["parts"]))
    if found["go_on"]:
        say(f"continue with: {found['go_on']}")
    legs = [reader.groups[number] for number in reader.compared()[:MAX_ROWS]]
    print_table(_solutions(reader, legs))
    if len(reader.groups) > len(legs):
        say(f"... and {len(reader.groups) - len(legs)} more")
    ends = ", ".join(f"{reason} {number}" for reason, number in result.endings().most_common())
    # By a signature the headline counts solutions, and points that are one minimum may be several.
    by_points = "" if reader.signature else f"{count(len(minima), 'minimum', 'minima')}; "
    say(
        f"{count(len(result), 'leg')}, "
        f"{count(result.num_open(), 'branch', 'branches')} open; "
        f"{by_points}legs ended by: {ends or '-'}"
    )
    if num_links:
        say(f"{count(num_links, 'leg')} reached points that were known, linked to these")
    if any(one.num_copies > 1 for one in minima):
        say("symmetric copies were not followed: --members all follows them, too")


def _solutions(reader: Reader, legs: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Columns by their names, those that matter most first."""
    columns = {
        "fingerprint": [shortened(leg["fingerprint"], 24) for leg in legs],
        "loss": [f"{reader.level(leg):.6g}" for leg in legs],
    }
    for name in reader.metric_names:
        columns[name] = [_number(reader.metric(leg, name)) for leg in legs]
    if reader.signature is not None:
        columns["does"] = [shortened(reader.labels[leg["group"]], 20) for leg in legs]
    columns["found by"] = [count(len(reader.members[leg["group"]]), "leg", "legs") for leg in legs]
    columns["kind"] = [leg.get("solution", {}).get("kind", "ride") for leg in legs]
    if all("solution" in leg for leg in legs):
        ends = [leg["solution"] for leg in legs]
        columns["least eigenvalue"] = [_number(end["least_eigenvalue"]) for end in ends]
        columns["flat"] = [_number(end["num_flat"]) for end in ends]
    return columns


def _print_map(landscape: rr.Landscape) -> None:
    """The lowest minima and transition states, and how complete they are."""
    minima, saddles = landscape.minima(), landscape.saddles()
    about, measured = landscape.meta["problem"].get("about"), {}
    loss = f"{about['quantity']} / {about['unit']}" if about else "loss"
    for name, values in landscape.measures().items():
        found = [values.get(one.fingerprint) for one in minima]
        is_text = name == "signature"
        measured[name] = [shortened(str(it), 24) if is_text else _number(it) for it in found]
    ends = [["-" if end is None else str(end) for end in edge.minima] for edge in landscape.edges()]
    between = {"between": [" and ".join(pair) for pair in ends]}
    for title, points, more in (
        ("minimum", minima, measured),
        ("transition state", saddles, between),
    ):
        first = {title: list(map(str, range(len(points)))), "fingerprint": [], "loss": []}
        columns = {**first, **more, **points.columns()}  # the first ones fit into any terminal
        columns["fingerprint"] = [shortened(name or "start", 24) for name in columns["fingerprint"]]
        names = {"loss": loss}
        print_table({names.get(name, name): cells[:MAX_ROWS] for name, cells in columns.items()})
    say(
        f"{count(len(minima), 'minimum', 'minima')}, "
        f"{count(len(saddles), 'transition state')}, "
        f"{count(len(landscape.components()), 'component')}; "
        f"{landscape.completeness()}"
    )


def print_leg(leg: rr.types.Leg) -> None:
    """One leg: its certificate step by step, why it ended, and what is there."""
    names = ("loss", "eigenvalue", "overlap", "residual", "gap", "step_size", "multiplicity")
    columns = {"step": [str(step) for step in range(leg.num_steps + 1)] if leg.trace else []}
    for name in filter(leg.trace.__contains__, names):
        short = {"step_size": "size", "multiplicity": "mult."}.get(name, name)
        columns[short] = [f"{float(value):.4g}" for value in leg.trace[name]]
    say(f"leg {leg.fingerprint}", "bold")
    print_table(columns)
    clusters = ", ".join(f"{c.eigenvalue:.4g} (x{c.multiplicity})" for c in leg.clusters[:8])
    is_up = bool(leg.fingerprint) and leg.fingerprint[-1].up
    say(
        f"ended by {', '.join(leg.ended_by)}; "
        f"{count(leg.num_ridges, 'ridge leads', 'ridges lead')} on; spectrum {clusters}"
    )
    if leg.finish is not None:
        say(
            f"{'climb' if is_up else 'descent'} ended at loss {leg.finish.loss:.6g}, "
            f"|grad| {leg.finish.grad_norm:.2g}, "
            f"least eigenvalue {leg.finish.least_eigenvalue:.3g}"
        )


def print_table(columns: dict[str, list[str]]) -> None:
    """Columns by their names, as many of the first ones as the terminal has room for."""
    columns, table = fitting(columns, console.width), Table()
    for name in columns:
        table.add_column(name, no_wrap=True, justify="left" if name in TEXT else "right")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    console.print(table)


def fitting(columns: dict[str, list[str]], width: int) -> dict[str, list[str]]:
    """The first columns that fit side by side into a table of this width; always one.

    >>> list(fitting({"name": ["a"], "loss": ["1.234567"], "kind": ["minimum"]}, width=24))
    ['name', 'loss']
    """
    kept, used = dict[str, list[str]](), 1
    for name, cells in columns.items():
        used += 3 + max(map(len, [name, *cells]))
        if kept and used > width:
            break
        kept[name] = cells
    return kept


def _number(value: float | list[float] | None) -> str:
    """A measured number; of a score on examples the mean, which comes first."""
    value = value[0] if isinstance(value, list) else value
    return "-" if value is None else f"{value:.4g}"


def shortened(text: str, most: int) -> str:
    """A text with its middle left out.

    >>> shortened("0+ 1- 2+ 3- 4+", 9)
    '0+ 1…- 4+'
    """
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[: most - 1 - half]}…{text[len(text) - half :]}"
