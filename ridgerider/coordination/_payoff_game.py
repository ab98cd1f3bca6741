r"""Games given by their payoff as a function of policies, with two that are built in.

A policy is a table with a row for each private observation: the distribution over actions. The
expected payoff, summed over chance and observations, is a polynomial in these tables, so that small
games need no samples. A player who sees what another one did has that among its observations.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ridgerider._check import check_callable, check_count
from ridgerider._core.problem.problem import Scalar

MAX_POLICIES = 2**20  # joint ones that `optimum` tries
Policy = Float[Array, "observations actions"]


class PayoffGame(eqx.Module):
    """A cooperative game, given by its payoff as a function of the players' policies.

    **Arguments**

    - `payoff(policy_1, ..., policy_n)`: the expected payoff, differentiable; a policy is a table of
      probabilities, a row for each observation and a column for each action.
    - `shapes`: observations and actions of each player.

    Here both players see a coin of their own, and get 1 if they act alike:

    >>> def payoff(one, two):
    ...     return jnp.einsum("ia,ja->", one, two) / 4
    >>> game = PayoffGame(payoff, ((2, 2), (2, 2)))
    >>> float(game.self_play(game.start)), float(game.optimum())
    (0.5, 1.0)
    """

    payoff: Callable[..., Scalar]
    shapes: tuple[tuple[int, int], ...] = eqx.field(static=True)

    def __init__(self, payoff: Callable[..., Scalar], shapes: Sequence[Sequence[int]]):
        check_callable("payoff", payoff, "payoff(policy_1, ..., policy_n)")
        self.payoff, self.shapes = payoff, tuple((int(o), int(a)) for o, a in shapes)
        check_count("len(shapes)", len(self.shapes), 2)
        for observations, actions in self.shapes:
            check_count("shapes", observations)
            check_count("shapes", actions, 2)
        out = jax.eval_shape(payoff, *map(jnp.zeros, self.shapes))
        if getattr(out, "shape", None) != ():
            raise ValueError(f"`payoff` must return a number, not {out}.")

    @property
    def num_players(self) -> int:
        return len(self.shapes)

    @property
    def start(self) -> tuple[Policy, ...]:
        """Uniform policies."""
        return tuple(map(jnp.zeros, self.shapes))

    def self_play(self, params: tuple[Policy, ...]) -> Scalar:
        return self.cross_play(*[params] * self.num_players)

    def cross_play(self, *params: tuple[Policy, ...]) -> Scalar:
        return self.payoff(*(jax.nn.softmax(one[k]) for k, one in enumerate(params)))

    def entropy(self, params: tuple[Policy, ...]) -> Scalar:
        logs = [jax.nn.log_softmax(logits) for logits in params]
        return -sum(jnp.sum(jnp.exp(one) * one) for one in logs)  # type: ignore[return-value]

    def optimum(self) -> float:
        """The best payoff of deterministic policies, which no others exceed, by enumeration."""
        count = math.prod(actions**observations for observations, actions in self.shapes)
        if count > MAX_POLICIES:
            raise ValueError(
                f"`shapes` must allow at most {MAX_POLICIES} joint policies to enumerate, not "
                f"{count}."
            )
        tables = [_deterministic(*shape) for shape in self.shapes]

        def best(first: Policy) -> Scalar:
            rest = [jnp.asarray(one) for one in tables[1:]]
            play = self.payoff
            for axis in range(len(rest), 0, -1):
                axes = (None, *(0 if k == axis else None for k in range(1, len(tables))))
                play = jax.vmap(play, in_axes=axes)
            return jnp.max(play(first, *rest))

        return float(
            jnp.max(jax.jit(lambda every: jax.lax.map(best, every))(jnp.asarray(tables[0])))
        )


def _deterministic(observations: int, actions: int) -> Float[np.ndarray, "k observations actions"]:
    rows = np.eye(actions)
    return np.stack(
        [rows[list(chosen)] for chosen in itertools.product(range(actions), repeat=observations)]
    )


class _Signals(eqx.Module):
    """The payoff of `signalling`."""

    probabilities: Float[Array, " states"]
    costs: Float[Array, " signals"]

    def __call__(self, sender: Policy, receiver: Policy) -> Scalar:
        is_right = jnp.einsum("s,sm,ms->", self.probabilities, sender, receiver)
        return is_right - self.probabilities @ sender @ self.costs


def signalling(
    probabilities: Sequence[float] = (0.6, 0.4), costs: Sequence[float] = (0.0, 0.1)
) -> PayoffGame:
    """One player sees a state and sends a signal at a cost, the other sees it and names the state.

    Both get 1 if it is right, minus the cost. The best convention sends the cheap signals for the
    likely states. No mixed policies are stationary, for at equal use signals would pay alike.

    - `probabilities`: of the states. - `costs`: of the signals.

    >>> round(signalling().optimum(), 3)
    0.96
    """
    shares, paid = jnp.asarray(probabilities, float), jnp.asarray(costs, float)
    shapes = ((len(shares), len(paid)), (len(paid), len(shares)))
    return PayoffGame(_Signals(shares, paid), shapes)


class _Cards(eqx.Module):
    """The payoff of `card_game`; the second player sees its card and what the first one did."""

    table: Float[Array, "card card action action"]

    def __call__(self, first: Policy, second: Policy) -> Scalar:
        cards, actions = self.table.shape[1], self.table.shape[2]
        seen = second.reshape(cards, actions, -1)
        chances = 1 / (self.table.shape[0] * cards)
        return chances * jnp.einsum("ia,jab,ijab->", first, seen, self.table)


def card_game(table: Float[np.ndarray, "card card action action"] | None = None) -> PayoffGame:
    """Two players with a private card each act once, the second after it saw the first one act.

    - `table[card_1, card_2, action_1, action_2]`: what both get; cards are equally likely. Default:
      the matrix game of Foerster et al. (2019), of two cards and three actions, in which the second
      action of the first player pays 8 for sure, and the others pay 10 if they tell its card.

    >>> card_game().optimum()
    10.0
    """
    if table is None:
        safe = [4.0, 8.0, 4.0]
        table = np.array(
            [
                [[[10, 0, 0], safe, [10, 0, 0]], [[0, 0, 10], safe, [0, 0, 10]]],
                [[[0, 0, 10], safe, [0, 0, 0]], [[10, 0, 0], safe, [10, 0, 0]]],
            ]
        )
    values = jnp.asarray(table, float)
    if values.ndim != 4:
        raise ValueError(
            "`table` must have the axes card, card, action and action, not the shape "
            f"{values.shape}."
        )
    cards, others, actions, replies = values.shape
    return PayoffGame(_Cards(values), ((cards, actions), (others * actions, replies)))
