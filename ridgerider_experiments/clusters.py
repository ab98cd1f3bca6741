"""Maps of landscapes with known counts, against what one would use instead.

    ridgerider reproduce clusters

Lennard-Jones clusters and functions of the plane. Published: minima of 7 to 13
atoms 4, 8, 21, 64, 170, 515, 1510; transition states of 7 to 10 about 12, 42, 165, 635. The peers:
descents from random balls by L-BFGS, and basin hopping (SciPy). Costs are gradient-equivalents:
gradients and Hessian-vector products.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
import scipy.optimize

import ridgerider as rr
from ridgerider import plot
from ridgerider.problems.landscapes import (
    CLUSTER_MINIMA,
    CLUSTER_SADDLES,
    himmelblau,
    is_one_cluster,
    lennard_jones,
    mueller_brown,
    rastrigin,
    six_hump_camel,
)
from ridgerider.types import Progress
from ridgerider.workers import process_pool
from ridgerider_experiments.bench.peers import Gradients
from ridgerider_experiments.settings import Base, sized
from ridgerider_experiments.show import markdown, save

DIGITS = 5  # clusters whose losses agree to this many decimals count as one, for everybody


@dataclass(frozen=True)
class Settings(Base):
    atoms: tuple[int, ...] = sized((7, 8, 9, 10), quick=(7,))
    full: bool = False  # 13 atoms, too, for at most `max_seconds` by the clock
    max_seconds: float = 3600.0
    num_starts: int = 4000  # descents from random balls whose ends the map of 13 atoms begins from
    # Of one map of up to 10 atoms; these end by themselves.
    max_rides: int = sized(40_000, quick=400)
    peer_atoms: tuple[int, ...] = sized((7, 9, 10), quick=(7,))  # the peers are slow
    peer_gradients: int = sized(200_000, quick=8_000)  # of each peer, at most
    workers: int = 1  # processes that climb, of 13 atoms


PLANE: dict[str, tuple[Callable[[], rr.Problem], int, Any]] = {
    "six-hump camel": (six_hump_camel, 6, None),
    "Himmelblau": (himmelblau, 4, None),
    "Mueller-Brown": (mueller_brown, 3, None),
    "Rastrigin": (rastrigin, 121, (-5.12, 5.12)),
}


def run(settings: Settings, out: Path, say: Callable[[str], None]) -> dict[str, Any]:
    results: dict[str, Any] = {"plane": {}, "clusters": {}}
    for name, (make, known, valid) in PLANE.items():
        landscape = rr.explore(make(), valid=valid)
        results["plane"][name] = {"known": known, **_summary(landscape)}
        say(f"{name}: {landscape}")
    save(plot.plane(rr.explore(mueller_brown())).figure, out / "mueller-brown")
    for atoms in (*settings.atoms, *((13,) if settings.full else ())):
        results["clusters"][str(atoms)] = one = _cluster(atoms, settings, out, say)
        one["peers"] = {}
        if atoms in settings.peer_atoms:
            one["peers"] = {
                "multi-start L-BFGS": _multi_start(atoms, settings),
                "basin hopping": _basin_hopping(atoms, settings),
            }
            for name, peer in one["peers"].items():
                peer["map_for_as_many"] = one["came_at"].get(str(peer["minima"]))
                say(
                    f"{atoms} atoms, {name}: {peer['minima']} minima, {peer['gradients']} gradients"
                )
    return results


def _summary(landscape: rr.Landscape, spent_before: int = 0) -> dict[str, Any]:
    cost = landscape.cost
    points = len(landscape.minima()) + len(landscape.saddles())
    spent = spent_before + int(cost.hvps + cost.gradients)
    return {
        "minima": len(landscape.minima()),
        "saddles": len(landscape.saddles()),
        "higher": len(landscape.saddles(None)) - len(landscape.saddles()),
        "rides": len(landscape),
        "gradient_equivalents": spent,
        "per_point": spent / max(points, 1),
        "seconds": float(cost.seconds),
        "wrong_indices": wrong_indices(landscape),
    }


def wrong_indices(landscape: rr.Landscape, tolerance: float = 1e-7) -> int:
    """How many points have another index by a Hessian of their own and NumPy's eigenvalues."""
    problem, wrong = landscape.problem, 0
    assert problem is not None
    hessian = jax.jit(problem.hessian)
    for one in (*landscape.minima(), *landscape.saddles(None)):
        index = _index(hessian(problem.ravel(one.params)), tolerance)
        wrong += index != getattr(one, "morse_index", -1)
    return wrong


def _index(hessian: jax.Array, tolerance: float) -> int:
    values = np.linalg.eigvalsh(np.asarray(hessian))
    return int(np.sum(values < -tolerance * np.abs(values).max()))


def _cluster(
    atoms: int, settings: Settings, out: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    problem, came_at = lennard_jones(atoms), dict[str, int]()
    is_large = atoms > 10
    path = out / f"atoms-{atoms}.sqlite" if is_large else None
    began = time.perf_counter()
    starts, spent_before = _ends_of_descents(atoms, settings) if is_large else ([], 0)
    if starts:
        say(f"{atoms} atoms: {len(starts)} minima below random points, {spent_before:,} gradients")

    def watch(done: Progress) -> None:
        spent = spent_before + int(done.cost.hvps + done.cost.gradients)
        seconds = time.perf_counter() - began
        for count in range(len(came_at) + 1, done.num_minima + 1):
            came_at[str(count)] = spent
            if count % 100 == 0:
                say(
                    f"{atoms} atoms: {count} minima, {spent:,} gradient-equivalents, "
                    f"{seconds:.0f} s"
                )

    max_seconds = None
    if is_large:  # what the descents have left of it
        max_seconds = max(settings.max_seconds - (time.perf_counter() - began), 1.0)
    num_workers = settings.workers if is_large else 1
    crew = nullcontext() if num_workers == 1 else process_pool(num_workers)
    with crew as executor:
        landscape = rr.explore(
            problem,
            starts=starts,
            symmetry=rr.symmetry.point_set(),
            valid=is_one_cluster,
            max_rides=None if is_large else settings.max_rides,
            max_seconds=max_seconds,
            round_size=256 if is_large else 64,  # of any number of workers: the same map
            progress=watch,
            seed=settings.seed,
            out=path,
            executor=executor,
        )
    seconds = time.perf_counter() - began
    say(f"{atoms} atoms: {landscape}")
    ax = plot.disconnectivity(landscape)
    ax.set_title(f"{atoms} Lennard-Jones atoms")
    save(ax.figure, out / f"atoms-{atoms}")
    return {
        **_summary(landscape, spent_before),
        "starts": len(starts),
        "wall_seconds": seconds,
        "to_the_last_minimum": came_at.get(str(len(came_at)), 0),
        "came_at": came_at,
        "published_minima": CLUSTER_MINIMA.get(atoms),
        "published_saddles": CLUSTER_SADDLES.get(atoms),
    }


# --- peers


class _Found:
    """Different minima, with the cost at which the last new one came."""

    def __init__(self, atoms: int):
        problem = lennard_jones(atoms)
        self.loss, self.losses, self.at = Gradients(problem), set[float](), 0
        self.began, self._gradient_at = time.perf_counter(), jax.jit(problem.grad)

    def add(self, x: np.ndarray, loss: float) -> bool:
        """Whether it is new."""
        is_flat = np.linalg.norm(self._gradient_at(x)) < 1e-3
        is_cluster = is_flat and is_one_cluster(x.reshape(-1, 3))
        if not is_cluster or round(loss, DIGITS) in self.losses:
            return False
        self.losses.add(round(loss, DIGITS))
        self.at = self.loss.count
        return True

    def is_over(self, atoms: int, settings: Settings) -> bool:
        """All minima are found, or the gradients are used up."""
        is_all = len(self.losses) >= CLUSTER_MINIMA[atoms]
        return is_all or self.loss.count >= settings.peer_gradients

    def summary(self) -> dict[str, Any]:
        return {
            "minima": len(self.losses),
            "gradients": self.loss.count,
            "to_the_last_minimum": self.at,
            "seconds": time.perf_counter() - self.began,
        }


def _descents(atoms: int, seed: int, loss: Gradients) -> Iterator[tuple[np.ndarray, float]]:
    """Where descents from random points of a ball end."""
    random = np.random.default_rng(seed)
    while True:
        start = random.normal(size=3 * atoms) * 0.56 * atoms ** (1 / 3)
        with np.errstate(all="ignore"):
            end = scipy.optimize.minimize(
                loss, start, jac=True, method="L-BFGS-B", options={"gtol": 1e-7, "ftol": 1e-15}
            )
        yield end.x, float(end.fun)


def _multi_start(atoms: int, settings: Settings) -> dict[str, Any]:
    found = _Found(atoms)
    for x, value in _descents(atoms, settings.seed, found.loss):
        found.add(x, value)
        if found.is_over(atoms, settings):
            break
    return found.summary()


def _ends_of_descents(atoms: int, settings: Settings) -> tuple[list[np.ndarray], int]:
    """Different minima below random points, and the gradients that they took."""
    found = _Found(atoms)
    descents = islice(_descents(atoms, settings.seed, found.loss), settings.num_starts)
    return [x.reshape(-1, 3) for x, value in descents if found.add(x, value)], found.loss.count


def _basin_hopping(atoms: int, settings: Settings) -> dict[str, Any]:
    """SciPy's, hop by hop, within the same bounds."""
    found = _Found(atoms)

    def see(x: np.ndarray, value: float, accepted: bool) -> bool:
        found.add(x, value)
        return found.is_over(atoms, settings)

    with np.errstate(all="ignore"):
        scipy.optimize.basinhopping(
            found.loss,
            np.asarray(lennard_jones(atoms).x0),
            niter=100_000,
            T=0.8,
            stepsize=0.4,
            minimizer_kwargs={"method": "L-BFGS-B", "jac": True, "options": {"gtol": 1e-7}},
            callback=see,
            rng=np.random.default_rng(settings.seed),
        )
    return found.summary()


HEAD = ["landscape", "published minima", "found", "published transition states", "found"]
HEAD += ["gradient-equivalents", "per point", "to the last minimum", "the map, for as many minima"]
HEAD += ["wrong indices"]


def table(results: dict[str, Any]) -> str:
    rows: list[tuple[Any, ...]] = []
    counts: tuple[Any, ...]
    for name, one in results["plane"].items():
        rows.append((name, one["known"], one["minima"], "-", one["saddles"], *_spent(one)))
    for atoms, one in results["clusters"].items():
        counts = (one["minima"], one["published_saddles"] or "-", one["saddles"])
        rows.append((f"{atoms} atoms", one["published_minima"], *counts, *_spent(one)))
        for name, peer in one["peers"].items():
            as_many = peer["map_for_as_many"] or "-"
            spent = (peer["gradients"], "-", peer["to_the_last_minimum"], as_many, "-")
            counts = (one["published_minima"], peer["minima"], "-", "-")
            rows.append((f"{atoms} atoms, {name}", *counts, *spent))
    shown = [[f"{cell:,}" if isinstance(cell, int) else cell for cell in row] for row in rows]
    return markdown(HEAD, shown)


def _spent(one: dict[str, Any]) -> tuple[Any, ...]:
    last = one.get("to_the_last_minimum", "-")
    return one["gradient_equivalents"], round(one["per_point"]), last, "-", one["wrong_indices"]
