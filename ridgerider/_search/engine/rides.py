"""Rides as legs: the mover of `search`, in which core and shell meet."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool, PRNGKeyArray

from ridgerider._check import check_start
from ridgerider._core.points.symmetry import Symmetry
from ridgerider._core.problem.cost import Cost, Ledger
from ridgerider._core.problem.problem import Problem, Scalar, Vector, fetch, place
from ridgerider._core.ride.rider import Ride, Rider, spectrum_on_batch
from ridgerider._core.runtime.clock import check_time
from ridgerider._core.runtime.compile import compiled, one_thread
from ridgerider._core.spectra.branches import Branching
from ridgerider._core.spectra.spectrum import Cluster, Ridge, Spectrum
from ridgerider._search.runfile.store import Store
from ridgerider._search.same import BranchPoints, StationaryPoints, check_leg, distinct
from ridgerider._search.tree import (
    Branch,
    Fingerprint,
    Leg,
    Order,
    Ridges,
    Settings,
    Turn,
    Way,
    hashed,
)


@dataclass(frozen=True)
class Rides:
    """Ride down the ridges that leave a point.

    Rides, spectra and finishes are separate programs, so that each is compiled once: the spectrum
    at the start is computed by the program that computes those at the ends of rides.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> rides = Rides(rr.Rider(finish=None))
    >>> branch = rides.begin(wells(1), Settings()).branch(Turn(index=0, sign=1))
    >>> (leg,) = rides.move(wells(1), Settings(), [branch])
    >>> str(leg.fingerprint), leg.ended_by
    ('0+', ('curvature_gone',))
    """

    rule: Rider
    symmetry: Symmetry | None = None
    name = "rides"
    bounds = None  # of the parameters: there are none
    task_size = 1

    @property
    def has_batches(self) -> bool:
        return self.rule.batch is not None

    def ordered(self, order: Order) -> Order:
        return order

    @one_thread()
    def begin(self, problem: Problem, settings: Settings) -> Leg:
        """The start as a leg of no steps. Raises if there is nothing to ride."""
        with problem.ledger() as ledger:
            leg = self._start(problem.timed(), settings, ledger)
        return replace(leg, cost=ledger.charge(leg.cost))

    def _start(self, problem: Problem, settings: Settings, ledger: Ledger) -> Leg:
        problem.check_deterministic()
        rider, key = self.rule, branch_key(settings.seed, Fingerprint())
        loss = fetch(compiled(value_at)(problem, problem.x0))
        spectrum = _spectrum(problem, rider, problem.x0, key)
        check_time()
        check_start(ledger.failure, loss=loss, Hessian=spectrum.eigenvalues)
        if not spectrum.scale > 0:
            raise ValueError(_why_flat(problem, rider, key))
        if not spectrum.num_downhill():
            raise ValueError(
                "`start` must have negative curvature to ride along, but its least eigenvalue is "
                f"{spectrum.eigenvalues[0]:.3g}; find_saddle(problem) looks for a saddle to start "
                "from."
            )
        ridges, cost = _ridges(problem, rider, settings, fetch(problem.x0), spectrum)
        check_time()
        return Leg(
            fingerprint=Fingerprint(),
            x=fetch(problem.x0),
            loss=float(loss),
            num_steps=0,
            ended_by=("start",),
            **vars(ridges),
            trace={},
            cost=spectrum.cost + cost + Cost(values=1),
        )

    @one_thread()
    def move(self, problem: Problem, settings: Settings, branches: list[Branch]) -> list[Leg]:
        """Ride each branch to its end."""
        legs = []
        for branch in branches:
            with problem.ledger() as ledger:
                leg = _ride(problem.timed(), self.rule, settings, branch, ledger)
                check_time()
                check_leg(problem, self.symmetry, leg)
            legs.append(replace(leg, cost=ledger.charge(leg.cost)))
        return legs

    def classify(self, problem: Problem, leg: Leg) -> Leg:
        """The end of a ride is finished and classified by `rider.finish`."""
        del problem
        return leg

    def branches_at(self, problem: Problem, settings: Settings, leg: Leg) -> list[Branch]:
        """GetRidges: both ways along every ridge; of those that a symmetry makes equal, one."""
        if settings.is_last(leg.fingerprint):
            return []
        places = [(leg.turns, False)] + ([] if leg.below is None else [(leg.below.turns, True)])
        branches = [
            leg.branch(Turn(index, sign, member, below))
            for turns, below in places
            for index, member in turns
            for sign in (1, -1)
        ]
        return distinct(problem, self.symmetry, branches)

    def known(self, problem: Problem, store: Store, valid: Any = None) -> "RideEnds":
        del valid
        return RideEnds(problem.timed(), self.symmetry, store)


class RideEnds:
    """The points at which a search has branched, and the solutions that it has found."""

    def __init__(self, problem: Problem, symmetry: Symmetry | None, store: Store):
        self._solutions = StationaryPoints(problem, symmetry, store.end)
        self._points = BranchPoints(problem, symmetry, store.leg, store.end)

    @property
    def num_minima(self) -> int:
        return len(self._solutions)

    num_points = num_minima

    def keep(self, leg: Leg) -> None:
        if leg.linked_to is None:
            self._points.add(leg)
        if leg.finish is not None and leg.same_as is None:
            self._solutions.keep(leg.fingerprint, leg.finish)

    def settle(self, legs: list[Leg]) -> Iterator[tuple[Leg, Fingerprint | None]]:
        for leg in legs:
            if leg.finish is not None:
                leg = replace(leg, same_as=self._solutions.add(leg.fingerprint, leg.finish))
            yield leg, self._points.add(leg)


def _why_flat(problem: Problem, rider: Rider, key: PRNGKeyArray) -> str:
    """What to say where the Hessian is zero."""
    what = "`start` must have negative curvature to ride along, but the Hessian there is zero"
    random = np.random.default_rng(0).standard_normal(problem.size).astype(problem.dtype)
    beside = place(problem, fetch(problem.x0) + 0.3 * random)
    if float(_spectrum(problem, rider, beside, key).scale) > 0:
        return (
            f"{what}, though not beside it: the loss there begins with a term of higher order, as "
            "where all layers of a deep network are zero, or has a kink (relu, abs). "
            "network_start(params, apply, inputs, targets) makes only the last layer small."
        )
    return (
        f"{what}. Is the loss linear in pieces (relu, abs, sign, max)? A smooth activation such as "
        "tanh or softplus has curvature."
    )


def branch_key(seed: int, fingerprint: Fingerprint) -> PRNGKeyArray:
    """A key that depends on where a branch is in the tree, never on when it is reached."""
    words = np.frombuffer(hashed("key", seed, fingerprint), ">u4").astype(np.uint32)
    return jax.random.wrap_key_data(jax.device_put(words), impl="threefry2x32")


def value_at(problem: Problem, x: Vector) -> Scalar:
    return problem.value(x)


def ride_one(
    problem: Problem, rider: Rider, x: Vector, ridge: Ridge, key: PRNGKeyArray
) -> tuple[Ride, Bool[Array, " rules"]]:
    ride = rider.ride(problem, x, ridge, key)
    return ride, rider.ended(ride)


def _spectrum(problem: Problem, rider: Rider, x: Vector, key: PRNGKeyArray) -> Spectrum:
    """By a program that riders with other finishes or steps share."""
    check_time()
    run = compiled(spectrum_on_batch, rider.effort)
    return fetch(run(problem, rider.spectrum, rider.batch, x, key))


def _ride(
    problem: Problem, rider: Rider, settings: Settings, branch: Branch, ledger: Ledger
) -> Leg:
    """Ride a branch to its end, and finish there."""
    key = branch_key(settings.seed, branch.fingerprint)
    ridge = Ridge(
        direction=place(problem, branch.direction),
        eigenvalue=jax.device_put(np.asarray(branch.eigenvalue, problem.dtype)),
        index=jax.device_put(np.asarray(branch.fingerprint[-1].index)),
        multiplicity=jax.device_put(np.asarray(branch.multiplicity)),
    )
    check_time()
    run = compiled(ride_one, rider.effort)
    ride, ended = fetch(run(problem, rider, place(problem, branch.x), ridge, key))
    end = place(problem, ride.x)
    spectrum, finish, below = _spectrum(problem, rider, end, key), None, None
    is_last, cost = settings.is_last(branch.fingerprint), ride.cost + spectrum.cost
    if ride.is_finite and rider.finish:
        check_time()
        finish = fetch(rider.finish(problem, end, key, rider.spectrum))
        cost = cost + finish.cost
        may_branch = settings.branch_at == "saddle" or not spectrum.num_downhill()
        if finish.kind == "saddle" and may_branch and not is_last:
            saddle = _spectrum(problem, rider, place(problem, finish.x), key)
            below, spent = _ridges(problem, rider, settings, finish.x, saddle)
            cost = cost + spent + saddle.cost
    # A ride that met a NaN ends there and then; its last finite point is kept, but nothing grows
    # from it.
    may_branch = ride.is_finite and (below is None or settings.branch_at != "saddle")
    most = None if may_branch and not is_last else 0
    ridges, spent = _ridges(problem, rider, settings, ride.x, spectrum, most)
    if not ride.is_finite:
        ridges = replace(ridges, num_ridges=0)
    ended_by = [name for name, yes in zip(rider.rule_names(), ended, strict=True) if yes]
    is_whole = ride.is_finite and np.isfinite(spectrum.eigenvalues).all()
    if ledger.failure and not (is_whole and (finish is None or np.isfinite(finish.loss))):
        ended_by.append(f"failed: {ledger.failure}")
    return Leg(
        fingerprint=branch.fingerprint,
        x=ride.x,
        loss=float(ride.loss),
        num_steps=int(ride.num_steps),
        ended_by=tuple(ended_by),
        **vars(ridges),
        trace=_rows(ride),
        cost=cost + spent,
        finish=finish,
        below=below,
    )


def _ridges(
    problem: Problem,
    rider: Rider,
    settings: Settings,
    x: np.ndarray,
    spectrum: Spectrum,
    most: int | None = None,
) -> tuple[Ridges, Cost]:
    """GetRidges: which clusters, at most so many, which directions, and what it cost."""
    clusters, num_ridges = spectrum.clusters(), spectrum.num_downhill()
    limits = (num_ridges, settings.max_ridges, most)
    downhill = clusters[: min(limit for limit in limits if limit is not None)]
    found, cost = _directions(problem, rider, settings, x, spectrum, downhill)
    members = [(index, *one) for index, ones in enumerate(found) for one in ones]
    no_rows = np.asarray(spectrum.eigenvectors)[:0]
    ridges = Ridges(
        eigenvalues=np.asarray(spectrum.eigenvalues),
        clusters=clusters,
        num_ridges=num_ridges,
        turns=tuple((index, member) for index, member, _, _ in members),
        directions=np.array([row for _, _, row, _ in members]) if members else no_rows,
        ways=tuple(way for _, _, _, way in members),
    )
    return ridges, cost


def _directions(
    problem: Problem,
    rider: Rider,
    settings: Settings,
    x: np.ndarray,
    spectrum: Spectrum,
    clusters: tuple[Cluster, ...],
) -> tuple[list[list[tuple[int, np.ndarray, Way]]], Cost]:
    """For each cluster the number, the row and the way of each direction that may be ridden."""
    # A custom gauge says which direction is meant.
    has_gauge = getattr(rider.spectrum, "gauge", "gradient") != "gradient"
    is_repeated = any(cluster.multiplicity > 1 for cluster in clusters)
    if settings.members in ("branches", "all") and is_repeated and not has_gauge:
        branchings = spectrum.branches(problem, place(problem, x))[: len(clusters)]
        cost = sum((one.cost for one in branchings), Cost())
        return [_members(one, settings.members == "all") for one in branchings], cost
    labels, rows, found = np.asarray(spectrum.labels), np.asarray(spectrum.eigenvectors), []
    for index, cluster in enumerate(clusters):
        count = cluster.multiplicity if settings.members == "all" else 1
        way = Way(order=int(cluster.multiplicity == 1), class_size=cluster.multiplicity)
        own = rows[np.flatnonzero(labels == index)[:count]]
        found.append([(member, row, way) for member, row in enumerate(own)])
    return found, Cost()


def _members(branching: Branching, rides_all: bool) -> list[tuple[int, np.ndarray, Way]]:
    """All directions, or the first of each class."""
    members, seen = [], set()
    for member, one in enumerate(branching.directions):
        if rides_all or one.class_number not in seen:
            way = Way(branching.order, one.kappa, one.class_number, one.class_size)
            members.append((member, one.direction, way))
        seen.add(one.class_number)
    return members


def _rows(ride: Ride) -> dict[str, np.ndarray]:
    """The part of the trace that was written."""
    trace = ride.trace
    columns = {**vars(trace), **vars(trace.certificate)}
    columns = {name: columns[name] for name in columns if isinstance(columns[name], np.ndarray)}
    return {name: column[: int(ride.num_steps) + 1] for name, column in columns.items()}
