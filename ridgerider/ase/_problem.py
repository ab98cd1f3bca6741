"""Atoms as a problem for `rr.search`, and the atoms of a run."""

from typing import Any

from ridgerider._check import checked, needs
from ridgerider._core.problem.numpy_functions import NumpyFunctions
from ridgerider._core.problem.problem import Problem
from ridgerider._search.results.result import RunView
from ridgerider.ase._energy import EnergyAndForces, check_atoms

with needs("ase", "ridgerider.ase"):
    from ase import Atoms
    from ase.io.jsonio import decode


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


def energy_of(run: RunView) -> EnergyAndForces:
    """The energy of a run, without a calculator where the problem is not at hand."""
    functions: Any = None if run.problem is None else run.problem.loss
    energy = getattr(functions, "_value_and_grad", None)
    if isinstance(energy, EnergyAndForces):
        return energy
    about = run.meta["problem"].get("about") or {}
    if "atoms" not in about:
        raise ValueError(
            "`result` must be a run of ridgerider.ase: a map, or a search with its problem, as of "
            "rr.load(path, problem)."
        )
    return EnergyAndForces(Atoms.fromdict(decode(about["atoms"])))
