r"""Fully cooperative games, and how independently found policies play with each other.

Cross-play of N players, J(a_1, ..., a_N), is the payoff when player k plays its part of the k-th
set of parameters. Self-play is J(a, ..., a).
"""

from dataclasses import dataclass
from functools import reduce
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from ridgerider._problem import Problem, Scalar, Vector


@runtime_checkable
class Game(Protocol):
    """A game in which all players get the same payoff. Any `eqx.Module` with these will do.

    - `start`: parameters of *all* players, any pytree; where the search for the saddle begins.
    - `self_play(params)`: the expected payoff, differentiable.
    - `cross_play(params_a, params_b)`: the payoff when player one plays its part of `params_a` and
      player two its part of `params_b`; with equal arguments it is `self_play`.
    - `entropy(params)`: of all policies; what is made large on the way to the saddle.

    Two more are read where they are there: `num_players`, for a `cross_play` of as many arguments,
    and `is_symmetric`, the claim that the arguments of `cross_play` may change places.

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


class NegativeEntropy(eqx.Module):
    game: Game

    def __call__(self, params: PyTree) -> Scalar:
        return -self.game.entropy(params)


def check_game(game: Game) -> None:
    """Raise unless `game` is what it says, as far as random policies can tell."""
    missing = [
        name for name in ("start", "self_play", "cross_play", "entropy") if not hasattr(game, name)
    ]
    if missing:
        raise ValueError(
            f"`game` must have start, self_play, cross_play and entropy, but {type(game).__name__} "
            f"has no {' and no '.join(missing)}."
        )
    problem, players = game_problem(game), num_players(game)
    keys = jax.random.split(jax.random.key(0), players)
    policies = [
        problem.unravel(problem.x0 + jax.random.normal(key, (problem.size,), problem.dtype))
        for key in keys
    ]
    scale = max(abs(float(game.self_play(policy))) for policy in policies)
    tolerance = 1e3 * float(jnp.finfo(problem.dtype).eps) * scale
    alone, same = (
        float(value)
        for value in (game.self_play(policies[0]), game.cross_play(*[policies[0]] * players))
    )
    if not abs(alone - same) <= tolerance:
        raise ValueError(
            "`game` must pay the same for `self_play` as for `cross_play` of equal arguments, "
            f"not {alone:.6g} and {same:.6g}."
        )
    if getattr(game, "is_symmetric", False):
        one, other = (float(game.cross_play(*order)) for order in (policies, policies[::-1]))
        if not abs(one - other) <= tolerance:
            raise ValueError(
                "`game` must have a symmetric `cross_play`, as its `is_symmetric` claims, but two "
                f"random policies score {one:.6g} one way round and {other:.6g} the other."
            )


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


def with_strangers(scores: Float[np.ndarray, "runs *runs"]) -> float:
    """The mean over combinations in which every player comes from another run."""
    axes = np.stack(np.meshgrid(*map(np.arange, scores.shape), indexing="ij")).reshape(
        scores.ndim, -1
    )
    is_mixed = [len(set(column)) == scores.ndim for column in axes.T]
    return float(scores.ravel()[is_mixed].mean())


# --- the baselines


@dataclass(frozen=True)
class Baseline:
    """Independent runs of a baseline: their policies and how they play with each other.

    `cross_play` averages over all combinations of runs, `with_strangers` over those of different
    runs only. `scores` has an axis of runs for each player.

    >>> from ridgerider.problems import Levers
    >>> baseline = play_alone(Levers((1.0, 0.5)), num_runs=3)
    >>> round(baseline.self_play, 2), round(baseline.cross_play, 2)
    (1.0, 1.0)
    """

    policies: PyTree
    scores: np.ndarray
    self_play: float
    cross_play: float
    with_strangers: float


def play_alone(
    game: Game,
    num_runs: int = 25,
    *,
    learning_rate: float = 0.1,
    max_steps: int = 2000,
    noise: float = 0.1,
    seed: int = 0,
) -> Baseline:
    """Self-play: every run maximises its own payoff from a random start, by Adam.

    Nothing tells a run which of several equivalent optima the others will reach.

    >>> from ridgerider.problems import Levers
    >>> baseline = play_alone(Levers((1.0,) * 5), num_runs=10)
    >>> round(baseline.self_play, 2), baseline.with_strangers < 0.5
    (1.0, True)
    """
    size = game_problem(game).size
    none = np.arange(size)[None]
    return other_play(
        game,
        none,
        num_runs,
        learning_rate=learning_rate,
        max_steps=max_steps,
        noise=noise,
        seed=seed,
    )


def other_play(
    game: Game,
    symmetries: Int[np.ndarray, "symmetries size"],
    num_runs: int = 25,
    *,
    learning_rate: float = 0.1,
    max_steps: int = 2000,
    noise: float = 0.1,
    seed: int = 0,
) -> Baseline:
    """Other-Play (Hu et al., 2020): maximise the payoff with partners relabelled by a symmetry.

    The method that is told the symmetries, which Ridge Rider must discover: each run maximises the
    mean of `cross_play(params, permuted params)` over them.

    **Arguments**

    - `symmetries`: permutations of the vector of all parameters, one in each row, the identity
      among them.
    - `learning_rate`, `max_steps`: of Adam. `noise`: of the start.

    >>> from ridgerider.problems import Levers
    >>> game = Levers((1.0, 1.0, 0.8))
    >>> round(other_play(game, game.symmetries(), num_runs=3).cross_play, 2)
    0.8
    """
    check_game(game)
    check_num_runs(num_runs, game)
    problem = game_problem(game)
    rows = np.asarray(symmetries)
    if rows.ndim != 2 or not (np.sort(rows, axis=1) == np.arange(problem.size)).all():
        raise ValueError(
            f"`symmetries` must hold permutations of 0 to {problem.size - 1} as rows, "
            f"not an array of shape {rows.shape}."
        )
    key = jax.random.key(seed)
    x = problem.x0 + noise * jax.random.normal(key, (num_runs, problem.size), problem.dtype)
    rate = jnp.asarray(learning_rate, problem.dtype)
    ends = _ascend(game, problem, jnp.asarray(rows), rate, max_steps, x)
    policies = jax.vmap(problem.unravel)(ends)
    scores = np.asarray(cross_play(game, policies))
    alone = [scores[(run,) * scores.ndim] for run in range(num_runs)]
    return Baseline(
        policies, scores, float(np.mean(alone)), float(scores.mean()), with_strangers(scores)
    )


def check_num_runs(num_runs: int, game: Game) -> None:
    least = num_players(game)
    if isinstance(num_runs, bool) or not isinstance(num_runs, int) or num_runs < least:
        raise ValueError(
            f"`num_runs` must be a whole number of at least {least}, one for each player, "
            f"not {num_runs!r}."
        )


@eqx.filter_jit
def _ascend(
    game: Game,
    problem: Problem,
    symmetries: Int[Array, "symmetries size"],
    learning_rate: Scalar,
    max_steps: int,
    starts: Float[Array, "runs size"],
) -> Float[Array, "runs size"]:
    others = num_players(game) - 1
    optimizer = optax.adam(1.0)

    def loss(x: Vector) -> Scalar:
        def play(permutation: Int[Array, " size"]) -> Scalar:
            partner = problem.unravel(x[permutation])
            return game.cross_play(problem.unravel(x), *[partner] * others)

        return -jnp.mean(jax.vmap(play)(symmetries))

    def step(_: int, carry: tuple) -> tuple:
        x, state = carry
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            updates, state = optimizer.update(jax.grad(loss)(x), state, x)
        return x + learning_rate * updates.astype(x.dtype), state

    def ascend(x: Vector) -> Vector:
        return jax.lax.fori_loop(0, max_steps, step, (x, optimizer.init(x)))[0]

    return jax.vmap(ascend)(starts)
