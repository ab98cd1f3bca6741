"""What is shown on a terminal: progress, what was found, one leg."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

import ridgerider as rr
from ridgerider._check import count, printable
from ridgerider._search.results.export import aligned
from ridgerider.report._read import Reader
from ridgerider.report._verdict import verdict

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
def shown_progress(path: Path) -> Iterator[rr.Bar | None]:
    """A new line every few seconds; None on a terminal, where a run shows its own."""
    _under_way[:] = [path]
    try:
        yield None if console.is_terminal else rr.Bar()
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
    calls = (
        f"{cost.hvps} Hessian-vector products ({cost.hessians} Hessians), "
        f"{cost.gradients} gradients, {cost.values} values"
    )
    if result.meta["problem"].get("about"):  # atoms
        calls = f"{cost.gradients} force calls"
    line = f"cost: {calls}, {cost.seconds:.1f} s"
    if compiling is not None:
        line += f", {min(compiling, float(cost.seconds)):.1f} s of it compiling"
    say(line)


def _print_search(path: Path, result: rr.Result) -> None:
    """The verdict, the solutions of lowest loss, and how legs ended."""
    reader = Reader(path)
    reader.read()
    found, num_links = verdict(reader), len(result.links())
    settings = [f"{name} {value}" for name, value in result.meta["settings"].items() if value]
    say(f"{result.name}: {', '.join(settings)}")
    say(f"{found['headline']}.", "bold")
    say(" ".join(found["parts"]))
    if found["go_on"]:
        say(f"continue with: {found['go_on']}")
    legs = [reader.groups[number] for number in reader.compared()[:MAX_ROWS]]
    columns = {
        "fingerprint": [leg["fingerprint"] for leg in legs],
        "loss": [f"{reader.level(leg):.6g}" for leg in legs],
    }
    for name in reader.metric_names:
        columns[name] = [_number(reader.metric(leg, name)) for leg in legs]
    if reader.signature is not None:
        columns["does"] = [reader.labels[leg["group"]] for leg in legs]
    columns["found by"] = [count(len(reader.members[leg["group"]]), "leg") for leg in legs]
    columns["kind"] = [leg.get("solution", {}).get("kind", "ride") for leg in legs]
    for name in ("least eigenvalue", "num flat"):
        ends = (leg.get("solution", {}) for leg in legs)
        columns[name] = [_number(end.get(name.replace(" ", "_"))) for end in ends]
    print_table(columns)
    if len(reader.groups) > len(legs):
        say(f"... and {len(reader.groups) - len(legs)} more")
    ends = (f"{reason} {number}" for reason, number in result.endings().most_common())
    say(f"legs ended by: {', '.join(ends) or '-'}")
    if num_links:
        say(f"{count(num_links, 'leg')} reached points that were known, linked to these")
    if any(one.num_copies > 1 for one in result.minima()):
        say("symmetric copies were not followed: --members all follows them, too")


def _print_map(landscape: rr.Landscape) -> None:
    """The lowest minima and transition states, and how complete they are."""
    minima, saddles = landscape.minima(), landscape.saddles()
    about, measured = landscape.meta["problem"].get("about"), {}
    loss = f"{about['quantity']} / {about['unit']}" if about else "loss"
    for name, values in landscape.measures().items():
        found = [values.get(one.fingerprint) for one in minima]
        measured[name] = [str(it) if name == "signature" else _number(it) for it in found]
    ends = [["-" if end is None else str(end) for end in edge.minima] for edge in landscape.edges()]
    between = {"between": [" and ".join(pair) for pair in ends]}
    for title, points, more in (
        ("minimum", minima, measured),
        ("transition state", saddles, between),
    ):
        first = {title: list(map(str, range(len(points)))), "fingerprint": [], "loss": []}
        columns = {**first, **more, **points.columns()}  # the first ones fit into any terminal
        columns["fingerprint"] = [name or "start" for name in columns["fingerprint"]]
        names = {"loss": loss}
        print_table({names.get(name, name): cells[:MAX_ROWS] for name, cells in columns.items()})
    say(
        f"{count(len(minima), 'minimum', 'minima')}, "
        f"{count(len(saddles), 'transition state')}, "
        f"{count(len(landscape.components()), 'component')}; {landscape.completeness()}"
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
    columns = {name: [shortened(cell, 24) for cell in cells] for name, cells in columns.items()}
    columns = fitting(columns, console.width)
    say(aligned([list(columns), *zip(*columns.values(), strict=True)]))


def fitting(columns: dict[str, list[str]], width: int) -> dict[str, list[str]]:
    """The first columns that fit side by side into a table of this width; always one.

    >>> list(fitting({"name": ["a"], "loss": ["1.234567"], "kind": ["minimum"]}, width=20))
    ['name', 'loss']
    """
    kept, used = dict[str, list[str]](), -2
    for name, cells in columns.items():
        used += 2 + max(map(len, [name, *cells]))
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
