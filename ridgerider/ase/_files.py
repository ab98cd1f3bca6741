"""Atoms of a run, movies, and files of the field: ASE's, and those of PATHSAMPLE."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ridgerider._check import checked, needs
from ridgerider._search.results.landscape import Landscape
from ridgerider._search.results.result import Result, RunView, Solution, Stationary
from ridgerider.ase._kinetics import normal_modes, symmetry_order
from ridgerider.ase._motions import Motions, superposed
from ridgerider.ase._problem import energy_of

with needs("ase", "ridgerider.ase"):
    from ase import Atoms, units
    from ase.calculators.singlepoint import SinglePointCalculator
    from ase.db import connect as open_database
    from ase.io import write as write_atoms

DATABASES = (".db", ".json")
FRAMES = 8  # of a movie between two neighbouring points of a path


@checked
def to_atoms(run: RunView, points: Iterable[Solution] | None = None) -> list[Atoms]:
    """Points of a run as `Atoms` with their energies; no force call is made.

    - `run`: a map, also one from its file, `rr.load(path)`; or a search.
    - `points`: some of its points. Default: all minima, then those transition states that a map
      has.

    In `info` each has its `fingerprint`, `kind`, `least_eigenvalue` and, in a map, its `number`.

    >>> from ase import Atoms
    >>> from ase.calculators.lj import LennardJones
    >>> import ridgerider.ase
    >>> atoms = Atoms("Ar3", [(0, 0, 0), (1.1, 0, 0), (0.5, 1, 0)], calculator=LennardJones(rc=10))
    >>> lowest, *others = ridgerider.ase.to_atoms(ridgerider.ase.explore(atoms))
    >>> lowest.info["kind"], round(lowest.get_potential_energy(), 3)
    ('minimum', -3.0)
    """
    energy, found = energy_of(run), []
    if points is None:
        points = [*run.minima(), *(run.saddles() if isinstance(run, Landscape) else ())]
    for one in points:
        about: dict[str, Any] = {"number": one.number} if isinstance(one, Stationary) else {}
        about |= {"fingerprint": str(one.fingerprint) or "start", "kind": one.kind}
        about |= {"least_eigenvalue": one.least_eigenvalue}
        found.append(energy.at(one.params, one.loss, **about))
    return found


@checked
def save(run: RunView, path: str | os.PathLike) -> Path:
    """Write what `to_atoms` returns: as extended XYZ, `.traj`, or to a database of ASE (`.db`)."""
    path = Path(path)
    if path.suffix not in (".xyz", ".extxyz", ".traj", *DATABASES):
        raise ValueError(f"`path` must end in .xyz, .traj or .db, not {path.suffix!r}.")
    found = to_atoms(run)
    if path.suffix not in DATABASES:
        write_atoms(path, found, format="traj" if path.suffix == ".traj" else "extxyz")
        return path
    with open_database(path) as database:
        for number, atoms in enumerate(found):
            in_map = atoms.info.get("number", number)
            database.write(atoms, kind=atoms.info["kind"], number_in_map=in_map)
    return path


@checked
def movie(result: Result, fingerprint: str) -> list[Atoms]:
    """A path ridden again, turn by turn: every step of it, and the end of the last descent.

    In `info` each has its `fingerprint`, `step`, and the `eigenvalue` of the ridge there.
    """
    energy, frames, legs = energy_of(result), [], result.replay(fingerprint)
    for leg in legs:
        name = str(leg.fingerprint)
        steps = zip(*(leg.trace[key] for key in ("path", "loss", "eigenvalue")), strict=True)
        for step, (x, loss, eigenvalue) in enumerate(steps):
            about = {"fingerprint": name, "step": step, "eigenvalue": float(eigenvalue)}
            frames.append(energy.at(x, float(loss), **about))
    if legs and legs[-1].finish is not None:
        frames.append(energy.at(np.asarray(legs[-1].finish.x), float(legs[-1].finish.loss)))
    return frames


@checked
def path_movie(landscape: Landscape, a: Any, b: Any) -> list[Atoms]:
    """Frames along the lowest path between two minima, whose energies are those of its points.

    Each point is turned to the one before it, and mirrored if that is closer; frames in between are
    interpolated, and have no energy. No force call is made.
    """
    frames, is_free = list[Atoms](), Motions(energy_of(landscape)).is_free
    for atoms in to_atoms(landscape, landscape.path(a, b).points):
        if frames:
            begin = frames[-1].positions
            if is_free:
                images = [superposed(sign * atoms.positions, begin) for sign in (1, -1)]
                atoms.positions = min(images, key=lambda one: float(np.linalg.norm(one - begin)))
            for part in np.linspace(0, 1, FRAMES + 2)[1:-1]:
                between = atoms.copy()
                between.positions = begin + part * (atoms.positions - begin)
                between.info.clear()
                frames.append(between)
        frames.append(atoms)
    return frames


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
    for name, some in (("min", list(minima)), ("ts", [saddles[edge.saddle] for edge in edges])):
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
