"""Bonds: which atoms belong together, turns about bonds, and steps that bend with them.

Atoms are bonded if they are closer than `BONDED` times the sum of their covalent radii.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise

import numpy as np

from ridgerider._check import needs

with needs("ase", "ridgerider.ase"):
    from ase import Atoms
    from ase.data import covalent_radii
    from ase.geometry import (
        get_angles,
        get_angles_derivatives,
        get_dihedrals,
        get_dihedrals_derivatives,
        get_distances_derivatives,
    )
    from ase.io.jsonio import decode, encode

import networkx
from scipy.sparse.csgraph import connected_components
from scipy.spatial.transform import Rotation

from ridgerider.ase._energy import EnergyAndForces
from ridgerider.ase._motions import superposed

BONDED, BROKEN, FORMED = 1.25, 1.5, 1.15  # times the sum of two covalent radii
LINKED = 1.5  # times the longest distance of an atom to its nearest neighbour: one fragment
COVALENT = frozenset((1, 5, 6, 7, 8, 9, 14, 15, 16, 17, 32, 33, 34, 35, 53))
TURN = np.pi / 3  # about a bond: from staggered to eclipsed
RETRACTIONS = 8
STEEPEST = 20.0  # derivative of an angle, in 1/Angstrom; steeper where atoms are in a line
REST = 0.03  # weight of Cartesian coordinates, for what no internal coordinate describes


def is_molecule(atoms: Atoms) -> bool:
    """Whether atoms are held together by covalent bonds, which are to be kept."""
    has_skeleton = any(number in COVALENT and number != 1 for number in atoms.numbers)
    return has_skeleton and set(atoms.numbers) <= COVALENT and not atoms.pbc.any()


def bond_graph(atoms: Atoms, factor: float = BONDED) -> networkx.Graph:
    """Atoms as nodes, bonds as edges."""
    radii = covalent_radii[atoms.numbers]
    near = atoms.get_all_distances(mic=bool(atoms.pbc.any())) < factor * (radii[:, None] + radii)
    graph = networkx.Graph()
    graph.add_nodes_from(range(len(atoms)))
    graph.add_edges_from((i, j) for i, j in np.argwhere(near).tolist() if i < j)
    return graph


@dataclass(frozen=True)
class Connected:
    """Whether atoms hold together, below an energy; with `bonds`, by just these bonds.

    `atoms` are some of the map, as JSON: a run file may rebuild this.
    """

    atoms: str
    length: float
    num_fragments: int
    bonds: tuple[tuple[int, ...], ...] | None
    max_loss: float

    @staticmethod
    def of(atoms: Atoms, keep: bool, max_loss: float) -> "Connected":
        apart = atoms.get_all_distances(mic=bool(atoms.pbc.any()))
        np.fill_diagonal(apart, np.inf)
        length = LINKED * float(apart.min(axis=1).max()) if len(atoms) > 1 else 0.0
        bonds = tuple(sorted(map(tuple, bond_graph(atoms).edges))) if keep else None
        found = Connected(encode(atoms.todict()), length, len(atoms), bonds, max_loss)
        return replace(found, num_fragments=found.fragments(atoms))

    def __call__(self, params: np.ndarray) -> bool:
        if self.is_lost(params):
            return False
        if self.bonds is None:
            return True
        formed = bond_graph(self._atoms(params), FORMED).edges
        return {tuple(sorted(one)) for one in formed} <= set(self.bonds)

    def is_lost(self, params: np.ndarray) -> bool:
        """Whether atoms have left, or a bond is broken: a climb need not be continued."""
        atoms = self._atoms(params)
        if self.bonds is None:
            return self.fragments(atoms) > self.num_fragments
        return not set(self.bonds) <= {
            tuple(sorted(one)) for one in bond_graph(atoms, BROKEN).edges
        }

    def fragments(self, atoms: Atoms) -> int:
        """How many parts there are."""
        radii = covalent_radii[atoms.numbers]
        links = np.maximum(BONDED * (radii[:, None] + radii), self.length)
        near = atoms.get_all_distances(mic=bool(atoms.pbc.any())) < links
        return int(connected_components(near)[0])

    @cached_property
    def _energy(self) -> EnergyAndForces:
        return EnergyAndForces(Atoms.fromdict(decode(self.atoms)))

    def _atoms(self, params: np.ndarray) -> Atoms:
        atoms = self._energy.atoms
        atoms.positions = self._energy.positions(np.asarray(params))
        return atoms


class Torsions:
    """Turns about the bonds of molecules whose atoms are all free, and steps that bend with them.

    A straight step stretches bonds. Here steps change bond lengths, angles and dihedrals (redundant
    internal coordinates q, with B = dq/dx) as they say to first order, and Hessians are carried
    from one point to the next such that they stay the same in these coordinates.
    """

    def __init__(self, graph: networkx.Graph):
        self.bonds = np.array(sorted(map(sorted, graph.edges)), int).reshape(-1, 2)
        self.angles, self.dihedrals = _angles(graph), _dihedrals(graph)
        self.turns = _turns(graph)
        parts = sorted(map(sorted, networkx.connected_components(graph)))
        self.parts = [np.array(part) for part in parts if 1 < len(part) < len(graph)]

    def ways(self, x: np.ndarray) -> np.ndarray:
        """Displacements by a turn about each bond, and of each molecule about its axes."""
        points, found = x.reshape(-1, 3), []
        turns = [(points[one], points[two] - points[one], side) for one, two, side in self.turns]
        for part in self.parts:
            center = points[part].mean(axis=0)
            axes = np.linalg.svd(points[part] - center)[2]
            turns += [(center, axis, part) for axis in axes]
        for center, axis, side in turns:
            for sign in (1, -1):
                turn = Rotation.from_rotvec(sign * TURN * axis / np.linalg.norm(axis))
                turned = points.copy()
                turned[side] = turn.apply(points[side] - center) + center
                found.append((superposed(turned, points) - points).ravel())
        return np.array(found).reshape(-1, x.size)

    def moved(self, x: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Where a step leads that bends with the bonds."""
        values, matrix = self.coordinates(x)
        wanted, new = values + matrix @ step, x + step
        for _ in range(RETRACTIONS):
            change = self._towards(wanted, new)
            new = new + change
            if np.abs(change).max() < 1e-5:
                break
        is_near = np.linalg.norm(new - x - step) <= np.linalg.norm(step)
        return new if is_near and np.isfinite(new).all() else x + step

    def onward(self, x: np.ndarray, new: np.ndarray) -> np.ndarray:
        """The unit vector at `new` along which coordinates change as they did on the way there."""
        change = -self._towards(self.coordinates(x)[0], new)
        return change / max(float(np.linalg.norm(change)), 1e-300)

    def _towards(self, wanted: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The change that leads to some coordinates, to first order."""
        values, matrix = self.coordinates(x)
        wrong = wanted - values
        wrong[self.is_angle] = (wrong[self.is_angle] + np.pi) % (2 * np.pi) - np.pi
        return np.linalg.lstsq(matrix, wrong, rcond=1e-3)[0]

    def carriers(self, x: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Matrices that carry gradients from `x` to `new`, and back."""
        (one, two), rest = (self.coordinates(point)[1] for point in (x, new)), REST * np.eye(x.size)
        one, two = np.concatenate([one, rest]), np.concatenate([two, rest])
        return (np.linalg.pinv(one) @ two).T, (np.linalg.pinv(two) @ one).T

    @cached_property
    def is_angle(self) -> np.ndarray:
        return np.arange(sum(map(len, (self.bonds, self.angles, self.dihedrals)))) >= len(
            self.bonds
        )

    def coordinates(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bond lengths, angles and dihedrals, and their derivatives.

        Where atoms are in a line, angles and dihedrals have none, and those given are zero.
        """
        points, values, rows = x.reshape(-1, 3), [], []
        for atoms, compute, derive in (
            (self.bonds, _lengths, get_distances_derivatives),
            (self.angles, get_angles, get_angles_derivatives),
            (self.dihedrals, get_dihedrals, get_dihedrals_derivatives),
        ):
            if not len(atoms):
                continue
            sides = [points[b] - points[a] for a, b in pairwise(atoms.T)]
            if compute is get_angles:  # both from the middle
                sides[0] = -sides[0]
            unit = 1.0 if compute is _lengths else np.pi / 180
            values.append(unit * compute(*sides))
            slopes = np.zeros((len(atoms), *points.shape))
            with np.errstate(all="ignore"):
                found = unit * np.nan_to_num(derive(*sides), posinf=0, neginf=0)
            found = np.where((np.abs(found) < STEEPEST).all(axis=(1, 2), keepdims=True), found, 0)
            for place in range(atoms.shape[1]):
                np.add.at(slopes, (np.arange(len(atoms)), atoms[:, place]), found[:, place])
            rows.append(slopes.reshape(len(atoms), -1))
        return np.concatenate(values), np.concatenate(rows)


def _angles(graph: networkx.Graph) -> np.ndarray:
    found = [(i, j, k) for j in graph for i, k in combinations(sorted(graph[j]), 2)]
    return np.array(found, int).reshape(-1, 3)


def _dihedrals(graph: networkx.Graph) -> np.ndarray:
    """About each bond, and out of the plane of three neighbours."""
    found = [
        (i, j, k, m)
        for j, k in sorted(map(sorted, graph.edges))
        for i in sorted(graph[j])
        for m in sorted(graph[k])
        if i != k and m != j and i != m
    ]
    for middle in graph:
        if len(graph[middle]) == 3:
            one, two, three = sorted(graph[middle])
            found.append((one, two, middle, three))
    return np.array(found, int).reshape(-1, 4)


def _turns(graph: networkx.Graph) -> list[tuple[int, int, np.ndarray]]:
    """Bonds outside of rings that may be turned about, with the atoms of the smaller side."""
    found = []
    for one, two in sorted(map(sorted, networkx.bridges(graph))):
        cut = graph.copy()
        cut.remove_edge(one, two)
        sides = [sorted(networkx.node_connected_component(cut, end)) for end in (one, two)]
        if min(map(len, sides)) > 1:
            found.append((one, two, np.array(min(sides, key=len))))
    return found


def _lengths(sides: np.ndarray) -> np.ndarray:
    return np.linalg.norm(sides, axis=1)
