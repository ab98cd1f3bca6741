r"""A Krylov space that holds its rows and nothing else, for networks of many parameters.

From b starting vectors, row i + b is the image of row i, made orthonormal to all rows before it. So
only the last b images are needed, and with the projected matrix T = V H V^T the space is known: of
a Ritz vector V^T s the residual H V^T s - theta V^T s is what the last b images have outside of the
rows. Memory: one vector for each product, and 2 b more.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ridgerider._core.linalg.krylov import Product, Ritz, unit_outside
from ridgerider._core.problem.problem import Scalar


class Rows(eqx.Module):
    """Orthonormal rows, those not yet filled zero; `ring` holds the last images."""

    rows: Float[Array, "m n"]
    matrix: Float[Array, "m m"]
    ring: Float[Array, "b n"]
    count: Int[Array, ""]

    @staticmethod
    def begin(starts: Float[Array, "b n"], max_rows: int) -> "Rows":
        rows = jnp.zeros((max_rows, starts.shape[1]), starts.dtype)
        return Rows(rows, jnp.zeros((max_rows, max_rows), starts.dtype), starts, jnp.array(0))

    def add(self, product: Product) -> "Rows":
        place = self.count % len(self.ring)
        # Behind the last vector of the space comes the rounding of the largest images.
        scale = jnp.where(self.count < len(self.ring), 0, jnp.max(jnp.abs(self.matrix)))
        row = unit_outside(self.rows, self.ring[place], scale)
        image, rows = product(row), _put(self.rows, row, self.count)
        return Rows(
            rows=rows,
            matrix=_put(self.matrix, rows @ image, self.count, 1),
            ring=_put(self.ring, image, place),
            count=self.count + 1,
        )

    def ritz(self) -> Ritz:
        """The Ritz pairs; those of rows that are empty come last."""
        upper = jnp.triu(self.matrix)  # what was projected before later rows were there
        matrix = upper + upper.T - jnp.diag(jnp.diagonal(upper))
        is_filled = jnp.sum(self.rows**2, axis=1) > 0.5
        above = 2 * jnp.sqrt(jnp.sum(matrix**2)) + 1
        matrix = jnp.where(is_filled[:, None] & is_filled[None, :], matrix, 0)
        matrix = matrix + jnp.diag(jnp.where(is_filled, jnp.zeros_like(above), above))
        eigenvalues, coefficients = jnp.linalg.eigh(matrix)
        is_there = jnp.arange(len(eigenvalues)) < jnp.sum(is_filled)
        return Ritz(eigenvalues, coefficients, is_there)

    def residuals(self, ritz: Ritz) -> Float[Array, " m"]:
        """|H u - eigenvalue u| of each Ritz vector u."""
        size = len(self.ring)
        inside = self.rows @ self.ring.T
        gram = self.ring @ self.ring.T - inside.T @ inside
        # The image in place p belongs to the last row whose number is p modulo the ring's length.
        last = self.count - 1 - (self.count - 1 - jnp.arange(size)) % size
        of_last = ritz.coefficients[last]
        squares = jnp.sum(of_last * (gram @ of_last), axis=0)
        return jnp.sqrt(jnp.maximum(squares, 0))


def _put(table: Array, row: Array, place: Int[Array, ""], axis: int = 0) -> Array:
    # Not `table.at[place].set(row)`: that is a scatter, which compiles much longer.
    return jax.lax.dynamic_update_index_in_dim(table, row, place, axis)


def grow(product: Product, starts: Float[Array, "b n"], max_rows: int) -> Rows:
    """The space of `max_rows` products."""
    return jax.lax.fori_loop(
        0, max_rows, lambda _, space: space.add(product), Rows.begin(starts, max_rows)
    )


class Worth(Protocol):
    @property
    def worth(self) -> Scalar: ...


Found = TypeVar("Found", bound=Worth)


def grow_while(
    product: Product,
    starts: Float[Array, "b n"],
    least: int,
    most: int,
    look: Callable[[Rows], Found],
    share: float,
) -> tuple[Int[Array, ""], Found]:
    """Add products in rounds of one for each start, as long as they raise `worth` by a share.

    How many they were, and what `look` found last.
    """
    size = len(starts)

    def add_round(space: Rows) -> Rows:
        return jax.lax.fori_loop(0, size, lambda _, space: space.add(product), space)

    def go_on(carry: tuple[Rows, Found, Bool[Array, ""]]) -> Bool[Array, ""]:
        space, _, is_worth_it = carry
        return (space.count < least) | (is_worth_it & (space.count < most))

    def more(
        carry: tuple[Rows, Found, Bool[Array, ""]],
    ) -> tuple[Rows, Found, Bool[Array, ""]]:
        space, before, _ = carry
        space = add_round(space)
        now = look(space)
        return space, now, now.worth > (1 + share) * before.worth

    space = Rows.begin(starts, most)
    nothing = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(look, space)
    )
    space, found, _ = jax.lax.while_loop(go_on, more, (space, nothing, jnp.array(True)))
    return space.count, found
