"""The command line. Bad input is one sentence on stderr and exit code 2."""

import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import jax
import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

import ridgerider as rr
from ridgerider import demo
from ridgerider.bench import peers
from ridgerider.data import cache_folder
from ridgerider.experiments import EXPERIMENTS, reproduce
from ridgerider.problems import BUILT_IN, load_problem
from ridgerider.report._watch import LOCAL, Server, Watched

RUN_FILE = "run.sqlite"
OWN_CLUSTER = "local"  # a Dask cluster of our own
DENSE_UP_TO = 300  # parameters: a step then takes some ten milliseconds

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help=rr.__doc__.splitlines()[0],
)
console = Console(highlight=False, markup=False)

Out = Annotated[
    Path | None, typer.Option(help="Directory to write to. Default: a new one under runs/.")
]
Seed = Annotated[int, typer.Option(help="Every random choice derives from it.")]
MaxRides = Annotated[int | None, typer.Option(help="Stop after so many rides.")]
MaxSteps = Annotated[int | None, typer.Option(help="Stop after so many steps.")]
MaxHvps = Annotated[int | None, typer.Option(help="Stop after so many Hessian-vector products.")]
MaxSeconds = Annotated[float | None, typer.Option(help="Stop after so many seconds of riding.")]
Workers = Annotated[
    int | None, typer.Option(help="Ride in so many processes. With --dask: of its local cluster.")
]
Dask = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS]",
        help="Ride on the Dask cluster whose scheduler is at ADDRESS, such as tcp://host:8786; "
        "without an address, on a local one.",
    ),
]
Lease = Annotated[
    float | None, typer.Option(help="Replace a worker that takes more seconds than this for a leg.")
]
BatchSize = Annotated[
    int,
    typer.Option(help="Rides in one compiled program, for accelerators; best 1 on CPUs."),
]
RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run file, or the directory that holds it.")
]
ProblemName = Annotated[
    str | None, typer.Option("--problem", help="Where the problem is now, as MODULE:PROBLEM.")
]


@app.command()
def search(
    problem: Annotated[
        str, typer.Argument(help=f"MODULE:PROBLEM, or one of {', '.join(BUILT_IN)}.")
    ],
    out: Out = None,
    seed: Seed = 0,
    order: Annotated[
        str, typer.Option(help="breadth_first, depth_first, best_first, steepest_first or random.")
    ] = "breadth_first",
    members: Annotated[
        str, typer.Option(help="Of a repeated eigenvalue ride `one` member or `all`.")
    ] = "one",
    max_ridges: Annotated[
        int | None, typer.Option(help="At each point only the most negative eigenvalues.")
    ] = None,
    max_depth: Annotated[int | None, typer.Option(help="Only so many turns.")] = None,
    finish_at: Annotated[
        str, typer.Option(help="Descend at the end of every `leg`, or of each `leaf` only.")
    ] = "leg",
    max_rides: MaxRides = 100,
    max_steps: MaxSteps = None,
    max_hvps: MaxHvps = None,
    max_seconds: MaxSeconds = None,
    step_size: Annotated[float, typer.Option(help="The largest step along a ridge.")] = 0.1,
    delta_break: Annotated[
        float, typer.Option(help="Halve a step until its overlap is at least this.")
    ] = 0.95,
    gauge: Annotated[
        str, typer.Option(help="Direction inside a repeated eigenvalue: gradient, random or basis.")
    ] = "gradient",
    engine: Annotated[
        str,
        typer.Option(
            help="dense Hessians, hvp (Hessian-vector products only), or auto: dense up to "
            f"{DENSE_UP_TO} parameters."
        ),
    ] = "auto",
    round_size: Annotated[
        int,
        typer.Option(help="Branches chosen before their results come back; so many ride at once."),
    ] = 1,
    asynchronous: Annotated[
        bool,
        typer.Option("--asynchronous", help="Choose again after each leg, not after each round."),
    ] = False,
    workers: Workers = None,
    dask: Dask = None,
    lease: Lease = None,
    batch_size: BatchSize = 1,
) -> None:
    """Search a problem for different solutions."""
    if engine not in ("auto", "dense", "hvp"):
        raise ValueError(f"`engine` must be auto, dense or hvp, not {engine!r}.")
    loaded = load_problem(problem)
    is_dense = engine == "dense" or (engine == "auto" and loaded.size <= DENSE_UP_TO)
    look = rr.DenseSpectrum if is_dense else rr.BlockSpectrum
    rider = rr.Rider(
        spectrum=look(gauge=gauge),  # type: ignore[arg-type]  # checked there
        update=rr.Project() if is_dense else rr.Davidson(),
        step=rr.Backtracking(step_size, delta_break),
    )
    with (
        crew(workers, dask, lease, round_size) as executor,
        new_run(out, problem) as path,
        shown_progress(path, max_rides) as progress,
    ):
        result = rr.search(
            problem,
            rider,
            order=order,
            members=members,  # type: ignore[arg-type]  # checked there
            max_ridges=max_ridges,
            max_depth=max_depth,
            finish_at=finish_at,  # type: ignore[arg-type]  # checked there
            max_rides=max_rides,
            max_steps=max_steps,
            max_hvps=max_hvps,
            max_seconds=max_seconds,
            round_size=round_size,
            asynchronous=asynchronous,
            batch_size=batch_size,
            seed=seed,
            out=path,
            executor=executor,
            progress=progress,
        )
    print_summary(result)
    console.print(f"run file: {path}", soft_wrap=True)


@app.command()
def resume(
    run: RunPath,
    problem: ProblemName = None,
    max_rides: MaxRides = None,
    max_steps: MaxSteps = None,
    max_hvps: MaxHvps = None,
    max_seconds: MaxSeconds = None,
    workers: Workers = None,
    dask: Dask = None,
    lease: Lease = None,
    batch_size: BatchSize = 1,
) -> None:
    """Go on with a search that was interrupted, or further with another budget."""
    path = run_file(run)
    before = rr.load(path)
    round_size = before.meta["settings"]["round_size"]
    with (
        crew(workers, dask, lease, round_size) as executor,
        shown_progress(path, max_rides or before.meta["budget"]["max_rides"]) as progress,
    ):
        result = rr.resume(
            path,
            problem or before.name,
            max_rides="same" if max_rides is None else max_rides,
            max_steps="same" if max_steps is None else max_steps,
            max_hvps="same" if max_hvps is None else max_hvps,
            max_seconds="same" if max_seconds is None else max_seconds,
            batch_size=batch_size,
            executor=executor,
            progress=progress,
        )
    print_summary(result)
    console.print(f"run file: {path}", soft_wrap=True)


@app.command()
def show(
    run: RunPath,
    leg: Annotated[
        str | None, typer.Option(help="A fingerprint: show this leg, step by step.")
    ] = None,
) -> None:
    """Show what a run found, or one of its legs."""
    result = rr.load(run_file(run))
    if leg is None:
        print_summary(result)
    else:
        print_leg(result.leg(leg))


@app.command()
def replay(
    run: RunPath, fingerprint: Annotated[str, typer.Argument()], problem: ProblemName = None
) -> None:
    """Ride one path of a run again and compare it with what is stored."""
    path = run_file(run)
    if not rr.Fingerprint.parse(fingerprint):
        raise ValueError(
            "`fingerprint` must name at least one turn, such as '0+', but it is empty."
        )
    result = rr.load(path, load_problem(problem or rr.load(path).name))
    known, is_same = set(map(str, result.fingerprints())), True
    for leg in result.replay(fingerprint):
        print_leg(leg)
        name = str(leg.fingerprint)
        if name in known:
            same = bool((leg.x == result.leg(name).x).all())
            is_same = is_same and same
            console.print(f"{name}: {'equal to' if same else 'NOT equal to'} the stored leg\n")
    if not is_same:
        raise typer.Exit(1)


@app.command("report")
def report_command(
    run: RunPath,
    out: Annotated[
        Path | None, typer.Option(help="The page to write. Default: report.html beside the run.")
    ] = None,
    rides: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--landscape",
            metavar="RIDE RIDE",
            help="Two rides, such as '0+' '1+': adds the loss in their plane.",
        ),
    ] = None,
    problem: ProblemName = None,
) -> None:
    """Write a run as one HTML page: its tree, rides, solutions and cost."""
    path = run_file(run)
    if out is not None and out.is_dir():
        out = out / "report.html"
    loaded = load_problem(problem or rr.load(path).name) if rides else None
    scenes = [rides] if rides else []
    page = rr.report.report(path, out, problem=loaded, landscapes=scenes, say=console.print)
    console.print(str(page), soft_wrap=True)


@app.command()
def watch(
    run: RunPath,
    port: Annotated[int, typer.Option(help="Where to listen; if taken, at the next.")] = 8765,
    host: Annotated[
        str,
        typer.Option(help="The interface to listen on. Any but this one shows the run to others."),
    ] = "127.0.0.1",
    problem: ProblemName = None,
) -> None:
    """Show a run as a page that follows the search while it runs."""
    path = run_file(run)
    if not run.exists():  # a directory may still wait for its run
        raise ValueError(f"`run` must be a run file or its directory, but there is none at {run}.")

    def load() -> rr.Result:
        return rr.load(path, load_problem(problem or rr.load(path).name))

    with Server(Watched(path, load), host, port) as server:
        if host not in LOCAL:
            console.print(f"{host} is not this machine alone: others can see the run.")
        console.print(f"watching {path}; stop with Ctrl-C", soft_wrap=True)
        console.print(server.url, soft_wrap=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


@app.command("reproduce")
def reproduce_command(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(EXPERIMENTS)}.")],
    out: Out = None,
    seed: Seed = 0,
    quick: Annotated[bool, typer.Option("--quick", help="The same at a small size.")] = False,
    workers: Annotated[
        int | None, typer.Option(help="Work in so many processes, where it can be divided.")
    ] = None,
) -> None:
    """Run one of the paper's experiments and write its results, table and figures."""
    directory = directory_for(out, name)
    check_seed(seed)
    reproduce(name, directory, quick=quick, seed=seed, workers=workers, say=console.print)
    console.print((directory / "table.md").read_text(), soft_wrap=True)
    console.print(f"results: {directory / 'results.json'}", soft_wrap=True)


@app.command("demo")
def demo_command(out: Out = None, seed: Seed = 0) -> None:
    """The method in about two minutes: four problems, and a report for each."""
    directory = directory_for(out, "demo")
    check_seed(seed)
    if (directory / "report.html").exists():
        raise ValueError(f"`--out` holds a demo already: {directory}; choose another directory.")
    directory.mkdir(parents=True, exist_ok=True)
    done = []
    for one in demo.run(directory, seed, shown_progress):
        done.append(one)
        console.print(f"{one.part.title}: {one.found} in {len(one.result)} rides", soft_wrap=True)
    table = Table("problem", "size", "rides", "found", "HVPs", "gradients", "seconds")
    for one in done:
        cost = one.result.cost
        row = (one.part.name, one.part.problem.size, len(one.result), one.found)
        counts = (int(cost.hvps), int(cost.gradients), f"{cost.seconds:.1f}")
        table.add_row(*map(str, (*row, *counts)))
    console.print(table)
    console.print(f"run files: {directory}/*.sqlite   (ridgerider show FILE)", soft_wrap=True)
    console.print(str(demo.write_index(directory, done)), soft_wrap=True)


@app.command("bench")
def bench_command(out: Out = None, seed: Seed = 0) -> None:
    """Cost and outcome against what one would use instead, as ratios of one run."""
    directory, rows = directory_for(out, "bench"), list[peers.Row]()
    check_seed(seed)
    directory.mkdir(parents=True, exist_ok=True)
    for row in peers.compare(seed):
        console.print(
            f"{row.task}: {row.who}, {row.cost:.4g} {row.unit}, {row.outcome}", soft_wrap=True
        )
        rows.append(row)
    (directory / "results.json").write_text(json.dumps([asdict(row) for row in rows], indent=2))
    (directory / "table.md").write_text(peers.table(rows))
    console.print(f"\n{peers.table(rows)}\nresults: {directory / 'results.json'}", soft_wrap=True)


# --- who rides


@contextmanager
def crew(
    workers: int | None, dask: str | None, lease: float | None, round_size: int
) -> Iterator[Executor | None]:
    """The executor that the options ask for; none of them: ride here."""
    if workers is not None and workers < 1:
        raise ValueError(f"`--workers` must be at least 1, not {workers}.")
    if workers is None and dask is None:
        if lease is not None:
            raise ValueError("`--lease` needs workers: see --workers and --dask.")
        yield None
        return
    if dask not in (None, OWN_CLUSTER) and not re.fullmatch(r"\w+://\S+:\d+", dask):
        raise ValueError(f"`--dask` must be an address such as tcp://host:8786, not {dask!r}.")
    if round_size < (workers or 2):
        console.print(
            f"no more than {round_size} at once will ride: that is the run's --round-size",
            soft_wrap=True,
        )
    if dask is None:
        executor: Executor = rr.workers.process_pool(workers or 1, lease=lease)
    else:
        address = None if dask == OWN_CLUSTER else dask
        executor = rr.workers.dask(address, num_workers=workers, lease=lease)
    with executor:
        yield executor


def with_local(arguments: list[str]) -> list[str]:
    """`--dask` without an address asks for a local cluster."""
    following = [*arguments[1:], "-"]
    return [
        f"--dask={OWN_CLUSTER}" if one == "--dask" and next_one.startswith("-") else one
        for one, next_one in zip(arguments, following, strict=True)
    ]


# --- where things are


def run_file(run: Path) -> Path:
    """The run file itself, from its path or its directory's."""
    return run / RUN_FILE if run.is_dir() else run


@contextmanager
def new_run(out: Path | None, name: str) -> Iterator[Path]:
    """The path of a new run file; directories made for it go again if nothing came of it."""
    directory = directory_for(out, name.replace(":", "-"))
    if (directory / RUN_FILE).exists():
        raise ValueError(
            f"`--out` holds a run already: resume {directory} or choose another directory."
        )
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    try:
        yield directory / RUN_FILE
    finally:
        for path in missing:
            if not any(path.iterdir()):
                path.rmdir()


def directory_for(out: Path | None, name: str) -> Path:
    """Where to write: as asked for, or a new place of this name under runs/."""
    if out is not None and out.exists() and not out.is_dir():
        raise ValueError(f"`--out` must be a directory, but {out} is a file.")
    return out or free_name(Path("runs") / name)


def check_seed(seed: int) -> None:
    if not 0 <= seed < 2**31:
        raise ValueError(f"`--seed` must be at least 0 and below 2^31, not {seed}.")


def free_name(path: Path) -> Path:
    """`path`, or the first of path-2, path-3, ... that does not exist."""
    number, free = 1, path
    while free.exists():
        number, free = number + 1, path.with_name(f"{path.name}-{number + 1}")
    return free


# --- what is shown


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
        return (
            f"{done.num_rides}{limit} rides, {done.num_open} open, {done.num_minima} minima, "
            f"best loss {best}, {rate:.0f} steps/s"
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
    table = Table("fingerprint", "loss", "least eigenvalue", "found by", title=None)
    for one in minima[:20]:
        table.add_row(
            str(one.fingerprint),
            f"{one.loss:.6g}",
            f"{one.least_eigenvalue:.3g}",
            f"{one.multiplicity} legs",
        )
    console.print(table)
    if len(minima) > 20:
        console.print(f"... and {len(minima) - 20} more")
    reasons = Counter(reason for leg in result for reason in leg.ended_by)
    ends = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    console.print(
        f"{len(result)} legs, {result.num_open()} branches open; {len(minima)} minima, "
        f"{result.num_saddles()} descents ended at saddles; legs ended by: {ends or '-'}",
        soft_wrap=True,
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


def keep_compiled() -> None:
    """Share compiled programs with the next command and with processes this one starts."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:  # the user's own, or a parent's
        return
    settings = {
        "jax_compilation_cache_dir": str(cache_folder("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0.1,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in settings.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)


def main() -> None:
    """Entry point: double precision, and errors as one sentence."""
    jax.config.update("jax_enable_x64", True)
    with suppress(RuntimeError):  # no home directory
        keep_compiled()
    try:
        app(with_local(sys.argv[1:]))
    except (ValueError, OSError, MemoryError, OverflowError) as error:
        if os.environ.get("RIDGERIDER_DEBUG"):
            raise
        what = str(error) or type(error).__name__
        Console(stderr=True, highlight=False).print(f"Error: {what}", soft_wrap=True, markup=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
