"""What Ridge Rider is compared with in several environments: ERM, IRM and others.

All are one perceptron (ReLU) trained by Adam on batches of the training environments, with a
penalty on the squares of all parameters:

    mean_i L_i + decay |params|^2 + weight * penalty

- ERM: no penalty.
- IRM: the mean over environments of (d L_i(s * outputs) / d s)^2 at s = 1.
- V-REx: the variance of L_i over environments.
- Fishr: the squared distance of the environments from their mean in the variances of the gradients
  of single examples by the last layer, summed over environments.
- CORAL: the squared distance between two environments in means and covariances of the last hidden
  layer.
- DRO: the worst environment's loss in the place of the mean.
- Group-DRO: environments weighted by q_i, multiplied by exp(0.01 L_i) at each step, as published.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

Layers = list[dict[str, Array]]
Inputs = Float[Array, "examples ..."]
Outputs = Float[Array, "examples classes"]  # or one column for two classes
Labels = Int[Array, " examples"]
Data = list[tuple[Inputs, Labels]]  # of each environment


class Training(eqx.Module):
    """One method's settings."""

    penalty: str = "none"
    learning_rate: float = 1e-3
    decay: float = 1e-3
    weight: float | Array = 0.0
    late_from: int = 190  # steps before which the penalty's weight is 1


def perceptron(key: PRNGKeyArray, sizes: tuple[int, ...]) -> Layers:
    """Xavier-uniform weights and zero biases."""
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {
            "weights": (6 / (fan_in + fan_out)) ** 0.5
            * jax.random.uniform(one, (fan_in, fan_out), jnp.float32, -1, 1),
            "bias": jnp.zeros(fan_out, jnp.float32),
        }
        for one, fan_in, fan_out in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def hidden(layers: Layers, inputs: Inputs) -> Float[Array, "examples width"]:
    """What the last layer sees."""
    values = inputs.reshape(len(inputs), -1)
    for layer in layers[:-1]:
        values = jax.nn.relu(values @ layer["weights"] + layer["bias"][None])
    return values


def outputs(layers: Layers, inputs: Inputs) -> Outputs:
    return hidden(layers, inputs) @ layers[-1]["weights"] + layers[-1]["bias"][None]


def cross_entropy(outputs: Outputs | Float[Array, " examples"], labels: Labels) -> Array:
    """Of logits, or of one column of them for two classes."""
    if outputs.ndim == 1 or outputs.shape[1] == 1:
        logits = outputs.reshape(-1)
        return jnp.mean(jax.nn.softplus(logits) - labels.astype(logits.dtype) * logits)
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(outputs), labels[:, None], axis=1))


def squares(params: Any) -> Array:
    return jnp.sum(jnp.stack([jnp.sum(leaf**2) for leaf in jax.tree.leaves(params)]))


def random_rows(data: Data, key: PRNGKeyArray, size: int) -> Data:
    """Some rows of each environment, drawn with replacement."""
    keys, chosen = jax.random.split(key, len(data)), []
    for one, (inputs, labels) in zip(keys, data, strict=True):
        rows = jax.random.randint(one, (size,), 0, len(labels))
        chosen.append((inputs[rows], labels[rows]))
    return chosen


def objective(
    training: Training, layers: Layers, data: Data, step: Array, past: float | Array = 0.0
) -> tuple[Array, Float[Array, " environments"]]:
    """What is minimised, and each environment's loss; `past` is the sum of those before."""
    inner = [hidden(layers, inputs) for inputs, _ in data]
    seen = [outputs(layers, inputs) for inputs, _ in data]
    labels = [y for _, y in data]
    losses = jnp.stack([cross_entropy(z, y) for z, y in zip(seen, labels, strict=True)])
    decay = training.decay * squares(layers)
    if training.penalty == "dro":
        return jnp.max(losses) + decay, losses
    if training.penalty == "group_dro":
        weights = jax.nn.softmax(0.01 * (past + jax.lax.stop_gradient(losses)))
        return weights @ losses + decay, losses
    loss = jnp.mean(losses) + decay
    if training.penalty == "irm":
        slope = jax.grad(lambda scale, z, y: cross_entropy(scale * z, y))
        one = jnp.ones((), losses.dtype)
        slopes = [slope(one, z, y) for z, y in zip(seen, labels, strict=True)]
        penalty = jnp.mean(jnp.stack(slopes) ** 2)
    elif training.penalty == "vrex":
        penalty = jnp.var(losses)
    elif training.penalty == "fishr":
        each = zip(inner, seen, labels, strict=True)
        variances = jnp.stack([gradient_variance(*one) for one in each])
        penalty = jnp.sum((variances - jnp.mean(variances, axis=0)[None]) ** 2)
    elif training.penalty == "coral":
        means, spreads = zip(*((jnp.mean(h, axis=0), jnp.cov(h.T)) for h in inner), strict=True)
        penalty = sum((jnp.mean((a - b) ** 2) for a, b in (means, spreads)), jnp.zeros(()))
    else:
        return loss, losses
    weight = jnp.where(step >= training.late_from, training.weight, 1.0).astype(loss.dtype)
    # Divided by the weight, so that the size of a step does not jump with it.
    return (loss + weight * penalty) / jnp.maximum(weight, 1), losses


def gradient_variance(
    inner: Float[Array, "examples width"], outputs: Outputs, labels: Labels
) -> Float[Array, "classes m"]:
    """Of the gradients of single examples by the last layer's weights and bias."""
    if outputs.shape[1] == 1:
        errors = jax.nn.sigmoid(outputs) - labels[:, None].astype(outputs.dtype)
    else:
        errors = jax.nn.softmax(outputs) - jax.nn.one_hot(labels, outputs.shape[1])
    inner = jnp.concatenate([inner, jnp.ones_like(inner[:, :1])], axis=1)
    return (errors**2).T @ inner**2 / len(inner) - (errors.T @ inner / len(inner)) ** 2


@eqx.filter_jit
def train(
    training: Training,
    layers: Layers,
    data: Data,
    key: PRNGKeyArray,
    *,
    batch_size: int,
    num_blocks: int,
    block_size: int,
    num_first: int = 0,
) -> Layers:
    """The parameters after each block of steps, stacked; `num_first` steps come before them."""
    optimizer = optax.adam(training.learning_rate)

    def step(carry: tuple, index: Array) -> tuple:
        layers, state, past = carry
        batch = random_rows(data, jax.random.fold_in(key, index), batch_size)

        def loss(layers: Layers) -> tuple[Array, Array]:
            return objective(training, layers, batch, index, past)

        grads, losses = jax.grad(loss, has_aux=True)(layers)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            updates, state = optimizer.update(grads, state)
        return (jax.tree.map(jnp.add, layers, updates), state, past + losses), None

    def block(carry: tuple, number: Array) -> tuple:
        steps = num_first + number * block_size + jnp.arange(block_size)
        carry, _ = jax.lax.scan(step, carry, steps)
        return carry, carry[0]

    carry = (layers, optimizer.init(layers), jnp.zeros(len(data), jnp.float32))
    carry, _ = jax.lax.scan(step, carry, jnp.arange(num_first))
    return jax.lax.scan(block, carry, jnp.arange(num_blocks))[1]
