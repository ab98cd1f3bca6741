"""The settings of an experiment: each with its full size and, where it differs, its quick one."""

import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

T = TypeVar("T")


def sized(full: T, quick: T) -> T:
    """A field whose value is smaller with `--quick`."""
    return field(default=full, metadata={"quick": quick})


@dataclass(frozen=True)
class Base:
    """What all experiments have.

    >>> @dataclass(frozen=True)
    ... class Settings(Base):
    ...     num_trees: int = sized(20, quick=3)
    >>> Settings().num_trees, Settings.quick(7)
    (20, Settings(seed=7, num_trees=3))
    """

    version: ClassVar[int] = 1  # raised with a change of the code that changes what a job gives
    seed: int = 0

    @classmethod
    def of(cls, job: dict[str, Any]) -> Self:
        """Those that a job was made with; JSON has lists where these have tuples."""
        known: dict[str, Any] = {one.name: job[one.name] for one in fields(cls) if one.name in job}
        known |= {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
        return cls(**known)

    def job(self, *others: str, **own: Any) -> dict[str, Any]:
        """What decides the result of a job: these settings without `others`, and its own values."""
        left_out = ("workers", *others)
        known = {name: of for name, of in asdict(self).items() if name not in left_out}
        return {"version": self.version, **known, **own}

    @classmethod
    def quick(cls, seed: int) -> Self:
        small = {one.name: one.metadata["quick"] for one in fields(cls) if "quick" in one.metadata}
        return cls(**{**small, "seed": seed})


def about() -> dict[str, Any]:
    """What a result was made by and on: version, commit if there is one, processor."""
    here = Path(__file__).parent
    asked = ["git", "-C", str(here), "rev-parse", "--short", "HEAD"]
    try:
        commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = ""
    return {
        "version": metadata.version("ridgerider"),
        "commit": commit,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
    }
