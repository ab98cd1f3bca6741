"""Every check of an argument: one sentence that names it, what was wanted and what came.

A setting may be an array, also under a trace: of those nothing is asked.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


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
    _check(name, value, lambda number: 0 <= number < 1, "at least 0 and below 1")


def check_share(name: str, value: Any) -> None:
    _check(name, value, lambda number: 0 <= number <= 1, "between 0 and 1")


def check_positive(name: str, value: Any) -> None:
    _check(name, value, lambda number: 0 < number < math.inf, "positive")


def check_at_least(name: str, value: Any, least: float = 0) -> None:
    _check(name, value, lambda number: least <= number < math.inf, f"at least {least}")


def check_callable(name: str, value: Any, how: str = "") -> None:
    if not callable(value):
        called = f" as {how}" if how else ""
        raise ValueError(f"`{name}` must be callable{called}, not {value!r}.")


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


def _check(name: str, value: Any, is_right: Callable[[float], bool], wanted: str) -> None:
    if isinstance(value, int | float) and not is_right(value):
        finite = " and finite" if value == math.inf else ""
        raise ValueError(f"`{name}` must be {wanted}{finite}, not {value!r}.")
