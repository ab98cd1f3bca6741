"""Energies and forces of atoms as a function of the coordinates that are free to move."""

from typing import Any

import numpy as np

from ridgerider._check import needs
from ridgerider._core.problem.functions import CALLING

with needs("ase", "ridgerider.ase"):
    from ase import Atoms
    from ase.calculators.singlepoint import SinglePointCalculator
    from ase.constraints import FixAtoms, FixCartesian, FixedLine, FixedPlane, Hookean
    from ase.data import covalent_radii
    from ase.data.colors import jmol_colors

TOO_CLOSE = 0.25  # of the sum of two covalent radii
FORCE = "Hookean"  # the only constraint that acts by a force


def check_atoms(atoms: Any) -> None:
    """Raise unless there is something to compute with."""
    if atoms.calc is None:
        raise ValueError("`atoms` must have a calculator: set atoms.calc.")


def check_apart(atoms: Atoms) -> None:
    """Raise if two atoms are at one place."""
    apart = atoms.get_all_distances(mic=True)
    np.fill_diagonal(apart, np.inf)
    radii = covalent_radii[atoms.numbers]
    one, two = np.unravel_index(np.argmin(apart / (radii[:, None] + radii)), apart.shape)
    if apart[one, two] < TOO_CLOSE * (radii[one] + radii[two]):
        raise ValueError(
            f"`atoms` must not overlap, but atoms {one} and {two} ({atoms.symbols[one]} and "
            f"{atoms.symbols[two]}) are {apart[one, two]:.3g} Angstrom apart."
        )


class EnergyAndForces:
    """The energy, and minus the forces, as a function of the coordinates that are not fixed.

    With `FixAtoms` alone these are the positions of the free atoms. `FixCartesian`, `FixedLine` and
    `FixedPlane` leave fewer: then `basis` has a column for each, and the coordinates are a vector.
    `Hookean` adds to energy and forces; other constraints are refused.

    With `resets` the calculator forgets what it knows before each call. A calculator of
    another process is made anew from its parameters if it cannot be pickled.
    """

    def __init__(self, atoms: Atoms):
        self.atoms, self.resets = atoms.copy(), False
        self.atoms.calc = atoms.calc
        self.is_free = np.ones(len(atoms), bool)
        blocks = {}  # of atoms that may move in some directions only, by columns
        self.springs = list[Any]()
        for constraint in self.atoms.constraints:
            if isinstance(constraint, FixAtoms):
                self.is_free[constraint.index] = False
            elif isinstance(constraint, Hookean):
                self.springs.append(constraint)
            elif isinstance(constraint, FixCartesian | FixedLine | FixedPlane):
                for atom in np.atleast_1d(constraint.index):
                    blocks[int(atom)] = _columns(constraint)
            else:
                raise ValueError(
                    "`atoms` may have the constraints FixAtoms, FixCartesian, FixedLine, "
                    f"FixedPlane and Hookean, not {type(constraint).__name__}."
                )
        if not self.is_free.any():
            raise ValueError("`atoms` must have an atom that is not fixed.")
        self.basis = _basis(self.is_free, blocks) if blocks else None
        self.fixed = self.atoms.positions.copy()
        self.start = self.coordinates(self.atoms.positions)
        self.__name__ = atoms.get_chemical_formula()

    def coordinates(self, positions: np.ndarray) -> np.ndarray:
        """Those of the positions that are free."""
        positions = np.asarray(positions, float)
        return self.reduced(positions if self.basis is None else positions - self.fixed)

    def positions(self, coordinates: np.ndarray) -> np.ndarray:
        """The positions of all atoms."""
        positions = self.fixed.copy()
        if self.basis is None:
            positions[self.is_free] = np.reshape(coordinates, (-1, 3))
        else:
            positions += (self.basis @ np.ravel(coordinates)).reshape(-1, 3)
        return positions

    def __call__(self, coordinates: np.ndarray) -> tuple[float, np.ndarray]:
        energy, forces = self._compute(coordinates)
        return energy, -self.reduced(forces)

    def reduced(self, vectors: np.ndarray) -> np.ndarray:
        """The parts along the free coordinates of a vector for each atom."""
        return vectors[self.is_free] if self.basis is None else self.basis.T @ vectors.ravel()

    def _compute(self, coordinates: np.ndarray) -> tuple[float, np.ndarray]:
        """Energy and all forces, those of springs included."""
        calculator = self.atoms.calc
        with CALLING:
            self.atoms.positions[:] = self.positions(coordinates)
            if self.resets:
                calculator.reset()
            elif hasattr(calculator, "results"):  # a call is made, and counted, also where atoms
                calculator.results = {}  # have moved by less than what ASE compares them with
            try:
                forces = self.atoms.get_forces(apply_constraint=False)
                # The energy comes with the forces. Asking for it makes ASE compare all of the atoms
                # with their last state, which takes longer than the forces of a small cluster.
                known = getattr(calculator, "results", None) or {}
                energy = known["energy"] if "energy" in known else self.atoms.get_potential_energy()
            except Exception:
                if hasattr(calculator, "reset"):  # of what it was left with halfway
                    calculator.reset()
                raise
        if self.springs:
            forces = forces.copy()
        for spring in self.springs:
            energy += spring.adjust_potential_energy(self.atoms)
            spring.adjust_forces(self.atoms, forces)
        return energy, forces

    def at(self, coordinates: np.ndarray) -> Atoms:
        """The atoms there, with energy and forces that need no calculator any more."""
        energy, forces = self._compute(np.asarray(coordinates, float))
        forces = np.where(self.is_free[:, None], forces, 0)
        atoms = self.atoms.copy()
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        return atoms

    def about(self) -> dict[str, Any]:
        """What a run file and its report say of the atoms."""
        numbers = self.atoms.numbers
        colors = [f"#{bytes(np.uint8(255 * one)).hex()}" for one in jmol_colors[numbers]]
        return {
            "quantity": "energy",
            "unit": "eV",
            "formula": self.__name__,
            "symbols": list(self.atoms.symbols),
            "colors": colors,
            "radii": covalent_radii[numbers].tolist(),
            "masses": self.atoms.get_masses().tolist(),
            "positions": self.fixed.tolist(),
            "is_free": self.is_free.tolist(),
            "basis": None if self.basis is None else self.basis.tolist(),
        }

    def __getstate__(self) -> dict[str, Any]:
        import pickle

        atoms, calculator = self.atoms.copy(), self.atoms.calc
        try:
            pickle.dumps(calculator)
        except Exception:  # such as pointers into a library
            try:
                calculator = (type(calculator), dict(calculator.parameters))
                pickle.dumps(calculator)
            except Exception:
                raise ValueError(
                    "the calculator must be one that can be pickled, or made anew from its "
                    f"`parameters`, to be used by workers, but {type(self.atoms.calc).__name__} "
                    "is neither."
                ) from None
        return {**self.__dict__, "atoms": (atoms, calculator)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        atoms, calculator = state["atoms"]
        atoms.calc = calculator[0](**calculator[1]) if type(calculator) is tuple else calculator
        self.__dict__.update(state, atoms=atoms)


def _columns(constraint: Any) -> np.ndarray:
    """Orthonormal columns along which an atom may move."""
    if isinstance(constraint, FixCartesian):
        return np.eye(3)[:, ~np.asarray(constraint.mask, bool)]
    along = np.asarray(constraint.dir, float)[:, None] / np.linalg.norm(constraint.dir)
    if isinstance(constraint, FixedLine):
        return along
    return np.linalg.svd(along)[0][:, 1:]


def _basis(is_free: np.ndarray, blocks: dict[int, np.ndarray]) -> np.ndarray:
    columns = []
    for atom in np.flatnonzero(is_free):
        block = blocks.get(int(atom), np.eye(3))
        whole = np.zeros((len(is_free), 3, block.shape[1]))
        whole[atom] = block
        columns.append(whole.reshape(-1, block.shape[1]))
    return np.concatenate(columns, axis=1)
