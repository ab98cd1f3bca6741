r"""Random binary trees: a reinforcement-learning problem whose every solution is known.

An agent walks from the root to a leaf, left or right at each *decision*, and gets the leaf's
reward, 10 or -1. With one logit x_j for each decision j, a leaf is reached with probability

    p_l = prod over decisions j on its path of sigmoid(+-x_j)  (+ for right, - for left)

and the loss is minus the expected return, L = -sum_l r_l p_l. A *solution* is a positive leaf.
Where two sibling leaves have the same reward there is nothing to decide, so they are one leaf.

Logits are padded to a few sizes, so that trees of different size share compiled programs: no leaf
lies behind a padded decision, and its row of the Hessian is exactly zero.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from ridgerider._check import Seed, Share, between, checked
from ridgerider._core.problem.problem import Problem
from ridgerider._search.results.measures import ENDS, Measures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POSITIVE, NEGATIVE = 10.0, -1.0
SIZES = (8, 16, 32, 48, 64, 96, 128)  # and then multiples of 64
MAX_ATTEMPTS = 1000
MAX_DEPTH = 20
Depth = Annotated[int, between(1, MAX_DEPTH)]


def tree_loss(
    x: Float[Array, " n"],
    right: Float[Array, "l n"],
    left: Float[Array, "l n"],
    rewards: Float[Array, " l"],
) -> Float[Array, ""]:
    """Minus the expected return; `right` and `left` mark the turns on the way to each leaf."""
    log_probability = right @ jax.nn.log_sigmoid(x) + left @ jax.nn.log_sigmoid(-x)
    return -jnp.exp(log_probability) @ rewards


@dataclass(frozen=True, eq=False)
class Tree:
    """A tree of decisions, and what a policy is worth in it. A policy is `size` logits.

    `turns` has a row for each leaf and a column for each decision: 1 where the way to the leaf
    turns right, -1 where it turns left, 0 where it does not come by. Leaves are numbered from left
    to right, decisions as a walk from left to right meets them first.

    >>> tree = make_tree(depth=3, seed=3)
    >>> tree.leaf_names
    ('L', 'RL', 'RRL', 'RRR')
    >>> tree.rewards.tolist(), tree.num_decisions, tree.size
    ([10.0, -1.0, -1.0, 10.0], 3, 8)
    >>> tree.problem().x0.shape, float(tree.problem().value(tree.problem().x0))
    ((8,), -5.875)
    """

    turns: Int[np.ndarray, "leaves decisions"]
    rewards: Float[np.ndarray, " leaves"]
    size: int

    @property
    def num_decisions(self) -> int:
        return self.turns.shape[1]

    @property
    def num_solutions(self) -> int:
        """How many positive leaves there are."""
        return int(np.sum(self.rewards > 0))

    @cached_property
    def leaf_names(self) -> tuple[str, ...]:
        """The way to each leaf from the root, as L for left and R for right."""
        letters = {-1: "L", 0: "", 1: "R"}
        return tuple("".join(letters[int(turn)] for turn in row) for row in self.turns)

    @cached_property
    def _ways(self) -> tuple[np.ndarray, np.ndarray]:
        turns = np.zeros((len(self.rewards), self.size))
        turns[:, : self.num_decisions] = self.turns
        return (turns > 0).astype(float), (turns < 0).astype(float)

    def problem(self) -> Problem:
        """The problem, from the policy of maximum entropy: all logits zero."""
        missing = self.size + 1 - len(self.rewards)
        right, left = (jnp.asarray(np.pad(way, ((0, missing), (0, 0)))) for way in self._ways)
        rewards = jnp.asarray(np.pad(self.rewards, (0, missing)))
        return Problem(tree_loss, jnp.zeros(self.size), right, left, rewards)

    # --- what a policy, or each of a stack of policies, does

    def probabilities(self, params: ArrayLike) -> Float[np.ndarray, "... leaves"]:
        """How likely each leaf is reached.

        >>> make_tree(depth=2, seed=2).probabilities(np.zeros(8)).tolist()
        [0.25, 0.25, 0.5]
        """
        x = self._checked(params)
        right, left = self._ways
        return np.exp(-np.logaddexp(0, -x) @ right.T - np.logaddexp(0, x) @ left.T)

    def returns(self, params: ArrayLike) -> Float[np.ndarray, "..."]:
        """The expected return.

        >>> float(make_tree(depth=2, seed=2).returns(np.zeros(8)))
        1.75
        """
        return self.probabilities(params) @ self.rewards

    def solutions(self, params: ArrayLike) -> set[str]:
        """The names of the positive leaves that a policy, or a stack of policies, reaches.

        A policy reaches a leaf if its return is at least 9, of at most 10, and it comes to that
        leaf with probability above 1/2. Both are asked because a policy that mixes two positive
        leaves also returns 10.

        >>> tree = make_tree(depth=3, seed=3)
        >>> tree.solutions(np.zeros(8)), sorted(tree.solutions([[-9.0] * 8, [9.0] * 8]))
        (set(), ['L', 'RRR'])
        """
        probabilities = np.atleast_2d(self.probabilities(params))
        best = np.argmax(probabilities, axis=1)
        is_sure = (probabilities @ self.rewards >= 9) & (np.max(probabilities, axis=1) > 0.5)
        return {self.leaf_names[leaf] for leaf in best[is_sure & (self.rewards[best] > 0)]}

    def measures(self) -> Measures:
        """What to note of policies: which positive leaf they reach, and what they return.

        Solutions lie at infinity, and descents stop where the gradient is small: a leaf counts
        wherever a policy reaches it, whatever kind of point that is.

        >>> measures = make_tree(depth=3, seed=3).measures()
        >>> measures.signature(np.zeros(8)), measures.signature(np.full(8, 9.0))
        (None, 'RRR')
        """
        return Measures(
            self.leaf_reached, {"return": self.returns}, (*ENDS, "saddle", "unverified")
        )

    def leaf_reached(self, params: ArrayLike) -> str | None:
        """The name of the positive leaf that a policy reaches, if it does."""
        return next(iter(self.solutions(np.asarray(params))), None)

    def draw(self, ax: "Axes", params: ArrayLike | None = None) -> None:
        """Draw the tree: decisions as circles, positive leaves blue, negative ones red.

        With `params`, ways are as wide as that policy is likely to take them.

        >>> from matplotlib.figure import Figure
        >>> ax = Figure().subplots()
        >>> make_tree(depth=3, seed=3).draw(ax)
        >>> len(ax.lines)  # three decisions, four leaves, and a way to each
        14
        """
        likely = None if params is None else self.probabilities(params)
        below = [np.flatnonzero(column) for column in self.turns.T]  # the leaves of each decision
        leaves = [(self.num_decisions, np.array([leaf])) for leaf in range(len(self.rewards))]
        for last, rows in (*enumerate(below), *leaves):
            above = np.flatnonzero(self.turns[rows[0], :last])  # the decisions on the way
            x, y, top = rows.mean(), -len(above), max(len(above) - 1, 0)
            way = [below[above[-1]].mean() if len(above) else x, x]
            width = 1.2 if likely is None else 0.4 + 5 * float(likely[rows].sum())
            ax.plot(way, [-top, y], color="#888888", linewidth=width, zorder=1)
            color = "#0072B2" if self.rewards[rows[0]] > 0 else "#D55E00"
            color = "#FFFFFF" if len(rows) > 1 else color
            ax.plot(x, y, "o", color=color, markeredgecolor="#444444", markersize=9, zorder=2)
        ax.set_axis_off()

    def _checked(self, params: ArrayLike) -> Float[np.ndarray, "... n"]:
        x = np.asarray(params, float)
        if x.ndim == 0 or x.shape[-1] != self.size:
            raise ValueError(
                f"`params` must be a policy of {self.size} logits or a stack of them, "
                f"not of shape {x.shape}."
            )
        return x


@checked
def tree(
    depth: Depth = 4, p_terminal: Share = 0.4, p_positive: Share = 0.4, seed: Seed = 0
) -> Problem:
    """The problem of a random tree; see `make_tree`.

    >>> tree(depth=6).size
    16
    """
    return make_tree(depth, p_terminal, p_positive, seed).problem()


def tree_measures() -> Measures:
    """Those of the built-in tree."""
    return make_tree().measures()


@checked
def make_tree(
    depth: Depth = 4,
    p_terminal: Share = 0.4,
    p_positive: Share = 0.4,
    seed: Seed = 0,
) -> Tree:
    """A random tree with at least two decisions and at least one positive leaf.

    **Arguments**

    - `depth`: no way to a leaf is longer. The root is a decision, and what lies `depth` turns away
      is a leaf.
    - `p_terminal`: how likely any other place is a leaf.
    - `p_positive`: how likely a leaf is positive, before equal siblings are merged.

    A policy has the next of a few numbers of logits, so that many trees compile a handful of times.

    >>> make_tree(depth=10, seed=2).num_decisions
    19
    """
    random = np.random.default_rng([seed, depth])

    def grow(depth: int, is_root: bool = False) -> list[tuple[str, float]]:
        """The way to each leaf, as turns, and its reward."""
        if depth == 0 or (not is_root and random.random() < p_terminal):
            return [("", POSITIVE if random.random() < p_positive else NEGATIVE)]
        sides = grow(depth - 1), grow(depth - 1)
        if len(sides[0]) == 1 and sides[0] == sides[1]:
            return sides[0]
        return [
            (turn + way, reward)
            for turn, side in zip("LR", sides, strict=True)
            for way, reward in side
        ]

    for _ in range(MAX_ATTEMPTS):
        ways, rewards = zip(*grow(depth, is_root=True), strict=True)
        # A decision is what ways to leaves begin with; so sorted, a walk from the left meets them.
        decisions = sorted({way[:length] for way in ways for length in range(len(way))})
        if (count := len(decisions)) >= 2 and POSITIVE in rewards:
            column = {way: number for number, way in enumerate(decisions)}
            turns = np.zeros((len(ways), count), int)
            for row, way in zip(turns, ways, strict=True):
                for length, turn in enumerate(way):
                    row[column[way[:length]]] = 1 if turn == "R" else -1
            size = next((one for one in SIZES if count <= one), 64 * math.ceil(count / 64))
            return Tree(turns, np.array(rewards), size)
    raise ValueError(
        f"no tree with two decisions and a positive leaf came up in {MAX_ATTEMPTS} attempts with "
        f"`depth` {depth}, `p_terminal` {p_terminal} and `p_positive` {p_positive}."
    )
