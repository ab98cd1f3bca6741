"""What rides and descends on the trees: the methods of `trees` and `ablation`, and how they count.

Ours, because the paper does not give it: a policy counts as a solution as `Tree.solutions` says; a
leg ends with a short descent, and so does every ride of a baseline; a descent ends once it is
solved; a search ends when it has found everything, and baselines get the steps it used until then.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ridgerider as rr
from ridgerider import baselines
from ridgerider.problems.tree import Tree
from ridgerider.types import Branch, Cost, shuffled
from ridgerider_experiments.runner import Job, Runner, grouped, percent, proportion
from ridgerider_experiments.show import markdown

MAX_RIDGES = 6  # the paper's N
TARGET = -9.5  # a descent that returns this much is over


def ridge_rider(delta_break: float, min_overlap: float = 0.7072) -> rr.Rider:
    """The rider on trees. Numbers are arrays, so that all settings share compiled programs."""
    return rr.Rider(
        step=rr.Backtracking(
            size=jnp.asarray(2.0),  # a logit's way from even to 88 %
            delta_break=jnp.asarray(delta_break),
            min_size=jnp.asarray(0.05),
        ),
        stop=(
            rr.curvature_gone,
            rr.RidgeLost(jnp.asarray(min_overlap)),
            rr.Stalled(patience=3, tolerance=jnp.asarray(0.03)),
            rr.not_finite,
        ),
        # A step of 1 / curvature, to where a logit's gradient is down to a hundredth of it.
        finish=rr.Descend(jax.tree_util.Partial(optax.sgd, 1.0), max_steps=60, tolerance=0.01),
        max_steps=100,
    )


def unsolved_first(branch: Branch) -> tuple[bool, int]:
    """Shuffled, and branches of policies that are solved last."""
    return branch.loss <= TARGET, shuffled(branch)


def recommended() -> baselines.RidgeRider:
    """Our setting: coarse steps, and branches in random order."""
    return baselines.RidgeRider(ridge_rider(0.8), order=unsolved_first, max_ridges=MAX_RIDGES)


def paper() -> baselines.RidgeRider:
    """The paper's: delta_break 0.95, which also ends a ride, and breadth first."""
    return baselines.RidgeRider(
        ridge_rider(0.95, 0.95), order="breadth_first", max_ridges=MAX_RIDGES
    )


def descent(step_size: float = 0.1, spread: float = 1.0) -> baselines.GradientDescent:
    return baselines.GradientDescent(spread=spread, step_size=step_size, target=TARGET)


def random_vectors(is_curved: bool = False) -> baselines.RandomVectors:
    """Steps of 0.1, the paper's, along random directions; then the same descent as a leg's.

    Of random directions half curve upwards: with `is_curved` these never move. As for Rand-Ridge+,
    no curvature is asked for otherwise.
    """
    rider = baselines.fixed_step(baselines.fixed_ridge(ridge_rider(0.8)), 0.1)
    stop = tuple(rule for rule in rider.stop if is_curved or rule is not rr.curvature_gone)
    return baselines.RandomVectors(replace(rider, stop=stop))


@dataclass(frozen=True)
class NoveltySearch:
    """Novelty search (Lehman and Stanley): policies that do what no other did breed, for no reward.

    What a policy does are the probabilities of the leaves; how new that is, its mean distance from
    the ten nearest of all policies so far, or of 2,000 drawn from them. The twenty newest of
    parents and children each have a child, a step of standard deviation 1 away. A step is one
    policy.
    """

    tree: Tree

    def __call__(
        self,
        problem: rr.Problem,
        *,
        max_steps: int | None = None,
        max_seconds: float | None = None,
        seed: int = 0,
        until: Callable[[np.ndarray], bool] = lambda x: False,
    ) -> baselines.Ends:
        random, began = np.random.default_rng(seed), time.perf_counter()
        children, done = random.normal(size=(20, self.tree.size)), np.zeros((0, self.tree.size))
        parents, second = done, np.zeros(0)
        while True:
            children = children[: None if max_steps is None else max_steps - len(done)]
            done = np.concatenate([done, children])
            second = np.append(second, np.full(len(children), time.perf_counter() - began))
            is_late = max_seconds is not None and second[-1] >= max_seconds
            if until(children) or is_late or len(done) == max_steps:
                break
            both = np.concatenate([parents, children])
            archive = done[random.permutation(len(done))[:2000]]
            here, there = (self.tree.probabilities(x) for x in (both, archive))
            apart = np.sort(np.linalg.norm(here[:, None] - there[None], axis=2), axis=1)
            parents = both[np.argsort(-apart[:, 1:11].mean(axis=1))[:20]]
            children = parents + random.normal(size=parents.shape)
        cost = Cost(values=len(done), seconds=time.perf_counter() - began)
        losses = -self.tree.returns(done)
        return baselines.Ends(done, losses, 1 + np.arange(len(done)), second, len(done), cost)


def by_depth(
    runner: Runner,
    work: Callable[[Job], Any],
    seed: int,
    depths: Iterable[int],
    sizes: Sequence[float],
    **own: Any,
) -> dict[str, Any]:
    """The means of what `work` measures on several trees of each depth.

    The deepest come first: they take longest.
    """
    count = own.pop("num_trees")
    jobs = [
        {**own, "depth": depth, "seed": 1000 * seed + number}
        for depth in sorted(depths, reverse=True)
        for number in range(count)
    ]
    found = grouped(jobs, runner(work, jobs), "depth")
    return {str(depth): summary(found[depth], sizes) for depth in depths}


def measure(
    method: Any,
    tree: Tree,
    problem: rr.Problem | None = None,
    *,
    max_steps: int | None = None,
    max_seconds: float | None = None,
    until_all: bool = False,
    seed: int = 0,
) -> Any:
    """Which fraction of the tree's solutions a method finds, after a run that compiles it.

    `problem`: if it is another one than the tree's; its first parameters are the policy.
    `until_all`: whether it ends when nothing is left to find. Of a list of methods, each.
    """
    if isinstance(method, list):
        how: Any = {"max_steps": max_steps, "max_seconds": max_seconds, "seed": seed}
        return [measure(one, tree, problem, **how, until_all=until_all) for one in method]
    problem, found = problem or tree.problem(), set[str]()

    def until(x: np.ndarray) -> bool:
        found.update(tree.solutions(x[:, : tree.size]))
        return until_all and len(found) == tree.num_solutions

    method(problem, max_steps=2)
    if max_steps is None or max_steps >= 16_000:  # descents then take more lanes
        method(problem, max_steps=max_steps, max_seconds=0.01)
    ends = method(problem, max_steps=max_steps, max_seconds=max_seconds, seed=seed, until=until)
    return {
        "fraction": len(found) / tree.num_solutions,
        "iterations": int(ends.num_steps),
        "seconds": float(ends.cost.seconds),
    }


def summary(done: list[dict[str, Any]], sizes: Sequence[float]) -> dict[str, Any]:
    """The mean over trees for each method.

    A method that was measured once for each of `sizes` counts by the size that found most.
    """

    def mean(of: list[dict[str, Any]]) -> dict[str, Any]:
        numbers = [name for name in ("iterations", "seconds") if name in of[0]]
        means: dict[str, Any] = {name: np.mean([one[name] for one in of]) for name in numbers}
        return {**proportion([one["fraction"] for one in of]), **means}

    found = {}
    for name, first in done[0].items():
        if isinstance(first, list):
            each = [mean(list(of)) for of in zip(*(one[name] for one in done), strict=True)]
            shares = [one["mean"] for one in each]
            best = int(np.argmax(shares))
            found[name] = {**each[best], "step_size": sizes[best], "tried": shares}
        else:
            found[name] = mean([one[name] for one in done])
    return found


def table(depths: dict[str, Any], labels: dict[str, tuple[str, str]], *more: Sequence[Any]) -> str:
    """A row for each method: label, the paper's words, and the share found at each depth."""
    rows = [
        [label, said, *(percent(of.get(name)) for of in depths.values())]
        for name, (label, said) in labels.items()
    ]
    head = ["solutions found (%)", "paper", *(f"depth {depth}" for depth in depths)]
    return markdown(head, [*rows, *more])
