"""Figure 8: Ridge Rider on trees that are only sampled, against an actor-critic.

    ridgerider reproduce dice

Paper: with 100 samples per loss and Loaded DiCE, Ridge Rider "significantly outperforms the vanilla
actor critic baseline" at depths 4 and 6, "with gains also coming on larger trees". Known: ten trees
per depth, T = 1e5, ridge steps alternate with SGD on the value function, the baseline optimises
both jointly. Ours: step sizes, value function (a table), how a ride ends, and that a search ends
when all is found; the actor-critic gets the same number of samples, from the same start, and the
best of a few step sizes. All decisions use sampled returns; the exact tree is used only to name the
solutions afterwards.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray
from matplotlib.figure import Figure

from ridgerider.dice import Dice, Trajectories, dice_loss
from ridgerider.experiments.sweep import Job, percent, proportion, run_jobs
from ridgerider.experiments.tree_methods import MAX_RIDGES
from ridgerider.problems.sampled_tree import TreeEnvironment
from ridgerider.problems.tree import Tree, make_tree

NUM_SAMPLES = 100  # the paper's
SIZES = (2.0, 1.0, 0.5)  # of a step along a ridge; the one with the best sampled return is taken
MAX_RIDE, MAX_FINISH = 12, 60  # steps along a ridge, and of the policy gradient after it
SOLVED = 9.5  # a run ends once 100 samples return this much
VALUE_RATE = 0.5  # of SGD on the value function
FINISH_RATE = 1.0
STEP_SIZES = (0.1, 1.0, 3.0, 10.0, 30.0)  # tried for the actor-critic
MAX_LENGTH = 1000  # steps of one actor-critic run
CHUNK, ROUND = 64, 16
LABELS = {"rr": ("Ridge Rider", "#D55E00"), "actor_critic": ("actor-critic", "#0072B2")}
DICE = Dice()


@dataclass(frozen=True)
class Settings:
    seed: int = 0
    depths: tuple[int, ...] = (4, 6, 8)
    num_trees: int = 10
    max_batches: int = 20_000  # of 100 samples
    num_workers: int = 2

    @staticmethod
    def quick(seed: int) -> "Settings":
        return Settings(seed=seed, depths=(4,), num_trees=3, max_batches=2000, num_workers=1)


class Agent(NamedTuple):
    """A policy and its value function: a logit and a value for each decision."""

    x: Float[Array, " n"]
    values: Float[Array, " n"]


def look(
    environment: TreeEnvironment, agent: Agent, key: PRNGKeyArray
) -> tuple[Trajectories, Float[Array, "samples time"], Float[Array, ""]]:
    """One batch: trajectories, their advantages, and the mean return."""
    paths = environment.sample(agent.x, key, NUM_SAMPLES)
    advantages = DICE.advantages(paths, agent.values[paths.states])
    return paths, advantages, jnp.mean(jnp.sum(paths.rewards, axis=1))


def learn_values(agent: Agent, paths: Trajectories) -> Agent:
    """A step of SGD on the squared error of the values."""

    def loss(values: Float[Array, " n"]) -> Float[Array, ""]:
        to_go = jnp.cumsum(paths.rewards[:, ::-1], axis=1)[:, ::-1]
        return jnp.mean(jnp.sum((to_go - values[paths.states]) ** 2 * paths.mask, axis=1)) / 2

    return agent._replace(values=agent.values - VALUE_RATE * jax.grad(loss)(agent.values))


def descend(
    environment: TreeEnvironment, agent: Agent, key: PRNGKeyArray, rate: float | Array
) -> tuple[Agent, Float[Array, ""]]:
    """One step of the actor-critic on policy and values together; one batch."""
    paths, advantages, returned = look(environment, agent, key)
    grad = jax.grad(dice_loss)(agent.x, environment, paths, advantages, DICE)
    return learn_values(agent, paths)._replace(x=agent.x - rate * grad), returned


class End(NamedTuple):
    """Where a ride led: the agent at the ridge's end, its ridges, and the descended policy."""

    agent: Agent
    eigenvalues: Float[Array, " n"]
    eigenvectors: Float[Array, "n n"]
    is_solved: Array
    x: Float[Array, " n"]
    num_batches: Int[Array, ""]


def spectrum_at(
    environment: TreeEnvironment, agent: Agent, key: PRNGKeyArray
) -> tuple[Agent, Array, Array, Array]:
    """The sampled Hessian's eigenpairs; the values learn from the same batch."""
    paths, advantages, returned = look(environment, agent, key)
    hessian = jax.hessian(dice_loss)(agent.x, environment, paths, advantages, DICE)
    eigenvalues, columns = jnp.linalg.eigh(hessian)
    return learn_values(agent, paths), eigenvalues, columns.T, returned


def ride(environment: TreeEnvironment, agent: Agent, direction: Array, key: PRNGKeyArray) -> End:
    """Ride one ridge, then descend."""

    def go_on(carry: tuple) -> Array:
        _, _, eigenvalue, returned, step, _ = carry
        return (eigenvalue < 0) & (returned < SOLVED) & (step < MAX_RIDE)

    def step(carry: tuple) -> tuple:
        agent, direction, _, _, step, _ = carry
        keys = jax.random.split(jax.random.fold_in(key, step), len(SIZES) + 1)
        # The step size is chosen by what it returns: the value of DiCE is always 0.
        moved = agent.x[None] + jnp.asarray(SIZES)[:, None] * direction[None]
        returns = jax.vmap(lambda x, key: look(environment, agent._replace(x=x), key)[2])(
            moved, keys[:-1]
        )
        agent = agent._replace(x=moved[jnp.argmax(returns)])
        agent, eigenvalues, rows, returned = spectrum_at(environment, agent, keys[-1])
        overlaps = rows @ direction
        best = jnp.argmax(jnp.abs(overlaps))
        direction = rows[best] * jnp.sign(overlaps[best])
        return agent, direction, eigenvalues[best], returned, step + 1, (eigenvalues, rows)

    size = len(direction)
    nothing = (jnp.zeros(size), jnp.zeros((size, size)))
    first = (agent, direction, -jnp.ones(()), -jnp.ones(()), jnp.array(0), nothing)
    agent, _, _, returned, steps, (eigenvalues, rows) = jax.lax.while_loop(go_on, step, first)

    def is_unsolved(carry: tuple) -> Array:
        _, returned, count = carry
        return (returned < SOLVED) & (count < MAX_FINISH)

    def descend_once(carry: tuple) -> tuple:
        here, _, count = carry
        next_key = jax.random.fold_in(key, 1000 + count)
        return *descend(environment, here, next_key, FINISH_RATE), count + 1

    begin = (agent, returned, jnp.array(0))
    end, _, descents = jax.lax.while_loop(is_unsolved, descend_once, begin)
    batches = steps * (len(SIZES) + 1) + descents
    return End(agent, eigenvalues, rows, returned >= SOLVED, end.x, batches)


@eqx.filter_jit
def ride_many(
    environment: TreeEnvironment, agents: Agent, directions: Array, keys: PRNGKeyArray
) -> End:
    return jax.lax.map(lambda row: ride(environment, *row), (agents, directions, keys))


@eqx.filter_jit
def first_look(environment: TreeEnvironment, agent: Agent, key: PRNGKeyArray) -> tuple:
    return spectrum_at(environment, agent, key)


def ridge_rider(tree: Tree, environment: TreeEnvironment, max_batches: int, seed: int) -> dict:
    """Search: branches in random order, solved policies not branched from."""
    random, key = np.random.default_rng(seed), jax.random.key(seed)
    agent = Agent(jnp.zeros(tree.size), jnp.zeros(tree.size))
    agent, eigenvalues, rows, _ = jax.device_get(first_look(environment, agent, key))
    found, used, number = set[str](), 1, 0
    waiting = _branches(agent, eigenvalues, rows)
    while waiting and used < max_batches and len(found) < tree.num_solutions:
        picked = random.permutation(len(waiting))[:ROUND]
        chosen = [waiting[i] for i in picked]
        waiting = [branch for i, branch in enumerate(waiting) if i not in set(picked)]
        rows_in = [chosen[i % len(chosen)] for i in range(ROUND)]  # the last round is filled up
        agents = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[row[0] for row in rows_in])
        directions = jnp.stack([row[1] for row in rows_in])
        keys = jax.random.split(jax.random.fold_in(key, number), ROUND)
        ends, number = jax.device_get(ride_many(environment, agents, directions, keys)), number + 1
        for i in range(len(chosen)):
            used += int(ends.num_batches[i])
            if used <= max_batches:
                found |= tree.solutions(ends.x[i])
            if not ends.is_solved[i]:
                agent = jax.tree.map(lambda leaf, i=i: leaf[i], ends.agent)
                waiting += _branches(agent, ends.eigenvalues[i], ends.eigenvectors[i])
    return {"fraction": len(found) / tree.num_solutions, "batches": min(used, max_batches)}


def _branches(agent: Agent, eigenvalues: np.ndarray, rows: np.ndarray) -> list[tuple]:
    """Both ways along the most negative ridges; rounding makes no ridge of a padded logit."""
    floor = -1e-6 * np.abs(eigenvalues).max()
    return [
        (agent, sign * row)
        for eigenvalue, row in list(zip(eigenvalues, rows, strict=True))[:MAX_RIDGES]
        if eigenvalue < floor
        for sign in (1, -1)
    ]


@eqx.filter_jit
def _actor_critic_chunk(
    environment: TreeEnvironment, state: tuple, rate: Array
) -> tuple[tuple, tuple]:
    def step(state: tuple, _: None) -> tuple[tuple, tuple]:
        agent, length, key = state
        key, here = jax.random.split(key)
        after, returned = descend(environment, agent, here, rate)
        is_end = (returned >= SOLVED) | (length + 1 >= MAX_LENGTH)
        fresh = jax.tree.map(jnp.zeros_like, after)
        state = jax.tree.map(lambda new, old: jnp.where(is_end, new, old), fresh, after)
        return (state, jnp.where(is_end, 0, length + 1), key), (is_end, agent.x)

    return jax.lax.scan(step, state, None, length=CHUNK)


def actor_critic(
    tree: Tree, environment: TreeEnvironment, max_batches: int, seed: int, rate: float
) -> dict:
    """Run after run from the policy of maximum entropy, until the samples are used up."""
    agent = Agent(jnp.zeros(tree.size), jnp.zeros(tree.size))
    state, used, found = (agent, jnp.array(0), jax.random.key(seed)), 0, set[str]()
    while used < max_batches:
        state, out = _actor_critic_chunk(environment, state, jnp.asarray(rate))
        is_end, x = jax.device_get(out)
        is_end = is_end & (np.arange(CHUNK) < max_batches - used)
        if is_end.any():
            found |= tree.solutions(x[is_end])
        used = min(used + CHUNK, max_batches)
    return {"fraction": len(found) / tree.num_solutions, "batches": used}


def work(job: Job) -> dict[str, Any]:
    """Both methods on one tree, with the same number of batches."""
    began = time.perf_counter()
    tree = make_tree(job["depth"], seed=job["seed"])
    environment = TreeEnvironment(tree, num_times=job["depth"])
    ridges = ridge_rider(tree, environment, job["max_batches"], job["seed"])
    others = {
        f"actor_critic_{rate:g}": actor_critic(
            tree, environment, ridges["batches"], job["seed"], rate
        )
        for rate in STEP_SIZES
    }
    return {"rr": ridges, **others, "seconds": time.perf_counter() - began}


def run(settings: Settings, out: Path, say: Callable[[str], None] = print) -> dict[str, Any]:
    began = time.perf_counter()
    jobs = [
        {"depth": depth, "seed": settings.seed * 1000 + i, "max_batches": settings.max_batches}
        for depth in settings.depths
        for i in range(settings.num_trees)
    ]
    done = run_jobs(work, jobs, out / "dice.jsonl", settings.num_workers, say)
    depths = {}
    for depth in settings.depths:
        here = [one for job, one in zip(jobs, done, strict=True) if job["depth"] == depth]
        depths[str(depth)] = summary(here)
    draw(depths, out)
    return {
        "depths": depths,
        "num_samples": NUM_SAMPLES,
        "max_batches": settings.max_batches,
        "seconds": time.perf_counter() - began,
    }


def summary(done: list[dict[str, Any]]) -> dict[str, Any]:
    found = {
        name: {
            **proportion(one[name]["fraction"] for one in done),
            "iterations": sum(one[name]["batches"] for one in done) / len(done),
            "samples": NUM_SAMPLES * sum(one[name]["batches"] for one in done) / len(done),
        }
        for name in done[0]
        if name != "seconds"
    }
    tried = {rate: found.pop(f"actor_critic_{rate:g}") for rate in STEP_SIZES}
    best = max(tried, key=lambda rate: tried[rate]["mean"])
    return {
        **found,
        "actor_critic": {**tried[best], "step_size": best},
        "actor_critic_0.1": tried[0.1],
        "seconds": sum(one["seconds"] for one in done) / len(done),
    }


def draw(depths: dict[str, Any], out: Path) -> None:
    figure = Figure(figsize=(4.8, 3.6), layout="constrained")
    ax = figure.subplots()
    for number, (name, (label, color)) in enumerate(LABELS.items()):
        rows = [depths[depth][name] for depth in depths]
        errors = [
            [100 * (row["mean"] - row["low"]) for row in rows],
            [100 * (row["high"] - row["mean"]) for row in rows],
        ]
        places = [i + (number - 0.5) * 0.38 for i in range(len(rows))]
        heights = [100 * row["mean"] for row in rows]
        ax.bar(places, heights, 0.36, yerr=errors, color=color, label=label, capsize=3)
    ax.set_xticks(range(len(depths)), [f"depth {depth}" for depth in depths])
    ax.set(ylabel="solutions found (%)", ylim=(0, 105))
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=9, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1))
    for suffix in ("png", "svg"):
        figure.savefig(out / f"dice.{suffix}", dpi=160)


def table(results: dict[str, Any]) -> str:
    depths = results["depths"]
    rows = {
        "rr": ("Ridge Rider", "above at depths 4 and 6"),
        "actor_critic": ("actor-critic, best step size", "below"),
        "actor_critic_0.1": ("actor-critic, step size 0.1", "-"),
    }
    head = " | ".join(f"depth {depth}" for depth in depths)
    lines = [f"| solutions found (%) | paper | {head} |", "|---|---|" + "---|" * len(depths)]
    for name, (label, said) in rows.items():
        cells = [percent(of[name]) for of in depths.values()]
        lines.append(f"| {label} | {said} | {' | '.join(cells)} |")
    sizes = [f"{of['actor_critic']['step_size']:g}" for of in depths.values()]
    lines.append(f"| that best step size | - | {' | '.join(sizes)} |")
    samples = [f"{of['rr']['samples']:.0f}" for of in depths.values()]
    lines.append(f"| samples of each, mean | - | {' | '.join(samples)} |")
    return "\n".join(lines) + "\n"
