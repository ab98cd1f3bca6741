"""How consistent directions are: their scores in each environment."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ridgerider._check import checked
from ridgerider._core.problem.problem import Problem
from ridgerider._core.ride.update import unit
from ridgerider.environments._environments import Environments

NUM_BLOCKS = 10  # of examples, whose curvatures differ by sampling


class Consistency(eqx.Module):
    """Scores of `k` directions in each environment.

    - `eigenvalues`: the curvature e' H_i e.
    - `correlations`: C(H_i e, e), -1 if e is a ridge of environment i.
    - `residuals`: |H_i e - (e' H_i e) e|.
    - `standard_errors`: of the eigenvalues, from the spread over ten blocks of examples; NaN if the
      data cannot be cut.

    >>> import jax.numpy as jnp
    >>> scores = Consistency(*(jnp.array([[-2.0], [-1.0]]),) * 3, jnp.array([[0.3], [0.4]]))
    >>> scores.relative_gap.round(3).tolist(), scores.signal_to_noise.tolist()
    ([0.667], [2.0])
    """

    eigenvalues: Float[Array, "environments k"]
    correlations: Float[Array, "environments k"]
    residuals: Float[Array, "environments k"]
    standard_errors: Float[Array, "environments k"]

    @property
    def gap(self) -> Float[Array, " k"]:
        """The largest difference between two environments."""
        return jnp.max(self.eigenvalues, axis=0) - jnp.min(self.eigenvalues, axis=0)

    @property
    def relative_gap(self) -> Float[Array, " k"]:
        """The gap over the mean |eigenvalue|: 0 for a consistent ridge."""
        return self.gap / jnp.abs(jnp.mean(self.eigenvalues, axis=0))

    @property
    def signal_to_noise(self) -> Float[Array, " k"]:
        """The gap over its standard error: up to about 2 the environments may well agree."""
        high, low = jnp.argmax(self.eigenvalues, axis=0), jnp.argmin(self.eigenvalues, axis=0)
        errors = [
            jnp.take_along_axis(self.standard_errors, which[None], axis=0)[0]
            for which in (high, low)
        ]
        return self.gap / jnp.hypot(*errors)


@checked
def consistency(
    environments: Environments, params: PyTree, directions: Float[Array, "k r"]
) -> Consistency:
    """Score directions of the ridden part at `params`.

    >>> import jax.numpy as jnp
    >>> import ridgerider as rr
    >>> def loss(x, data):
    ...     return -jnp.mean(data * x[0] ** 2) - x[1] ** 2
    >>> data = jnp.array([1.0, 3.0] * 10), jnp.array([1.0, 1.0] * 10)
    >>> both = Environments([rr.Problem(loss, jnp.zeros(2), one) for one in data])
    >>> scores = consistency(both, both.start, jnp.eye(2))
    >>> scores.eigenvalues.round(6).tolist(), scores.relative_gap.round(3).tolist()
    ([[-4.0, -2.0], [-2.0, -2.0]], [0.667, 0.0])
    """
    return _consistency(environments, params, directions)


@eqx.filter_jit
def _consistency(
    environments: Environments, params: PyTree, directions: Float[Array, "k r"]
) -> Consistency:
    rows = jax.vmap(unit)(directions)
    images = environments.hvps(params, rows)
    eigenvalues = jnp.einsum("ikr,kr->ik", images, rows)
    lengths = jnp.linalg.norm(images, axis=2)
    remainders = images - eigenvalues[:, :, None] * rows[None]
    errors = [_standard_errors(one, rows) for one in environments.ridden(params)]
    return Consistency(
        eigenvalues=eigenvalues,
        correlations=eigenvalues / jnp.where(lengths > 0, lengths, 1),
        residuals=jnp.linalg.norm(remainders, axis=2),
        standard_errors=jnp.stack(errors),
    )


def _standard_errors(problem: Problem, rows: Float[Array, "k r"]) -> Float[Array, " k"]:
    """Curvatures are means over examples, so their blocks' means tell how sure they are."""
    try:
        count = problem.num_examples
    except ValueError:
        count = 0
    if problem.rows is not None or count < 2 * NUM_BLOCKS:
        return jnp.full(len(rows), jnp.nan, rows.dtype)
    blocks = jnp.arange(count // NUM_BLOCKS * NUM_BLOCKS).reshape(-1, NUM_BLOCKS).T

    def curvatures(block: Int[Array, " size"]) -> Float[Array, " k"]:
        images = jax.vmap(problem.on_rows(block[None]).hvp_at(problem.x0))(rows)
        return jnp.sum(images * rows, axis=1)

    spread = jnp.std(jax.lax.map(curvatures, blocks), axis=0, ddof=1)
    return spread / float(np.sqrt(NUM_BLOCKS))
