"""A walk along flat directions: whether two minima belong to one continuous family."""

import jax
import numpy as np

from ridgerider._core.points.classify import View, flat_part, view
from ridgerider._core.problem.problem import Problem, Scalar, Vector, fetch, place
from ridgerider._core.runtime.compile import program_of
from ridgerider._core.spectra.spectrum import fixed_vectors, tolerance_of

MAX_STEPS = 200
MAX_POLISH = 5  # Newton steps that set a step of the walk right
MAX_KICKS = 3  # where the way is straight across the family, as between opposite points of a circle


def walk(problem: Problem, a: np.ndarray, b: np.ndarray, reach: float) -> bool:
    """Whether steps along flat directions, each corrected by Newton steps, lead from `a` to `b`.

    The loss must not rise on the way, and no step may be corrected by more than half its length. A
    walk that does not arrive proves nothing.

    >>> import jax.numpy as jnp
    >>> problem = Problem(lambda x: (x[0] ** 2 + x[1] ** 2 - 1) ** 2, jnp.zeros(2))
    >>> one = np.array([1.0, 0.0], problem.dtype)
    >>> walk(problem, one, -one, 1e-6)
    True
    """
    root, tiny = float(tolerance_of(None, a.dtype)), float(np.finfo(a.dtype).tiny)
    size = max(float(np.linalg.norm(b)), float(problem.unit))
    kicks = list(np.asarray(fixed_vectors(MAX_KICKS, len(a), a.dtype)))
    look, flat = program_of(problem, _seen), program_of(problem, flat_part)

    def corrected(x: np.ndarray) -> tuple[View, float]:
        """The point of the family that Newton steps lead to, and how far it may be off."""
        seen, off = look(place(problem, x))
        for _ in range(MAX_POLISH):
            if not off > root**1.5:
                break
            seen, off = look(seen.x + seen.step)
        return fetch(seen), float(off)

    here, longest = corrected(a)[0], 0.1 * size
    for _ in range(MAX_STEPS):
        way = b - here.x
        distance = float(np.linalg.norm(way))
        if distance <= max(reach, 10 * root * size):
            return True
        along = np.asarray(flat(here, way))
        if np.linalg.norm(along) < 0.01 * distance:  # `b` lies across the family: go aside
            if not kicks:
                return False
            along = np.asarray(flat(here, kicks.pop(0)))
            along = along * 0.3 * distance / max(float(np.linalg.norm(along)), tiny)
        whole = max(float(np.linalg.norm(along)), tiny)
        length = min(whole, longest)
        target = np.asarray(here.x + along * (length / whole))
        seen, off = corrected(target)
        slack = root * abs(here.loss) + seen.curvature.scale * (root * size) ** 2
        is_near = np.linalg.norm(seen.x - target) <= length / 2 and off <= root
        if is_near and seen.loss <= here.loss + slack:
            here, longest = seen, 2 * longest
        elif length < root * size:
            return False
        else:
            longest = length / 4
    return False


def _seen(problem: Problem, x: Vector) -> tuple[View, Scalar]:
    seen = view(problem, x, jax.random.key(0))
    return seen, seen.reach
