r"""The paper's Algorithm 4: train the featurizer until environments share a ridge, and ride it.

Two losses of the featurizer and a candidate direction e, with C the correlation (cosine), q_i =
e' H_i e, and H_i in the ridden part:

    L1 = sum_i [ b1 C(H_i e, e) + b2 q_i + b3 L_i ] + gap * |q_1 - q_2|
    L2 = b4 mean_u |C1(u)^2 - C2(u)^2| / mean_u [C1(u)^2 + b5 C2(u)^2]
         + b6 mean_u |u' (H_1 - H_2) u| / mean_u [|u' H_1 u| + |u' H_2 u|]

over random unit vectors u, e normalised. This is not the paper's text to the letter. There the
signs of b1 and b2 are those for the Hessian of -L: minimised as printed they lead to positive
curvature; e' H e is not normalised, so unbounded; the denominator of L2 has H_1 twice; and L2 is a
mean of ratios, whose gradients explode where u' H u is near 0. `is_literal` gives the printed form.

With more than two environments |q_1 - q_2| and its like are means over all pairs.
"""

import itertools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ridgerider._core.problem.problem import Scalar, Vector
from ridgerider._core.ride.update import unit
from ridgerider.environments._environments import Environments

PerEnvironment = Float[Array, " environments"]


class RidgeLosses(eqx.Module):
    """L1 and L2 with their weights, the paper's beta.

    **Arguments**

    - `correlation`, `curvature`, `loss`: b1, b2, b3.
    - `gap`: of the difference of curvatures in L1; the direction stays on its ridge only while
      `correlation` exceeds gap * |q_1 - q_2|.
    - `probe_correlation`, `second`, `probe_gap`: b4, b5, b6.
    - `is_literal`: the forms as printed, where `gap` and `probe_gap` are 1; see above.

    >>> import jax.numpy as jnp
    >>> import ridgerider as rr
    >>> def loss(x, steep):
    ...     return -steep * x[0] ** 2 / 2 - x[1] ** 2 / 2
    >>> both = Environments([rr.Problem(loss, jnp.zeros(2), steep) for steep in (3.0, 1.0)])
    >>> losses = RidgeLosses(correlation=1.0, curvature=1.0, gap=1.0)
    >>> float(losses.ridge(both, both.start, jnp.array([1.0, 0.0])))  # -1 - 3 - 1 - 1 + 2
    -4.0
    >>> float(losses.ridge(both, both.start, jnp.array([0.0, 1.0])))  # -1 - 1 - 1 - 1
    -4.0
    """

    correlation: float = 30.0
    curvature: float = 1.0
    loss: float = 1.0
    gap: float = 150.0
    probe_correlation: float = 1.0
    second: float = 1.0
    probe_gap: float = 30.0
    is_literal: bool = eqx.field(static=True, default=False)

    def ridge(self, environments: Environments, params: PyTree, direction: Vector) -> Scalar:
        """L1: small for a consistent ridge with low loss."""
        e = direction if self.is_literal else unit(direction)
        images = environments.hvps(params, e[None])[:, 0]
        return self._ridge(images, e, _losses(environments, params))

    def agreement(
        self, environments: Environments, params: PyTree, probes: Float[Array, "k r"]
    ) -> Scalar:
        """L2: 0 if the environments' Hessians are equal."""
        return self._agreement(environments.hvps(params, probes), probes)

    def both(
        self,
        environments: Environments,
        params: PyTree,
        direction: Vector,
        probes: Float[Array, "k r"],
    ) -> Scalar:
        """L1 + L2 for the price of one."""
        e = direction if self.is_literal else unit(direction)
        images = environments.hvps(params, jnp.concatenate([e[None], probes]))
        first = self._ridge(images[:, 0], e, _losses(environments, params))
        return first + self._agreement(images[:, 1:], probes)

    def _ridge(self, images: Float[Array, "environments r"], e: Vector, losses: Array) -> Scalar:
        curvatures, correlations = images @ e, _correlations(images, e)
        gap = _pairs(curvatures, lambda one, two: jnp.abs(one - two))
        if self.is_literal:
            down, gap = -1.0, gap / (e @ e)
        else:
            down, gap = 1.0, self.gap * gap
        terms = (
            down * self.correlation * correlations
            + down * self.curvature * curvatures
            + self.loss * losses
        )
        return jnp.sum(terms) + gap

    def _agreement(
        self, images: Float[Array, "environments k r"], probes: Float[Array, "k r"]
    ) -> Scalar:
        squares = jax.vmap(_correlations, (1, 0), 1)(images, probes) ** 2
        curvatures = jnp.einsum("ikr,kr->ik", images, probes)

        def apart(one: Array, two: Array) -> Array:
            return jnp.abs(one - two)

        differences = _pairs(squares, apart), _pairs(curvatures, apart)
        first = _pairs(squares, lambda one, two: one + self.second * two)
        if self.is_literal:
            first = _pairs(squares, lambda one, two: one + self.second * one)
        second = _pairs(curvatures, lambda one, two: jnp.abs(one) + jnp.abs(two))
        if self.is_literal:
            return jnp.mean(
                self.probe_correlation * differences[0] / first + differences[1] / second
            )
        return self.probe_correlation * _share(differences[0], first) + self.probe_gap * _share(
            differences[1], second
        )


def _losses(environments: Environments, params: PyTree) -> PerEnvironment:
    return jnp.stack([one.value(one.x0) for one in environments.ridden(params)])


def _correlations(images: Float[Array, "environments r"], e: Vector) -> PerEnvironment:
    # The floor keeps the gradient finite where the image vanishes.
    lengths = jnp.sqrt(jnp.sum(images**2, axis=1) * (e @ e) + jnp.finfo(e.dtype).tiny ** 0.5)
    return images @ e / lengths


def _pairs(values: Array, of: Callable[[Array, Array], Array]) -> Array:
    """The mean of `of` over all pairs of environments."""
    pairs = list(itertools.combinations(range(len(values)), 2))
    return jnp.mean(jnp.stack([of(values[i], values[j]) for i, j in pairs]), axis=0)


def _share(differences: Array, sums: Array) -> Scalar:
    return jnp.mean(differences) / (jnp.mean(sums) + jnp.finfo(sums.dtype).tiny ** 0.5)
