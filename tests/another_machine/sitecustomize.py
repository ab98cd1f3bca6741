"""Python as it would be on another machine: `eigh` returns other bases of its eigenspaces.

Inside a repeated eigenvalue any orthonormal basis is right, and which one LAPACK returns depends on
the processor, the library and the number of threads. Here every one is turned by an orthogonal
matrix that depends on the size alone. Python imports a file of this name as it starts, so the
processes that tests start compute like the tests themselves.
"""

import os
import sys

# A process that only cleans up behind others computes nothing.
if os.environ.get("RIDGERIDER_ROTATE_BASES") and "resource_tracker" not in str(sys.orig_argv):
    import jax
    import jax.numpy as jnp

    SEED = int(os.environ["RIDGERIDER_ROTATE_BASES"])
    eigh = jnp.linalg.eigh

    def rotated(matrix, *args, **kwargs):
        """`eigh`, with the vectors of each cluster turned among themselves."""
        values, vectors = eigh(matrix, *args, **kwargs)
        turn = jax.random.normal(jax.random.key(SEED), matrix.shape[-2:], matrix.dtype)
        # As wide as the library's own clusters: what it calls one eigenvalue has no basis.
        width = jnp.finfo(matrix.dtype).eps ** (2 / 3) * jnp.max(jnp.abs(values))
        first = jnp.searchsorted(values, values - width, method="compare_all")
        same = first[:, None] == first[None, :]
        rotation, _ = jnp.linalg.qr(jnp.where(same, turn, 0))
        return values, vectors @ rotation

    setattr(jnp.linalg, "eigh", rotated)  # noqa: B010  # of another type
