"""What environments agree on: scores of directions, shared features, settings to choose."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ridgerider._check import AtLeast0, Finite, checked
from ridgerider._core.problem.problem import Problem, check_params
from ridgerider._core.ride.update import unit
from ridgerider.environments._environments import Environments

NUM_BLOCKS = 10  # of examples, whose curvatures differ by sampling
KAPPA = 5.0


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
        ends = jnp.stack([one(self.eigenvalues, axis=0) for one in (jnp.argmax, jnp.argmin)])
        errors = jnp.take_along_axis(self.standard_errors, ends, axis=0)
        return self.gap / jnp.linalg.norm(errors, axis=0)


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
    check_params("params", environments.problems[0].start, params)
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
    count = problem.num_examples if problem.has_examples else 0
    if problem.rows is not None or count < 2 * NUM_BLOCKS:
        return jnp.full(len(rows), jnp.nan, rows.dtype)
    blocks = jnp.arange(count // NUM_BLOCKS * NUM_BLOCKS).reshape(-1, NUM_BLOCKS).T

    def curvatures(block: Int[Array, " size"]) -> Float[Array, " k"]:
        images = jax.vmap(problem.on_rows(block[None]).hvp_at(problem.x0))(rows)
        return jnp.sum(images * rows, axis=1)

    spread = jnp.std(jax.lax.map(curvatures, blocks), axis=0, ddof=1)
    return spread / float(np.sqrt(NUM_BLOCKS))


class SharedFeatures(eqx.Module):
    """What environments agree on among some features.

    - `signals`: c_i = mean of target * feature in environment i. For a head of two layers at zero,
      the curvature along features w is proportional to -c_i . w.
    - `projection`: onto the features whose signals agree; put it into the featurizer.
    - `noise`: the length that the differences of signals would have by sampling alone. With many
      features it exceeds the differences themselves, and what is projected out is noise.
    - `sizes`: of the differences, along the directions that are projected out, largest first.

    >>> features = jnp.array([[1.0, 2.0]]), jnp.array([[1.0, 0.0]])
    >>> shared_features(features, (jnp.ones(1), jnp.ones(1))).consistent.tolist()
    [1.0, 0.0]
    """

    signals: Float[Array, "environments ... m"]
    projection: Float[Array, "m m"]
    noise: Float[Array, ""]
    sizes: Float[Array, " directions"]

    @property
    def consistent(self) -> Float[Array, "... m"]:
        """The mean signal without what environments disagree on: the consistent ridge."""
        return jnp.mean(self.signals, axis=0) @ self.projection


@checked
def shared_features(
    features: Sequence[Float[Array, "examples m"]],
    targets: Sequence[Float[Array, "examples ..."]],
    *,
    noise: AtLeast0 = 0.0,
) -> SharedFeatures:
    """Project out of some features what the environments disagree on.

    **Arguments**

    - `features`: for each environment; whitened, if no direction is to count more than another.
    - `targets`: the loss's slope in the model's output at the saddle, with the sign changed: for a
      cross-entropy y - 1/2, and with several classes a column for each.
    - `noise`: smaller differences stay.

    >>> import jax.numpy as jnp
    >>> features = jnp.array([[1.0, 1.0], [1.0, 0.0]]), jnp.array([[1.0, 0.0], [1.0, 0.0]])
    >>> found = shared_features(features, (jnp.ones(2), jnp.ones(2)))
    >>> found.signals.tolist(), found.projection.tolist()
    ([[1.0, 0.5], [1.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]])
    """
    counts = [[len(one) for one in several] for several in (features, targets)]
    if len(features) < 2 or counts[0] != counts[1]:
        raise ValueError(
            "`features` and `targets` must be given for two environments or more, with as many "
            f"examples, not for {counts[0]} and {counts[1]}."
        )
    pairs = list(zip(features, targets, strict=True))
    signals = jnp.stack([jnp.einsum("n...,nm->...m", y, psi) / len(y) for psi, y in pairs])
    differences = (signals[1:] - signals[:1]).reshape(-1, signals.shape[-1])
    basis, sizes, _ = jnp.linalg.svd(differences.T, full_matrices=False)
    floor = jnp.finfo(signals.dtype).eps * jnp.max(jnp.abs(signals))
    is_out = sizes > jnp.maximum(floor, noise)
    basis = jnp.where(is_out[None], basis, 0)
    variances = [
        (jnp.mean(jnp.sum(y.reshape(len(y), -1) ** 2, axis=1) * jnp.sum(psi**2, axis=1))) / len(y)
        - jnp.sum(signal**2) / len(y)
        for (psi, y), signal in zip(pairs, signals, strict=True)
    ]
    return SharedFeatures(
        signals=signals,
        projection=jnp.eye(len(basis), dtype=signals.dtype) - basis @ basis.T,
        noise=jnp.sqrt(jnp.maximum(sum(variances[1:], variances[0]), 0)),
        sizes=jnp.where(is_out, sizes, 0),
    )


@checked
def agreement(accuracies: Sequence[float] | np.ndarray) -> float:
    """The mean accuracy minus five times the gap between environments: larger is better.

    >>> colour, shape = (0.8, 0.9), (0.73, 0.72)
    >>> agreement(shape) > agreement(colour)
    True
    """
    if not np.ndim(accuracies) or not len(accuracies):
        raise ValueError("`accuracies` must hold one for each environment.")
    return float(np.mean(accuracies) - KAPPA * round(float(np.ptp(accuracies)), 12))


@checked
def extrapolate(accuracies: Sequence[Finite], rates: Sequence[Finite], target: Finite) -> float:
    """The line of least squares through the accuracies at `rates`, at `target`.

    The accuracy of a fixed predictor is affine in the rate at which an environment mixes two
    distributions. This assumes that the shift lies on the line through the training environments.

    >>> round(extrapolate((0.8, 0.9), (0.2, 0.1), 0.9), 3)
    0.1
    """
    if len(set(rates)) < 2 or len(rates) != len(accuracies):
        raise ValueError(
            f"`rates` must be one for each of the {len(accuracies)} `accuracies`, with two that "
            f"differ, not {tuple(rates)}."
        )
    slope, level = np.polyfit(np.asarray(rates, float), np.asarray(accuracies, float), 1)
    return float(slope * target + level)
