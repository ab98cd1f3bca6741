"""Atoms as a problem for `rr.search`, and the solutions of a run as atoms."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ridgerider._check import checked, needs
from ridgerider._core.problem.numpy_functions import NumpyFunctions
from ridgerider._core.problem.problem import Problem
from ridgerider._search.results.result import Result, RunView, Solution
from ridgerider.ase._energy import EnergyAndForces, check_atoms

with needs("ase", "ridgerider.ase"):
    from ase import Atoms
    from ase.io import write as write_atoms


@checked
def problem(atoms: Atoms, *, check: bool = True) -> Problem:
    """The problem of minimising the energy over the positions of all atoms that are not fixed.

    `FixAtoms`, `FixCartesian`, `FixedLine`, `FixedPlane` and `Hookean` constraints are kept; others
    are refused. The cell, if there is one, stays as it is.
    A free cluster has zero modes, translations and rotations: `Solution.num_flat` counts them, and
    minima that only differ by them are one.

    **Arguments**

    - `atoms`: with a calculator. Where they are now is where the search begins; they are copied.
    - `check`: as for `Problem.from_functions`.

    >>> from ase import Atoms
    >>> from ase.calculators.lj import LennardJones
    >>> import ridgerider.ase
    >>> atoms = Atoms("Ar3", [(0, 0, 0), (1.5, 0, 0), (3, 0, 0)], calculator=LennardJones())
    >>> ridgerider.ase.problem(atoms).size
    9
    """
    check_atoms(atoms)
    energy = EnergyAndForces(atoms)
    return Problem(NumpyFunctions(energy.start, energy, check=check), energy.start)


@checked
def to_atoms(result: Result, solutions: Iterable[Solution] | None = None) -> list[Atoms]:
    """Solutions of a run as `Atoms`, the minima if none are given.

    Each has energy and forces, and in `info` its `fingerprint`, `kind` and `least_eigenvalue`.

    >>> from ase import Atoms
    >>> from ase.calculators.lj import LennardJones
    >>> import ridgerider as rr, ridgerider.ase
    >>> ends = Atoms("Ar2", [(0, 0, 0), (1.6, 0, 0)], calculator=LennardJones())
    >>> energy = ridgerider.ase.EnergyAndForces(ends)
    >>> bool(energy.at(ends.positions).get_potential_energy() < 0)
    True
    """
    energy, found = energy_of(result), []
    for solution in result.minima() if solutions is None else solutions:
        atoms = energy.at(solution.params)
        atoms.info |= {
            "fingerprint": str(solution.fingerprint),
            "kind": solution.kind,
            "least_eigenvalue": solution.least_eigenvalue,
        }
        found.append(atoms)
    return found


@checked
def movie(result: Result, fingerprint: str) -> list[Atoms]:
    """A path ridden again, turn by turn: every step of it, and the end of the last descent.

    In `info` each has its `fingerprint`, `step`, and the `eigenvalue` of the ridge there.
    """
    energy, frames, legs = energy_of(result), [], result.replay(fingerprint)
    for leg in legs:
        for step, x in enumerate(leg.trace["path"]):
            frames.append(energy.at(x))
            frames[-1].info |= {
                "fingerprint": str(leg.fingerprint),
                "step": step,
                "eigenvalue": float(leg.trace["eigenvalue"][step]),
            }
    if legs and legs[-1].finish is not None:
        frames.append(energy.at(np.asarray(legs[-1].finish.x)))
    return frames


@checked
def write(path: str | os.PathLike, atoms: Atoms | list[Atoms]) -> Path:
    """Write an extended XYZ file, which holds energies, forces, the cell and what is in `info`."""
    path = Path(path)
    if path.suffix not in (".xyz", ".extxyz"):
        raise ValueError(f"`path` must end in .xyz or .extxyz, not {path.suffix!r}.")
    write_atoms(path, atoms, format="extxyz")
    return path


def is_free(result: RunView) -> bool:
    """Whether rigid motions leave the energy of a map unchanged."""
    motions = getattr(None if result.problem is None else result.problem.loss, "motions", None)
    return bool(getattr(motions, "is_free", False))


def energy_of(result: RunView) -> EnergyAndForces:
    functions: Any = None if result.problem is None else result.problem.loss
    energy = getattr(functions, "_value_and_grad", None)
    if not isinstance(energy, EnergyAndForces):
        raise ValueError(
            "`result` must be a run of ridgerider.ase.problem with its problem, such as "
            "rr.load(path, problem)."
        )
    return energy
