r"""UpdateRidge from a few Hessian-vector products (HVPs) and a model of the Hessian.

The model B is the exact Hessian where the ride begins, and is corrected at every step so that it
reproduces the HVPs W = H V computed there (Powell's symmetric Broyden update for a block),

    B <- B + R V^T + V R^T - V V^T R V^T,    R = W - B V.

With it the eigenvector takes few HVPs: V starts at the direction extrapolated from the last two
points and grows by Davidson's corrections, for the Ritz pair (theta, e) that overlaps the old
direction most and its residual r,

    t = -(B - theta)^-1 (r - c e),    c such that t is orthogonal to e,

each of which reduces the residual by a factor of |H - B| / gap.

What a residual says about the direction depends on the gap, which the model knows if its error
E = H - B is small near theta: outside e, H has no eigenvalue closer to theta than (1 - |S|) times
the gap of B, where

    S = |B - theta|^-1/2 E |B - theta|^-1/2,

since H - theta' = |B - theta'|^1/2 (+-1 + S') |B - theta'|^1/2 cannot be singular for |S'| < 1.
One HVP of each step is spent on the largest singular value of S, by the power method, which goes
on from step to step; the model is corrected by these HVPs, too. Where the model is not good
enough, the step is computed from the exact Hessian, which is the new model.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ridgerider._check import check_count, check_fraction
from ridgerider._core.linalg.space import Hvp, Space
from ridgerider._core.problem.functions import Functions
from ridgerider._core.problem.problem import Counted, Number, Problem, Scalar, Vector
from ridgerider._core.ride.update import (
    Certificate,
    Tracked,
    neighbours_of,
    overlap_with_space,
    project,
    safe_overlap,
    unit,
    with_space,
)
from ridgerider._core.spectra.spectrum import Ridge, cluster_width

# With fewer parameters Hessians cost no more than this update or, of a loss in JAX without many
# data, no more than its compilation.
EXACT_BELOW, EXACT_BELOW_IN_JAX, MANY_DATA = 16, 100, 100_000
MAX_HVPS = 16  # of one step, before the exact Hessian is computed
TOLERANCE = 1e-4  # of a residual, relative to the largest |eigenvalue|
SINE = 1e-3  # of the angle to the eigenvector, by the model's gap
MAX_SINE = 0.1  # of that angle, for a certificate, by the corrected model's
MAX_ERROR = 0.25  # of the model, |S|; the power method finds half of it at least
MIN_OVERLAP = 0.7072


class Model(eqx.Module):
    """The Hessian's model at a point of a ride, by its eigenvalues and eigenvectors (columns)."""

    x: Vector
    eigenvalues: Float[Array, " n"]
    columns: Float[Array, "n n"]
    turn: Vector  # of the direction, for each unit of length
    probe: Vector  # at which the power method for the model's error is
    is_known: Bool[Array, ""]  # false before the first step


class QuasiNewton(eqx.Module):
    """UpdateRidge from a model of the Hessian that is kept along the ride: a few HVPs a step.

    The ridge is the one that `Project` follows, with an angle of about 1e-3 to the eigenvector at
    most. A step is certified by the model if

    - the residual, from HVPs at the new point, is at most a tenth of half of the model's gap;
    - no error of the model above 1/4, relative to the distance from the eigenvalue, is found by the
      power method with one HVP a step, or more where one is found and corrected;
    - the eigenvalue is simple, and the overlap at least 0.7072.

    Any other step is computed from the exact Hessian, as in `Project`; so are steps on batches,
    since their Hessians differ. The neighbours are the model's eigenvalues. They do not rule out
    others, which the direction has no part in, so the gap is NaN unless the step was exact.

    **Arguments**

    - `cluster_tolerance`: as for `Project`.
    - `exact_below`: problems with fewer parameters are ridden by `Project`. Default: 16, and 100
      for a loss in JAX, unless its data have 100,000 entries.

    >>> import ridgerider as rr
    >>> def loss(x, depths):
    ...     return jnp.sum(x**4 / 4 - depths * x**2 / 2) + jnp.sum(x) ** 2 / 100
    >>> problem = rr.Problem(loss, jnp.zeros(20), jnp.linspace(0.5, 1.5, 20))
    >>> ridge = rr.DenseSpectrum()(problem, problem.x0, jax.random.key(0)).ridge(0)
    >>> rider = rr.Rider(update=rr.QuasiNewton(exact_below=20), max_steps=5)
    >>> cost = rider.ride(problem, problem.x0, ridge, jax.random.key(0)).cost
    >>> int(cost.hvps) < 20 * 6  # a Hessian at each point
    True
    """

    cluster_tolerance: Number | None = None
    exact_below: int | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        check_fraction("cluster_tolerance", self.cluster_tolerance)
        if self.exact_below is not None:
            check_count("exact_below", self.exact_below, 0)

    @eqx.filter_jit
    def __call__(self, problem: Problem, x: Vector, ridge: Ridge, key: PRNGKeyArray) -> Tracked:
        if not self._has_model(problem):
            return project(problem, x, ridge, self.cluster_tolerance)[0]
        ridge = self.begin(problem, x, ridge) if ridge.memory is None else ridge
        tracked, is_sure = self._modelled(problem, x, ridge, key)

        def exact() -> Tracked:
            exact, eigenvalues, columns = project(problem, x, ridge, self.cluster_tolerance)
            new = _with_model(ridge, exact.ridge, x, eigenvalues, columns, ridge.memory.probe)
            cost = exact.cost + tracked.cost
            return jax.tree.map(jnp.asarray, Tracked(new, exact.certificate, cost))

        return jax.lax.cond(is_sure, lambda: jax.tree.map(jnp.asarray, tracked), exact)

    def begin(self, problem: Problem, x: Vector, ridge: Ridge) -> Ridge:
        """The ridge with a model in which nothing is known yet."""
        ridge = with_space(ridge)
        if not self._has_model(problem):
            return ridge
        nothing, probe = jnp.zeros_like(x), jnp.ones_like(x) / x.size**0.5
        matrix = jnp.zeros((x.size, x.size), x.dtype)
        memory = Model(x, nothing, matrix, nothing, probe, jnp.array(False))
        return dataclasses.replace(ridge, memory=memory)

    def _has_model(self, problem: Problem) -> bool:
        if problem.rows is not None:  # batches differ, and their Hessians with them
            return False
        least = self.exact_below
        if least is None:
            num_data = sum(np.size(leaf) for leaf in jax.tree.leaves(problem.args))
            is_cheap = not isinstance(problem.loss, Functions) and num_data < MANY_DATA
            least = EXACT_BELOW_IN_JAX if is_cheap else EXACT_BELOW
        return problem.size >= least

    def _modelled(
        self, problem: Problem, x: Vector, ridge: Ridge, key: PRNGKeyArray
    ) -> tuple[Tracked, Bool[Array, ""]]:
        """The ridge at `x` from HVPs and the model, and whether it can be relied on."""
        counted, model = Counted(problem), ridge.memory
        noise = max(problem.noise, 100 * float(jnp.finfo(x.dtype).eps))
        found = _search(model, ridge.direction, problem.hvp_at(x), x, key, noise)
        counted.charge(hvps=found.space.count, eigendecompositions=1)
        # All in the basis of the old model's eigenvectors.
        rest = found.space.images - found.space.rows * model.eigenvalues[None]
        rest = rest - (rest @ found.space.rows.T) @ found.space.rows / 2
        half = found.space.rows.T @ rest
        eigenvalues, turned = jnp.linalg.eigh(jnp.diag(model.eigenvalues) + half + half.T)
        is_own = jnp.arange(x.size) == jnp.argmax((found.direction @ turned) ** 2)
        direction = model.columns @ found.direction
        distances = jnp.where(is_own, jnp.inf, jnp.abs(eigenvalues - found.eigenvalue))
        gap = (1 - 2 * MAX_ERROR) * jnp.min(distances)
        width = cluster_width(self.cluster_tolerance, x.dtype, problem.noise)
        width = width * jnp.max(jnp.abs(eigenvalues))
        residual = jnp.linalg.norm(found.remainder) + counted.hvp_error(x, direction)
        certificate = Certificate(
            overlap=safe_overlap(overlap_with_space(ridge, direction), residual / gap),
            residual=residual,
            neighbours=neighbours_of(eigenvalues, is_own),
        )
        is_sure = (
            found.is_done
            & (residual <= MAX_SINE * gap)
            & (gap > width)
            & (certificate.overlap >= MIN_OVERLAP)
        )
        is_below = jnp.arange(1, x.size) <= jnp.argmax(is_own)
        new = with_space(
            Ridge(
                direction=direction,
                eigenvalue=found.eigenvalue,
                index=jnp.sum((jnp.diff(eigenvalues) > width) & is_below),
                multiplicity=jnp.ones_like(ridge.multiplicity),
            )
        )
        probe, columns = model.columns @ found.probe, model.columns @ turned
        new = _with_model(ridge, new, x, eigenvalues, columns, probe)
        return Tracked(new, certificate, counted.cost), is_sure


class _State(eqx.Module):
    """The vectors whose HVPs are known, and what was found with them, in the model's eigenbasis.

    The Ritz pair that overlaps the old direction most, with `remainder` = H e - theta e; the values
    of |B - theta|^1/2 (`roots`), infinite for the eigenvector next to e; the vector at which the
    power method for S is, and |S|.
    """

    space: Space
    direction: Vector
    eigenvalue: Scalar
    remainder: Vector
    roots: Vector
    is_found: Bool[Array, ""]
    probe: Vector
    error: Scalar

    @property
    def is_done(self) -> Bool[Array, ""]:
        return self.is_found & (self.error <= MAX_ERROR)


def _search(
    model: Model, old: Vector, hvp: Hvp, x: Vector, key: PRNGKeyArray, noise: float
) -> _State:
    """The eigenvector at `x` that continues the direction `old`, and the error of the model.

    HVPs may be off by `noise`, relative to the largest |eigenvalue|.
    """
    scale = jnp.max(jnp.abs(model.eigenvalues))
    floor = jnp.sqrt(jnp.finfo(x.dtype).eps) * scale
    first = old + jnp.linalg.norm(x - model.x) * model.turn
    random = unit(jax.random.normal(key, x.shape, x.dtype))
    old, first, probe, random = jnp.stack([old, first, model.probe, random]) @ model.columns

    def should_continue(state: _State) -> Bool[Array, ""]:
        return ~state.is_done & (state.space.count < len(state.space.rows)) & model.is_known

    def add(state: _State) -> _State:
        signs = jnp.where(model.eigenvalues < state.eigenvalue, -1, 1).astype(x.dtype)
        factors = jnp.where(state.is_found, 1, signs / state.roots) / state.roots
        is_nearest = state.roots == jnp.min(state.roots)  # the model's gap depends on it most
        probe = state.probe + is_nearest.astype(x.dtype)
        vector = factors * jnp.where(state.is_found, probe, state.remainder)
        space = state.space.add(lambda v: hvp(model.columns @ v) @ model.columns, vector)

        # Of row = |B - theta|^-1/2 z the image is wrong by |B - theta|^1/2 S z.
        row, image = space.rows[state.space.count], space.images[state.space.count]
        wrong = image - model.eigenvalues * row
        wrong = (wrong - (state.space.rows @ wrong) @ state.space.rows) / state.roots
        length = jnp.linalg.norm(jnp.where(jnp.isinf(state.roots), 0, state.roots * row))
        size = jnp.linalg.norm(wrong)
        error = size / jnp.where(length > 0, length, 1)
        probe = wrong / jnp.where(size > 0, size, 1) + random

        ritz = space.ritz()
        overlaps = (space.rows @ old) @ ritz.coefficients
        best = jnp.argmax(overlaps**2)
        mix = ritz.coefficients[:, best] * jnp.where(overlaps[best] < 0, -1, 1).astype(x.dtype)
        direction, eigenvalue = mix @ space.rows, ritz.eigenvalues[best]
        remainder = mix @ space.images - eigenvalue * direction
        distances = jnp.maximum(jnp.abs(model.eigenvalues - eigenvalue), floor)
        is_own = jnp.arange(x.size) == jnp.argmax(direction**2)
        distances = jnp.where(is_own, jnp.inf, distances)
        tolerance = jnp.minimum(TOLERANCE * scale, SINE * jnp.min(distances))
        tolerance = jnp.maximum(tolerance, noise * scale)
        return _State(
            space=space,
            direction=direction,
            eigenvalue=eigenvalue,
            remainder=remainder,
            roots=jnp.sqrt(distances),
            is_found=jnp.linalg.norm(remainder) <= tolerance,
            probe=jnp.where(state.is_found, probe, state.probe),
            error=jnp.where(state.is_found, error, state.error),
        )

    start = _State(
        space=Space.empty(min(MAX_HVPS, x.size), x.size, x.dtype),
        direction=first,
        eigenvalue=jnp.full((), -jnp.inf, x.dtype),  # so that the first vector is `first`
        remainder=first,
        roots=jnp.ones_like(x),
        is_found=jnp.array(False),
        probe=probe,
        error=jnp.full((), jnp.inf, x.dtype),
    )
    return jax.lax.while_loop(should_continue, add, start)


def _with_model(
    old: Ridge,
    new: Ridge,
    x: Vector,
    eigenvalues: Float[Array, " n"],
    columns: Float[Array, "n n"],
    probe: Vector,
) -> Ridge:
    """The new ridge, with what the next step is to know."""
    length = jnp.linalg.norm(x - old.memory.x)
    is_turn = (length > 0) & (old.multiplicity == 1) & (new.multiplicity == 1)
    turn = (new.direction - old.direction) / jnp.where(is_turn, length, 1)
    turn = jnp.where(is_turn, turn, 0)
    memory = Model(x, eigenvalues, columns, turn, probe, jnp.array(True))
    return dataclasses.replace(new, memory=memory)
