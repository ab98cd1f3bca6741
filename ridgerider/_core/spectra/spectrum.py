r"""Ridges: eigenspaces of the Hessian with negative curvature.

An eigenvalue that a symmetry repeats has an eigenspace and no single eigenvector. So the
spectrum is cut into *clusters*, runs of eigenvalues no wider than `tolerance * max |eigenvalue|`,
and a ridge is a cluster together with one direction inside it, picked by a declared *gauge*:

- `"gradient"`: the gradient's projection onto the eigenspace, up to sign (a fixed vector's where it
  vanishes);
- `"random"`: a uniformly random orthonormal basis drawn from the branch's key;
- a callable `probe(problem, x) -> vector`: the projection of a vector of the user's own.

Further members of a cluster are the projections of further fixed vectors, made orthonormal one
after the other. So they depend on the eigenspace alone, and addresses mean the same everywhere.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from ridgerider._check import Fraction, check_fields, checked
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Counted, Number, Problem, Scalar, Vector

if TYPE_CHECKING:
    from ridgerider._core.spectra.branches import Branching

Probe = Annotated[Callable[[Problem, Vector], Vector], "probe(problem, x)"]
Gauge = Literal["gradient", "random"] | Probe
GAUGES = ("gradient", "random")
# Problems with fewer parameters are solved by dense Hessians, wherever the library may choose:
# a Hessian with its spectrum then takes some ten milliseconds.
DENSE_BELOW = 300


class Ridge(eqx.Module):
    """A direction to ride. `direction` already points the way.

    `index` is the rank of its cluster among the clusters at this point and `multiplicity` the
    cluster's dimension. `space` holds rows that span the eigenspace (other rows are zero); an
    update that follows eigenspaces fills it in. `memory` is whatever else an update wants to find
    again at the next step; None until it was called once.

    >>> ridge = Ridge(jnp.array([1.0, 0.0]), jnp.array(-2.0), jnp.array(0), jnp.array(1))
    >>> float(ridge.eigenvalue)
    -2.0
    """

    direction: Vector
    eigenvalue: Scalar
    index: Int[Array, ""]
    multiplicity: Int[Array, ""]
    space: Float[Array, "k n"] | None = None
    memory: PyTree = None


@dataclass(frozen=True)
class Cluster:
    """A run of equal eigenvalues: mean, number, spread, and the gap to the nearest other one.

    Where a spectrum was computed in part, there may be more copies than were seen, or eigenvalues
    below that were not: `is_complete` reads false unless this was ruled out.

    >>> Cluster(eigenvalue=-2.0, multiplicity=3, spread=0.0, gap=1.0).multiplicity
    3
    """

    eigenvalue: float
    multiplicity: int
    spread: float
    gap: float
    is_complete: bool = True


class Spectrum(eqx.Module):
    """Eigenpairs, ascending: `eigenvectors` are unit rows, `labels` number the clusters from 0.

    `is_downhill` marks the eigenvalues that are negative beyond what rounding makes of a zero and
    `scale` is the largest |eigenvalue|. An iterative engine computes the `k` lowest pairs only; it
    says with what `residuals` |H e - eigenvalue e|, which of them are converged, and estimates
    `scale` from below. `is_complete`: every eigenvalue in a pair's cluster, and every one below, is
    in the list. `sees_copies` reads false for an engine that finds one vector per eigenspace.

    >>> import jax
    >>> from ridgerider.problems import wells
    >>> spectrum = DenseSpectrum()(wells(3), wells(3).x0, jax.random.key(0))
    >>> spectrum.num_downhill(), float(spectrum.ridge(index=0, sign=-1).direction[2])
    (3, -1.0)
    """

    eigenvalues: Float[Array, " k"]
    eigenvectors: Float[Array, "k n"]
    labels: Int[Array, " k"]
    is_downhill: Bool[Array, " k"]
    scale: Scalar
    cost: Cost
    residuals: Float[Array, " k"] | None = None
    is_converged: Bool[Array, " k"] | None = None
    is_complete: Bool[Array, " k"] | None = None
    sees_copies: bool = eqx.field(static=True, default=True)

    def clusters(self) -> tuple[Cluster, ...]:
        """The clusters, most negative first."""
        eigenvalues, labels = np.asarray(self.eigenvalues, float), np.asarray(self.labels)
        if not np.isfinite(eigenvalues).all():
            return ()
        groups = [eigenvalues[labels == label] for label in range(labels.max() + 1)]
        # Ascending, so the nearest eigenvalue outside a group is a neighbouring group's edge.
        below = [-math.inf] + [group[-1] for group in groups[:-1]]
        above = [group[0] for group in groups[1:]] + [math.inf]
        none = np.zeros(len(eigenvalues), bool)
        is_complete = none if self.is_complete is None else np.asarray(self.is_complete)
        return tuple(
            Cluster(
                eigenvalue=float(group.mean()),
                multiplicity=len(group) if self.sees_copies else 1,
                spread=float(group[-1] - group[0]),
                gap=float(min(group[0] - low, high - group[-1])),
                is_complete=bool(is_complete[labels == number].all()),
            )
            for number, (group, low, high) in enumerate(zip(groups, below, above, strict=True))
        )

    def num_downhill(self) -> int:
        """How many clusters lead downhill. They come first."""
        downhill = np.asarray(self.labels)[np.asarray(self.is_downhill)]
        return int(downhill.max()) + 1 if downhill.size else 0

    @checked
    def ridge(self, index: int, sign: int = 1, member: int = 0) -> Ridge:
        """Member `member` of cluster `index`, taken in the direction of `sign`."""
        rows = np.flatnonzero(np.asarray(self.labels) == index)
        rows = rows if self.sees_copies else rows[:1]
        if not len(rows):
            raise ValueError(
                f"`index` must be that of a cluster, 0 to {self.labels[-1]}, not {index}."
            )
        if not 0 <= member < len(rows):
            raise ValueError(
                f"`member` must be below the cluster's multiplicity {len(rows)}, not {member}."
            )
        row = rows[member]
        dtype = self.eigenvalues.dtype
        return Ridge(
            direction=self.eigenvectors[row] * jnp.asarray(sign, dtype),
            eigenvalue=self.eigenvalues[row],
            index=jnp.asarray(index),
            multiplicity=jnp.asarray(len(rows)),
        )

    @checked
    def branches(self, problem: Problem, x: Vector) -> tuple["Branching", ...]:
        """Which directions of each downhill cluster are ridges, where this spectrum is that of `x`.

        What is below eps^(1/3) times the largest |eigenvalue|, for a step of size 1, is not
        a change of curvature. Clusters of more than 32 dimensions are left undecided. For
        multiplicity m this costs 4 C(m+1, 2) gradients, and 8 C(m+2, 3) more where third
        derivatives vanish.

        >>> import jax, jax.numpy as jnp
        >>> problem = Problem(lambda x: jnp.sum(x**4 / 4 - x**2 / 2), jnp.zeros(3))
        >>> spectrum = DenseSpectrum()(problem, problem.x0, jax.random.key(0))
        >>> [branching.class_sizes for branching in spectrum.branches(problem, problem.x0)]
        [(4, 6, 3)]
        """
        from ridgerider._core.spectra.branches import branching_of  # which imports this file

        indices = range(self.num_downhill())
        return tuple(branching_of(self, problem, x, index) for index in indices)


class DenseSpectrum(eqx.Module):
    """Every eigenpair, by `eigh` of the full Hessian.

    **Arguments**

    - `gauge`: how a representative is picked inside a repeated eigenvalue; see above.
    - `cluster_tolerance`: eigenvalues within this times the largest |eigenvalue| are one cluster.
      Default: eps^(2/3). Raise it, here and in the update, where a symmetry holds only nearly.
    - `downhill_tolerance`: a ridge must be more negative than this times the largest |eigenvalue|.
      Default: eps^(1/2).

    >>> import jax, jax.numpy as jnp
    >>> problem = Problem(lambda x: -(x[0] ** 2) - (x[1] ** 2 + x[2] ** 2) / 2, jnp.zeros(3))
    >>> spectrum = DenseSpectrum()(problem, problem.x0, jax.random.key(0))
    >>> [(cluster.eigenvalue, cluster.multiplicity) for cluster in spectrum.clusters()]
    [(-2.0, 1), (-1.0, 2)]
    """

    gauge: Gauge = "gradient"
    cluster_tolerance: Fraction | None = None
    downhill_tolerance: Fraction | None = None

    __check_init__ = check_fields

    @eqx.filter_jit
    def __call__(self, problem: Problem, x: Vector, key: PRNGKeyArray) -> Spectrum:
        counted = Counted(problem)
        _, eigenvalues, columns = counted.eigh(x)
        scale, is_complete = jnp.max(jnp.abs(eigenvalues)), jnp.ones(problem.size, bool)
        return in_clusters(self, counted, x, key, eigenvalues, columns.T, scale, is_complete)


def in_clusters(
    rule: Any,
    counted: Counted,
    x: Vector,
    key: PRNGKeyArray,
    eigenvalues: Float[Array, " k"],
    rows: Float[Array, "k n"],
    scale: Scalar,
    is_complete: Bool[Array, " k"] | None = None,
) -> Spectrum:
    """Eigenpairs as a spectrum, by the gauge and the tolerances of a spectrum rule."""
    noise = counted.problem.noise
    is_downhill = downhill(
        eigenvalues, tolerance_of(rule.downhill_tolerance, x.dtype, noise), scale
    )
    width = cluster_width(rule.cluster_tolerance, x.dtype, noise)
    labels = cluster_labels(eigenvalues, width, is_downhill, scale)
    rows = fix_signs(fix_gauge(rule.gauge, counted, x, key, rows, eigenvalues, labels))
    cost = counted.cost
    return Spectrum(eigenvalues, rows, labels, is_downhill, scale, cost, is_complete=is_complete)


def tolerance_of(tolerance: Number | None, dtype: np.dtype, noise: float = 0.0) -> Number:
    """A relative tolerance. Default: eps^(1/2).

    With `noise`, the relative error of HVPs beyond rounding (`Problem.noise`), it is well above
    that: nothing is distinguished that noise alone may have made.
    """
    own = math.sqrt(jnp.finfo(dtype).eps) if tolerance is None else tolerance
    return jnp.maximum(own, 100 * noise) if noise else own


def cluster_width(tolerance: Number | None, dtype: np.dtype, noise: float = 0.0) -> Number:
    """As `tolerance_of`, for eigenvalues that count as equal. Default: eps^(2/3).

    That is well above the rounding of `eigh`, about eps, and well below what a loss resolves.
    """
    default = float(jnp.finfo(dtype).eps) ** (2 / 3)
    return tolerance_of(default if tolerance is None else tolerance, dtype, noise)


def downhill(
    eigenvalues: Float[Array, " k"], tolerance: Number, scale: Scalar
) -> Bool[Array, " k"]:
    """Which eigenvalues are negative beyond doubt, where `scale` is the largest |eigenvalue|.

    `eigenvalue < 0` is not a test: rounding turns half of the zeros of a rank-one Hessian negative.
    """
    return eigenvalues < -tolerance * scale


def cluster_labels(
    eigenvalues: Float[Array, " k"],
    tolerance: Number | None = None,
    is_downhill: Bool[Array, " k"] | None = None,
    scale: Scalar | None = None,
) -> Int[Array, " k"]:
    """Number the clusters of ascending eigenvalues.

    A cluster is at most `tolerance` times the largest |eigenvalue| wide: were only the gaps between
    neighbours looked at, a dense bulk would chain into one. All of it is downhill or none.
    """
    width = cluster_width(tolerance, eigenvalues.dtype) * (
        jnp.max(jnp.abs(eigenvalues)) if scale is None else scale
    )
    kinds = jnp.zeros(eigenvalues.shape, bool) if is_downhill is None else is_downhill

    def label(
        carry: tuple[Array, Array, Array], here: tuple[Array, Array]
    ) -> tuple[tuple[Array, Array, Array], Array]:
        (first, kind, number), (eigenvalue, kind_here) = carry, here
        is_new = ~(eigenvalue - first <= width) | (kind_here != kind)
        number = number + is_new.astype(number.dtype)
        return (jnp.where(is_new, eigenvalue, first), kind_here, number), number

    start = (eigenvalues[0], kinds[0], jnp.zeros((), int))
    return jax.lax.scan(label, start, (eigenvalues, kinds))[1]


def fix_signs(rows: Float[Array, "k n"]) -> Float[Array, "k n"]:
    """Make the first of the dominant entries of each row positive.

    Entries within a factor 1/2 of the largest are dominant: exact ties, which symmetries make
    common, are then decided by position and not by rounding.
    """
    sizes = jnp.abs(rows)
    first = jnp.argmax(sizes >= jnp.max(sizes, axis=1, keepdims=True) / 2, axis=1, keepdims=True)
    return jnp.where(jnp.take_along_axis(rows, first, axis=1) < 0, -rows, rows)


def fix_gauge(
    gauge: Gauge,
    counted: Counted,
    x: Vector,
    key: PRNGKeyArray,
    rows: Float[Array, "k n"],
    eigenvalues: Float[Array, " k"],
    labels: Int[Array, " k"],
) -> Float[Array, "k n"]:
    """Rotate the rows inside each cluster as the gauge says."""
    if gauge == "random":
        same = labels[:, None] == labels[None, :]
        mix = jnp.where(same, jax.random.normal(key, same.shape, rows.dtype), 0)
        return _mixed(rows, mix.T)
    probe = counted.grad(x) if gauge == "gradient" else gauge(counted.problem, x)
    return canonical_rows(rows, eigenvalues, labels, probe)


def canonical_rows(
    rows: Float[Array, "k n"],
    eigenvalues: Float[Array, " k"],
    labels: Int[Array, " k"],
    probe: Vector,
) -> Float[Array, "k n"]:
    """In each cluster: the projection of the probe, then those of fixed vectors.

    Where the probe's projection is no more than rounding, it is left out.
    """
    # A displacement of sqrt(eps) along a ridge makes this much gradient: less is rounding.
    floor = tolerance_of(None, rows.dtype) * jnp.max(jnp.abs(eigenvalues))
    same = labels[:, None] == labels[None, :]
    coefficients = jnp.where(same, (rows @ probe)[None, :], 0)
    is_seen = jnp.linalg.norm(coefficients, axis=1) > floor
    rank = jnp.arange(len(rows)) - jnp.argmax(same, axis=1)
    fixed = jnp.where(same, (fixed_vectors(len(rows), probe.size, rows.dtype) @ rows.T)[rank], 0)
    return _mixed(rows, jnp.where((is_seen & (rank == 0))[:, None], coefficients, fixed))


def _mixed(rows: Float[Array, "k n"], mix: Float[Array, "k k"]) -> Float[Array, "k n"]:
    """The rows `mix @ rows`, made orthonormal one after the other; `mix` is zero across clusters.

    QR of a block-diagonal matrix is block-diagonal. R's diagonal is made positive: Gaussian blocks
    then become Haar, and a row of the mix gives its own direction and not the opposite one.
    """
    rotation, upper = jnp.linalg.qr(mix.T)
    signs = jnp.where(jnp.diagonal(upper) < 0, -1, 1).astype(rows.dtype)
    return (rotation * signs[None, :]).T @ rows


def fixed_vectors(count: int, size: int, dtype: np.dtype) -> Float[Array, "count size"]:
    """Vectors of entries in [-1, 1) that are the same on every machine, whatever the settings.

    The counter-based generator Threefry, called without JAX's keys, which settings may change.
    """
    key = jnp.array([0x52696467, 0x65526964], jnp.uint32)  # any two numbers
    entries = jnp.arange(size, dtype=jnp.uint32)

    def vector(number: Int[Array, ""]) -> Vector:
        bits = threefry_2x32(key ^ jnp.stack([number, number]), entries)
        return (bits >> 9).astype(dtype) / 2**22 - 1  # 23 bits: exact in single precision

    return jax.vmap(vector)(jnp.arange(count, dtype=jnp.uint32))
