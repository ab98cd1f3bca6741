"""How much faster the compiled search on trees is than a plain one.

    python -m ridgerider_experiments.bench.tree_search

The reference does the same search one ride at a time in Python: Hessian by eager autodiff, full
eigendecomposition, overlap with the old direction, halving of the step. Both search the same trees
breadth first without descents at the end. The first rides, along ridges whose eigenvalue is simple,
must end at the same points.
"""

import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

import ridgerider as rr
from ridgerider import baselines
from ridgerider.problems.tree import make_tree
from ridgerider_experiments.tree_methods import MAX_RIDGES, ridge_rider

NUM_TRIES = 400  # of the reference; it is slow
TREES = [(6, 0), (8, 0), (8, 4)]  # depth, seed


def project(hessian, direction, space):
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
    return ahead, ahead @ hessian @ ahead, np.linalg.norm(ahead @ space), best


class Reference:
    """The ride of `ridge_rider(0.8)`, written out."""

    def __init__(self, problem):
        self.problem, self.num_tries = problem, 0

    def look(self, x):
        self.num_tries += 1
        x = jnp.asarray(x)
        return np.asarray(jax.hessian(self.problem.value)(x)), float(self.problem.value(x))

    def ride(self, x, direction, size=2.0):
        hessian, loss = self.look(x)
        direction, eigenvalue, _, space = project(hessian, direction, direction[:, None])
        losses, overlap = [loss], 1.0
        while not self.is_over(eigenvalue, overlap, losses):
            tried, overlap = size, -1.0
            while overlap < 0.8 and (tried == size or tried >= 0.05):
                hessian, loss = self.look(x + tried * direction)
                ahead, eigenvalue, overlap, next_space = project(hessian, direction, space)
                accepted, tried = tried, tried / 2
            x, direction, space = x + accepted * direction, ahead, next_space
            size = min(2 * accepted, 2.0) if accepted == size else accepted
            losses.append(loss)
        return x, losses[-1]

    def is_over(self, eigenvalue, overlap, losses):
        is_flat = len(losses) > 3 and abs(losses[-1] - losses[-4]) <= 0.03 * np.ptp(losses)
        return eigenvalue >= 0 or overlap < 0.7072 or is_flat or len(losses) > 100

    def ridges(self, x):
        """The most negative eigenvectors, with the signs of the library."""
        hessian, _ = self.look(x)
        eigenvalues, columns = np.linalg.eigh(hessian)
        is_ridge = eigenvalues < -np.sqrt(np.finfo(float).eps) * np.abs(eigenvalues).max()
        return rr._spectrum.fix_signs(jnp.asarray(columns.T[is_ridge][:MAX_RIDGES]))

    def search(self, max_tries):
        x0 = np.zeros(self.problem.size)
        ends, waiting = [], [(x0, sign * row) for row in self.ridges(x0) for sign in (1, -1)]
        while waiting and self.num_tries < max_tries:
            x, direction = waiting.pop(0)
            x, _ = self.ride(x, np.asarray(direction))
            ends.append(x)
            waiting += [(x, sign * row) for row in self.ridges(x) for sign in (1, -1)]
        return np.array(ends)


def num_simple(problem):
    """How many ridges come before the first repeated one, whose direction is a matter of gauge."""
    spectrum = rr.DenseSpectrum()(problem, problem.x0, jax.random.key(0))
    sizes = [cluster.multiplicity for cluster in spectrum.clusters()[: spectrum.num_downhill()]]
    return next((i for i, size in enumerate(sizes) if size > 1), len(sizes[:MAX_RIDGES]))


def main():
    jax.config.update("jax_enable_x64", True)
    rider = replace(ridge_rider(0.8), finish=None)
    method = baselines.Rides(rider, max_ridges=MAX_RIDGES, round_size=16)
    for depth, seed in TREES:
        tree = make_tree(depth, seed=seed)
        problem = tree.problem()
        began, reference = time.perf_counter(), Reference(problem)
        known = reference.search(NUM_TRIES)
        slow = reference.num_tries / (time.perf_counter() - began)
        method(problem, max_steps=2)
        ends = method(problem, max_steps=30_000)
        fast = ends.num_steps / ends.cost.seconds
        count = min(len(known), 2 * num_simple(problem))
        gap = np.abs(known[:count] - ends.x[:count]).max()
        same = tree.solutions(known[:count]) == tree.solutions(ends.x[:count])
        print(
            f"depth {depth}, {tree.num_decisions} decisions: {slow:.0f} and {fast:.0f} iterations "
            f"per second, ratio {fast / slow:.0f}; {count} rides agree to {gap:.1e}, "
            f"same solutions: {same}"
        )
        # Rounding grows where a gap is small on the way; another ridge would end logits away.
        assert gap < 1e-3 and same


if __name__ == "__main__":
    main()
