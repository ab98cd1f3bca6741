"""Values as JSON holds them, and as a sentence counts them."""

import math
from typing import Any


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


def count(number: int, one: str, many: str) -> str:
    """So many of a thing.

    >>> count(1, "leg", "legs"), count(2000, "leg", "legs")
    ('1 leg', '2,000 legs')
    """
    return f"{number:,} {one if number == 1 else many}"
