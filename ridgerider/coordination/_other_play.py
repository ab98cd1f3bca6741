"""Baselines for zero-shot coordination: self-play, and Other-Play, which is told the symmetries."""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

from ridgerider._check import Count, Seed, checked
from ridgerider._core.problem.problem import Problem, Scalar, Vector
from ridgerider.coordination._game import (
    Game,
    check_game,
    cross_play,
    game_problem,
    means,
    num_players,
)

LEARNING_RATE, NUM_STEPS = 0.3, 500  # of Adam


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
    game: Game,
    symmetries: Int[np.ndarray, "symmetries size"] | None,
    num_runs: int,
    seed: int,
    num_starts: int,
    noise: float,
) -> Baseline:
    """Adam from `num_starts` noisy starts for each run, of which the best is kept."""
    check_game(game, num_runs)
    problem = game_problem(game)
    rows = np.arange(problem.size)[None] if symmetries is None else np.asarray(symmetries)
    if rows.ndim != 2 or not np.array_equal(
        np.sort(rows, axis=1), np.tile(np.arange(problem.size), (len(rows), 1))
    ):
        raise ValueError(
            f"`symmetries` must hold permutations of 0 to {problem.size - 1} as rows, "
            f"not an array of shape {rows.shape}."
        )
    shape = (num_runs, num_starts, problem.size)
    noises = noise * jax.random.normal(jax.random.key(seed), shape, problem.dtype)
    policies = jax.vmap(problem.unravel)(_ascend(game, problem, jnp.asarray(rows), noises))
    scores = np.asarray(cross_play(game, policies))
    return Baseline(policies, scores, **means(scores))


@eqx.filter_jit
def _ascend(
    game: Game,
    problem: Problem,
    symmetries: Int[Array, "symmetries size"],
    noises: Float[Array, "runs starts size"],
) -> Float[Array, "runs size"]:
    optimizer = optax.adam(1.0)

    def loss(x: Vector) -> Scalar:
        def play(permutation: Int[Array, " size"]) -> Scalar:
            partners = [problem.unravel(x[permutation])] * (num_players(game) - 1)
            return game.cross_play(problem.unravel(x), *partners)

        return -jnp.mean(jax.vmap(play)(symmetries))

    def step(_: int, carry: tuple) -> tuple:
        x, state = carry
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            updates, state = optimizer.update(jax.grad(loss)(x), state, x)
        return x + LEARNING_RATE * updates.astype(x.dtype), state

    def ascend(noise: Vector) -> tuple[Vector, Scalar]:
        x = problem.x0 + noise
        x, _ = jax.lax.fori_loop(0, NUM_STEPS, step, (x, optimizer.init(x)))
        return x, loss(x)

    def best(noises: Float[Array, "starts size"]) -> Vector:
        xs, losses = jax.vmap(ascend)(noises)
        return xs[jnp.argmin(losses)]

    return jax.vmap(best)(noises)
