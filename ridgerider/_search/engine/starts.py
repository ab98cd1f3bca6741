"""Starts or climbs? What either has yielded of late, per call, decides.

A map has two arms: descents from starts all over the bounds, and climbs from what is known, with
the rides down that follow them. Each round goes to the arm that has found more new minima per call,
where old rounds count less; a small share goes to the other one. Starts come first: before the
first climb, one is expected to cost as much as a few starts, and to find one minimum. All counts
are sums over rounds, so that the order of arrival, an interruption or a repair changes nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np

from ridgerider._check import came
from ridgerider._search.tree import Fingerprint, Leg

Bounds = tuple[tuple[float, ...], tuple[float, ...]]
KEPT = 0.97  # how much a count is worth after one more draw of its arm
OTHER = 16  # one part in 16 of the work goes to the arm that yields less
STRETCH = 1.4  # of some starts about the middle of the bounds
LOSS = itemgetter(0)
CLIMB = 10.0  # starts that a climb is worth, before the first one


@dataclass
class Arm:
    """Draws, new minima, work and repeats by round."""

    draws: dict[int, int] = field(default_factory=dict)
    found: dict[int, int] = field(default_factory=dict)
    work: dict[int, float] = field(default_factory=dict)
    num_hits: int = 0  # that ended at a minimum, new or not

    def mean(self) -> float:
        return sum(self.work.values()) / max(1, sum(self.draws.values()))

    def ratio(self, expected: float) -> float:
        """New minima per work, of late, where one is credited for the `expected` work of a draw."""
        found, work, weight = 1.0, expected, 1.0
        for number in sorted(self.draws, reverse=True):
            found += weight * self.found[number]
            work += weight * self.work[number]
            weight *= KEPT ** self.draws[number]
        return found / work


class Yields:
    """What starts and climbs have brought in the rounds so far."""

    def __init__(self) -> None:
        self.starts, self.climbs = Arm(), Arm()
        self.num_minima = 0
        # The minima with their rounds, and all ends of starts: many are on one level minimum.
        self._minima = dict[tuple[str, ...], tuple[int, np.ndarray, float]]()

    def add(self, number: int, leg: Leg, link: Fingerprint | None, at_minimum: bool) -> None:
        """Count a settled leg of the round `number`."""
        arm = self.starts if leg.fingerprint[-1].start else self.climbs
        is_new = link is None and leg.finish is not None and leg.finish.kind == "minimum"
        cost = leg.cost
        arm.draws[number] = arm.draws.get(number, 0) + 1
        arm.found[number] = arm.found.get(number, 0) + is_new
        work = float(cost.values + cost.gradients + cost.hvps)
        arm.work[number] = arm.work.get(number, 0.0) + work
        arm.num_hits += at_minimum or is_new
        self.num_minima += is_new
        if is_new or (at_minimum and leg.fingerprint[-1].start):
            place = tuple(f"{entry:.3g}" for entry in leg.x)
            self._minima.setdefault(place, (number, leg.x, leg.loss))

    def bottom(self, number: int) -> np.ndarray | None:
        """The minimum of a parabola through the lower half of the minima before a round.

        Where the minima are those of ripples on a bowl, the lowest one is there.

        >>> yields, points = Yields(), np.random.default_rng(0).normal(size=(30, 2))
        >>> yields._minima = {(str(x),): (0, x, float((x - 1) @ (x - 1))) for x in points}
        >>> yields.bottom(1).round(6).tolist()
        [1.0, 1.0]
        """
        known = sorted((one[::-1] for one in self._minima.values() if one[0] < number), key=LOSS)
        lower = known[: (len(known) + 1) // 2]
        if not lower or len(lower) < 3 * lower[0][1].size + 3:
            return None
        x, losses = np.array([x for _, x, _ in lower]), np.array([loss for loss, *_ in lower])
        middle, width = x.mean(axis=0), np.ptp(x, axis=0) + 1e-300
        z = (x - middle) / width
        terms = np.concatenate([np.ones((len(z), 1)), z, z**2], axis=1)
        _, slopes, bends = np.split(np.linalg.lstsq(terms, losses)[0], [1, 1 + z.shape[1]])
        return middle - width * slopes / (2 * bends) if (bends > 0).all() else None

    def num_starts(self, size: int, num_open: int) -> int:
        """How many of the next `size` draws are starts, where `num_open` branches wait."""
        if not num_open or not self.starts.draws:
            return size
        start = self.starts.mean()
        climb = self.climbs.mean() if self.climbs.draws else CLIMB * start
        spent = (sum(arm.work.values()) for arm in (self.starts, self.climbs))
        on_starts, on_climbs = spent
        if self.starts.ratio(start) >= self.climbs.ratio(CLIMB * start):
            num_starts = size - (OTHER * (on_climbs + climb) < on_starts)
        else:
            num_starts = int(OTHER * (on_starts + start) < on_climbs)
        return max(num_starts, size - num_open)

    def is_enough(self, size: int) -> bool:
        """Whether hardly any minimum is missing, by the number of starts and of minima.

        With w minima after k descents from random points their expected number is
        w (k - 1) / (k - w - 2) (Boender and Rinnooy Kan). At least a few times as many starts as
        there are parameters are made in any case, and two thirds of all work since the last
        minimum was found.
        """
        w, k = self.num_minima + 1, self.starts.num_hits
        least, arms = 30 + 15 * size, (self.starts, self.climbs)
        if not (k >= least and k > w + 2 and math.floor(w * (k - 1) / (k - w - 2) + 0.5) <= w):
            return False
        last = max((n for arm in arms for n, found in arm.found.items() if found), default=0)
        work = [(number, spent) for arm in arms for number, spent in arm.work.items()]
        return sum(spent for n, spent in work if n > last) >= 2 / 3 * sum(one for _, one in work)


def spread(
    number: int,
    seed: int,
    x0: np.ndarray,
    bounds: Bounds | None,
    period: Sequence[float] | None = None,
) -> np.ndarray:
    """The point of a low-discrepancy sequence: in the bounds or, without, far and near `x0`.

    Of a parameter with a period it is anywhere around `x0`.

    Additive recurrence: multiples of powers of 1/g, where g^(n+1) = g + 1, modulo 1.

    >>> points = np.array([spread(k, 0, np.zeros(2), ((0, 0), (1, 1))) for k in range(64)])
    >>> bool((np.histogram2d(*points.T, bins=4)[0] >= 2).all())
    True
    """
    size, g = x0.size, 2.0
    for _ in range(60):
        g = (1 + g) ** (1 / (size + 1))
    shift = np.random.default_rng(seed).random(size)
    parts = (shift + (number + 1) * g ** -np.arange(1.0, size + 1)) % 1
    if number % 4 == 3:  # some on faces, which may have other minima
        parts = np.clip(STRETCH * (parts - 0.5) + 0.5, 0, 1)
    half = np.zeros(size) if period is None else np.array(period) / 2
    low, high = bounds or (np.full(size, -np.inf), np.full(size, np.inf))
    low, high = np.where(half > 0, x0 - half, low), np.where(half > 0, x0 + half, high)
    inner, is_closed = np.clip(parts, 1e-6, 1 - 1e-6), np.isfinite(low) & np.isfinite(high)
    far = np.maximum(1, np.abs(x0)) * 2.0 ** (number % 6 - 2) * np.log(inner / (1 - inner))
    x, some_low = x0 + far, np.where(np.isfinite(low), low, 0)
    x = np.where(np.isfinite(low), low + np.abs(x - some_low), x)
    x = np.where(np.isfinite(high), high - np.abs(np.where(np.isfinite(high), high, 0) - x), x)
    width = np.where(is_closed, high - some_low, 0)
    return np.where(is_closed, some_low + parts * width, x).astype(x0.dtype)


def is_special(number: int) -> bool:
    """Whether a start is at the bottom of a bowl, if the minima lie on one: 15, 31, 63..."""
    return number >= 15 and (number & (number + 1)) == 0


def bounds_of(bounds: Any, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Bounds as SciPy takes them: pairs (low, high), None for no bound, or a `Bounds`.

    >>> bounds_of([(0, 1), (None, 2)], 2)
    (array([  0., -inf]), array([1., 2.]))
    """
    if bounds is None:
        return np.full(size, -np.inf), np.full(size, np.inf)
    if hasattr(bounds, "lb"):
        low, high = (np.broadcast_to(one, size).astype(float) for one in (bounds.lb, bounds.ub))
    else:
        try:
            pairs = [(-np.inf if a is None else a, np.inf if b is None else b) for a, b in bounds]
            low, high = np.array(pairs, float).reshape(size, 2).T
        except (TypeError, ValueError):
            wanted = f"`bounds` must be {size} pairs (low, high), one for each parameter"
            raise ValueError(f"{wanted} of `x0` or `start`, not {came(bounds)}.") from None
    if not (low < high).all():
        raise ValueError("`bounds` must have each low below its high.")
    return low, high


def periods_of(period: Any, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The period of each parameter, 0 for None, and no bounds there: `low`, `high` are changed.

    >>> low, high = bounds_of([(0, 4), (0, 1)], 2)
    >>> periods_of([4, None], low, high), low
    (array([4., 0.]), array([-inf,   0.]))
    """
    try:
        given = [0.0 if one is None else one for one in np.atleast_1d(np.array(period, object))]
        lengths = np.broadcast_to(np.array(given, float), low.shape)
    except (TypeError, ValueError):
        lengths = np.array([-1.0])
    if not ((lengths >= 0) & np.isfinite(lengths)).all():
        raise ValueError(
            f"`period` must be a positive number, or {len(low)} of them or None, not "
            f"{came(period)}."
        )
    is_periodic = lengths > 0
    if not (high - low >= (1 - 1e-9) * lengths)[is_periodic].all():
        raise ValueError(
            "`period` must be at most as long as the `bounds` of its parameter are wide."
        )
    low[is_periodic], high[is_periodic] = -np.inf, np.inf
    return lengths
