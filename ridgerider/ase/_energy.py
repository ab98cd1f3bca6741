"""Energies and forces of atoms as a function of the coordinates that are free to move."""

from typing import Any

import numpy as np
from scipy.linalg import block_diag, null_space

from ridgerider._check import needs
from ridgerider._core.problem.functions import CALLING

with needs("ase", "ridgerider.ase"):
    from ase import Atoms
    from ase.calculators.singlepoint import SinglePointCalculator
    from ase.constraints import FixAtoms, FixCartesian, FixedLine, FixedPlane, Hookean
    from ase.data import covalent_radii
    from ase.data.colors import jmol_colors
    from ase.io.jsonio import encode

TOO_CLOSE = 0.25  # of the sum of two covalent radii


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
    `FixedPlane` leave fewer: then the coordinates are a vector. In both cases the positions are
    `origin` + `basis` @ coordinates, with orthonormal columns. `Hookean` adds to energy and forces;
    other constraints are refused.

    With `resets` the calculator forgets what it knows before each call. A calculator of
    another process is made anew from its parameters if it cannot be pickled.
    """

    def __init__(self, atoms: Atoms):
        self.atoms, self.resets = atoms.copy(), False
        self.atoms.calc = atoms.calc
        self.springs = list[Any]()
        blocked = [np.zeros((0, 3)) for _ in atoms]  # directions in which an atom may not move
        for constraint in self.atoms.constraints:
            if isinstance(constraint, Hookean):
                self.springs.append(constraint)
                continue
            if not isinstance(constraint, FixAtoms | FixCartesian | FixedLine | FixedPlane):
                raise ValueError(
                    "`atoms` may have the constraints FixAtoms, FixCartesian, FixedLine, "
                    f"FixedPlane and Hookean, not {type(constraint).__name__}: Hookean keeps a "
                    "bond or distance from growing."
                )
            for atom in np.atleast_1d(constraint.index):
                blocked[atom] = np.concatenate([blocked[atom], _blocked(constraint)])
        free = [null_space(rows) if len(rows) else np.eye(3) for rows in blocked]
        self.basis, self.is_free = block_diag(*free), np.array([one.size > 0 for one in free])
        if not self.is_free.any():
            raise ValueError("`atoms` must have an atom that is not fixed.")
        self.is_whole = self.basis.shape[1] == 3 * self.is_free.sum()  # no atom moves in part
        places = self.atoms.positions.ravel()
        self.origin = places - self.basis @ (self.basis.T @ places)
        self.start = self.coordinates(self.atoms.positions)
        self.__name__ = atoms.get_chemical_formula()

    def coordinates(self, vectors: np.ndarray) -> np.ndarray:
        """The parts along the free coordinates of a vector for each atom, such as its position."""
        return (np.ravel(vectors) @ self.basis).reshape((-1, 3) if self.is_whole else -1)

    def positions(self, coordinates: np.ndarray) -> np.ndarray:
        """The positions of all atoms."""
        return (self.origin + self.basis @ np.ravel(coordinates)).reshape(-1, 3)

    def __call__(self, coordinates: np.ndarray) -> tuple[float, np.ndarray]:
        energy, forces = self._compute(coordinates)
        return energy, -self.coordinates(forces)

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

    def at(self, coordinates: np.ndarray, energy: float, **info: Any) -> Atoms:
        """The atoms there, with an energy that is known."""
        atoms = self.atoms.copy()
        atoms.positions = self.positions(coordinates)
        atoms.calc = SinglePointCalculator(atoms, energy=energy)
        atoms.info |= info
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
            "positions": self.origin.reshape(-1, 3).tolist(),
            "is_free": self.is_free.tolist(),
            "basis": None if self.is_whole else self.basis.tolist(),
            "atoms": encode(self.atoms.todict()),
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


def _blocked(constraint: Any) -> np.ndarray:
    """Rows that span the directions in which an atom may not move."""
    if isinstance(constraint, FixAtoms):
        return np.eye(3)
    if isinstance(constraint, FixCartesian):
        return np.eye(3)[np.asarray(constraint.mask, bool)]
    axis = np.asarray(constraint.dir, float)[None] / np.linalg.norm(constraint.dir)
    return axis if isinstance(constraint, FixedPlane) else np.eye(3) - axis.T @ axis
