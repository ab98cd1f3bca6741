"""What is counted: values, gradients, Hessian-vector products, seconds.

The calls of functions outside of JAX, counted where each call is made.

What a program costs is computed along with it for a loss in JAX (`Cost`). For Python functions the
calls themselves are counted, so that finite differences and checks are part of it.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

import equinox as eqx
import jax
import numpy as np
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
    """

    calls: Cost | None = None
    failure: str = ""

    def charge(self, costs: Sequence[Cost]) -> list[Cost]:
        """Costs as programs computed them, replaced by their shares of the calls that were made.

        Shares are whole numbers in proportion to the computed costs, and their sum is exactly the
        number of calls. Eigendecompositions and seconds stay; a loss in JAX changes nothing.

        >>> ledger = Ledger(Cost(values=9, gradients=9))
        >>> [one.values for one in ledger.charge([Cost(values=2), Cost(values=1)])]
        [6, 3]
        """
        if self.calls is None or not costs:
            return list(costs)
        sizes = np.cumsum([float(one.values + one.gradients + one.hvps) for one in costs])
        parts = sizes / sizes[-1] if sizes[-1] > 0 else np.arange(1, len(costs) + 1) / len(costs)
        shares = {}
        for name in COUNTED:
            ends = np.round(getattr(self.calls, name) * parts).astype(int)
            shares[name] = np.diff(ends, prepend=0)
        return [
            replace(cost, **{name: int(shares[name][row]) for name in COUNTED})
            for row, cost in enumerate(costs)
        ]
