"""Against TopSearch: gradients for each correct stationary point, from the same atoms.

    TOPSEARCH_PYTHON=... ridgerider bench topsearch

`TOPSEARCH_PYTHON` is a Python that has it, which needs an older NumPy than this library. It has the
settings of its own examples; this library has no argument but the atoms. What counts is checked in
the same way for both: forces, the Morse index, one piece, and an energy that no other has.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ridgerider.ase
from ridgerider_experiments.bench import Row

STILL = 2e-2  # the largest force that counts as none: TopSearch's molecules converge to 1e-2
NEGATIVE = -0.05  # of eigenvalues: those of motions are smaller
DIFFERENT = 1e-3  # energies
APART = 3.0  # longer than all bonds


def lennard_jones(seed: int) -> Iterator[Row]:
    from ase import Atoms
    from ase.calculators.lj import LennardJones

    for count in (6, 7):
        random, points = np.random.default_rng(seed), [np.zeros(3)]
        while len(points) < count:
            away = random.normal(size=3)
            point = points[random.integers(len(points))] + 1.1 * away / np.linalg.norm(away)
            if min(np.linalg.norm(point - one) for one in points) > 0.9:
                points.append(point)
        atoms = Atoms(f"Ar{count}", points, calculator=LennardJones(rc=20))
        yield from _both(f"{count} Lennard-Jones atoms", atoms)


def ethanol(seed: int) -> Iterator[Row]:
    from ase.build import molecule
    from tblite.ase import TBLite

    atoms = molecule("CH3CH2OH")
    atoms.calc = TBLite(method="GFN2-xTB", verbosity=0)
    yield from _both("ethanol, GFN2-xTB", atoms)


TASKS = (lennard_jones, ethanol)


def _both(task: str, atoms: Any) -> Iterator[Row]:
    from ase.io import write

    start, landscape = atoms.copy(), ridgerider.ase.explore(atoms)
    ours = {
        name: [one.positions for one in ridgerider.ase.to_atoms(landscape, points)]
        for name, points in (("minima", landscape.minima()), ("saddles", landscape.saddles()))
    }
    yield _row(task, "ridgerider", atoms, {**ours, "gradients": landscape.cost.gradients})
    with tempfile.TemporaryDirectory() as folder:  # it leaves a logfile behind
        write(Path(folder) / "atoms.xyz", start)
        script = Path(__file__).with_name("topsearch_run.py")
        command = [os.environ["TOPSEARCH_PYTHON"], "-W", "ignore", str(script), "atoms.xyz"]
        done = subprocess.run(command, check=True, cwd=folder, capture_output=True, text=True)
    yield _row(task, "TopSearch", atoms, json.loads(done.stdout.splitlines()[-1]))


def _row(task: str, who: str, atoms: Any, found: dict[str, Any]) -> Row:
    counts = [_correct(atoms, found[name], i) for i, name in enumerate(("minima", "saddles"))]
    outcome = f"{counts[0]} minima, {counts[1]} transition states, {found['gradients']} gradients"
    listed = len(found["minima"]) + len(found["saddles"])
    cost = found["gradients"] / max(sum(counts), 1)
    return Row(task, who, cost, "gradients a point", f"{outcome}; {listed} points listed")


def _correct(atoms: Any, points: list[Any], index: int) -> int:
    """How many are stationary, of this index, in one piece, and of different energies."""
    from scipy.sparse.csgraph import connected_components

    energies = list[float]()
    for point in points:
        atoms.positions = x = np.reshape(point, (-1, 3))
        energy, force = atoms.get_potential_energy(), float(np.abs(atoms.get_forces()).max())
        hessian = np.zeros((x.size, x.size))
        for row, step in zip(hessian, 1e-3 * np.eye(x.size).reshape(-1, *x.shape), strict=True):
            for sign in (1, -1):
                atoms.positions = x + sign * step
                row -= sign * atoms.get_forces().ravel() / 2e-3
        num_down = int(np.sum(np.linalg.eigvalsh((hessian + hessian.T) / 2) < NEGATIVE))
        atoms.positions = x
        is_whole = connected_components(atoms.get_all_distances() < APART)[0] == 1
        is_new = all(abs(energy - other) > DIFFERENT for other in energies)
        if force < STILL and num_down == index and is_whole and is_new:
            energies.append(energy)
    return len(energies)
