"""Descents from saddles end where the gradient flow does, by SciPy on random landscapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import ridgerider as rr

WAVES = 10


def waves(x, vectors, phases, sizes, bowl):
    return jnp.sum(sizes * jnp.cos(vectors @ x + phases)) + bowl * jnp.sum(x**2)


GRAD = jax.jit(jax.grad(waves))


def landscape(seed, dim, bounds):
    random = np.random.default_rng([seed, dim, bounds is not None, 0])
    data = (
        random.normal(size=(WAVES, dim)) * 1.3,
        random.uniform(0, 2 * np.pi, WAVES),
        random.uniform(0.3, 1, WAVES),
        np.array(0.06 if bounds is None else 0.0),
    )
    start = jnp.asarray(random.uniform(-2, 2, dim))
    return rr.Problem(waves, start, *map(jnp.asarray, data))


def flow_end(problem, x, bounds):
    """The end of x' = -grad, along faces where these hold it."""
    low, high = (-np.inf, np.inf) if bounds is None else np.array(bounds).T

    def slope(_, x):
        down = -np.asarray(GRAD(np.clip(x, low, high), *problem.args))
        return np.where(((x <= low) & (down < 0)) | ((x >= high) & (down > 0)), 0, down)

    def is_level(_, x):
        return np.linalg.norm(slope(_, x)) - 1e-6

    is_level.terminal = True
    method = "LSODA" if bounds is None else "RK45"
    given = {"rtol": 1e-9, "atol": 1e-10, "events": is_level, "method": method}
    return np.clip(solve_ivp(slope, (0, 1e5), np.clip(x, low, high), **given).y[:, -1], low, high)


# Without bounds a quasi-Newton descent jumped over a basin in each of these landscapes.
@pytest.mark.parametrize(
    ("dim", "bounds", "seeds"),
    [(2, None, (3, 8)), (3, None, (3,)), (2, [(-3.0, 3.0)] * 2, (0, 1))],
)
def test_both_ends_of_an_edge_are_those_of_the_gradient_flow(dim, bounds, seeds):
    count = 0
    for seed in seeds:
        problem = landscape(seed, dim, bounds)
        found = rr.explore(problem, bounds=bounds, max_rides=120 if bounds is None else 400)
        minima = found.minima()
        for saddle, edge in zip(found.saddles(), found.edges(), strict=True):
            leg, (one, two) = found.leg(saddle.fingerprint), edge.minima
            if None in (one, two):  # not left yet
                continue
            ends = [
                flow_end(problem, leg.x + s * 1e-5 * leg.directions[0], bounds) for s in (1, -1)
            ]
            wanted = [np.asarray(minima[end].params) for end in (one, two)]
            apart = [
                max(np.linalg.norm(a - b) for a, b in zip(ends, order, strict=True))
                for order in (wanted, wanted[::-1])
            ]
            assert min(apart) < 0.02
            count += 1
    assert count > 10
