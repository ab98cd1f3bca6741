"""Rows of a run file as plain data for JSON, and a file that was cut short made readable."""

import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COSTS = ("values", "gradients", "hvps", "hessians", "eigendecompositions", "seconds")


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """The file itself; of one that was cut short a copy with zeros in place of what is missing.

    SQLite does not even look at a file that is shorter than it says.
    """
    with path.open("rb") as file:
        head = file.read(32)
    page_size = int.from_bytes(head[16:18])
    size = (65536 if page_size == 1 else page_size) * int.from_bytes(head[28:32])
    wal = Path(f"{path}-wal")
    is_growing = wal.exists() and wal.stat().st_size > 0
    if path.stat().st_size >= size or is_growing or not head.startswith(b"SQLite format 3"):
        yield path
        return
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "run.sqlite"
        shutil.copy(path, copy)
        os.truncate(copy, size)
        yield copy


def number(value: Any) -> float | None:
    """A number that JSON can hold; None for NaN and infinity."""
    return None if value is None or not math.isfinite(value) else float(value)


def plain(value: Any) -> Any:
    """What JSON can hold: NaN and infinity as words.

    >>> plain({"size": [1.0, float("inf")]})
    {'size': [1.0, 'inf']}
    """
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def plain_cost(cost: dict[str, Any]) -> list[float]:
    return [cost.get(name, 0) for name in COSTS]


def plain_cluster(cluster: dict[str, Any]) -> list[float | None]:
    """Eigenvalue, multiplicity, spread, gap, whether it is complete."""
    return [
        number(cluster["eigenvalue"]),
        int(cluster["multiplicity"]),
        number(cluster["spread"]),
        number(cluster["gap"]),
        int(cluster.get("is_complete", True)),
    ]
