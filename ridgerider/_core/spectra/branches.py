r"""Which directions inside the eigenspace of a repeated eigenvalue are ridges.

At x let E be the eigenspace of the eigenvalue a, T and Q the third and fourth derivatives of the
loss, and (b_j, e_j) the eigenpairs outside E. A ride that leaves along u in E and follows an
eigenvector moves to

    x + s u + s^2/2 w + ...,    w = sum_j T(u, u, e_j) / (a - b_j) e_j,

where the matrix that splits the eigenvalue, seen from E, is

    s T(u, ., .) + s^2 M(u) + ...,
    M(u) = 1/2 Q(u, u, ., .) + 1/2 T(w, ., .) + sum_j T(u, ., e_j) T(u, ., e_j)' / (a - b_j).

The direction is kept only if u is an eigenvector of the first of these that is not zero:

- order 3: T(u, u, .) = kappa u on E;
- order 4, where T vanishes on E: M(u) u = kappa u.

Both say that u is a critical point of a form on the sphere of E, u -> T(u, u, u) or u -> u M(u) u.
Along any other u the first update turns to another direction, by rounding and size of step. (The
condition is necessary. A small turn shrinks on the way from a maximum with kappa > 0; elsewhere it
may grow.) Only what E sees of T and Q is ever computed: by nested forward derivatives of the
gradient, of which one of order j is counted as 2^j gradients.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations_with_replacement, permutations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ridgerider._core.linalg.solve import conjugate_gradients
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem, Scalar, Vector
from ridgerider._core.runtime.compile import compiled
from ridgerider._core.spectra.forms import (
    Critical,
    classes_of,
    critical_points,
    fixed_rows,
    symmetrized,
)
from ridgerider._core.spectra.spectrum import Ridge, Spectrum

CHUNK = 16  # derivatives held at a time
MAX_MULTIPLICITY = 32  # larger clusters are left undecided
MAX_PROFILES = 256  # directions whose losses are compared
MAX_SOLVE = 1000  # Hessian-vector products for each right-hand side outside the eigenspace


@dataclass(frozen=True, eq=False)
class Direction:
    """One direction of an eigenspace, and what the curvature does along it.

    `direction` is a unit vector; both ways along it are ridges. To leading order a step of size s
    adds kappa s (order 3, whose sign is fixed by kappa > 0: the other way subtracts it) or
    kappa s^2 (order 4) to the eigenvalue. `kind` says what the form has here: a minimum, a maximum,
    a saddle, or a degenerate point. Directions of one `class_number` share kappa, how the
    eigenvalue splits, and the loss at two distances (of up to 256 directions), as copies under a
    symmetry do; `class_size` counts them. One entry stands for a whole manifold of
    `num_flat` dimensions; it is 0 for an isolated direction.

    >>> Direction(np.array([0.0, 1.0]), 6.0, "maximum", 1, 2, 0).kind
    'maximum'
    """

    direction: Float[np.ndarray, " n"]
    kappa: float
    kind: str
    class_number: int
    class_size: int
    num_flat: int


@dataclass(frozen=True, eq=False)
class Branching:
    """The ridges that leave along one cluster: lowest kappa first, and class by class.

    `order` is 3 or 4, the order of the derivative that decides; 1 for a simple eigenvalue, which
    has one eigenvector; 0 for undecided. Then the directions are the spectrum's own rows, picked by
    its gauge: both orders are flat, or the cluster is too large, incomplete or not converged.
    `num_missed` estimates how many directions (those that mirrors map onto each other once) no
    start has met.

    >>> import jax, jax.numpy as jnp
    >>> def loss(x):
    ...     return jnp.sum(x**4 / 4 - x**2 / 2)
    >>> problem = Problem(loss, jnp.zeros(2))
    >>> from ridgerider import DenseSpectrum
    >>> spectrum = DenseSpectrum()(problem, problem.x0, jax.random.key(0))
    >>> (branching,) = spectrum.branches(problem, problem.x0)
    >>> branching.order, branching.class_sizes
    (4, (2, 2))
    >>> [(round(one.kappa, 6), one.kind) for one in branching.directions[1:3]]
    [(1.5, 'minimum'), (3.0, 'maximum')]
    """

    index: int
    eigenvalue: float
    multiplicity: int
    order: int
    directions: tuple[Direction, ...]
    num_missed: float
    cost: Cost

    @property
    def class_sizes(self) -> tuple[int, ...]:
        """How many directions each class has, class 0 first."""
        return tuple({one.class_number: one.class_size for one in self.directions}.values())

    def ridge(self, member: int, sign: int = 1) -> Ridge:
        """Direction number `member` as a ridge to ride, taken in the direction of `sign`."""
        if not 0 <= member < len(self.directions):
            raise ValueError(
                f"`member` must be below the number of directions {len(self.directions)}, "
                f"not {member}."
            )
        direction = self.directions[member].direction
        return Ridge(
            direction=jnp.asarray(sign * direction),
            eigenvalue=jnp.asarray(self.eigenvalue, direction.dtype),
            index=jnp.asarray(self.index),
            multiplicity=jnp.asarray(self.multiplicity),
        )


def branching_of(spectrum: Spectrum, problem: Problem, x: Vector, index: int) -> Branching:
    """The ridges that leave along cluster `index` of the spectrum at `x`."""
    cluster = spectrum.clusters()[index]
    members = np.flatnonzero(np.asarray(spectrum.labels) == index)[: cluster.multiplicity]
    is_converged = spectrum.is_converged is None or np.asarray(spectrum.is_converged)[members].all()
    is_known = cluster.is_complete and bool(is_converged)
    own = np.asarray(spectrum.eigenvectors)[members]
    size, order, kappa, cost = len(own), 0, math.nan, Cost()
    rows, tolerance = canonical(own), float(jnp.finfo(own.dtype).eps) ** (1 / 3)
    if is_known and size == 1:
        order = 1
    elif is_known and size <= MAX_MULTIPLICITY:
        order, matrix, kappa, cost = _splitting(spectrum, problem, x, members, rows, tolerance)
    if order < 3:  # the rows of the spectrum as they are
        kind = "minimum" if size == 1 else "degenerate"
        directions = tuple(Direction(row, kappa, kind, 0, size, size - 1) for row in own)
        return Branching(index, cluster.eigenvalue, size, order, directions, 0.0, cost)
    # From 8 dimensions on the work for a start grows as the fourth power.
    max_starts = max(256, round(8192 * min(1.0, (8 / size) ** 4)))
    found = critical_points(symmetrized(matrix), tolerance, max_starts)
    profile, cost_of_profile = _profile(problem, x, found.points @ rows)
    directions = _directions(order, matrix, found, rows, profile, tolerance, own.dtype)
    cost = cost + cost_of_profile
    return Branching(index, cluster.eigenvalue, size, order, directions, found.num_missed, cost)


def _profile(
    problem: Problem, x: Vector, vectors: Float[np.ndarray, "count n"]
) -> tuple[Float[np.ndarray, "count 4"], Cost]:
    """The loss at some distances both ways, the lower of two equally far first, relative.

    Copies under a symmetry share it whole, not only the order that decides.
    """
    if len(vectors) > MAX_PROFILES:
        return np.zeros((len(vectors), 4)), Cost()
    vectors = vectors.astype(x.dtype)
    values = _in_chunks(lambda some: compiled(_losses)(problem, x, some), vectors)
    values = np.sort(values, axis=2).reshape(len(vectors), 4)
    values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    largest = np.abs(values).max(axis=0)
    return values / np.where(largest > 0, largest, 1), Cost(values=4 * len(vectors) + 1)


def _losses(
    problem: Problem, x: Vector, vectors: Float[Array, "count n"]
) -> Float[Array, "count 2 2"]:
    here, sizes = problem.value(x), jnp.array([[0.3, -0.3], [1.0, -1.0]], x.dtype)

    def along(vector: Vector) -> Float[Array, "2 2"]:
        return jax.vmap(jax.vmap(lambda size: problem.value(x + size * vector) - here))(sizes)

    return jax.lax.map(along, vectors)


def canonical(rows: Float[np.ndarray, "m n"]) -> Float[np.ndarray, "m n"]:
    """A basis that depends on the rows' span alone: fixed vectors' projections, orthonormalised."""
    rows = rows.astype(float)
    rotation, upper = np.linalg.qr(rows @ fixed_rows(*rows.shape).T)
    return (rotation * np.where(np.diagonal(upper) < 0, -1, 1)).T @ rows


def _splitting(
    spectrum: Spectrum,
    problem: Problem,
    x: Vector,
    members: Int[np.ndarray, " m"],
    rows: Float[np.ndarray, "m n"],
    tolerance: float,
) -> tuple[int, Float[np.ndarray, "..."], float, Cost]:
    """The order that decides (0: none), the matrix T(u, .) or M(u) as a tensor, and its cost.

    Before the cost, kappa: that of a form that is constant.
    """
    size, scale = len(rows), float(spectrum.scale)
    pairs = np.array([*combinations_with_replacement(range(size), 2)])
    vectors = _derivatives(problem, x, rows, pairs)
    third, noise = _filled(vectors @ rows.T, pairs)
    cost = Cost(gradients=4 * len(pairs))
    if not np.isfinite(third).all():
        return 0, third, math.nan, cost
    # A step of size 1 along T would change the curvature by less than can be told from zero.
    if np.abs(third).max() > max(tolerance * scale, 10 * noise):
        return 3, third, 0.0, cost
    triples = np.array([*combinations_with_replacement(range(size), 3)])
    fourth, noise = _filled(_derivatives(problem, x, rows, triples) @ rows.T, triples)
    outside = vectors - vectors @ rows.T @ rows
    products, solving = _products(spectrum, problem, x, members, outside)
    cost = cost + Cost(gradients=8 * len(triples)) + solving
    # products[ij, kl] = sum_j' T(e_i, e_j, e_j') T(e_k, e_l, e_j') / (a - b_j')
    where = np.zeros((size, size), int)
    where[pairs[:, 0], pairs[:, 1]] = where[pairs[:, 1], pairs[:, 0]] = np.arange(len(pairs))
    full = products[where[:, :, None, None], where[None, None, :, :]]
    matrix = (fourth + full) / 2 + np.swapaxes(full, 1, 2)
    # Undecided if the form is constant on the sphere.
    form = symmetrized(matrix)
    round_form = symmetrized(np.einsum("ij,kl->ijkl", np.eye(size), np.eye(size)))
    constant = float(np.sum(form * round_form) / np.sum(round_form**2))
    spread = np.abs(form - constant * round_form).max()
    floor = max(tolerance * scale, 10 * noise, tolerance * np.abs(form).max())
    return (4 if spread > floor else 0), matrix, constant, cost


def _derivatives(
    problem: Problem,
    x: Vector,
    rows: Float[np.ndarray, "m n"],
    indices: Int[np.ndarray, "count order"],
) -> Float[np.ndarray, "count n"]:
    """The gradient's derivative along rows i, j, ... for each line of indices.

    In chunks, and with rows added, so that one program serves every multiplicity.
    """
    num_rows = 8 if len(rows) <= 8 else MAX_MULTIPLICITY
    basis = jnp.asarray(np.pad(rows, ((0, num_rows - len(rows)), (0, 0))), x.dtype)
    return _in_chunks(lambda some: compiled(_some_derivatives)(problem, x, basis, some), indices)


def _in_chunks(function: Callable[[Array], Array], lines: np.ndarray) -> np.ndarray:
    """What a compiled function makes of each line, always so many at a time."""
    filled = np.concatenate([lines, np.repeat(lines[:1], -len(lines) % CHUNK, axis=0)])
    chunks = np.split(filled, len(filled) // CHUNK)
    parts = [np.asarray(function(jnp.asarray(chunk)), float) for chunk in chunks]
    return np.concatenate(parts)[: len(lines)]


def _some_derivatives(
    problem: Problem, x: Vector, rows: Float[Array, "m n"], indices: Int[Array, "count order"]
) -> Float[Array, "count n"]:
    def derivative(x: Vector, which: Int[Array, " order"]) -> Vector:
        if not len(which):
            return problem.grad(x)
        return jax.jvp(lambda x: derivative(x, which[:-1]), (x,), (rows[which[-1]],))[1]

    return jax.lax.map(lambda which: derivative(x, which), indices, batch_size=CHUNK)


def _filled(
    entries: Float[np.ndarray, "count m"], indices: Int[np.ndarray, "count order"]
) -> tuple[np.ndarray, float]:
    """The symmetric tensor of these entries, and how far what should be equal differs.

    An entry comes from as many derivatives as it has different indices: a mean is taken, and their
    distance from it is a measure of rounding.
    """
    order = indices.shape[1]
    tensor = np.empty((entries.shape[1],) * (order + 1))
    for places in permutations(range(order)):
        tensor[tuple(indices[:, places].T)] = entries
    mean = symmetrized(tensor)
    return mean, float(np.abs(tensor - mean).max())


def _products(
    spectrum: Spectrum,
    problem: Problem,
    x: Vector,
    members: Int[np.ndarray, " m"],
    vectors: Float[np.ndarray, "count n"],
) -> tuple[Float[np.ndarray, "count count"], Cost]:
    """v (a - H)^-1 w outside the eigenspace, for all pairs of vectors v and w.

    By the eigenpairs that are known, and by conjugate gradients outside of them: every eigenvalue
    below the cluster's is known, so H - a is positive there.
    """
    known, values = (
        np.asarray(spectrum.eigenvectors, float),
        np.asarray(spectrum.eigenvalues, float),
    )
    eigenvalue, others = values[members].mean(), np.delete(np.arange(len(values)), members)
    seen = vectors @ known[others].T
    products = (seen / (eigenvalue - values[others])) @ seen.T
    rest = vectors - vectors @ known.T @ known
    # Directions that add less than rounding to any product are left out.
    left, sizes, right = np.linalg.svd(rest, full_matrices=False)
    num_left = int(np.sum(sizes > float(jnp.finfo(x.dtype).eps) ** 0.5 * float(spectrum.scale)))
    if len(known) == known.shape[1] or not num_left:
        return products, Cost()
    sides, shift = jnp.asarray(right[:num_left], x.dtype), jnp.asarray(eigenvalue, x.dtype)
    solutions, num_hvps = compiled(_solve)(problem, x, spectrum.eigenvectors, shift, sides)
    weights = left[:, :num_left] * sizes[:num_left]
    inner = right[:num_left] @ np.asarray(solutions, float).T
    products = products - weights @ (inner + inner.T) @ weights.T / 2
    return products, Cost(hvps=int(num_hvps))


def _solve(
    problem: Problem,
    x: Vector,
    known: Float[Array, "k n"],
    eigenvalue: Scalar,
    sides: Float[Array, "count n"],
) -> tuple[Float[Array, "count n"], Int[Array, ""]]:
    """(H - eigenvalue) z = side outside the known rows, for each side, a unit vector.

    The error of side . z is quadratic in the residual: eps^(1/2) makes it exact to rounding. What
    does not converge is NaN.
    """
    hvp, tolerance = problem.hvp_at(x), float(jnp.finfo(x.dtype).eps) ** 0.5

    def shifted(vector: Vector) -> Vector:
        image = hvp(vector) - eigenvalue * vector
        return image - (known @ image) @ known

    def one(side: Vector) -> tuple[Vector, Int[Array, ""]]:
        side = side - (known @ side) @ known
        found = conjugate_gradients(shifted, side, tolerance, MAX_SOLVE)
        return jnp.where(found.error <= tolerance, found.x, jnp.nan), found.num_hvps

    solutions, num_hvps = jax.lax.map(one, sides)
    return solutions, jnp.sum(num_hvps)


def _directions(
    order: int,
    matrix: Float[np.ndarray, "..."],
    found: Critical,
    rows: Float[np.ndarray, "m n"],
    profile: Float[np.ndarray, "count 4"],
    tolerance: float,
    dtype: np.dtype,
) -> tuple[Direction, ...]:
    """The critical points in order, with their classes."""
    size = np.abs(matrix).max()
    zero = tolerance * size
    is_turned = (order == 3) & (found.kappas < -zero)
    points = np.where(is_turned[:, None], -found.points, found.points)
    kappas = np.where(is_turned, -found.kappas, found.kappas)
    slopes = np.where(is_turned[:, None], -found.slopes[:, ::-1], found.slopes)
    vectors = points @ rows
    is_free = (order == 4) | (np.abs(kappas) <= zero)
    # The first of the large entries is made positive. `fix_signs` calls an entry large from 1/2 of
    # the largest on, which 2, -1, -1 meets exactly.
    sizes = np.abs(vectors)
    first = np.argmax(sizes > 0.618 * sizes.max(axis=1, keepdims=True), axis=1)
    is_negative = vectors[np.arange(len(vectors)), first] < 0
    signs = np.where(is_free & is_negative, -1.0, 1.0)
    points, vectors = signs[:, None] * points, signs[:, None] * vectors
    # How the cluster splits along each direction.
    matrices = np.tensordot(points, matrix, 1)
    matrices = np.einsum("pi,pijk->pjk", points, matrices) if order == 4 else matrices
    splits = np.linalg.eigvalsh((matrices + np.swapaxes(matrices, 1, 2)) / 2)
    has_no_sign = (is_free & (order == 3))[:, None]
    splits = np.where(has_no_sign, np.sort(np.abs(splits), axis=1), splits)
    known = [kappas[:, None], found.num_flat[:, None] * size, slopes, splits, profile * size]
    classes = classes_of(np.concatenate(known, axis=1), zero)
    kinds = np.select(
        [(np.abs(slopes) <= zero).any(1), (slopes > 0).all(1), (slopes < 0).all(1)],
        ["degenerate", "minimum", "maximum"],
        "saddle",
    )
    return tuple(
        Direction(
            direction=vectors[place].astype(dtype),
            kappa=float(kappas[place]),
            kind=str(kinds[place]),
            class_number=int(classes[place]),
            class_size=int(np.sum(classes == classes[place])),
            num_flat=int(found.num_flat[place]),
        )
        for place in np.lexsort([*-points.T[::-1], classes])
    )
