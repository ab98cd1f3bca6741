"""The signatures of points, and whether what is said to be a symmetry is one."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ridgerider._core.points.symmetry import Symmetry, worst_slope
from ridgerider._core.problem.problem import Problem, Vector, fetch, place
from ridgerider._core.runtime.compile import compiled
from ridgerider._search.tree.tree import Leg

NUM_COPIES = 3
WIDTH = 16  # signatures in one program
TOLERATED = {4: 1e-2, 8: 1e-6}


def check_symmetry(problem: Problem, symmetry: Symmetry, seed: int) -> None:
    """Raise if the loss changes along a generator at the start, or the signature of a copy."""
    x = fetch(problem.x0)
    copies = []
    if symmetry.copy is not None:
        seeds = np.random.SeedSequence(seed).generate_state(NUM_COPIES)
        params, keys = problem.unravel(problem.x0), (jax.random.key(int(one)) for one in seeds)
        copies = [fetch(problem.ravel(symmetry.copy(params, key))) for key in keys]
    points = np.stack([x, *copies]).astype(x.dtype)
    (slope, generator), losses = fetch(compiled(_at_start, "none")(problem, symmetry, points))
    noise = getattr(problem.loss, "grad_noise", 0.0)
    check_level(float(slope), int(generator), x.dtype, "at `start`", noise)
    tolerance, (loss, *others) = TOLERATED[x.dtype.itemsize], losses.tolist()
    for other in others:
        if not abs(other - loss) <= tolerance * max(1.0, abs(loss)):
            raise ValueError(
                "`symmetry` must leave the loss unchanged, but a copy of the start has the loss "
                f"{other:.6g}, not {loss:.6g}."
            )
    if symmetry.signature is not None and copies:
        one, *marks = signatures(problem, symmetry, points)
        for two in marks:
            _check_signature(one, two, tolerance)


def _at_start(problem: Problem, symmetry: Symmetry, points: Float[Array, "k n"]) -> tuple:
    """Where the loss changes most along a generator, at the first point, and the losses of all."""
    return _worst_at(problem, symmetry, points[0]), jax.lax.map(problem.value, points)


def _check_signature(one: np.ndarray, two: np.ndarray, tolerance: float) -> None:
    apart = np.abs(one - two)
    if not np.all(apart <= tolerance * max(1.0, float(np.max(np.abs(one), initial=0)))):
        worst = int(np.argmax(apart))
        raise ValueError(
            "the signature of `symmetry` must be equal for equal points, but its number "
            f"{worst} is {one[worst]:.6g} for the start and {two[worst]:.6g} for a copy of it."
        )


def check_level(
    slope: float, generator: int, dtype: np.dtype, where: str, noise: float = 0.0
) -> None:
    """Raise if a gradient's part along a generator is more than rounding or its noise."""
    most = max(TOLERATED[dtype.itemsize], 100 * noise)
    if not slope <= most:
        raise ValueError(
            f"`symmetry` must leave the loss unchanged, but {where} it changes along its generator "
            f"number {generator}, by {slope:.3g} of the gradient's norm (at most {most:.3g} is "
            "rounding or noise)."
        )


def check_leg(problem: Problem, symmetry: Symmetry | None, leg: Leg) -> None:
    """Raise if the loss changes along a generator where a ride of `search` has ended."""
    if symmetry is None or symmetry.generators is None or not np.all(np.isfinite(leg.x)):
        return
    slope, generator = fetch(
        compiled(_worst_at, "little")(problem, symmetry, place(problem, leg.x))
    )
    where = f"at the end of the leg {leg.fingerprint}"
    check_level(float(slope), int(generator), leg.x.dtype, where)


def _worst_at(problem: Problem, symmetry: Symmetry, x: Vector) -> tuple:
    return worst_slope(problem, symmetry, x, problem.grad(x))


def has_signature(symmetry: Symmetry | None) -> bool:
    return symmetry is not None and symmetry.signature is not None


def signatures(problem: Problem, symmetry: Symmetry, points: np.ndarray) -> np.ndarray:
    """A signature for each point, `WIDTH` at a time."""
    assert symmetry.signature is not None
    try:
        return _signatures(problem, symmetry, points)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            "the signature of `symmetry` must be a function that JAX can trace, but it asks for "
            f"the values of its arrays ({type(error).__name__}: {reason})."
        ) from error


def _signatures(problem: Problem, symmetry: Symmetry, points: np.ndarray) -> np.ndarray:
    marks = []
    for first in range(0, len(points), WIDTH):
        now = points[first : first + WIDTH]
        filled = np.concatenate([now, np.repeat(now[:1], WIDTH - len(now), axis=0)])
        marks.append(fetch(compiled(_marks, "little")(problem, symmetry, filled))[: len(now)])
    return np.concatenate(marks)


def _marks(problem: Problem, symmetry: Symmetry, points: Float[Array, "k n"]) -> Array:
    assert symmetry.signature is not None
    of = symmetry.signature
    return jax.vmap(lambda x: jnp.ravel(jnp.asarray(of(problem.unravel(x)))))(points)
