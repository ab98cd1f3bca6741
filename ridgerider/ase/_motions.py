"""What leaves atoms unchanged: rigid motions as far as cell and constraints allow them, and swaps.

A rigid motion is a velocity v + w x r with six numbers (v, w). Those that remain leave fixed atoms
where they are, and rotate about an axis of translation only.
"""

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ridgerider._core.points.symmetry import Symmetry
from ridgerider.ase._energy import EnergyAndForces
from ridgerider.symmetry import point_set, rigid

RANGES = (1.0, 0.4)  # of the exponentials, in units of the mean distance
TURN = np.linalg.qr(np.array([[0.3, -0.8, 0.5], [0.9, 0.2, -0.4], [0.1, 0.7, 0.6]]))[0]


class Motions:
    """The rigid motions of the free coordinates of some atoms."""

    def __init__(self, energy: EnergyAndForces):
        self._energy = energy
        atoms, rng = energy.atoms, np.random.default_rng(0)
        allowed = np.eye(6)
        if energy.springs:
            allowed = allowed[:0]
        if atoms.pbc.any():
            axis = atoms.cell.complete()[atoms.pbc]
            allowed = allowed[:3]
            if len(axis) == 1 and not energy.springs:
                row = np.concatenate([np.zeros(3), axis[0] / np.linalg.norm(axis[0])])
                allowed = np.concatenate([allowed, row[None]])
        for size in (0, 1, 1, 1):  # the same motions wherever the atoms are
            positions = energy.positions(energy.start + size * rng.normal(size=energy.start.shape))
            moved = allowed @ velocities(positions)
            kept = energy.basis
            if kept is None:
                rest = np.where(np.repeat(energy.is_free, 3), 0, moved)
            else:
                rest = moved - (moved @ kept) @ kept.T
            if len(allowed):
                left, sizes, _ = np.linalg.svd(rest, full_matrices=True)
                sizes = np.concatenate([sizes, np.zeros(len(allowed) - len(sizes))])
                allowed = left.T[sizes <= 1e-9 * max(1.0, np.abs(moved).max())] @ allowed
        self.allowed = allowed
        self.is_free = len(allowed) == 6 and energy.basis is None

    def rows(self, x: np.ndarray) -> np.ndarray:
        """The motions at `x`, as rows of free coordinates."""
        if not len(self.allowed):
            return np.zeros((0, x.size))
        energy = self._energy
        moved = self.allowed @ velocities(energy.positions(x))
        if energy.basis is not None:
            return moved @ energy.basis
        return moved[:, np.repeat(energy.is_free, 3)]

    def complement(self, x: np.ndarray) -> np.ndarray:
        """Orthonormal rows across all motions."""
        rows = self.rows(x)
        if not len(rows):
            return np.eye(x.size)
        _, sizes, right = np.linalg.svd(rows, full_matrices=True)
        return right[int(np.sum(sizes > 1e-3 * sizes.max())) :]

    def turned(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """A rotated copy of free atoms, and the matrix that turns forces back."""
        if not self.is_free:
            return None
        points = x.reshape(-1, 3)
        center = points.mean(axis=0)
        return ((points - center) @ TURN.T + center).ravel(), TURN


def velocities(positions: np.ndarray) -> np.ndarray:
    """The velocities of all atoms, as rows: three translations, three rotations."""
    shifts = np.tile(np.eye(3), (1, len(positions)))
    turns = [np.cross(axis, positions).ravel() for axis in np.eye(3)]
    return np.concatenate([shifts, turns])


def point_group(
    positions: np.ndarray, numbers: np.ndarray, tolerance: float
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rotations and mirrors of all atoms that put each within the tolerance of an equal one.

    Each as a matrix, with the numbers of the atoms that others come to. They are found from the
    motions that map three atoms onto three; of atoms in a line, only the inversion counts.
    """
    points = positions - positions.mean(axis=0)
    is_equal = numbers[:, None] == numbers[None]
    if len(points) < 3 or np.linalg.svd(points)[1][1] < tolerance / 5:
        candidates = [np.eye(3), -np.eye(3)]
    else:  # two atoms that span a plane with the center, farthest first
        one = int(np.argmax(np.linalg.norm(points, axis=1)))
        two = int(np.argmax(np.linalg.norm(np.cross(points[one], points), axis=1)))
        frame = np.stack([points[one], points[two], np.cross(points[one], points[two])], axis=1)
        inner, products = np.linalg.inv(frame), points @ points.T
        slack = 2 * tolerance * float(np.linalg.norm(points, axis=1).max())
        is_like = is_equal & (np.abs(np.diag(products)[:, None] - np.diag(products)) < slack)
        candidates = [
            np.stack([points[i], points[j], sign * np.cross(points[i], points[j])], axis=1) @ inner
            for i in np.flatnonzero(is_like[one])
            for j in np.flatnonzero(is_like[two])
            if abs(products[i, j] - products[one, two]) < slack
            for sign in (1, -1)
        ]
    found = []
    for matrix in candidates:
        if np.abs(matrix @ matrix.T - np.eye(3)).max() > 10 * tolerance:
            continue
        apart = np.linalg.norm((points @ matrix.T)[:, None] - points[None], axis=2)
        images = np.argmin(np.where(is_equal, apart, np.inf), axis=1)
        is_onto = len(set(images.tolist())) == len(points)
        if is_onto and apart[np.arange(len(points)), images].max() < tolerance:
            found.append((matrix, images))
    return found


def symmetrized(positions: np.ndarray, group: list[np.ndarray]) -> np.ndarray:
    """The mean of all copies of some atoms, which come to those with the numbers in `group`."""
    center = positions.mean(axis=0)
    points, copies = positions - center, []
    for images in group:
        left, _, right = np.linalg.svd(points[images].T @ points)
        copies.append(points[images] @ (left @ right))
    return np.mean(copies, axis=0) + center


def symmetry_of(energy: EnergyAndForces, motions: Motions, keep: bool = False) -> Symmetry | None:
    """What is the same: motions, inversion and swaps of equal atoms, in the cell and its substrate.

    Atoms along lines and in planes, and those with springs, are distinguished by their coordinates.
    """
    atoms = energy.atoms
    if motions.is_free:
        same = point_set(tuple(atoms.symbols))
        # A force field knows its atoms by number: swaps are not tried with those whose bonds stay.
        return replace(same, copy=rigid().copy) if keep else same
    if energy.basis is not None or energy.springs:
        return None
    labels = [
        f"{one}{'' if free else ' fixed'}"
        for one, free in zip(atoms.symbols, energy.is_free, strict=True)
    ]
    names = sorted(set(labels))
    cell = np.where(atoms.pbc[:, None], atoms.cell.complete(), 0.0)
    signature = CellSignature(
        tuple(map(tuple, energy.fixed.tolist())),
        tuple(energy.is_free.tolist()),
        tuple(map(names.index, labels)),
        tuple(map(tuple, cell.tolist())),
    )
    generators = None
    if len(motions.allowed):
        generators = CellMotions(
            tuple(map(tuple, energy.fixed.tolist())),
            tuple(energy.is_free.tolist()),
            tuple(map(tuple, motions.allowed.tolist())),
        )
    return Symmetry(generators, signature)


class CellMotions(eqx.Module):
    """Rigid motions of the free ones of some atoms."""

    fixed: tuple[tuple[float, ...], ...] = eqx.field(static=True)
    is_free: tuple[bool, ...] = eqx.field(static=True)
    allowed: tuple[tuple[float, ...], ...] = eqx.field(static=True)

    def __call__(self, params: PyTree) -> list[Array]:
        free = jnp.reshape(params, (-1, 3))
        allowed = np.array(self.allowed)
        return [
            jnp.reshape(row[None, :3] + jnp.cross(row[None, 3:], free), params.shape)
            for row in jnp.asarray(allowed, free.dtype)
        ]


class CellSignature(eqx.Module):
    """What is blind to symmetries of the cell and of fixed atoms, and to swaps of equal ones.

    As that of a set of points, of the shortest distances between all atoms and their images.
    """

    fixed: tuple[tuple[float, ...], ...] = eqx.field(static=True)
    is_free: tuple[bool, ...] = eqx.field(static=True)
    species: tuple[int, ...] = eqx.field(static=True)
    cell: tuple[tuple[float, ...], ...] = eqx.field(static=True)  # zero where there is no period

    def __call__(self, params: PyTree) -> Array:
        is_free, cell = np.array(self.is_free), np.array(self.cell)
        free = jnp.reshape(params, (-1, 3))
        points = jnp.asarray(np.array(self.fixed), free.dtype).at[np.flatnonzero(is_free)].set(free)
        apart = points[:, None] - points[None]
        shifts = _shifts(cell)
        far = jnp.sum(
            (apart[:, :, None] + jnp.asarray(shifts, free.dtype)[None, None]) ** 2, axis=3
        )
        squares = jnp.min(far, axis=2)
        distances = jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)
        rows, columns = np.triu_indices(len(points), 1)
        is_moved = is_free[rows] | is_free[columns]
        rows, columns = rows[is_moved], columns[is_moved]
        labels = np.array(self.species)
        low, high = (
            np.minimum(labels[rows], labels[columns]),
            np.maximum(labels[rows], labels[columns]),
        )
        kinds, parts = high * (high + 1) // 2 + low, []
        for kind in np.unique(kinds):
            parts.append(jnp.sort(distances[rows[kinds == kind], columns[kinds == kind]]))
        weights = np.sqrt(1 + 0.37 * labels)
        mean = jnp.mean(distances)
        for part in RANGES:
            matrix = jnp.asarray(np.outer(weights, weights), free.dtype) * jnp.exp(
                -distances / (part * mean)
            )
            parts.append(mean * jnp.linalg.eigvalsh(matrix))
        return jnp.concatenate(parts)


def _shifts(cell: np.ndarray) -> np.ndarray:
    """Lattice vectors to near images. Positions may be some cells apart."""
    counts = [np.arange(-2, 3) if np.any(row) else np.zeros(1, int) for row in cell]
    grid = np.stack(np.meshgrid(*counts, indexing="ij"), -1).reshape(-1, 3)
    return grid @ cell
