"""Every check of an argument: one sentence that names it, what was wanted and what came.

A setting may be an array; under a trace nothing can be asked of it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np


def check_count(name: str, value: Any, least: int = 1, most: int | None = None) -> None:
    """Raise unless `value` is a whole number from `least` to `most`."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):
        wanted = f"of at least {least}" if most is None else f"between {least} and {most}"
        raise ValueError(f"`{name}` must be a whole number {wanted}, not {value!r}.")


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    if value not in choices:
        *first, last = map(repr, choices)
        raise ValueError(f"`{name}` must be {', '.join(first)} or {last}, not {value!r}.")


def check_fraction(name: str, value: Any) -> None:
    _check(name, value, lambda number: (number >= 0) & (number < 1), "at least 0 and below 1")


def check_share(name: str, value: Any) -> None:
    _check(name, value, lambda number: (number >= 0) & (number <= 1), "between 0 and 1")


def check_positive(name: str, value: Any) -> None:
    _check(name, value, lambda number: number > 0, "positive")


def check_at_least(name: str, value: Any, least: float = 0) -> None:
    _check(name, value, lambda number: number >= least, f"at least {least}")


def check_finite(where: str, value: Any) -> None:
    """Raise if an array holds NaN or infinity; of one that processes share, each sees its part."""
    if isinstance(value, jax.core.Tracer):
        return
    is_array = isinstance(value, jax.Array)
    parts = [shard.data for shard in value.addressable_shards] if is_array else [value]
    if not all(np.all(np.isfinite(part)) for part in parts):
        raise ValueError(f"{where} must be finite, but it holds NaN or infinity.")


def check_callable(name: str, value: Any, how: str = "") -> None:
    if not callable(value):
        called = f" as {how}" if how else ""
        raise ValueError(f"`{name}` must be callable{called}, not {value!r}.")


def check_labels(what: str, labels: Any, num_examples: int, num_classes: int) -> None:
    """Raise unless there is a class, 0 to `num_classes` - 1, for each of the examples."""
    if np.shape(labels) != (num_examples,) or labels.dtype.kind not in "iu":
        raise ValueError(
            f"{what} must be whole numbers, one for each of the {num_examples} examples, not of "
            f"shape {np.shape(labels)} and type {labels.dtype}."
        )
    if num_examples and not 0 <= labels.min() <= labels.max() < num_classes:
        raise ValueError(
            f"{what} must be from 0 to {num_classes - 1}, but they go from {labels.min()} to "
            f"{labels.max()}."
        )


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Imports that only an extra of the library brings; without it one sentence says which."""
    try:
        yield
    except ImportError as error:
        raise ValueError(
            f"{what} needs {error.name}, which cannot be imported ({error}): "
            f"pip install 'ridgerider[{extra}]'."
        ) from error


def one_line(what: object) -> str:
    """Text for the middle of a sentence: without line breaks, and no full stop at its end.

    >>> one_line("no such\\nfile.")
    'no such file'
    >>> one_line("a callback failed: Traceback (most recent call last):\\n  File...\\nKeyError: 3")
    'a callback failed: KeyError: 3'
    """
    try:
        text = str(what)
    except Exception:  # an exception of the user's own may fail at this as well
        text = ""
    text, _, trace = text.partition("Traceback (most recent call last):")
    text += trace.rstrip().rpartition("\n")[2]
    text = " ".join(printable(text[:2000]).split())
    text = text if len(text) <= 400 else f"{text[:400]}..."
    return text.rstrip(".") or type(what).__name__


def printable(text: str) -> str:
    """Text that cannot control a terminal: a space for each character that is not to be printed.

    >>> printable("a\\x1b[31m name\\nin two lines")
    'a [31m name\\nin two lines'
    """
    return "".join(one if one.isprintable() or one == "\n" else " " for one in text)


def _check(name: str, value: Any, is_right: Callable[[Any], Any], wanted: str) -> None:
    if value is None or _is_unknown(value):  # whether None will do, a rule knows for itself
        return
    is_array = isinstance(value, np.ndarray | np.generic | jax.Array) and value.dtype.kind in "iuf"
    if not is_array and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"`{name}` must be a number, {wanted}, not {value!r}.")
    entries = np.asarray(value, None if is_array else float)
    is_finite = np.isfinite(entries)
    if not np.all(is_finite & is_right(np.where(is_finite, entries, 0))):
        finite = "" if np.all(is_finite) else " and finite"
        raise ValueError(f"`{name}` must be {wanted}{finite}, not {value!r}.")


def _is_unknown(value: Any) -> bool:
    """Whether the entries are not at hand: under a trace, or in another process."""
    if isinstance(value, jax.core.Tracer):
        return True
    return isinstance(value, jax.Array) and not value.is_fully_addressable
