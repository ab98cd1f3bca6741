"""A walk along flat directions: whether two minima belong to one continuous family."""

import jax
import numpy as np

from ridgerider._core.points.classify import View, flat_part, view
from ridgerider._core.problem.calls import Calls
from ridgerider._core.problem.problem import Problem
from ridgerider._core.spectra.spectrum import fixed_vectors, tolerance_of

MAX_STEPS = 200
MAX_POLISH = 5  # Newton steps that set a step of the walk right
MAX_KICKS = 3  # where the way is straight across the family, as between opposite points of a circle


@np.errstate(all="ignore")
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
    calls, key = Calls.of(problem), jax.random.key(0)
    root, tiny = float(tolerance_of(None, a.dtype)), float(np.finfo(a.dtype).tiny)
    size = max(float(np.linalg.norm(b)), float(problem.unit))
    kicks = list(np.asarray(fixed_vectors(MAX_KICKS, len(a), a.dtype)))

    def corrected(x: np.ndarray) -> View:
        """The point of the family that Newton steps lead to."""
        seen = view(calls, x, key)
        for _ in range(MAX_POLISH):
            if not seen.reach > root**1.5:
                break
            seen = view(calls, seen.x + seen.step, key)
        return seen

    here, longest = corrected(a), 0.1 * size
    for _ in range(MAX_STEPS):
        way = b - here.x
        distance = float(np.linalg.norm(way))
        if distance <= max(reach, 10 * root * size):
            return True
        along = flat_part(calls, here, way)
        if np.linalg.norm(along) < 0.01 * distance:  # `b` lies across the family: go aside
            if not kicks:
                return False
            along = flat_part(calls, here, kicks.pop(0))
            along = along * 0.3 * distance / max(float(np.linalg.norm(along)), tiny)
        whole = max(float(np.linalg.norm(along)), tiny)
        length = min(whole, longest)
        target = here.x + along * (length / whole)
        seen = corrected(target)
        slack = root * abs(here.loss) + seen.curvature.scale * (root * size) ** 2
        is_near = np.linalg.norm(seen.x - target) <= length / 2 and seen.reach <= root
        if is_near and seen.loss <= here.loss + slack:
            here, longest = seen, 2 * longest
        elif length < root * size:
            return False
        else:
            longest = length / 4
    return False
