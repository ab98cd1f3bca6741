"""The one function in which core and shell meet.

`ride_batch` is pure and picklable: the problem, the rider, the settings and some branches in, legs
out. Whoever calls it, here or on another machine, gets the same legs.
"""

import time
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from ridgerider._core.compile import compiled
from ridgerider._core.cost import Cost
from ridgerider._core.placement import fetch, place
from ridgerider._core.problem import Problem, Vector
from ridgerider._core.ride import Ride
from ridgerider._core.rider import Rider
from ridgerider._core.spectrum import Cluster, Ridge, Spectrum
from ridgerider._search.lanes import finish_one, look_at, ride_one, side_by_side, value_at
from ridgerider._search.next_branch import Order, with_priority
from ridgerider._search.settings import Settings
from ridgerider._search.tree import Branch, Fingerprint, Leg, Turn, hashed


def look(problem: Problem, rider: Rider, settings: Settings) -> Leg:
    """The start as a leg of no steps. Raises if there is nothing to ride."""
    began = time.perf_counter()
    problem.check_deterministic()
    key = branch_key(settings.seed, Fingerprint())
    loss = fetch(compiled(value_at)(problem, problem.x0))
    spectrum = fetch(compiled(look_at)(problem, rider, problem.x0, key))
    if not np.isfinite(loss) or not np.isfinite(spectrum.eigenvalues).all():
        what = "loss" if not np.isfinite(loss) else "Hessian"
        raise ValueError(f"the {what} at `start` must be finite, but it is NaN or infinite.")
    if not spectrum.scale > 0:
        raise ValueError(
            "`start` must have negative curvature to ride along, but the Hessian there is zero. Is "
            "the loss linear in pieces (relu, abs, sign, max)? A smooth activation such as tanh or "
            "softplus has curvature."
        )
    if not spectrum.num_downhill():
        raise ValueError(
            "`start` must have negative curvature to ride along, but its least eigenvalue is "
            f"{spectrum.eigenvalues[0]:.3g}; find_saddle(problem) looks for a saddle to start from."
        )
    turns, directions = _rideable(spectrum, spectrum.clusters(), settings)
    return Leg(
        fingerprint=Fingerprint(),
        x=fetch(problem.x0),
        loss=float(loss),
        num_steps=0,
        ended_by=("start",),
        eigenvalues=spectrum.eigenvalues,
        clusters=spectrum.clusters(),
        num_ridges=spectrum.num_downhill(),
        turns=turns,
        directions=directions,
        trace={},
        cost=spectrum.cost + Cost(values=1, seconds=time.perf_counter() - began),
    )


def ride_batch(
    problem: Problem,
    rider: Rider,
    settings: Settings,
    branches: list[Branch],
    num_lanes: int = 1,
) -> list[Leg]:
    """Ride each branch to its end: the unit of work, pure and picklable.

    One after the other, or `num_lanes` at a time in one compiled program, which takes as many
    steps as the longest of them.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> start = rr.search(wells(1), rr.Rider(finish=None), max_rides=0).leg("")
    >>> branch = start.branch(rr.Turn(index=0, sign=1))
    >>> (leg,) = rr.ride_batch(wells(1), rr.Rider(finish=None), rr.Settings(), [branch])
    >>> str(leg.fingerprint)
    '0+'
    """
    groups = (branches[i : i + num_lanes] for i in range(0, len(branches), num_lanes))
    return [leg for group in groups for leg in _ride(problem, rider, settings, group, num_lanes)]


def branches_at(leg: Leg, settings: Settings, order: Order) -> list[Branch]:
    """GetRidges: both ways along every rideable ridge, light and with their priority."""
    if settings.is_last(leg.fingerprint):
        return []
    branches = (
        leg.branch(Turn(index, sign, member)) for index, member in leg.turns for sign in (1, -1)
    )
    return [replace(with_priority(branch, order), x=None, direction=None) for branch in branches]


def branch_key(seed: int, fingerprint: Fingerprint) -> PRNGKeyArray:
    """A key that depends on where a branch is in the tree, never on when it is reached."""
    words = np.frombuffer(hashed("key", seed, fingerprint), ">u4").astype(np.uint32)
    return jax.random.wrap_key_data(jax.device_put(words), impl="threefry2x32")


def _ride(
    problem: Problem, rider: Rider, settings: Settings, branches: list[Branch], num_lanes: int
) -> list[Leg]:
    """Ride some branches side by side, at most `num_lanes`; a single one by itself."""
    began = time.perf_counter()
    lanes = [_lane(problem, settings, branch) for branch in branches]
    rides = side_by_side(ride_one, problem, rider, lanes, num_lanes)
    keys = [key for _, _, key in lanes]
    ends = [(place(problem, ride.x), key) for (ride, _), key in zip(rides, keys, strict=True)]
    looks = side_by_side(look_at, problem, rider, ends, num_lanes)
    legs = [
        _leg(rider, settings, branch, ride, ended, spectrum)
        for branch, (ride, ended), spectrum in zip(branches, rides, looks, strict=True)
    ]
    ending = [
        row
        for row, (ride, _) in enumerate(rides)
        if ride.is_finite and _is_finished(rider, settings, legs[row])
    ]
    finishing = [ends[row] for row in ending]
    finishes = side_by_side(finish_one, problem, rider, finishing, num_lanes)
    for row, finish in zip(ending, finishes, strict=True):
        legs[row] = replace(legs[row], finish=finish, cost=legs[row].cost + finish.cost)
    share = Cost(seconds=(time.perf_counter() - began) / len(legs))
    return [replace(leg, cost=leg.cost + share) for leg in legs]


def _lane(problem: Problem, settings: Settings, branch: Branch) -> tuple[Vector, Ridge, Array]:
    ridge = Ridge(
        direction=place(problem, branch.direction),
        eigenvalue=jax.device_put(np.asarray(branch.eigenvalue, problem.dtype)),
        index=jax.device_put(np.asarray(branch.fingerprint[-1].index)),
        multiplicity=jax.device_put(np.asarray(branch.multiplicity)),
    )
    return place(problem, branch.x), ridge, branch_key(settings.seed, branch.fingerprint)


def _leg(
    rider: Rider, settings: Settings, branch: Branch, ride: Any, ended: Any, spectrum: Any
) -> Leg:
    """The leg, from what is on the host."""
    # A ride that met a NaN ends there and then; its last finite point is kept, but nothing grows
    # from it.
    clusters = spectrum.clusters()
    turns, directions = (
        _rideable(spectrum, clusters, settings)
        if ride.is_finite
        else ((), spectrum.eigenvectors[:0])
    )
    return Leg(
        fingerprint=branch.fingerprint,
        x=ride.x,
        loss=float(ride.loss),
        num_steps=int(ride.num_steps),
        ended_by=tuple(name for name, yes in zip(rider.rule_names(), ended, strict=True) if yes),
        eigenvalues=spectrum.eigenvalues,
        clusters=clusters,
        num_ridges=spectrum.num_downhill() if ride.is_finite else 0,
        turns=turns,
        directions=directions,
        trace=_rows(ride),
        cost=ride.cost + spectrum.cost,
    )


def _is_finished(rider: Rider, settings: Settings, leg: Leg) -> bool:
    """Whether a descent follows: after each leg, or only where no other does."""
    is_leaf = not leg.num_ridges or settings.is_last(leg.fingerprint)
    return rider.finish is not None and (is_leaf or settings.finish_at == "leg")


def _rideable(
    spectrum: Spectrum, clusters: tuple[Cluster, ...], settings: Settings
) -> tuple[tuple[tuple[int, int], ...], np.ndarray]:
    """The (index, member) pairs that may be ridden under the settings, and their directions."""
    limit = settings.max_ridges if settings.max_ridges is not None else spectrum.num_downhill()
    turns, rows, first = [], [], 0
    for index, cluster in enumerate(clusters[: min(limit, spectrum.num_downhill())]):
        for member in range(cluster.multiplicity if settings.members == "all" else 1):
            turns.append((index, member))
            rows.append(first + member)
        first += cluster.multiplicity
    return tuple(turns), np.asarray(spectrum.eigenvectors)[rows]


def _rows(ride: Ride) -> dict[str, np.ndarray]:
    """The part of the trace that was written."""
    trace = ride.trace
    columns = {
        **vars(trace),
        **vars(trace.certificate),
        **(vars(trace.audit) if trace.audit else {}),
    }
    columns = {name: columns[name] for name in columns if isinstance(columns[name], np.ndarray)}
    return {name: column[: int(ride.num_steps) + 1] for name, column in columns.items()}
