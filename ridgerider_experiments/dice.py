"""Figure 8: Ridge Rider on trees that are only sampled, against an actor-critic.

    ridgerider reproduce dice

Paper: with 100 samples per loss and Loaded DiCE, Ridge Rider "significantly outperforms the vanilla
actor critic baseline" at depths 4 and 6, "with gains also coming on larger trees". Known: ten trees
per depth, T = 1e5, ridge steps alternate with SGD on the value function, the step size of Ridge
Rider adapts as on exact trees, the baseline optimises both jointly. Ours: step sizes, value
function (a table), how a ride ends, and that a search ends when all is found; the actor-critic gets
the same number of samples, from the same start, and the best of a few step sizes, and once all of
T. All decisions use sampled returns; the exact tree only names the solutions afterwards.

The samples are a `Problem` like any other, ridden by a `Rider`. Its value is minus the mean return
of fresh samples and its derivatives are those of Loaded DiCE; a batch is a key to sample with.

Differs from the paper, which does not say what an iteration is: here a loss on 100 samples, tried
step sizes included.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

import ridgerider as rr
from ridgerider import baselines
from ridgerider.dice import Dice, dice_loss
from ridgerider.problems.sampled_tree import TreeEnvironment
from ridgerider.problems.tree import Tree, make_tree
from ridgerider.types import Cost, Finish, Ride, Ridge
from ridgerider_experiments import tree_methods
from ridgerider_experiments.runner import Base, Job, Runner, sized
from ridgerider_experiments.show import bars, drawing

NUM_SAMPLES = 100  # the paper's
DELTA_BREAK = 0.8  # as on exact trees
MAX_RIDE, MAX_FINISH = 12, 60  # steps along a ridge, and of the policy gradient after it
VALUE_RATE = 0.5  # of SGD on the value function
FINISH_RATE = 1.0
STEP_SIZES = (0.1, 1.0, 3.0, 10.0, 30.0)  # tried for the actor-critic
LONG_STEP = 3.0  # of the actor-critic that gets all of T
MAX_LENGTH = 1000  # steps of one actor-critic run
CHUNK = 64
LABELS = {"rr": ("Ridge Rider", "#D55E00"), "actor_critic": ("actor-critic", "#0072B2")}
DICE = Dice()


@dataclass(frozen=True)
class Settings(Base):
    depths: tuple[int, ...] = sized((4, 6, 8, 10), quick=(4,))
    num_trees: int = sized(10, quick=3)
    max_batches: int = sized(100_000, quick=2000)  # of 100 samples: the paper's T


# --- the samples as a problem


class Agent(NamedTuple):
    """A policy and its value function: a logit and a value for each decision."""

    policy: Float[Array, " n"]
    values: Float[Array, " n"]


def sampled_loss(agent: Agent, environment: TreeEnvironment, words: UInt32[Array, " 2"]) -> Array:
    """Minus the mean return of 100 samples; it differentiates as Loaded DiCE.

    The squared error of the values counts in derivatives as well. Both parts share no variable, so
    that the ridges are those of the policy.
    """
    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    paths = environment.sample(jax.lax.stop_gradient(agent.policy), key, NUM_SAMPLES)
    values = agent.values[paths.states]
    advantages = DICE.advantages(paths, jax.lax.stop_gradient(values))
    to_go = jnp.cumsum(paths.rewards[:, ::-1], axis=1)[:, ::-1]
    errors = jnp.mean(jnp.sum((to_go - values) ** 2 * paths.mask, axis=1)) / 2
    returned = jnp.mean(jnp.sum(paths.rewards, axis=1))
    surrogate = dice_loss(agent.policy, environment, paths, advantages, DICE)
    return surrogate + errors - jax.lax.stop_gradient(returned + errors)


def sampled(tree: Tree, num_times: int) -> rr.Problem:
    """The problem, from the policy of maximum entropy and values of zero."""
    start = Agent(jnp.zeros(tree.size), jnp.zeros(tree.size))
    environment = TreeEnvironment(tree, num_times)
    return rr.Problem(sampled_loss, start, environment, jnp.zeros(2, jnp.uint32))


def fresh(problem: rr.Problem, key: PRNGKeyArray, step: Array) -> rr.Problem:
    """The problem with samples of its own for each step: a rider's `batch`."""
    words = jax.random.key_data(jax.random.fold_in(key, step))
    return eqx.tree_at(lambda problem: problem.args[1], problem, words)


def learn_values(problem: rr.Problem, x: Array, ridge: Ridge) -> tuple[Array, Cost]:
    """A step of SGD on the values, on the step's own samples: a rider's `correct`."""
    return x - _rates(x, 0.0) * problem.grad(x), Cost(gradients=1)


def _rates(x: Array, rate: float | Array) -> Array:
    """The learning rate of each entry: of the policy, and of the values."""
    return jnp.where(jnp.arange(len(x)) < len(x) // 2, rate, VALUE_RATE).astype(x.dtype)


def is_solved(ride: Ride) -> Array:
    """The step's own samples return as much as a solution does."""
    return ride.loss <= tree_methods.TARGET


def descend(problem: rr.Problem, x: Array, key: PRNGKeyArray, spectrum: Any) -> Finish:
    """The policy gradient until the samples return enough: a rider's `finish`.

    A sampled point cannot be verified as a minimum.
    """

    def should_continue(carry: tuple[Array, Array, Array]) -> Array:
        return (carry[1] > tree_methods.TARGET) & (carry[2] < MAX_FINISH)

    def step(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        x, _, count = carry
        loss, grad = jax.value_and_grad(fresh(problem, key, 1000 + count).value)(x)
        return x - _rates(x, FINISH_RATE) * grad, loss, count + 1

    first = (x, jnp.asarray(jnp.inf, x.dtype), jnp.array(0))
    x, loss, count = jax.lax.while_loop(should_continue, step, first)
    unknown, no = jnp.asarray(jnp.nan, x.dtype), jnp.array(False)
    numbers = (count, jnp.array(0), Cost(gradients=count))
    return Finish(x, loss, unknown, unknown, no, no, *numbers)


def recommended() -> baselines.RidgeRider:
    """The search of exact trees, on samples."""
    rider = rr.Rider(
        step=rr.Backtracking(size=2.0, delta_break=DELTA_BREAK, min_size=0.3),
        stop=(rr.curvature_gone, is_solved, rr.not_finite),
        correct=learn_values,
        finish=descend,
        batch=fresh,
        max_steps=MAX_RIDE,
    )
    return baselines.RidgeRider(
        rider, order=tree_methods.unsolved_first, max_ridges=tree_methods.MAX_RIDGES
    )


# --- the actor-critic


@eqx.filter_jit
def _actor_critic_chunk(problem: rr.Problem, state: tuple, rate: Array) -> tuple[tuple, tuple]:
    def step(state: tuple, _: None) -> tuple[tuple, tuple]:
        x, length, key = state
        key, here = jax.random.split(key)
        loss, grad = jax.value_and_grad(fresh(problem, here, jnp.array(0)).value)(x)
        is_end = (loss <= tree_methods.TARGET) | (length + 1 >= MAX_LENGTH)
        after = jnp.where(is_end, problem.x0, x - _rates(x, rate) * grad)
        return (after, jnp.where(is_end, 0, length + 1), key), (is_end, x)

    return jax.lax.scan(step, state, None, length=CHUNK)


def actor_critic(
    tree: Tree, problem: rr.Problem, max_batches: int, seed: int, rate: float
) -> dict[str, Any]:
    """Run after run from the policy of maximum entropy, until the samples are used up."""
    state, used, found = (problem.x0, jnp.array(0), jax.random.key(seed)), 0, set[str]()
    while used < max_batches:
        state, out = _actor_critic_chunk(problem, state, jnp.asarray(rate))
        is_end, x = jax.device_get(out)
        is_end = is_end & (np.arange(CHUNK) < max_batches - used)
        if is_end.any():
            found |= tree.solutions(x[is_end][:, : tree.size])
        used = min(used + CHUNK, max_batches)
    return {"fraction": len(found) / tree.num_solutions, "iterations": used}


def work(job: Job) -> dict[str, Any]:
    """Both methods on one tree, with the same number of batches; and the baseline with all."""
    tree = make_tree(job["depth"], seed=job["seed"])
    problem, seed = sampled(tree, job["depth"]), job["seed"]
    budget = {"max_steps": job["max_batches"], "until_all": True, "seed": seed}
    ridges = tree_methods.measure(recommended(), tree, problem, **budget)
    with_as_many = [
        actor_critic(tree, problem, ridges["iterations"], seed, rate) for rate in STEP_SIZES
    ]
    return {
        "rr": ridges,
        "actor_critic": with_as_many,
        "actor_critic_0.1": with_as_many[0],
        "actor_critic_T": actor_critic(tree, problem, job["max_batches"], seed, LONG_STEP),
    }


def run(settings: Settings, runner: Runner) -> dict[str, Any]:
    own = {"num_trees": settings.num_trees, "max_batches": settings.max_batches}
    depths = tree_methods.by_depth(runner, work, settings.seed, settings.depths, STEP_SIZES, **own)
    with drawing(runner.out / "dice", 4.8, 3.6) as ax:
        bars(ax, depths, LABELS)
    return {"depths": depths}


def table(results: dict[str, Any]) -> str:
    depths = results["depths"]
    labels = {
        "rr": ("Ridge Rider", "above at depths 4 and 6"),
        "actor_critic": ("actor-critic, best step size", "below"),
        "actor_critic_0.1": ("actor-critic, step size 0.1", "-"),
        "actor_critic_T": (f"actor-critic, step size {LONG_STEP:g}, all of T", "-"),
    }
    sizes = [of["actor_critic"].get("step_size", "-") for of in depths.values()]
    samples = [f"{NUM_SAMPLES * of['rr']['iterations']:.0f}" for of in depths.values()]
    more = ["that best step size", "-", *sizes], ["samples of each, mean", "-", *samples]
    return tree_methods.table(depths, labels, *more)
