"""Where runs set out from: a saddle inside, of the game or of the game with an entropy bonus."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ridgerider._core.points.find_saddle import Saddle, find_saddle
from ridgerider._core.problem.problem import Problem, Scalar, Vector
from ridgerider.coordination._game import Game, game_problem

NOISE = 0.01  # of the start, so that runs are independent
FAR = 10.0  # a parameter that moved further has given up an action
NEAR = 0.1  # a saddle that Newton's method moves further is none
MORE = 3  # Morse indices that are tried, from that of the start
NUM_SAMPLES = 64  # policies that measure the scale of payoffs
NUM_HALVINGS = 10  # of the bonus, from that scale down
FLAT = 1e-6  # times that scale: a gradient at a stationary point, or a curvature, that is zero
NUM_STEPS = 50  # of Newton's method for each bonus


def common_saddles(game: Game, seeds: list[int]) -> tuple[list[Saddle], float, bool]:
    """A strict saddle for each run, the entropy bonus (0: none), and whether they are no saddles.

    There is a bonus where some run finds no saddle inside. Where the stationary point that is
    unique for a large bonus is not a saddle for any smaller one either, there is nothing to choose:
    all runs follow it to the least.
    """
    saddles = []
    for seed in seeds:
        saddles.append(_saddle(game, seed))
        if not (saddles[-1].is_strict and _is_inside(game, saddles[-1])):
            break
    else:
        return saddles, 0.0, False
    bonuses = _ladder(game)
    path = _followed(game, bonuses, None)
    steepness = [-one.clusters[0].eigenvalue if one.is_strict else 0.0 for one in path]
    best = int(np.argmax(steepness))
    # Where policies are deterministic all curvature vanishes, and what is left of it is rounding.
    if steepness[best] > FLAT * bonuses[0]:
        found = [_followed(game, bonuses[: best + 1], seed)[-1] for seed in seeds]
        if all(one.is_strict for one in found):
            return found, bonuses[best], False
    while saddles[-1].is_strict and len(saddles) < len(seeds):
        saddles.append(_saddle(game, seeds[len(saddles)]))
    if saddles[-1].is_strict:  # all are, but some have given up an action
        return saddles, 0.0, False
    found = [_followed(game, bonuses, seed)[-1] for seed in seeds]
    problem = game_problem(game, bonuses[-1])
    slopes = [problem.grad(problem.ravel(one.params)) for one in found]
    if all(jnp.linalg.norm(slope) < FLAT * bonuses[0] for slope in slopes):
        return found, bonuses[-1], True
    raise ValueError(
        "`game` must have a saddle near its `start`, where the gradient of self-play vanishes and "
        f"some curvature leads up, but run {len(saddles) - 1} found none, nor did any with a bonus "
        f"for entropy. {saddles[-1].reason}"
    )


def _saddle(game: Game, seed: int) -> Saddle:
    """The strict saddle with the most ridges that is found from this start.

    A policy that gives up an action has a small gradient, too, and fewer ridges: runs that set out
    from there would number them otherwise.
    """
    problem = game_problem(game)
    how: dict[str, Any] = {"noise": NOISE, "num_starts": 1, "seed": seed}
    found = [find_saddle(problem, jax.tree_util.Partial(_disorder, game), **how)]
    first = max(find_saddle(problem, max_steps=0, **how).morse_index, 1)
    for index in range(first, min(first + MORE, problem.size + 1)):
        found.append(find_saddle(problem, index=index, **how))
    strict = [one for one in found if one.is_strict]
    if not strict:
        return found[0]
    return max(strict, key=lambda one: (_is_inside(game, one), one.morse_index))


def _is_inside(game: Game, saddle: Saddle) -> bool:
    """Whether no action was given up, or is about to be: its logit would be far off.

    In single precision the gradient looks like zero long before; Newton's method continues there.
    """
    problem = game_problem(game)
    x = problem.ravel(saddle.params)
    is_near = jnp.max(jnp.abs(_stationary(problem, x) - x)) < NEAR
    return bool(is_near & (jnp.max(jnp.abs(x - problem.x0)) < FAR))


def _ladder(game: Game) -> list[float]:
    """Bonuses to try: from the range of payoffs of sharp policies, each half of the one before."""
    problem = game_problem(game)
    shape = (NUM_SAMPLES, problem.size)
    x = 3 * jax.random.normal(jax.random.key(0), shape, problem.dtype)
    scale = float(jnp.ptp(jax.jit(jax.vmap(problem.value))(x)))
    return [scale * 0.5**number for number in range(NUM_HALVINGS)]


def _followed(game: Game, bonuses: list[float], seed: int | None) -> list[Saddle]:
    """The stationary point that is unique for a large bonus, followed to smaller ones."""
    x, found = game_problem(game).x0, []
    if seed is not None:
        x = x + NOISE * jax.random.normal(jax.random.key(seed), x.shape, x.dtype)
    for bonus in bonuses:
        problem = game_problem(game, bonus)
        x = _stationary(problem, x)
        here = problem.with_start(problem.unravel(x))
        found.append(find_saddle(here, max_steps=0, num_starts=1))
    return found


@eqx.filter_jit
def _stationary(problem: Problem, x: Vector) -> Vector:
    """Newton's method on the gradient, with steps of at most one; flat directions stay."""

    def step(_: int, x: Float[Array, " n"]) -> Vector:
        eigenvalues, columns = jnp.linalg.eigh(problem.hessian(x))
        sizes = jnp.abs(eigenvalues)
        is_flat = sizes < max(1e-6, 30 * float(jnp.finfo(x.dtype).eps)) * jnp.max(sizes)
        slopes = columns.T @ problem.grad(x)
        move = columns @ jnp.where(is_flat, 0, slopes / jnp.where(is_flat, 1, eigenvalues))
        return x - move / jnp.maximum(jnp.linalg.norm(move), 1)

    return jax.lax.fori_loop(0, NUM_STEPS, step, x)


def _disorder(game: Game, params: PyTree) -> Scalar:
    return -game.entropy(params)
