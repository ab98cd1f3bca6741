"""The saddle to set out from: where to start, what was found, and whether it is one.

How a saddle is found from one start: `saddle_step`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from ridgerider._check import check_at_least, check_callable, check_count
from ridgerider._core.points.saddle_step import Penalty, to_saddle
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem, Scalar, Vector
from ridgerider._core.problem.unit import measured
from ridgerider._core.runtime.threads import one_thread
from ridgerider._core.spectra.block import BlockSpectrum
from ridgerider._core.spectra.spectrum import (
    DENSE_BELOW,
    Cluster,
    DenseSpectrum,
    Spectrum,
    tolerance_of,
)

Regularizer = Callable[[PyTree], Scalar]
SPREAD = 0.3  # a further start lies by this much further off than the one before
NUM_PAIRS = 8  # lowest pairs that are followed where the Hessian is not formed


@dataclass(frozen=True)
class Saddle:
    """A stationary point and what surrounds it.

    `morse_index` counts the negative eigenvalues. `is_strict` reads true if the gradient vanishes
    and at least one eigenvalue is clearly negative; then every ridge leads downhill both ways.
    `reason` is empty if this is what was asked for, or says in a sentence what is missing. Where
    the Hessian is too large to be formed, `clusters` are the lowest ones.

    >>> from ridgerider.problems import wells
    >>> saddle = find_saddle(wells(3))
    >>> saddle.morse_index, [cluster.multiplicity for cluster in saddle.clusters]
    (3, [1, 1, 1])
    >>> print(saddle)
    A strict saddle of Morse index 3: loss 0, gradient norm 0.
    """

    params: PyTree
    loss: float
    grad_norm: float
    morse_index: int
    clusters: tuple[Cluster, ...]
    is_stationary: bool
    is_strict: bool
    cost: Cost
    reason: str = ""

    def __str__(self) -> str:
        kind = f"A strict saddle of Morse index {self.morse_index}" if self.is_strict else "A point"
        what = f"{kind}: loss {self.loss:.6g}, gradient norm {self.grad_norm:.3g}."
        return f"{what} {self.reason}".rstrip()


@one_thread()
def find_saddle(
    problem: Problem,
    regularizer: Regularizer | None = None,
    *,
    index: int | None = None,
    weight: float = 1e-2,
    num_starts: int = 16,
    max_steps: int = 100,
    noise: float = 0.0,
    seed: int = 0,
) -> Saddle:
    """Find a strict saddle, the one at hand if `problem.start` is close to one.

    If none is found, the best point is returned: its `is_strict` reads false, or its `morse_index`
    is not the one asked for, and `reason` says so.

    **Arguments**

    - `regularizer(params)`: made small on the way, weighted by `weight`; e.g. minus the entropy of
      a policy. Takes dense Hessians, whatever the number of parameters.
    - `index`: how many eigenvalues shall be negative. None: any number but zero; away from
      stationary points one mode is climbed, which is where most saddles are found.
    - `num_starts`: if a start fails, take another one, up to this many in all.
    - `max_steps`: per start. A step is a gradient with a Hessian, dense below 300 parameters and 40
      Hessian-vector products beyond.
    - `noise`, `seed`: standard deviation of a random displacement of the start, for independent
      runs. Start number k, counted from 0, is displaced by another 0.3 k times the root mean square
      of the start's entries, at least by 0.3 k units of length (1 for parameters of ordinary
      size).

    >>> import jax.numpy as jnp
    >>> problem = Problem(lambda x: jnp.cos(x[0]) + x[1] ** 2, jnp.array([0.4, -0.3]))
    >>> saddle = find_saddle(problem)
    >>> saddle.morse_index, saddle.is_strict, bool(jnp.abs(saddle.params).max() < 1e-6)
    (1, True, True)
    >>> find_saddle(Problem(lambda x: x @ x, jnp.ones(2))).reason
    'No negative curvature: the least eigenvalue is 2.'
    """
    check_count("max_steps", max_steps, 0)
    check_count("num_starts", num_starts)
    check_count("seed", seed, 0, 2**63 - 1)
    if index is not None:
        check_count("index", index, 1, problem.size)
    for name, value in {"noise": noise, "weight": weight}.items():
        check_at_least(name, value)
    if regularizer is not None:
        check_callable("regularizer", regularizer, "regularizer(params)")
    penalty = Penalty(regularizer, jnp.asarray(weight, problem.dtype)) if regularizer else None
    found: list[tuple[tuple, Saddle]] = []
    problem, spent = measured(problem)
    unit = jnp.maximum(problem.unit, jnp.sqrt(jnp.mean(problem.x0**2)))
    with problem.ledger() as ledger:
        for number in range(num_starts):
            key = jax.random.key(seed)
            key = jax.random.fold_in(key, number) if number else key
            size = (noise + SPREAD * number * unit).astype(problem.dtype)
            x = problem.x0 + size * jax.random.normal(key, (problem.size,), problem.dtype)
            wanted, known, before = jnp.array(-1 if index is None else index), None, Cost()
            if penalty is not None:
                here, before = to_saddle(problem, penalty, wanted, max_steps, x, None, key)
                x = here.x
                if index is None and not here.is_stationary():
                    # A least gradient that is not zero: continue to the saddle of this index.
                    wanted = jnp.maximum(here.num_downhill, 1)
            elif problem.size >= DENSE_BELOW:
                spectrum = BlockSpectrum(max(NUM_PAIRS, index or 0))(problem, x, key)
                known, before = spectrum.eigenvectors, spectrum.cost
            here, cost = to_saddle(problem, None, wanted, max_steps, x, known, key)
            found.append(_judge(problem, index, penalty is not None, here.x, key, before + cost))
            if not found[-1][1].reason:
                break
    (total,) = ledger.charge([sum((saddle.cost for _, saddle in found), spent)])
    return replace(max(found, key=lambda pair: pair[0])[1], cost=total)


def _judge(
    problem: Problem, index: int | None, is_dense: bool, x: Vector, key: PRNGKeyArray, cost: Cost
) -> tuple[tuple, Saddle]:
    """What was found at `x`, with a key to choose the best by."""
    loss, grad, spectrum = jax.device_get(_look(problem, x, key, is_dense, NUM_PAIRS))
    cost = cost + spectrum.cost + Cost(values=1, gradients=1)
    num_pairs = 2 * NUM_PAIRS
    while spectrum.is_downhill.all() and len(spectrum.is_downhill) < problem.size:
        loss, grad, spectrum = jax.device_get(_look(problem, x, key, is_dense, num_pairs))
        cost, num_pairs = cost + spectrum.cost, min(2 * num_pairs, problem.size)
    grad_norm = float(jnp.linalg.norm(grad))
    # As in `Descend`: what a small displacement makes of a zero gradient.
    size = float(spectrum.scale) * max(float(problem.unit), float(jnp.linalg.norm(x)))
    is_stationary = bool(grad_norm <= tolerance_of(None, problem.dtype) * size)
    morse_index, least = int(np.sum(spectrum.is_downhill)), float(spectrum.eigenvalues[0])
    is_strict = is_stationary and morse_index > 0
    reason = ""
    if not is_stationary:
        reason = f"No stationary point: the gradient norm is {grad_norm:.3g}."
    elif not is_strict:
        reason = f"No negative curvature: the least eigenvalue is {least:.3g}."
    elif index is not None and morse_index != index:
        reason = f"Another kind of saddle: the Morse index is {morse_index}, not {index}."
    saddle = Saddle(
        params=problem.unravel(x),
        loss=float(loss),
        grad_norm=grad_norm,
        morse_index=morse_index,
        clusters=spectrum.clusters(),
        is_stationary=is_stationary,
        is_strict=is_strict,
        cost=jax.device_get(cost),
        reason=reason,
    )
    return (not reason, is_strict, is_stationary, -grad_norm / size if size else -np.inf), saddle


@eqx.filter_jit
def _look(
    problem: Problem, x: Vector, key: PRNGKeyArray, is_dense: bool, num_pairs: int
) -> tuple[Scalar, Vector, Spectrum]:
    is_dense = is_dense or problem.size < DENSE_BELOW
    spectrum = DenseSpectrum() if is_dense else BlockSpectrum(num_pairs)
    return problem.value(x), problem.grad(x), spectrum(problem, x, key)
