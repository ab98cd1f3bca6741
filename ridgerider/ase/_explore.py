"""`ridgerider.ase.explore`: the map of the energy of some atoms."""

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Literal

import jax
import numpy as np

from ridgerider._check import Count, Limit, Positive, Seed, checked, needs
from ridgerider._core.points.climb import Climb
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem
from ridgerider._search.engine.climbs import Climbs
from ridgerider._search.engine.connect import connected
from ridgerider._search.engine.loop import Means
from ridgerider._search.engine.run import begin_run
from ridgerider._search.engine.run import resume as resume_run
from ridgerider._search.results.landscape import Landscape
from ridgerider._search.runfile.store import RunFile
from ridgerider._search.tree import MAP_ORDERS, Budget, Settings, named_order, order_name
from ridgerider.ase._bonds import Connected, Torsions, bond_graph, is_molecule
from ridgerider.ase._energy import EnergyAndForces, check_apart, check_atoms
from ridgerider.ase._forces import Forces
from ridgerider.ase._motions import Motions, symmetry_of

with needs("ase", "ridgerider.ase"):
    from ase import Atoms
    from ase.io.jsonio import decode

WINDOW = {"keep": 3.0, "any": 10.0}  # eV
# One HVP a step; conformers differ by turns about bonds, whose barriers are of index 1.
CLIMBS = {
    "keep": Climb(radius=0.1, max_radius=0.5, num_products=1, num_aside=0, num_second=0),
    "any": Climb(radius=0.1, max_radius=0.3, num_products=1, num_aside=1, num_second=0),
}
Bonds = Literal["keep", "any"]


@checked
def explore(
    atoms: Atoms,
    *,
    bonds: Bonds | None = None,
    window: Positive | None = None,
    starts: Sequence[Atoms] = (),
    climb: Climb | None = None,
    max_force_calls: Limit = 10_000,
    max_seconds: Limit = None,
    max_rides: Limit = None,
    max_modes: Count | None = None,
    round_size: Count = 8,
    order: str = "fewest_visits",
    seed: Seed = 0,
    out: str | PathLike | None = None,
    name: str | None = None,
    executor: Any = None,
    progress: Any = None,
) -> Landscape:
    """The minima and transition states of some atoms: conformers, clusters, sites on a surface.

    Rigid motions and equal atoms are recognised from the atoms, their cell and their constraints.
    Steps, tolerances and differences are chosen by the noise of the forces, which is measured.

    **Arguments**

    - `atoms`: with a calculator; where they are now is where the map begins.
    - `bonds`: "keep" discards points with other bonds, and climbs by turning about bonds:
      conformers. "any" climbs along all soft modes and keeps the atoms in as many fragments:
      clusters, surfaces, reactions. Default: "keep" for a molecule of nonmetals in no cell.
    - `window`: points so far above the first minimum, in eV, are discarded. Default: 3 for "keep",
      10 for "any".
    - `starts`: other atoms to begin from, of the same species in the same order.
    - `climb`: how ridges are climbed, with lengths in Angstrom.
    - `max_force_calls`, `max_seconds`: no further round begins once these are used up; a round
      consists of `round_size` climbs or descents. `max_rides` limits climbs and descents.
    - `max_modes`: climb at most this many of the softest modes of each minimum.
    - others: as for `rr.explore`. Each worker of an `executor` has its own calculator.

    >>> from ase import Atoms
    >>> from ase.calculators.lj import LennardJones
    >>> import ridgerider.ase
    >>> positions = [(0, 0, 0), (1.1, 0, 0), (0.5, 1, 0), (0.5, 0.4, 0.9)]
    >>> atoms = Atoms("Ar4", positions, calculator=LennardJones(rc=10))
    >>> landscape = ridgerider.ase.explore(atoms)
    >>> len(landscape.minima()), len(landscape.saddles())
    (1, 1)
    """
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        problem, mover, bonds = _prepared(atoms, bonds, climb)
        functions: Any = problem.loss
        energy: EnergyAndForces = functions._value_and_grad
        above = WINDOW[bonds] if window is None else window
        highest = functions.at(energy.start.ravel())[0] + above
        valid = replace(functions.valid, max_loss=highest)
        others = [_like(atoms, energy, number, one) for number, one in enumerate(starts)]
        functions.preparation = Cost(**functions.calls)
        settings = Settings(seed, order_name(order), max_ridges=max_modes, round_size=round_size)
        budget = Budget(max_rides, max_seconds=max_seconds, max_calls=max_force_calls)
        means = Means(executor, 3, progress, None)
        key = named_order(order, seed, MAP_ORDERS)
        of_map: dict[str, Any] = {
            "out": out,
            "name": name or energy.__name__,
            "valid": valid,
            "starts": others,
        }
        return begin_run(problem, mover, settings, key, budget, means, **of_map)


@checked
def connect(
    initial: Atoms,
    final: Atoms,
    *,
    bonds: Bonds | None = None,
    window: Positive | None = None,
    climb: Climb | None = None,
    num_images: Count = 5,
    max_force_calls: Limit = 10_000,
    out: str | PathLike | None = None,
) -> Landscape:
    """What lies between two structures: transition states on a path from one to the other.

    As `rr.connect`, with the settings of `explore`. Atoms of `final` have the order of `initial`.
    Where two of them would meet on the straight path, the first path changes distances evenly.

    >>> from ase.build import add_adsorbate, fcc100
    >>> from ase.calculators.emt import EMT
    >>> from ase.constraints import FixAtoms
    >>> import ridgerider.ase
    >>> slab = fcc100("Al", size=(2, 2, 3), vacuum=4.0)
    >>> add_adsorbate(slab, "Au", 1.7, "hollow")
    >>> slab.set_constraint(FixAtoms(mask=slab.get_tags() > 1))
    >>> slab.calc = EMT()
    >>> other = slab.copy()
    >>> other.positions[-1, 0] += slab.cell[0, 0] / 2
    >>> landscape = ridgerider.ase.connect(slab, other)
    >>> round(landscape.saddles()[0].loss - landscape.minima()[0].loss, 3)
    0.374
    """
    _check_alike(initial, final)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        first = explore(
            initial,
            bonds=bonds,
            window=window,
            starts=[final],
            climb=climb,
            max_force_calls=max_force_calls,
            max_rides=1,
            round_size=1,  # no climb is begun
            out=out,
        )
        return connected(first, num_images=num_images, max_calls=max_force_calls)


def _check_alike(initial: "Atoms", final: "Atoms") -> None:
    """Raise unless two structures have the same atoms, cell, and fixed positions."""
    if list(initial.symbols) != list(final.symbols):
        pairs = enumerate(zip(initial.symbols, final.symbols, strict=False))
        which = next((f"atom {i} is {b} and not {a}" for i, (a, b) in pairs if a != b), "")
        came = which or f"it has {len(final)} atoms and not {len(initial)}"
        raise ValueError(f"`final` must have the atoms of `initial` in the same order, but {came}.")
    if not np.allclose(initial.cell, final.cell) or (initial.pbc != final.pbc).any():
        raise ValueError("`final` must have the cell of `initial`, but it has another one.")
    fixed = [
        i for one in initial.constraints if one.todict()["name"] == "FixAtoms" for i in one.index
    ]
    if not np.allclose(initial.positions[fixed], final.positions[fixed], atol=1e-6):
        raise ValueError("`final` must have the fixed atoms of `initial` at the same places.")


@checked
def resume(
    path: str | PathLike,
    atoms: Any,
    *,
    max_force_calls: Limit | Literal["same"] = "same",
    max_seconds: Limit | Literal["same"] = "same",
    executor: Any = None,
    progress: Any = None,
) -> Landscape:
    """Continue a map of `explore` from its run file `out`, to what it would have become.

    `atoms` are those that it began with, or a calculator for the atoms in the file.
    """
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        stored = RunFile.open(path)
        valid, about = stored.meta["valid"], stored.meta["problem"]["about"]
        stored.close()
        if "atoms" not in about:
            raise ValueError("`path` must be a run file of ridgerider.ase.explore, but it is not.")
        if not isinstance(atoms, Atoms):
            atoms, calculator = Atoms.fromdict(decode(about["atoms"])), atoms
            atoms.calc = calculator
        bonds = "keep" if valid["fields"]["bonds"] else "any"
        problem, _, _ = _prepared(atoms, bonds, None)
        limits: dict[str, Any] = {"max_calls": max_force_calls, "max_seconds": max_seconds}
        return resume_run(path, problem, executor=executor, progress=progress, **limits)


def _prepared(atoms: Any, bonds: Any, climb: Any) -> tuple[Problem, Climbs, Bonds]:
    check_atoms(atoms)
    check_apart(atoms)
    energy = EnergyAndForces(atoms)
    if bonds is None:
        bonds = "keep" if is_molecule(energy.atoms) and energy.is_free.all() else "any"
    climb = CLIMBS[bonds] if climb is None else climb
    motions = Motions(energy)
    functions = Forces(energy, motions)
    graph = bond_graph(energy.atoms)
    functions.valid = Connected.of(energy.atoms, bonds == "keep", np.inf)
    torsions = Torsions(graph)
    if bonds == "keep" and motions.is_free and (torsions.turns or torsions.parts):
        functions.chart = torsions
    problem = Problem(functions, energy.start)
    return problem, Climbs(climb, symmetry_of(energy, motions, bonds == "keep")), bonds


def _like(atoms: Atoms, energy: EnergyAndForces, number: int, other: Any) -> Any:
    """The coordinates of one of `starts`."""
    if not isinstance(other, Atoms) or list(other.numbers) != list(atoms.numbers):
        what = other.get_chemical_formula() if isinstance(other, Atoms) else type(other).__name__
        raise ValueError(
            f"`starts[{number}]` must be Atoms of the same species in the same order, "
            f"{atoms.get_chemical_formula()}, not {what}."
        )
    check_apart(other)
    return energy.coordinates(other.positions)
