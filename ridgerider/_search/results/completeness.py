"""How complete a map is: what was climbed, and an estimate of what is missing."""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """How many there are, from how often each was found (Chao), with an interval of 95 %.

    With `once` of them found once and `twice` twice: found + once (once - 1) / 2 (twice + 1). It is
    a lower bound in expectation, and says nothing of what cannot be reached.
    """

    found: int
    estimate: float
    low: float
    high: float

    @staticmethod
    def of(counts: Iterable[int]) -> "Estimate":
        """From the number of visits to each.

        >>> Estimate.of([3, 2, 5, 2, 4]).estimate
        5.0
        """
        counts = list(counts)
        found, once, twice = len(counts), counts.count(1), counts.count(2)
        missing = once * (once - 1) / (2 * (twice + 1))
        if missing <= 0:
            return Estimate(found, float(found), float(found), float(found))
        variance = (
            missing
            + once * (2 * once - 1) ** 2 / (4 * (twice + 1) ** 2)
            + once**2 * twice * (once - 1) ** 2 / (4 * (twice + 1) ** 4)
        )
        spread = math.exp(1.96 * math.sqrt(math.log(1 + variance / missing**2)))
        return Estimate(found, found + missing, found + missing / spread, found + missing * spread)

    def __str__(self) -> str:
        about = f"about {self.estimate:.0f} ({self.low:.0f} to {self.high:.0f})"
        return f"{self.found} found, {about} within reach of such rides"


@dataclass(frozen=True)
class Completeness:
    """What was climbed, and what may be missing.

    `climbed[number]` is, for each minimum, how many ascent directions were climbed and how many are
    known.
    """

    climbed: tuple[tuple[int, int], ...]
    num_open: int
    minima: Estimate
    saddles: Estimate

    @property
    def is_exhausted(self) -> bool:
        """Nothing is left to climb."""
        return self.num_open == 0

    def __str__(self) -> str:
        ridden, total = (sum(counts) for counts in zip(*self.climbed, strict=True))
        done = sum(one == most for one, most in self.climbed)
        rest = (
            "nothing is left to climb"
            if self.is_exhausted
            else f"{self.num_open} branches are open"
        )
        return (
            f"{ridden} of {total} ascent directions climbed, all of them from {done} of "
            f"{len(self.climbed)} minima; {rest}. "
            f"Minima: {self.minima}. Transition states: {self.saddles}."
        )
