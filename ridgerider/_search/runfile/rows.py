"""What the columns of a run file may hold, and the digest of a row.

Everything that is read from a file is read here: what does not fit is a `Damage` that names the leg
and the column. A digest is BLAKE2b over all columns of a row, numbers and blobs together; that of a
leg covers the digest of its solution, so that neither can be lost without the other.
"""

import contextlib
import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
import safetensors.numpy

from ridgerider._check import one_line
from ridgerider._core.problem.cost import Cost
from ridgerider._core.spectra.spectrum import Cluster
from ridgerider._search.tree.tree import Fingerprint, Way

T = TypeVar("T")
BAD = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
    MemoryError,
    struct.error,
    safetensors.SafetensorError,
)
MAX_TURN = 2**32 - 1


class DamagedRun(ValueError):
    """A run file that cannot be what was written; the message names the leg and the column."""


class Damage(ValueError):
    """One column of one row."""

    def __init__(self, where: object, column: str, why: object):
        self.where, self.column, self.why = str(where), column, one_line(why)
        super().__init__(f"{self.where}, column {column}: {self.why}")


def leg_name(fingerprint: object) -> str:
    return f"leg {one_line(fingerprint)}" if str(fingerprint) else "the start"


@contextlib.contextmanager
def reading(where: object, column: str) -> Iterator[None]:
    """Whatever goes wrong in here is a `Damage`."""
    try:
        yield
    except Damage:
        raise
    except BAD as error:
        why = f"there is no {error}" if isinstance(error, KeyError) else error
        raise Damage(where, column, why) from error


# --- what a column may hold


def text(value: Any) -> str:
    return _is(str, value)


def real(value: Any) -> float:
    """SQLite keeps NaN as NULL."""
    return float("nan") if value is None else float(_is((int, float), value))


def whole(value: Any, least: int = 0) -> int:
    if isinstance(value, bool) or _is(int, value) < least:
        raise ValueError(f"a whole number of at least {least} was wanted, not {value!r}")
    return value


def flag(value: Any) -> bool:
    return bool(whole(value))


def parsed(value: Any, kind: type[T]) -> T:
    """JSON that holds such a thing."""
    return _is(kind, json.loads(text(value)))


def address(value: Any) -> Fingerprint:
    return Fingerprint.parse(text(value))


def texts(value: Any) -> tuple[str, ...]:
    return tuple(text(item) for item in parsed(value, list))


def turns(value: list[Any]) -> tuple[tuple[int, int], ...]:
    pairs = [tuple(_is(list, one)) for one in value]
    if any(len(one) != 2 or max(map(whole, one)) > MAX_TURN for one in pairs):
        raise ValueError("pairs of whole numbers were wanted")
    return tuple((one[0], one[1]) for one in pairs)


def clusters(value: list[Any]) -> tuple[Cluster, ...]:
    return tuple(known(Cluster, one) for one in value)


def ways(value: list[Any]) -> tuple[Way, ...]:
    return tuple(known(Way, one) for one in value)


def cost(value: Any) -> Cost:
    found = known(Cost, parsed(value, dict))
    for one in fields(found):
        _is((int, float), getattr(found, one.name))
    return found


def known(kind: type[T], data: Any) -> T:
    """A value of numbers; what a newer version may have added to it is left out."""
    names = {one.name for one in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    values = {name: item for name, item in _is(dict, data).items() if name in names}
    for item in values.values():
        if item is not None:
            _is((int, float, bool), item)
    return kind(**values)


def arrays(value: Any) -> dict[str, np.ndarray]:
    found = safetensors.numpy.load(_is(bytes, value))
    for name, array in found.items():
        if array.dtype.kind not in "fiub":
            raise ValueError(f"{name} is of type {array.dtype}")
    return found


def points(array: np.ndarray, shape: tuple[int | None, ...]) -> np.ndarray:
    """Floating-point numbers of this shape; None is any length."""
    fits = len(array.shape) == len(shape) and all(
        wanted in (None, found) for wanted, found in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype not in (np.float32, np.float64):
        raise ValueError(f"it has {array.dtype} of shape {array.shape}")
    return array


def priority(value: Any) -> Any:
    """What an order made of a branch: numbers, text, and tuples of them."""
    return _tuples(json.loads(text(value)))


def plain(value: Any) -> Any:
    """Any JSON that is not nested too deeply."""
    found = json.loads(text(value))
    _check_depth(found)
    return found


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    return _is((int, float, str, type(None)), value)


def _is(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{getattr(kind, '__name__', 'a number')} was wanted, not {_what(value)}")
    return value


def _what(value: Any) -> str:
    return "NULL" if value is None else f"{type(value).__name__} {one_line(repr(value))[:60]}"


# --- what the run is


def meta(key: str, value: Any) -> Any:
    """One entry of the table `meta`, checked as far as anybody relies on it."""
    with reading("the run", key):
        found = json.loads(text(value))
        _check_depth(found)
        if key in ("name", "made"):
            text(found)
        elif key in ("rider", "settings", "budget", "versions", "problem"):
            _is(dict, found)
        if key == "budget":
            for limit in found.values():
                _is((int, float, type(None)), limit)
        if key == "problem":
            _check_problem(found)
        if key == "measures":
            _check_measures(found)
        if key == "settled":
            whole(found)
        if key == "seconds_compiling":
            _is((int, float), found)
    return found


def _check_depth(value: Any, left: int = 50) -> None:
    if not left:
        raise ValueError("it is nested too deeply")
    inner = value.values() if isinstance(value, dict) else value
    for item in inner if isinstance(value, dict | list) else ():
        _check_depth(item, left - 1)


def _check_problem(found: dict[str, Any]) -> None:
    if not _is(list, found["params"]):
        raise ValueError("there are no parameters")
    for path, shape, dtype in found["params"]:
        text(path), text(dtype)
        for length in _is(list, shape):
            whole(length)
    for name in ("start", "data", *_is(list, found.get("arrays", []))):
        text(found[name] if name in ("start", "data") else name)


def _check_measures(found: Any) -> None:
    if _is(dict, found).get("signature") is not None:
        text(_is(dict, found["signature"])["name"])
    _is(dict, found.get("metrics", {}))
    for kind in _is(list, found.get("kinds", [])):
        text(kind)


# --- digests


def digest(table: str, row: Mapping[str, Any]) -> bytes:
    """Of all columns but its own; one that a later version adds is NULL, and has no part in it.

    >>> digest("legs", {"loss": 1.0, "added": None}) == digest("legs", {"loss": 1.0})
    True
    """
    parts, blobs = [table], list[bytes]()
    for name in sorted(row):
        value = row[name]
        if value is None or name in ("digest", "id"):
            continue
        if isinstance(value, bytes):
            parts.append(f"{name} bytes {len(value)}")
            blobs.append(value)
        else:
            parts.append(f"{name} {type(value).__name__} {value!r}")
    hashed = hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16)
    for blob in blobs:
        hashed.update(blob)
    return hashed.digest()


def stored(kind: str, value: Any) -> Any:
    """A value as a column of this kind gives it back."""
    if value is None or (kind == "REAL" and value != value):
        return None
    if kind == "REAL":
        return float(value) + 0.0  # SQLite knows no negative zero
    return int(value) if kind == "INTEGER" else value
