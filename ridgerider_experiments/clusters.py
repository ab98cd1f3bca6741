"""Maps of landscapes with known counts, against what one would use instead.

    ridgerider reproduce clusters

Lennard-Jones clusters and functions of the plane. Published: minima of 7 to 13
atoms 4, 8, 21, 64, 170, 515, 1510; transition states of 7 to 10 about 12, 42, 165, 635. The peers:
descents from random balls by L-BFGS, and basin hopping (SciPy). Costs are gradient-equivalents:
gradients and Hessian-vector products.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

import jax
import numpy as np
import scipy.optimize

import ridgerider as rr
from ridgerider import plot
from ridgerider.problems import landscapes
from ridgerider.types import Progress
from ridgerider.workers import process_pool
from ridgerider_experiments.bench.peers import Gradients
from ridgerider_experiments.runner import Base, Runner, sized
from ridgerider_experiments.show import markdown, save

DIGITS = 5  # clusters whose losses agree to this many decimals count as one, for everybody
LARGE = 13  # atoms


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


PLANE: dict[str, tuple[Callable[[], rr.Problem], int, Any]] = {
    "six-hump camel": (landscapes.six_hump_camel, 6, None),
    "Himmelblau": (landscapes.himmelblau, 4, None),
    "Mueller-Brown": (landscapes.mueller_brown, 3, None),
    "Rastrigin": (landscapes.rastrigin, 121, (-5.12, 5.12)),
}


def run(settings: Settings, runner: Runner) -> dict[str, Any]:
    results: dict[str, Any] = {"plane": {}, "clusters": {}}
    for name, (make, known, valid) in PLANE.items():
        landscape = rr.explore(make(), valid=valid)
        results["plane"][name] = {"known": known, **_summary(landscape)}
    save(plot.plane(rr.explore(landscapes.mueller_brown())).figure, runner.out / "mueller-brown")
    for atoms in (*settings.atoms, *((LARGE,) if settings.full else ())):
        results["clusters"][str(atoms)] = one = _cluster(atoms, settings, runner)
        runner.say(f"{atoms} atoms: {one['minima']} minima, {one['saddles']} transition states")
        peers = PEERS if atoms in settings.peer_atoms else {}
        one["peers"] = {name: peer(atoms, settings).summary() for name, peer in peers.items()}
        for peer in one["peers"].values():
            peer["map_for_as_many"] = one["came_at"].get(str(peer["minima"]))
    return results


def _summary(landscape: rr.Landscape, spent_before: int = 0) -> dict[str, Any]:
    minima, saddles, cost = landscape.minima(), landscape.saddles(), landscape.cost
    spent = spent_before + int(cost.hvps + cost.gradients)
    return {
        "minima": len(minima),
        "saddles": len(saddles),
        "higher": len(landscape.saddles(None)) - len(saddles),
        "rides": len(landscape),
        "gradient_equivalents": spent,
        "per_point": spent / max(len(minima) + len(saddles), 1),
        "wrong_indices": wrong_indices(landscape),
    }


def wrong_indices(landscape: rr.Landscape, tolerance: float = 1e-7) -> int:
    """How many points have another index by a Hessian of their own and NumPy's eigenvalues."""
    problem, wrong = landscape.problem, 0
    assert problem is not None
    hessian = jax.jit(problem.hessian)
    for one in (*landscape.minima(), *landscape.saddles(None)):
        values = np.linalg.eigvalsh(np.asarray(hessian(problem.ravel(one.params))))
        index = int(np.sum(values < -tolerance * np.abs(values).max()))
        wrong += index != getattr(one, "morse_index", -1)
    return wrong


def _cluster(atoms: int, settings: Settings, runner: Runner) -> dict[str, Any]:
    """A map; of 13 atoms from the ends of many descents, by the clock, in several processes."""
    found, came_at = _Found(atoms), dict[str, int]()
    how: dict[str, Any] = {"max_rides": settings.max_rides}
    if atoms == LARGE:
        ends = islice(_descents(atoms, settings.seed, found.loss), settings.num_starts)
        how = {
            "starts": [x.reshape(-1, 3) for x, value in ends if found.add(x, value)],
            "max_rides": None,
            "max_seconds": settings.max_seconds,
            "round_size": 256,  # of any number of workers: the same map
            "out": runner.out / f"atoms-{atoms}.sqlite",
        }
    before = found.loss.count

    def watch(done: Progress) -> None:
        spent = before + int(done.cost.hvps + done.cost.gradients)
        for count in range(len(came_at) + 1, done.num_minima + 1):
            came_at[str(count)] = spent

    is_divided = atoms == LARGE and runner.workers > 1
    with process_pool(runner.workers) if is_divided else nullcontext() as executor:
        landscape = rr.explore(
            landscapes.lennard_jones(atoms),
            symmetry=rr.symmetry.point_set(),
            valid=landscapes.is_one_cluster,
            progress=watch,
            seed=settings.seed,
            executor=executor,
            **how,
        )
    ax = plot.disconnectivity(landscape)
    ax.set_title(f"{atoms} Lennard-Jones atoms")
    save(ax.figure, runner.out / f"atoms-{atoms}")
    return {
        **_summary(landscape, before),
        "to_the_last_minimum": came_at.get(str(len(came_at)), 0),
        "came_at": came_at,
        "published_minima": landscapes.CLUSTER_MINIMA.get(atoms),
        "published_saddles": landscapes.CLUSTER_SADDLES.get(atoms),
    }


# --- peers


class _Found:
    """Different minima, with the cost at which the last new one came."""

    def __init__(self, atoms: int):
        problem = landscapes.lennard_jones(atoms)
        self.loss, self.losses, self.at = Gradients(problem), set[float](), 0
        self.atoms, self._gradient_at = atoms, jax.jit(problem.grad)

    def add(self, x: np.ndarray, loss: float) -> bool:
        """Whether it is new."""
        is_flat = np.linalg.norm(self._gradient_at(x)) < 1e-3
        is_cluster = is_flat and landscapes.is_one_cluster(x.reshape(-1, 3))
        if not is_cluster or round(loss, DIGITS) in self.losses:
            return False
        self.losses.add(round(loss, DIGITS))
        self.at = self.loss.count
        return True

    def is_over(self, settings: Settings) -> bool:
        """All minima are found, or the gradients are used up."""
        is_all = len(self.losses) >= landscapes.CLUSTER_MINIMA[self.atoms]
        return is_all or self.loss.count >= settings.peer_gradients

    def summary(self) -> dict[str, int]:
        spent = {"gradients": self.loss.count, "to_the_last_minimum": self.at}
        return {"minima": len(self.losses), **spent}


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


def _multi_start(atoms: int, settings: Settings) -> _Found:
    found = _Found(atoms)
    for x, value in _descents(atoms, settings.seed, found.loss):
        found.add(x, value)
        if found.is_over(settings):
            return found
    raise AssertionError


def _basin_hopping(atoms: int, settings: Settings) -> _Found:
    """SciPy's, hop by hop, within the same bounds."""
    found = _Found(atoms)

    def see(x: np.ndarray, value: float, accepted: bool) -> bool:
        found.add(x, value)
        return found.is_over(settings)

    with np.errstate(all="ignore"):
        scipy.optimize.basinhopping(
            found.loss,
            np.asarray(landscapes.lennard_jones(atoms).x0),
            niter=100_000,
            T=0.8,
            stepsize=0.4,
            minimizer_kwargs={"method": "L-BFGS-B", "jac": True, "options": {"gtol": 1e-7}},
            callback=see,
            rng=np.random.default_rng(settings.seed),
        )
    return found


PEERS = {"multi-start L-BFGS": _multi_start, "basin hopping": _basin_hopping}


def table(results: dict[str, Any]) -> str:
    def row(name: str, one: dict[str, Any], known: Any = "-", saddles: Any = "-") -> list[Any]:
        spent = one.get("gradient_equivalents", one.get("gradients"))
        per_point = round(one["per_point"]) if "per_point" in one else "-"
        rest = [one.get(part) or "-" for part in ("to_the_last_minimum", "map_for_as_many")]
        found = [known, one["minima"], saddles, one.get("saddles", "-"), spent, per_point]
        cells = [name, *found, *rest, one.get("wrong_indices", "-")]
        return [f"{cell:,}" if isinstance(cell, int) else cell for cell in cells]

    rows = [row(name, one, one["known"]) for name, one in results["plane"].items()]
    for atoms, one in results["clusters"].items():
        known = one["published_minima"]
        rows.append(row(f"{atoms} atoms", one, known, one["published_saddles"] or "-"))
        rows += [row(f"{atoms} atoms, {name}", of, known) for name, of in one["peers"].items()]
    head = ["landscape", "published minima", "found", "published transition states", "found"]
    head += ["gradient-equivalents", "per point", "to the last minimum"]
    return markdown([*head, "the map, for as many minima", "wrong indices"], rows)
