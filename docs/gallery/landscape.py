"""The map of a landscape: minima, the transition states between them, and the barriers.

The Müller-Brown surface is a test of every method for reaction paths. Climbs along the softest
modes of a minimum reach transition states; descents from there reach the next minima.
"""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import ridgerider as rr
from ridgerider.problems import mueller_brown

jax.config.update("jax_enable_x64", True)

problem = mueller_brown()
landscape = rr.explore(problem, valid=([-2.0, -0.8], [1.5, 2.2]))
print(landscape.minima())
print(landscape.saddles())
way = landscape.path(0, 1)
print(f"from the lowest minimum to the next one: over {float(landscape.barrier(0, 1)):.2f}")

a, b = np.linspace(-1.7, 1.2, 161), np.linspace(-0.4, 2.0, 141)
grid = jax.vmap(jax.vmap(problem.loss))(jnp.stack(jnp.meshgrid(a, b), axis=-1))
figure = Figure(figsize=(6, 4.6), layout="constrained")
ax = figure.subplots()
rr.plot.shades(ax, a, b, np.asarray(grid), top=80.0)
for points, marker, label in (
    (landscape.minima(), "o", "minima"),
    (landscape.saddles(), "^", "transition states"),
):
    places = np.array([one.params for one in points])
    ax.plot(*places.T, marker, markersize=8, markeredgecolor="white", label=label)
for edge in landscape.edges():
    pass_point = landscape.saddles()[edge.saddle].params
    for end in edge.minima:
        if end is not None:
            ends = np.stack([pass_point, landscape.minima()[end].params])
            ax.plot(*ends.T, ":", color="white", linewidth=1.4)
ax.set(xlabel="x", ylabel="y", xlim=(a[0], a[-1]), ylim=(b[0], b[-1]))
ax.legend(fontsize=8, labelcolor="black")
figure.savefig("landscape.png", dpi=120)
