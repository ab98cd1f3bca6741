"""Costs, counted where values, gradients and Hessian-vector products are made."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem, Scalar, Vector


class Counted:
    """A problem whose `cost` is what was asked of it so far; use one for each call of a rule.

    For code that a program runs once: the body of a compiled loop is traced once and runs often,
    so a loop counts in its carry and is charged with `charge`.

    >>> problem = Counted(Problem(lambda x: x @ x, jnp.ones(2)))
    >>> problem.grad(jnp.ones(2)).tolist(), problem.cost.gradients
    ([2.0, 2.0], 1)
    """

    def __init__(self, problem: Problem):
        self.problem, self.cost = problem, Cost()

    def charge(self, **counts: Any) -> None:
        self.cost = self.cost + Cost(**counts)

    def value(self, x: Vector) -> Scalar:
        self.charge(values=1)
        return self.problem.value(x)

    def grad(self, x: Vector) -> Vector:
        self.charge(gradients=1)
        return self.problem.grad(x)

    def hvp(self, x: Vector, v: Vector) -> Vector:
        self.charge(hvps=1)
        return self.problem.hvp(x, v)

    def hvp_error(self, x: Vector, v: Vector) -> Scalar:
        """What `hvp(x, v)` may be off by beyond rounding."""
        error, cost = self.problem.hvp_error(x, v)
        self.cost = self.cost + cost
        return error

    def eigh(
        self, x: Vector
    ) -> tuple[Float[Array, "n n"], Float[Array, " n"], Float[Array, "n n"]]:
        """The dense Hessian, its eigenvalues, ascending, and its eigenvectors as columns."""
        self.charge(hvps=self.problem.size, hessians=1, eigendecompositions=1)
        hessian = self.problem.hessian(x)
        return hessian, *jnp.linalg.eigh(hessian)
