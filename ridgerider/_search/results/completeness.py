"""How complete a map is: what was climbed, and an estimate of what is missing."""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """How many there are, with an interval of 95 %.

    From two samples that are independent of one another (`is_overlap`), by Chapman's formula; or
    from how often each was found, by Chao's, which is a lower bound in expectation and says nothing
    of what cannot be reached in this way.
    """

    found: int
    estimate: float
    low: float
    high: float
    is_overlap: bool = False

    @staticmethod
    def of(counts: Iterable[int]) -> "Estimate":
        """From the number of visits to each.

        With `once` of them found once and `twice` twice: found + once (once - 1) / 2 (twice + 1).

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

    def or_overlap(self, one: int, two: int, both: int) -> "Estimate":
        """By samples of `one` and `two` with `both` in common, and no less than this estimate.

        (one + 1) (two + 1) / (both + 1) - 1. A sample of fewer than two says nothing.

        >>> Estimate.of([3, 3, 3]).or_overlap(2, 2, 1)
        Estimate(found=3, estimate=3.5, low=3.0, high=5.19..., is_overlap=True)
        """
        if min(one, two) < 2:
            return self
        estimate = (one + 1) * (two + 1) / (both + 1) - 1
        parts = (one + 1) * (two + 1) * (one - both) * (two - both)
        spread = 1.96 * math.sqrt(parts / ((both + 1) ** 2 * (both + 2)))
        high = estimate + spread
        if both == min(one, two):  # the larger sample has at least this share, with 95 %
            high = max(high, max(one, two) / 0.05 ** (1 / both))
        return Estimate(
            self.found,
            max(self.estimate, estimate),
            max(self.low, estimate - spread),
            max(self.high, high),
            is_overlap=True,
        )

    def __str__(self) -> str:
        if self.is_overlap:
            about = f"about {self.estimate:.0f} ({self.low:.0f} to {self.high:.0f})"
            return f"{self.found} found, {about} by the overlap of starts and climbs"
        return f"{self.found} found, at least {self.estimate:.0f} by how often each was found"


@dataclass(frozen=True)
class Completeness:
    """What was climbed, and what may be missing.

    `climbed[number]` is, for each minimum, how many ascent directions were climbed, and how many of
    them there are; `num_open` counts all branches that are left, those of saddles too.
    """

    climbed: tuple[tuple[int, int], ...]
    num_open: int
    minima: Estimate
    saddles: Estimate

    @property
    def is_exhausted(self) -> bool:
        """No climb from the points that are known is left; others may exist all the same."""
        return self.num_open == 0

    def __str__(self) -> str:
        ridden, total = (sum(counts) for counts in zip(*self.climbed, strict=True))
        if not ridden:
            found = f"Minima: {self.minima}. Transition states: {self.saddles.found} found."
            return f"no ascent direction was climbed. {found}"
        done = sum(one == most for one, most in self.climbed)
        rest = "no climb from these points is left, others may exist"
        if not self.is_exhausted:
            others = self.num_open - (total - ridden)
            rest = f"open are {total - ridden} of these and {others} branches of saddles"
        return (
            f"{ridden} of {total} ascent directions climbed, all of them from {done} of "
            f"{len(self.climbed)} minima; {rest}. "
            f"Minima: {self.minima}. Transition states: {self.saddles}."
        )
