"""What environments agree on among some features, and a projection that leaves out the rest."""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ridgerider._check import AtLeast0, checked


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
    if len(features) < 2 or len(features) != len(targets):
        raise ValueError(
            "`features` and `targets` must be given for two environments or more, not for "
            f"{len(features)} and {len(targets)}."
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
