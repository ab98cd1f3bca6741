"""Atoms of a run, movies, and files of the field: ASE's, PATHSAMPLE's and pele's."""

import codecs
import os
import pickle
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from ridgerider._check import checked, needs, one_line
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
    if folder.is_file():
        raise ValueError(f"`folder` must be a folder, but {one_line(folder)} is a file.")
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in _tables(landscape).items():
        lines = [
            " ".join([f"{loss:.10f} {vibrations:.10f} {order}", *map(str, ends), "1.0 1.0 1.0"])
            for loss, vibrations, order, ends, _, _ in rows
        ]
        (folder / f"{name}.data").write_text("\n".join(lines) + "\n")
        np.array([row[-1] for row in rows], "<f8").tofile(folder / f"points.{name}")
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
        ends = [(int(row[3]), int(row[4])) if name == "ts" else () for row in rows]
        found.append(_like(atoms, rows[:, 0], points.reshape(len(rows), -1), ends))
    return found[0], found[1]


@checked
def write_pele(landscape: Landscape, path: str | os.PathLike) -> Path:
    """Write minima and transition states to a new database of pele (SQLite), as `write_pathsample`.

    `coords` are pickled arrays there, of the positions of all atoms.
    """
    path = Path(path)
    if path.exists():
        raise ValueError(f"`path` must be a new file, but there is {path} already.")
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(PELE)
        for name, rows in _tables(landscape).items():
            for loss, vibrations, order, ends, eigenvalue, x in rows:
                row = [loss, pickle.dumps(x.ravel(), 4), vibrations, order, 0]
                row += [*sorted(ends), eigenvalue] if ends else []
                columns = "energy, coords, fvib, pgorder, invalid"
                columns += ", _minimum1_id, _minimum2_id, eigenval" if ends else ""
                marks = ", ".join("?" * len(row))
                database.execute(f"INSERT INTO {TABLES[name]} ({columns}) VALUES ({marks})", row)
    return path


@checked
def read_pele(path: str | os.PathLike, atoms: Atoms) -> tuple[list[Atoms], list[Atoms]]:
    """Minima and transition states of a database of pele as Atoms like `atoms`.

    As `read_pathsample`. Nothing but arrays is unpickled.
    """
    if not Path(path).is_file():
        raise ValueError(f"`path` must be a database of pele, but there is no {path}.")
    found, numbers = [], dict[int, int]()
    with closing(sqlite3.connect(path)) as database:
        for name, table in TABLES.items():
            ends = "" if name == "min" else ", _minimum1_id, _minimum2_id"
            try:
                query = f"SELECT _id, energy, coords{ends} FROM {table} ORDER BY _id"
                rows = database.execute(query).fetchall()
                points = [_Arrays(BytesIO(row[2]), encoding="latin1").load() for row in rows]
            except (sqlite3.Error, pickle.UnpicklingError, TypeError) as error:
                raise ValueError(f"`path` must be a database of pele: {error}.") from error
            if name == "min":
                numbers = {row[0]: number for number, row in enumerate(rows, 1)}
            if any(np.size(one) != 3 * len(atoms) for one in points):
                raise ValueError(f"`path` must have {len(atoms)} atoms, as `atoms`, in {table}.")
            sides = [tuple(numbers[end] for end in row[3:]) for row in rows]
            found.append(_like(atoms, [row[1] for row in rows], points, sides))
    return found[0], found[1]


TABLES = {"min": "tbl_minima", "ts": "tbl_transition_states"}  # of pele
ENERGY = "_id INTEGER NOT NULL PRIMARY KEY, energy FLOAT, coords BLOB"
ABOUT = "fvib FLOAT, pgorder INTEGER, invalid INTEGER, user_data BLOB"
PELE = f"""
PRAGMA user_version = 2;
CREATE TABLE tbl_minima ({ENERGY}, {ABOUT});
CREATE TABLE tbl_transition_states ({ENERGY}, _minimum1_id INTEGER REFERENCES tbl_minima (_id),
    _minimum2_id INTEGER REFERENCES tbl_minima (_id), eigenval FLOAT, eigenvec BLOB, {ABOUT});
CREATE TABLE tbl_system_property (_id INTEGER NOT NULL PRIMARY KEY, property_name VARCHAR,
    int_value INTEGER, float_value FLOAT, string_value VARCHAR, pickle_value BLOB);
"""


class _Arrays(pickle.Unpickler):
    """Arrays of NumPy, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        array = np.zeros(1)
        makers: list[Any] = [array.__reduce__()[0], array.__reduce_ex__(5)[0], np.ndarray, np.dtype]
        known = {one.__name__: one for one in makers}
        if module.split(".")[0] == "numpy" and name in known:
            return known[name]
        if (module, name) == ("_codecs", "encode"):  # bytes, of an old protocol
            return codecs.encode
        raise pickle.UnpicklingError(f"`coords` must be an array of NumPy, not {module}.{name}")


Row = tuple[float, float, int, tuple[int, ...], float, np.ndarray]


def _tables(landscape: Landscape) -> dict[str, list[Row]]:
    """Of minima and transition states: energy, log of the frequencies, order of the point group,
    numbers of its minima from 1, lowest eigenvalue, positions."""
    energy, saddles = energy_of(landscape), landscape.saddles()

    def row(point: Stationary, ends: tuple[int, ...] = ()) -> Row:
        angular = normal_modes(landscape, point).real / (units._hbar * units.J * units.s)
        order, vibrations = symmetry_order(landscape, point), float(2 * np.log(angular).sum())
        x = energy.positions(point.params)
        return point.loss, vibrations, order, ends, float(point.least_eigenvalue), x

    edges = [
        row(saddles[edge.saddle], tuple(end + 1 for end in edge.minima if end is not None))
        for edge in landscape.edges()
        if None not in edge.minima
    ]
    return {"min": [row(one) for one in landscape.minima()], "ts": edges}


def _like(atoms: Atoms, energies: Any, points: Any, ends: Any) -> list[Atoms]:
    found = []
    for energy, positions, sides in zip(energies, points, ends, strict=True):
        one = atoms.copy()
        one.positions = np.reshape(positions, (-1, 3))
        one.calc = SinglePointCalculator(one, energy=energy)
        if sides:
            one.info["minima"] = tuple(side - 1 for side in sides)
        found.append(one)
    return found
