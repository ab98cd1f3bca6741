r"""Critical points of a symmetric form on the unit sphere (Z-eigenvectors of a symmetric tensor).

With A a symmetric tensor of order d, the form f(u) = A(u, ..., u) is critical on the sphere where

    A(u, ..., u, .) = kappa u,    and then f(u) = kappa.

Newton's method on the sphere converges to critical points of every kind. It sets out from fixed
vectors until each point was met several times and the count agrees with topology: where no point
is degenerate, the signs (-1)^index add up to the Euler number of the projective space.

Mirrors spare starts: if the form does not change under a reflection, the mirror image of a critical
point is one. Candidates are mirrors that swap two points alike; each is checked at fixed points.
"""

from dataclasses import dataclass
from functools import cmp_to_key
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Tensor = Float[np.ndarray, "..."]
Points = Float[np.ndarray, "points m"]
ROUND = 256  # starts at a time
MIN_HITS = 8  # of each point (or of its mirror images together) before the search is over
MAX_NEWTON = 60
MAX_MIRRORS = 64
NUM_TESTS = 4  # points at which a mirror is checked
MAX_ALIKE = 32  # points with one kappa whose mirrors are tried
MAX_POINTS = 4096  # more are not completed
CONVERGED = 1e-10  # a gradient this small, where the largest entry of the tensor is 1
SAME = 1e-5  # points this close are one: those that are not degenerate are exact to far less


@dataclass(frozen=True)
class Critical:
    """The critical points of a form, a row of each array for each point.

    `slopes` are the eigenvalues of the Hessian on the sphere, ascending. `num_flat` counts those
    that vanish along a whole manifold of critical points, of which one stands for all; it is 0 for
    an isolated point, be it degenerate or not.
    """

    points: Points
    kappas: Float[np.ndarray, " points"]
    slopes: Float[np.ndarray, "points m-1"]
    num_flat: np.ndarray
    num_missed: float


def symmetrized(tensor: Tensor) -> Tensor:
    """The mean over all orders of the indices, each of them put in every place one by one."""
    order = tensor.ndim
    for last in range(1, order):
        swaps = [np.swapaxes(tensor, place, last) for place in range(last)]
        tensor = (tensor + sum(swaps)) / (last + 1)
    return tensor


def critical_points(tensor: Tensor, tolerance: float, max_starts: int) -> Critical:
    """Find the critical points of a symmetric tensor's form, up to sign.

    What is below `tolerance` times the largest entry counts as zero.

    >>> wells = np.zeros((2, 2, 2, 2))
    >>> wells[0, 0, 0, 0] = wells[1, 1, 1, 1] = 1
    >>> found = critical_points(wells, 1e-6, 100)
    >>> sorted(round(float(kappa), 6) for kappa in found.kappas)
    [0.5, 0.5, 1.0, 1.0]
    """
    size = float(np.abs(tensor).max())
    form = _Form(tensor / size, tolerance)
    found, starts = _Found(form), _unit(fixed_rows(max_starts, len(tensor)))
    for first in range(0, max_starts, ROUND):
        found.add(form.newton(starts[first : first + ROUND], form.flat))
        found.close_under_mirrors()
        if found.is_enough():
            break
    degenerate, num_flat = _degenerate(form, found.flat_points)
    points = np.concatenate([found.points, degenerate])
    local = form.at(points)
    num_flat = np.concatenate([np.zeros(len(found.points), int), num_flat])
    return Critical(points, size * local.kappas, size * local.slopes, num_flat, found.num_missed())


def fixed_rows(count: int, size: int) -> Float[np.ndarray, "count size"]:
    """Vectors of entries in [-1, 1) that are the same on every machine.

    The bits of a counter-based generator, made numbers by exact arithmetic; nothing is compiled.
    """
    bits = np.random.Philox(key=0x5269646765).random_raw(count * size)
    return (bits >> np.uint64(11)).astype(float).reshape(count, size) / 2**52 - 1


class _Local(NamedTuple):
    """A form at some points: its value, its gradient, and the slopes with their directions."""

    kappas: Float[np.ndarray, " points"]
    grads: Points
    slopes: Float[np.ndarray, "points m-1"]
    columns: Float[np.ndarray, "points m m-1"]


@dataclass(frozen=True)
class _Form:
    """A form whose largest entry is 1, and below which a slope is flat."""

    tensor: Tensor
    flat: float

    def at(self, points: Points) -> _Local:
        """What the form has at each point."""
        order, size = self.tensor.ndim, self.tensor.shape[0]
        shape = (len(points), *self.tensor.shape[1:])
        matrices = (points @ self.tensor.reshape(size, -1)).reshape(shape)  # A(u, ..., u, ., .)
        if order == 4:
            matrices = np.einsum("pi,pijk->pjk", points, matrices)
        images = np.einsum("pij,pj->pi", matrices, points)
        kappas = np.einsum("pi,pi->p", images, points)
        grads = images - kappas[:, None] * points
        radial = points[:, :, None] * points[:, None, :]
        outside = np.eye(size) - radial
        hessians = outside @ ((order - 1) * matrices - kappas[:, None, None] * np.eye(size))
        # The slope along u is put above all others, so that it comes last.
        above = 2 * order * (1 + np.abs(matrices).sum((1, 2)))[:, None, None]
        slopes, columns = np.linalg.eigh(hessians @ outside + above * radial)
        return _Local(kappas, grads, slopes[:, :-1], columns[:, :, :-1])

    def newton(self, points: Points, flat: float, num_steps: int = MAX_NEWTON) -> Points:
        """Newton's method for each point, which does not move along flat directions."""
        points, is_moving = points.copy(), np.arange(len(points))
        for _ in range(num_steps):
            here = points[is_moving]
            local = self.at(here)
            slopes, columns = local.slopes, local.columns
            inverse = np.where(np.abs(slopes) > flat, 1 / np.where(slopes == 0, 1, slopes), 0)
            steps = -np.einsum(
                "pij,pj,pkj,pk->pi", columns, inverse, columns, local.grads, optimize=True
            )
            # Long steps are not cut: measured, more starts converge, and to rare points, too.
            points[is_moving] = _unit(here + steps)
            is_moving = is_moving[np.linalg.norm(steps, axis=1) > 1e-14]
            if not len(is_moving):
                break
        return points


class _Found:
    """The points found so far: those that are not degenerate, and all others as they came."""

    def __init__(self, form: _Form):
        size = len(form.tensor)
        self.form = form
        self.points, self.hits = np.zeros((0, size)), np.zeros(0, int)
        self.flat_points = np.zeros((0, size))
        self.mirrors = np.zeros((0, size))
        self.labels = np.zeros(0, int)  # of the points that mirrors map onto each other

    def add(self, ends: Points, is_hit: bool = True) -> None:
        """Sort in where starts ended; where they did not converge they are left out."""
        local = self.form.at(ends)
        is_flat = np.abs(local.slopes).min(axis=1) <= self.form.flat
        errors = np.linalg.norm(local.grads, axis=1)
        is_there = errors <= np.where(is_flat, self.form.flat / 100, CONVERGED)
        self.flat_points = np.concatenate([self.flat_points, ends[is_flat & is_there]])
        ends = ends[~is_flat & is_there]
        fresh = _once(ends[_places(self.points, ends) < 0])
        self.points = np.concatenate([self.points, fresh])
        self.hits = np.append(self.hits, np.zeros(len(fresh), int))
        np.add.at(self.hits, _places(self.points, ends), int(is_hit))

    def close_under_mirrors(self) -> None:
        """Add the mirror images of all points, and label what mirrors map onto each other."""
        from scipy.sparse.csgraph import connected_components  # takes a while to import

        if len(self.points) == len(self.labels):  # nothing new
            return
        self._find_mirrors()
        fresh = self.points
        while len(fresh) and len(self.mirrors) and len(self.points) <= MAX_POINTS:
            images = _once(np.concatenate([_reflected(fresh, normal) for normal in self.mirrors]))
            images = images[_places(self.points, images) < 0]
            count = len(self.points)
            self.add(self.form.newton(images, self.form.flat, 3), is_hit=False)
            fresh = self.points[count:]
        links = np.eye(len(self.points), dtype=bool)
        for normal in self.mirrors:
            places = _places(self.points, _reflected(self.points, normal))
            links[np.flatnonzero(places >= 0), places[places >= 0]] = True
        self.labels = connected_components(links, directed=False)[1]

    def _find_mirrors(self) -> None:
        """Mirrors that swap two of the first few points alike, or turn one around."""
        size = self.points.shape[1]
        labels = classes_of(np.abs(self.form.at(self.points).kappas)[:, None], self.form.flat)
        normals = [self.points[:MAX_MIRRORS]]
        for label in np.unique(labels):
            alike = self.points[labels == label][:MAX_ALIKE]
            one, two = np.triu_indices(len(alike), 1)
            normals += [alike[one] - alike[two], alike[one] + alike[two]]
        rows = np.concatenate(normals)
        rows = _unit(rows[np.linalg.norm(rows, axis=1) > SAME])
        # The form is the same behind a mirror, so also at points that no symmetry prefers.
        for point in _unit(fixed_rows(NUM_TESTS, size)):
            images = point - 2 * (rows @ point)[:, None] * rows
            kappas = self.form.at(np.concatenate([point[None], images])).kappas
            rows = rows[np.abs(kappas[1:] - kappas[0]) <= self.form.flat * size**2]
        rows = _once(rows)
        rows = rows[_places(self.mirrors, rows) < 0]
        self.mirrors = np.concatenate([self.mirrors, rows])[:MAX_MIRRORS]

    def _euler_fits(self) -> bool:
        """Whether the indices add up to the Euler number of the projective space.

        Of no use with degenerate points, nor in even dimensions at order 3, where u and -u cancel.
        """
        size, order = self.points.shape[1], self.form.tensor.ndim
        if len(self.flat_points) or (order % 2 and size % 2 == 0):
            return True
        slopes = self.form.at(self.points).slopes
        return int(np.sum((-1) ** np.sum(slopes < 0, axis=1))) == size % 2

    def is_enough(self) -> bool:
        if len(self.points) > MAX_POINTS:
            return True
        hits = np.bincount(self.labels, self.hits)
        some = len(hits) or len(self.flat_points) >= ROUND // 2
        return bool(some and (hits >= MIN_HITS).all() and self._euler_fits())

    def num_missed(self) -> float:
        """Chao's estimate of the points, mirror images together, that no start has met."""
        hits = np.bincount(self.labels, self.hits)
        once, twice = np.sum(hits == 1), np.sum(hits == 2)
        is_cut = len(self.points) > MAX_POINTS
        least = float(is_cut or not self._euler_fits())
        return max(float(once * (once - 1) / (2 * (twice + 1))), least)


def _degenerate(form: _Form, ends: Points) -> tuple[Points, np.ndarray]:
    """The points with a flat direction, each manifold of them once, and the manifolds' dimensions.

    A point is isolated if, pushed along its flat directions, Newton's method brings it back.
    """
    if not len(ends):
        return ends, np.zeros(0, int)
    kappas, _, slopes, columns = form.at(ends)
    is_flat = np.abs(slopes) <= form.flat
    push = np.einsum("pij,pj->pi", columns, is_flat * np.sqrt(1 + np.arange(slopes.shape[1])))
    pushed = form.newton(_unit(ends + 0.1 * _unit(push)), form.flat)
    pushed *= np.where(np.sum(pushed * ends, axis=1, keepdims=True) < 0, -1, 1)
    is_far = np.linalg.norm(pushed - ends, axis=1) > 0.05
    is_far &= np.linalg.norm(form.at(pushed).grads, axis=1) <= form.flat / 100
    alone = ends[~is_far]
    polished = form.newton(alone, 1e-12)
    moved = np.linalg.norm(polished - alone, axis=1, keepdims=True)
    points = [*_once(np.where(moved < 0.1, polished, alone), 1e-2)]
    num_flat = [0] * len(points)
    keys = np.concatenate([np.abs(kappas[:, None]), np.sort(np.abs(slopes), axis=1)], axis=1)
    labels = classes_of(keys[is_far], form.flat)
    for label in np.unique(labels):
        members = np.flatnonzero(is_far)[labels == label]
        points.append(_nearest(form, ends[members[:16]]))
        num_flat.append(int(is_flat[members].sum(axis=1).min()))
    return np.array(points), np.array(num_flat)


def _nearest(form: _Form, points: Points) -> np.ndarray:
    """The point of a manifold nearest to the first axis, up to sign, from several points of it."""
    axis = np.eye(points.shape[1])[0]
    for _ in range(300):
        points = points * np.where(points[:, :1] < 0, -1, 1)
        _, _, slopes, columns = form.at(points)
        along = np.einsum("pij,pj,pkj,k->pi", columns, np.abs(slopes) <= form.flat, columns, axis)
        steps = along / np.maximum(points[:, :1], 0.1)
        moved = form.newton(
            _unit(points + steps / np.maximum(1, np.linalg.norm(steps, axis=1))[:, None]),
            form.flat,
            4,
        )
        change, points = np.abs(moved - points).max(), moved
        if change < 1e-12:
            break
    return points[np.argmax(np.abs(points[:, 0]))]


def classes_of(keys: Float[np.ndarray, "points k"], width: float) -> np.ndarray:
    """Number the rows, ascending; those that agree within `width` are one class."""

    def compare(one: int, two: int) -> int:
        differ = np.flatnonzero(np.abs(keys[one] - keys[two]) > width)
        return int(np.sign(keys[one, differ[0]] - keys[two, differ[0]])) if len(differ) else 0

    labels, number = np.zeros(len(keys), int), -1
    last = None
    for row in sorted(range(len(keys)), key=cmp_to_key(compare)):
        number += last is None or compare(last, row) != 0
        labels[row], last = number, row
    return labels


def _places(points: Points, rows: Points) -> np.ndarray:
    """Which of the points each row is, up to sign; -1 for none of them."""
    from scipy.spatial import KDTree  # takes a while to import

    if not len(points) or not len(rows):
        return np.full(len(rows), -1)
    tree = KDTree(np.concatenate([points, -points]))
    distances, places = tree.query(rows)
    return np.where(distances < SAME, places % len(points), -1)


def _once(rows: Points, width: float = SAME) -> Points:
    """Equal rows once, up to sign."""
    from scipy.spatial import KDTree

    if not len(rows):
        return rows
    axis = np.cos(1.0 + np.arange(rows.shape[1]))  # no symmetric point is orthogonal to it
    rows = rows * np.where(rows @ axis < 0, -1, 1)[:, None]
    rows = rows[np.sort(np.unique(np.round(rows / width), axis=0, return_index=True)[1])]
    pairs = KDTree(rows).query_pairs(width, output_type="ndarray")
    return np.delete(rows, pairs[:, 1], axis=0)


def _reflected(points: Points, normal: np.ndarray) -> Points:
    return points - 2 * (points @ normal)[:, None] * normal


def _unit(points: Points) -> Points:
    return points / np.linalg.norm(points, axis=1, keepdims=True)
