"""The saddle to set out from: where to start, what was found, and whether it is one.

How a saddle is found from one start: `saddle_step`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ridgerider._check import check_at_least, check_callable, check_count, one_line
from ridgerider._core.points.saddle_step import Penalty, to_saddle
from ridgerider._core.points.symmetry import Symmetry
from ridgerider._core.problem.calls import Calls, Point, measured
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem, Scalar, Vector, fetch
from ridgerider._core.runtime.compile import one_thread
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
NEAR = 0.1  # Newton's step along each mode at a stationary point is shorter than this many units
MORE = 3  # numbers of modes that are tried from one start
NUM_COPIES = 8  # of a symmetry, at random, which generate all of them but for a small chance
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
    symmetry: Symmetry | None = None,
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
    - `symmetry`: an `rr.symmetry.Symmetry` whose `copy(params, key)` is linear in the parameters.
      The search is then restricted to points that every copy leaves in place, where a stationary
      point is one of the whole loss: the maximally invariant saddle.

    >>> import jax.numpy as jnp
    >>> problem = Problem(lambda x: jnp.cos(x[0]) + x[1] ** 2, jnp.array([0.4, -0.3]))
    >>> saddle = find_saddle(problem)
    >>> saddle.morse_index, saddle.is_strict, bool(jnp.abs(saddle.params).max() < 1e-6)
    (1, True, True)
    >>> find_saddle(Problem(lambda x: x @ x, jnp.ones(2))).reason
    'No negative curvature: the least eigenvalue is 2.'
    >>> swap = Symmetry(copy=lambda x, key: jax.random.permutation(key, x))
    >>> problem = Problem(lambda x: jnp.sum((x**2 - 1) ** 2) - 0.3 * x[0] * x[1], jnp.ones(2) / 9)
    >>> jnp.ptp(find_saddle(problem, noise=0.5, symmetry=swap).params).item()
    0.0
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
    if symmetry is not None and (not isinstance(symmetry, Symmetry) or symmetry.copy is None):
        raise ValueError(f"`symmetry` must be a Symmetry with a `copy`, not {one_line(symmetry)}.")
    found: list[tuple[tuple, Saddle]] = []
    problem, spent = measured(problem)
    calls, penalty = Calls(problem), Penalty(problem, regularizer, weight) if regularizer else None
    fixed = None if symmetry is None else _fixed_points(problem, symmetry)
    unit = float(jnp.maximum(problem.unit, jnp.sqrt(jnp.mean(problem.x0**2))))
    with problem.ledger() as ledger:
        for number in range(num_starts):
            key = jax.random.key(seed)
            key = jax.random.fold_in(key, number) if number else key
            random = fetch(jax.random.normal(key, (problem.size,), problem.dtype))
            x = fetch(problem.x0) + (noise + SPREAD * number * unit) * random
            wanted, known = index or -1, None
            if fixed is not None:
                x = _invariant(calls, fixed, regularizer, weight, max_steps, x, random)
                found.append(_judge(calls, index, True, x, key))
            elif penalty is not None:
                here = to_saddle(calls, penalty, wanted, max_steps, x, None, random)
                if index is None and not here.is_stationary():
                    # A least gradient that is not zero: continue to the saddle of this index.
                    wanted = max(here.num_downhill, 1)
                here = to_saddle(calls, None, wanted, max_steps, here.x, None, random)
                found.append(_judge(calls, index, True, here.x, key))
                # Both may run to infinity, where gradients vanish: climb as many modes as curve
                # downwards at the start or, as some may turn on the way, a few more.
                for more in range(MORE if max_steps and index is None else 0):
                    if not found[-1][1].reason:
                        break
                    here = to_saddle(calls, None, wanted, 0, x, None, random)
                    wanted = max(here.num_downhill, 1) + more
                    here = to_saddle(calls, None, wanted, max_steps, x, None, random)
                    found.append(_judge(calls, index, True, here.x, key))
            else:
                if problem.size >= DENSE_BELOW:
                    spectrum = BlockSpectrum(max(NUM_PAIRS, index or 0))(problem, x, key)
                    known = np.asarray(spectrum.eigenvectors)
                    calls.charge(spectrum.cost)
                here = to_saddle(calls, None, wanted, max_steps, x, known, random)
                found.append(_judge(calls, index, False, here.x, key))
            if not found[-1][1].reason:
                break
    total = ledger.charge(calls.cost + spent)
    return replace(max(found, key=lambda pair: pair[0])[1], cost=total)


def _fixed_points(problem: Problem, symmetry: Symmetry) -> Float[Array, "k n"]:
    """An orthonormal basis of the vectors that copies leave in place."""
    assert symmetry.copy is not None
    copy = symmetry.copy

    def moved(x: Vector, key: PRNGKeyArray) -> Vector:
        return problem.ravel(copy(problem.unravel(x), key)) - x

    keys = jax.random.split(jax.random.key(0), NUM_COPIES)
    moves = np.concatenate([np.asarray(jax.jacfwd(moved)(problem.x0, key)) for key in keys])
    sizes, rows = np.linalg.svd(moves)[1:]
    is_fixed = np.append(sizes, np.zeros(len(rows) - len(sizes))) < 1e-6
    if not is_fixed.any():
        raise ValueError("`symmetry` must leave some point in place, but its copies move all.")
    return jnp.asarray(rows[is_fixed])


def _invariant(
    calls: Calls,
    fixed: Float[Array, "k n"],
    regularizer: Regularizer | None,
    weight: float,
    max_steps: int,
    x: Point,
    random: Point,
) -> Point:
    """The stationary point of the loss on these rows, of least regularizer, whatever its index."""
    problem = calls.problem
    inside = Problem(lambda z: problem.value(z @ fixed), fixed @ x).with_unit(float(problem.unit))
    of_params = regularizer or (lambda _: jnp.zeros((), problem.dtype))
    inner, z = Calls(inside), fetch(inside.x0)
    for size in (weight, 0.0) if regularizer else (0.0,):
        penalty = Penalty(inside, lambda z: of_params(problem.unravel(z @ fixed)), size)
        z = to_saddle(inner, penalty, -1, max_steps, z, None, random[: len(z)]).x
    calls.charge(inner.cost)
    return z @ np.asarray(fixed)


def _judge(
    calls: Calls, index: int | None, is_dense: bool, x: Point, key: PRNGKeyArray
) -> tuple[tuple, Saddle]:
    """What was found at `x`, with a key to choose the best by."""
    problem, place = calls.problem, jnp.asarray(x)
    loss, grad, spectrum = jax.device_get(_look(problem, place, key, is_dense, NUM_PAIRS))
    calls.charge(spectrum.cost + Cost(values=1, gradients=1))
    num_pairs = 2 * NUM_PAIRS
    while spectrum.is_downhill.all() and len(spectrum.is_downhill) < problem.size:
        loss, grad, spectrum = jax.device_get(_look(problem, place, key, is_dense, num_pairs))
        calls.charge(spectrum.cost)
        num_pairs = min(2 * num_pairs, problem.size)
    grad_norm = float(jnp.linalg.norm(grad))
    # As in `Descend`: what a small displacement makes of a zero gradient.
    size = float(spectrum.scale) * max(float(problem.unit), float(jnp.linalg.norm(x)))
    # A gradient that vanishes at infinity only is small, but Newton's step stays as long as it is.
    slopes = np.abs(spectrum.eigenvectors @ grad)
    is_real = slopes > 1000 * float(jnp.finfo(problem.dtype).eps) * size
    is_far = slopes > NEAR * float(problem.unit) * np.abs(spectrum.eigenvalues)
    is_at_infinity = bool(np.any(is_real & is_far))
    is_small = bool(grad_norm <= tolerance_of(None, problem.dtype) * size)
    is_stationary = is_small and not is_at_infinity
    morse_index, least = int(np.sum(spectrum.is_downhill)), float(spectrum.eigenvalues[0])
    is_strict = is_stationary and morse_index > 0
    reason = ""
    if not is_stationary:
        where = ", and falls to zero at infinity only" if is_small else ""
        reason = f"No stationary point: the gradient norm is {grad_norm:.3g}{where}."
    elif not is_strict:
        reason = f"No negative curvature: the least eigenvalue is {least:.3g}."
    elif index is not None and morse_index != index:
        reason = f"Another kind of saddle: the Morse index is {morse_index}, not {index}."
    saddle = Saddle(
        params=problem.unravel(place),
        loss=float(loss),
        grad_norm=grad_norm,
        morse_index=morse_index,
        clusters=spectrum.clusters(),
        is_stationary=is_stationary,
        is_strict=is_strict,
        cost=calls.cost,
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
