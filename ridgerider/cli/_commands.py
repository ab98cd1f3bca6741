"""Commands that search (search, explore, resume) and that read runs (show to export)."""

import inspect
import re
import shlex
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
import typer

import ridgerider as rr
from ridgerider._check import check_choice, check_count
from ridgerider._core.spectra.spectrum import DENSE_BELOW
from ridgerider._search.results.export import FORMATS
from ridgerider._search.runfile.repair import check_run
from ridgerider._search.runfile.repair import repair as repair_run
from ridgerider._search.runfile.rules_json import load_attribute
from ridgerider.cli import _atoms as structure
from ridgerider.cli import _options as options
from ridgerider.cli._shown import print_leg, print_run, say, shown_progress
from ridgerider.problems import load_problem
from ridgerider.report._watch import Server, Watched

SYMMETRIES = {"none": lambda: None, "rigid": rr.symmetry.rigid, "point_set": rr.symmetry.point_set}
# What the landscapes of built-in problems are, unless the options say otherwise.
OWN = {
    "atoms": ("point_set", "ridgerider.problems:is_one_cluster"),
    "rastrigin": ("none", "-5.12,5.12"),
}


@contextmanager
def riding(
    place: AbstractContextManager[Path],
    workers: int | None,
    dask: str | None,
    round_size: int,
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A run file, and what every search is handed; afterwards, what was found is shown."""
    executor: AbstractContextManager[Executor | None] = nullcontext()
    if workers is not None:
        check_count("--workers", workers)
    if dask not in (None, options.LOCAL_CLUSTER) and not re.fullmatch(r"\w+://\S+:\d+", dask):
        raise ValueError(f"`--dask` must be an address such as tcp://host:8786, not {dask!r}.")
    if (workers or dask) and round_size < (workers or 2):
        say(f"no more than {round_size} at once will ride: that is the run's --round-size")
    if dask is not None:
        executor = rr.workers.dask(
            None if dask == options.LOCAL_CLUSTER else dask, num_workers=workers
        )
    elif workers is not None:
        executor = rr.workers.process_pool(workers)
    with executor as riders, place as path, shown_progress(path) as progress:
        yield path, {"executor": riders, "progress": progress}
    print_run(path)
    say(f"run file: {path}")


@options.takes(rr.search, options.SEARCH)
def search(
    *,
    problem: options.NewProblem,
    out: options.Out = None,
    engine: options.Engine = "auto",
    signature: options.Signature = None,
    metric: options.Metrics = None,
    workers: options.Workers = None,
    dask: options.Dask = None,
    **settings: Any,
) -> None:
    """Search a problem for different solutions."""
    measures = options.chosen_measures(signature, metric, problem)
    check_choice("engine", engine, ("auto", "dense", "hvp"))
    rider, is_large = rr.Rider(), load_problem(problem).size >= DENSE_BELOW
    if engine == "hvp" or (engine == "auto" and is_large):
        rider = rr.Rider(spectrum=rr.BlockSpectrum(), update=rr.Davidson())
    place = options.new_run(out, problem)
    with riding(place, workers, dask, settings["round_size"]) as (path, shared):
        result = rr.search(problem, rider, out=path, measures=measures, **shared, **settings)
    assert result.problem is not None
    start, norm = result.leg(""), float(jnp.linalg.norm(result.problem.grad(result.problem.x0)))
    if result.problem.dtype == "float32":
        say("note: the start is float32, and so was all of the search; use float64 for accuracy")
    size = max(1.0, float(np.linalg.norm(start.x))) * float(np.abs(start.eigenvalues).max())
    if norm > 0.1 * size:
        say(
            f"note: |grad| at the start is {norm:.3g}: it is not a saddle; rr.find_saddle finds one"
        )


@options.takes(rr.explore, options.EXPLORE)
def explore(
    *,
    problem: options.NewProblem,
    out: options.Out = None,
    engine: options.Engine = "auto",
    symmetry: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(SYMMETRIES)} or MODULE:SYMMETRY. Default: point_set for atoms, else "
            "none."
        ),
    ] = None,
    valid: Annotated[
        str | None,
        typer.Option(
            help="MODULE:FUNCTION of what belongs to the landscape, bounds LOW,HIGH, or none. "
            "Default: connected clusters for atoms, bounds for rastrigin, else none."
        ),
    ] = None,
    signature: options.Signature = None,
    metric: options.Metrics = None,
    calculator: structure.Calculator = None,
    option: structure.CalculatorOptions = None,
    fixed: structure.Fixed = None,
    bonds: structure.Bonds = None,
    starts: structure.Starts = None,
    max_force_calls: structure.MaxForceCalls = None,
    workers: options.Workers = None,
    dask: options.Dask = None,
    **settings: Any,
) -> None:
    """Map a landscape: all minima, the transition states between them, and the barriers."""
    of_atoms: dict[str, Any] = {"--option": option, "--fixed": fixed, "--bonds": bonds}
    of_atoms |= {"--starts": starts, "--max-force-calls": max_force_calls}
    of_others: dict[str, Any] = {"--symmetry": symmetry, "--valid": valid, "--signature": signature}
    of_others |= {"--metric": metric, "--max-points": settings["max_points"]}
    for name, value in (of_atoms if calculator is None else of_others).items():
        if value is not None:
            wanted = "needs" if calculator is None else "is not for"
            raise ValueError(f"`{name}` {wanted} atoms with a `--calculator`.")
    if calculator is not None:
        atoms = structure.read_atoms(problem, "`problem`")
        atoms.calc = structure.calculator_of(calculator, option)
        if fixed is not None:
            structure.fix(atoms, fixed)
        import ridgerider.ase

        known = inspect.signature(rr.explore).parameters
        settings = {k: v for k, v in settings.items() if v != known[k].default}
        settings["bonds"] = bonds
        if max_force_calls is not None:
            settings["max_force_calls"] = max_force_calls
        settings["starts"] = [
            one for file in starts or () for one in structure.read_atoms(file, "`--starts`", ":")
        ]
        place, size = options.new_run(out, Path(problem).stem), settings.get("round_size", 8)
        with riding(place, workers, dask, size) as (path, shared):
            ridgerider.ase.explore(atoms, out=path, **shared, **settings)
        return
    climb = rr.Climb(engine=engine)  # type: ignore[arg-type]  # which it checks
    own_symmetry, own_valid = OWN.get(problem, ("none", "none"))
    symmetry, valid = symmetry or own_symmetry, valid or own_valid
    found: Any = SYMMETRIES.get(symmetry) or load_attribute("`--symmetry` must be", symmetry)
    is_made = callable(found) and not isinstance(found, rr.Symmetry)
    settings["symmetry"] = found() if is_made else found
    if re.fullmatch(r"[-+.\de]+,[-+.\de]+", valid):
        low, high = map(float, valid.split(","))
        settings["valid"] = low, high
    elif valid != "none":
        settings["valid"] = load_attribute("`--valid` must be", valid)
    measures = options.chosen_measures(signature, metric, problem)
    place = options.new_run(out, problem)
    with riding(place, workers, dask, settings["round_size"]) as (path, shared):
        rr.explore(problem, climb, out=path, measures=measures, **shared, **settings)


@options.takes(rr.resume, options.BUDGET)
def resume(
    *,
    run: options.Run,
    problem: options.Problem = None,
    signature: options.Signature = None,
    metric: options.Metrics = None,
    trust: options.Trust = False,
    calculator: structure.Calculator = None,
    option: structure.CalculatorOptions = None,
    max_force_calls: structure.MaxForceCalls = None,
    workers: options.Workers = None,
    dask: options.Dask = None,
    **settings: Any,
) -> None:
    """Continue a search that was interrupted, or that has another budget now."""
    before = rr.load(run)
    given = {name: value for name, value in settings.items() if value is not None}
    if before.meta["problem"]["about"]:
        if calculator is None:
            raise ValueError("`--calculator` must be given again, to resume a map of atoms.")
        for name in set(given) - {"max_seconds"}:
            raise ValueError(
                f"`--{name.replace('_', '-')}` is not for atoms: use --max-force-calls."
            )
        import ridgerider.ase

        if max_force_calls is not None:
            given["max_force_calls"] = max_force_calls
        size = before.settings.round_size
        with riding(nullcontext(run), workers, dask, size) as (_, shared):
            ridgerider.ase.resume(
                run, structure.calculator_of(calculator, option), **shared, **given
            )
        return
    name = options.problem_name(run, problem, trust)
    measures = options.chosen_measures(signature, metric, problem or before.name)
    with riding(nullcontext(run), workers, dask, before.settings.round_size) as (_, shared):
        rr.resume(run, name, measures=measures, **shared, **given)


TURNS = "A leg by its turns from the start, as '0+ 1-'"


def show(
    run: options.Run,
    leg: Annotated[
        str | None, typer.Argument(metavar="[FINGERPRINT]", help=f"{TURNS}: show its steps.")
    ] = None,
) -> None:
    """Show what a run found, or one of its legs."""
    if leg is None:
        print_run(run)
    else:
        print_leg(rr.load(run).leg(leg))


def replay(
    run: options.Run,
    fingerprint: Annotated[str, typer.Argument(metavar="FINGERPRINT", help=f"{TURNS}.")],
    problem: options.Problem = None,
    trust: options.Trust = False,
) -> None:
    """Ride one path of a run again and compare it with what is stored."""
    if not rr.types.Fingerprint.parse(fingerprint):
        raise ValueError(
            "`fingerprint` must name at least one turn, such as '0+', but it is empty."
        )
    result = rr.load(run, load_problem(options.problem_name(run, problem, trust)))
    known, is_same = set(result.fingerprints()), True
    for leg in result.replay(fingerprint):
        print_leg(leg)
        if leg.fingerprint not in known:
            continue
        stored = result.leg(leg.fingerprint)
        if isinstance(result, rr.Landscape):  # a point that was known before is not polished
            is_equal = np.allclose(leg.x, stored.x, rtol=1e-6, atol=1e-6)
        else:
            is_equal = np.array_equal(leg.x, stored.x)
        is_same = is_same and is_equal
        say(f"{leg.fingerprint}: {'equal to' if is_equal else 'NOT equal to'} the stored leg\n")
    if not is_same:
        raise typer.Exit(1)


def report(
    run: options.Run,
    out: Annotated[
        Path | None, typer.Option(help="The page to write. Default: report.html beside the run.")
    ] = None,
    signature: options.Signature = None,
    metric: options.Metrics = None,
    problem: options.Problem = None,
    trust: options.Trust = False,
) -> None:
    """Write a run as one HTML page: its tree, rides, solutions and cost."""
    if measures := options.chosen_measures(signature, metric):
        rr.measure(run, measures, load_problem(options.problem_name(run, problem, trust)))
    say(str(rr.report.report(run, out)))


def watch(
    run: options.Run,
    port: Annotated[
        int, typer.Option(help="The port to listen on; if it is taken, another one.")
    ] = 8765,
) -> None:
    """Show a run as a page that follows the search while it runs."""
    # A directory may still wait for its run.
    if not run.exists() and not (run.name == options.RUN_FILE and run.parent.is_dir()):
        raise ValueError(f"`run` must be a run file or its directory, but there is none at {run}.")
    with Server(Watched(run), port) as server:
        say(f"watching {run}; stop with Ctrl-C")
        say(server.url)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def check(
    run: options.Run,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Drop what is damaged, so that `resume` repeats it."),
    ] = False,
) -> None:
    """Compare everything in a run file with its digests, and name the legs that are damaged."""
    num_legs, damaged = check_run(run)
    for what, why in damaged.items():
        say(f"damaged: {what} ({why})")
    if not damaged:
        say(f"{run}: {num_legs} legs, with the start, nothing damaged")
    elif repair:
        dropped, kept = repair_run(run)
        names = ", ".join(name or "the start" for name in dropped) or "none"
        say(
            f"dropped legs: {names}; the damaged file is {kept}; continue with: "
            f"ridgerider resume {shlex.quote(str(run))}"
        )
    else:
        say("--repair drops what is damaged, and `resume` repeats it")
        raise typer.Exit(1)


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            parser=options.run_file,
            help="Two or more run files, or their directories.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page to write. Default: compare.html beside the first.")
    ] = None,
    problem: options.Problem = None,
) -> None:
    """Write several runs as one HTML page: what differs, what is shared, at what cost.

    With --problem, solutions with flat directions and at infinity are compared as a search does.
    """
    loaded = None if problem is None else load_problem(problem)
    say(str(rr.report.compare(runs, out, problem=loaded)))


def export(
    run: options.Run,
    file_format: Annotated[str, typer.Option("--format", help="csv, json or npz.")] = "csv",
    table: Annotated[
        str,
        typer.Option(
            help="solutions, every end of a descent, of a map all stationary points; minima, the "
            "different ones; or legs, rides and costs."
        ),
    ] = "solutions",
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file to write, in the format that its name ends in. Default: TABLE.FORMAT "
            "beside the run."
        ),
    ] = None,
) -> None:
    """Write solutions, minima or legs of a run as a table or as arrays.

    A CSV file has a column for each parameter; arrays are named by the leaves of the parameters.
    """
    check_choice("--format", file_format, FORMATS)
    result = rr.load(run)
    if out is None:
        out = run.with_name(f"{table}.{file_format}")
    elif out.is_dir():
        out = out / f"{table}.{file_format}"
    say(str(result.export(out, table=table)))
