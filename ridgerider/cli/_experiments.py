"""Commands that run what comes with the library: reproduce, demo, bench.

The package of experiments is found by its entry points; the library never imports it.
"""

import json
from dataclasses import asdict
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgerider.cli._options import Out, Seed, directory_for
from ridgerider.cli._shown import say, shown_progress

GROUP = "ridgerider.experiments"


def _module(name: str) -> Any:
    """One of the modules that the package of experiments announces."""
    for found in entry_points(group=GROUP, name=name):
        return found.load()
    raise ValueError(f"`{name}` needs ridgerider_experiments: install ridgerider once more.")


def _names(module: str, attribute: str) -> str:
    """What can be asked for, as words of a help text."""
    if not entry_points(group=GROUP, name=module):
        return "those of ridgerider_experiments"
    return ", ".join(getattr(_module(module), attribute))


def reproduce(
    name: Annotated[
        str, typer.Argument(help=f"One of {_names('reproduce', 'EXPERIMENTS')}; or all.")
    ],
    out: Out = None,
    seed: Seed = 0,
    quick: Annotated[bool, typer.Option("--quick", help="The same at a small size.")] = False,
    workers: Annotated[
        int | None, typer.Option(help="Work in this many processes, where it can be divided.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help=f"Your own images, as IDX or npz files: for {_names('reproduce', 'OWN_DATA')}.",
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="clusters: 13 atoms, too.")] = False,
) -> None:
    """Run one of the paper's experiments, or all, and write results, tables and figures."""
    given: dict[str, Any] = {"quick": quick, "seed": seed, "workers": workers, "say": say}
    if name == "all":  # the same place each time: run again, it continues
        directory = directory_for(out or Path("runs") / ("all-quick" if quick else "all"), name)
        failed = _module("page").run_all(directory, **given)
        say(str(directory / "index.md"))
        if failed:
            raise ValueError(f"`all` must be run again for {', '.join(failed)}; see the page.")
        return
    directory = directory_for(out, name)
    _module("reproduce").reproduce(name, directory, data=data, full=full or None, **given)
    say((directory / "table.md").read_text())
    say(f"results: {directory / 'results.json'}")


def demo(out: Out = None, seed: Seed = 0) -> None:
    """The method in about two minutes: four problems, and a report for each."""
    directory, parts = directory_for(out, "demo"), _module("demo")
    if (directory / "report.html").exists():
        raise ValueError(f"`--out` holds a demo already: {directory}; choose another directory.")
    directory.mkdir(parents=True, exist_ok=True)
    done = []
    for one in parts.run(directory, seed, shown_progress):
        done.append(one)
        cost = one.result.cost
        say(
            f"{one.part.title}: {one.found} in {len(one.result)} rides, {int(cost.hvps)} HVPs, "
            f"{int(cost.gradients)} gradients, {cost.seconds:.1f} s"
        )
    say(f"run files: {directory}/*.sqlite   (ridgerider show FILE)")
    say(str(parts.write_index(directory, done)))


def bench(
    name: Annotated[str, typer.Argument(help=f"One of {_names('bench', 'BENCHES')}.")] = "peers",
    part: Annotated[str | None, typer.Argument(help="One of its parts; default: all.")] = None,
    only: Annotated[str | None, typer.Option(help="global: one function, by its name.")] = None,
    out: Out = None,
    seed: Seed = 0,
) -> None:
    """Cost and outcome against what one would use instead, as ratios of one run."""
    directory, benchmarks, rows = directory_for(out, "bench"), _module("bench"), []
    for row in benchmarks.compare(name, part, seed, only):
        say(f"{row.task}: {row.who}, {row.cost:.4g} {row.unit}, {row.outcome}")
        rows.append(row)
    directory.mkdir(parents=True, exist_ok=True)
    text = benchmarks.table(rows)
    (directory / "results.json").write_text(json.dumps([asdict(row) for row in rows], indent=2))
    (directory / "table.md").write_text(text)
    say(f"\n{text}\nresults: {directory / 'results.json'}")
