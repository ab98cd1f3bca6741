r"""What the spectrum at a saddle says about symmetries.

Let N sets of m parameters be interchangeable, as in the paper's Appendix D.6. Then the Hessian at a
point that all swaps of two sets leave in place has an eigenvalue of multiplicity N - 1 or more for
directions that distinguish the sets, and at most n - m (N - 2) distinct eigenvalues. In the generic
case of multiplicity N - 1, the projector onto the eigenspace is

    P[(i, s), (j, t)] = a_s a_t (delta_ij - 1 / N),    i, j = sets, s, t = places in a set,

so two parameters are of the same set if their rows of P are parallel, and there must be N such
sets. A swap of two sets, N = 2, repeats nothing: it reverses an eigenvector. Either way the loss
has the last word, which each implied swap must leave unchanged at random points.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from ridgerider._check import checked
from ridgerider._core.problem.problem import Problem, Vector
from ridgerider._core.spectra.spectrum import DenseSpectrum, Spectrum

Sets = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class SymmetryGroup:
    """A ridge that symmetries make ambiguous.

    - `index`, `multiplicity`: of the ridge.
    - `sets`: the N interchangeable sets of parameters, as positions in the vector of all
      parameters; empty where the eigenspace does not tell.
    - `names`: the same in words.
    - `orbits`: the directions inside the eigenspace that stay ridges, in classes of copies: how
      many each class has, lowest kappa first. Three equal hidden units make 4, 6 and 3, which are
      all three with any signs, two, and one of them.

    >>> group = SymmetryGroup(3, 1, ((0, 4), (1, 5)), (("a[0]", "b[0]"), ("a[1]", "b[1]")))
    >>> len(group.sets)
    2
    """

    index: int
    multiplicity: int
    sets: Sets
    names: tuple[tuple[str, ...], ...]
    orbits: tuple[int, ...] = ()


@dataclass(frozen=True)
class SymmetryReport:
    """Which ridges at a saddle every run finds alike, and which only up to a symmetry.

    - `unique`: the ridges of multiplicity one that no swap of parameters reverses.
    - `groups`: the other ones.
    - `num_distinct`: how many distinct eigenvalues there are; `max_distinct`: the paper's bound,
      n - m (N - 2) for N interchangeable sets of m parameters, taken together over all groups.

    >>> from ridgerider.problems import levers
    >>> report = symmetry_report(levers((1.0, 1.0, 1.0, 0.5)))
    >>> print(report)
    ridge 0: unique
    ridge 1: 2 of a kind (ridges 3); params[0, 0] params[1, 0] | params[0, 1] params[1, 1] | ...
    5 distinct eigenvalues of at most 6
    """

    unique: tuple[int, ...]
    groups: tuple[SymmetryGroup, ...]
    num_distinct: int
    max_distinct: int

    def __str__(self) -> str:
        lines = {index: f"ridge {index}: unique" for index in self.unique}
        for group in self.groups:
            kind = f"{group.multiplicity} of a kind" if group.multiplicity > 1 else "reversible"
            kind += f" (ridges {' + '.join(map(str, group.orbits))})" if group.orbits else ""
            shown = [" ".join(names) for names in group.names[:2]]
            shown += ["..."] * (len(group.names) > 2)
            sets = f"; {' | '.join(shown)}" if shown else ""
            lines[group.index] = f"ridge {group.index}: {kind}{sets}"
        last = f"{self.num_distinct} distinct eigenvalues of at most {self.max_distinct}"
        return "\n".join([*(lines[index] for index in sorted(lines)), last])


@checked
def symmetry_report(
    problem: Problem,
    spectrum: Callable[[Problem, Vector, PRNGKeyArray], Spectrum] = DenseSpectrum(),
    reversible: Collection[int] = (),
) -> SymmetryReport:
    """Read the symmetries of the loss off the clusters at `problem.start`, a saddle.

    `reversible` names the ridges known to lead to images of each other both ways. A symmetry that
    also moves parameters which the eigenvector does not touch cannot be read off it.
    """
    found = jax.device_get(eqx.filter_jit(spectrum)(problem, problem.x0, jax.random.key(0)))
    names = [
        f"params{jax.tree_util.keystr(path)}{list(position) or ''}"
        for path, leaf in jax.tree.leaves_with_path(problem.start)
        for position in np.ndindex(leaf.shape)
    ]
    unique: list[int] = []
    groups: list[SymmetryGroup] = []
    branchings = found.branches(problem, problem.x0)
    for index in range(found.num_downhill()):
        rows = found.eigenvectors[found.labels == index]
        sets = _implied_sets(rows)
        if not _is_symmetric(problem, sets):
            sets = ()
        if len(rows) == 1 and not sets and index not in reversible:
            unique.append(index)
        else:
            words = tuple(tuple(names[k] for k in one) for one in sets)
            branching = branchings[index]
            orbits = branching.class_sizes if branching.order in (3, 4) else ()
            groups.append(SymmetryGroup(index, len(rows), sets, words, orbits))
    # Two ridges may tell of the same symmetry.
    spared = sum(
        len(sets[0]) * (len(sets) - 2) for sets in {one.sets for one in groups if one.sets}
    )
    return SymmetryReport(
        tuple(unique), tuple(groups), len(found.clusters()), problem.size - spared
    )


def _implied_sets(rows: Float[np.ndarray, "k n"], tolerance: float = 1e-3) -> Sets:
    """The sets that an eigenspace would come from, or nothing if it has another shape."""
    projector = rows.T @ rows
    size = np.sqrt(np.diag(projector))
    (support,) = np.nonzero(size > tolerance * size.max())
    cosines = (projector / size[:, None].clip(1e-300) / size.clip(1e-300))[np.ix_(support, support)]
    # The two signs of a simple eigenvector are all it tells.
    is_same = cosines > 0 if len(rows) == 1 else np.abs(cosines) > 1 - tolerance
    sets = sorted({tuple(support[row].tolist()) for row in is_same})
    sizes = [size[list(one)] for one in sets]
    is_right = (
        len(sets) == len(rows) + 1
        and all(len(one) == len(sets[0]) for one in sets)
        and np.abs(np.array(sizes) - sizes[0]).max() < tolerance
    )
    return tuple(sets) if is_right else ()


def _is_symmetric(problem: Problem, sets: Sets) -> bool:
    """Whether swapping any two neighbouring sets leaves the loss alone at random points."""
    noise = jax.random.normal(jax.random.key(0), (3, problem.size), problem.dtype)
    x, value = problem.x0[None] + noise, jax.jit(jax.vmap(problem.value))
    before = value(x)
    bound = 1e3 * jnp.finfo(x.dtype).eps * jnp.max(jnp.abs(before))
    for one, two in pairwise(sets):
        swap = np.arange(problem.size)
        swap[[*one, *two]] = [*two, *one]
        if not jnp.max(jnp.abs(value(x[:, swap]) - before)) <= bound:
            return False
    return len(sets) > 1
