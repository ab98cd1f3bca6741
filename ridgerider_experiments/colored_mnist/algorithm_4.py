"""The paper's Algorithm 4 on coloured images: a network 392-128 (ReLU)-10 (tanh), then the head.

After the warm start only the layer to the ten features is trained. A whole featurizer learns by
heart where environments should agree: its accuracies are equal in both on training images and apart
on others.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import ridgerider as rr
from ridgerider.environments import (
    Algorithm4,
    Environments,
    RidgeLosses,
    ride_common,
)
from ridgerider.problems.colored import ColoredEnvironment
from ridgerider_experiments.colored_mnist.baselines import (
    Images,
    Labels,
    Layers,
    Logits,
    Trained,
    arrays,
    cross_entropy,
    hidden,
    squares,
    xavier,
)
from ridgerider_experiments.colored_mnist.head import (
    NUM_FEATURES,
    NUM_STEPS,
    NUM_UNITS,
    adam,
    head_logits,
)

LAST_LAYER = {"featurizer": [False, True], "head": False}


def features_of(featurizer: Layers, images: Images) -> Float[Array, "examples m"]:
    last = featurizer[-1]
    return jnp.tanh(hidden(featurizer, images) @ last["weights"] + last["bias"][None])


def network_logits(params: dict[str, Any], images: Images) -> Logits:
    return head_logits(params["head"], features_of(params["featurizer"], images))


def network_loss(params: dict[str, Any], images: Images, labels: Labels) -> Array:
    return cross_entropy(network_logits(params, images), labels)


def initialize(key: PRNGKeyArray, num_inputs: int, num_hidden: int = 128) -> dict[str, Any]:
    first, second, third = jax.random.split(key, 3)
    shape = (NUM_FEATURES, NUM_UNITS)
    return {
        "featurizer": xavier(first, (num_inputs, num_hidden, NUM_FEATURES)),
        "head": {
            "weights": 1e-2 * jax.random.normal(second, shape, jnp.float32),
            "out": 1e-2 * jax.random.normal(third, shape[1:], jnp.float32),
        },
    }


class WarmStart(eqx.Module):
    """150 steps on the mean loss, with a linear head that is thrown away."""

    data: list[tuple[Images, Labels]]
    batch_size: int = eqx.field(static=True)

    @eqx.filter_jit
    def __call__(self, params: dict[str, Any], key: PRNGKeyArray) -> dict[str, Any]:
        first, key = jax.random.split(key)

        def loss(both: tuple[Layers, Layers], data: list[tuple[Images, Labels]]) -> Array:
            featurizer, head = both
            logits = [
                (features_of(featurizer, images) @ head[0]["weights"] + head[0]["bias"][None])[:, 0]
                for images, _ in data
            ]
            losses = [cross_entropy(z, y) for z, (_, y) in zip(logits, data, strict=True)]
            return jnp.mean(jnp.stack(losses)) + 1e-3 * squares(featurizer)

        start = (params["featurizer"], xavier(first, (NUM_FEATURES, 1)))
        trained, _ = adam(loss, start, self.data, key, self.batch_size, num_steps=150)
        return {**params, "featurizer": trained}


def ride_algorithm_4(
    environments: tuple[ColoredEnvironment, ...],
    seed: int,
    batch_size: int,
    is_consistent: bool = True,
    is_whole: bool = False,
) -> Trained:
    """Algorithm 4; without its consistency terms as a control; training the whole featurizer."""
    data = arrays(environments)
    num_inputs = int(np.prod(data[0][0].shape[1:]))
    key = jax.random.key(seed)
    problems = [rr.Problem(network_loss, initialize(key, num_inputs), *one) for one in data]
    both = Environments(problems, {"featurizer": False, "head": True})
    alone = RidgeLosses(gap=0.0, probe_correlation=0.0, probe_gap=0.0)
    losses = RidgeLosses() if is_consistent else alone
    common = Algorithm4(
        losses=losses,
        batch=rr.Batches(batch_size),
        num_pretrain=400,
        feature_rate=3e-3,
        trained=True if is_whole else LAST_LAYER,
    )
    ride = ride_common(both, common, warm_start=WarmStart(data, batch_size), seed=seed)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *ride.params[1:])
    scores = ride.scores
    return Trained(
        steps=list(range(1, NUM_STEPS + 1)),
        logits=partial(stacked_logits, stacked),
        record={
            "eigenvalues": np.asarray(scores.eigenvalues).tolist(),
            "correlations": np.asarray(scores.correlations).tolist(),
            "overlaps": np.asarray(ride.overlaps).tolist(),
            "loss": ride.loss,
            "num_dropped": ride.num_dropped,
        },
    )


@jax.jit
def stacked_logits(stacked: dict[str, Any], images: Images) -> Float[Array, "candidates examples"]:
    return jax.lax.map(lambda params: network_logits(params, images), stacked)
