"""UpdateRidge from Hessian-vector products: Rayleigh-Ritz, selected by overlap.

The subspace starts at the old direction and grows by residuals; at each size the Ritz vector (or
the cluster of them) that overlaps the old direction most is looked at, until its residual is small.
A small residual makes it an eigenpair; an overlap of at least 0.7072 makes it the right one.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ridgerider._check import check_count, check_fraction
from ridgerider._core.certificate import Certificate
from ridgerider._core.cost import Cost
from ridgerider._core.krylov import Product, Space, lowest_pairs
from ridgerider._core.problem import Number, Problem, Scalar, Vector
from ridgerider._core.spectrum import Ridge, cluster_labels
from ridgerider._core.update import Tracked, overlap_with_space


class Davidson(eqx.Module):
    """UpdateRidge, matrix-free: 10 to 30 Hessian-vector products where the paper's needs hundreds.

    A ridge that could not be computed to `tolerance` within `max_hvps` products has no certificate:
    its overlap is reported as 0, so that `Backtracking` tries a shorter step and `RidgeLost` ends
    the ride. The gap is that to the nearest other Ritz value, so an upper estimate.

    **Arguments**

    - `tolerance`: done once |H e - eigenvalue e| <= tolerance * max |eigenvalue|, with the largest
      one seen. None: spend `max_hvps` and take what comes, without a certificate.
    - `max_hvps`: per update. As many basis vectors are held, with an image for each.
    - `num_neighbours`: follow as many of the lowest other ridges along, as a warm start. They
      cost a product each per update, save more, and are found by a block solve as the ride begins.
    - `cluster_tolerance`: Ritz values within this times max |eigenvalue| count as one eigenspace,
      onto which the old direction is projected. Default: eps^(2/3).

    >>> import jax, jax.numpy as jnp
    >>> from ridgerider import DenseSpectrum
    >>> problem = Problem(lambda x: x[0] ** 3 - 2 * x[0] ** 2 - x[1] ** 2, jnp.zeros(2))
    >>> ridge = DenseSpectrum()(problem, problem.x0, jax.random.key(0)).ridge(0)
    >>> tracked = Davidson()(problem, problem.x0 + 0.1 * ridge.direction, ridge, jax.random.key(0))
    >>> round(float(tracked.overlap), 3), int(tracked.cost.hvps)
    (1.0, 1)
    """

    tolerance: Number | None = 1e-4
    max_hvps: int = eqx.field(static=True, default=60)
    num_neighbours: int = eqx.field(static=True, default=0)
    cluster_tolerance: Number | None = None

    def __check_init__(self) -> None:
        check_count("num_neighbours", self.num_neighbours, 0)
        check_count("max_hvps", self.max_hvps, self.num_neighbours + 2)
        check_fraction("tolerance", self.tolerance)
        check_fraction("cluster_tolerance", self.cluster_tolerance)

    @eqx.filter_jit
    def __call__(self, problem: Problem, x: Vector, ridge: Ridge, key: PRNGKeyArray) -> Tracked:
        product, cost = problem.hvp_at(x), Cost()
        neighbours, num_neighbours = ridge.memory, min(self.num_neighbours, problem.size - 2)
        if neighbours is None and num_neighbours > 0:
            neighbours, cost = self._find_neighbours(product, ridge.direction, num_neighbours, key)
        max_rows = min(self.max_hvps, problem.size)
        empty = Space.empty(max_rows, problem.size, x.dtype)
        space = empty.add(product, ridge.direction)
        if neighbours is not None:
            space = space.add_all(product, neighbours[: max_rows - 1])
        space, choice = self._grow(product, space)
        is_certified = choice.is_converged | (self.tolerance is None)
        new = Ridge(
            direction=choice.direction,
            eigenvalue=choice.eigenvalue,
            index=ridge.index,
            multiplicity=ridge.multiplicity,
            memory=None if neighbours is None else self._continue(space, choice, len(neighbours)),
        )
        overlap = overlap_with_space(ridge, choice.direction)
        certificate = Certificate(
            overlap=jnp.where(is_certified, overlap, 0),
            residual=jnp.linalg.norm(choice.remainder),
            gap=choice.gap,
        )
        return Tracked(new, certificate, cost + Cost(hvps=space.count))

    def _grow(self, product: Product, space: Space) -> tuple[Space, "_Choice"]:
        """Add residuals until the choice has converged or the space is full."""

        def go_on(carry: tuple[Space, _Choice]) -> Bool[Array, ""]:
            space, choice = carry
            return ~choice.is_converged & (space.count < len(space.rows))

        def step(carry: tuple[Space, _Choice]) -> tuple[Space, _Choice]:
            space, choice = carry
            space = space.add(product, choice.remainder)
            return space, self._choose(space)

        return jax.lax.while_loop(go_on, step, (space, self._choose(space)))

    def _choose(self, space: Space) -> "_Choice":
        """The old direction, the first row, projected onto the cluster it overlaps most."""
        ritz = space.ritz()
        scale = jnp.max(jnp.abs(jnp.where(ritz.is_there, ritz.eigenvalues, 0)))
        labels = cluster_labels(ritz.eigenvalues, self.cluster_tolerance, scale=scale)
        coefficients = ritz.coefficients[0]
        weights = jax.ops.segment_sum(coefficients**2, labels, len(labels))
        is_inside = labels == jnp.argmax(weights)
        mix = ritz.coefficients @ jnp.where(is_inside, coefficients, 0)
        mix = mix / jnp.linalg.norm(mix)
        direction, image = mix @ space.rows, mix @ space.images
        eigenvalue = direction @ image
        remainder = image - eigenvalue * direction
        distance = jnp.where(
            is_inside | ~ritz.is_there, jnp.inf, jnp.abs(ritz.eigenvalues - eigenvalue)
        )
        # Without a tolerance nothing converges, short of an exact eigenvector.
        allowed = (0 if self.tolerance is None else self.tolerance) * scale
        return _Choice(
            direction=direction,
            eigenvalue=eigenvalue,
            remainder=remainder,
            gap=jnp.min(distance),
            coefficients=ritz.coefficients,
            is_inside=is_inside | ~ritz.is_there,
            is_converged=jnp.linalg.norm(remainder) <= allowed,
        )

    def _find_neighbours(
        self, product: Product, direction: Vector, k: int, key: PRNGKeyArray
    ) -> tuple[Float[Array, "k n"], Cost]:
        # A warm start need not be accurate: 1 % is.
        start = jax.random.normal(key, (k, len(direction)), direction.dtype)
        pairs = lowest_pairs(product, start, k, 0.01, 20 * k, min(2 * k + 10, len(direction)))
        return pairs.rows, Cost(hvps=pairs.num_hvps)

    def _continue(self, space: Space, choice: "_Choice", num: int) -> Float[Array, "k n"]:
        """The Ritz vectors that lie most in the span of the old ridge and its old neighbours."""
        weights = jnp.sum(choice.coefficients[: num + 1] ** 2, axis=0)
        order = jnp.argsort(jnp.where(choice.is_inside, 0, -weights))[:num]
        return choice.coefficients[:, order].T @ space.rows


class _Choice(eqx.Module):
    direction: Vector
    eigenvalue: Scalar
    remainder: Vector
    gap: Scalar
    coefficients: Float[Array, "m m"]
    is_inside: Bool[Array, " m"]
    is_converged: Bool[Array, ""]
