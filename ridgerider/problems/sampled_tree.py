"""The tree as an environment to act in: what is known of it comes from samples."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ridgerider._check import Count, check_count, checked
from ridgerider._core.problem.problem import Vector
from ridgerider.dice import Times, Trajectories
from ridgerider.problems.tree import Tree
from ridgerider.problems.tree import make_tree as make_tree


class TreeEnvironment(eqx.Module):
    """The sampled version of a `Tree`: an `Environment` whose derivatives are known exactly.

    `paths` holds the only trajectory to each leaf, so that a leaf is drawn by its probability.

    >>> TreeEnvironment(make_tree(3, seed=3)).paths.states[:4].tolist()
    [[0, 0, 0], [0, 1, 0], [0, 1, 2], [0, 1, 2]]
    """

    right: Float[Array, "leaves n"]
    left: Float[Array, "leaves n"]
    is_leaf: Bool[Array, " leaves"]
    paths: Trajectories

    def __init__(self, tree: Tree, num_times: int | None = None):
        """Trajectories have room for `num_times` decisions; default: the longest way to a leaf."""
        longest = max(map(len, tree.leaf_names))
        num_times = longest if num_times is None else num_times
        check_count("num_times", num_times, longest)
        self.right, self.left, rewards = tree.problem().args
        states, actions = np.zeros((2, len(rewards), num_times), int)
        paid, mask = np.zeros((2, len(rewards), num_times))
        for leaf, turns in enumerate(tree.turns):
            (way,) = np.nonzero(turns)
            states[leaf, : len(way)], actions[leaf, : len(way)] = way, turns[way] > 0
            paid[leaf, len(way) - 1], mask[leaf, : len(way)] = rewards[leaf], 1
        self.paths = Trajectories(*map(jnp.asarray, (states, actions, paid, mask)))
        self.is_leaf = self.paths.mask[:, 0] > 0

    @checked
    def sample(self, params: Vector, key: PRNGKeyArray, num_samples: Count) -> Trajectories:
        chances = self.right @ jax.nn.log_sigmoid(params) + self.left @ jax.nn.log_sigmoid(-params)
        chances = jnp.where(self.is_leaf, chances, -jnp.inf)
        leaves = jax.random.categorical(key, chances, shape=(num_samples,))
        return jax.tree.map(lambda table: table[leaves], self.paths)

    @checked
    def log_probabilities(self, params: Vector, trajectories: Trajectories) -> Times:
        logits = params[trajectories.states]
        return jax.nn.log_sigmoid(jnp.where(trajectories.actions == 1, logits, -logits))
