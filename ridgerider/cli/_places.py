"""Where runs are."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ridgerider as rr
from ridgerider._search.runfile.locate import name_to_load

RUN_FILE = "run.sqlite"


def run_file(run: Path) -> Path:
    """The run file itself, from its path or its directory's."""
    return run / RUN_FILE if run.is_dir() else run


def problem_of(path: Path, trust: bool) -> str:
    """The name of a run's problem, if it may be loaded."""
    return name_to_load(rr.load(path).meta, path, trust=trust)


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


def free_name(path: Path) -> Path:
    """`path`, or the first of path-2, path-3, ... that does not exist."""
    number, free = 1, path
    while free.exists():
        number, free = number + 1, path.with_name(f"{path.name}-{number + 1}")
    return free
