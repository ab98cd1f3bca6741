r"""Lever games: players who cannot talk must pull the same lever.

Each of N players picks one of n levers; all get `payoffs[i]` if everybody picked i
and nothing otherwise. With a softmax policy per player,

    J = sum_i payoffs_i prod_k p_k,i

is stationary inside the simplex exactly where all players mix by p_i ~ payoffs_i^(-1/(N-1)); there
J = payoffs_i p_i^(N-1) for every i, and the Hessian of J in the logits is

    J (ones(N, N) - I) (x) (diag(p) - p p^T).

So the loss -J has one ridge, -(N-1) J mu, for each positive eigenvalue mu of diag(p) - p p^T: all
players move together. A lever that pays little is picked often at the saddle and is the steepest
ridge; n equal levers repeat an eigenvalue n - 1 times.
"""

from collections.abc import Sequence
from itertools import product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ridgerider._check import Several, checked
from ridgerider._core.problem.problem import Problem, Scalar
from ridgerider._search.results.measures import Measures

PAPER = (1.0,) * 7 + (0.8,) * 2 + (0.6,)
ORIGINAL = (1.0,) * 9 + (0.9,)

Policies = Float[Array, "players levers"]
Payoffs = Sequence[float] | Float[np.ndarray, " levers"] | Float[Array, " levers"]


class Levers(eqx.Module):
    """The lever game of one round, for `coordinate`. The logits are one row for each player.

    >>> game = Levers((1.0, 1.0, 0.5))
    >>> params = lever_saddle(game.payoffs)
    >>> [round(float(p), 3) for p in jax.nn.softmax(params[0])]
    [0.25, 0.25, 0.5]
    >>> round(float(game.self_play(params)), 3)
    0.25
    """

    payoffs: Float[Array, " levers"]
    num_players: int = eqx.field(static=True)

    @checked
    def __init__(self, payoffs: Payoffs = PAPER, num_players: Several = 2):
        array = jnp.asarray(payoffs)
        if array.ndim != 1 or len(array) < 2 or not np.all(np.isfinite(array) & (array > 0)):
            raise ValueError(
                "`payoffs` must be a list of at least two numbers, finite and positive, not "
                f"{np.asarray(array).tolist()}."
            )
        self.payoffs = array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)
        self.num_players = num_players

    @property
    def start(self) -> Policies:
        """The uniform policies. No saddle, unless all levers pay the same."""
        return jnp.zeros((self.num_players, len(self.payoffs)), self.payoffs.dtype)

    def self_play(self, params: Policies) -> Scalar:
        return -lever_loss(params, self.payoffs)

    def cross_play(self, *params: Policies) -> Scalar:
        """Player k plays row k of the k-th of `params`."""
        return self.self_play(jnp.stack([one[k] for k, one in enumerate(params)]))

    def with_strangers(self, params: Policies) -> Scalar:
        """The payoff if each player relabels levers that pay the same without telling the others.

        The relabellings are independent, so that each policy is averaged over such levers.
        """
        is_alike = (self.payoffs[:, None] == self.payoffs[None]).astype(params.dtype)
        policies = jax.nn.softmax(params, axis=-1) @ (is_alike / jnp.sum(is_alike, axis=0)[None])
        return jnp.sum(jnp.prod(policies, axis=0) * self.payoffs.astype(params.dtype))

    def entropy(self, params: Policies) -> Scalar:
        return entropy(params)

    def symmetries(self) -> Int[np.ndarray, "symmetries size"]:
        """Permutations of the parameters that keep the payoff, handed over to `other_play`.

        Turning every set of tied levers in a circle averages over such a set as all of its
        permutations would, and needs far fewer.

        >>> Levers((1.0, 1.0, 0.5)).symmetries().tolist()
        [[0, 1, 2, 3, 4, 5], [1, 0, 2, 4, 3, 5]]
        """
        payoffs = np.asarray(self.payoffs)
        sets = [np.flatnonzero(payoffs == payoff) for payoff in np.unique(payoffs)]
        circles = [[np.roll(tied, -shift) for shift in range(len(tied))] for tied in sets]
        turns = np.zeros((np.prod([len(tied) for tied in sets]), len(payoffs)), int)
        for turn, turned in zip(turns, product(*circles), strict=True):
            turn[np.concatenate(sets)] = np.concatenate(turned)
        offsets = len(payoffs) * np.arange(self.num_players)
        return (offsets[None, :, None] + turns[:, None]).reshape(len(turns), -1)


def lever_loss(params: Policies, payoffs: Float[Array, " levers"]) -> Scalar:
    """Minus the expected payoff."""
    return -jnp.sum(jnp.prod(jax.nn.softmax(params, axis=-1), axis=0) * payoffs)


def entropy(logits: Float[Array, "... actions"]) -> Scalar:
    """The entropy of all softmax policies together; the actions are the last axis."""
    return -jnp.sum(jax.nn.softmax(logits, axis=-1) * jax.nn.log_softmax(logits, axis=-1))


@checked
def levers(payoffs: Payoffs = PAPER, num_players: Several = 2) -> Problem:
    """The lever game from its saddle; the default is the paper's game.

    >>> problem = levers()
    >>> round(float(problem.value(problem.x0)), 5)
    -0.08955
    """
    game = Levers(payoffs, num_players)
    return Problem(lever_loss, lever_saddle(game.payoffs, num_players), game.payoffs)


def lever_measures(payoffs: Payoffs = PAPER) -> Measures:
    """What to note of solutions of the lever game: who pulls what, and what it pays.

    `with strangers`: what it pays with players who found a solution like it independently. They
    cannot distinguish levers that pay the same, and each pulls any of those that are alike.

    >>> measures = lever_measures()
    >>> measures.signature(jnp.zeros((2, 10))), measures.signature(9 * jnp.eye(2, 10))
    (None, 'levers 0 and 1')
    >>> both_0, both_9 = (99 * jnp.eye(10)[jnp.array([i, i])] for i in (0, 9))
    >>> {name: round(float(metric(both_0)), 3) for name, metric in measures.metrics.items()}
    {'payoff': 1.0, 'with strangers': 0.143}
    >>> {name: round(float(metric(both_9)), 3) for name, metric in measures.metrics.items()}
    {'payoff': 0.6, 'with strangers': 0.6}
    """
    game = Levers(payoffs)
    return Measures(joint_action, {"payoff": game.self_play, "with strangers": game.with_strangers})


def joint_action(params: Policies) -> str | None:
    """The lever that each player pulls; None while one of them mixes, none more likely than not."""
    likely = np.asarray(jax.nn.softmax(params, axis=-1))
    if likely.max(axis=1).min() <= 0.5:
        return None
    pulled = likely.argmax(axis=1)
    if len(set(pulled.tolist())) == 1:
        return f"all lever {pulled[0]}"
    return f"levers {', '.join(map(str, pulled[:-1]))} and {pulled[-1]}"


def lever_saddle(payoffs: Payoffs, num_players: int = 2) -> Policies:
    """The logits of the one saddle inside the simplex."""
    logits = -jnp.log(jnp.asarray(payoffs)) / (num_players - 1)
    return jnp.tile(logits, (num_players, 1))


def lever_eigenvalues(payoffs: Payoffs, num_players: int = 2) -> Float[np.ndarray, " size"]:
    """All eigenvalues of the loss at the saddle, ascending.

    >>> [round(float(one), 6) for one in lever_eigenvalues(PAPER)[:4]]
    [-0.012683, -0.010025, -0.00946, -0.00802]
    """
    p = np.asarray(jax.nn.softmax(lever_saddle(payoffs, num_players)[0]))
    value = float(np.asarray(payoffs)[0] * p[0] ** (num_players - 1))
    around = value * np.linalg.eigvalsh(np.diag(p) - np.outer(p, p))
    return np.sort(np.concatenate([-(num_players - 1) * around, *[around] * (num_players - 1)]))
