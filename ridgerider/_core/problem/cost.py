"""What is counted: values, gradients, Hessian-vector products, seconds."""

import operator

import equinox as eqx
import jax
from jaxtyping import Array, Float, Int


class Cost(eqx.Module):
    """What was spent. Costs add up.

    A dense Hessian of `n` parameters is `n` Hessian-vector products and counts as such in `hvps`
    as well as once in `hessians`, so that `hvps` compares engines.

    >>> total = Cost(values=1, hvps=3) + Cost(hvps=4, seconds=0.5)
    >>> total.values, total.hvps, total.seconds
    (1, 7, 0.5)
    """

    values: int | Int[Array, ""] = 0
    gradients: int | Int[Array, ""] = 0
    hvps: int | Int[Array, ""] = 0
    hessians: int | Int[Array, ""] = 0
    eigendecompositions: int | Int[Array, ""] = 0
    seconds: float | Float[Array, ""] = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return jax.tree.map(operator.add, self, other)
