"""What a map costs without a matrix, and with one.

python -m ridgerider_experiments.bench.large_maps
"""

import resource
import time

import jax
import jax.numpy as jnp
import numpy as np

import ridgerider as rr
from ridgerider.problems import is_one_cluster, lennard_jones
from ridgerider_experiments.clusters import wrong_indices


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    print("| problem | parameters | engine | climbs that arrived | points | wrong indices ", end="")
    print("| steps a climb | products a step | seconds | memory so far |\n|" + "---|" * 10)
    for size in (400, 20_000):
        _row("ring", ring(size), rr.Climb(), {"max_rides": 16}, check=size < 1000)
    atoms = {"symmetry": rr.symmetry.point_set(), "valid": is_one_cluster, "max_rides": 8}
    for climb in (rr.Climb(), rr.Climb(engine="dense")):
        _row("110 atoms", lennard_jones(110), climb, atoms)


def ring(size: int) -> rr.Problem:
    """Particles in double wells, each tied to the next; no two wells are as deep."""
    depths = 1 + 0.3 * np.random.default_rng(0).random(size)

    def loss(x: jax.Array) -> jax.Array:
        wells = jnp.sum(depths * (x**2 - 1) ** 2) / 4
        return wells + 0.1 * jnp.sum((x - jnp.roll(x, 1)) ** 2)

    return rr.Problem(loss, jnp.full(size, 0.9))


def _row(
    name: str, problem: rr.Problem, climb: rr.Climb, settings: dict, check: bool = True
) -> None:
    began = time.perf_counter()
    landscape = rr.explore(problem, climb, max_modes=4, **settings)
    seconds = time.perf_counter() - began
    points = {one.fingerprint for one in (*landscape.minima(), *landscape.saddles(None))}
    legs = [landscape.leg(name) for name in landscape.fingerprints() if name and name[-1].up]
    arrived = [leg for leg in legs if "stationary" in leg.ended_by]
    steps = [leg.num_steps for leg in arrived]
    rates = [int(leg.cost.hvps) / leg.num_steps for leg in arrived if leg.fingerprint not in points]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    engine = "dense" if climb.has_matrix(problem) else "hvp"
    wrong = str(wrong_indices(landscape)) if check else "-"
    rate = f"{np.mean(rates):.1f}" if rates else "-"
    print(f"| {name} | {problem.size:,} | {engine} | {len(arrived)} of {len(legs)} ", end="")
    print(f"| {len(points)} | {wrong} | {np.mean(steps):.0f} | {rate} ", end="")
    print(f"| {seconds:.0f} | {memory:.1f} GB |", flush=True)


if __name__ == "__main__":
    main()
