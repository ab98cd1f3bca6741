r"""The lowest eigenpairs from Hessian-vector products (HVPs), where the Hessian does not fit.

`BlockSpectrum` is a rider's `spectrum`, in place of `DenseSpectrum`. A Krylov space that starts at
the gradient holds exactly one vector of each eigenspace, the gradient's projection, whatever the
multiplicities: this is the method "gradient". Near the start of a network an eigenvalue is
repeated, once for each hidden unit, but for a little noise, and such a space sees the noise: it
returns the same ridge several times, and, before it has converged, ridges that are none. So for the
method "network" Ritz pairs are filtered by their residual first, then those nearly equal are one,
and the one with the largest share of the gradient stands for them.
"""

import dataclasses
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ridgerider._check import Count, Fraction, Whole, check_count, check_fields
from ridgerider._core.linalg.lowest import Pairs, lowest_pairs
from ridgerider._core.linalg.space import Hvp, Ritz, krylov, unit_outside
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Counted, Number, Problem, Scalar, Vector
from ridgerider._core.spectra.spectrum import (
    DENSE_BELOW,
    DenseSpectrum,
    Gauge,
    Spectrum,
    cluster_labels,
    cluster_width,
    downhill,
    fix_signs,
    in_clusters,
    tolerance_of,
)

# Methods, and how many HVPs each spends at most.
MAX_HVPS = {"block": 1000, "gradient": 40, "network": 30, "power": 10_000}


class BlockSpectrum(eqx.Module):
    """The `k` most negative eigenpairs by Rayleigh-Ritz on Hessian-vector products.

    Each pair has its residual and whether it converged. Once all have, their orthogonal complement
    is probed with a new random vector: copies of a repeated eigenvalue that were missed, and
    whatever else lies below, take the places of the highest pairs. A probe spends at most as many
    HVPs as were spent before it.

    A cluster is complete (`Cluster.is_complete`) if a probe ruled out that an eigenvalue in it or
    below it is missing, and if residuals are so small that they cannot make two clusters of one. A
    probe misses an eigenvalue with a probability of at most 1e-4. It is not
    complete if `k` cuts the cluster, if HVPs ran out, or if the next eigenvalue is close.

    **Arguments**

    - `k`: how many pairs.
    - `tolerance`: converged once |H e - eigenvalue e| <= tolerance * max |eigenvalue| for all of a
      cluster, before the gauge turns them. Default: eps^(1/2), which makes the eigenvalues exact to
      rounding. The error of an eigenvalue is at most residual^2 / gap.
    - `max_hvps`: at most this many. Pairs that have not converged are marked. Default: 1000.
    - `max_rows`: basis vectors held; with the compiled loop's own copy about 2 * max_rows vectors
      of memory. Default: 2 k + 20. Fewer rows cost more HVPs.
    - `dense_below`: smaller problems, and those with fewer than 2 k parameters, are solved by
      `eigh`, which is then faster.
    - `gauge`, `cluster_tolerance`, `downhill_tolerance`: as for `DenseSpectrum`.
    - `method`: "block", as above. The others use neither `max_rows` nor `dense_below`:

      - "gradient": one direction for each distinct eigenvalue, the gradient's projection onto its
        eigenspace, from a Krylov space of `max_hvps` (default: 40) vectors. Ritz values within
        `cluster_tolerance` are copies that rounding makes: they are one pair. Those in which at
        most eps^(3/4) of the gradient lies are rounding as well, and left out. Where the gradient
        vanishes, a random vector takes its place.
      - "network": the same for a network, whose repeated eigenvalues differ a little: see
        `for_networks`.
      - "power": the paper's GetRidges, the power method on (shift - H), one eigenvector after
        another, each orthogonal to those before it. The shift is the largest eigenvalue, found by
        the same method. Slow: the number of HVPs (default: at most 10,000) grows with the inverse
        of the gap, where "block" needs that of its root.

    >>> import jax
    >>> from ridgerider.problems import wells
    >>> problem, key = wells(40), jax.random.key(0)
    >>> spectrum = BlockSpectrum(k=2, dense_below=0)(problem, problem.x0, key)
    >>> [round(cluster.eigenvalue, 3) for cluster in spectrum.clusters()]
    [-1.5, -1.474]

    The gradient's projection onto an eigenvalue of multiplicity 2:

    >>> problem = Problem(lambda x: -jnp.sum(x**2) / 2 - x[0] ** 2, jnp.array([0.1, 0.3, 0.4]))
    >>> spectrum = BlockSpectrum(k=2, method="gradient")(problem, problem.x0, key)
    >>> [[abs(round(float(entry), 3)) for entry in row] for row in spectrum.eigenvectors]
    [[1.0, 0.0, 0.0], [0.0, 0.6, 0.8]]
    """

    k: Count = eqx.field(static=True, default=8)
    tolerance: Fraction | None = None
    max_hvps: int | None = eqx.field(static=True, default=None)
    max_rows: int | None = eqx.field(static=True, default=None)
    dense_below: Whole = eqx.field(static=True, default=DENSE_BELOW)
    gauge: Gauge = "gradient"
    cluster_tolerance: Fraction | None = None
    downhill_tolerance: Fraction | None = None
    method: Literal["block", "gradient", "network", "power"] = eqx.field(
        static=True, default="block"
    )

    def __check_init__(self) -> None:
        check_fields(self)
        if self.max_hvps is not None:
            check_count("max_hvps", self.max_hvps, self.k + (self.method == "power"))
        if self.max_rows is not None:
            check_count("max_rows", self.max_rows, self.k + 2)

    @staticmethod
    def for_networks(**fields: Any) -> "BlockSpectrum":
        """The `k` lowest distinct eigenvalues that the gradient sees, one direction for each.

        Directions point downhill: the way `+` lowers the loss, as far as the gradient says. Memory:
        one vector for each HVP.

        **Arguments**

        - `tolerance`: a pair counts once |H e - eigenvalue e| is at most this (default: 0.1) times
          the least eigenvalue. What has not converged is left out, but for the lowest where no
          negative one has: the curvature along it is what it says (`is_converged` is false).
        - `cluster_tolerance`: eigenvalues within this (default: 0.02) times the least are one.
        - `fields`: any other of `BlockSpectrum`.

        >>> import ridgerider as rr
        >>> curvatures = jnp.concatenate([jnp.full(30, -1.0), jnp.linspace(-0.5, 1.0, 70)])
        >>> def loss(x, curvatures):
        ...     return curvatures @ x**2 / 2
        >>> problem = rr.Problem(loss, jnp.full(100, 0.1), curvatures)
        >>> spectrum_at = rr.BlockSpectrum.for_networks(k=1, max_hvps=20)
        >>> cluster = spectrum_at(problem, problem.x0, jax.random.key(0)).clusters()[0]
        >>> round(cluster.eigenvalue, 3), cluster.multiplicity
        (-1.0, 1)
        """
        own: dict[str, Any] = {"method": "network", "tolerance": 0.1, "cluster_tolerance": 0.02}
        return BlockSpectrum(**(own | fields))

    @eqx.filter_jit
    def __call__(self, problem: Problem, x: Vector, key: PRNGKeyArray) -> Spectrum:
        if self.k > problem.size and self.method != "network":
            raise ValueError(
                f"`k` must be at most the number of parameters, {problem.size}, not {self.k}."
            )
        tolerance = tolerance_of(self.tolerance, x.dtype, problem.noise)
        max_hvps = self.max_hvps or max(MAX_HVPS[self.method], self.k)
        width = cluster_width(self.cluster_tolerance, x.dtype, problem.noise)
        if self.method in ("gradient", "network"):
            return _from_gradient(self, problem, x, key, tolerance, width, max_hvps)
        hvp, random = problem.hvp_at(x), jax.random.normal(key, x.shape, x.dtype)
        if self.method == "power":
            pairs = _power_pairs(hvp, x, key, self.k, tolerance, max_hvps)
        elif problem.size < max(self.dense_below, 2 * self.k):
            dense = DenseSpectrum(self.gauge, self.cluster_tolerance, self.downhill_tolerance)
            return _lowest(dense(problem, x, key), self.k)
        else:
            max_rows = self.max_rows or 2 * self.k + 20
            pairs = lowest_pairs(hvp, random, self.k, tolerance, max_hvps, max_rows, key, width)
        counted = Counted(problem)
        counted.charge(hvps=pairs.num_hvps)
        found = in_clusters(self, counted, x, key, pairs.eigenvalues, pairs.rows, pairs.scale)
        # The gauge mixes the pairs of a cluster: they are as good as their worst.
        turn = found.eigenvectors @ pairs.rows.T
        images = pairs.remainders + pairs.eigenvalues[:, None] * pairs.rows
        remainders = turn @ images - pairs.eigenvalues[:, None] * found.eigenvectors
        same = found.labels[:, None] == found.labels[None, :]
        return dataclasses.replace(
            found,
            residuals=jnp.linalg.norm(remainders, axis=1),
            is_converged=jnp.all(pairs.is_converged(tolerance)[None, :] | ~same, axis=1),
            is_complete=pairs.is_complete(found.labels, width),
        )


def _from_gradient(
    rule: BlockSpectrum,
    problem: Problem,
    x: Vector,
    key: PRNGKeyArray,
    tolerance: Number,
    width: Number,
    max_hvps: int,
) -> Spectrum:
    """The methods "gradient" and "network"."""
    is_network, num_hvps = rule.method == "network", min(max_hvps, problem.size)
    grad, hvp = problem.grad(x), problem.hvp_at(x)
    random = jax.random.normal(key, x.shape, x.dtype)
    start = jnp.where(jnp.linalg.norm(grad) > 0, grad, random)
    space = krylov(hvp, start, num_hvps)
    ritz = space.ritz()
    least = -jnp.minimum(ritz.eigenvalues[0], 0)
    # Without negative curvature, the largest one is what there is to compare with.
    unit = jnp.where(least > 0, least, ritz.scale) if is_network else ritz.scale
    is_good = ritz.is_there
    if is_network:
        is_converged = is_good & (space.residuals(ritz.coefficients) <= tolerance * unit)
        is_wanted = is_converged & ((ritz.eigenvalues < 0) | ~(least > 0))
        is_lowest = jnp.arange(len(is_good)) == 0
        is_good = is_converged | (is_lowest & is_good & ~jnp.any(is_wanted))
    mix = _distinct(ritz, is_good, width, unit, min(rule.k, problem.size), is_network)
    is_there = jnp.any(mix != 0, axis=1)
    # With fewer distinct eigenvalues than `k` the last one stands for those that are not there.
    labels = jnp.minimum(jnp.arange(len(mix)), jnp.maximum(jnp.sum(is_there) - 1, 0))
    eigenvalues = (mix**2 @ ritz.eigenvalues)[labels]
    coefficients = ritz.coefficients @ mix.T
    residuals = space.residuals(coefficients)
    rows = coefficients.T @ space.rows
    lowest = tolerance_of(rule.downhill_tolerance, x.dtype, problem.noise)
    return Spectrum(
        eigenvalues=eigenvalues,
        eigenvectors=-rows if is_network else fix_signs(rows),  # the start is the gradient
        labels=labels,
        is_downhill=downhill(eigenvalues, lowest, ritz.scale) & is_there,
        scale=ritz.scale,
        cost=Cost(gradients=1, hvps=num_hvps),
        residuals=residuals,
        is_converged=(residuals <= tolerance * unit) & is_there,
        sees_copies=False,
    )


def _distinct(
    ritz: Ritz, is_good: Bool[Array, " m"], width: Number, unit: Scalar, k: int, is_network: bool
) -> Float[Array, "k m"]:
    """For each of the first `k` clusters of good Ritz pairs, the one vector that stands for it.

    A unit vector of coefficients, or zero where there are fewer clusters.
    """
    values = jnp.where(is_good, ritz.eigenvalues, jnp.finfo(ritz.eigenvalues.dtype).max / 4)
    order = jnp.argsort(values)
    found = cluster_labels(values[order], width, scale=unit)
    along = jnp.where(is_good, ritz.coefficients[0], 0)  # of the start, which is the first row
    weights = jax.ops.segment_sum(along[order] ** 2, found, len(found))
    # Less is rounding, which small steps of Lanczos magnify.
    is_seen = jnp.sqrt(weights) > float(jnp.finfo(unit.dtype).eps) ** 0.75
    numbers = jnp.where(is_seen, jnp.cumsum(is_seen) - 1, -1)[found][jnp.argsort(order)]
    mix = jnp.where(numbers[None, :] == jnp.arange(k)[:, None], along[None, :], 0)
    if is_network:
        best = jnp.argmax(jnp.abs(mix), axis=1)[:, None]
        mix = jnp.where(jnp.arange(len(along))[None, :] == best, mix, 0)
    sizes = jnp.linalg.norm(mix, axis=1, keepdims=True)
    return mix / jnp.maximum(sizes, jnp.finfo(unit.dtype).tiny)


def _power_pairs(
    hvp: Hvp, x: Vector, key: PRNGKeyArray, k: int, tolerance: Number, max_hvps: int
) -> Pairs:
    """The method "power"."""
    zero = jnp.zeros((), x.dtype)
    starts = jax.random.normal(key, (k + 1, x.size), x.dtype)
    most, nothing = max_hvps // (k + 1), jnp.zeros((k, x.size), x.dtype)
    State = tuple[Vector, Vector, Scalar, Int[Array, ""]]  # a row, its image, |H| so far, HVPs

    def dominant(sign: float, shift: Scalar, found: Float[Array, "k n"], start: Vector) -> State:
        """The dominant eigenpair of sign * H + shift outside the rows found already."""

        def should_continue(state: State) -> Bool[Array, ""]:
            row, image, size, num_hvps = state
            residual = jnp.linalg.norm(image - (row @ image) * row)
            return (residual > tolerance * size) & (num_hvps < most)

        def step(state: State) -> State:
            row, image, size, num_hvps = state
            row = unit_outside(found, sign * image + shift * row)
            image = hvp(row)
            size = jnp.maximum(size, jnp.maximum(jnp.abs(row @ image), shift / 2))
            return row, image, size, num_hvps + 1

        # What the first step makes orthonormal is `start`.
        first = (jnp.zeros_like(start), sign * start, zero, jnp.array(0))
        return jax.lax.while_loop(should_continue, step, first)

    # Plain iteration finds the largest |eigenvalue|: a shift by it makes all of shift - H >= 0.
    # If it occurs with both signs nothing converges, but |H v| tends to it all the same.
    _, image, _, num_first = dominant(1.0, zero, nothing, starts[-1])
    scale = jnp.linalg.norm(image)

    def one_more(found: Float[Array, "k n"], index: Array) -> tuple[Array, State]:
        state = dominant(-1.0, scale, found, starts[index])
        return found.at[index].set(state[0]), state

    _, (rows, images, _, counts) = jax.lax.scan(one_more, nothing, jnp.arange(k))
    eigenvalues = jnp.sum(rows * images, axis=1)
    order = jnp.argsort(eigenvalues)
    remainders = images - eigenvalues[:, None] * rows
    num_hvps, floor = num_first + jnp.sum(counts), jnp.full_like(scale, -jnp.inf)
    return Pairs(eigenvalues[order], rows[order], remainders[order], scale, num_hvps, floor)


def _lowest(spectrum: Spectrum, k: int) -> Spectrum:
    """The `k` lowest pairs of a dense spectrum, whose residuals are rounding."""
    eigenvalues = spectrum.eigenvalues[:k]
    label_behind = spectrum.labels[k] if k < len(spectrum.labels) else -1
    return dataclasses.replace(
        spectrum,
        eigenvalues=eigenvalues,
        eigenvectors=spectrum.eigenvectors[:k],
        labels=spectrum.labels[:k],
        is_downhill=spectrum.is_downhill[:k],
        residuals=jnp.full_like(eigenvalues, jnp.finfo(eigenvalues.dtype).eps) * spectrum.scale,
        is_converged=jnp.ones(k, bool),
        is_complete=spectrum.labels[:k] != label_behind,
    )
