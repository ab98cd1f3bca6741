"""All shapes of a cluster of atoms, and the barriers between them.

Seven atoms that attract one another have four stable shapes. Rotations, reflections and
exchanged atoms count as the same: `rr.symmetry.point_set` says so.
"""

import jax
import numpy as np
from matplotlib.figure import Figure

import ridgerider as rr
from ridgerider.problems import is_one_cluster, lennard_jones

jax.config.update("jax_enable_x64", True)

atoms = rr.symmetry.point_set()
landscape = rr.explore(
    lennard_jones(7), symmetry=atoms, valid=is_one_cluster, max_rides=160, max_modes=4
)
shapes = landscape.minima()
print(shapes)
print(f"{len(landscape.saddles())} transition states; {landscape.completeness()}")
if len(shapes) > 1:
    print(f"from the best shape to the next: over {float(landscape.barrier(0, 1)):.3f}")

figure = Figure(figsize=(7.2, 3.6), layout="constrained")
for number, one in enumerate(shapes[:3]):
    ax = figure.add_subplot(1, min(3, len(shapes)), number + 1, projection="3d")
    points = np.asarray(one.params)
    for i, here in enumerate(points):
        for there in points[i + 1 :]:
            if np.linalg.norm(here - there) < 1.3:
                ax.plot(*np.stack([here, there]).T, color="#9AA3AD", linewidth=1)
    ax.scatter(*points.T, s=160, color="#0072B2", depthshade=True)
    ax.set_title(f"energy {one.loss:.4f}", fontsize=10)
    ax.set_axis_off()
    ax.set_aspect("equal")
figure.savefig("clusters.png", dpi=120)
