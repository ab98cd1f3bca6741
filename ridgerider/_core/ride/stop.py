"""EndRide: rules that end a ride. A rule reads true when it fires.

A rule is a callable `rule(ride) -> bool` under jit: a function if it has no settings, an
`eqx.Module` if it has. There is no rule against climbing: away from a stationary point one of the
two ways along a ridge starts uphill, and negative curvature turns it downhill in time.
"""

from typing import TYPE_CHECKING

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ridgerider._check import AtLeast0, Count, Share, check_fields

if TYPE_CHECKING:
    from ridgerider._core.ride.rider import Ride


def curvature_gone(ride: "Ride") -> Bool[Array, ""]:
    """The ridge no longer curves downwards.

    >>> import ridgerider as rr
    >>> rr.Rider(stop=(rr.curvature_gone,)).rule_names()
    ('curvature_gone', 'max_steps')
    """
    return ride.ridge.eigenvalue >= 0


def not_finite(ride: "Ride") -> Bool[Array, ""]:
    """The last step led to a NaN or an infinity; it was not taken.

    >>> import ridgerider as rr
    >>> rr.not_finite in rr.Rider().stop
    True
    """
    return ~ride.is_finite


class RidgeLost(eqx.Module):
    """The direction left its eigenspace: overlap below `min_overlap` at the step that was taken.

    At 0.7072 and above, no other eigenvector can have a larger overlap, if the direction is one.

    >>> RidgeLost(min_overlap=0.9).min_overlap
    0.9
    """

    min_overlap: Share = 0.7072

    __check_init__ = check_fields

    def __call__(self, ride: "Ride") -> Bool[Array, ""]:
        return ride.overlap < self.min_overlap


class Stalled(eqx.Module):
    """The last `patience` steps moved the loss by less than `tolerance` of its range on this ride.

    Or by less than rounding: the scale and the zero point of the loss do not matter.

    >>> Stalled(patience=50).patience
    50
    """

    patience: Count = eqx.field(static=True, default=20)
    tolerance: AtLeast0 = 1e-4

    __check_init__ = check_fields

    def __call__(self, ride: "Ride") -> Bool[Array, ""]:
        losses = ride.trace.loss
        is_past = jnp.arange(len(losses)) <= ride.num_steps
        is_recent = is_past & (jnp.arange(len(losses)) >= ride.num_steps - self.patience)
        # Highest less lowest of both, in one pass: four passes compile much longer.
        ends = [jnp.where(is_recent, losses, -jnp.inf), jnp.where(is_past, losses, -jnp.inf)]
        ends += [jnp.where(is_recent, -losses, -jnp.inf), jnp.where(is_past, -losses, -jnp.inf)]
        recent, whole = jnp.sum(jnp.max(jnp.stack(ends), axis=1).reshape(2, 2), axis=0)
        change = jnp.abs(ride.loss - losses[jnp.maximum(ride.num_steps - self.patience, 0)])
        # Two steps may be level because a crest lies between them, if it curves downwards there.
        moved = jnp.where(ride.ridge.eigenvalue < 0, recent, change)
        rounding = 4 * jnp.finfo(losses.dtype).eps * jnp.abs(ride.loss)
        is_flat = moved <= self.tolerance * whole + rounding
        return is_flat & (ride.num_steps >= self.patience)
