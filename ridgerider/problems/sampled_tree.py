"""The tree as an environment to act in: what is known of it comes from samples."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ridgerider._check import Count, checked
from ridgerider._core.problem.problem import Vector
from ridgerider.dice import Times, Trajectories
from ridgerider.problems.tree import Tree
from ridgerider.problems.tree import make_tree as make_tree


class TreeEnvironment(eqx.Module):
    """The sampled version of a `Tree`: an `Environment` whose derivatives are known exactly.

    >>> TreeEnvironment(make_tree(3, seed=3)).children[:3].tolist()
    [[-1, 1], [-2, 2], [-3, -4]]
    """

    children: Int[Array, "decisions 2"]  # left and right; leaf l is -1 - l
    rewards: Float[Array, " leaves"]
    num_times: int = eqx.field(static=True)

    def __init__(self, tree: Tree, num_times: int | None = None):
        """Trajectories have room for `num_times` decisions; default: the longest way to a leaf."""
        longest = max(map(len, tree.leaf_names))
        if num_times is not None and num_times < longest:
            raise ValueError(
                f"`num_times` must be at least the longest way to a leaf, {longest}, "
                f"not {num_times!r}."
            )
        children = np.full((tree.size, 2), -1)  # padded decisions lead nowhere
        for decision in range(tree.num_decisions):
            for side, way in enumerate((-1, 1)):
                leaves = np.flatnonzero(tree.turns[:, decision] == way)
                # The next decision on the way to all of these leaves, or the only one of them.
                later = np.all(tree.turns[leaves, decision + 1 :] != 0, axis=0)
                is_leaf = len(leaves) == 1
                children[decision, side] = (
                    -1 - leaves[0] if is_leaf else decision + 1 + later.argmax()
                )
        self.children = jnp.asarray(children)
        missing = tree.size + 1 - len(tree.rewards)
        self.rewards = jnp.asarray(np.pad(tree.rewards, (0, missing)))
        self.num_times = longest if num_times is None else num_times

    @checked
    def sample(self, params: Vector, key: PRNGKeyArray, num_samples: Count) -> Trajectories:
        uniform = jax.random.uniform(key, (self.num_times, num_samples), params.dtype)

        def step(place: Array, uniform: Array) -> tuple[Array, tuple[Array, ...]]:
            is_open = place >= 0
            state = jnp.maximum(place, 0)
            action = (uniform < jax.nn.sigmoid(params[state])).astype(int)
            after = jnp.where(is_open, self.children[state, action], place)
            reward = jnp.where(is_open & (after < 0), self.rewards[jnp.maximum(-1 - after, 0)], 0)
            return after, (state, action, reward, is_open.astype(params.dtype))

        _, out = jax.lax.scan(step, jnp.zeros(num_samples, int), uniform)
        states, actions, rewards, mask = (column.T for column in out)
        return Trajectories(states, actions, rewards, mask)

    @checked
    def log_probabilities(self, params: Vector, trajectories: Trajectories) -> Times:
        logits = params[trajectories.states]
        return jax.nn.log_sigmoid(jnp.where(trajectories.actions == 1, logits, -logits))
