r"""Losses whose stationary points are known: maps to compare one's own with.

- `six_hump_camel`: (4 - 2.1 x^2 + x^4 / 3) x^2 + x y + 4 (y^2 - 1) y^2, six minima;
- `himmelblau`: (x^2 + y - 11)^2 + (x + y^2 - 7)^2, four minima, all 0;
- `mueller_brown`: four exponentials, three minima and two transition states;
- `rastrigin`: sum of x_i^2 + 10 (1 - cos 2 pi x_i), 11^2 minima with |x_i| < 5.12 in the plane;
- `lennard_jones`: 4 sum (r^-12 - r^-6) over all pairs of atoms.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.sparse.csgraph import connected_components
from scipy.spatial import distance_matrix

from ridgerider._check import Count, Positive, Several, checked
from ridgerider._core.problem.problem import Problem

#: Minima of clusters of 7 to 13 Lennard-Jones atoms, and transition states as far as published.
CLUSTER_MINIMA = {7: 4, 8: 8, 9: 21, 10: 64, 11: 170, 12: 515, 13: 1510}
CLUSTER_SADDLES = {7: 12, 8: 42, 9: 165, 10: 635}


def camel_loss(params: Float[Array, "2"]) -> Float[Array, ""]:
    x, y = params
    return (4 - 2.1 * x**2 + x**4 / 3) * x**2 + x * y + 4 * (y**2 - 1) * y**2


def six_hump_camel() -> Problem:
    """Six minima, two of them global at -1.0316.

    >>> float(six_hump_camel().value(six_hump_camel().x0))
    0.0
    """
    return Problem(camel_loss, jnp.zeros(2))


def himmelblau_loss(params: Float[Array, "2"]) -> Float[Array, ""]:
    x, y = params
    return (x**2 + y - 11) ** 2 + (x + y**2 - 7) ** 2


def himmelblau() -> Problem:
    """Four minima of loss 0, one of them at (3, 2).

    >>> float(himmelblau().value(jnp.array([3.0, 2.0])))
    0.0
    """
    return Problem(himmelblau_loss, jnp.zeros(2))


def mueller_brown_loss(params: Float[Array, "2"]) -> Float[Array, ""]:
    x, y = params
    a, b, c = jnp.array([[-1, -1, -6.5, 0.7], [0, 0, 11, 0.6], [-10, -10, -6.5, 0.7]], x.dtype)
    u, v = x - jnp.array([1, 0, -0.5, -1], x.dtype), y - jnp.array([0, 0.5, 1.5, 1], x.dtype)
    heights = jnp.array([-200, -100, -170, 15], x.dtype)
    return heights @ jnp.exp(a * u**2 + b * u * v + c * v**2)


def mueller_brown() -> Problem:
    """Three minima, the lowest -146.6995, and two transition states, at -40.6648 and -72.2489.

    >>> round(float(mueller_brown().value(jnp.array([-0.558224, 1.441726]))), 2)
    -146.7
    """
    return Problem(mueller_brown_loss, jnp.array([-0.5, 1.0]))


def rastrigin_loss(x: Float[Array, " n"]) -> Float[Array, ""]:
    return jnp.sum(x**2 + 10 * (1 - jnp.cos(2 * jnp.pi * x)))


@checked
def rastrigin(dim: Count = 2) -> Problem:
    """11^dim minima, close to the points of whole numbers with |x_i| <= 5; a few lie farther out.

    >>> rastrigin(2).size
    2
    """
    return Problem(rastrigin_loss, jnp.full(dim, 0.1))


def lennard_jones_loss(points: Float[Array, "n 3"]) -> Float[Array, ""]:
    rows, columns = np.triu_indices(len(points), 1)
    squared = jnp.sum((points[rows] - points[columns]) ** 2, axis=1)
    sixth = squared**-3
    return 4 * jnp.sum(sixth * sixth - sixth)


@checked
def lennard_jones(num_atoms: Several = 7) -> Problem:
    """A cluster of atoms, from a spiral, which is not a minimum.

    >>> lennard_jones(7).size
    21
    """
    # Points of a golden spiral through a ball, about 1.1 apart.
    number = np.arange(num_atoms) + 0.5
    height, angle = 1 - 2 * number / num_atoms, np.pi * (1 + 5**0.5) * number
    radius = np.sqrt(1 - height**2)
    ball = np.stack([radius * np.cos(angle), radius * np.sin(angle), height], axis=1)
    start = ball * 0.62 * num_atoms ** (1 / 3)
    return Problem(lennard_jones_loss, jnp.asarray(start))


@checked
def is_one_cluster(
    points: Float[np.ndarray, "points dim"] | Float[Array, "points dim"], reach: Positive = 1.7
) -> bool:
    """Whether every atom is within `reach` of another, all the way to all others.

    >>> is_one_cluster(np.array([[0.0, 0, 0], [1.1, 0, 0], [9.0, 0, 0]]))
    False
    """
    places = np.asarray(points)
    return connected_components(distance_matrix(places, places) < reach)[0] == 1
