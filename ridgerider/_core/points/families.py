"""A walk along flat directions: whether two minima belong to one continuous family."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from ridgerider._core.points.classify import View, flat_part, view
from ridgerider._core.problem.problem import Problem, Scalar, Vector
from ridgerider._core.spectra.spectrum import fixed_vectors, tolerance_of

MAX_VIEWS = 600
MAX_POLISH = 5  # Newton steps that set a step of the walk right
MAX_KICKS = 3  # where the way is straight across the family, as between opposite points of a circle


class _Walk(eqx.Module):
    """At `here`, a point of the family; `trial` is evaluated next, and set out from `target`."""

    here: View
    trial: Vector
    target: Vector
    length: Scalar
    longest: Scalar
    num_polish: Int[Array, ""]
    num_kicks: Int[Array, ""]
    num_views: Int[Array, ""]
    is_over: Bool[Array, ""]
    has_arrived: Bool[Array, ""]


def walk(problem: Problem, a: Vector, b: Vector, reach: Scalar) -> Bool[Array, ""]:
    """Whether steps along flat directions, each corrected by Newton steps, lead from `a` to `b`.

    The loss must not rise on the way, and no step may be corrected by more than half its length. A
    walk that does not arrive proves nothing.

    >>> from ridgerider import Problem
    >>> problem = Problem(lambda x: (x[0] ** 2 + x[1] ** 2 - 1) ** 2, jnp.zeros(2))
    >>> bool(walk(problem, jnp.array([1.0, 0.0]), jnp.array([-1.0, 0.0]), jnp.array(1e-6)))
    True
    """
    root, tiny = tolerance_of(None, a.dtype), float(jnp.finfo(a.dtype).tiny)
    size = jnp.maximum(jnp.linalg.norm(b), problem.unit)
    near = jnp.maximum(reach, 10 * root * size)
    kicks = fixed_vectors(MAX_KICKS, len(a), a.dtype)
    none, no = jnp.array(0), jnp.array(False)

    def evaluate(state: _Walk) -> _Walk:
        """Evaluate a point, which may need another Newton step before it is taken or not."""
        seen = view(problem, state.trial, jax.random.key(0))
        is_first = state.num_views == 0
        is_right = ~(seen.reach > root**1.5) | (state.num_polish >= MAX_POLISH)
        slack = root * jnp.abs(state.here.loss) + seen.curvature.scale * (root * size) ** 2
        is_level = seen.loss <= state.here.loss + slack
        is_near = jnp.linalg.norm(seen.x - state.target) <= state.length / 2
        is_taken = is_first | (is_right & is_level & is_near & (seen.reach <= root))
        here = jax.tree.map(lambda new, old: jnp.where(is_taken, new, old), seen, state.here)
        longest = jnp.where(is_taken, 2 * state.longest, state.length / 4)
        longest = jnp.where(is_first, 0.1 * size, longest)
        is_over = is_right & ~is_taken & (state.length < root * size)
        after = _Walk(
            here,
            seen.x + seen.step,
            state.target,
            state.length,
            jnp.where(is_right, longest, state.longest),
            jnp.where(is_right, 0, state.num_polish + 1),
            state.num_kicks,
            state.num_views + 1,
            is_over,
            no,
        )
        onward = set_out(after)
        return jax.tree.map(lambda new, old: jnp.where(is_right, new, old), onward, after)

    def set_out(state: _Walk) -> _Walk:
        """The next step along the family, towards `b` or, if that lies across it, aside."""
        way = b - state.here.x
        distance = jnp.linalg.norm(way)
        kick = kicks[jnp.minimum(state.num_kicks, MAX_KICKS - 1)]
        along = flat_part(problem, state.here, way)
        is_across = jnp.linalg.norm(along) < 0.01 * distance
        aside = flat_part(problem, state.here, kick)
        aside = aside * 0.3 * distance / jnp.maximum(jnp.linalg.norm(aside), tiny)
        along = jnp.where(is_across, aside, along)
        whole = jnp.maximum(jnp.linalg.norm(along), tiny)
        length = jnp.minimum(whole, state.longest)
        target = state.here.x + along * (length / whole)
        has_arrived = distance <= near
        is_lost = is_across & (state.num_kicks >= MAX_KICKS)
        num_kicks = state.num_kicks + is_across.astype(int)
        return eqx.tree_at(
            lambda s: (s.trial, s.target, s.length, s.num_kicks, s.is_over, s.has_arrived),
            state,
            (target, target, length, num_kicks, state.is_over | has_arrived | is_lost, has_arrived),
        )

    empty = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
        jax.eval_shape(lambda: view(problem, a, jax.random.key(0))),
    )
    start = _Walk(empty, a, a, size, size, none, none, none, no, no)
    return jax.lax.while_loop(
        lambda state: ~state.is_over & (state.num_views < MAX_VIEWS), evaluate, start
    ).has_arrived
