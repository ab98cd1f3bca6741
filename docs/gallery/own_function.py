"""All minima of a function of two variables.

The six-hump camel has six minima, two of them global. Rides from three saddles lead to all of them;
a gradient descent finds one.
"""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import ridgerider as rr

jax.config.update("jax_enable_x64", True)


def camel(x):
    a, b = x
    return (4 - 2.1 * a**2 + a**4 / 3) * a**2 + a * b + (-4 + 4 * b**2) * b**2


problem = rr.Problem(camel, jnp.zeros(2))
# Rides lead downwards only, so begin at several saddles. `rr.explore` finds them by itself.
minima = {}
for start in (jnp.zeros(2), jnp.array([1.1, 0.0]), jnp.array([-1.1, 0.0])):
    saddle = rr.find_saddle(problem.with_start(start))
    result = rr.search(problem.with_start(saddle.params), rr.Rider(keep_path=True), max_rides=30)
    for one in result.minima():
        minima[tuple(np.round(one.params, 4))] = one.loss
for point, loss in sorted(minima.items(), key=lambda item: item[1]):
    print(f"{loss:9.5f} at {point[0]:7.4f}, {point[1]:7.4f}")

a, b = np.linspace(-2.2, 2.2, 161), np.linspace(-1.3, 1.3, 121)
grid = jax.vmap(jax.vmap(camel))(jnp.stack(jnp.meshgrid(a, b), axis=-1))
figure = Figure(figsize=(6.4, 4), layout="constrained")
ax = figure.subplots()
rr.plot.shades(ax, a, b, np.asarray(grid), top=4.0)
ax.plot(*np.array(list(minima)).T, "o", color="#D55E00", markersize=7)
ax.set(xlabel="a", ylabel="b", title=f"{len(minima)} minima of the six-hump camel")
figure.savefig("own_function.png", dpi=120)
