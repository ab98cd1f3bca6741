"""What Ridge Rider is compared with on coloured images: ERM, IRM and others, and an oracle.

All are one perceptron (ReLU, Xavier-uniform weights, zero biases) trained by Adam on batches of the
training environments, with a penalty on the squares of all parameters:

    mean_i L_i + decay |params|^2 + weight * penalty

- ERM: no penalty. The oracle is ERM on images without colour.
- IRM: the mean over environments of (d L_i(s * logits) / d s)^2 at s = 1.
- V-REx: the variance of L_i over environments, with IRM's settings.
- Fishr: the squared distance of the environments from their mean in the variances of the gradients
  of single examples by the last layer, with IRM's settings, as published for these images.
- DRO: the worst environment's loss in the place of the mean.
- Group-DRO: environments weighted by q_i, multiplied by exp(0.01 L_i) at each step, as published.

Decays, rates and IRM's weight are those published by its authors, who chose them by the test
environment. Their networks (390 hidden units for IRM, 256 for ERM) and batches (all images) are
larger than ours.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ridgerider.problems.colored import ColoredEnvironment

Layers = list[dict[str, Array]]
Logits = Float[Array, " examples"]
Images = Float[Array, "examples ..."]
Labels = Int[Array, " examples"]
Data = list[tuple[Images, Labels]]  # of each environment


@dataclass(frozen=True)
class Training:
    """One baseline's settings."""

    penalty: str = "none"
    num_hidden: int = 128
    learning_rate: float = 1e-3
    decay: float = 1e-3
    weight: float = 0.0
    late_from: int = 190  # steps before which the penalty's weight is 1
    is_grey: bool = False


IRM = Training("irm", 128, 0.0004898536566546834, 0.00110794568, 91257.18613115903)
TRAININGS = {
    "erm": Training(),
    "irm": IRM,
    "vrex": replace(IRM, penalty="vrex"),
    "fishr": replace(IRM, penalty="fishr"),
    "dro": Training("dro"),
    "group_dro": Training("group_dro"),
    "oracle": Training(is_grey=True),
}


@dataclass(frozen=True)
class Trained:
    """A method's candidates, in the order of their steps, with `logits(images)` for each of them.

    Made from training environments alone.
    """

    steps: list[int]
    logits: Callable[[np.ndarray], Float[Array, "candidates examples"]]


def perceptron(layers: Layers, images: Images) -> Logits:
    return (hidden(layers, images) @ layers[-1]["weights"] + layers[-1]["bias"][None])[:, 0]


def hidden(layers: Layers, images: Images) -> Float[Array, "examples width"]:
    """What the last layer sees."""
    values = images.reshape(len(images), -1)
    for layer in layers[:-1]:
        values = jax.nn.relu(values @ layer["weights"] + layer["bias"][None])
    return values


def cross_entropy(logits: Logits, labels: Labels) -> Array:
    return jnp.mean(jax.nn.softplus(logits) - labels.astype(logits.dtype) * logits)


def squares(params: Any) -> Array:
    return jnp.sum(jnp.stack([jnp.sum(leaf**2) for leaf in jax.tree.leaves(params)]))


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


def random_rows(data: Data, key: PRNGKeyArray, size: int) -> Data:
    """Some rows of each environment, drawn with replacement."""
    keys = jax.random.split(key, len(data))
    chosen = []
    for one, (images, labels) in zip(keys, data, strict=True):
        rows = jax.random.randint(one, (size,), 0, len(labels))
        chosen.append((images[rows], labels[rows]))
    return chosen


def objective(
    training: Training, layers: Layers, data: list, step: Array, past: float | Array = 0.0
) -> tuple[Array, Float[Array, " environments"]]:
    """What is minimised, and each environment's loss; `past` is the sum of those before."""
    logits = [perceptron(layers, images) for images, _ in data]
    losses = jnp.stack([cross_entropy(z, y) for z, (_, y) in zip(logits, data, strict=True)])
    decay = training.decay * squares(layers)
    if training.penalty == "dro":
        return jnp.max(losses) + decay, losses
    if training.penalty == "group_dro":
        weights = jax.nn.softmax(0.01 * (past + jax.lax.stop_gradient(losses)))
        return weights @ losses + decay, losses
    loss = jnp.mean(losses) + decay
    if training.penalty == "irm":
        slopes = [
            jax.grad(lambda scale, z=z, y=y: cross_entropy(scale * z, y))(jnp.ones((), z.dtype))
            for z, (_, y) in zip(logits, data, strict=True)
        ]
        penalty = jnp.mean(jnp.stack(slopes) ** 2)
    elif training.penalty == "vrex":
        penalty = jnp.var(losses)
    elif training.penalty == "fishr":
        variances = jnp.stack(
            [gradient_variance(layers, z, one) for z, one in zip(logits, data, strict=True)]
        )
        penalty = jnp.sum((variances - jnp.mean(variances, axis=0)[None]) ** 2)
    else:
        return loss, losses
    weight = jnp.where(step >= training.late_from, training.weight, 1.0).astype(loss.dtype)
    # Divided by the weight, so that the size of a step does not jump with it.
    return (loss + weight * penalty) / jnp.maximum(weight, 1), losses


def gradient_variance(
    layers: Layers, logits: Logits, data: tuple[Images, Labels]
) -> Float[Array, " m"]:
    """Of the gradients of single examples by the last layer's weights and bias."""
    images, labels = data
    slope = jax.nn.sigmoid(logits) - labels.astype(logits.dtype)
    inner = hidden(layers, images)
    inner = jnp.concatenate([inner, jnp.ones_like(inner[:, :1])], axis=1)
    return jnp.var(slope[:, None] * inner, axis=0)


@eqx.filter_jit
def train(
    training: Training,
    data: Data,
    key: PRNGKeyArray,
    batch_size: int,
    num_blocks: int,
    block_size: int,
) -> Layers:
    """The parameters after one step and after each block of steps that follow, stacked."""
    optimizer = optax.adam(training.learning_rate)
    num_inputs = int(np.prod(data[0][0].shape[1:]))
    first, key = jax.random.split(key)
    layers = xavier(first, (num_inputs, training.num_hidden, training.num_hidden, 1))

    def step(carry: tuple, index: Array) -> tuple:
        layers, state, past = carry
        batch = random_rows(data, jax.random.fold_in(key, index), batch_size)

        def loss(layers: Layers) -> tuple[Array, Array]:
            return objective(training, layers, batch, index, past)

        grads, losses = jax.grad(loss, has_aux=True)(layers)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            updates, state = optimizer.update(grads, state)
        return (jax.tree.map(jnp.add, layers, updates), state, past + losses), None

    def block(carry: tuple, index: Array) -> tuple:
        steps = index * block_size + 1 + jnp.arange(block_size)
        carry, _ = jax.lax.scan(step, carry, steps)
        return carry, carry[0]

    none = jnp.zeros(len(data), jnp.float32)
    carry, _ = step((layers, optimizer.init(layers), none), jnp.array(0))
    return jax.lax.scan(block, carry, jnp.arange(num_blocks))[1]


def train_baseline(
    training: Training,
    environments: tuple[ColoredEnvironment, ...],
    seed: int,
    *,
    batch_size: int,
    num_blocks: int,
    block_size: int,
) -> Trained:
    """1 + num_blocks * block_size steps; a candidate after each block."""
    if training.is_grey:
        environments = tuple(one.grey() for one in environments)
    data, key = arrays(environments), jax.random.key(seed)
    stacked = train(training, data, key, batch_size, num_blocks, block_size)
    return Trained(
        steps=[1 + (block + 1) * block_size for block in range(num_blocks)],
        logits=partial(stacked_logits, training.is_grey, stacked),
    )


@partial(jax.jit, static_argnums=0)
def stacked_logits(
    is_grey: bool, stacked: Layers, images: Images
) -> Float[Array, "candidates examples"]:
    if is_grey:
        images = jnp.repeat(images.sum(axis=1, keepdims=True), 2, axis=1)
    return jax.lax.map(lambda layers: perceptron(layers, images), stacked)
