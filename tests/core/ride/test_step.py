"""Step rules."""

import jax
import jax.numpy as jnp
import numpy as np

import ridgerider as rr
from ridgerider.problems import surface
from tests.cases import make_quadratic, reasons, ride_from_start


def test_backtracking_keeps_the_overlap_and_remembers_the_size():
    problem, rider = surface(), rr.Rider(step=rr.Backtracking(size=0.5, delta_break=0.99))
    result = jax.device_get(ride_from_start(problem, rider, 1))
    steps = int(result.num_steps)
    sizes, overlaps = result.trace.step_size[1 : steps + 1], result.trace.overlap[1 : steps + 1]
    assert sizes.min() < 0.5 and (overlaps >= 0.99).all()
    ratios = np.log2(sizes[1:] / sizes[:-1])
    assert np.allclose(ratios, np.round(ratios)) and ratios.max() <= 1
    # One Hessian for the start, one for each attempt.
    assert int(result.cost.hessians) == int(result.cost.values) > steps + 1


def test_backtracking_gives_up_below_min_size_and_the_ridge_is_lost():
    def turning(problem, x, ridge, key):
        """A ridge that turns by 60 degrees however small the step."""
        turned = jnp.array([[0.5, -(0.75**0.5)], [0.75**0.5, 0.5]]) @ ridge.direction
        overlap, zero = jnp.where(jnp.any(x != problem.x0), 0.5, 1.0), jnp.array(0.0)
        new = rr.types.Ridge(turned, jnp.array(-1.0), ridge.index, ridge.multiplicity)
        return rr.types.Tracked(new, rr.types.Certificate(overlap, zero, zero), rr.types.Cost())

    problem, _ = make_quadratic([-2.0, -1.0])
    rider = rr.Rider(update=turning, step=rr.Backtracking(size=1.0, min_size=0.1))
    result = ride_from_start(problem, rider)
    assert reasons(rider, result) == ["RidgeLost"]
    assert float(result.trace.step_size[int(result.num_steps)]) == 0.125
