"""The problem: a loss over a pytree, seen by the core as a function of one vector.

The parameters are ravelled into `x` once; everything below the surface works with `x`:

    value(x) = L(x)    grad(x) = dL/dx    hvp(x, v) = (d2L/dx2) v    hessian(x) = d2L/dx2
"""

import operator
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

Scalar = Float[Array, ""]
Vector = Float[Array, " n"]
Number = float | Scalar  # a setting: a new float compiles again, a new array does not


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
    seconds: float | Scalar = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return jax.tree.map(operator.add, self, other)


class Problem(eqx.Module):
    """A loss, the saddle to set out from, and the data.

    **Arguments**

    - `loss`: called as `loss(params, *args)`, returns a real scalar, twice differentiable.
    - `start`: any pytree of floating-point leaves of one dtype; where the search begins.
    - `args`: data. Arrays given here are traced; arrays in a closure are baked into the
      compiled program, which then compiles again for each of them.

    >>> import jax.numpy as jnp
    >>> def loss(params, depth):
    ...     return jnp.sum(params["a"] ** 4 / 4 - depth * params["a"] ** 2 / 2)
    >>> problem = Problem(loss, {"a": jnp.zeros(2)}, 0.5)
    >>> problem.size
    2
    >>> problem.hvp(problem.x0, jnp.array([1.0, 0.0])).tolist()
    [-0.5, 0.0]
    """

    loss: Callable[..., Scalar]
    start: PyTree[Float[Array, "..."]]
    args: tuple[Any, ...]

    def __init__(self, loss: Callable[..., Scalar], start: PyTree, *args: Any):
        if not callable(loss):
            raise ValueError(f"`loss` must be callable as loss(params, *args), not {loss!r}.")
        self.loss = loss
        self.start = _checked_start(start)
        self.args = args
        _check_scalar(loss, self.start, args)

    @property
    def size(self) -> int:
        """How many parameters there are."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.start))

    @property
    def dtype(self) -> np.dtype:
        return jax.tree.leaves(self.start)[0].dtype

    @property
    def x0(self) -> Vector:
        """The start as one vector."""
        return self.ravel(self.start)

    def ravel(self, params: PyTree) -> Vector:
        return ravel_pytree(params)[0]

    def unravel(self, x: Vector) -> PyTree:
        return ravel_pytree(self.start)[1](x)

    def with_start(self, params: PyTree) -> "Problem":
        """The same loss and data from another start, e.g. one that `find_saddle` found."""
        return Problem(self.loss, params, *self.args)

    def value(self, x: Vector) -> Scalar:
        return jnp.asarray(self.loss(self.unravel(x), *self.args)).astype(x.dtype)

    def grad(self, x: Vector) -> Vector:
        return jax.grad(self.value)(x)

    def hvp(self, x: Vector, v: Vector) -> Vector:
        return jax.jvp(self.grad, (x,), (v,))[1]

    def hessian(self, x: Vector) -> Float[Array, "n n"]:
        return jax.hessian(self.value)(x)


def _checked_start(start: PyTree) -> PyTree[Float[Array, "..."]]:
    leaves = jax.tree.leaves(start)
    if not sum(np.size(leaf) for leaf in leaves):
        raise ValueError("`start` must hold at least one parameter, but it is an empty pytree.")
    for path, leaf in jax.tree.leaves_with_path(start):
        where = f"`start{jax.tree_util.keystr(path)}`"
        dtype = getattr(leaf, "dtype", type(leaf).__name__)
        if str(dtype) not in ("float", "float32", "float64"):
            raise ValueError(f"{where} must be float32 or float64, not {dtype}.")
        if not isinstance(leaf, jax.core.Tracer) and not np.all(np.isfinite(leaf)):
            raise ValueError(f"{where} must be finite, but it holds NaN or infinity.")
    start = jax.tree.map(jnp.asarray, start)
    dtypes = sorted({str(leaf.dtype) for leaf in jax.tree.leaves(start)})
    if len(dtypes) > 1:
        raise ValueError(f"`start` must have leaves of one dtype, not {' and '.join(dtypes)}.")
    return start


def _check_scalar(loss: Callable[..., Scalar], start: PyTree, args: tuple[Any, ...]) -> None:
    out = eqx.filter_eval_shape(loss, start, *args)
    shape, dtype = getattr(out, "shape", None), getattr(out, "dtype", type(out).__name__)
    if shape != () or not jnp.issubdtype(dtype, jnp.floating):
        hint = " Did you forget a mean or a sum?" if shape else ""
        what = f"shape {shape} and type {dtype}" if shape is not None else dtype
        raise ValueError(f"`loss` must return a real scalar, but it returned {what}.{hint}")
