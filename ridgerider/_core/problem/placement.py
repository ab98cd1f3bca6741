"""Where vectors live: beside the parameters of a problem that is spread over many devices.

A problem whose data, or parameters, are sharded over a mesh is ridden by the same compiled
programs; the compiler splits gradients and Hessian-vector products and sums them up. Only on the
way in and out of a program does it matter: a vector goes where the start is, and comes back whole.
"""

from typing import Any

import jax
from jax.experimental.multihost_utils import process_allgather

from ridgerider._core.problem.problem import Problem, Vector


def place(problem: Problem, x: Any) -> Vector:
    """`x` on the devices that hold the problem's parameters, split in the same way."""
    leaves = jax.tree.leaves(problem.start)
    if all(len(leaf.sharding.device_set) == 1 for leaf in leaves):
        return jax.device_put(x)  # `jnp.asarray` would compile a program for it
    return jax.device_put(x, problem.x0.sharding)


def fetch(tree: Any) -> Any:
    """The arrays of a pytree on this host, whole, also those that other processes share."""
    return jax.device_get(jax.tree.map(_gathered, tree))


def _gathered(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return process_allgather(leaf, tiled=True)
    return leaf
