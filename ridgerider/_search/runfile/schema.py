"""The format of a run file: its tables, what each column may hold, and the digest of a row.

One SQLite database, arrays as safetensors blobs, no pickle.

- `meta`: what the run is, as JSON: problem, rider, settings, budget, versions.
- `legs`: one row for the start and for each leg; its points and directions are in `arrays`.
- `solutions`: one row for each descent from the end of a leg, with the ridges that leave the saddle
  that it ended at.
- `branches`: one row each; waiting (`round` is NULL), chosen in a round, or ridden (has a leg).
- `measures`: values that were measured of solutions.

Each row has a digest, BLAKE2b over all of its columns; that of a leg covers the digest of its
solution, so that neither can be lost without the other. `meta` has the sum of all digests, bit by
bit without carry: no row can change, go or come unnoticed.

A file may be damaged, or made by a stranger: a column that does not hold what it should is a
`Damage` that names the row and the column.

At the end: legs and branches as rows, and back. The columns say what becomes of each field; the
arrays of a leg and of its descent are packed into one blob each.
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

from ridgerider._check import one_line
from ridgerider._core.descend.finish import Finish
from ridgerider._core.problem.cost import Cost
from ridgerider._core.spectra.spectrum import Cluster
from ridgerider._search.tree import Branch, Fingerprint, Leg, Ridges, Way

APPLICATION_ID = 0x52696467  # "Ridg"
FORMAT = 5
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
    """One column of one row."""

    def __init__(self, where: object, column: str, why: object):
        self.column = column
        super().__init__(f"{where}, column {column}: {one_line(why)}")


@contextlib.contextmanager
def reading(where: object, column: str) -> Iterator[None]:
    """Whatever goes wrong in here is a `Damage`."""
    try:
        yield
    except Damage:
        raise
    except Exception as error:
        why = f"there is no {error}" if isinstance(error, KeyError) else error
        raise Damage(where, column, why) from error


# --- values with their checks


def is_a(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        what = "NULL" if value is None else f"{type(value).__name__} {one_line(repr(value))[:60]}"
        raise TypeError(f"{getattr(kind, '__name__', 'a number')} was wanted, not {what}")
    return value


def text(value: Any) -> str:
    return is_a(str, value)


def whole(value: Any) -> int:
    if isinstance(value, bool) or is_a(int, value) < 0:
        raise ValueError(f"a whole number of at least 0 was wanted, not {value!r}")
    return value


def fingerprint(value: Any) -> Fingerprint:
    found = Fingerprint.parse(text(value))
    if any(max(turn.index, turn.member) > MAX_TURN for turn in found):
        raise ValueError(f"a turn has a number above {MAX_TURN}")
    return found


def turns(value: list[Any]) -> tuple[tuple[int, int], ...]:
    pairs = [tuple(is_a(list, one)) for one in value]
    if any(len(one) != 2 or max(map(whole, one)) > MAX_TURN for one in pairs):
        raise ValueError("pairs of whole numbers were wanted")
    return tuple((one[0], one[1]) for one in pairs)


def numbers_of(kind: Any, value: Any, item_kind: Any = (int, float, type(None))) -> Any:
    """A dataclass of numbers."""
    for item in is_a(dict, value).values():
        is_a(item_kind, item)
    return kind(**value)


def plain(value: Any) -> Any:
    """Any JSON that is not nested too deeply."""

    def check(item: Any, left: int) -> None:
        if not left:
            raise ValueError("it is nested too deeply")
        if isinstance(item, dict | list):
            for inner in item.values() if isinstance(item, dict) else item:
                check(inner, left - 1)

    found = json.loads(text(value))
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
        {name: np.ascontiguousarray(array) for name, array in named.items()}
    )


def points(array: np.ndarray, shape: tuple[int | None, ...]) -> np.ndarray:
    """Floating-point numbers of this shape; None is any length."""
    fits = len(array.shape) == len(shape) and all(
        wanted in (None, found) for wanted, found in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype not in (np.float32, np.float64):
        raise ValueError(f"it has {array.dtype} of shape {array.shape}")
    return array


def _tuples(value: Any) -> Any:
    """What an order made of a branch: numbers, text, and tuples of them."""
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    return is_a((int, float, str, type(None)), value)


# --- columns and tables


@dataclass(frozen=True)
class Column:
    """A column: its type in SQLite, what it holds of a value, and the value again, checked."""

    type: str
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def json_column(
    read: Callable[[Any], Any], kind: Any = list, write: Callable[[Any], Any] = lambda value: value
) -> Column:
    return Column(
        "TEXT NOT NULL",
        lambda value: json.dumps(write(value)),
        lambda stored: read(is_a(kind, json.loads(text(stored)))),
    )


def list_of(kind: Any) -> Column:
    """Of a dataclass of numbers."""
    return json_column(
        lambda items: tuple(numbers_of(kind, one) for one in items),
        write=lambda values: [vars(one) for one in values],
    )


def optional(column: Column) -> Column:
    """NULL is None."""
    return Column(
        column.type.removesuffix(" NOT NULL"),
        lambda value: None if value is None else column.write(value),
        lambda stored: None if stored is None else column.read(stored),
    )


TEXT = Column("TEXT NOT NULL", str, text)
NAME = Column("TEXT NOT NULL", str, fingerprint)
COUNT = Column("INTEGER NOT NULL", int, whole)
FLAG = Column("INTEGER NOT NULL", int, lambda stored: bool(whole(stored)))
REAL = Column(
    "REAL",  # SQLite keeps NaN as NULL, and knows no negative zero
    lambda value: None if math.isnan(value) else float(value) + 0.0,
    lambda stored: math.nan if stored is None else float(is_a((int, float), stored)),
)
ARRAYS = Column("BLOB NOT NULL", pack, arrays)
COST = json_column(
    lambda spent: numbers_of(Cost, spent, (int, float)),
    dict,
    lambda spent: {name: np.asarray(value).item() for name, value in vars(spent).items()},
)
RIDGES = {
    "num_ridges": COUNT,
    "clusters": list_of(Cluster),
    "turns": json_column(turns),
    "ways": list_of(Way),
}
FINISH = {
    "loss": REAL,
    "grad_norm": REAL,
    "least_eigenvalue": REAL,
    "is_converged": FLAG,
    "is_saddle": FLAG,
    "num_steps": COUNT,
    "num_kicks": COUNT,
    "num_flat": COUNT,
    "error": REAL,
    "doubt_number": COUNT,
    "is_at_infinity": FLAG,
    "limit": REAL,
    "cost": COST,
}
TABLES: dict[str, dict[str, Column]] = {
    "meta": {"key": TEXT, "value": TEXT},
    # Before the legs, whose digests cover theirs.
    "solutions": {
        "fingerprint": NAME,
        **FINISH,
        "same_as": optional(NAME),
        **{name: optional(column) for name, column in RIDGES.items()},
        "arrays": ARRAYS,
    },
    "legs": {
        "fingerprint": NAME,
        "depth": COUNT,
        "loss": REAL,
        "num_steps": COUNT,
        "ended_by": json_column(lambda items: tuple(map(text, items))),
        **RIDGES,
        "linked_to": optional(NAME),
        "is_settled": FLAG,
        "cost": COST,
        "arrays": ARRAYS,
        "trace": ARRAYS,
    },
    "branches": {
        "fingerprint": NAME,
        "parent": NAME,
        "loss": REAL,
        "eigenvalue": REAL,
        "multiplicity": COUNT,
        "priority": json_column(_tuples, object),
        "round": optional(COUNT),
    },
    "measures": {"fingerprint": NAME, "name": TEXT, "value": Column("TEXT", json.dumps, plain)},
}
KEYS = {
    "meta": ("key",),
    "measures": ("fingerprint", "name"),
    **dict.fromkeys(("solutions", "legs", "branches"), ("fingerprint",)),
}
NUMBERED = ("legs", "solutions")  # with a rowid, in the order they were stored


def create_table(table: str) -> str:
    """The statement that makes it."""
    columns = [f"[{name}] {column.type}" for name, column in TABLES[table].items()]
    first = ["id INTEGER PRIMARY KEY"] if table == "legs" else []
    key = f"{'UNIQUE' if first else 'PRIMARY KEY'} ({', '.join(KEYS[table])})"
    end = "" if table in NUMBERED else " WITHOUT ROWID"
    return f"CREATE TABLE {table} ({', '.join([*first, *columns, 'digest BLOB', key])}){end}"


def encode(table: str, values: Mapping[str, Any]) -> Row:
    """A row of values; others that are among them are left out."""
    return {name: column.write(values[name]) for name, column in TABLES[table].items()}


def decode(table: str, row: Row) -> dict[str, Any]:
    """The values of a row, or of some of its columns, each checked."""
    found = {}
    for name, stored in row.items():
        if name == "digest":
            continue
        try:
            found[name] = TABLES[table][name].read(stored)
        except Exception as error:
            raise Damage(row_name(table, row), name, error) from error
    return found


def row_name(table: str, row: Row) -> str:
    """What to call a row in a message."""
    key = row.get(KEYS[table][0])
    names = {
        "meta": "the entry {} of the run",
        "measures": "what was measured of leg {}",
        "branches": "branch {}",
    }
    return names[table].format(one_line(key)) if table in names else leg_name(key)


def leg_name(name: object) -> str:
    return f"leg {one_line(name)}" if str(name) else "the start"


def _check_budget(found: Any) -> None:
    for limit in is_a(dict, found).values():
        is_a((int, float, type(None)), limit)


def _check_problem(found: Any) -> None:
    if not is_a(list, is_a(dict, found)["params"]):
        raise ValueError("there are no parameters")
    for path, shape, dtype in found["params"]:
        text(path), text(dtype)
        for length in is_a(list, shape):
            whole(length)
    text(found["start"]), text(found["data"])


def _check_measures(found: Any) -> None:
    if is_a(dict, found).get("signature") is not None:
        text(is_a(dict, found["signature"])["name"])
    is_a(dict, found.get("metrics", {}))
    for kind in is_a(list, found.get("kinds", [])):
        text(kind)


def _check_starts(found: Any) -> None:
    for start in is_a(list, found):
        for number in is_a(list, start):
            is_a((int, float), number)


META: dict[str, Callable[[Any], Any]] = {
    "name": text,
    "made": text,
    "mover": text,
    "problem": _check_problem,
    "budget": _check_budget,
    "measures": _check_measures,
    "starts": _check_starts,
    **dict.fromkeys(("seconds", "seconds_compiling"), partial(is_a, (int, float))),
    **dict.fromkeys(("rider", "settings", "versions"), partial(is_a, dict)),
}


def read_meta(key: str, value: Any) -> Any:
    """One entry of the table `meta`, checked as far as anybody relies on it."""
    with reading("the run", key):
        found = plain(value)
        if key in META:
            META[key](found)
    return found


def num_params(meta: Mapping[str, Any]) -> int:
    return sum(math.prod(shape) for _, shape, _ in meta["problem"]["params"])


# --- digests


def row_digest(table: str, row: Row, solution: bytes | None = None) -> bytes:
    """Of all columns of a row; for a leg also of the digest of its solution.

    >>> row = {"key": "name", "value": "1"}
    >>> row_digest("meta", row) == row_digest("meta", {**row, "digest": b"of another"})
    True
    """
    parts, blobs = [table], list[bytes]()
    named = {name: row.get(name) for name in TABLES[table]} | {"solution": solution}
    for name, value in named.items():
        if isinstance(value, bytes):
            parts.append(f"{name} bytes {len(value)}")
            blobs.append(value)
        elif value is not None:
            parts.append(f"{name} {type(value).__name__} {value!r}")
    hashed = hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16)
    for blob in blobs:
        hashed.update(blob)
    return hashed.digest()


HISTORY = "history "  # before the names of a training's columns, among its arrays
BRANCH = ("fingerprint", "loss", "eigenvalue", "multiplicity", "priority")  # what is read of one


def leg_to_rows(leg: Leg) -> tuple[Row, Row | None]:
    """The row of a leg and, if a descent followed it, the one of its solution."""
    values = {**vars(leg), **vars(leg.ridges), "depth": leg.fingerprint.depth}
    hessian = {} if leg.hessian is None else {"hessian": leg.hessian}
    arrays = _arrays(leg.ridges) | {"x": leg.x} | hessian
    row = encode("legs", {**values, "arrays": arrays})
    end = leg.finish
    if end is None:
        return row, None
    ridges = dict.fromkeys(RIDGES) if leg.below is None else vars(leg.below)
    arrays = {} if leg.below is None else _arrays(leg.below)
    arrays |= {"x": end.x}
    if end.is_at_infinity and end.runaway is not None:
        arrays["runaway"] = end.runaway
    arrays |= {f"{HISTORY}{name}": column for name, column in (end.history or {}).items()}
    names = {"fingerprint": leg.fingerprint, "same_as": leg.same_as}
    return row, encode("solutions", {**vars(end), **ridges, **names, "arrays": arrays})


def leg_from_rows(row: Row, end: Row | None, size: int | None = None) -> Leg:
    """The leg again; `size` is the number of parameters, if it is known."""
    name, values = leg_name(row["fingerprint"]), decode("legs", row)
    arrays = values.pop("arrays")
    del values["depth"]
    with reading(name, "arrays"):
        x = points(arrays["x"], (size,))
        values["hessian"] = hessian_of(arrays, x.size)
    ridges = _ridges(name, values, arrays, x.size)
    num_steps, trace = values["num_steps"], values["trace"]
    with reading(name, "trace"):
        if trace and "eigenvalue" not in trace:
            raise ValueError("there is no eigenvalue")
        for column, array in trace.items():
            num_axes = 1 + (column in ("neighbours", "path"))
            if array.ndim != num_axes or len(array) != num_steps + 1:
                raise ValueError(f"{column} has shape {array.shape}, not that of {num_steps} steps")
    finish = same_as = below = None
    if end is not None:
        found = decode("solutions", end)
        finish, same_as = _finish(name, found, x.size), found["same_as"]
        if found["num_ridges"] is not None:
            below = _ridges(name, found, found["arrays"], x.size)
    return Leg(**{**values, **vars(ridges)}, x=x, finish=finish, same_as=same_as, below=below)


def checked_leg(row: Row | None, end: Row | None, size: int | None) -> Leg:
    """A leg whose digest and that of its solution fit."""
    row = row or {}
    solution = None if end is None else row_digest("solutions", end)
    is_right = end is None or end["digest"] == solution
    if not is_right or row["digest"] != row_digest("legs", row, solution):
        raise Damage(row_name("legs", row), "digest", "it does not fit")
    return leg_from_rows(row, end, size)


def finish_from_row(end: Row, size: int | None = None) -> Finish:
    """Where a descent ended."""
    return _finish(leg_name(end["fingerprint"]), decode("solutions", end), size)


def branch_to_row(branch: Branch) -> Row:
    """The row of a branch that waits."""
    values = {name: getattr(branch, name) for name in BRANCH}
    try:
        return encode("branches", {**values, "parent": branch.fingerprint.parent, "round": None})
    except TypeError:
        raise ValueError(
            "`order` must return numbers, strings or tuples of them, "
            f"not {type(branch.priority).__name__}."
        ) from None


def hessian_of(arrays: Mapping[str, np.ndarray], size: int) -> np.ndarray | None:
    return points(arrays["hessian"], (size, size)) if "hessian" in arrays else None


def _arrays(ridges: Ridges) -> dict[str, Any]:
    return {"eigenvalues": ridges.eigenvalues, "directions": ridges.directions}


def _ridges(
    name: str, values: Mapping[str, Any], arrays: Mapping[str, np.ndarray], size: int
) -> Ridges:
    with reading(name, "arrays"):
        eigenvalues = points(arrays["eigenvalues"], (None,))
        directions = points(arrays["directions"], (None, size))
    ridges = Ridges(
        **{field: values[field] for field in RIDGES},
        eigenvalues=eigenvalues,
        directions=directions,
    )
    with reading(name, "turns"):
        if not len(ridges.turns) == len(ridges.directions) == len(ridges.ways):
            raise ValueError("there are not as many as directions")
        if any(index >= len(ridges.clusters) for index, _ in ridges.turns):
            raise ValueError("one turns into a cluster that is not there")
    return ridges


def _finish(name: str, values: Mapping[str, Any], size: int | None) -> Finish:
    arrays = values["arrays"]
    with reading(name, "arrays"):
        x = points(arrays["x"], (size,))
        runaway = points(arrays["runaway"], x.shape) if "runaway" in arrays else None
    history = {
        key.removeprefix(HISTORY): array for key, array in arrays.items() if key.startswith(HISTORY)
    }
    more: Any = {"x": x, "runaway": runaway, "history": history or None}
    with reading(name, "doubt_number"):
        finish = Finish(**{field: values[field] for field in FINISH}, **more)
        finish.doubt  # noqa: B018  # one that is known
    return finish
