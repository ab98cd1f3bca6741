"""What `ridgerider bench [NAME [PART]]` measures: costs as ratios of one run.

A benchmark is a module with `TASKS`, functions `task(seed)` that yield rows. Machines differ and
are noisy, so what counts is the ratio to the first row of a task.
"""

import importlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Each with its module.
BENCHES = {
    "peers": "peers",
    "networks": "networks",
    "large-maps": "large_maps",
    "rides": "rides",
    "workers": "workers",
    "topsearch": "topsearch_peer",
    "global": "global_minima",  # a keyword of Python
}


@dataclass(frozen=True)
class Row:
    """What one of them spent on a task, and what came of it.

    >>> Row("a task", "a peer", 200.0, "HVPs", "found").cost
    200.0
    """

    task: str
    who: str
    cost: float
    unit: str
    outcome: str = ""


def compare(
    name: str = "peers", part: str | None = None, seed: int = 0, only: str | None = None
) -> Iterator[Row]:
    """The rows of a benchmark, or of one of its parts, as they are measured.

    `only`: the name of one function of `global`.
    """
    if name not in BENCHES:
        raise ValueError(f"the benchmark must be one of {', '.join(BENCHES)}, not {name!r}.")
    module = importlib.import_module(f"{__name__}.{BENCHES[name]}")
    tasks = {task.__name__.replace("_", "-"): task for task in module.TASKS}
    if part is not None and part not in tasks:
        raise ValueError(f"the part of {name} must be one of {', '.join(tasks)}, not {part!r}.")
    if only is not None and name != "global":
        raise ValueError(f"`only` must be left out but for global, not {name}.")
    for task in tasks.values() if part is None else [tasks[part]]:
        yield from task(seed) if only is None else task(seed, only)


def table(rows: list[Row]) -> str:
    """As Markdown, with each cost in units of the task's first.

    >>> rows = [Row("find", "ridgerider", 2.0, "HVPs", "yes"), Row("find", "x", 9.0, "HVPs", "no")]
    >>> print(table(rows).splitlines()[-1])
    | find | x | 9 HVPs | 4.5 | no |
    """
    lines = ["| task | who | cost | ratio | outcome |", "|---|---|---|---|---|"]
    for _, of in itertools.groupby(rows, lambda row: row.task):
        first, *others = of
        for row in (first, *others):
            ratio = f"{row.cost / first.cost:.3g}"
            lines.append(
                f"| {row.task} | {row.who} | {row.cost:.4g} {row.unit} | {ratio} | {row.outcome} |"
            )
    return "\n".join(lines) + "\n"


def memory() -> float:
    """What this process holds, in MB; 0 where the system does not say."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * 4096 / 1e6 if path.exists() else 0.0
