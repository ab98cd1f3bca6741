"""The format of a run file: its tables, what each column may hold, and the digest of a row.

One SQLite database, arrays as safetensors blobs, no pickle.

- `meta`: what the run is, as JSON: problem, rider, settings, budget, versions.
- `legs`: one row for the start and for each leg, with the end of the descent that followed it
  (`finish`, `end_arrays`) and the ridges that leave the saddle at which that ended (`below`).
- `branches`: one row each; waiting (`round` is NULL), chosen in a round, or ridden (has a leg).
- `measures`: values that were measured of solutions.

Each row has a digest, BLAKE2b over all of its columns. `meta` has the sum of all digests, bit by
bit without carry: no row can change, go or come unnoticed.

A file may be damaged, or made by a stranger: a column that does not hold what it should is a
`Damage` that names the row and the column.
"""

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import safetensors.numpy

from ridgerider._check import Whole, fits, one_line
from ridgerider._core.descend.finish import Finish
from ridgerider._core.problem.cost import Cost
from ridgerider._core.spectra.spectrum import Cluster
from ridgerider._search.tree import Branch, Budget, Fingerprint, Leg, Ridges, Settings, Way

APPLICATION_ID = 0x52696467  # "Ridg"
FORMAT = 6
SUM = "sum"  # of all digests but its own, in `meta`
REPAIRED = "repaired"  # in `meta`: whether it has to be replayed
# Entries of `meta` of any run.
NEEDED = ("name", "problem", "mover", "rider", "symmetry", "valid", "settings", "budget")
MAX_TURN = 2**32 - 1
MAX_NESTED = 50  # levels of JSON

Row = dict[str, Any]  # by column, as SQLite holds it


class DamagedRun(ValueError):
    """A run file that cannot be what was written; the message names the leg and the column."""


class Damage(ValueError):
    """What is damaged, and why."""


@contextlib.contextmanager
def reading(where: str) -> Iterator[None]:
    """Whatever goes wrong in here is a `Damage`."""
    try:
        yield
    except Damage:
        raise
    except Exception as error:
        why = f"there is no {error}" if isinstance(error, KeyError) else error
        raise Damage(f"{where}: {one_line(why)}") from error


# --- values with their checks


def is_a(hint: Any, value: Any) -> Any:
    """The value, which must be what an annotation says."""
    if not fits(hint, value):
        what = "NULL" if value is None else f"{type(value).__name__} {one_line(repr(value))[:60]}"
        raise TypeError(f"{getattr(hint, '__name__', hint)} was wanted, not {what}")
    return value


def fingerprint(value: Any) -> Fingerprint:
    found = Fingerprint.parse(is_a(str, value))
    if any(max(turn.index, turn.member) > MAX_TURN for turn in found):
        raise ValueError(f"a turn has a number above {MAX_TURN}")
    return found


def numbers_of(kind: Any, value: Any) -> Any:
    """A dataclass of numbers."""
    return kind(**is_a(dict[str, float | bool], value))


def plain(value: Any) -> Any:
    """Any JSON that is not nested too deeply."""

    def check(item: Any, left: int) -> None:
        if not left:
            raise ValueError("it is nested too deeply")
        if isinstance(item, dict | list):
            for inner in item.values() if isinstance(item, dict) else item:
                check(inner, left - 1)

    found = json.loads(is_a(str, value))
    check(found, MAX_NESTED)
    return found


def arrays(value: Any) -> dict[str, np.ndarray]:
    found = safetensors.numpy.load(is_a(bytes, value))
    for name, array in found.items():
        if array.dtype.kind not in "fiub":
            raise ValueError(f"{name} is of type {array.dtype}")
    return found


def pack(named: Mapping[str, Any]) -> bytes:
    return safetensors.numpy.save(
        {name: np.ascontiguousarray(array) for name, array in named.items() if array is not None}
    )


def points(array: np.ndarray, shape: tuple[int | None, ...]) -> np.ndarray:
    """Floating-point numbers of this shape; None is any length."""
    fits_in = len(array.shape) == len(shape) and all(
        wanted in (None, found) for wanted, found in zip(shape, array.shape, strict=True)
    )
    if not fits_in or array.dtype not in (np.float32, np.float64):
        raise ValueError(f"it has {array.dtype} of shape {array.shape}")
    return array


def _tuples(value: Any) -> Any:
    """What an order made of a branch: numbers, text, and tuples of them."""
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    return is_a(float | bool | str | None, value)


def _scalars(value: Any) -> dict[str, Any]:
    """The numbers of a dataclass."""
    found = {name: np.asarray(one) for name, one in vars(value).items() if one is not None}
    return {name: one.item() for name, one in found.items() if not one.ndim and one.dtype != object}


def _ridges_to_json(ridges: Ridges) -> dict[str, Any]:
    lists = {name: [vars(one) for one in getattr(ridges, name)] for name in ("clusters", "ways")}
    return {"num_ridges": ridges.num_ridges, "turns": ridges.turns, **lists}


def _ridges_from_json(found: dict[str, Any]) -> dict[str, Any]:
    """The fields of `Ridges` that are not arrays."""
    turns = tuple(map(tuple, is_a(list[list[Whole]], found["turns"])))
    if any(len(one) != 2 for one in turns):
        raise ValueError("pairs of whole numbers were wanted")
    clusters = tuple(numbers_of(Cluster, one) for one in found["clusters"])
    ways = tuple(numbers_of(Way, one) for one in found["ways"])
    if len(turns) != len(ways) or any(index >= len(clusters) for index, _ in turns):
        raise ValueError("a turn has no cluster, or no way")
    num_ridges = is_a(Whole, found["num_ridges"])
    return {"num_ridges": num_ridges, "turns": turns, "clusters": clusters, "ways": ways}


# --- columns and tables


@dataclass(frozen=True)
class Column:
    """A column: its type in SQLite, what it holds of a value, and the value again, checked."""

    type: str
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def json_column(
    read: Callable[[Any], Any], hint: Any, write: Callable[[Any], Any] = lambda value: value
) -> Column:
    return Column(
        "TEXT NOT NULL",
        lambda value: json.dumps(write(value)),
        lambda stored: read(is_a(hint, json.loads(is_a(str, stored)))),
    )


def optional(column: Column) -> Column:
    """NULL is None."""
    return Column(
        column.type.removesuffix(" NOT NULL"),
        lambda value: None if value is None else column.write(value),
        lambda stored: None if stored is None else column.read(stored),
    )


TEXT = Column("TEXT NOT NULL", str, lambda stored: is_a(str, stored))
NAME = Column("TEXT NOT NULL", str, fingerprint)
COUNT = Column("INTEGER NOT NULL", int, lambda stored: is_a(Whole, stored))
FLAG = Column("INTEGER NOT NULL", int, lambda stored: bool(is_a(Whole, stored)))
REAL = Column(
    "REAL",  # SQLite keeps NaN as NULL, and knows no negative zero
    lambda value: None if math.isnan(value) else float(value) + 0.0,
    lambda stored: math.nan if stored is None else float(is_a(float, stored)),
)
ARRAYS = Column("BLOB NOT NULL", pack, arrays)
COST = json_column(partial(numbers_of, Cost), dict, _scalars)
RIDGES = json_column(_ridges_from_json, dict, _ridges_to_json)
FINISH = json_column(
    dict,
    dict[str, float | bool],
    lambda end: _scalars(end) | {f"cost.{name}": one for name, one in _scalars(end.cost).items()},
)
TABLES: dict[str, dict[str, Column]] = {
    "meta": {"key": TEXT, "value": TEXT},
    "legs": {
        "fingerprint": NAME,
        "depth": COUNT,
        "loss": REAL,
        "num_steps": COUNT,
        "ended_by": json_column(tuple, list[str]),
        "linked_to": optional(NAME),
        "same_as": optional(NAME),
        "is_settled": FLAG,
        "cost": COST,
        "finish": optional(FINISH),
        "ridges": RIDGES,
        "below": optional(RIDGES),
        "arrays": ARRAYS,
        "end_arrays": optional(ARRAYS),
        "trace": ARRAYS,
    },
    "branches": {
        "fingerprint": NAME,
        "loss": REAL,
        "eigenvalue": REAL,
        "multiplicity": COUNT,
        "priority": json_column(_tuples, Any),
        "round": optional(COUNT),
    },
    "measures": {"fingerprint": NAME, "name": TEXT, "value": Column("TEXT", json.dumps, plain)},
}
KEYS = {
    "meta": ("key",),
    "legs": ("fingerprint",),
    "branches": ("fingerprint",),
    "measures": ("fingerprint", "name"),
}


def create_table(table: str) -> str:
    """The statement that makes it."""
    columns = [f"[{name}] {column.type}" for name, column in TABLES[table].items()]
    key = f"PRIMARY KEY ({', '.join(KEYS[table])})"
    if table == "legs":  # numbered in the order they were stored
        parts = ["id INTEGER PRIMARY KEY", *columns, "digest BLOB", "UNIQUE (fingerprint)"]
        return f"CREATE TABLE legs ({', '.join(parts)})"
    return f"CREATE TABLE {table} ({', '.join([*columns, 'digest BLOB', key])}) WITHOUT ROWID"


def encode(table: str, values: Mapping[str, Any]) -> Row:
    """A row of values; others that are among them are left out."""
    return {name: column.write(values[name]) for name, column in TABLES[table].items()}


def decode(table: str, row: Row) -> dict[str, Any]:
    """The values of a row, or of some of its columns, each checked."""
    found = {}
    for name in row.keys() & TABLES[table].keys():
        with reading(f"{row_name(table, row)}, column {name}"):
            found[name] = TABLES[table][name].read(row[name])
    return found


def row_name(table: str, row: Row) -> str:
    """What to call a row in a message."""
    key = one_line(row.get(KEYS[table][0]))
    names = {
        "meta": f"the entry {key} of the run",
        "measures": f"what was measured of leg {key}",
        "branches": f"branch {key}",
    }
    return names.get(table) or leg_name(row.get("fingerprint", ""))


def leg_name(name: object) -> str:
    return f"leg {one_line(name)}" if str(name) else "the start"


def _is_problem(found: Any) -> bool:
    is_right = all(
        fits(list[str], [path, dtype]) and fits(list[Whole], shape)
        for path, shape, dtype in found["params"]
    )
    return is_right and bool(found["params"]) and fits(list[str], [found["start"], found["data"]])


def _is_measures(found: Any) -> bool:
    signature = found.get("signature") or {"name": ""}
    is_right = fits(str, signature["name"]) and fits(dict[str, Any], found.get("metrics", {}))
    return is_right and fits(list[str], found.get("kinds", []))


META: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("name", "made", "mover"), lambda found: fits(str, found)),
    **dict.fromkeys(("seconds", "seconds_compiling"), lambda found: fits(float, found)),
    **dict.fromkeys(("rider", "versions"), lambda found: fits(dict[str, Any], found)),
    "problem": _is_problem,
    "budget": lambda found: Budget(**found),
    "settings": lambda found: Settings(**found),
    "measures": _is_measures,
    "starts": lambda found: fits(list[list[float]], found),
}


def read_meta(key: str, value: Any) -> Any:
    """One entry of the table `meta`, checked as far as anybody relies on it."""
    with reading(f"the run, column {key}"):
        found = plain(value)
        if key in META and not META[key](found):
            raise ValueError(f"it cannot be {one_line(value)[:60]}")
    return found


def num_params(meta: Mapping[str, Any]) -> int:
    return sum(math.prod(shape) for _, shape, _ in meta["problem"]["params"])


def row_digest(table: str, row: Row) -> bytes:
    """Of all columns of a row.

    >>> row = {"key": "name", "value": "1"}
    >>> row_digest("meta", row) == row_digest("meta", {**row, "digest": b"of another"})
    True
    """
    parts, blobs = [table], list[bytes]()
    for name in TABLES[table]:
        value = row.get(name)
        if isinstance(value, bytes):
            parts.append(f"{name} bytes {len(value)}")
            blobs.append(value)
        elif value is not None:
            parts.append(f"{name} {type(value).__name__} {value!r}")
    hashed = hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16)
    for blob in blobs:
        hashed.update(blob)
    return hashed.digest()


# --- legs and branches as rows, and back

HISTORY = "history "  # before the names of a training's columns, among its arrays
BRANCH = ("fingerprint", "loss", "eigenvalue", "multiplicity", "priority")  # what is read of one
END = ("fingerprint", "finish", "end_arrays")  # what is read of where a descent ended


def leg_to_row(leg: Leg) -> Row:
    end = leg.finish
    ends: dict[str, Any] | None = None
    if end is not None:
        ends = {"x": end.x, "runaway": end.runaway if end.is_at_infinity else None}
        ends |= {f"{HISTORY}{name}": column for name, column in (end.history or {}).items()}
        ends |= {} if leg.below is None else _arrays(leg.below)
    named = {"x": leg.x, "hessian": leg.hessian, **_arrays(leg)}
    more = {"depth": leg.fingerprint.depth, "ridges": leg, "arrays": named, "end_arrays": ends}
    return encode("legs", vars(leg) | more)


def leg_from_row(row: Row, size: int | None = None) -> Leg:
    """The leg again; `size` is the number of parameters, if it is known."""
    values = decode("legs", row)
    named, ends, num_steps = values.pop("arrays"), values.pop("end_arrays"), values["num_steps"]
    with reading(leg_name(row["fingerprint"])):
        x = values["x"] = points(named["x"], (size,))
        if "hessian" in named:
            values["hessian"] = points(named["hessian"], (x.size, x.size))
        values |= vars(_ridges(values.pop("ridges"), named, x.size))
        if values["trace"] and "eigenvalue" not in values["trace"]:
            raise ValueError("there is no eigenvalue")
        for column, array in values["trace"].items():
            num_axes = 1 + (column in ("neighbours", "path"))
            if array.ndim != num_axes or len(array) != num_steps + 1:
                raise ValueError(f"{column} has shape {array.shape}, not that of {num_steps} steps")
        if values["finish"] is not None:
            values["finish"] = end_from_row(row, x.size)
        if values["below"] is not None:
            values["below"] = _ridges(values["below"], ends, x.size)
        del values["depth"]
        return Leg(**values)


def end_from_row(row: Row, size: int | None = None) -> Finish:
    """Where a descent ended."""
    values = decode("legs", {key: row[key] for key in END})
    found, named = values["finish"], values["end_arrays"]
    past = {key.removeprefix(HISTORY): named[key] for key in named if key.startswith(HISTORY)}
    with reading(leg_name(row["fingerprint"])):
        found["x"] = points(named["x"], (size,))
        if "runaway" in named:
            found["runaway"] = points(named["runaway"], found["x"].shape)
        cost = {key.removeprefix("cost."): found.pop(key) for key in [*found] if "." in key}
        finish = Finish(**found, cost=Cost(**cost), history=past or None)
        finish.doubt  # noqa: B018  # one that is known
        return finish


def branch_to_row(branch: Branch) -> Row:
    """The row of a branch that waits."""
    values = {name: getattr(branch, name) for name in BRANCH}
    try:
        return encode("branches", {**values, "round": None})
    except TypeError:
        raise ValueError(
            "`order` must return numbers, strings or tuples of them, "
            f"not {type(branch.priority).__name__}."
        ) from None


def _arrays(ridges: Ridges) -> dict[str, Any]:
    return {"eigenvalues": ridges.eigenvalues, "directions": ridges.directions}


def _ridges(values: dict[str, Any], named: Mapping[str, np.ndarray], size: int) -> Ridges:
    eigenvalues = points(named["eigenvalues"], (None,))
    directions = points(named["directions"], (len(values["turns"]), size))
    return Ridges(**values, eigenvalues=eigenvalues, directions=directions)
