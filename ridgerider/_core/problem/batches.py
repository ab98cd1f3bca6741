"""Mini-batches: which rows of the data a step uses.

A batch rule is a callable `batch(problem, key, step) -> problem` that is asked once per step, so
that all of a step (corrector, update, every attempt of a line search) sees the same rows: common
random numbers.
"""

import functools
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from ridgerider._check import Count, check_fields
from ridgerider._core.problem.problem import Problem
from ridgerider._core.runtime.compile import compiled


class Batches(eqx.Module):
    """Random rows of the data, one from each of `size` equal strata.

    The arrays in `Problem.args` must have one leading length, and the loss must be a mean over it.
    Every row is equally likely and none appears twice.

    **Arguments**

    - `size`: rows in a batch.
    - `kind`: `"resampled"` draws anew for each step, as the paper does, `"fixed"` once for a ride.
    - `micro_size`: rows that are held in memory at a time; gradients and Hessian-vector products
      are accumulated over them. Default: `size`.

    >>> import jax, jax.numpy as jnp
    >>> problem = Problem(lambda x, data: jnp.mean(data * x[0] ** 2), jnp.ones(1), jnp.arange(10.0))
    >>> on_batch = Batches(size=5)(problem, jax.random.key(0), 0)
    >>> len(set(on_batch.rows[0].tolist()))
    5
    """

    size: Count = eqx.field(static=True, default=1024)
    kind: Literal["resampled", "fixed"] = eqx.field(static=True, default="resampled")
    micro_size: Count | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        check_fields(self)
        if self.micro_size is not None and self.size % self.micro_size:
            raise ValueError(
                f"`micro_size` must divide `size`, {self.size}, but it is {self.micro_size}."
            )

    def __call__(self, problem: Problem, key: PRNGKeyArray, step: int | Int[Array, ""]) -> Problem:
        num_examples = problem.num_examples
        if self.size > num_examples:
            raise ValueError(
                f"`size` must be at most the number of examples, {num_examples}, not {self.size}."
            )
        if self.kind == "resampled":
            key = jax.random.fold_in(key, step)
        rows = strata(key, self.size, self.size, num_examples)
        return problem.on_rows(rows.reshape(-1, self.micro_size or self.size))


class FixedRows(eqx.Module):
    """The same rows for every ride and spectrum of a search, spread over the data.

    So all ridges are those of one function, and rides find what spectra found. Data without
    a common leading length, or with at most `size` rows, are taken whole.

    >>> import jax, jax.numpy as jnp
    >>> problem = Problem(lambda x, data: jnp.mean(data * x[0] ** 2), jnp.ones(1), jnp.arange(10.0))
    >>> one, two = (FixedRows(size=4)(problem, jax.random.key(seed), 0) for seed in (0, 1))
    >>> one.rows.shape, bool(jnp.all(one.rows == two.rows))
    ((1, 4), True)
    """

    size: Count = eqx.field(static=True, default=1024)

    __check_init__ = check_fields

    def __call__(self, problem: Problem, key: PRNGKeyArray, step: int | Int[Array, ""]) -> Problem:
        del key, step
        if not problem.has_examples:
            return problem
        num_examples = problem.num_examples
        size, is_double = min(self.size, num_examples), jax.config.jax_enable_x64  # type: ignore[attr-defined]
        return problem.on_rows(jnp.asarray(_spread(size, num_examples, is_double)))


@functools.cache
def _spread(size: int, num_examples: int, is_double: bool) -> Int[np.ndarray, "1 size"]:
    """Rows of the data: programs hold them as they are, not how they are drawn."""
    del is_double  # but other numbers are drawn then
    if size == num_examples:
        return np.arange(size)[None]
    with jax.ensure_compile_time_eval():
        draw = compiled(strata, "none")
        return np.asarray(draw(jax.random.key(0), size, size, num_examples))[None]


def strata(
    key: PRNGKeyArray, length: int, size: int | Int[Array, ""], num_examples: int
) -> Int[Array, " length"]:
    """One row out of each of `size` strata of the examples; `length` >= `size` fixes the shape.

    Strata are runs of whole rows whose lengths differ by at most one, counted from a random row on:
    all rows are equally likely and none is drawn twice.
    """
    where, first = jax.random.split(key)
    width = num_examples / jnp.asarray(size, jnp.float32)
    edges = jnp.floor(jnp.arange(length + 1).astype(jnp.float32) * width)
    inside = jax.random.uniform(where, (length,), jnp.float32) * jnp.diff(edges)
    rows = (edges[:-1] + jnp.floor(inside)).astype(int)
    return (rows + jax.random.randint(first, (), 0, num_examples)) % num_examples
