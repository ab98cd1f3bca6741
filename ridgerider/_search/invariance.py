"""Whether what is said to be a symmetry is one."""

import jax
import numpy as np

from ridgerider._core.compile import compiled
from ridgerider._core.placement import fetch, place
from ridgerider._core.problem import Problem, Vector
from ridgerider._core.symmetry import Symmetry, worst_slope
from ridgerider._search.tree import Leg

NUM_COPIES = 3
TOLERATED = {4: 1e-2, 8: 1e-6}


def check_symmetry(problem: Problem, symmetry: Symmetry, seed: int) -> None:
    """Raise if the loss changes along a generator at the start, or the signature of a copy."""
    x = fetch(problem.x0)
    slope, generator = fetch(compiled(_worst_at)(problem, symmetry, problem.x0))
    check_level(float(slope), int(generator), x.dtype, "at `start`")
    tolerance = TOLERATED[x.dtype.itemsize]
    if symmetry.copy is None:
        return
    params = problem.unravel(problem.x0)
    loss = float(problem.value(problem.x0))
    key = jax.random.key(seed)
    for number in range(NUM_COPIES):
        copy = symmetry.copy(params, jax.random.fold_in(key, number))
        other = float(problem.value(problem.ravel(copy)))
        if not abs(other - loss) <= tolerance * max(1.0, abs(loss)):
            raise ValueError(
                "`symmetry` must leave the loss unchanged, but a copy of the start has the loss "
                f"{other:.6g}, not {loss:.6g}."
            )
        if symmetry.signature is not None:
            one, two = (np.ravel(symmetry.signature(tree)) for tree in (params, copy))
            _check_signature(one, two, tolerance)


def _check_signature(one: np.ndarray, two: np.ndarray, tolerance: float) -> None:
    if one.shape != two.shape:
        raise ValueError(
            "the signature of `symmetry` must be equal for equal points, but it has "
            f"{one.size} numbers for one and {two.size} for a copy."
        )
    apart = np.abs(one - two)
    if not np.all(apart <= tolerance * max(1.0, float(np.max(np.abs(one), initial=0)))):
        worst = int(np.argmax(apart))
        raise ValueError(
            "the signature of `symmetry` must be equal for equal points, but its number "
            f"{worst} is {one[worst]:.6g} for the start and {two[worst]:.6g} for a copy of it."
        )


def check_level(slope: float, generator: int, dtype: np.dtype, where: str) -> None:
    """Raise if a gradient's part along a generator is more than rounding."""
    if not slope <= TOLERATED[dtype.itemsize]:
        raise ValueError(
            f"`symmetry` must leave the loss unchanged, but {where} it changes along its generator "
            f"number {generator}, by {slope:.3g} of the gradient's norm (at most "
            f"{TOLERATED[dtype.itemsize]:g} is rounding)."
        )


def check_leg(problem: Problem, symmetry: Symmetry | None, leg: Leg) -> None:
    """Raise if the loss changes along a generator where a ride of `search` has ended."""
    if symmetry is None or symmetry.generators is None or not np.all(np.isfinite(leg.x)):
        return
    slope, generator = fetch(compiled(_worst_at)(problem, symmetry, place(problem, leg.x)))
    where = f"at the end of the leg {leg.fingerprint}"
    check_level(float(slope), int(generator), leg.x.dtype, where)


def _worst_at(problem: Problem, symmetry: Symmetry, x: Vector) -> tuple:
    return worst_slope(problem, symmetry, x, problem.grad(x))
