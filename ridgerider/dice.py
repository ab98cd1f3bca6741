r"""Loaded DiCE: gradients, Hessians and Hessian-vector products of a return, from samples.

With log pi_t the log-probability of the action taken at time t and A_t its advantage (no
derivatives flow through it), each trajectory contributes

    J = sum_t gamma^t [box(w_t) - box(v_t)] A_t,    box(x) = exp(x - stop_gradient(x))
    w_t = lambda w_{t-1} + log pi_t,                v_t = w_t - log pi_t = lambda w_{t-1}

and minus the mean over trajectories is the loss. Its *value* is always 0; only its derivatives mean
something, so never compare values of it. With lambda = 1 and tau = 1 all derivatives are unbiased;
less of either gives up some of that for less variance. Advantages are generalised ones,

    A_t = sum_k (gamma tau)^k delta_{t+k},    delta_t = r_t + gamma V_{t+1} - V_t.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from ridgerider._check import Share, check_fields, checked, told_of

Times = Float[Array, "samples time"]  # a number for each sample and time


class Trajectories(NamedTuple):
    """What was sampled: a row for each trajectory, a column for each time.

    `mask` is 1 while the trajectory lasts and 0 afterwards. `states` is whatever the environment's
    `log_probabilities` and `values` need to know.

    >>> from ridgerider.problems.sampled_tree import TreeEnvironment, make_tree
    >>> environment = TreeEnvironment(make_tree(3, seed=3))
    >>> some = environment.sample(jnp.zeros(8), jax.random.key(0), 5)
    >>> some.rewards.shape, bool((some.rewards.sum(1) >= -1).all())
    ((5, 3), True)
    """

    states: PyTree
    actions: Int[Array, "samples time"]
    rewards: Times
    mask: Times


class Environment(Protocol):
    """What you write to use this on your own environment: two pure functions.

    - `sample(params, key, num_samples) -> Trajectories`: act, and say what happened.
    - `log_probabilities(params, trajectories)`: of the actions taken, shaped as `actions`;
      differentiable in `params`.
    """

    def sample(self, params: PyTree, key: PRNGKeyArray, num_samples: int) -> Trajectories: ...

    def log_probabilities(self, params: PyTree, trajectories: Trajectories) -> Times: ...


class Dice(eqx.Module):
    """The settings of Loaded DiCE: `discount` gamma, `decay` lambda, `tau` of the advantages.

    >>> Dice(discount=0.9).decay
    1.0
    """

    discount: Share = 1.0
    decay: Share = 1.0
    tau: Share = 1.0

    __check_init__ = check_fields

    def advantages(self, trajectories: Trajectories, values: Times) -> Times:
        """Generalised advantages; `values` are the value function's at each time.

        >>> rewards, mask = jnp.array([[0.0, 3.0]]), jnp.ones((1, 2))
        >>> paths = Trajectories(None, jnp.zeros((1, 2), int), rewards, mask)
        >>> Dice(discount=0.5).advantages(paths, jnp.zeros((1, 2))).tolist()
        [[1.5, 3.0]]
        """
        rewards, mask = trajectories.rewards, trajectories.mask
        values = jnp.where(mask > 0, values, 0)
        after = jnp.pad(values[:, 1:], ((0, 0), (0, 1)))
        deltas = (rewards + self.discount * after - values) * mask

        return _summed(deltas, self.discount * self.tau, is_reversed=True)

    def contributions(
        self, log_probabilities: Times, advantages: Times, mask: Times
    ) -> Float[Array, " samples"]:
        """What each trajectory adds to the loss: zero, with the right derivatives."""
        log_probabilities = jnp.where(mask > 0, log_probabilities, 0)

        with_now = _summed(log_probabilities, self.decay)
        time = jnp.arange(mask.shape[1], dtype=mask.dtype)
        weight = jnp.asarray(self.discount, mask.dtype) ** time[None] * mask
        gain = _box(with_now) - _box(with_now - log_probabilities)
        gain = gain * jax.lax.stop_gradient(advantages) * weight
        return -jnp.sum(gain, axis=1)


def _summed(x: Times, factor: Array | float, is_reversed: bool = False) -> Times:
    """The sum so far, or from here on, in which what is one step away counts `factor` times."""

    def step(total: Array, now: Array) -> tuple[Array, Array]:
        return (total := now + factor * total), total

    start = jnp.zeros(len(x), x.dtype)
    return jax.lax.scan(step, start, x.T, reverse=is_reversed)[1].T


def _box(x: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.exp(x - jax.lax.stop_gradient(x))


class SampledMean(NamedTuple):
    """A sampled mean and its standard error, entry by entry.

    >>> SampledMean(jnp.ones(2), jnp.zeros(2)).mean.tolist()
    [1.0, 1.0]
    """

    mean: Float[Array, "..."]
    error: Float[Array, "..."]


@checked
def dice_loss(
    params: PyTree,
    environment: Environment,
    trajectories: Trajectories,
    advantages: Times,
    dice: Dice = Dice(),
) -> Float[Array, ""]:
    """The loss itself, for an optimizer or a `Problem`: its value is 0, its derivatives are not.

    >>> from ridgerider.problems.sampled_tree import TreeEnvironment, make_tree
    >>> environment, policy = TreeEnvironment(make_tree(3, seed=3)), jnp.zeros(8)
    >>> paths = environment.sample(policy, jax.random.key(0), 100)
    >>> float(dice_loss(policy, environment, paths, Dice().advantages(paths, jnp.zeros((100, 3)))))
    0.0
    """
    _check(trajectories, advantages)
    with told_of("environment", "log_probabilities(params, trajectories), for these `params`"):
        log_probabilities = environment.log_probabilities(params, trajectories)
    return jnp.mean(dice.contributions(log_probabilities, advantages, trajectories.mask))


@checked
def estimate(
    derivative: Callable[[Callable[[Array], Array]], Callable[[Array], Array]],
    params: Float[Array, " n"],
    environment: Environment,
    trajectories: Trajectories,
    advantages: Times,
    dice: Dice = Dice(),
) -> SampledMean:
    """A derivative of the loss, minus the expected return, with standard errors.

    **Arguments**

    - `derivative`: a transformation of functions: `jax.grad`, `jax.hessian` for few parameters,
      or one that returns Hessian-vector products.

    >>> from ridgerider.problems.sampled_tree import TreeEnvironment, make_tree
    >>> environment, policy = TreeEnvironment(make_tree(3, seed=3)), jnp.zeros(8)
    >>> paths = environment.sample(policy, jax.random.key(0), 1000)
    >>> advantages = Dice().advantages(paths, jnp.zeros((1000, 3)))
    >>> found = estimate(jax.grad, policy, environment, paths, advantages)
    >>> found.mean.shape, bool(jnp.all(found.error < 0.2))
    ((8,), True)
    """
    _check(trajectories, advantages)

    def of_one(trajectory: Trajectories, advantages: Float[Array, " time"]) -> Array:
        alone = jax.tree.map(lambda leaf: leaf[None], trajectory)
        return derivative(lambda x: dice_loss(x, environment, alone, advantages[None], dice))(
            params
        )

    each = jax.vmap(of_one)(trajectories, advantages)
    error = jnp.std(each, axis=0, ddof=1) / np.sqrt(len(each)) if len(each) > 1 else jnp.inf
    return SampledMean(jnp.mean(each, axis=0), jnp.broadcast_to(error, each.shape[1:]))


def _check(trajectories: Trajectories, advantages: Times) -> None:
    """Raise unless there is a sample and all arrays fit each other. Under jit shapes are known."""
    shape = trajectories.actions.shape
    if len(shape) != 2 or not shape[0]:
        raise ValueError(
            f"`actions` must hold at least one sample, shaped (samples, time), not {shape}."
        )
    others = {**trajectories._asdict(), "advantages": advantages}
    for name in ("rewards", "mask", "advantages"):
        other = others[name].shape
        if other != shape:
            raise ValueError(f"`{name}` must have the shape of `actions`, {shape}, not {other}.")
