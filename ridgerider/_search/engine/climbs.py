"""Climbs and descents as legs of a tree, many side by side.

The mover of `explore`. A leg of a map leads from one stationary point to another: up from a minimum
(`2^+`), down from a saddle (`0+`). What is at the end of a leg is computed by `classify`, for new
points only.
"""

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ridgerider._core.descend.descent import descend
from ridgerider._core.points.classify import FALLS
from ridgerider._core.points.climb import (
    ENDINGS,
    NOT_FINITE,
    NUM_MODES,
    STATIONARY,
    TRACE,
    Climb,
    Move,
    Plan,
    modes_of,
    move_from,
    move_of,
)
from ridgerider._core.points.domain import Domain
from ridgerider._core.points.morse_index import Place, look_around
from ridgerider._core.points.symmetry import PeriodSignature, Symmetry
from ridgerider._core.problem.calls import Calls
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem, fetch
from ridgerider._core.runtime.clock import OutOfTime, check_time
from ridgerider._core.runtime.compile import Identity, compiled, one_thread
from ridgerider._core.spectra.spectrum import Cluster, fixed_vectors
from ridgerider._search.engine.starts import Bounds, spread
from ridgerider._search.engine.wells import Wells
from ridgerider._search.runfile.store import Store
from ridgerider._search.same import (
    ALIKE,
    Classes,
    StationaryPoints,
    blur_of,
    check_level,
    has_signature,
    reach_of,
    signatures,
)
from ridgerider._search.tree import Branch, Fingerprint, Leg, Order, Settings, Turn, Way

Valid = Callable[[Problem, np.ndarray, float], bool]

SLID = 0.5  # an overlap below this: the climb continued along another mode
# How far mixtures of modes set out from minima and from saddles, in turn, in units of the radius.
MIXED, ASIDE = [4.0], [3.0, 6.0]
SOFT_UP, SOFT_ASIDE = 0.25, 0.5  # the power of its curvature that a mode is divided by in a mixture
FURTHER = 3  # times that a descent is continued with a new Hessian
HINT = 1e-3  # the first step from a guess, in units of the radius
DESCENTS = 100  # from the start, one after the other, until one reaches a minimum


class Climbs(eqx.Module):
    """Climb from minima and ride down from saddles: how a landscape is explored."""

    rule: Climb = Climb()
    symmetry: Symmetry | None = None
    bounds: Bounds | None = eqx.field(static=True, default=None)
    name = "climbs"
    has_batches = False
    task_size = 32  # legs that are sent to a worker together

    @property
    def period(self) -> tuple[float, ...] | None:
        signature = None if self.symmetry is None else self.symmetry.signature
        return signature.period if isinstance(signature, PeriodSignature) else None

    def spread(self, number: int, seed: int, x0: np.ndarray) -> np.ndarray:
        return spread(number, seed, x0, self.bounds, self.period)

    def ordered(self, order: Order) -> Order:
        """Saddles are left before anything is climbed."""

        def key(branch: Branch) -> Any:
            if not branch.fingerprint[-1].up:
                return (0, ())
            own = order(branch)
            return (1, own if isinstance(own, tuple) else (own,))

        return key

    def begin(self, problem: Problem, settings: Settings) -> Leg:
        """The minimum below the start. Raises if there is none."""
        with problem.ledger() as ledger:
            root = self._start(problem, settings)
        return replace(root, cost=ledger.charge(root.cost))

    def _start(self, problem: Problem, settings: Settings) -> Leg:
        if settings.share_of_starts != 0.0:
            return self._first_minimum(problem, settings)
        problem.check_deterministic()
        x, total = fetch(problem.x0), Cost()
        name = Fingerprint((Turn(0, 1),))
        branch = Branch(name, float("nan"), 0.0, 1, x=x, direction=np.zeros_like(x))
        for _ in range(DESCENTS):
            leg = self.classify(problem, *self.move(problem, settings, [branch]))
            total = total + leg.cost
            if leg.finish is not None and leg.finish.kind == "minimum":
                root = replace(leg, fingerprint=Fingerprint(), ended_by=("start",), cost=total)
                return replace(root, num_steps=0, trace={})
            if leg.finish is not None and leg.turns:  # a saddle, to be left by its first ridge
                index, member = leg.turns[0]
                branch = leg.branch(Turn(index, 1, member))
            elif leg.ended_by[0] in ("max_steps", "unconverged"):
                branch, spent = _further(problem, self, leg, name)
                total = total + spent
            else:
                break
        raise ValueError(_no_minimum(problem, leg))

    def _first_minimum(self, problem: Problem, settings: Settings) -> Leg:
        """The minimum below the start or, where there is none, below the first start that has one.

        Starts that lead to none are remembered as the reason why the map begins elsewhere.
        """
        total, x, reason = Cost(), fetch(problem.x0), ""
        for number in range(DESCENTS):
            name = Fingerprint((Turn(0, 1, start=True),))
            branch = Branch(name, float("nan"), 0.0, 1, x=x, direction=np.zeros_like(x))
            leg = self.classify(problem, *self.move(problem, settings, [branch]))
            leg = self.descend_on(problem, leg)
            total = total + leg.cost
            if leg.finish is not None and leg.finish.kind == "minimum":
                ended_by = ("start", reason) if reason else ("start",)
                root = replace(leg, fingerprint=Fingerprint(), ended_by=ended_by, cost=total)
                return replace(root, num_steps=0, trace={})
            reason = reason or f"the descent from `start` ended otherwise: {_what_is_at(leg)}"
            x = self.spread(number, settings.seed, fetch(problem.x0))
        raise NoMinimum(f"{reason}; {DESCENTS - 1} other starts led to no minimum either", leg)

    @one_thread()
    def move(self, problem: Problem, settings: Settings, branches: list[Branch]) -> list[Leg]:
        """Climb, or descend, along each branch. What is at the ends is not computed yet."""
        del settings  # nothing is random
        calls, domain = host(problem, self)
        plan = plan_of(problem, self)
        known: dict[bytes, tuple[Any, int]] = {}  # the Hessian of a point that many leave
        legs = list[Leg]()
        for branch in map(_landed, branches):
            before = calls.cost
            try:
                with problem.ledger() as ledger:
                    if branch.fingerprint[-1].start:
                        move = _descend(calls, plan, domain, branch)
                    else:
                        move = _move(calls, plan, domain, branch, known)
                check_time()
            except OutOfTime:
                if legs:
                    break
                raise
            cost = ledger.charge(jax.tree.map(operator.sub, calls.cost, before))
            noise = getattr(problem.loss, "grad_noise", 0.0)
            leg = _arrived(branch, move, cost, noise)
            if ledger.failure and "not_finite" in leg.ended_by:
                leg = replace(leg, ended_by=(*leg.ended_by, f"failed: {ledger.failure}"))
            legs.append(leg)
        return legs

    @one_thread()
    def classify(self, problem: Problem, leg: Leg) -> Leg:
        """The leg with what is at its end: the kind of point, its spectrum, what leaves it."""
        if not has_arrived(leg):
            return leg
        with problem.ledger() as ledger:
            around = _place_at(problem, self, leg.x, _is_start(leg))
        check_time()
        finish = around.finish
        leg = replace(leg, cost=leg.cost + ledger.charge(finish.cost))
        if not finish.is_converged:
            return replace(leg, ended_by=("unconverged",), hessian=around.hessian)
        index = int(around.morse_index)
        turns, directions, ways = _ways_on(problem, self, around)
        ended_by = leg.ended_by
        if self.bounds is not None and int(finish.num_flat):  # families are told by values
            finish = replace(finish, num_flat=0, least_eigenvalue=0 * finish.least_eigenvalue)
        if leg.fingerprint and leg.fingerprint[-1].up and index != 1:
            ended_by = (*ended_by, "higher_index" if index else "no_saddle")
        return replace(
            leg,
            x=np.asarray(finish.x),
            loss=float(finish.loss),
            ended_by=ended_by,
            eigenvalues=np.asarray(around.eigenvalues),
            clusters=_clusters(around),
            num_ridges=index,
            turns=turns,
            directions=directions,
            ways=ways,
            finish=finish,
            hessian=None if around.hessian is None else np.asarray(around.hessian),
        )

    def descend_on(self, problem: Problem, leg: Leg) -> Leg:
        """What is below the end of a descent that came to no stationary point; with its cost."""
        for _ in range(FURTHER):
            if leg.ended_by != ("unconverged",):
                break
            calls, domain = host(problem, self)
            with problem.ledger() as ledger:
                first, x = plan_of(problem, self).radius / 4, np.asarray(leg.x)
                matrix = calls.expansion(x)[2] if leg.hessian is None else leg.hessian
                end = descend(calls, domain, x, first, hessian=matrix)
            cost = leg.cost + ledger.charge(calls.cost)
            ended_by = (ENDINGS[STATIONARY if end.is_finite else NOT_FINITE],)
            leg = replace(leg, x=end.x, loss=end.loss, ended_by=ended_by, cost=cost)
            leg = self.classify(problem, leg)
        return leg

    def branches_at(self, problem: Problem, settings: Settings, leg: Leg) -> list[Branch]:
        """Both ways along each ridge of a stationary point, up from a minimum, down from a saddle.

        Mixtures, which count as further members of the last cluster, are climbed from either, and
        some modes of transition states.
        """
        del problem
        turns = [
            Turn(index, sign, member, up=_is_climbed(leg, index, member, way))
            for (index, member), way in zip(leg.turns, leg.ways, strict=True)
            for sign in ((-1,) if is_guess(way) else (1,) if way.is_even else (1, -1))
        ]
        most = settings.max_ridges
        return [leg.branch(one) for one in turns if most is None or not one.up or one.index < most]

    def known(self, problem: Problem, store: Store, valid: Valid | None = None) -> "MapPoints":
        return MapPoints(problem, self, store, valid)


class MapPoints:
    """The stationary points of a map. What is at the end of a leg is computed if it is new."""

    def __init__(self, problem: Problem, climbs: Climbs, store: Store, valid: Valid | None):
        self._problem, self._climbs, self._valid = problem, climbs, valid
        self._points = StationaryPoints(problem, climbs.symmetry, store.end, kinds=None)
        self.num_minima, self._wells = 0, Wells()

    @property
    def num_points(self) -> int:
        return len(self._points)

    def keep(self, leg: Leg) -> None:
        if leg.finish is None or not has_arrived(leg):
            return
        if leg.linked_to is None:
            self._points.keep(leg.fingerprint, leg.finish)
        if leg.finish.kind == "minimum":
            self.num_minima += leg.linked_to is None
            self._wells.keep(leg, leg.linked_to)

    def settle(self, legs: list[Leg]) -> Iterator[tuple[Leg, Fingerprint | None]]:
        marks = self._points.marks(np.stack([leg.x for leg in legs])) if legs else ()
        for leg, mark in zip(legs, marks, strict=True):
            yield self._settle(leg, mark)

    def _settle(self, leg: Leg, mark: np.ndarray) -> tuple[Leg, Fingerprint | None]:
        if not has_arrived(leg):
            return leg, None
        if self._valid is not None and not self._valid(self._problem, leg.x, leg.loss):
            return replace(leg, ended_by=("not_valid",)), None
        known = self._points.find(leg.x, leg.loss, mark)
        if known is None and _is_start(leg):
            known = self._wells.find(leg)
        if known is None and _is_start(leg) and self._climbs.bounds is not None:
            calls, domain = host(self._problem, self._climbs)
            with self._problem.ledger() as ledger:
                known = self._wells.level_with(calls, domain, leg)
            leg = replace(leg, cost=leg.cost + ledger.charge(calls.cost))
        if known is not None:
            return leg, known
        leg = self._climbs.classify(self._problem, leg)
        if _is_start(leg):
            leg = self._climbs.descend_on(self._problem, leg)
        if leg.finish is None:
            return leg, None
        finish, known = leg.finish, None
        if self._climbs.bounds is not None and finish.kind == "minimum":
            calls, domain = host(self._problem, self._climbs)
            known = self._wells.beside(calls, domain, leg)
            if known is None and self._wells.leads_down(calls, leg):
                finish = replace(finish, doubt_number=FALLS)
                leg = replace(leg, finish=finish)
        if known is None:
            known = self._points.add(leg.fingerprint, finish)
        if finish.kind == "minimum":
            self.num_minima += known is None
            self._wells.keep(leg, known)
        return leg, known


def _is_start(leg: Leg) -> bool:
    return bool(leg.fingerprint) and leg.fingerprint[-1].start


def _place_at(problem: Problem, climbs: Climbs, x: np.ndarray, is_below: bool = False) -> Place:
    num_modes = None if climbs.rule.has_matrix(problem) else NUM_MODES
    return look_around(*host(problem, climbs), num_modes, x, is_below)


def _further(problem: Problem, climbs: Climbs, leg: Leg, name: Fingerprint) -> tuple[Branch, Cost]:
    """How to continue: where there are more descent directions than counted, along the first."""
    branch = Branch(name, float("nan"), 0.0, 1, x=leg.x, direction=np.zeros_like(leg.x))
    if leg.ended_by[0] != "unconverged":
        return branch, Cost()
    around = _place_at(problem, climbs, leg.x)
    if around.is_down[0]:
        lowest, row = float(around.eigenvalues[0]), np.asarray(around.rows[0])
        branch = replace(branch, eigenvalue=lowest, direction=row)
    return branch, around.finish.cost


def _is_climbed(leg: Leg, index: int, member: int, way: Way) -> bool:
    cluster = leg.clusters[index]
    is_up = not leg.num_ridges or member >= cluster.multiplicity or cluster.eigenvalue > 0
    return is_up and not is_jump(way)


def is_jump(way: Way) -> bool:
    """Whether a way leads from the first minimum to another start."""
    return not way.order and way.is_even


def is_guess(way: Way) -> bool:
    """Whether a jump lands close to a saddle, and a climb begins there."""
    return is_jump(way) and way.kappa == 1.0


def with_starts(root: Leg, starts: list[np.ndarray], is_guess: bool = False) -> Leg:
    """The first minimum with jumps to other starts: further members of its last cluster.

    A jump to a guess of a saddle, from which to climb, has the sign -1.
    """
    if not starts:
        return root
    last, sign, kappa = len(root.clusters) - 1, -1 if is_guess else 1, 1.0 if is_guess else math.nan
    taken = [member for index, member in root.turns if index == last]
    first = max([root.clusters[last].multiplicity, *(member + 1 for member in taken)])
    return replace(
        root,
        turns=(*root.turns, *((last, first + number) for number in range(len(starts)))),
        directions=np.concatenate([root.directions, sign * (np.stack(starts) - root.x)]),
        ways=(*root.ways, *(Way(order=0, is_even=True, kappa=kappa) for _ in starts)),
    )


def _landed(branch: Branch) -> Branch:
    """A jump begins where it lands, and a descent from there has no direction."""
    assert branch.x is not None and branch.direction is not None
    if branch.fingerprint[-1].up or branch.eigenvalue < 0:
        return branch
    x = branch.x + branch.direction
    direction = np.zeros_like(x)
    if branch.fingerprint[-1].sign < 0:  # a guess: the path leads on from where it came
        direction = HINT * branch.direction / max(float(np.linalg.norm(branch.direction)), 1e-300)
    return replace(branch, x=x, direction=direction.astype(x.dtype), hessian=None)


def _no_minimum(problem: Problem, leg: Leg) -> str:
    wanted = "`start` must lie above a minimum, but descent from it"
    norm, size = float(np.linalg.norm(problem.grad(jnp.asarray(leg.x)))), np.linalg.norm(leg.x)
    where = f"the loss is {leg.loss:.6g}, |grad| {norm:.3g} and |params| {size:.3g} there"
    if "ran_away" in leg.ended_by:
        return f"{wanted} leads to infinity, as far as it was followed: {where}."
    if "not_finite" in leg.ended_by:
        why = f" ({leg.ended_by[-1]})" if len(leg.ended_by) > 1 else ""
        return f"{wanted} meets a loss that is not finite{why}: {where}."
    return f"{wanted} does not converge: {where}."


# --- moves


def host(problem: Problem, climbs: Climbs) -> tuple[Calls, Domain]:
    """The problem for loops on the host, with a separate count; it is compiled once."""
    calls, domain = _compiled_once(Identity(problem), Identity(climbs.symmetry), climbs.bounds)
    return calls.anew(), domain


@lru_cache(maxsize=4)
def _compiled_once(
    problem: Identity, symmetry: Identity, bounds: Bounds | None
) -> tuple[Calls, Domain]:
    ends = (
        [None, None] if bounds is None else [np.array(one, problem.value.dtype) for one in bounds]
    )
    return Calls(problem.value), Domain(problem.value, symmetry.value, *ends)


def plan_of(problem: Problem, climbs: Climbs) -> Plan:
    """The rule for this problem; inside bounds lengths are shares of the narrowest width."""
    plan = Plan.of(climbs.rule, problem)
    if climbs.bounds is None:
        return plan
    widths = np.append(np.subtract(*climbs.bounds[::-1]), climbs.period or ())
    width = float(np.min(widths, initial=np.inf, where=np.isfinite(widths) & (widths > 0)))
    if not np.isfinite(width):
        return plan
    return replace(
        plan,
        radius=plan.radius * width / 2,
        max_radius=plan.max_radius * width / 2,
        max_distance=np.inf,
    )


def _descend(calls: Calls, plan: Plan, domain: Domain, branch: Branch) -> Move:
    """Down from a start, as a move without a ridge."""
    assert branch.x is not None and branch.direction is not None
    most = plan.max_distance * max(1.0, float(np.linalg.norm(branch.x)))
    end = descend(calls, domain, domain.inside(branch.x), plan.radius / 4, most)
    return move_of(end, plan)


class NoMinimum(ValueError):
    """No start led to a minimum; `leg` is the last that was tried."""

    def __init__(self, message: str, leg: Leg):
        super().__init__(f"`problem` must have a minimum, but {message}.")
        self.leg = leg


def _what_is_at(leg: Leg) -> str:
    if leg.finish is None:
        return ", ".join(leg.ended_by)
    return f"{leg.finish.kind}{f', {leg.finish.doubt}' if leg.finish.doubt else ''}"


def _move(calls: Calls, plan: Plan, domain: Domain, branch: Branch, known: dict) -> Move:
    x, direction = branch.x, branch.direction
    assert x is not None and direction is not None
    name, turn, is_second = x.tobytes(), branch.fingerprint[-1], False
    is_from_guess = not turn.up and turn.sign < 0 and branch.eigenvalue > 0
    is_from_climb = turn.up and branch.fingerprint.depth > 1 and branch.fingerprint[-2].up
    if plan.is_kept or (plan.has_matrix and (is_from_climb or not turn.up)):
        # Of few parameters each leg has its own, and one that legs share is charged to each: then
        # no leg's cost depends on who came before it.
        if name not in known or not plan.is_kept:
            matrix = calls.hessian(x) if branch.hessian is None else branch.hessian
            modes = modes_of(matrix, domain.null(x))
            known[name] = matrix, int(np.sum(modes.is_down))
        elif branch.hessian is None and not calls.is_outside:
            calls.charge(Cost(hvps=len(x), hessians=1))
        hessian, index = known[name]
        # From a transition state along one of its modes; mixtures let go of it.
        is_second = turn.up and turn.member < branch.multiplicity and index == 1
        if is_from_guess:  # along the lowest mode
            direction = np.zeros_like(x)
    else:
        hessian = None
    return move_from(
        calls, plan, domain, x, direction, hessian, turn.up or is_from_guess, is_second
    )


# --- legs


def _arrived(branch: Branch, move: Move, cost: Cost, noise: float) -> Leg:
    """The leg of a move that is over. Raises if it met what its symmetry does not leave level."""
    where = f"on the leg {branch.fingerprint}"
    check_level(move.asymmetry, move.generator, move.x.dtype, where, noise)
    nothing = (move.loss, *(np.nan,) * (len(TRACE) - 1))
    rows = np.array(move.trace or [nothing], move.x.dtype)
    rows = np.concatenate([rows, rows[-1:]])[: len(move.trace) + 1]
    trace = {name: np.ascontiguousarray(rows[:, i]) for i, name in enumerate(TRACE)}
    trace["loss"][-1:] = move.loss
    trace["multiplicity"] = np.ones(len(rows), rows.dtype)
    ended_by: tuple[str, ...] = (ENDINGS[move.ending],)
    if branch.fingerprint[-1].up and np.nanmin(trace["overlap"], initial=1.0) < SLID:
        ended_by = (*ended_by, "slid")
    leg = Leg.without_ridges(branch.fingerprint, move.x, move.loss, ended_by)
    return replace(leg, num_steps=len(move.trace), trace=trace, cost=cost)


def has_arrived(leg: Leg) -> bool:
    """Whether a leg may have come to a stationary point."""
    return ENDINGS[STATIONARY] in leg.ended_by or leg.ended_by[0] == "start"


def _clusters(around: Place) -> tuple[Cluster, ...]:
    """The eigenvalues outside the symmetry, equal ones together."""
    values, labels = np.asarray(around.eigenvalues), np.asarray(around.labels)
    groups = [values[labels == label] for label in range(labels.max(initial=-1) + 1)]
    means = [float(group.mean()) for group in groups] + [np.inf]
    return tuple(
        Cluster(
            eigenvalue=means[i],
            multiplicity=len(group),
            spread=float(group[-1] - group[0]),
            gap=float(min(means[i] - means[i - 1] if i else np.inf, means[i + 1] - means[i])),
        )
        for i, group in enumerate(groups)
    )


def _ways_on(
    problem: Problem, climbs: Climbs, around: Place
) -> tuple[tuple[tuple[int, int], ...], np.ndarray, tuple[Way, ...]]:
    """The ridges to climb or to ride down; of those that a symmetry makes equal, one."""
    rows, labels = np.asarray(around.rows), np.asarray(around.labels)
    is_way = np.asarray(around.is_down if around.morse_index else around.is_up)
    chosen = [int(row) for row in np.flatnonzero(is_way)]
    if around.morse_index == 1:
        softest = np.flatnonzero(np.asarray(around.is_up))[: climbs.rule.second(problem)]
        chosen += [int(row) for row in softest]
    turns = tuple((int(labels[row]), int(np.sum(labels[:row] == labels[row]))) for row in chosen)
    curved = np.flatnonzero(np.asarray(around.is_up) | np.asarray(around.is_down))
    sizes = np.abs(np.asarray(around.eigenvalues))[curved]
    if around.morse_index:
        count, softness, lengths = climbs.rule.aside(problem), SOFT_ASIDE, ASIDE
    else:
        count, softness, lengths = climbs.rule.mixed(problem, len(chosen)), SOFT_UP, MIXED
    mixtures = _mixtures(rows[curved], sizes**-softness, count)
    mixtures = mixtures * np.resize(lengths, len(mixtures)).astype(rows.dtype)[:, None]
    x, step = np.asarray(around.finish.x), float(climbs.rule.radius * problem.unit)
    chart = None if around.morse_index else getattr(problem.loss, "chart", None)
    if chart is not None:  # each a separate way; its opposite is another
        turns, chosen, mixtures = (), [], chart.ways(x) / step
    last = int(labels.max(initial=0))
    first = int(np.sum(labels == last))
    turns += tuple((last, first + number) for number in range(len(mixtures)))
    rows = np.concatenate([rows, mixtures])
    chosen += range(len(labels), len(rows))
    directions = rows[chosen]
    symmetry = climbs.symmetry
    if symmetry is None or not has_signature(symmetry) or not chosen:
        return turns, directions, tuple(Way(is_even=chart is not None) for _ in chosen)
    points = np.concatenate([x + step * rows[chosen], x - step * rows[chosen]])
    marks = signatures(problem, symmetry, points)
    classes, blur = Classes[int](), blur_of(problem)
    numbers = [
        classes.add(number, mark, max(reach_of(mark, 2 * ALIKE), blur))
        for number, mark in enumerate(marks)
    ]
    count, kept, ways = len(chosen), list[int](), list[Way]()
    seen: dict[frozenset[int], int] = {}
    for row in range(count):
        pair = frozenset((numbers[row], numbers[row + count if chart is None else row]))
        if pair in seen:
            old = ways[seen[pair]]
            ways[seen[pair]] = replace(old, class_size=old.class_size + 1)
            continue
        seen[pair] = len(ways)
        kept.append(row)
        ways.append(Way(class_number=row, is_even=len(pair) == 1))
    return tuple(turns[row] for row in kept), directions[kept], tuple(ways)


def _mixtures(rows: np.ndarray, weights: np.ndarray, count: int) -> np.ndarray:
    """Unit vectors among the modes, the same for whatever basis of them."""
    if not count or not len(rows):
        return rows[:0]
    fixed = _fixed(count, rows.shape[1], rows.dtype)
    mixed = ((fixed @ rows.T) * weights) @ rows
    return mixed / np.linalg.norm(mixed, axis=1, keepdims=True)


@lru_cache(maxsize=64)  # each minimum and each saddle of a map asks for the same
def _fixed(count: int, size: int, dtype: np.dtype) -> np.ndarray:
    return np.asarray(compiled(fixed_vectors, "none")(count, size, dtype))
