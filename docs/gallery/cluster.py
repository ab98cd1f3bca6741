"""Ride on several machines.

A Dask scheduler hands out branches, workers ride them and may come, go or die: the tree is the same
to the last bit. Here the cluster is two processes on this machine; give `dask` the address of your
scheduler instead. Workers import this file, so the search stands under `if __name__`.
"""

import sys

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

import ridgerider as rr

jax.config.update("jax_enable_x64", True)


def loss(x, coupling):
    return jnp.sum(x**4 / 4 - x**2 / 2) + coupling * jnp.sum(x[1:] * x[:-1])


problem = rr.Problem(loss, jnp.zeros(4), jnp.asarray(0.1))
rider = rr.Rider(finish=rr.Descend(max_kicks=2))

if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else None  # such as tcp://scheduler:8786
    settings = {"round_size": 4, "max_rides": 16}
    with rr.workers.dask(address, num_workers=None if address else 2) as cluster:
        result = rr.search(problem, rider, executor=cluster, **settings)
    print(result.minima()[:5])
    print(len(result), "rides;", result.num_open(), "branches are open")

    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    rr.plot.tree(result, figure.subplots())
    figure.savefig("cluster.png", dpi=120)
