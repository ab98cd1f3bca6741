r"""Fully cooperative games, and how independently found policies play with each other.

Cross-play of N players, J(a_1, ..., a_N), is the payoff when player k plays its part of the k-th
set of parameters. Self-play is J(a, ..., a).
"""

from functools import reduce
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from ridgerider._check import check_count
from ridgerider._core.problem.problem import Problem, Scalar


@runtime_checkable
class Game(Protocol):
    """A game in which all players get the same payoff. Any `eqx.Module` with these will do.

    - `start`: parameters of *all* players, any pytree; where the search for the saddle begins.
    - `self_play(params)`: the expected payoff, differentiable.
    - `cross_play(params_a, params_b)`: the payoff when player one plays its part of `params_a` and
      player two its part of `params_b`; with equal arguments it is `self_play`.
    - `entropy(params)`: of all policies; what is made large on the way to the saddle.

    One more is read where it is there: `num_players`, for a `cross_play` of as many arguments.

    >>> from ridgerider.problems import Levers
    >>> isinstance(Levers(), Game)
    True
    """

    @property
    def start(self) -> PyTree: ...
    def self_play(self, params: PyTree, /) -> Scalar: ...
    def cross_play(self, *params: PyTree) -> Scalar: ...
    def entropy(self, params: PyTree, /) -> Scalar: ...


def num_players(game: Game) -> int:
    return getattr(game, "num_players", 2)


def payoff_loss(params: PyTree, game: Game) -> Scalar:
    return -game.self_play(params)


def game_problem(game: Game) -> Problem:
    """Minus the payoff of self-play; the game is its data."""
    return Problem(payoff_loss, game.start, game)


class Softened(eqx.Module):
    """A game whose self-play has a bonus for entropy; strangers are paid without it."""

    game: Game
    bonus: Float[Array, ""]

    @property
    def start(self) -> PyTree:
        return self.game.start

    def self_play(self, params: PyTree) -> Scalar:
        return self.game.self_play(params) + self.bonus * self.game.entropy(params)

    def cross_play(self, *params: PyTree) -> Scalar:
        return self.game.cross_play(*params)

    def entropy(self, params: PyTree) -> Scalar:
        return self.game.entropy(params)


class NegativeEntropy(eqx.Module):
    game: Game

    def __call__(self, params: PyTree) -> Scalar:
        return -self.game.entropy(params)


def check_game(game: Game, num_runs: int) -> None:
    """Raise unless `game` is what it says, as far as random policies can tell.

    There must be a run for each player.
    """
    check_count("num_runs", num_runs, num_players(game))
    paid = jax.eval_shape(game.self_play, game.start)
    if getattr(paid, "shape", ()) != ():
        raise ValueError(
            "`game` must pay all players alike, but it has a payoff for each player: see "
            "coordination.equilibria(game)."
        )
    alone, scores = map(np.asarray, _try_out(game))
    tolerance = 1e3 * float(np.finfo(alone.dtype).eps) * np.abs(alone).max()
    same = scores[(0,) * scores.ndim]
    if not abs(alone[0] - same) <= tolerance:
        raise ValueError(
            "`game` must pay the same for `self_play` as for `cross_play` of equal arguments, "
            f"not {alone[0]:.6g} and {same:.6g}."
        )


@eqx.filter_jit
def _try_out(game: Game) -> tuple[Float[Array, " runs"], Float[Array, "..."]]:
    """Random policies, one for each player: their self-play and cross-play."""
    problem = game_problem(game)
    shape = (num_players(game), problem.size)
    x = problem.x0[None] + jax.random.normal(jax.random.key(0), shape, problem.dtype)
    policies = jax.vmap(problem.unravel)(x)
    return jax.vmap(game.self_play)(policies), cross_play(game, policies)


@eqx.filter_jit
def cross_play(game: Game, policies: PyTree[Float[Array, "runs ..."]]) -> Float[Array, "..."]:
    """The payoff of every combination of runs; axis k is the run that player k comes from."""
    players = num_players(game)

    def play(*params: PyTree) -> Scalar:
        return game.cross_play(*params)

    # The last vmap added is the first axis.
    nested = reduce(
        lambda function, player: jax.vmap(
            function, in_axes=tuple(0 if k == player else None for k in range(players))
        ),
        reversed(range(players)),
        play,
    )
    return nested(*[policies] * players)


def means(scores: np.ndarray) -> dict[str, float]:
    """Of the payoffs of all combinations of runs: all of them, a run with itself, and strangers.

    With strangers every player comes from another run; `standard_error` is that of their mean, from
    the spread of what each run gets with strangers.

    >>> means(np.array([[1.0, 0.0], [0.0, 1.0]]))["with_strangers"]
    0.0
    """
    runs = np.indices(scores.shape).reshape(scores.ndim, -1).T
    num_sources = np.array([len(set(row)) for row in runs])
    flat, is_strange = scores.ravel(), num_sources == scores.ndim
    by_run = [
        flat[is_strange & (runs == number).any(axis=1)].mean() for number in range(len(scores))
    ]
    return {
        "cross_play": float(scores.mean()),
        "self_play": float(flat[num_sources == 1].mean()),
        "with_strangers": float(flat[is_strange].mean()),
        "standard_error": float(scores.ndim * np.std(by_run, ddof=1) / np.sqrt(len(scores))),
    }
