"""Python as it would be on another machine: `eigh` returns other bases of its eigenspaces.

Inside a repeated eigenvalue any orthonormal basis is right, and which one LAPACK returns depends on
the processor, the library and the number of threads; so does the sign of every vector. Here each
basis is turned by an orthogonal matrix that depends on the size alone. Python imports a file of
this name as it starts, so the processes that tests start compute like the tests themselves.
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
        # As wide as the library's own clusters: what it calls one eigenvalue has no basis.
        width = jnp.finfo(matrix.dtype).eps ** (2 / 3) * jnp.max(jnp.abs(values))
        first = jnp.searchsorted(values, values - width, method="compare_all")
        same = first[:, None] == first[None, :]
        # Three reflections in each cluster: a vector that is alone in its own changes its sign.
        for number in range(3):
            key = jax.random.key(SEED + number)
            mirror = jax.random.normal(key, values.shape, matrix.dtype)
            plane = jnp.where(same, mirror[:, None] * mirror[None, :], 0)
            lengths = same.astype(matrix.dtype) @ mirror**2
            vectors = vectors - 2 * (vectors @ plane) / lengths[None, :]
        return values, vectors

    setattr(jnp.linalg, "eigh", rotated)  # noqa: B010  # of another type
