"""Which minima are one: ends in a known well, and ends that a level path joins.

Where curvature vanishes, a minimum is a whole set: a plateau, a curve, a coordinate that a function
ignores. Two of its points are joined if the loss is level on the straight line between them or, for
a curve, if the middle of that line relaxes to a point between them, and this one is joined with
both.
"""

from collections.abc import Container
from typing import Any

import numpy as np

from ridgerider._core.descend.descent import descend
from ridgerider._core.points.domain import Domain
from ridgerider._core.problem.calls import Calls, Point
from ridgerider._core.runtime.compile import eigh
from ridgerider._search.tree import Fingerprint, Leg

CLOSE = 1e-3  # minima so close are compared by the values between them
NEAR_WELL = 0.02  # how far from a minimum its parabola is believed
LEVEL = 1e-9  # of the loss, and of what the stiffest parabola rises over the distance
SOFT = 0.15  # of the largest curvature: one of differences that is less may be a level curve's
ALMOST = 1e-2  # of the largest curvature: what is less may be level
ROUGH = 1e-5  # of the loss and of the curvature: how much higher a descent may end
SAME = 0.05  # of the curvature: that of a level minimum is the same everywhere
NUM_GAPS, NUM_APART = 40, 3  # gaps between level ends, and how many of these must be bridged
NUM_TRIED, NUM_JOINED = 8, 3  # ends, by straight lines, and minima, by paths, that are tried
STRAIGHT = 0.05  # of the distance: a middle that relaxes by less is on a path that is hardly bent
ASIDE = 0.1  # of the distance
NUM_VALUES = 24  # on a line towards a lower minimum
FAR = 0.9  # of the distance: no middle is farther from an end
NUM_ASIDE = 2  # other points that are tried as a middle
MAX_RELAXED = 60  # points on a path
HELD_BACK = 0.1  # of all calls
ROUNDING = 1e4  # times that of the loss is what a soft mode rises over the step that confirms it
SHORTEST = 1e-7  # units of length: no such step is shorter
GAIN = 1e-5  # at which they are relaxed; see `descend`


class Wells:
    """The minima as parabolas, with all ends at them that were computed."""

    def __init__(self) -> None:
        self._names, self._losses = list[Fingerprint](), list[float]()
        self._points, self._roots = list[Point](), list[np.ndarray]()
        self._ends = list[tuple[Fingerprint, Point, float, float]]()
        self._level, self._soft = list[Leg](), set[Fingerprint]()  # may be level, and do look so

    def keep(self, leg: Leg, link: Fingerprint | None) -> None:
        """Take note of an end at a minimum, which may be a known one."""
        name = leg.fingerprint if link is None else link  # that of the start is empty
        self._ends.append((name, leg.x, leg.loss, stiffness(leg)))
        if link is None and self.is_level(leg):
            self._level.append(leg)
        values, rows = modes_at(leg)
        if link is None and len(rows) and (values > 0).all():
            self._names.append(leg.fingerprint)
            self._losses.append(leg.loss)
            self._points.append(leg.x)
            self._roots.append(np.sqrt(values / 2)[:, None] * rows)

    def find(self, leg: Leg) -> Fingerprint | None:
        """The minimum whose parabola has the loss of a descent's end, if there is one."""
        if not self._names:
            return None
        away = leg.x - np.array(self._points)
        distances = np.linalg.norm(away, axis=1)
        for number in np.argsort(distances, kind="stable")[:3]:
            inside = self._roots[number] @ away[number]
            rest = away[number] - np.linalg.pinv(self._roots[number]) @ inside
            rise, wanted = leg.loss - self._losses[number], float(inside @ inside)
            rounding = 1e3 * float(np.finfo(leg.x.dtype).eps) * max(abs(leg.loss), 1e-300)
            is_close = distances[number] <= NEAR_WELL * max(1.0, float(np.linalg.norm(leg.x)))
            is_across = np.linalg.norm(rest) <= 1e-9 * max(1.0, float(np.linalg.norm(leg.x)))
            if is_close and is_across and wanted / 2 - rounding <= rise <= 2 * wanted + rounding:
                return self._names[number]
        return None

    @staticmethod
    def is_level(leg: Leg) -> bool:
        return min(leg.eigenvalues, default=np.inf) < ALMOST * stiffness(leg)

    def level_with(self, calls: Calls, domain: Domain, leg: Leg) -> Fingerprint | None:
        """The level minimum that has the loss and the curvature of a descent's end, if any.

        Whether they are one, and not two that a symmetry makes equal, `apart` decides at the end.
        """
        is_later = getattr(calls.problem.loss, "held_back", None) is not None
        if not is_later or len(domain.inward(leg.x)):
            return None
        near = list[Leg]()
        for one in self._level[:]:
            if abs(leg.loss - one.loss) > ROUGH * (abs(one.loss) + stiffness(one)):
                continue
            step = CLOSE * max(1.0, float(np.linalg.norm(one.x)))
            if one.fingerprint in self._soft or self._is_soft(calls, domain, one, step):
                self._soft.add(one.fingerprint)
                near.append(one)
            else:
                self._level = [other for other in self._level if other is not one]
        if not near:
            return None
        loss, grad, hessian = calls.expansion(leg.x)
        if not np.isfinite(hessian).all():
            return None
        values, columns = eigh(hessian)
        is_stiff = values > ALMOST * values[-1]
        loss -= float(np.sum((grad @ columns)[is_stiff] ** 2 / values[is_stiff])) / 2
        for one in near if not is_stiff.all() else ():
            stiff = stiffness(one)
            is_alike = abs(values[-1] - stiff) <= SAME * stiff
            if is_alike and abs(loss - one.loss) <= LEVEL * (abs(one.loss) + stiff):
                hold_back(calls)
                return one.fingerprint
        return None

    def apart(self, calls: Calls, domain: Domain, leg: Leg, ends: list[Leg]) -> list[Leg]:
        """Of the ends that are level with a minimum, the lowest of each other minimum among them.

        Across the longest gaps of the shortest tree between all ends, paths are tried, those that
        have the highest losses in the middle first, until a few are found.
        """
        from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

        legs, num_left = [leg, *ends], NUM_APART
        points, size = np.array([one.x for one in legs]), max(1.0, float(np.linalg.norm(leg.x)))
        # No edge is 0, which would be none.
        lengths = np.linalg.norm(points[:, None] - points, axis=2) + 1e-300
        tree = minimum_spanning_tree(lengths).tolil()
        slack = LEVEL * (abs(leg.loss) + stiffness(leg))
        gaps = sorted(zip(*tree.nonzero(), strict=True), key=lambda edge: -lengths[edge])[:NUM_GAPS]
        tops = [max(legs[i].loss, legs[j].loss) + slack for i, j in gaps]
        rises = [
            calls.value((points[i] + points[j]) / 2) - top if lengths[i, j] > CLOSE * size else 0.0
            for (i, j), top in zip(gaps, tops, strict=True)
        ]
        for k in np.argsort(rises)[::-1]:
            i, j = gaps[k]
            if not num_left or not rises[k] > 0:
                break
            if joined(calls, domain, points[i], points[j], tops[k]):
                num_left -= 1
            else:
                tree[i, j] = 0
        labels = connected_components(tree, directed=False)[1]
        known = [np.flatnonzero(labels == labels[0])]
        for part in (np.flatnonzero(labels == label) for label in {*labels} - {labels[0]}):
            for number, other in enumerate(known):  # it may be a farther part of these
                i, j = np.unravel_index(
                    np.argmin(lengths[np.ix_(part, other)]), (len(part), len(other))
                )
                one, two, top = (
                    part[i],
                    other[j],
                    max(legs[part[i]].loss, legs[other[j]].loss) + slack,
                )
                way = calls, domain, points[one], points[two], top
                if is_level(calls, *way[2:]) or joined(*way):
                    known[number] = np.append(other, part)
                    break
            else:
                known.append(part)
        return [legs[min(part, key=lambda k: legs[k].loss)] for part in known[1:]]

    def beside(
        self, calls: Calls, domain: Domain, leg: Leg, others: Container[Fingerprint] | None = None
    ) -> Fingerprint | None:
        """The minimum, of all or of `others`, that a level path joins with this one, if any."""
        stiff, size = stiffness(leg), max(1.0, float(np.linalg.norm(leg.x)))
        own = np.array([x for name, x, *_ in self._ends if name == leg.fingerprint] or [leg.x])
        near, is_plain = list[tuple[float, Fingerprint, Point, Point, float]](), False
        for name, x, loss, other in self._ends:
            if name == leg.fingerprint or not (others is None or name in others):
                continue
            distances = np.linalg.norm(own - x, axis=1)
            distance, here = float(distances.min()), own[distances.argmin()]
            slack = LEVEL * (abs(loss) + max(stiff, other) * distance**2)
            if distance <= CLOSE * size or abs(loss - leg.loss) <= slack:
                near.append((distance, name, here, x, max(loss, leg.loss) + slack))
                is_plain |= other <= SOFT * stiff
        near.sort(key=lambda one: one[0])
        is_soft = bool(near) and self._is_soft(calls, domain, leg, CLOSE * size)
        for _, name, here, x, top in near[: NUM_TRIED if is_soft or is_plain else 1]:
            if is_level(calls, here, x, top):
                return name
        if not (is_soft and stays(calls, domain, leg.loss, *near[0][2:])):
            return None
        if hold_back(calls):  # whether a path joins them is decided at the end
            return near[0][1]
        nearest = dict[Fingerprint, tuple[Point, Point, float]]()
        for _, name, here, x, top in near:
            nearest.setdefault(name, (here, x, top))
        for name, path in list(nearest.items())[:NUM_JOINED]:
            if joined(calls, domain, *path):
                return name
        return None

    @staticmethod
    def _is_soft(calls: Calls, domain: Domain, leg: Leg, step: float) -> bool:
        """Whether the loss hardly rises along a mode, or from a bound.

        A second difference across a level curve falls with the square of its step, a curvature
        does not: so soft modes are compared at the shortest step that rounding allows.
        """
        stiff, (values, rows) = stiffness(leg), modes_at(leg)
        if min(leg.eigenvalues, default=stiff) <= SOFT * stiff:
            if not len(rows) or min(leg.eigenvalues) < values.min():
                return True
            rounding = ROUNDING * float(np.finfo(leg.x.dtype).eps) * abs(leg.loss)
            for value, row in zip(values, rows, strict=True):
                short = max((2 * rounding / value) ** 0.5, SHORTEST * float(calls.problem.unit))
                if value <= SOFT * stiff and not short <= step:
                    return True
                if value <= SOFT * stiff:
                    sides = [calls.value(domain.inside(leg.x + s * row)) for s in (short, -short)]
                    if sum(sides) - 2 * leg.loss < value * short**2 / 2:
                        return True
        ways = domain.inward(leg.x).astype(leg.x.dtype)
        return any(calls.value(leg.x + step * way) <= leg.loss + stiff * step**2 for way in ways)

    def merge(self, one: Fingerprint, into: Fingerprint) -> None:
        """Count the ends of one minimum as those of another."""
        self._ends = [(into, *end[1:]) if end[0] == one else end for end in self._ends]

    def leads_down(self, calls: Calls, leg: Leg) -> bool:
        """Whether the loss falls from a level point on the way to lower minima, without a rise."""
        slack, rows = LEVEL * (abs(leg.loss) + stiffness(leg)), modes_at(leg)[1]
        if not is_flat(leg):
            return False
        hold_back(calls)
        lower = {name: x for name, x, loss, _ in self._ends if loss < leg.loss - slack}
        nearest = sorted(lower.values(), key=lambda x: float(np.linalg.norm(x - leg.x)))
        for x in nearest[:NUM_JOINED]:
            way = (x - leg.x) - rows.T @ (rows @ (x - leg.x))
            for part in np.linspace(0, 1, NUM_VALUES + 1)[1:]:
                rise = calls.value((leg.x + part * way).astype(leg.x.dtype)) - leg.loss
                if abs(rise) > slack:
                    if rise < 0:
                        return True
                    break
        return False


def modes_at(leg: Leg) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and unit vectors of the modes that leave a minimum."""
    clusters = [leg.clusters[index] for index, _ in leg.turns]
    own = [k for k, (_, member) in enumerate(leg.turns) if member < clusters[k].multiplicity]
    return np.array([clusters[k].eigenvalue for k in own]), leg.directions[own]


def is_flat(leg: Leg) -> bool:
    return leg.finish is not None and not leg.finish.least_eigenvalue > 0


def hold_back(calls: Calls) -> bool:
    """Leave some calls of the budget to compare the level minima of a whole list, if that comes."""
    loss: Any = calls.problem.loss
    is_later = getattr(loss, "held_back", None) is not None
    if is_later:
        loss.held_back = HELD_BACK
    return is_later


def stiffness(leg: Leg) -> float:
    return float(np.max(np.abs(leg.eigenvalues), initial=0.0))


def is_level(calls: Calls, one: Point, two: Point, top: float, count: int = 7) -> bool:
    """Whether no value on the straight line is higher; those in the middle are computed first."""
    parts = sorted(np.arange(1, count + 1) / (count + 1), key=lambda part: abs(part - 0.5))
    return all(calls.value(one + part * (two - one)) <= top for part in parts)


def stays(calls: Calls, domain: Domain, loss: float, x: Point, other: Point, top: float) -> bool:
    """Whether a point beside `x`, towards another or aside, relaxes to one beside it."""
    away = ASIDE * float(np.linalg.norm(other - x))
    ways = [other - x, *np.random.default_rng(0).normal(size=(NUM_ASIDE, len(x)))]
    for way in ways:
        beside = domain.inside(x + way * (away / max(float(np.linalg.norm(way)), 1e-300)))
        end = descend(calls, domain, beside, away / 4, gain=GAIN)
        is_level = abs(end.loss - loss) <= top - loss
        if is_level and np.linalg.norm(end.x - x) > STRAIGHT * away:
            return True
    return False


def joined(calls: Calls, domain: Domain, one: Point, two: Point, top: float) -> bool:
    """Whether a path that is hardly higher than `top` leads from one to the other.

    A piece is divided where the point relaxes, at no regular part of it, lest all points hit
    parallel paths, and once more where that is hardly off the straight line.
    """
    random, num_left, pieces = np.random.default_rng(0), MAX_RELAXED, [(one, two, False)]
    while pieces:
        a, b, was_straight = pieces.pop()
        length, part = float(np.linalg.norm(b - a)), random.uniform(0.4, 0.6)
        for number in range(NUM_ASIDE + 1):
            # Aside, where the way is across, as between opposite points of a ring.
            aside = random.normal(size=len(a)) * (number > 0)
            aside -= (aside @ (b - a)) / length**2 * (b - a)
            aside *= length / 2 / max(float(np.linalg.norm(aside)), 1e-300)
            x = domain.inside(a + part * (b - a) + aside)
            end = descend(calls, domain, x, length / 16, length, gain=GAIN)
            moved, num_left = float(np.linalg.norm(end.x - x)) / length, num_left - 1
            is_there = end.loss <= top
            if is_there and max(np.linalg.norm(end.x - near) for near in (a, b)) < FAR * length:
                break
            if not num_left or (not is_there and moved > STRAIGHT):
                return False
        else:
            return False
        is_straight = not number and moved <= STRAIGHT
        if not (is_straight and was_straight):
            pieces += [(a, end.x, is_straight), (end.x, b, is_straight)]
    return True
