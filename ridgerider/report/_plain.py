"""Rows of a run file as plain data for JSON."""

import math
from typing import Any

from ridgerider._core.descend.finish import Finish
from ridgerider._core.problem.cost import Cost
from ridgerider._core.spectra.spectrum import Cluster

COSTS = ("values", "gradients", "hvps", "hessians", "eigendecompositions", "seconds")


def number(value: Any) -> float | None:
    """A number that JSON can hold; None for NaN and infinity."""
    return float(value) if math.isfinite(value) else None


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


def plain_cost(cost: Cost) -> list[float]:
    return [float(getattr(cost, name)) for name in COSTS]


def plain_cluster(cluster: Cluster) -> list[float | None]:
    """Eigenvalue, multiplicity, spread, gap, whether it is complete."""
    return [
        number(cluster.eigenvalue),
        int(cluster.multiplicity),
        number(cluster.spread),
        number(cluster.gap),
        int(cluster.is_complete),
    ]


def plain_finish(finish: Finish) -> dict[str, Any]:
    return {
        "loss": number(finish.loss),
        "grad_norm": number(finish.grad_norm),
        "least_eigenvalue": number(finish.least_eigenvalue),
        "kind": finish.kind,
        "doubt": finish.doubt,
        "num_flat": int(finish.num_flat),
        "limit": number(finish.limit),
        "num_steps": int(finish.num_steps),
        "num_kicks": int(finish.num_kicks),
        "cost": plain_cost(finish.cost),
    }


def count(number: int, one: str, many: str) -> str:
    """So many of a thing.

    >>> count(1, "leg", "legs"), count(2000, "leg", "legs")
    ('1 leg', '2,000 legs')
    """
    return f"{number:,} {one if number == 1 else many}"
