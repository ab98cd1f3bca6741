"""Where runs are, and where compiled programs are kept."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from ridgerider.data import cache_folder

RUN_FILE = "run.sqlite"


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


def free_name(path: Path) -> Path:
    """`path`, or the first of path-2, path-3, ... that does not exist."""
    number, free = 1, path
    while free.exists():
        number, free = number + 1, path.with_name(f"{path.name}-{number + 1}")
    return free


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
