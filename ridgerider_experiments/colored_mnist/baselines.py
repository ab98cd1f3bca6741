"""The settings of `ridgerider_experiments.penalties` on coloured images, and an oracle.

The network has two hidden layers of 128 units, Xavier-uniform weights, zero biases and one logit.
The oracle is ERM on images without colour. V-REx and Fishr have IRM's settings, DRO and Group-DRO
those of ERM. Decays, rates and IRM's weight are those published by its authors, who chose them by
the test environment. Their networks (390 hidden units for IRM, 256 for ERM) and batches (all
images) are larger than ours.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ridgerider.problems.colored import ColoredEnvironment
from ridgerider_experiments.penalties import Data, Inputs, Layers, Training, outputs, train

IRM = Training("irm", 0.0004898536566546834, 0.00110794568, 91257.18613115903)
TRAININGS = {
    "erm": Training(),
    "irm": IRM,
    "vrex": replace(IRM, penalty="vrex"),
    "fishr": replace(IRM, penalty="fishr"),
    "dro": Training("dro"),
    "group_dro": Training("group_dro"),
    "oracle": Training(),
}


@dataclass(frozen=True)
class Trained:
    """A method's candidates, in the order of their steps, with `logits(images)` for each of them.

    Made from training environments alone.
    """

    steps: list[int]
    logits: Callable[[np.ndarray], Float[Array, "candidates examples"]]


def xavier(key: PRNGKeyArray, sizes: tuple[int, ...]) -> Layers:
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {
            "weights": (6 / (fan_in + fan_out)) ** 0.5
            * jax.random.uniform(one, (fan_in, fan_out), jnp.float32, -1, 1),
            "bias": jnp.zeros(fan_out, jnp.float32),
        }
        for one, fan_in, fan_out in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def arrays(environments: tuple[ColoredEnvironment, ...]) -> Data:
    return [(jnp.asarray(one.images), jnp.asarray(one.labels)) for one in environments]


def trained_from(
    training: Training, data: Data, key: PRNGKeyArray, *, width: int = 128, **sizes: int
) -> Layers:
    """After one step and each block of steps that follow, stacked."""
    first, key = jax.random.split(key)
    layers = xavier(first, (data[0][0][0].size, width, width, 1))
    return train(training, layers, data, key, num_first=1, **sizes)


def train_baseline(
    name: str, environments: tuple[ColoredEnvironment, ...], seed: int, **sizes: int
) -> Trained:
    """1 + num_blocks * block_size steps; a candidate after each block."""
    if is_grey := name == "oracle":
        environments = tuple(one.grey() for one in environments)
    stacked = trained_from(TRAININGS[name], arrays(environments), jax.random.key(seed), **sizes)
    steps = [1 + (block + 1) * sizes["block_size"] for block in range(sizes["num_blocks"])]
    return Trained(steps, partial(stacked_logits, is_grey, stacked))


@partial(jax.jit, static_argnums=0)
def stacked_logits(
    is_grey: bool, stacked: Layers, images: Inputs
) -> Float[Array, "candidates examples"]:
    if is_grey:
        images = jnp.repeat(images.sum(axis=1, keepdims=True), 2, axis=1)
    return jax.lax.map(lambda layers: outputs(layers, images)[:, 0], stacked)
