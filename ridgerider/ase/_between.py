"""A path between two structures on which no atoms meet: distances change evenly along it.

On a straight path two atoms that swap places meet. Instead each image k, a share t of the way, has
the least sum over pairs of (d - d(t))^2 / d(t)^4, where d(t) is between the distances of the ends
(image dependent pair potential, Smidstrup et al. 2014), and springs hold the images together.
"""

import numpy as np
from scipy.optimize import minimize

from ridgerider._check import needs
from ridgerider.ase._energy import EnergyAndForces

with needs("ase", "ridgerider.ase"):
    from ase.geometry import find_mic

CLOSER = 0.7  # times as close as at the closer end: atoms that come nearer meet
ASIDE = 0.05  # Angstrom: how far off the straight path the search for a better one begins
SPRING = 1e-3
MAX_STEPS = 500


def between(energy: EnergyAndForces, begin: np.ndarray, end: np.ndarray, count: int) -> np.ndarray:
    """`count` images with both ends: on the straight path, unless atoms meet there."""
    images, shape = np.linspace(begin, end, count), energy.start.shape
    rows, columns = np.triu_indices(len(energy.atoms), 1)
    is_moved = energy.is_free[rows] | energy.is_free[columns]
    rows, columns = rows[is_moved], columns[is_moved]

    def sides(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        positions = energy.positions(x.reshape(shape))
        vectors, lengths = find_mic(
            positions[rows] - positions[columns], energy.atoms.cell, energy.atoms.pbc
        )
        return vectors, np.maximum(lengths, 1e-9)

    apart = np.array([sides(x)[1] for x in images])
    if not len(rows) or (apart >= CLOSER * np.minimum(apart[0], apart[-1])).all():
        return images
    wanted = np.linspace(apart[0], apart[-1], count)[1:-1]

    def misfit(inner: np.ndarray) -> tuple[float, np.ndarray]:
        whole = np.concatenate([images[:1], inner.reshape(count - 2, -1), images[-1:]])
        changes = np.diff(whole, axis=0)
        value, slopes = SPRING * float(np.sum(changes**2)), -2 * SPRING * np.diff(changes, axis=0)
        for x, goal, slope in zip(whole[1:-1], wanted, slopes, strict=True):
            vectors, lengths = sides(x)
            value += float(np.sum((lengths - goal) ** 2 / goal**4))
            pulls = (2 * (lengths - goal) / goal**4 / lengths)[:, None] * vectors
            on_atoms = np.zeros((len(energy.atoms), 3))
            np.add.at(on_atoms, rows, pulls)
            np.add.at(on_atoms, columns, -pulls)
            slope += energy.coordinates(on_atoms).ravel()
        return value, slopes.ravel()

    aside = ASIDE * np.random.default_rng(0).normal(size=begin.size)
    bump = np.sin(np.pi * np.linspace(0, 1, count))[1:-1, None] * aside
    start = (images[1:-1] + bump).ravel()
    found = minimize(misfit, start, jac=True, method="L-BFGS-B", options={"maxiter": MAX_STEPS})
    images[1:-1] = found.x.reshape(count - 2, -1)
    return images
