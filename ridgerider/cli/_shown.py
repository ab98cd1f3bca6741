"""What is shown on a terminal: progress, what was found, one leg."""

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

import ridgerider as rr
from ridgerider.report._plain import count
from ridgerider.report._read import Reader
from ridgerider.report._verdict import verdict

TEXT = ("fingerprint", "does", "kind")  # columns that are no numbers
console = Console(highlight=False, markup=False)


_under_way: list[Path] = []  # the run that a command rides


def hint() -> None:
    """Say once how to go on with a run that is interrupted."""
    if _under_way:
        path = _under_way.pop()
        how = "nothing was ridden yet"
        if path.exists():
            how = f"go on with: ridgerider resume {shlex.quote(str(path))}"
        with suppress(OSError, ValueError):
            console.print(f"stopped; {how}", soft_wrap=True)


@contextmanager
def shown_progress(path: Path, max_rides: int | None) -> Iterator[Callable[[rr.Progress], None]]:
    """A bar on a terminal, a plain line every few seconds elsewhere."""
    name, last = f"{path.parent.name}/{path.stem}", 0.0
    _under_way[:] = [path]
    began, steps_before, waste = time.monotonic(), None, 0.0

    def status(done: rr.Progress) -> list[str]:
        nonlocal began, steps_before, waste
        if steps_before is None:  # the first leg compiles, and a resumed run has others behind it
            began, steps_before = time.monotonic(), done.num_steps
        rate = (done.num_steps - steps_before) / max(time.monotonic() - began, 1e-9)
        limit = "" if max_rides is None else f"/{max_rides}"
        best = f"{done.best_loss:.6g}" if done.num_minima else "-"
        waste = done.waste
        words = [f"{done.num_rides}{limit} rides", f"{done.num_open} open"]
        words += [count(done.num_minima, "minimum", "minima"), f"best loss {best}"]
        return [*words, f"{rate:.0f} steps/s", *([done.training] if done.training else [])]

    def plain(done: rr.Progress) -> None:
        nonlocal last
        line = ", ".join(status(done))
        if time.monotonic() - last >= 5:
            last = time.monotonic()
            console.print(f"{name}: {line}", soft_wrap=True)

    try:
        if not console.is_terminal:
            yield plain
            return
        label, name = TextColumn("{task.fields[name]}", markup=False), shortened(name, 20)
        length = 20 if console.width >= 110 else 10
        room = console.width - len(name) - length - 2
        with Bar(
            label, BarColumn(length), TextColumn("{task.description}"), console=console
        ) as bar:
            task = bar.add_task("looking at the start", total=max_rides, name=name)
            yield lambda done: bar.update(
                task,
                completed=done.num_rides,
                # Full when the tree is exhausted, whatever the budget.
                total=max_rides if done.num_open else done.num_rides,
                description=fitting_words(status(done), room),
            )
    except KeyboardInterrupt as error:
        hint()
        raise typer.Exit(getattr(error, "code", 130)) from None
    finally:
        _under_way.clear()
        if waste:
            console.print(f"batches: {waste:.0%} of their steps idle, beside a longer ride")


def print_summary(result: rr.Result) -> None:
    """The verdict, what was run, what was found, what it cost."""
    meta, cost = result.meta, result.cost
    reader = read_run(result)
    found = verdict(reader)
    settings = ", ".join(
        f"{name} {value}"
        for name, value in meta["settings"].items()
        if value is not None and value is not False
    )
    console.print(Text.assemble((meta["name"], "bold"), f": {settings}"), soft_wrap=True)
    console.print(Text(f"{found['headline']}.", "bold"), soft_wrap=True)
    console.print(" ".join(found["parts"]), soft_wrap=True)
    if found["go_on"]:
        console.print(f"go on with: {found['go_on']}", soft_wrap=True)
    minima = result.minima()
    _print_solutions(reader)
    ends = ", ".join(f"{reason} {count}" for reason, count in result.endings().most_common())
    kinds = ", ".join(f"{kind} {count}" for kind, count in result.kinds().most_common())
    # By a signature the headline counts solutions, and points that are one minimum may be several.
    by_points = "" if reader.signature else f"{count(len(minima), 'minimum', 'minima')}; "
    console.print(
        f"{count(len(result), 'leg', 'legs')}, "
        f"{count(result.num_open(), 'branch', 'branches')} open; "
        f"{by_points}descents ended at: {kinds or '-'}; "
        f"legs ended by: {ends or '-'}",
        soft_wrap=True,
    )
    if result.links():
        num = len(result.links())
        console.print(
            f"{count(num, 'leg', 'legs')} came to points where others had come before, and "
            f"{'is' if num == 1 else 'are'} linked to these",
            soft_wrap=True,
        )
    if any(one.num_copies > 1 for one in minima):
        console.print(
            "symmetric copies were not ridden: --members all rides them, too", soft_wrap=True
        )
    console.print(
        f"cost: {cost.hvps} Hessian-vector products ({cost.hessians} Hessians), "
        f"{cost.gradients} gradients, {cost.values} values, {cost.seconds:.1f} s"
        f"{_compiling(meta, cost)}",
        soft_wrap=True,
    )


def _compiling(meta: dict[str, Any], cost: rr.Cost) -> str:
    """How many of the seconds went into compiling, if that is known."""
    seconds = meta.get("seconds_compiling")
    return "" if seconds is None else f", {min(seconds, float(cost.seconds)):.1f} s of it compiling"


def read_run(result: rr.Result) -> Reader:
    """The run as a page reads it."""
    assert result.path is not None
    reader = Reader(result.path)
    reader.read()
    return reader


def _print_solutions(reader: Reader) -> None:
    """The solutions of lowest loss, with as many columns as the terminal has room for."""
    legs = [reader.groups[number] for number in reader.compared()[:20]]
    columns = fitting(_columns(reader, legs), console.width)
    table = Table(title=None)
    for name in columns:
        table.add_column(name, no_wrap=True, justify="left" if name in TEXT else "right")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    console.print(table)
    if len(reader.groups) > len(legs):
        console.print(f"... and {len(reader.groups) - len(legs)} more")


def _columns(reader: Reader, legs: list[dict[str, Any]]) -> dict[str, list[str]]:
    """By their names, those that matter most first."""
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "fingerprint": lambda leg: shortened(leg["fingerprint"], 24),
        "loss": lambda leg: f"{reader.level(leg):.6g}",
    }
    for name in reader.metric_names:
        columns[name] = lambda leg, name=name: _number(reader.metric(leg, name))  # type: ignore[misc]
    if reader.signature is not None:
        columns["does"] = lambda leg: shortened(reader.labels[leg["group"]], 20)
    columns["found by"] = lambda leg: count(reader.num_members(leg["group"]), "leg", "legs")
    columns["kind"] = lambda leg: leg.get("solution", {}).get("kind", "ride")
    if reader.has_descents:
        columns["least eigenvalue"] = lambda leg: _number(leg["solution"]["least_eigenvalue"])
        columns["flat"] = lambda leg: str(leg["solution"]["num_flat"])
    return {name: [show(leg) for leg in legs] for name, show in columns.items()}


def fitting_words(words: list[str], width: int) -> str:
    """The words that fit into a line: rides, best loss, minima, then the others.

    >>> fitting_words(["3/9 rides", "12 open", "2 minima", "best loss -1.25"], width=26)
    '3/9 rides, best loss -1.25'
    """
    order = sorted(range(len(words)), key=lambda i: (0, 3, 2, 1).index(i) if i < 4 else i)
    kept: list[int] = []
    for i in order:
        if kept and len(", ".join(words[j] for j in [*kept, i])) > width:
            break
        kept.append(i)
    return ", ".join(words[i] for i in sorted(kept))


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


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def shortened(text: str, most: int) -> str:
    """A text with its middle left out.

    >>> shortened("0+ 1- 2+ 3- 4+", 9)
    '0+ 1…- 4+'
    """
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[: most - 1 - half]}…{text[len(text) - half :]}"


def print_leg(leg: rr.Leg) -> None:
    """One leg: its certificate step by step, why it ended, and what is there."""
    num_rows = leg.num_steps + 1 if leg.trace else 0
    names = ("loss", "eigenvalue", "overlap", "residual", "gap", "step_size", "multiplicity")
    columns = {"step": [str(step) for step in range(num_rows)]}
    if leg.trace:
        for name in filter(leg.trace.__contains__, names):
            short = {"step_size": "size", "multiplicity": "mult."}.get(name, name)
            columns[short] = [f"{float(leg.trace[name][step]):.4g}" for step in range(num_rows)]
    columns = fitting(columns, console.width)
    table = Table()
    for name in columns:
        table.add_column(name, no_wrap=True, justify="right")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    console.print(f"leg {leg.fingerprint}", style="bold")
    console.print(table)
    clusters = ", ".join(f"{c.eigenvalue:.4g} (x{c.multiplicity})" for c in leg.clusters[:8])
    is_up = bool(leg.fingerprint) and leg.fingerprint[-1].up
    console.print(
        f"ended by {', '.join(leg.ended_by)}; "
        f"{count(leg.num_ridges, 'ridge leads', 'ridges lead')} on; spectrum {clusters}",
        soft_wrap=True,
    )
    if leg.finish is not None:
        console.print(
            f"{'climb' if is_up else 'descent'} ended at loss {leg.finish.loss:.6g}, "
            f"|grad| {leg.finish.grad_norm:.2g}, "
            f"least eigenvalue {leg.finish.least_eigenvalue:.3g}",
            soft_wrap=True,
        )
