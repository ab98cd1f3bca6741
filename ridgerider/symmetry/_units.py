"""Units that can be swapped, such as the hidden units of a network.

The signature of a set of vectors is made of their projections onto fixed directions, sorted for
each direction: continuous, and blind to the order of the vectors. For units whose sign does not
matter (tanh, with all weights in and out reversed) the sizes of the projections are sorted.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ridgerider._check import check_callable
from ridgerider._core.points.symmetry import Symmetry
from ridgerider._core.spectra.spectrum import fixed_vectors


def units(
    rows: Callable[[PyTree], Array],
    rest: Callable[[PyTree], PyTree] | None = None,
    *,
    signs: bool = False,
) -> Symmetry:
    """Units that can be swapped, and reversed if `signs`.

    - `rows(params)`: an array with a row for each unit, all of its weights, in and out.
    - `rest(params)`: the parameters that belong to no unit; None: there are none.

    >>> import jax.numpy as jnp
    >>> import ridgerider as rr
    >>> def rows(params):
    ...     return jnp.concatenate([params["in"].T, params["out"][:, None]], axis=1)
    >>> swap = rr.symmetry.units(rows, signs=True)
    >>> one = {"in": jnp.array([[1.0, 2.0]]), "out": jnp.array([3.0, 4.0])}
    >>> two = {"in": jnp.array([[-2.0, 1.0]]), "out": jnp.array([-4.0, 3.0])}
    >>> bool(jnp.allclose(swap.signature(one), swap.signature(two)))
    True
    """
    check_callable("rows", rows, "rows(params)")
    if rest is not None:
        check_callable("rest", rest, "rest(params)")
    return Symmetry(None, UnitSignature(rows, rest, signs), None)


class UnitSignature(eqx.Module):
    """Sorted projections of the units, and the rest as it is."""

    rows: Callable[[PyTree], Array]
    rest: Callable[[PyTree], PyTree] | None = None
    signs: bool = eqx.field(static=True, default=False)

    def __call__(self, params: PyTree) -> Float[Array, " k"]:
        vectors = self.rows(params)
        size = vectors.shape[1]
        ways = fixed_vectors(4 * size + 4, size, vectors.dtype)
        seen = vectors @ (ways / jnp.linalg.norm(ways, axis=1, keepdims=True)).T
        sorted_ = jnp.sort(jnp.abs(seen) if self.signs else seen, axis=0)
        mark = jnp.ravel(sorted_) / jnp.sqrt(jnp.asarray(len(ways), vectors.dtype))
        leaves: list[Any] = [] if self.rest is None else jax.tree.leaves(self.rest(params))
        return jnp.concatenate([mark, *(jnp.ravel(leaf) for leaf in leaves)])
