"""What both ways of riding on coloured images share.

The ridden part is a head of two layers on ten features, near its saddle at zero:

    logit = a . tanh(W' features),   W: 10 x 4,  a: 4,   44 parameters
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from ridgerider_experiments.colored_mnist.baselines import (
    Images,
    Labels,
    Logits,
    random_rows,
)

NUM_FEATURES, NUM_UNITS = 10, 4
NUM_STEPS = 9  # along the ridge, as in the paper


def head_logits(head: dict[str, Array], features: Float[Array, "examples m"]) -> Logits:
    return jnp.tanh(features @ head["weights"]) @ head["out"]


def adam(
    loss: Callable[[Any, list[tuple[Images, Labels]]], Array],
    params: Any,
    data: list[tuple[Images, Labels]],
    key: PRNGKeyArray,
    batch_size: int,
    num_steps: int,
) -> Any:
    """Adam at its usual rate on batches of all environments."""
    optimizer = optax.adam(1e-3)

    def step(carry: tuple, index: Array) -> tuple:
        params, state = carry
        batch = random_rows(data, jax.random.fold_in(key, index), batch_size)
        grads = jax.grad(loss)(params, batch)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            updates, state = optimizer.update(grads, state)
        return (jax.tree.map(jnp.add, params, updates), state), None

    return jax.lax.scan(step, (params, optimizer.init(params)), jnp.arange(num_steps))[0][0]
