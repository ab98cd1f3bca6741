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
from ridgerider.symmetry._points import signature_of

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
            rest = moved - (moved @ energy.basis) @ energy.basis.T
            if len(allowed):
                left, sizes, _ = np.linalg.svd(rest, full_matrices=True)
                sizes = np.concatenate([sizes, np.zeros(len(allowed) - len(sizes))])
                allowed = left.T[sizes <= 1e-9 * max(1.0, np.abs(moved).max())] @ allowed
        self.allowed = allowed
        self.is_free = len(allowed) == 6

    def rows(self, x: np.ndarray) -> np.ndarray:
        """The motions at `x`, as rows of free coordinates."""
        return self.allowed @ velocities(self._energy.positions(x)) @ self._energy.basis

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
    return np.mean([superposed(positions[one], positions, mirror=True) for one in group], axis=0)


def superposed(points: np.ndarray, target: np.ndarray, mirror: bool = False) -> np.ndarray:
    """Points moved rigidly as close to others as they can be (Kabsch); `mirror` allows mirrors."""
    center, other = points.mean(axis=0), target.mean(axis=0)
    left, _, right = np.linalg.svd((points - center).T @ (target - other))
    if not mirror:
        left[:, 2] *= np.sign(np.linalg.det(left @ right))
    return (points - center) @ left @ right + other


def symmetry_of(energy: EnergyAndForces, motions: Motions, keep: bool = False) -> Symmetry | None:
    """What is the same: motions, inversion and swaps of equal atoms, in the cell and its substrate.

    Atoms along lines and in planes, and those with springs, are distinguished by their coordinates.
    """
    atoms = energy.atoms
    if motions.is_free:
        same = point_set(tuple(atoms.symbols))
        # A force field knows its atoms by number: swaps are not tried with those whose bonds stay.
        return replace(same, copy=rigid().copy) if keep else same
    if not energy.is_whole or energy.springs:
        return None
    labels = list(zip(atoms.symbols, energy.is_free.tolist(), strict=True))
    names = sorted(set(labels))
    signature = CellSignature(
        tuple(map(tuple, atoms.positions.tolist())),
        tuple(energy.is_free.tolist()),
        tuple(map(names.index, labels)),
        tuple(map(tuple, np.where(atoms.pbc[:, None], atoms.cell.complete(), 0.0).tolist())),
    )
    allowed = tuple(map(tuple, motions.allowed.tolist()))
    return Symmetry(CellMotions(allowed) if allowed else None, signature)


class CellMotions(eqx.Module):
    """Rigid motions of the free ones of some atoms: velocities v and w, as rows."""

    allowed: tuple[tuple[float, ...], ...] = eqx.field(static=True)

    def __call__(self, params: PyTree) -> list[Array]:
        free = jnp.reshape(params, (-1, 3))
        return [
            jnp.reshape(row[None, :3] + jnp.cross(row[None, 3:], free), params.shape)
            for row in jnp.asarray(np.array(self.allowed), free.dtype)
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
        free, is_free = jnp.reshape(params, (-1, 3)), np.array(self.is_free)
        points = jnp.asarray(np.array(self.fixed), free.dtype).at[np.flatnonzero(is_free)].set(free)
        apart = points[:, None] - points[None]
        shifts = jnp.asarray(_shifts(np.array(self.cell)), free.dtype)
        squares = jnp.min(jnp.sum((apart[:, :, None] + shifts[None, None]) ** 2, axis=3), axis=2)
        distances = jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)
        return signature_of(distances, self.species, is_free)


def _shifts(cell: np.ndarray) -> np.ndarray:
    """Lattice vectors to near images. Positions may be some cells apart."""
    counts = [np.arange(-2, 3) if np.any(row) else np.zeros(1, int) for row in cell]
    grid = np.stack(np.meshgrid(*counts, indexing="ij"), -1).reshape(-1, 3)
    return grid @ cell
