"""What environments agree on among some features, and a projection that leaves out the rest."""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class SharedFeatures(eqx.Module):
    """What environments agree on among some features.

    - `signals`: c_i = mean of target * feature in environment i. For a head of two layers at zero,
      the curvature along features w is proportional to -c_i . w.
    - `projection`: onto the features whose signals agree; put it into the featurizer.
    - `noise`: the length that the differences of signals would have by sampling alone. With many
      features it exceeds the differences themselves, and what is projected out is noise.

    >>> features = jnp.array([[1.0, 2.0]]), jnp.array([[1.0, 0.0]])
    >>> shared_features(features, (jnp.ones(1), jnp.ones(1))).consistent.tolist()
    [1.0, 0.0]
    """

    signals: Float[Array, "environments m"]
    projection: Float[Array, "m m"]
    noise: Float[Array, ""]

    @property
    def consistent(self) -> Float[Array, " m"]:
        """The mean signal without what environments disagree on: the consistent ridge."""
        return self.projection @ jnp.mean(self.signals, axis=0)


def shared_features(
    features: Sequence[Float[Array, "examples m"]], targets: Sequence[Float[Array, " examples"]]
) -> SharedFeatures:
    """Project out of some features what the environments disagree on.

    **Arguments**

    - `features`: for each environment; whitened, if no direction is to count more than another.
    - `targets`: the loss's slope in the model's output at the saddle, with the sign changed: for a
      cross-entropy y - 1/2.

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
    parts = [y[:, None] * psi for psi, y in zip(features, targets, strict=True)]
    signals = jnp.stack([jnp.mean(part, axis=0) for part in parts])
    basis, sizes, _ = jnp.linalg.svd((signals[1:] - signals[:1]).T, full_matrices=False)
    floor = jnp.finfo(signals.dtype).eps * jnp.max(jnp.abs(signals))
    basis = jnp.where((sizes > floor)[None], basis, 0)
    variances = [jnp.sum(jnp.var(part, axis=0)) / len(part) for part in parts]
    return SharedFeatures(
        signals=signals,
        projection=jnp.eye(len(basis), dtype=signals.dtype) - basis @ basis.T,
        noise=jnp.sqrt(sum(variances[1:], variances[0])),
    )
