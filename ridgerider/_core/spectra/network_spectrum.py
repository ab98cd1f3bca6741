"""One ridge for each distinct eigenvalue of a network, and how often each is repeated.

Near the start of a network an eigenvalue is repeated, once for each hidden unit, but for a little
noise. A Krylov space from the gradient sees the noise: it returns the same ridge several times,
and, before it has converged, ridges that are none. So Ritz pairs are filtered by their residual
first, then those nearly equal are one, and the one with the largest share of the gradient stands
for them.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ridgerider._check import check_count, check_fraction
from ridgerider._core.linalg.krylov import Product, Ritz
from ridgerider._core.linalg.lean import Rows, grow
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Number, Problem, Scalar, Vector
from ridgerider._core.spectra.spectrum import Spectrum, cluster_labels


class NetworkSpectrum(eqx.Module):
    """The `k` lowest distinct eigenvalues that the gradient sees, one direction for each.

    Directions point downhill: the way `+` lowers the loss, as far as the gradient says. Where the
    gradient vanishes, a random vector takes its place. Memory: one vector for each product.

    **Arguments**

    - `k`: how many distinct eigenvalues at most.
    - `num_hvps`: products, all from the gradient.
    - `tolerance`: a pair counts once |H e - eigenvalue e| is at most this times the least
      eigenvalue. What has not converged is left out, but for the lowest where no negative one has:
      the curvature along it is what it says (`is_converged` is false).
    - `cluster_tolerance`: eigenvalues within this times the least are one.
    - `num_probes`: random vectors, of `num_hvps` products each, that estimate how often an
      eigenvalue is repeated (`Cluster.copies`), to about sqrt(2 / (copies * num_probes)). 0: none.

    >>> import ridgerider as rr
    >>> curvatures = jnp.concatenate([jnp.full(30, -1.0), jnp.linspace(-0.5, 1.0, 70)])
    >>> def loss(x, curvatures):
    ...     return curvatures @ x**2 / 2
    >>> problem = rr.Problem(loss, jnp.full(100, 0.1), curvatures)
    >>> look = rr.NetworkSpectrum(k=1, num_hvps=20, num_probes=4)
    >>> cluster = look(problem, problem.x0, jax.random.key(0)).clusters()[0]
    >>> round(cluster.eigenvalue, 3), 20 < cluster.copies < 40
    (-1.0, True)
    """

    k: int = eqx.field(static=True, default=8)
    num_hvps: int = eqx.field(static=True, default=30)
    tolerance: Number = 0.1
    cluster_tolerance: Number = 0.02
    num_probes: int = eqx.field(static=True, default=0)

    def __check_init__(self) -> None:
        check_count("k", self.k)
        check_count("num_hvps", self.num_hvps, self.k)
        check_count("num_probes", self.num_probes, 0)
        for name in ("tolerance", "cluster_tolerance"):
            check_fraction(name, getattr(self, name))

    @eqx.filter_jit
    def __call__(self, problem: Problem, x: Vector, key: PRNGKeyArray) -> Spectrum:
        k = min(self.k, problem.size)
        _, grad, product = problem.expanded_at(x)
        random = jax.random.rademacher(key, x.shape, x.dtype)
        start = jnp.where(jnp.linalg.norm(grad) > 0, grad, random)
        num_hvps = min(self.num_hvps, problem.size)
        space, probes = self._grow(product, start, num_hvps, key)
        ritz = space.ritz()
        residuals = space.residuals(ritz)
        least = -jnp.minimum(ritz.eigenvalues[0], 0)
        # Of no negative curvature, the largest one is what there is to compare with.
        scale = jnp.max(jnp.abs(jnp.where(ritz.is_there, ritz.eigenvalues, 0)))
        unit = jnp.where(least > 0, least, scale)
        has_converged = ritz.is_there & (residuals <= self.tolerance * unit)
        is_lowest = jnp.arange(residuals.size) == 0
        has_none = (least > 0) & ~jnp.any(has_converged & (ritz.eigenvalues < 0))
        is_good = has_converged | (is_lowest & has_none)
        chosen, is_there = _distinct(k, ritz, is_good, self.cluster_tolerance * unit)
        signs = -jnp.sign(ritz.coefficients[0, chosen])  # the first row is the gradient
        rows = (ritz.coefficients[:, chosen] * signs[None, :]).T @ space.rows
        eigenvalues = ritz.eigenvalues[chosen]
        rounding = float(jnp.finfo(x.dtype).eps) ** 0.5 * scale
        copies = None
        if probes is not None:
            copies = _copies(probes, eigenvalues, 1.5 * self.cluster_tolerance * unit, x.size)
        return Spectrum(
            eigenvalues=eigenvalues,
            eigenvectors=rows,
            labels=jnp.minimum(jnp.arange(k), jnp.maximum(jnp.sum(is_there) - 1, 0)),
            is_downhill=is_there & (eigenvalues < -rounding),
            scale=scale,
            cost=Cost(gradients=1, hvps=num_hvps * (1 + self.num_probes)),
            residuals=residuals[chosen],
            is_converged=is_there & has_converged[chosen],
            sees_copies=False,
            copies=copies,
        )

    def _grow(
        self, product: Product, start: Vector, num_hvps: int, key: PRNGKeyArray
    ) -> tuple[Rows, Ritz | None]:
        """The space from `start`, and the Ritz pairs of those from random vectors."""
        if not self.num_probes:
            return grow(product, start[None], num_hvps), None
        key = jax.random.fold_in(key, 1)
        random = jax.random.rademacher(key, (self.num_probes, start.size), start.dtype)
        # One loop over all, so that the product is compiled once.
        starts = jnp.concatenate([start[None], random])
        spaces = jax.lax.map(lambda one: grow(product, one[None], num_hvps), starts)
        first = jax.tree.map(lambda leaf: leaf[0], spaces)
        return first, jax.vmap(Rows.ritz)(jax.tree.map(lambda leaf: leaf[1:], spaces))


def _distinct(
    k: int, ritz: Ritz, is_good: Bool[Array, " m"], width: Scalar
) -> tuple[Int[Array, " k"], Bool[Array, " k"]]:
    """The pairs that stand for the first `k` clusters, and which of them there are.

    With fewer, the last one stands for those that are not there.
    """
    shares = ritz.coefficients[0] ** 2
    good = jnp.where(is_good, ritz.eigenvalues, jnp.inf)
    order = jnp.argsort(good)
    ends = jnp.where(jnp.isfinite(good[order]), good[order], jnp.finfo(good.dtype).max / 4)
    labels = cluster_labels(ends, 1.0, scale=width)
    own = labels[None, :] == jnp.arange(k)[:, None]
    own = own & is_good[order][None, :]
    best = order[jnp.argmax(jnp.where(own, shares[order][None, :], -1), axis=1)]
    is_there = jnp.any(own, axis=1)
    last = jnp.maximum(jnp.sum(is_there) - 1, 0)
    return jnp.where(is_there, best, best[last]), is_there


def _copies(
    ritz: Ritz, eigenvalues: Float[Array, " k"], width: Scalar, size: int
) -> Float[Array, " k"]:
    """The share of random vectors near each eigenvalue, times the number of parameters."""
    distances = jnp.abs(ritz.eigenvalues[:, None, :] - eigenvalues[None, :, None])
    is_near = (distances <= width) & ritz.is_there[:, None, :]
    shares = jnp.sum(jnp.where(is_near, ritz.coefficients[:, None, 0] ** 2, 0), axis=2)
    return jnp.maximum(jnp.round(jnp.mean(shares, axis=0) * size), 1)
