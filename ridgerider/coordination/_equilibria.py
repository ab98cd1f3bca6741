r"""Equilibria of games whose players have different payoffs.

With G the derivative of a player's payoff by its policy, policies are an equilibrium if in each row
all actions that are used have the same G, v, and no other has more: nobody gains by another action.
For each choice of the actions that are used, in every row, Newton's method solves

    G(row, a) = v(row) where a is used,    pi(a | row) = 0 elsewhere,    sum_a pi(a | row) = 1,

which is linear for two players with one row each. What is stable is that for the replicator
dynamics, d pi / dt = pi (G - sum_a pi G): the eigenvalues of its derivative, between policies.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from ridgerider._check import checked
from ridgerider.coordination._payoff_game import PayoffGame

MAX_SUPPORTS = 10_000  # choices of actions that are tried
NUM_STEPS = 40  # of Newton's method
TOLERANCE = 1e-8  # of probabilities and, relatively, payoffs, in double precision
SAME = 1e-6  # of policies that are one, and, relatively, of a rate that is zero

Kind = Literal["stable", "neutral", "unstable"]


@dataclass(frozen=True)
class Equilibrium:
    """Policies from which no player gains by deviating alone.

    - `policies`: a table of probabilities for each player; `payoffs`: what each player gets.
    - `kind`: "stable" if the replicator dynamics return after any small change, "unstable" if some
      small change grows, else "neutral".
    - `growth`: the largest real part of its eigenvalues.
    """

    policies: tuple[np.ndarray, ...]
    payoffs: np.ndarray
    kind: Kind
    growth: float


@checked
def equilibria(game: PayoffGame) -> tuple[Equilibrium, ...]:
    """All equilibria of a small game, the stable ones first, by their total payoff.

    Where they form a continuum, some points of it are listed. Rows that are never reached are
    not distinguished.

    - `game`: whose payoff is a number for each player, or one for all.

    Both want to meet, but one prefers the first place and the other the second:

    >>> def payoff(one, two):
    ...     return jnp.array([[2.0, 1.0], [1.0, 2.0]]) @ (one[0] * two[0])
    >>> found = equilibria(PayoffGame(payoff, ((1, 2), (1, 2))))
    >>> [(one.kind, one.payoffs.round(3).tolist()) for one in found]
    [('stable', [2.0, 1.0]), ('stable', [1.0, 2.0]), ('unstable', [0.667, 0.667])]
    """
    rows = [actions for observations, actions in game.shapes for _ in range(observations)]
    count = math.prod(2**actions - 1 for actions in rows)
    if count > MAX_SUPPORTS:
        raise ValueError(
            f"`game` must have at most {MAX_SUPPORTS} choices of the actions that are used, not "
            f"{count}."
        )
    choices = [list(itertools.product((True, False), repeat=n))[:-1] for n in rows]
    used = jnp.asarray([sum(chosen, ()) for chosen in itertools.product(*choices)])
    number = np.repeat(np.arange(len(rows)), rows)  # the row of each entry
    sums = jnp.asarray(number[None] == np.arange(len(rows))[:, None], float)
    _, tables = ravel_pytree(game.start)

    def paid_to(*policies: Array) -> Float[Array, " players"]:
        return jnp.broadcast_to(game.payoff(*policies), (game.num_players,))

    def slopes(x: Float[Array, " n"]) -> Float[Array, " n"]:
        """The derivative of each player's payoff by its own policy."""
        own = jax.jacrev(paid_to, range(game.num_players))
        return jnp.concatenate([jnp.ravel(part[k]) for k, part in enumerate(own(*tables(x)))])

    def solve(used: Bool[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, ""]]:
        def off(z: Float[Array, " m"]) -> Float[Array, " m"]:
            x, values = z[: len(number)], z[len(number) :]
            return jnp.concatenate(
                [jnp.where(used, slopes(x) - values[number], x), sums @ x - jnp.ones(len(rows))]
            )

        def step(_: int, z: Float[Array, " m"]) -> Float[Array, " m"]:
            return z - jnp.linalg.lstsq(jax.jacfwd(off)(z), off(z))[0]

        x = used.astype(sums.dtype)
        x = x / (sums @ x)[number]
        z = jnp.concatenate([x, sums @ (x * slopes(x))])
        z = jax.lax.fori_loop(0, NUM_STEPS, step, z)
        return z[: len(number)], jnp.max(jnp.abs(off(z)))

    def field(x: Float[Array, " n"]) -> Float[Array, " n"]:
        paid = slopes(x)
        return x * (paid - (sums @ (x * paid))[number])

    # Changes that keep the sum of each row.
    is_last = np.append(number[1:] != number[:-1], True)
    last = np.flatnonzero(is_last)[number]
    basis = (np.eye(len(number)) - np.eye(len(number))[last])[~is_last].T
    found, known = list[Equilibrium](), list[np.ndarray]()
    points, errors = jax.jit(lambda used: jax.lax.map(solve, used))(used)
    for x, error in zip(np.asarray(points), np.asarray(errors), strict=True):
        if not (error < TOLERANCE and (x > -TOLERANCE).all()):
            continue
        x = np.where(x < TOLERANCE, 0, x)
        jacobian, paid = (np.asarray(one(jnp.asarray(x))) for one in (jax.jacfwd(field), slopes))
        size = np.abs(paid).max() + np.abs(jacobian).max()
        values = np.array([paid[number == row] @ x[number == row] for row in range(len(rows))])
        is_reached = np.asarray(sums) @ np.abs(paid) > SAME * size
        seen = np.where(is_reached[number], x, 0)
        is_known = any(np.abs(seen - one).max() < SAME for one in known)
        if is_known or (paid - values[number]).max() > TOLERANCE * size:
            continue
        known.append(seen)
        rates = np.linalg.eigvals(np.linalg.pinv(basis) @ jacobian @ basis)
        growth = float(rates.real.max())
        kind: Kind = "neutral"
        if abs(growth) > SAME * size:
            kind = "stable" if growth < 0 else "unstable"
        policies = tables(jnp.asarray(x))
        payoffs = np.asarray(paid_to(*policies))
        found.append(Equilibrium(tuple(map(np.asarray, policies)), payoffs, kind, growth))
    order = ("stable", "neutral", "unstable")
    return tuple(sorted(found, key=lambda one: (order.index(one.kind), -one.payoffs.sum())))
