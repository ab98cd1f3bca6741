"""How much faster the compiled search on trees is than a plain one.

    ridgerider bench tree-search

The reference does the same search one ride at a time in Python: Hessian by eager autodiff, full
eigendecomposition, overlap with the old direction, halving of the step. Both search the same trees
breadth first without descents at the end. The first rides, along ridges whose eigenvalue is simple,
must end at the same points.
"""

import time
from collections.abc import Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

import ridgerider as rr
from ridgerider import baselines
from ridgerider.problems.tree import make_tree
from ridgerider_experiments.bench import Row
from ridgerider_experiments.tree_methods import MAX_RIDGES, ridge_rider

NUM_TRIES = 400  # of the reference; it is slow
TREES = [(6, 0), (8, 0), (8, 4)]  # depth, seed


def project(
    hessian: np.ndarray, direction: np.ndarray, space: np.ndarray
) -> tuple[np.ndarray, float, float, np.ndarray]:
    """The eigenspace that overlaps most with the direction, and the direction projected onto it.

    Returns that, its curvature, its overlap with the old eigenspace, and the new one.
    """
    eigenvalues, columns = np.linalg.eigh(hessian)
    width = np.finfo(float).eps ** (2 / 3) * np.abs(eigenvalues).max()
    groups, first = [], 0
    for i in range(1, len(eigenvalues) + 1):
        if i == len(eigenvalues) or eigenvalues[i] - eigenvalues[first] > width:
            groups.append(columns[:, first:i])
            first = i
    best = max(groups, key=lambda group: np.sum((direction @ group) ** 2))
    ahead = best @ (direction @ best)
    ahead /= np.linalg.norm(ahead)
    return ahead, ahead @ hessian @ ahead, float(np.linalg.norm(ahead @ space)), best


class Reference:
    """The ride of `ridge_rider(0.8)`, written out."""

    def __init__(self, problem: rr.Problem):
        self.problem, self.num_tries = problem, 0

    def inspect(self, x: np.ndarray) -> tuple[np.ndarray, float]:
        self.num_tries += 1
        at = jnp.asarray(x)
        return np.asarray(jax.hessian(self.problem.value)(at)), float(self.problem.value(at))

    def ride(self, x: np.ndarray, direction: np.ndarray, size: float = 2.0) -> np.ndarray:
        hessian, loss = self.inspect(x)
        direction, eigenvalue, _, space = project(hessian, direction, direction[:, None])
        losses, overlap = [loss], 1.0
        while not self.is_over(eigenvalue, overlap, losses):
            tried, overlap = size, -1.0
            while overlap < 0.8 and (tried == size or tried >= 0.05):
                hessian, loss = self.inspect(x + tried * direction)
                ahead, eigenvalue, overlap, next_space = project(hessian, direction, space)
                accepted, tried = tried, tried / 2
            x, direction, space = x + accepted * direction, ahead, next_space
            size = min(2 * accepted, 2.0) if accepted == size else accepted
            losses.append(loss)
        return x

    def is_over(self, eigenvalue: float, overlap: float, losses: list[float]) -> bool:
        is_flat = len(losses) > 3 and abs(losses[-1] - losses[-4]) <= 0.03 * np.ptp(losses)
        return eigenvalue >= 0 or overlap < 0.7072 or bool(is_flat) or len(losses) > 100

    def ways(self, x: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """The most negative eigenvectors, both ways, with the signs of the library."""
        eigenvalues, columns = np.linalg.eigh(self.inspect(x)[0])
        is_ridge = eigenvalues < -np.sqrt(np.finfo(float).eps) * np.abs(eigenvalues).max()
        rows = columns.T[is_ridge][:MAX_RIDGES]
        # The first entry that is at least half as large as the largest is positive.
        heads = [row[np.argmax(np.abs(row) >= np.abs(row).max() / 2)] for row in rows]
        signed = [row * np.sign(head) for row, head in zip(rows, heads, strict=True)]
        return [(x, sign * row) for row in signed for sign in (1, -1)]

    def search(self, max_tries: int) -> np.ndarray:
        ends, waiting = [], self.ways(np.zeros(self.problem.size))
        while waiting and self.num_tries < max_tries:
            ends.append(self.ride(*waiting.pop(0)))
            waiting += self.ways(ends[-1])
        return np.array(ends)


def num_simple(problem: rr.Problem) -> int:
    """How many ridges come before the first repeated one, whose direction is a matter of gauge."""
    spectrum = rr.DenseSpectrum()(problem, problem.x0, jax.random.key(0))
    sizes = [cluster.multiplicity for cluster in spectrum.clusters()[: spectrum.num_downhill()]]
    return next((i for i, size in enumerate(sizes) if size > 1), len(sizes[:MAX_RIDGES]))


def iterations(seed: int) -> Iterator[Row]:
    rider = replace(ridge_rider(0.8), finish=None)
    method = baselines.Rides(rider, max_ridges=MAX_RIDGES, round_size=16)
    for depth, number in TREES:
        tree = make_tree(depth, seed=number)
        problem = tree.problem()
        began, reference = time.perf_counter(), Reference(problem)
        known = reference.search(NUM_TRIES)
        slow = (time.perf_counter() - began) / reference.num_tries
        method(problem, max_steps=2)
        ends = method(problem, max_steps=30_000)
        fast = float(ends.cost.seconds) / ends.num_steps
        count = min(len(known), 2 * num_simple(problem))
        gap = np.abs(known[:count] - ends.x[:count]).max()
        # Rounding grows where a gap is small on the way; another ridge would end logits away.
        if gap >= 1e-3 or tree.solutions(known[:count]) != tree.solutions(ends.x[:count]):
            raise RuntimeError(f"rides on a tree of depth {depth} end {gap:.1e} apart.")
        task = f"an iteration, depth {depth}, {tree.num_decisions} decisions"
        yield Row(task, "ridgerider", 1e3 * fast, "ms", f"{count} rides agree to {gap:.1e}")
        yield Row(task, "plain Python, eager", 1e3 * slow, "ms")


TASKS = (iterations,)
