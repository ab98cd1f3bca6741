r"""Games given by their payoff as a function of policies, or by a Python function that plays them.

A policy is a table with a row for each private observation: the distribution over actions. The
expected payoff, summed over chance and observations, is a polynomial in these tables, so that small
games need no samples. A player who sees what another one did has that among its observations.

A larger game is played `num_samples` times with uniform actions. With pi the policies and A_t the
number of actions, the mean of payoff * prod_t A_t pi(a_t | o_t) is the expected payoff, and its
derivatives are unbiased, too: at uniform policies they are those of DiCE.
"""

import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ridgerider._check import Count, Seed, Several, came, check_count, checked, told_of
from ridgerider._core.problem.problem import Scalar

MAX_POLICIES = 2**20  # joint ones that `optimum` tries
MAX_EPISODES = 10**5  # that are enumerated
Policy = Float[Array, "observations actions"]
Payoff = Annotated[Callable[..., Array], "payoff(policy_1, ..., policy_n)"]


class PayoffGame(eqx.Module):
    """A game, given by its payoff as a function of the players' policies.

    **Arguments**

    - `payoff(policy_1, ..., policy_n)`: the expected payoff, differentiable; a policy is a table of
      probabilities, a row for each observation and a column for each action. Or an array with a
      payoff for each player: see `equilibria`.
    - `shapes`: observations and actions of each player.

    Here each player sees another coin, and both get 1 if they act alike:

    >>> def payoff(one, two):
    ...     return jnp.einsum("ia,ja->", one, two) / 4
    >>> game = PayoffGame(payoff, ((2, 2), (2, 2)))
    >>> float(game.self_play(game.start)), float(game.optimum())
    (0.5, 1.0)
    """

    payoff: Callable[..., Array]
    shapes: tuple[tuple[int, int], ...] = eqx.field(static=True)

    @checked
    def __init__(self, payoff: Payoff, shapes: Sequence[Sequence[int]]):
        self.payoff, self.shapes = payoff, tuple((int(o), int(a)) for o, a in shapes)
        if len(self.shapes) < 2:
            raise ValueError(f"`shapes` must be those of two players or more, not {came(shapes)}.")
        for observations, actions in self.shapes:
            check_count("shapes", observations)
            check_count("shapes", actions, 2)
        with told_of("payoff", "payoff(policy_1, ..., policy_n)"):
            out = jax.eval_shape(payoff, *map(jnp.zeros, self.shapes))
        if getattr(out, "shape", None) not in ((), (self.num_players,)):
            raise ValueError(
                f"`payoff` must return a number, or one for each of {self.num_players} players, "
                f"not {out}."
            )

    @classmethod
    @checked
    def from_play(
        cls,
        play: Annotated[Callable[[Any, Any], Any], "play(draw, act)"],
        num_players: Several = 2,
        *,
        num_samples: Several | None = None,
        seed: Seed = 0,
    ) -> "PayoffGame":
        """The game that `play(draw, act)` plays, in plain Python.

        It returns the payoff, or a tuple with one for each player. Every episode is played, or
        `num_samples` of them; `standard_error` then says how well payoffs are known. The rows of
        player k's policy are those of `game.payoff.observations[k]`.

        **Arguments**

        - `play`: calls `draw(count)`, a number below `count`, all equally likely, and `act(player,
          observation, num_actions)`, the action of a player (from 0) who sees this (hashable).

        >>> def coins(draw, act):
        ...     one, two = act(0, draw(2), 2), act(1, draw(2), 2)
        ...     return float(one == two)
        >>> PayoffGame.from_play(coins).optimum()
        1.0
        """
        rows, actions = [dict[Hashable, int]() for _ in range(num_players)], [0] * num_players
        scripts = [tuple[int, ...]()]  # choices to begin with, of episodes that are still to play
        random, is_sampled = np.random.default_rng(seed), num_samples is not None
        episodes = list[tuple[list[tuple[int, int, int]], float, Any]]()

        def episode(script: tuple[int, ...]) -> None:
            taken, moves, weight = list[int](), list[tuple[int, int, int]](), 1.0

            def choose(count: int) -> int:
                choice = script[len(taken)] if len(taken) < len(script) else 0
                if is_sampled:
                    choice = int(random.integers(count))
                elif len(taken) >= len(script):  # the other choices are played later
                    scripts.extend((*taken, other) for other in range(1, count))
                taken.append(choice)
                return choice

            def draw(count: int) -> int:
                nonlocal weight
                weight /= 1 if is_sampled else count
                return choose(count)

            def act(player: int, observation: Hashable, count: int) -> int:
                nonlocal weight
                known = actions[player] or count
                if known != count:
                    raise ValueError(
                        f"`play` must give player {player} one number of actions, not {known} and "
                        f"{count}."
                    )
                actions[player] = count
                weight *= count if is_sampled else 1
                row = rows[player].setdefault(observation, len(rows[player]))
                moves.append((player, row, choose(count)))
                return moves[-1][2]

            paid = np.asarray(play(draw, act), float)
            episodes.append((moves, weight / (num_samples or 1), paid))

        while len(episodes) < num_samples if num_samples else scripts:
            episode(() if is_sampled else scripts.pop())
            if not is_sampled and len(episodes) > MAX_EPISODES:
                raise ValueError(
                    f"`play` must have at most {MAX_EPISODES} episodes to enumerate: give "
                    "`num_samples`."
                )
        every, weights, paid = zip(*episodes, strict=True)
        # Shorter episodes are filled up with moves of a further player, who has no choice.
        shape = (len(every), max(map(len, every)), 3)
        table = np.broadcast_to((num_players, 0, 0), shape).copy()
        for filled, moves in zip(table, every, strict=True):
            filled[: len(moves)] = np.reshape(moves, (-1, 3))
        payoff = Episodes(
            jnp.asarray(table), jnp.asarray(weights), jnp.asarray(paid), tuple(map(tuple, rows))
        )
        return cls(payoff, [(len(seen), n) for seen, n in zip(rows, actions, strict=True)])

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

    def standard_error(self, params: tuple[Policy, ...]) -> Array:
        """Of self-play, if the episodes are samples; of all episodes it says how they spread."""
        terms = self.payoff.terms(*map(jax.nn.softmax, params))  # type: ignore[attr-defined]
        return jnp.std(terms, axis=0) * jnp.sqrt(jnp.asarray(len(terms), terms.dtype))

    def optimum(self) -> float:
        """The best payoff of deterministic policies, which no others exceed, by enumeration.

        The last player, who must act once, has a best reply to each policy of the others: the
        payoff is linear in its policy, and each row of the gradient is maximised.
        """
        *others, last = self.shapes
        count = math.prod(actions**observations for observations, actions in others)
        if count > MAX_POLICIES:
            raise ValueError(
                f"`shapes` must allow at most {MAX_POLICIES} joint policies of all players but the "
                f"last to enumerate, not {count}."
            )
        tables = [
            jnp.asarray(np.eye(n)[np.array(list(itertools.product(range(n), repeat=rows)))])
            for rows, n in others
        ]

        def best(numbers: Int[Array, " players"]) -> Scalar:
            chosen = [table[number] for table, number in zip(tables, numbers, strict=True)]
            value, slope = jax.value_and_grad(self.payoff, len(others))(*chosen, jnp.zeros(last))
            return value + jnp.sum(jnp.max(slope, axis=1))

        every = np.array(list(itertools.product(*map(range, map(len, tables)))))
        return float(jnp.max(jax.jit(lambda every: jax.lax.map(best, every))(jnp.asarray(every))))


class Episodes(eqx.Module):
    """The payoff of a game by its episodes; a move is a player, an observation and an action."""

    moves: Int[Array, "episodes time 3"]
    weights: Float[Array, " episodes"]
    payoffs: Float[Array, "episodes ..."]
    observations: tuple[tuple[Hashable, ...], ...] = eqx.field(static=True)

    def __call__(self, *policies: Policy) -> Array:
        return jnp.sum(self.terms(*policies), axis=0)

    def terms(self, *policies: Policy) -> Float[Array, "episodes ..."]:
        starts = np.cumsum([0, *(one.size for one in policies)])
        widths = jnp.asarray([*(one.shape[1] for one in policies), 1])
        flat = jnp.concatenate([*map(jnp.ravel, policies), jnp.ones(1, policies[0].dtype)])
        player, row, action = jnp.moveaxis(self.moves, 2, 0)
        chances = flat[jnp.asarray(starts)[player] + row * widths[player] + action]
        weights = self.weights * jnp.prod(chances, axis=1)
        return self.payoffs * weights.reshape(-1, *[1] * (self.payoffs.ndim - 1))


@checked
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
    if not shares.size or not paid.size:
        raise ValueError("`probabilities` and `costs` must have one or more numbers each.")

    def payoff(sender: Policy, receiver: Policy) -> Scalar:
        return jnp.einsum("s,sm,ms->", shares, sender, receiver) - shares @ sender @ paid

    return PayoffGame(payoff, ((len(shares), len(paid)), (len(paid), len(shares))))


@checked
def card_game(
    table: Float[np.ndarray, "card_1 card_2 action_1 action_2"] | None = None,
) -> PayoffGame:
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
    values = np.asarray(table, float)
    cards, others, actions, replies = values.shape

    def play(draw: Callable[..., int], act: Callable[..., int]) -> float:
        card, other = draw(cards), draw(others)
        action = act(0, card, actions)
        return values[card, other, action, act(1, (other, action), replies)]

    return PayoffGame.from_play(play)


@checked
def hanabi(turns: Count = 2) -> PayoffGame:
    """Hanabi with two colours, two ranks, one copy of each card and one card in the hand.

    Each player sees the other's card only. In turn they play their card, or tell the other its
    colour or rank. A card counts 1 if it is a 1, or a 2 whose 1 was played before, and a new one is
    drawn; any other ends the game, and nothing is paid. What is played and told is public.

    - `turns`: of both players together.

    >>> hanabi().shapes
    ((4, 3), (22, 3))
    """
    check_count("turns", turns, 2, 3)  # with more turns a hand may be empty
    deals = list(itertools.permutations(range(4)))

    def play(draw: Callable[..., int], act: Callable[..., int]) -> float:
        deck = list(deals[draw(len(deals))])  # card = 2 * colour + rank
        hands, heights, seen = [deck.pop(), deck.pop()], [0, 0], tuple[Any, ...]()
        for turn in range(turns):
            me, other = turn % 2, (turn + 1) % 2
            action, told = act(me, (hands[other], seen), 3), divmod(hands[other], 2)
            if action:  # the colour or the rank
                seen = (*seen, (action, told[action - 1]))
                continue
            colour, rank = divmod(hands[me], 2)
            if heights[colour] != rank:
                return 0.0
            heights[colour] += 1
            seen = (*seen, (0, hands[me]))
            hands[me] = deck.pop() if deck else -1
        return float(sum(heights))

    return PayoffGame.from_play(play)
