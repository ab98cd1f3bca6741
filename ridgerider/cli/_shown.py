"""What is shown on a terminal: progress, what was found, one leg."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

import ridgerider as rr

console = Console(highlight=False, markup=False)


@contextmanager
def shown_progress(path: Path, max_rides: int | None) -> Iterator[Callable[[rr.Progress], None]]:
    """A bar on a terminal, a plain line every few seconds elsewhere."""
    name, last = f"{path.parent.name}/{path.stem}", 0.0
    began, steps_before, waste = time.monotonic(), None, 0.0

    def status(done: rr.Progress) -> str:
        nonlocal began, steps_before, waste
        if steps_before is None:  # the first leg compiles, and a resumed run has others behind it
            began, steps_before = time.monotonic(), done.num_steps
        rate = (done.num_steps - steps_before) / max(time.monotonic() - began, 1e-9)
        limit = "" if max_rides is None else f"/{max_rides}"
        best = f"{done.best_loss:.6g}" if done.num_minima else "-"
        waste = done.waste
        training = f"; {done.training}" if done.training else ""
        return (
            f"{done.num_rides}{limit} rides, {done.num_open} open, {done.num_minima} minima, "
            f"best loss {best}, {rate:.0f} steps/s{training}"
        )

    def plain(done: rr.Progress) -> None:
        nonlocal last
        line = status(done)
        if time.monotonic() - last >= 5:
            last = time.monotonic()
            console.print(f"{name}: {line}", soft_wrap=True)

    try:
        if not console.is_terminal:
            yield plain
            return
        label = TextColumn("{task.fields[name]}", markup=False)
        with Bar(label, BarColumn(20), TextColumn("{task.description}"), console=console) as bar:
            task = bar.add_task("looking at the start", total=max_rides, name=name)
            yield lambda done: bar.update(task, completed=done.num_rides, description=status(done))
    except KeyboardInterrupt:
        how = f"go on with: ridgerider resume {path}" if path.exists() else "nothing was ridden yet"
        console.print(f"stopped; {how}", soft_wrap=True)
        raise typer.Exit(130) from None
    finally:
        if waste:
            console.print(f"batches: {waste:.0%} of their steps idle, beside a longer ride")


def print_summary(result: rr.Result) -> None:
    """What was run, what was found, what it cost."""
    meta, cost = result.meta, result.cost
    settings = ", ".join(
        f"{name} {value}"
        for name, value in meta["settings"].items()
        if value is not None and value is not False
    )
    console.print(Text.assemble((meta["name"], "bold"), f": {settings}"), soft_wrap=True)
    minima = result.minima()
    table = Table("fingerprint", "kind", "loss", "least eigenvalue", "flat", "found by", title=None)
    for one in minima[:20]:
        table.add_row(
            str(one.fingerprint),
            one.kind,
            f"{one.level:.6g}",
            f"{one.least_eigenvalue:.3g}",
            str(one.num_flat),
            f"{one.multiplicity} legs",
        )
    console.print(table)
    if len(minima) > 20:
        console.print(f"... and {len(minima) - 20} more")
    ends = ", ".join(f"{reason} {count}" for reason, count in result.endings().most_common())
    kinds = ", ".join(f"{kind} {count}" for kind, count in result.kinds().most_common())
    console.print(
        f"{len(result)} legs, {result.num_open()} branches open; {len(minima)} minima; "
        f"descents ended at: {kinds or '-'}; legs ended by: {ends or '-'}",
        soft_wrap=True,
    )
    if result.links():
        console.print(
            f"{len(result.links())} legs came to points where others had come before, and are "
            "linked to these",
            soft_wrap=True,
        )
    if any(one.num_copies > 1 for one in minima):
        console.print(
            "symmetric copies were not ridden: --members all rides them, too", soft_wrap=True
        )
    console.print(
        f"cost: {cost.hvps} Hessian-vector products ({cost.hessians} Hessians), "
        f"{cost.gradients} gradients, {cost.values} values, {cost.seconds:.1f} s",
        soft_wrap=True,
    )


def print_leg(leg: rr.Leg) -> None:
    """One leg: its certificate step by step, why it ended, and what is there."""
    table = Table("step", "loss", "eigenvalue", "overlap", "residual", "gap", "size", "mult.")
    columns = ("loss", "eigenvalue", "overlap", "residual", "gap", "step_size", "multiplicity")
    for step in range(leg.num_steps + 1 if leg.trace else 0):
        table.add_row(str(step), *(f"{leg.trace[name][step]:.4g}" for name in columns))
    console.print(f"leg {leg.fingerprint}", style="bold")
    console.print(table)
    clusters = ", ".join(f"{c.eigenvalue:.4g} (x{c.multiplicity})" for c in leg.clusters[:8])
    console.print(
        f"ended by {', '.join(leg.ended_by)}; {leg.num_ridges} ridges lead on; spectrum {clusters}",
        soft_wrap=True,
    )
    if leg.finish is not None:
        console.print(
            f"descent ended at loss {leg.finish.loss:.6g}, |grad| {leg.finish.grad_norm:.2g}, "
            f"least eigenvalue {leg.finish.least_eigenvalue:.3g}",
            soft_wrap=True,
        )
