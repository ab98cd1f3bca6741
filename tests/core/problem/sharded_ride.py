"""Run by test_sharded.py in processes of its own: a search that is split over several devices.

python sharded_ride.py OUT DEVICES: so many devices in one process.
python sharded_ride.py OUT PORT RANK: one of two processes of one device each.
"""

import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import ridgerider as rr

# The spectrum at the ends by dense Hessians, the ridge on the way by Hessian-vector products.
RIDER = rr.Rider(update=rr.Keep(), step=rr.FixedStep(0.1), finish=None, max_steps=5)


def loss(params, inputs, targets):
    return jnp.mean((jnp.tanh(inputs @ params["a"]) @ params["b"] - targets) ** 2)


def ride(*, split):
    """Search with everything on one device, or with data and parameters split over all of them."""
    random = np.random.default_rng(0)
    inputs, targets = random.normal(size=(64, 4)), random.normal(size=64)
    start = {"a": 0.1 * random.normal(size=(4, 4)), "b": np.zeros(4)}
    if split:
        mesh = jax.make_mesh((jax.device_count(),), ("devices",), axis_types=(AxisType.Auto,))

        def put(value, *axes):
            whole = NamedSharding(mesh, PartitionSpec(*axes))
            return jax.make_array_from_callback(value.shape, whole, lambda part: value[part])

        inputs, targets = put(inputs, "devices"), put(targets, "devices")
        start = {"a": put(start["a"], None, "devices"), "b": put(start["b"], "devices")}
    else:
        start = jax.tree.map(jnp.asarray, start)
    return rr.search(rr.Problem(loss, start, inputs, targets), RIDER, max_rides=2, max_ridges=2)


def main():
    out, number, *rank = sys.argv[1:]
    jax.config.update("jax_enable_x64", True)
    if rank:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{number}", 2, int(rank[0]))
    else:
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={number}"
    result = ride(split=True)
    np.savez(
        out,
        problem=str(result.meta["problem"]),
        devices=jax.device_count(),
        steps=[leg.num_steps for leg in result],
        hvps=[leg.cost.hvps for leg in result],
        **{str(leg.fingerprint): leg.x for leg in result},
    )


if __name__ == "__main__":
    main()
