"""Rows of a run as plain values, and the files that hold them: CSV, JSON and npz.

For notebooks: plain HTML without script, and tables of pandas. All text is escaped: names and
doubts come from run files.
"""

import csv
import html
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgerider._check import check_directory, needs
from ridgerider._core.problem.problem import flat
from ridgerider._search.tree import Leg

if TYPE_CHECKING:
    from ridgerider._search.results.result import Solution

Row = dict[str, Any]
Params = Sequence[Sequence[Any]]  # path, shape and dtype of each leaf, as the run file has them
FORMATS = ("csv", "json", "npz")
TABLES = ("solutions", "minima", "legs")
MAX_COLUMNS = 10_000  # of a CSV file that a spreadsheet can still open


def leg_row(leg: Leg, end: "Solution | None") -> Row:
    """A leg: how its descent ended, what the ride did, what both cost."""
    nothing = {"kind": "", "loss": math.nan, "least_eigenvalue": math.nan, "equivalent_to": ""}
    ended = nothing if end is None else {name: end.as_row()[name] for name in nothing}
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


def solution_row(one: "Solution", params: Params) -> Row:
    """A solution with its parameters, an array for each leaf that a run file describes."""
    row, x, first = one.as_row(), flat(one.params), 0
    for name, shape, dtype in (leaf[:3] for leaf in params):
        last = first + math.prod(shape)
        row[f"params{name}"] = x[first:last].reshape(shape).astype(jnp.dtype(dtype))
        first = last
    return row


def check_export(path: Path, table: str, params: Params) -> None:
    """Raise unless the table can be written there."""
    kind = path.suffix.removeprefix(".")
    if kind not in FORMATS:
        *first, last = (f".{one}" for one in FORMATS)
        raise ValueError(f"`path` must end in {', '.join(first)} or {last}, not {path.suffix!r}.")
    check_directory("path", path)
    size = sum(math.prod(shape) for _, shape, *_ in params)
    if kind == "csv" and table != "legs" and size > MAX_COLUMNS:
        raise ValueError(
            f"a CSV file would have a column for each of {size} parameters, and at most "
            f"{MAX_COLUMNS} are sensible: choose npz."
        )


def write_rows(path: Path, rows: Sequence[Row], table: str, about: Mapping[str, Any]) -> Path:
    """As JSON, which also says `about` what run they are; as stacked arrays; or as CSV."""
    if path.suffix == ".json":
        text = json.dumps(plain({**about, table: rows}), indent=1, allow_nan=False)
        path.write_text(f"{text}\n", encoding="utf-8")
    elif path.suffix == ".npz":
        names = rows[0] if rows else ()
        arrays: Any = {name: np.stack([row[name] for row in rows]) for name in names}
        np.savez(path, **arrays)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            lines = list(map(_cells, rows))
            writer = csv.DictWriter(file, list(lines[0]) if lines else [])
            writer.writeheader()
            writer.writerows(lines)
    return path


def _cells(row: Row) -> Row:
    """A row with a column for each number of its arrays."""
    cells = {}
    for name, value in row.items():
        for place, one in np.ndenumerate(value):
            cells[f"{name}[{','.join(map(str, place))}]" if place else name] = one
    return cells


def plain(value: Any, infinite: Callable[[float], Any] = lambda value: None) -> Any:
    """What JSON can hold: arrays as lists, NaN and infinity as null, or as `infinite` says.

    >>> plain({"x": np.array([1.0, np.inf])}), plain([-np.inf], str)
    ({'x': [1.0, None]}, ['-inf'])
    """
    if isinstance(value, Mapping):
        return {name: plain(item, infinite) for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return plain(np.asarray(value).tolist(), infinite)
    if isinstance(value, list | tuple):
        return [plain(item, infinite) for item in value]
    return infinite(value) if isinstance(value, float) and not math.isfinite(value) else value


MAX_ROWS = 12
LEFT = '"text-align:left"'


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """The first rows, and how many there are besides.

    >>> "&lt;b&gt;" in table(["name"], [["<b>"]])
    True
    """
    head = "".join(f"<th style={LEFT}>{html.escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr>{''.join(f'<td style={LEFT}>{html.escape(str(cell))}</td>' for cell in row)}</tr>"
        for row in rows[:MAX_ROWS]
    )
    more = f"<p>... and {len(rows) - MAX_ROWS} more</p>" if len(rows) > MAX_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text as columns, for a terminal.

    >>> print(aligned([["name", "loss"], ["a", "-1.5"]]))
    name  loss
    a     -1.5
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def frame(rows: Any) -> Any:
    """A pandas table, where pandas is installed."""
    with needs("pandas", "a table"):
        import pandas
    return pandas.DataFrame(rows)
