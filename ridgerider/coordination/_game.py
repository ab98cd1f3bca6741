r"""Fully cooperative games, and how independently found policies play with each other.

Cross-play of N players, J(a_1, ..., a_N), is the payoff when player k plays its part of the k-th
set of parameters. Self-play is J(a, ..., a). Two baselines know nothing of ridges: self-play by
each run alone, and Other-Play, which is told the symmetries.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

from ridgerider._check import Count, Seed, check_count, checked
from ridgerider._core.problem.problem import Problem, Scalar, Vector

LEARNING_RATE, NUM_STEPS = 0.3, 500  # of Adam, for the baselines


@runtime_checkable
class Game(Protocol):
    """A game in which all players get the same payoff. Any `eqx.Module` with these will do.

    - `start`: parameters of *all* players, any pytree; where the search for the saddle begins.
    - `cross_play(params_a, params_b)`: the expected payoff, differentiable, when player one plays
      its part of `params_a` and player two its part of `params_b`.
    - `entropy(params)`: of all policies; what is made large on the way to the saddle.

    One more is read where it is there: `num_players`, for a `cross_play` of as many arguments.

    >>> from ridgerider.problems import Levers
    >>> isinstance(Levers(), Game)
    True
    """

    @property
    def start(self) -> PyTree: ...
    def cross_play(self, *params: PyTree) -> Scalar: ...
    def entropy(self, params: PyTree, /) -> Scalar: ...


def num_players(game: Game) -> int:
    return getattr(game, "num_players", 2)


def softened_loss(params: PyTree, game: Game, bonus: Scalar) -> Scalar:
    return -game.cross_play(*[params] * num_players(game)) - bonus * game.entropy(params)


def game_problem(game: Game, bonus: float = 0.0) -> Problem:
    """Minus the payoff of self-play with a bonus for entropy; the game is its data."""
    dtype = jax.tree.leaves(game.start)[0].dtype
    return Problem(softened_loss, game.start, game, jnp.asarray(bonus, dtype))


def check_game(game: Game, num_runs: int) -> None:
    """Raise unless there is a run for each player, and one payoff for all."""
    check_count("num_runs", num_runs, num_players(game))
    paid = jax.eval_shape(game.cross_play, *[game.start] * num_players(game))
    if getattr(paid, "shape", ()) != ():
        raise ValueError(
            "`game` must pay all players alike, but it has a payoff for each player: see "
            "coordination.equilibria(game)."
        )


@eqx.filter_jit
def cross_play(game: Game, policies: PyTree[Float[Array, "runs ..."]]) -> Float[Array, "..."]:
    """The payoff of every combination of runs; axis k is the run that player k comes from."""
    players = num_players(game)
    nested: Callable[..., Array] = lambda *params: game.cross_play(*params)  # noqa: E731
    for player in reversed(range(players)):  # the last vmap added is the first axis
        nested = jax.vmap(nested, tuple(0 if k == player else None for k in range(players)))
    return nested(*[policies] * players)


def means(scores: np.ndarray) -> dict[str, float]:
    """Of the payoffs of all combinations of runs: all of them, a run with itself, and strangers.

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


@dataclass(frozen=True)
class Baseline:
    """Independent runs of a method: their policies, and how they play with each other.

    - `policies`: the parameters, with a leading axis of runs.
    - `scores`: the payoff of every combination of runs; axis k is the run of player k.
    - `self_play`: the mean of a run with itself; `cross_play`: over all pairs of runs, a run with
      itself included, as in the paper.
    - `with_strangers`: the same over different runs; what a stranger can expect. Its
      `standard_error` is zero where all runs agree, and large where tied policies met by luck.

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
    standard_error: float


@checked
def play_alone(game: Game, num_runs: Count = 25, *, seed: Seed = 0) -> Baseline:
    """Self-play: every run maximises its own payoff by gradient ascent (Adam) from a random start.

    Nothing tells a run which of several equivalent optima the others will reach.

    >>> from ridgerider.problems import Levers
    >>> baseline = play_alone(Levers((1.0,) * 5), num_runs=10)
    >>> round(baseline.self_play, 2), baseline.with_strangers < 0.5
    (1.0, True)
    """
    return _play(game, None, num_runs, seed, num_starts=1, noise=0.1)


@checked
def other_play(
    game: Game,
    symmetries: Int[np.ndarray, "symmetries size"],
    num_runs: Count = 25,
    *,
    seed: Seed = 0,
) -> Baseline:
    """Other-Play (Hu et al., 2020): maximise the payoff with partners relabelled by a symmetry.

    The method that is told the symmetries, which Ridge Rider must discover: each run maximises the
    mean of `cross_play(params, permuted params)` over them. That mean has local maxima, so each run
    takes the best of 50 starts.

    - `symmetries`: permutations of the vector of all parameters, one in each row, the identity
      among them.

    >>> from ridgerider.problems import Levers
    >>> game = Levers((1.0, 1.0, 0.8))
    >>> round(other_play(game, game.symmetries(), num_runs=3).cross_play, 2)
    0.8
    """
    return _play(game, symmetries, num_runs, seed, num_starts=50, noise=2.0)


def _play(
    game: Game, symmetries: Any, num_runs: int, seed: int, num_starts: int, noise: float
) -> Baseline:
    """Adam from several noisy starts for each run, of which the best is kept."""
    check_game(game, num_runs)
    problem = game_problem(game)
    rows = np.arange(problem.size)[None] if symmetries is None else np.asarray(symmetries)
    if rows.ndim != 2 or np.sort(rows).tolist() != [[*range(problem.size)]] * len(rows):
        raise ValueError(
            f"`symmetries` must hold permutations of 0 to {problem.size - 1} as rows, "
            f"not an array of shape {rows.shape}."
        )
    shape = (num_runs, num_starts, problem.size)
    noises = noise * jax.random.normal(jax.random.key(seed), shape, problem.dtype)
    found, losses = _ascend(game, problem, jnp.asarray(rows), problem.x0[None, None] + noises)
    best = jnp.take_along_axis(found, jnp.argmin(losses, axis=1)[:, None, None], axis=1)[:, 0]
    policies = jax.vmap(problem.unravel)(best)
    scores = np.asarray(cross_play(game, policies))
    return Baseline(policies, scores, **means(scores))


@eqx.filter_jit
def _ascend(
    game: Game,
    problem: Problem,
    symmetries: Int[Array, "symmetries size"],
    starts: Float[Array, "runs starts size"],
) -> tuple[Float[Array, "runs starts size"], Float[Array, "runs starts"]]:
    """Where Adam leads from each start, and the loss there."""
    optimizer = optax.adam(LEARNING_RATE)

    def loss(x: Vector) -> Scalar:
        def play(permutation: Int[Array, " size"]) -> Scalar:
            partners = [problem.unravel(x[permutation])] * (num_players(game) - 1)
            return game.cross_play(problem.unravel(x), *partners)

        return -jnp.mean(jax.vmap(play)(symmetries))

    def step(_: int, carry: tuple) -> tuple:
        x, state = carry
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            updates, state = optimizer.update(jax.grad(loss)(x), state, x)
        return x + updates.astype(x.dtype), state

    def ascend(x: Vector) -> tuple[Vector, Scalar]:
        x, _ = jax.lax.fori_loop(0, NUM_STEPS, step, (x, optimizer.init(x)))
        return x, loss(x)

    return jax.vmap(jax.vmap(ascend))(starts)
