"""Where the members of an ensemble begin: along ridges, along random directions, or anywhere.

A rule is a callable `begin(problem, key)` that yields beginnings, each made when it is asked for.
Where it ends too early, `ensemble` continues with `Fresh`. A generator may return a beginning at
its end: it is charged to the ensemble, and not trained.
"""

import math
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, count, product
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PRNGKeyArray, PyTree

from ridgerider._check import Positive, check_fields
from ridgerider._core.problem.batches import FixedRows
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem, Vector
from ridgerider._core.ride.rider import Rider
from ridgerider._core.spectra.block import BlockSpectrum
from ridgerider._core.spectra.spectrum import Ridge

# A gradient costs about three values, an HVP two gradients.
VALUE, HVP = 1 / 3, 2
Init = Annotated[Callable[[PRNGKeyArray], PyTree], "init(key)"]
NUM_ROWS = 512  # of the data, for the spectrum at the start and for straight steps
NUM_HVPS = 40  # for the spectrum at the start
# Eigenvalues that differ by less than this times the most negative one are one ridge.
CLUSTER_TOLERANCE = 0.02
# Of the residual, in the same unit: ridges to begin with, and further ones if these are too few.
TOLERANCES = (0.02, 0.1)
# Along a straight step the loss is evaluated this far from the start.
LENGTHS = np.sqrt(2.0) ** np.arange(-8, 13)


@dataclass(frozen=True)
class Beginning:
    """A point to train from, what it is called, and the work it took (gradients of one example).

    `how` says in words how it was made.
    """

    name: str
    x: Vector
    work: float = 0.0
    cost: Cost = Cost()
    how: str = ""


class AlongRidges(eqx.Module):
    """Along each distinct ridge of the start, both ways; then along combinations of two ridges.

    First all ridges one way, most negative first, then the other way: where the network is odd in
    its hidden units, the other way leads to a copy but for the start. Then ridges that are known
    less accurately, and at last straight steps between two ridges.

    **Arguments**

    - `rider`: rides each of them, with its `batch` and to its end, such as
      `Rider.for_networks()`. None: one straight step, to where the loss is lowest on that line,
      times `stretch`, which costs next to nothing.
    - `stretch`: of the straight step. Beyond the lowest loss members differ more, and train a
      little longer.

    >>> from ridgerider.problems import wells
    >>> ridges = AlongRidges()(wells(2), jax.random.key(0))
    >>> [ridge.name for ridge in ridges]
    ['0+', '1+', '0-', '1-', '0+1+', '0+1-', '0-1+', '0-1-']
    """

    rider: Rider | None = None
    stretch: Positive = eqx.field(static=True, default=2.0)

    __check_init__ = check_fields

    def __call__(
        self, problem: Problem, key: PRNGKeyArray
    ) -> Generator[Beginning, None, Beginning]:
        seen = FixedRows(NUM_ROWS)(problem, key, 0)
        num_rows = 1 if seen.rows is None else seen.rows.size
        ridges: list[Ridge] = []
        unpaid = Cost()  # of the spectrum: charged to the next beginning

        def beginning(name: str, how: str, x: Vector, cost: Cost, rows: int) -> Beginning:
            nonlocal unpaid
            work = rows * weight(cost) + num_rows * weight(unpaid)
            paid, unpaid = unpaid, Cost()
            return Beginning(name, x, work, cost + paid, how)

        def straight(name: str, how: str, direction: Vector) -> Beginning:
            x = _lowest(seen, direction, self.stretch)
            how = f"a straight step along {how}"
            return beginning(name, how, x, Cost(values=len(LENGTHS)), num_rows)

        for tolerance in TOLERANCES:
            unpaid = unpaid + Cost(gradients=1, hvps=min(NUM_HVPS, problem.size))
            first = len(ridges)
            ridges += distinct_ridges(seen, key, tolerance, [float(r.eigenvalue) for r in ridges])
            for sign, number in product((1, -1), range(first, len(ridges))):
                name, ridge = f"{number}{SIGNS[sign]}", ridges[number]
                how = f"ridge {number} (eigenvalue {float(ridge.eigenvalue):.3g}), {SIGNS[sign]}"
                if self.rider is None:
                    yield straight(name, how, ridge.direction * sign)
                    continue
                ridge = replace(ridge, direction=ridge.direction * sign)
                own = jax.random.fold_in(key, zlib.crc32(name.encode()))
                ride = eqx.filter_jit(self.rider.ride)(problem, problem.x0, ridge, own)
                cost = jax.tree.map(int, replace(ride.cost, seconds=0))
                rows = getattr(self.rider.batch, "size", num_rows)
                yield beginning(name, f"a ride along {how}", ride.x, cost, rows)
        pairs = sorted(combinations(range(len(ridges)), 2), key=sum)
        for (one, two), *signs in product(pairs, (1, -1), (1, -1)):
            name = f"{one}{SIGNS[signs[0]]}{two}{SIGNS[signs[1]]}"
            along = signs[0] * ridges[one].direction + signs[1] * ridges[two].direction
            along = along / jnp.linalg.norm(along)
            yield straight(name, f"the sum of ridges {one} and {two}, {name}", along)
        return beginning("", "a spectrum without further ridges", problem.x0, Cost(), 0)


SIGNS = {1: "+", -1: "-"}


def distinct_ridges(
    problem: Problem,
    key: PRNGKeyArray,
    tolerance: float = TOLERANCES[0],
    known: Sequence[float] = (),
) -> list[Ridge]:
    """One ridge for each distinct negative eigenvalue at the start that is not yet `known`.

    Most negative first; those whose residual is at most `tolerance` times the least eigenvalue.
    """
    num_hvps = min(NUM_HVPS, problem.size)
    how = {"max_hvps": num_hvps, "tolerance": tolerance, "cluster_tolerance": CLUSTER_TOLERANCE}
    spectrum = BlockSpectrum.for_networks(k=num_hvps, **how)(problem, problem.x0, key)
    eigenvalues = np.asarray(spectrum.eigenvalues)
    width = CLUSTER_TOLERANCE * abs(eigenvalues[0])
    is_ridge = np.asarray(spectrum.is_downhill) & (eigenvalues < -width)
    for other in known:
        is_ridge &= np.abs(eigenvalues - other) > width
    return [spectrum.ridge(int(number)) for number in np.flatnonzero(is_ridge)]


class RandomDirections(eqx.Module):
    """From the same start, but along random directions: what is left of ridges without curvature.

    - `length`: of the step.

    >>> from ridgerider.problems import wells
    >>> one = next(RandomDirections(2.0)(wells(2), jax.random.key(0)))
    >>> one.name, round(float(jnp.linalg.norm(one.x)), 6)
    ('random 0', 2.0)
    """

    length: Positive = eqx.field(static=True)

    __check_init__ = check_fields

    def __call__(self, problem: Problem, key: PRNGKeyArray) -> Iterator[Beginning]:
        for number in count():
            own = jax.random.fold_in(key, number)
            direction = jax.random.normal(own, (problem.size,), problem.dtype)
            x = problem.x0 + self.length * direction / jnp.linalg.norm(direction)
            yield Beginning(f"random {number}", x, how="a step along a random direction")


class Fresh(eqx.Module):
    """From initialisations drawn anew: a deep ensemble.

    - `init`: called as `init(key)`, returns parameters. None: weights (leaves of two axes or more,
      the last that of the outputs, as in Flax) normal with a variance of 1 / fan-in, the other
      leaves as at the start.

    >>> from ridgerider.problems import wells
    >>> next(Fresh()(wells(2), jax.random.key(0))).name
    'fresh 0'
    """

    init: Init | None = None

    __check_init__ = check_fields

    def __call__(self, problem: Problem, key: PRNGKeyArray) -> Iterator[Beginning]:
        for number in count():
            own = jax.random.fold_in(key, number)
            params = _drawn(problem.start, own) if self.init is None else self.init(own)
            x = ravel_pytree(params)[0].astype(problem.dtype)
            if x.shape != (problem.size,):
                raise ValueError(
                    f"`init` must return {problem.size} parameters, as `problem.start` has, not "
                    f"{x.size}."
                )
            yield Beginning(f"fresh {number}", x, how="a random initialisation")


def _drawn(start: PyTree, key: PRNGKeyArray) -> PyTree:
    leaves, structure = jax.tree.flatten(start)
    keys = jax.random.split(key, len(leaves))
    for number, (leaf, own) in enumerate(zip(leaves, keys, strict=True)):
        if leaf.ndim > 1:
            fan_in = math.prod(leaf.shape[:-1])
            leaves[number] = jax.random.normal(own, leaf.shape, leaf.dtype) / math.sqrt(fan_in)
    return jax.tree.unflatten(structure, leaves)


@eqx.filter_jit
def _lowest(problem: Problem, direction: Vector, stretch: Positive) -> Vector:
    """The start, moved along a line to where the loss is lowest, and beyond by `stretch`."""
    x, lengths = problem.x0, jnp.asarray(LENGTHS, problem.dtype)
    losses = jax.lax.map(lambda length: problem.value(x + length * direction), lengths)
    best = lengths[jnp.argmin(jnp.where(jnp.isfinite(losses), losses, jnp.inf))]
    return x + stretch * best * direction


def weight(cost: Cost) -> float:
    """In gradients."""
    return float(VALUE * cost.values + cost.gradients + HVP * cost.hvps)
