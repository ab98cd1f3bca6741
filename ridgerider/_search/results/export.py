"""Rows of a run as plain values, and the files that hold them: CSV and JSON."""

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from ridgerider._search.tree.tree import Leg

if TYPE_CHECKING:
    from ridgerider._search.results.result import Solution

Row = dict[str, Any]
MAX_COLUMNS = 10_000  # of a CSV file that a spreadsheet can still open


def solution_row(one: "Solution") -> Row:
    """A solution without its parameters; `loss` is the limit if it is at infinity."""
    return {
        "fingerprint": str(one.fingerprint),
        "kind": one.kind,
        "loss": one.level,
        "grad_norm": one.grad_norm,
        "least_eigenvalue": one.least_eigenvalue,
        "num_flat": one.num_flat,
        "error": one.error,
        "multiplicity": one.multiplicity,
        "equivalent_to": "" if one.equivalent_to is None else str(one.equivalent_to),
        "num_copies": one.num_copies,
        "doubt": one.doubt,
    }


def leg_row(leg: Leg, end: "Solution | None") -> Row:
    """A leg: how its descent ended, what the ride did, what both cost."""
    nothing = {"kind": "", "loss": math.nan, "least_eigenvalue": math.nan, "equivalent_to": ""}
    ended = nothing if end is None else {name: solution_row(end)[name] for name in nothing}
    return {
        "fingerprint": str(leg.fingerprint),
        **ended,
        "depth": leg.fingerprint.depth,
        "ride_loss": leg.loss,
        "num_steps": leg.num_steps,
        "ended_by": ", ".join(leg.ended_by),
        "num_ridges": leg.num_ridges,
        "linked_to": "" if leg.linked_to is None else str(leg.linked_to),
        "hvps": int(leg.cost.hvps),
        "gradients": int(leg.cost.gradients),
        "values": int(leg.cost.values),
        "seconds": float(leg.cost.seconds),
    }


def leaves(params: Sequence[Sequence[Any]], x: np.ndarray) -> dict[str, np.ndarray]:
    """Vectors, one or a stack of them, taken apart into the leaves that a run file describes.

    >>> leaves([["['a']", [2], "float64"], ["['b']", [], "float64"]], np.arange(3.0))
    {"params['a']": array([0., 1.]), "params['b']": array(2.)}
    """
    found, first = {}, 0
    for name, shape, dtype in (one[:3] for one in params):
        last = first + math.prod(shape)
        part = x[..., first:last].reshape((*x.shape[:-1], *shape))
        found[f"params{name}"] = part.astype(jnp.dtype(dtype))
        first = last
    return found


def numbers(params: Sequence[Sequence[Any]], x: np.ndarray) -> dict[str, float]:
    """Each parameter by its name.

    >>> numbers([["['a']", [2], "float64"]], np.array([1.0, 2.0]))
    {"params['a'][0]": 1.0, "params['a'][1]": 2.0}
    """
    named = {}
    for name, leaf in leaves(params, x).items():
        for place in np.ndindex(leaf.shape):
            where = ",".join(map(str, place))
            named[f"{name}[{where}]" if place else name] = float(leaf[place])
    return named


def check_columns(num_params: int) -> None:
    if num_params > MAX_COLUMNS:
        raise ValueError(
            f"a CSV file would have a column for each of {num_params} parameters, and at most "
            f"{MAX_COLUMNS} are sensible: choose npz or safetensors."
        )


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    rows = list(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(plain(content), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def plain(value: Any) -> Any:
    """What JSON can hold: arrays as lists, NaN and infinity as null.

    >>> plain({"x": np.array([1.0, np.inf])})
    {'x': [1.0, None]}
    """
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
