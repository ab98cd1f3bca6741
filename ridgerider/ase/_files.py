"""Files of the field: OPTIM and PATHSAMPLE (`min.data`, `ts.data`, `points`), ASE's, and movies."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from ridgerider._check import checked, needs
from ridgerider._search.results.landscape import Landscape
from ridgerider._search.results.result import Stationary
from ridgerider.ase._kinetics import normal_modes, symmetry_order
from ridgerider.ase._problem import energy_of, is_free

with needs("ase", "ridgerider.ase"):
    from ase import Atoms, units
    from ase.calculators.singlepoint import SinglePointCalculator
    from ase.db import connect as open_database
    from ase.io import write as write_atoms

DATABASES = (".db", ".json")
FRAMES = 8  # of a movie between two neighbouring points of a path


@checked
def atoms_of(landscape: Landscape, point: Stationary) -> Atoms:
    """A minimum or saddle as Atoms, with its energy; no force call is made."""
    energy = energy_of(landscape)
    atoms = energy.atoms.copy()
    atoms.positions = energy.positions(point.params)
    atoms.calc = SinglePointCalculator(atoms, energy=point.loss)
    kind = "minimum" if not point.morse_index else f"saddle of index {point.morse_index}"
    atoms.info |= {
        "kind": kind,
        "number": point.number,
        "fingerprint": str(point.fingerprint) or "start",
    }
    return atoms


@checked
def save(landscape: Landscape, path: str | os.PathLike) -> Path:
    """Write all minima and transition states: extended XYZ, `.traj`, or a database (`.db`).

    >>> import tempfile
    >>> from ase import Atoms
    >>> from ase.calculators.lj import LennardJones
    >>> from ase.io import read
    >>> import ridgerider.ase
    >>> atoms = Atoms("Ar3", [(0, 0, 0), (1.1, 0, 0), (0.5, 1, 0)], calculator=LennardJones(rc=10))
    >>> landscape = ridgerider.ase.explore(atoms)
    >>> path = ridgerider.ase.save(landscape, f"{tempfile.mkdtemp()}/points.xyz")
    >>> read(path, 0).info["kind"]
    'minimum'
    """
    path = Path(path)
    if path.suffix not in (".xyz", ".extxyz", ".traj", *DATABASES):
        raise ValueError(f"`path` must end in .xyz, .traj or .db, not {path.suffix!r}.")
    found = [atoms_of(landscape, one) for one in [*landscape.minima(), *landscape.saddles()]]
    if path.suffix not in DATABASES:
        write_atoms(path, found, format="traj" if path.suffix == ".traj" else "extxyz")
        return path
    with open_database(path) as database:
        for atoms in found:
            kind = atoms.info["kind"].partition(" ")[0]
            database.write(atoms, kind=kind, number_in_map=atoms.info["number"])
    return path


@checked
def write_pathsample(landscape: Landscape, folder: str | os.PathLike) -> Path:
    """Write `min.data`, `ts.data`, `points.min` and `points.ts` of PATHSAMPLE.

    Energies in eV; of the frequencies, log of the product of the squared angular ones, in ASE's
    units; the order of the point group; moments of inertia are set to 1. Transition states
    with an unknown side are left out.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    energy = energy_of(landscape)

    def columns(point: Stationary) -> str:
        angular = normal_modes(landscape, point).real / (units._hbar * units.J * units.s)
        order = symmetry_order(landscape, point)
        return f"{point.loss:.10f} {2 * np.log(angular).sum():.10f} {order}"

    minima, saddles = landscape.minima(), landscape.saddles()
    edges = [edge for edge in landscape.edges() if None not in edge.minima]
    inertia = "1.0 1.0 1.0"
    lines = [f"{columns(one)} {inertia}" for one in minima]
    (folder / "min.data").write_text("\n".join(lines) + "\n")
    lines = []
    for edge in edges:
        one, two = (end + 1 for end in edge.minima if end is not None)
        lines.append(f"{columns(saddles[edge.saddle])} {one} {two} {inertia}")
    (folder / "ts.data").write_text("\n".join(lines) + "\n")
    points = (("min", list(minima)), ("ts", [saddles[edge.saddle] for edge in edges]))
    for name, some in points:
        stacked = np.array([energy.positions(one.params) for one in some], "<f8")
        stacked.tofile(folder / f"points.{name}")
    return folder


@checked
def read_pathsample(folder: str | os.PathLike, atoms: Atoms) -> tuple[list[Atoms], list[Atoms]]:
    """Minima and transition states of PATHSAMPLE as Atoms like `atoms`.

    In `info` a transition state has its `minima`, by number from 0. Pass the minima as `starts` to
    `explore` to begin a map from them.
    """
    folder, found = Path(folder), []
    for name in ("min", "ts"):
        rows = np.loadtxt(folder / f"{name}.data", ndmin=2)
        points = np.fromfile(folder / f"points.{name}", "<f8")
        if points.size != 3 * len(atoms) * len(rows):
            raise ValueError(
                f"`points.{name}` must hold {len(rows)} times {len(atoms)} atoms, as {name}.data "
                f"and `atoms` say, but it holds {points.size} numbers."
            )
        some = []
        for row, positions in zip(rows, points.reshape(-1, len(atoms), 3), strict=True):
            one = atoms.copy()
            one.positions = positions
            one.calc = SinglePointCalculator(one, energy=row[0])
            if name == "ts":
                one.info["minima"] = (int(row[3]) - 1, int(row[4]) - 1)
            some.append(one)
        found.append(some)
    return found[0], found[1]


@checked
def path_movie(landscape: Landscape, a: Any, b: Any) -> list[Atoms]:
    """Frames along the lowest path between two minima, whose energies are those of its points.

    Each point is turned to the one before it; frames in between are interpolated, and have no
    energy. No force call is made.
    """
    energy, frames = energy_of(landscape), list[Atoms]()
    for point in landscape.path(a, b).points:
        atoms = atoms_of(landscape, point)
        if frames:
            if is_free(landscape):
                atoms.positions = _turned_to(atoms, frames[-1].positions)
            begin, end = frames[-1].positions, atoms.positions
            for part in np.linspace(0, 1, FRAMES + 2)[1:-1]:
                between = energy.atoms.copy()
                between.positions = begin + part * (end - begin)
                frames.append(between)
        frames.append(atoms)
    return frames


def _turned_to(atoms: Atoms, target: np.ndarray) -> np.ndarray:
    """Positions of a copy, mirrored if that is closer, as close to the target as can be."""
    best = None
    for sign in (1, -1):
        points = sign * (atoms.positions - atoms.positions.mean(axis=0))
        center = target.mean(axis=0)
        left, _, right = np.linalg.svd(points.T @ (target - center))
        flip = np.array([1, 1, np.sign(np.linalg.det(left @ right))])
        moved = points @ ((left * flip) @ right) + center
        off = float(np.linalg.norm(moved - target))
        if best is None or off < best[0]:
            best = off, moved
    assert best is not None
    return best[1]
