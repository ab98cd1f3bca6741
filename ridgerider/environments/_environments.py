"""One loss in several environments, and the part of its parameters that is ridden.

The parameters are split by a mask into a *featurizer*, which stays or is trained, and the *ridden
part*. Everything here is a derivative in the ridden part alone: H_i is the Hessian of environment
i's loss with respect to it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ridgerider._check import came, checked
from ridgerider._core.problem.batches import Batches
from ridgerider._core.problem.problem import Problem, Scalar, Vector, check_params


class _RiddenLoss(eqx.Module):
    """A loss as a function of the ridden part alone."""

    loss: Any
    params: PyTree

    def __call__(self, ridden: PyTree, *args: Any) -> Scalar:
        return self.loss(eqx.combine(ridden, self.params), *args)


class Mixture(eqx.Module):
    """The weighted sum of the environments' losses, `problems[i]` in the ridden part."""

    problems: tuple[Problem, ...]

    def __call__(self, ridden: PyTree, weights: Float[Array, " environments"]) -> Scalar:
        x = ravel_pytree(ridden)[0]
        losses = jnp.stack([problem.value(x) for problem in self.problems])
        return weights @ losses


class Environments(eqx.Module):
    """The same loss in two or more environments, given as one `Problem` for each.

    **Arguments**

    - `problems`: one for each environment, with the same `loss` and `start`, and different data.
    - `ridden`: a pytree of booleans in the structure of `start`, or a prefix of it: what is ridden.
      The rest is the featurizer. Default: everything.

    >>> import jax.numpy as jnp
    >>> import ridgerider as rr
    >>> def loss(params, c):  # features `f`, then two layers
    ...     return -jnp.sum(params["w"] * params["a"] * params["f"] * c)
    >>> start = {"f": jnp.ones(2), "w": jnp.zeros(2), "a": jnp.zeros(2)}
    >>> problems = [rr.Problem(loss, start, jnp.array(c)) for c in ([1.0, 2.0], [1.0, 0.0])]
    >>> both = Environments(problems, {"f": False, "w": True, "a": True})
    >>> both.size, both.hessians(start).shape
    (4, (2, 4, 4))
    >>> float(both.pooled(start).hessian(both.x0)[0, 2])
    -1.0
    """

    problems: tuple[Problem, ...]
    mask: PyTree[bool]

    @checked
    def __init__(self, problems: Sequence[Problem], ridden: PyTree = True):
        self.problems = _checked(tuple(problems))
        self.mask = mask_of(self.start, ridden, "ridden")

    def __len__(self) -> int:
        return len(self.problems)

    @property
    def start(self) -> PyTree:
        return self.problems[0].start

    @property
    def size(self) -> int:
        """How many parameters are ridden."""
        return len(self.x0)

    @property
    def x0(self) -> Vector:
        """The ridden part of the start as one vector."""
        return self.ravel(self.start)

    @checked
    def ravel(self, params: PyTree) -> Vector:
        """The ridden part of `params` as one vector."""
        check_params("params", self.start, params)
        return ravel_pytree(eqx.filter(params, self.mask))[0]

    @checked
    def with_ridden(self, params: PyTree, x: Vector) -> PyTree:
        """`params` with another ridden part."""
        if x.shape != self.ravel(params).shape:
            raise ValueError(f"`x` must be of shape ({self.size},), not {x.shape}.")
        return eqx.combine(ravel_pytree(eqx.filter(params, self.mask))[1](x), params)

    @checked
    def ridden(self, params: PyTree) -> tuple[Problem, ...]:
        """Each environment as a problem of the ridden part; the featurizer is that of `params`."""
        check_params("params", self.start, params)
        ridden, start = [], eqx.filter(params, self.mask)
        for problem in self.problems:
            new = Problem(_RiddenLoss(problem.loss, params), start, *problem.args)
            if problem.rows is not None:
                new = new.on_rows(problem.rows, problem.num_chunks)
            ridden.append(new)
        return tuple(ridden)

    @checked
    def pooled(self, params: PyTree | None = None) -> Problem:
        """The mean loss in the ridden part: what a `Rider` rides."""
        params = self.start if params is None else params
        weights = jnp.full(len(self), 1 / len(self), self.problems[0].dtype)
        return Problem(Mixture(self.ridden(params)), eqx.filter(params, self.mask), weights)

    @checked
    def hessians(self, params: PyTree) -> Float[Array, "environments r r"]:
        """H_i, exact; for ridden parts of up to a thousand parameters or so."""
        return jnp.stack([one.hessian(one.x0) for one in self.ridden(params)])

    @checked
    def hvps(
        self, params: PyTree, directions: Float[Array, "k r"]
    ) -> Float[Array, "environments k r"]:
        """H_i e for each direction e; differentiable in `params` and `directions`."""
        return jnp.stack([jax.vmap(one.hvp_at(one.x0))(directions) for one in self.ridden(params)])

    def on_batch(self, batch: Batches | None, key: PRNGKeyArray) -> "Environments":
        """The same on a batch of each environment's examples; None: on all of them."""
        if batch is None:
            return self
        keys = jax.random.split(key, len(self))
        problems = tuple(batch(one, own, 0) for one, own in zip(self.problems, keys, strict=True))
        return eqx.tree_at(lambda e: e.problems, self, problems)


@checked
def from_groups(
    loss: Callable[..., Scalar],
    start: PyTree,
    args: Sequence[Array],
    groups: Sequence[Any] | Array,
    *,
    ridden: PyTree = True,
) -> Environments:
    """Environments out of one table of data with a group column.

    **Arguments**

    - `loss`, `start`: as for `Problem`; the loss is a mean over examples.
    - `args`: arrays with an entry for each example.
    - `groups`: the group of each example. Each becomes an environment, in sorted order.
    - `ridden`: as for `Environments`.

    >>> import jax.numpy as jnp
    >>> def loss(params, x, y):
    ...     return jnp.mean((params["a"] * params["w"] * x - y) ** 2)
    >>> x, y, hospital = jnp.array([1.0, 2.0, 3.0]), jnp.array([1.0, 2.0, 2.0]), ["A", "B", "A"]
    >>> both = from_groups(loss, {"a": jnp.zeros(()), "w": jnp.zeros(())}, (x, y), hospital)
    >>> [problem.num_examples for problem in both.problems]
    [2, 1]
    """
    column, leaves = np.asarray(groups), jax.tree.leaves(tuple(args))
    if not leaves:
        raise ValueError("`args` must hold an array or more, but it is empty.")
    lengths = sorted({len(leaf) if np.ndim(leaf) else 0 for leaf in leaves})
    if column.ndim != 1 or lengths != [len(column)]:
        raise ValueError(
            f"`groups` must name one group for each example, not {came(groups)} for `args` of "
            f"lengths {lengths}."
        )
    problems = []
    for name in np.unique(column).tolist():
        rows = np.flatnonzero(column == name)
        own = jax.tree.map(lambda leaf, rows=rows: jnp.asarray(leaf)[rows], tuple(args))
        problems.append(Problem(loss, start, *own))
    return Environments(problems, ridden)


def _checked(problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
    if len(problems) < 2:
        raise ValueError(
            f"`problems` must be at least two environments to compare, not {len(problems)}."
        )
    for number, problem in enumerate(problems):
        where = f"`problems[{number}]`"
        if any(np.shape(leaf)[:1] == (0,) for leaf in jax.tree.leaves(problem.args)):
            raise ValueError(f"{where} must hold at least one example, but it is empty.")
        for of, must in (
            (_shapes, "parameters and data shaped like"),
            (_classes, "the classes of"),
        ):
            wanted, came = of(problems[0]), of(problem)
            if wanted != came:
                raise ValueError(f"{where} must have {must} `problems[0]`, {wanted}, not {came}.")
    return problems


def _shapes(problem: Problem) -> str:
    """The shapes of parameters and of an example, with their types."""

    def shown(tree: PyTree, first: int) -> PyTree:
        return jax.tree.map(lambda x: f"{jnp.result_type(x)}{list(np.shape(x)[first:])}", tree)

    return f"{shown(problem.start, 0)} and {shown(problem.args, 1)}"


def _classes(problem: Problem) -> list[list[int]]:
    """The values of whole-number data that name classes: one for each example."""
    leaves = [leaf for leaf in jax.tree.leaves(problem.args) if np.ndim(leaf) == 1]
    known = [leaf for leaf in leaves if not isinstance(leaf, jax.core.Tracer)]
    return [np.unique(leaf).tolist() for leaf in known if np.issubdtype(leaf.dtype, np.integer)]


def mask_of(start: PyTree, mask: PyTree, name: str) -> PyTree[bool]:
    """A mask with a boolean for each leaf, from a prefix of it; bad ones are refused by name."""
    try:
        whole = jax.tree.map(lambda mark, part: jax.tree.map(lambda _: mark, part), mask, start)
    except ValueError:
        whole = None
    marks = jax.tree.leaves(whole)
    if whole is None or not all(isinstance(mark, bool) for mark in marks):
        raise ValueError(
            f"`{name}` must hold booleans, one for each leaf or part, not {came(mask)}."
        )
    if not any(marks):
        raise ValueError(f"`{name}` must select at least one parameter, but it selects none.")
    return whole
