"""Points in space: rigid motions, inversion, and swaps of equal particles.

The signature of a set of points is made of its distances d_ij alone, so that no rigid motion and no
mirror changes it: all distances, sorted for each pair of species, and the sorted eigenvalues of the
matrices exp(-d_ij / s), weighted with the species, which distinguish sets with equal distances that
are arranged differently. Both are continuous and blind to swaps.

Units that can be swapped, such as the hidden units of a network.

The signature of a set of vectors is made of their projections onto fixed directions, sorted for
each direction: continuous, and blind to the order of the vectors. For units whose sign does not
matter (tanh, with all weights in and out reversed) the sizes of the projections are sorted.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ridgerider._check import between, checked
from ridgerider._core.points.symmetry import Symmetry
from ridgerider._core.spectra.spectrum import fixed_vectors

RANGES = (1.0, 0.4)  # of the exponentials, in units of the mean distance

Dim = Annotated[int, between(1, 3)]


@checked
def rigid(dim: Dim = 3) -> Symmetry:
    """Shifts and rotations of points in `dim` dimensions; each point keeps its label.

    The parameters are one array of shape (points, dim), or as many numbers in any shape.

    >>> import jax.numpy as jnp
    >>> import ridgerider as rr
    >>> three = rr.symmetry.rigid(3)
    >>> len(three.generators(jnp.ones((4, 3))))
    6
    """
    return Symmetry(Motions(dim), RigidSignature(dim), RigidCopy(dim))


@checked
def point_set(species: Sequence[Any] | str | None = None, *, dim: Dim = 3) -> Symmetry:
    """Rigid motions, inversion, and swaps of particles of one species, together.

    - `species`: a label for each particle; None: all are equal.

    >>> import jax.numpy as jnp
    >>> import ridgerider as rr
    >>> same = rr.symmetry.point_set()
    >>> one = jnp.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    >>> two = one[jnp.array([2, 0, 1])] * jnp.array([[1.0, -1.0, 1.0]]) + 5.0
    >>> bool(jnp.allclose(same.signature(one), same.signature(two), atol=1e-5))
    True
    """
    numbers = None
    if species is not None:
        names = sorted(set(map(str, species)))
        numbers = tuple(names.index(str(one)) for one in species)
    return Symmetry(Motions(dim), PointSignature(dim, numbers), PointCopy(dim, numbers))


class Motions(eqx.Module):
    """The generators of shifts and rotations."""

    dim: int = eqx.field(static=True, default=3)

    def __call__(self, params: PyTree) -> list[PyTree]:
        points, back = _points(params, self.dim)
        centred = points - jnp.mean(points, axis=0, keepdims=True)
        axes = jnp.eye(self.dim, dtype=points.dtype)
        shifts = [jnp.ones_like(points) * axis[None, :] for axis in axes]
        turns = []
        for i in range(self.dim):
            for j in range(i):
                turn = jnp.zeros_like(points).at[:, i].set(-centred[:, j])
                turns.append(turn.at[:, j].set(centred[:, i]))
        return [back(one) for one in shifts + turns]


class RigidSignature(eqx.Module):
    """All distances, and a volume whose sign a mirror changes."""

    dim: int = eqx.field(static=True, default=3)

    def __call__(self, params: PyTree) -> Array:
        points, _ = _points(params, self.dim)
        centred = points - jnp.mean(points, axis=0, keepdims=True)
        rows, columns = np.triu_indices(len(points), 1)
        weights = fixed_vectors(self.dim, len(points), points.dtype)
        volume = jnp.linalg.det(weights @ centred)
        size = jnp.mean(jnp.sum(centred**2, axis=1)) ** ((self.dim - 1) / 2)
        return jnp.append(_distances(points)[rows, columns], volume / size)


class RigidCopy(eqx.Module):
    """The points moved and turned at random."""

    dim: int = eqx.field(static=True, default=3)

    def __call__(self, params: PyTree, key: Any) -> PyTree:
        points, back = _points(params, self.dim)
        rng = _generator(key)
        turn, _ = np.linalg.qr(rng.normal(size=(self.dim, self.dim)))
        turn[0] *= np.sign(np.linalg.det(turn))
        moved = np.asarray(points) @ turn.T + rng.normal(size=self.dim)
        return back(moved.astype(points.dtype))


class PointSignature(eqx.Module):
    """What is blind to rigid motions, mirrors and swaps; `species` is a number for each point."""

    dim: int = eqx.field(static=True, default=3)
    species: tuple[int, ...] | None = eqx.field(static=True, default=None)

    def __call__(self, params: PyTree) -> Array:
        points, _ = _points(params, self.dim)
        labels = _labels(self.species, len(points))
        return signature_of(_distances(points), labels, np.ones(len(points), bool))


def signature_of(distances: Array, labels: tuple[int, ...], is_free: np.ndarray) -> Array:
    """The signature of points with such distances; those between two that are not free are left out
    of the sorted ones."""
    rows, columns = np.triu_indices(len(labels), 1)
    is_moved = is_free[rows] | is_free[columns]
    rows, columns, numbers = rows[is_moved], columns[is_moved], np.array(labels, int)
    low, high = np.sort([numbers[rows], numbers[columns]], axis=0)
    kinds = high * (high + 1) // 2 + low
    parts = [
        jnp.sort(distances[rows[kinds == kind], columns[kinds == kind]])
        for kind in np.unique(kinds)
    ]
    weights = jnp.asarray(np.sqrt(1 + 0.37 * numbers), distances.dtype)
    mean = jnp.mean(distances)
    for part in RANGES:
        matrix = jnp.outer(weights, weights) * jnp.exp(-distances / (part * mean))
        parts.append(mean * jnp.linalg.eigvalsh(matrix))
    return jnp.concatenate(parts)


class PointCopy(eqx.Module):
    """The points moved, turned and mirrored, and those of one species swapped, at random."""

    dim: int = eqx.field(static=True, default=3)
    species: tuple[int, ...] | None = eqx.field(static=True, default=None)

    def __call__(self, params: PyTree, key: Any) -> PyTree:
        points, back = _points(RigidCopy(self.dim)(params, key), self.dim)
        labels = np.array(_labels(self.species, len(points)))
        order = np.arange(len(points))
        for label in np.unique(labels):
            order[labels == label] = _generator(key).permutation(order[labels == label])
        return back(-points[order])


def _generator(key: Any) -> np.random.Generator:
    """NumPy's: JAX's would compile a program for each of a few numbers."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def _labels(species: tuple[int, ...] | None, count: int) -> tuple[int, ...]:
    if species is None:
        return (0,) * count
    if len(species) != count:
        raise ValueError(
            f"`species` must have a label for each of the {count} particles, not {len(species)}."
        )
    return species


def _distances(points: Float[Array, "p d"]) -> Float[Array, "p p"]:
    apart = points[:, None, :] - points[None, :, :]
    return jnp.sqrt(jnp.sum(apart**2, axis=2))


def _points(params: PyTree, dim: int) -> tuple[Float[Array, "p d"], Any]:
    """The points, and what puts such an array back into the parameters' shape."""
    leaves, structure = jax.tree.flatten(params)
    if len(leaves) != 1 or leaves[0].size % dim:
        raise ValueError(
            f"`params` must be one array of points in {dim} dimensions, not "
            f"{len(leaves)} arrays of {sum(leaf.size for leaf in leaves)} numbers."
        )
    shape = leaves[0].shape
    return leaves[0].reshape(-1, dim), lambda points: jax.tree.unflatten(
        structure, [points.reshape(shape)]
    )


@checked
def units(
    rows: Callable[[PyTree], Array],
    rest: Callable[[PyTree], PyTree] | None = None,
    *,
    signs: bool = False,
) -> Symmetry:
    """Units that can be swapped, and reversed if `signs`.

    - `rows(params)`: an array with a row for each unit, all of its weights, in and out.
    - `rest(params)`: the parameters that belong to no unit; None: there are none.

    >>> import jax.numpy as jnp
    >>> import ridgerider as rr
    >>> def rows(params):
    ...     return jnp.concatenate([params["in"].T, params["out"][:, None]], axis=1)
    >>> swap = rr.symmetry.units(rows, signs=True)
    >>> one = {"in": jnp.array([[1.0, 2.0]]), "out": jnp.array([3.0, 4.0])}
    >>> two = {"in": jnp.array([[-2.0, 1.0]]), "out": jnp.array([-4.0, 3.0])}
    >>> bool(jnp.allclose(swap.signature(one), swap.signature(two)))
    True
    """
    return Symmetry(None, UnitSignature(rows, rest, signs), None)


class UnitSignature(eqx.Module):
    """Sorted projections of the units, and the rest as it is."""

    rows: Callable[[PyTree], Array]
    rest: Callable[[PyTree], PyTree] | None = None
    signs: bool = eqx.field(static=True, default=False)

    def __call__(self, params: PyTree) -> Float[Array, " k"]:
        vectors = self.rows(params)
        size = vectors.shape[1]
        ways = fixed_vectors(4 * size + 4, size, vectors.dtype)
        seen = vectors @ (ways / jnp.linalg.norm(ways, axis=1, keepdims=True)).T
        sorted_ = jnp.sort(jnp.abs(seen) if self.signs else seen, axis=0)
        mark = jnp.ravel(sorted_) / jnp.sqrt(jnp.asarray(len(ways), vectors.dtype))
        leaves: list[Any] = [] if self.rest is None else jax.tree.leaves(self.rest(params))
        return jnp.concatenate([mark, *(jnp.ravel(leaf) for leaf in leaves)])
