"""Atoms with any calculator of ASE: `pip install 'ridgerider[ase]'`.

Energies and forces are the calculator's; a Hessian-vector product is made of differences of four
forces. An error of the calculator in the middle of a ride ends that leg, and the search continues.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ridgerider._check import needs
from ridgerider._core.problem.numpy_functions import NumpyFunctions
from ridgerider._core.problem.problem import Problem
from ridgerider._search.results.result import Result
from ridgerider._search.results.solutions import Solution

with needs("ase", "ridgerider.ase"):
    from ase import Atoms
    from ase.constraints import FixAtoms
    from ase.io import write as write_atoms


def problem(atoms: Atoms, *, check: bool = True) -> Problem:
    """The problem of minimising the energy over the positions of all atoms that are not fixed.

    `FixAtoms` constraints are kept; others are refused. The cell, if there is one, stays as it is.
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
    if not isinstance(atoms, Atoms):
        raise ValueError(f"`atoms` must be Atoms of ASE, not {type(atoms).__name__}.")
    if atoms.calc is None:
        raise ValueError("`atoms` must have a calculator: set atoms.calc.")
    energy = EnergyAndForces(atoms)
    start = energy.atoms.positions[energy.is_free]
    return Problem(NumpyFunctions(start, energy, check=check), start)


class EnergyAndForces:
    """The energy, and minus the forces, as a function of the positions of the free atoms."""

    def __init__(self, atoms: Atoms):
        self.atoms = atoms.copy()
        self.atoms.calc = atoms.calc
        self.is_free = np.ones(len(atoms), bool)
        for constraint in self.atoms.constraints:
            if not isinstance(constraint, FixAtoms):
                raise ValueError(
                    f"`atoms` may have FixAtoms constraints only, not {type(constraint).__name__}."
                )
            self.is_free[constraint.index] = False
        if not self.is_free.any():
            raise ValueError("`atoms` must have an atom that is not fixed.")
        self.__name__ = atoms.get_chemical_formula()

    def __call__(self, positions: np.ndarray) -> tuple[float, np.ndarray]:
        self.atoms.positions[self.is_free] = positions
        try:
            forces = self.atoms.get_forces(apply_constraint=False)
            # The energy comes with the forces. Asking for it makes ASE compare all of the atoms
            # with their last state, which takes longer than the forces of a small cluster.
            known = getattr(self.atoms.calc, "results", None) or {}
            energy = known["energy"] if "energy" in known else self.atoms.get_potential_energy()
            return energy, -forces[self.is_free]
        except Exception:
            if hasattr(self.atoms.calc, "reset"):  # of what it was left with halfway
                self.atoms.calc.reset()
            raise

    def at(self, positions: np.ndarray) -> Atoms:
        """The atoms there, with energy and forces that need no calculator any more."""
        from ase.calculators.singlepoint import SinglePointCalculator

        energy, slopes = self(np.asarray(positions, float).reshape(-1, 3))
        atoms, forces = self.atoms.copy(), np.zeros((len(self.atoms), 3))
        forces[self.is_free] = -slopes
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        return atoms


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
    energy, found = _energy_of(result), []
    for solution in result.minima() if solutions is None else solutions:
        atoms = energy.at(solution.params)
        atoms.info |= {
            "fingerprint": str(solution.fingerprint),
            "kind": solution.kind,
            "least_eigenvalue": solution.least_eigenvalue,
        }
        found.append(atoms)
    return found


def movie(result: Result, fingerprint: str) -> list[Atoms]:
    """A path ridden again, turn by turn: every step of it, and the end of the last descent.

    In `info` each has its `fingerprint`, `step`, and the `eigenvalue` of the ridge there.
    """
    energy, frames, legs = _energy_of(result), [], result.replay(fingerprint)
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


def write(path: str | os.PathLike, atoms: Atoms | list[Atoms]) -> Path:
    """Write an extended XYZ file, which holds energies, forces, the cell and what is in `info`."""
    path = Path(path)
    if path.suffix not in (".xyz", ".extxyz"):
        raise ValueError(f"`path` must end in .xyz or .extxyz, not {path.suffix!r}.")
    write_atoms(path, atoms, format="extxyz")
    return path


def _energy_of(result: Result) -> EnergyAndForces:
    functions: Any = None if result.problem is None else result.problem.loss
    energy = getattr(functions, "_value_and_grad", None)
    if not isinstance(energy, EnergyAndForces):
        raise ValueError(
            "`result` must be a run of ridgerider.ase.problem with its problem, such as "
            "rr.load(path, problem)."
        )
    return energy
