"""Ridges from Hessian-vector products alone, for problems whose Hessian does not fit.

All of these are a rider's `spectrum`, in place of `DenseSpectrum`:

- `BlockSpectrum`: the k most negative eigenpairs with their copies;
- `GradientKrylov`: one direction per distinct eigenvalue, the gradient's projection onto its
  eigenspace;
- `PowerSpectrum`: the paper's power method, with deflation.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ridgerider._check import check_count, check_fraction
from ridgerider._core.linalg.krylov import Pairs, Product, lanczos, lowest_pairs, unit_outside
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Number, Problem, Scalar, Vector
from ridgerider._core.spectra.spectrum import (
    DENSE_BELOW,
    DenseSpectrum,
    Gauge,
    Spectrum,
    check_gauge,
    cluster_labels,
    cluster_width,
    coarsened,
    downhill,
    fix_gauge,
    fix_signs,
    tolerance_of,
)

TOLERANCES = ("tolerance", "cluster_tolerance", "downhill_tolerance")


class BlockSpectrum(eqx.Module):
    """The `k` most negative eigenpairs by Rayleigh-Ritz on Hessian-vector products.

    Every pair says its residual and whether it converged. Once all have, what is orthogonal to them
    is probed with a fresh random vector: copies of a repeated eigenvalue that were missed, and
    whatever else lies below, take the places of the highest pairs. A probe spends at most half of
    the products spent before it.

    A cluster is complete (`Cluster.is_complete`) if a probe ruled out that an eigenvalue in it or
    below it is missing, and if residuals are so small that they cannot make two clusters of one. A
    probe overlooks an eigenvalue with a probability of at most 1e-4. Not complete is what was not
    decided: where `k` cuts a cluster, where products ran out, where the next eigenvalue is close.

    **Arguments**

    - `k`: how many pairs.
    - `tolerance`: converged once |H e - eigenvalue e| <= tolerance * max |eigenvalue| for all of a
      cluster, before the gauge turns them. Default: eps^(1/2), which makes the eigenvalues exact to
      rounding. The error of an eigenvalue is at most residual^2 / gap.
    - `max_hvps`: never spend more. Pairs that have not converged by then say so.
    - `max_rows`: basis vectors held, with an image for each; with the compiled loop's own copy
      about 3 * max_rows vectors of memory. Default: k + 20. Fewer rows cost more products.
    - `dense_below`: smaller problems, and those with fewer than 2 k parameters, are solved by
      `eigh`, which is then faster.
    - `gauge`, `cluster_tolerance`, `downhill_tolerance`: as for `DenseSpectrum`.

    >>> import jax
    >>> from ridgerider.problems import wells
    >>> problem, key = wells(40), jax.random.key(0)
    >>> spectrum = BlockSpectrum(k=2, dense_below=0)(problem, problem.x0, key)
    >>> [round(cluster.eigenvalue, 3) for cluster in spectrum.clusters()]
    [-1.5, -1.474]
    """

    k: int = eqx.field(static=True, default=8)
    tolerance: Number | None = None
    max_hvps: int = eqx.field(static=True, default=1000)
    max_rows: int | None = eqx.field(static=True, default=None)
    dense_below: int = eqx.field(static=True, default=DENSE_BELOW)
    gauge: Gauge = "gradient"
    cluster_tolerance: Number | None = None
    downhill_tolerance: Number | None = None

    def __check_init__(self) -> None:
        check_count("k", self.k)
        check_count("max_hvps", self.max_hvps, self.k)
        if self.max_rows is not None:
            check_count("max_rows", self.max_rows, self.k + 2)
        check_count("dense_below", self.dense_below, 0)
        check_gauge(self.gauge)
        for name in ("tolerance", "cluster_tolerance", "downhill_tolerance"):
            check_fraction(name, getattr(self, name))

    @eqx.filter_jit
    def __call__(
        self,
        problem: Problem,
        x: Vector,
        key: PRNGKeyArray,
        start: Float[Array, "j n"] | None = None,
    ) -> Spectrum:
        """The spectrum at `x`. `start`: rows close to the eigenvectors wanted, if any are known."""
        check_k(self.k, problem)
        self = coarsened(self, problem, *TOLERANCES)
        if problem.size < max(self.dense_below, 2 * self.k):
            dense = DenseSpectrum(self.gauge, self.cluster_tolerance, self.downhill_tolerance)
            return _first(dense(problem, x, key), self.k)
        tolerance = tolerance_of(self.tolerance, x.dtype)
        random = jax.random.normal(key, (self.k, problem.size), x.dtype)
        # The random rows see the copies that a warm start may have lost.
        rows = random if start is None else jnp.concatenate([start, random])[: self.k + len(start)]
        pairs = lowest_pairs(
            problem.hvp_at(x),
            rows,
            self.k,
            tolerance,
            self.max_hvps,
            max(self.max_rows or self.k + 20, len(rows) + 2),
            key,
            cluster_width(self.cluster_tolerance, x.dtype),
        )
        return self._spectrum(problem, x, key, pairs, tolerance)

    def _spectrum(
        self, problem: Problem, x: Vector, key: PRNGKeyArray, pairs: Pairs, tolerance: Number
    ) -> Spectrum:
        is_downhill = downhill(pairs.eigenvalues, self.downhill_tolerance, pairs.scale)
        labels = cluster_labels(pairs.eigenvalues, self.cluster_tolerance, is_downhill, pairs.scale)
        rows, gauge_cost = fix_gauge(
            self.gauge, problem, x, key, pairs.rows, pairs.eigenvalues, labels
        )
        # The gauge mixes the pairs of a cluster: they are as good as their worst.
        turn = rows @ pairs.rows.T
        images = pairs.remainders + pairs.eigenvalues[:, None] * pairs.rows
        remainders = turn @ images - pairs.eigenvalues[:, None] * rows
        same = labels[:, None] == labels[None, :]
        width = cluster_width(self.cluster_tolerance, x.dtype)
        return Spectrum(
            eigenvalues=pairs.eigenvalues,
            eigenvectors=fix_signs(rows),
            labels=labels,
            is_downhill=is_downhill,
            scale=pairs.scale,
            cost=Cost(hvps=pairs.num_hvps) + gauge_cost,
            residuals=jnp.linalg.norm(remainders, axis=1),
            is_converged=jnp.all(pairs.is_converged(tolerance)[None, :] | ~same, axis=1),
            is_complete=pairs.is_complete(labels, width),
        )


class GradientKrylov(eqx.Module):
    """One direction per distinct eigenvalue: the gradient's projection onto each eigenspace.

    A Krylov space started at the gradient holds exactly these, whatever the multiplicities; the
    `k` lowest Ritz pairs of `num_hvps` products are returned. Ritz values within
    `cluster_tolerance` times the largest are copies that rounding makes: they are one pair. Those
    in which at most eps^(3/4) of the gradient lies are rounding as well, and left out. Where the
    gradient vanishes, a random vector takes its place. As many basis vectors as products are held,
    each with its image.

    >>> import jax, jax.numpy as jnp
    >>> problem = Problem(lambda x: -jnp.sum(x**2) / 2 - x[0] ** 2, jnp.array([0.1, 0.3, 0.4]))
    >>> spectrum = GradientKrylov(k=2, num_hvps=2)(problem, problem.x0, jax.random.key(0))
    >>> [[abs(round(float(entry), 3)) for entry in row] for row in spectrum.eigenvectors]
    [[1.0, 0.0, 0.0], [0.0, 0.6, 0.8]]
    """

    k: int = eqx.field(static=True, default=8)
    num_hvps: int = eqx.field(static=True, default=40)
    tolerance: Number | None = None
    downhill_tolerance: Number | None = None
    cluster_tolerance: Number | None = None

    def __check_init__(self) -> None:
        check_count("k", self.k)
        check_count("num_hvps", self.num_hvps, self.k)
        for name in ("tolerance", "downhill_tolerance", "cluster_tolerance"):
            check_fraction(name, getattr(self, name))

    @eqx.filter_jit
    def __call__(self, problem: Problem, x: Vector, key: PRNGKeyArray) -> Spectrum:
        check_k(self.k, problem)
        self = coarsened(self, problem, *TOLERANCES)
        grad, random = problem.grad(x), jax.random.normal(key, x.shape, x.dtype)
        has_grad = jnp.linalg.norm(grad) > 0
        space = lanczos(problem.hvp_at(x), jnp.where(has_grad, grad, random), self.num_hvps)
        ritz = space.ritz()
        scale = jnp.max(jnp.abs(jnp.where(ritz.is_there, ritz.eigenvalues, 0)))
        found = cluster_labels(ritz.eigenvalues, self.cluster_tolerance, ~ritz.is_there, scale)
        weights = jax.ops.segment_sum(ritz.coefficients[0] ** 2, found, len(found))
        # Of the start, the first row, these have more than rounding, which small steps of Lanczos
        # magnify.
        is_seen = jnp.sqrt(weights) > float(jnp.finfo(x.dtype).eps) ** 0.75
        numbers = jnp.where(is_seen, jnp.cumsum(is_seen) - 1, -1)[found]
        is_inside = numbers[None, :] == jnp.arange(self.k)[:, None]
        mix = jnp.where(is_inside, ritz.coefficients[:1], 0)
        mix = mix / jnp.maximum(
            jnp.linalg.norm(mix, axis=1, keepdims=True), jnp.finfo(x.dtype).tiny
        )
        rows, images = (mix @ ritz.coefficients.T @ part for part in (space.rows, space.images))
        is_there = jnp.any(is_inside & ritz.is_there[None, :], axis=1)
        # With fewer distinct eigenvalues than `k` the last one stands for those that are not there.
        labels = jnp.minimum(jnp.arange(self.k), jnp.sum(is_there) - 1)
        eigenvalues = (mix**2 @ ritz.eigenvalues)[labels]
        residuals = jnp.linalg.norm(images - eigenvalues[:, None] * rows, axis=1)
        tolerance = tolerance_of(self.tolerance, x.dtype)
        return Spectrum(
            eigenvalues=eigenvalues,
            eigenvectors=fix_signs(rows),
            labels=labels,
            is_downhill=downhill(eigenvalues, self.downhill_tolerance, scale) & is_there,
            scale=scale,
            cost=Cost(gradients=1, hvps=self.num_hvps),
            residuals=residuals,
            is_converged=(residuals <= tolerance * scale) & is_there,
            sees_copies=False,
        )


class PowerSpectrum(eqx.Module):
    """The paper's GetRidges: the power method on (shift - H), one eigenvector after another.

    Each is kept orthogonal to those before it. The shift is the largest eigenvalue, found by the
    same method. Slow: the number of products grows with the inverse of the gap, where
    `BlockSpectrum` needs that of its root.

    >>> import jax
    >>> from ridgerider.problems import wells
    >>> spectrum = PowerSpectrum(k=2, tolerance=1e-3)(wells(3), wells(3).x0, jax.random.key(0))
    >>> [round(float(eigenvalue), 2) for eigenvalue in spectrum.eigenvalues]
    [-1.5, -1.0]
    """

    k: int = eqx.field(static=True, default=1)
    tolerance: Number | None = None
    max_hvps: int = eqx.field(static=True, default=10_000)
    cluster_tolerance: Number | None = None
    downhill_tolerance: Number | None = None

    def __check_init__(self) -> None:
        check_count("k", self.k)
        check_count("max_hvps", self.max_hvps, self.k + 1)
        for name in ("tolerance", "cluster_tolerance", "downhill_tolerance"):
            check_fraction(name, getattr(self, name))

    @eqx.filter_jit
    def __call__(self, problem: Problem, x: Vector, key: PRNGKeyArray) -> Spectrum:
        check_k(self.k, problem)
        self = coarsened(self, problem, *TOLERANCES)
        hvp, tolerance = problem.hvp_at(x), tolerance_of(self.tolerance, x.dtype)
        starts = jax.random.normal(key, (self.k + 1, problem.size), x.dtype)
        most = self.max_hvps // (self.k + 1)
        nothing = jnp.zeros((self.k, problem.size), x.dtype)
        # Plain iteration finds the largest |eigenvalue|: a shift by it makes all of shift - H >= 0.
        # If it occurs with both signs nothing converges, but |H v| tends to it all the same.
        largest = _power(hvp, 1.0, jnp.zeros((), x.dtype), nothing, starts[-1], tolerance, most)
        scale = jnp.hypot(largest.eigenvalue, jnp.linalg.norm(largest.remainder))

        def one_more(found: Float[Array, "k n"], index: Array) -> tuple[Array, _Power]:
            power = _power(hvp, -1.0, scale, found, starts[index], tolerance, most)
            return found.at[index].set(power.row), power

        _, powers = jax.lax.scan(one_more, nothing, jnp.arange(self.k))
        order = jnp.argsort(powers.eigenvalue)
        pairs = Pairs(
            powers.eigenvalue[order],
            powers.row[order],
            powers.remainder[order],
            scale,
            largest.num_hvps + jnp.sum(powers.num_hvps),
            floor=jnp.full_like(scale, -jnp.inf),
        )
        as_block = BlockSpectrum(
            k=self.k,
            max_hvps=self.max_hvps,
            cluster_tolerance=self.cluster_tolerance,
            downhill_tolerance=self.downhill_tolerance,
        )
        return as_block._spectrum(problem, x, key, pairs, tolerance)


class _Power(eqx.Module):
    """The state of a power iteration: `row` with its eigenvalue, and the next row to try."""

    row: Vector
    eigenvalue: Scalar
    remainder: Vector
    next_row: Vector
    size: Scalar  # the largest |eigenvalue| seen
    num_hvps: Int[Array, ""]


def _power(
    hvp: Product,
    sign: float,
    shift: Scalar,
    found: Float[Array, "k n"],
    start: Vector,
    tolerance: Number,
    max_hvps: int,
) -> _Power:
    """The dominant eigenpair of sign * H + shift outside the rows found already."""

    def go_on(power: _Power) -> Bool[Array, ""]:
        return ~(jnp.linalg.norm(power.remainder) <= tolerance * power.size) & (
            power.num_hvps < max_hvps
        )

    def step(power: _Power) -> _Power:
        row = power.next_row
        image = hvp(row)
        eigenvalue = row @ image
        return _Power(
            row=row,
            eigenvalue=eigenvalue,
            remainder=image - eigenvalue * row,
            next_row=unit_outside(found, sign * image + shift * row),
            size=jnp.maximum(power.size, jnp.maximum(jnp.abs(eigenvalue), shift / 2)),
            num_hvps=power.num_hvps + 1,
        )

    row, zero = unit_outside(found, start), jnp.zeros((), start.dtype)
    first = _Power(row, zero, jnp.full_like(row, jnp.inf), row, zero, jnp.array(0))
    return jax.lax.while_loop(go_on, step, first)


def check_k(k: int, problem: Problem) -> None:
    if k > problem.size:
        raise ValueError(f"`k` must be at most the number of parameters, {problem.size}, not {k}.")


def _first(spectrum: Spectrum, k: int) -> Spectrum:
    """The `k` lowest pairs of a dense spectrum, whose residuals are rounding."""
    eigenvalues = spectrum.eigenvalues[:k]
    label_behind = spectrum.labels[k] if k < len(spectrum.labels) else -1
    return Spectrum(
        eigenvalues=eigenvalues,
        eigenvectors=spectrum.eigenvectors[:k],
        labels=spectrum.labels[:k],
        is_downhill=spectrum.is_downhill[:k],
        scale=spectrum.scale,
        cost=spectrum.cost,
        residuals=jnp.full_like(eigenvalues, jnp.finfo(eigenvalues.dtype).eps) * spectrum.scale,
        is_converged=jnp.ones(k, bool),
        is_complete=spectrum.labels[:k] != label_behind,
    )
