"""The map of seven atoms and TopSearch, one after the other: seconds and gradients for a point.

TOPSEARCH_PYTHON=... python -m ridgerider_experiments.bench.topsearch
"""

import tempfile
from pathlib import Path
from typing import Any

import jax

from ridgerider_experiments import clusters


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    settings = clusters.Settings()
    with tempfile.TemporaryDirectory() as folder:
        ours = clusters._cluster(7, settings, Path(folder), print)
    theirs = clusters._topsearch(settings, print)
    print("| what | points | seconds | a point | gradient-equivalents a point |\n|" + "---|" * 5)
    seconds = [
        _row("map", ours, ours["wall_seconds"]),
        _row("TopSearch", theirs, theirs["seconds"]),
    ]
    gradients = theirs["per_point"] / ours["per_point"]
    print(
        f"a point costs {gradients:.1f} times fewer, {seconds[1] / seconds[0]:.0f} times less time"
    )


def _row(name: str, results: dict[str, Any], seconds: float) -> float:
    points = results["minima"] + results["saddles"]
    each = seconds / points
    print(f"| {name} | {points} | {seconds:.1f} | {each:.2f} | {results['per_point']:,.0f} |")
    return each


if __name__ == "__main__":
    main()
