"""How much the compiled ride saves: the same ride compiled and as an eager Python loop.

    python -m bench.dense_ride

On `wells(8)`: (1) the compiled ride, (2) a plain Python loop that calls Hessian, `eigh` and the
projection eagerly, (3) the same loop around a compiled step. Prints the ratios of the medians, and
how often the loss was traced by a second ride of another problem of the same shape.
"""

import statistics
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import ridgerider as rr
from ridgerider.problems import wells
from ridgerider.problems.wells import wells_loss

NUM_TRACES = 0


def counted_loss(x, depths):
    global NUM_TRACES
    NUM_TRACES += 1
    return wells_loss(x, depths)


@eqx.filter_jit
def ride(problem, rider, x, ridge, key):
    return rider.ride(problem, x, ridge, key)


def seconds(function, repeats):
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def python_loop(problem, rider, ridge, key, update):
    """The same ride, one step at a time; every step size is accepted on wells, as checked below."""
    x = problem.x0
    ridge = update(problem, x, ridge, key).ridge
    num_steps = 0
    while ridge.eigenvalue < 0:
        x = x + rider.step.size * ridge.direction
        tracked = update(problem, x, ridge, key)
        assert tracked.overlap >= rider.step.delta_break
        ridge, num_steps = tracked.ridge, num_steps + 1
    return x, num_steps


def main():
    jax.config.update("jax_enable_x64", True)
    problem, rider, key = wells(8), rr.Rider(step=rr.Backtracking(size=0.02)), jax.random.key(0)
    ridge = rider.spectrum(problem, problem.x0, key).ridge(0)
    step = eqx.filter_jit(rider.update.__call__)
    ways = {
        "compiled ride": lambda: ride(problem, rider, problem.x0, ridge, key),
        "eager Python loop": lambda: python_loop(problem, rider, ridge, key, rider.update),
        "Python loop, compiled step": lambda: python_loop(problem, rider, ridge, key, step),
    }
    first = ways["compiled ride"]()
    for loop in ("eager Python loop", "Python loop, compiled step"):
        x, num_steps = ways[loop]()
        assert num_steps == int(first.num_steps)
        np.testing.assert_allclose(x, first.x, atol=1e-12)
    times = {name: seconds(way, 3 if "eager" in name else 30) for name, way in ways.items()}
    print(f"one ride of {int(first.num_steps)} steps on wells(8), medians of one run")
    for name, median in times.items():
        print(f"  {name:28} {median * 1e3:9.2f} ms   ratio {median / times['compiled ride']:7.1f}")

    one, other = (
        rr.Problem(counted_loss, jnp.zeros(8), jnp.linspace(0.4, high, 8)) for high in (1.4, 1.2)
    )
    jax.block_until_ready(ride(one, rider, one.x0, ridge, key))
    before = NUM_TRACES
    jax.block_until_ready(ride(other, rider, other.x0, ridge, key))
    print(f"traces of the loss by a second ride: {NUM_TRACES - before}")


if __name__ == "__main__":
    main()
