"""Where new runs are written."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ridgerider.cli._options import RUN_FILE


def directory_for(out: Path | None, name: str) -> Path:
    """Where to write: as asked for, or the first of runs/name, runs/name-2, ... that is free."""
    if out is not None:
        if out.exists() and not out.is_dir():
            raise ValueError(f"`--out` must be a directory, but {out} is a file.")
        return out
    ends = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    places = (Path("runs") / f"{name}{end}" for end in ends)
    return next(place for place in places if not place.exists())


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
