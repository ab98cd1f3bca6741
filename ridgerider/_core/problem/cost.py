"""What is counted: values, gradients, Hessian-vector products, seconds.

The calls of functions outside of JAX, counted where each call is made.

What a program costs is computed along with it for a loss in JAX (`Cost`). For Python functions the
calls themselves are counted, so that finite differences and checks are part of it.
"""

import operator
from dataclasses import dataclass, replace

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


COUNTED = ("values", "gradients", "hvps", "hessians")


@dataclass
class Ledger:
    """What happened inside of `with problem.ledger() as ledger:`, to be read after it.

    - `calls`: of functions outside of JAX, with no eigendecompositions and seconds; None for a loss
      in JAX.
    - `failure`: what last went wrong in such a function; empty if nothing did.
    - `seconds`: how long it took.
    """

    calls: Cost | None = None
    failure: str = ""
    seconds: float = 0.0

    def charge(self, cost: Cost) -> Cost:
        """A cost as programs computed it, with the calls that were counted and the seconds.

        Eigendecompositions stay; for a loss in JAX no calls are counted, and all counts stay.

        >>> ledger = Ledger(Cost(values=9, gradients=9))
        >>> ledger.charge(Cost(values=2, eigendecompositions=1)).values
        9
        """
        calls = cost if self.calls is None else self.calls
        counts = {name: getattr(calls, name) for name in COUNTED}
        return replace(cost, **counts, seconds=self.seconds)
