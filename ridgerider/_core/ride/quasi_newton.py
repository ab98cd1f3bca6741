r"""UpdateRidge from a few Hessian-vector products (HVPs) and a model of the Hessian.

The model B is the exact Hessian where the ride begins, and is corrected at every step so that it
reproduces what is computed there, W = H V (Powell's symmetric Broyden update for a block),

    B <- B + R V^T + V R^T - V V^T R V^T,    R = W - B V.

Before any HVP it is corrected along the step, by the change of the gradient g: for a step of length
h along u, by the trapezoidal rule,

    H(x) u = 2 (g(x) - g(x_old)) / h - H(x_old) u + O(h^2).

Then V grows by the eigenvector of B next to the direction extrapolated from the last two points,
and by that next to the Ritz vector that overlaps the old direction most, by inverse iteration with
B as a diagonal matrix and one of low rank. Each HVP reduces the residual by a factor of about
|H - B| / gap.

What a residual says about the direction depends on the gap, which the model knows if its error
E = H - B is small near the eigenvalue theta: outside e, H has no eigenvalue closer to theta than
(1 - |S|) times the gap of B, where

    S = |B - theta|^-1/2 E |B - theta|^-1/2,

since H - theta' = |B - theta'|^1/2 (+-1 + S') |B - theta'|^1/2 cannot be singular for |S'| < 1.
One HVP of each step measures |S| by the power method, which continues from step to step; the model
is corrected by these HVPs, too. Where the model is not good enough, the step is computed from the
exact Hessian, which is the new model; but not where it says that the ridge is lost: then a shorter
step is cheaper.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ridgerider._check import Fraction, Whole, check_fields
from ridgerider._core.linalg.space import Hvp, Space
from ridgerider._core.problem.functions import Functions
from ridgerider._core.problem.problem import Counted, Problem, Scalar, Vector
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
MAX_HVPS = 12  # of one step, before the exact Hessian is computed
SINE = 1e-2  # of the angle to the eigenvector, by the model's gap
MAX_SINE = 0.1  # of that angle, for a certificate, by the corrected model's
MAX_ERROR = 0.25  # of the model, |S|; the power method finds half of it at least
MIN_OVERLAP = 0.7072


class Model(eqx.Module):
    """The Hessian's model at a point of a ride, by its eigenvalues and eigenvectors (columns)."""

    x: Vector
    grad: Vector
    eigenvalues: Float[Array, " n"]
    columns: Float[Array, "n n"]
    pair: Float[Array, "2 n"]  # p and q: p q^T + q p^T, from the last probe, is still to be added
    turn: Vector  # of the direction, for each unit of length
    probe: Vector  # at which the power method for the model's error is
    is_known: Bool[Array, ""]  # false before the first step


class QuasiNewton(eqx.Module):
    """UpdateRidge from a model of the Hessian that is kept along the ride: a few HVPs a step.

    The ridge is the one that `Project` follows, with an angle of about 1e-2 to the eigenvector at
    most. A step is certified by the model if

    - the residual, from HVPs at the new point, is at most a tenth of the gap;
    - the error of the model, relative to the distance from the eigenvalue, is at most 1/4 by the
      power method, with one HVP a step, or more where the error is larger and is corrected;
    - the eigenvalue is simple, here and at the last point, and the overlap at least 0.7072.

    The gap is then half of the model's: no larger than the true one. Any other step is computed
    from the exact Hessian, as in `Project`, unless no eigenvector of the model has an overlap of
    0.7072: then the overlap is reported as 0. Steps on batches are exact, since their Hessians
    differ. The neighbours are the model's eigenvalues.

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

    cluster_tolerance: Fraction | None = None
    exact_below: Whole | None = eqx.field(static=True, default=None)

    __check_init__ = check_fields

    @eqx.filter_jit
    def __call__(self, problem: Problem, x: Vector, ridge: Ridge, key: PRNGKeyArray) -> Tracked:
        if not self._has_model(problem):
            return project(problem, x, ridge, self.cluster_tolerance)[0]
        ridge = self.begin(problem, x, ridge) if ridge.memory is None else ridge
        grad = problem.grad(x)
        tracked, is_enough = self._modelled(problem, x, grad, ridge)

        def exact() -> Tracked:
            exact, eigenvalues, columns = project(problem, x, ridge, self.cluster_tolerance)
            pair, probe = jnp.zeros_like(ridge.memory.pair), ridge.memory.probe
            new = _with_model(ridge, exact.ridge, x, grad, (eigenvalues, columns, pair, probe))
            cost = exact.cost + tracked.cost
            return jax.tree.map(jnp.asarray, Tracked(new, exact.certificate, cost))

        return jax.lax.cond(is_enough, lambda: jax.tree.map(jnp.asarray, tracked), exact)

    def begin(self, problem: Problem, x: Vector, ridge: Ridge) -> Ridge:
        """The ridge with a model in which nothing is known yet."""
        ridge = with_space(ridge)
        if not self._has_model(problem):
            return ridge
        nothing, probe = jnp.zeros_like(x), jnp.ones_like(x) / x.size**0.5
        pair, columns = (jnp.zeros((rows, x.size), x.dtype) for rows in (2, x.size))
        no = jnp.array(False)
        memory = Model(x, nothing, nothing, columns, pair, nothing, probe, no)
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
        self, problem: Problem, x: Vector, grad: Vector, ridge: Ridge
    ) -> tuple[Tracked, Bool[Array, ""]]:
        """The ridge at `x` from HVPs and the model, and whether no Hessian is needed.

        That is so where the ridge is certified, and where the model says that it is lost.
        """
        counted, model = Counted(problem), ridge.memory
        noise = max(problem.noise, 100 * float(jnp.finfo(x.dtype).eps))
        hvp = problem.hvp_at(x)

        def product(vector: Vector) -> Vector:  # all in the basis of the old model's eigenvectors
            return hvp(model.columns @ vector) @ model.columns

        found = _search(model, ridge.direction, product, x, grad, noise)
        audit = _audited(model, found, product)
        counted.charge(gradients=1, hvps=audit.space.count, eigendecompositions=audit.num_eigh)
        eigenvalues, is_own = audit.eigenvalues, audit.is_own
        gap = (1 - 2 * MAX_ERROR) * audit.gap
        direction = model.columns @ found.direction
        width = cluster_width(self.cluster_tolerance, x.dtype, problem.noise)
        width = width * jnp.max(jnp.abs(eigenvalues))
        residual = jnp.linalg.norm(found.remainder) + counted.hvp_error(x, direction)
        overlap = safe_overlap(overlap_with_space(ridge, direction), residual / gap)
        is_sure = (
            found.is_found
            & (audit.error <= MAX_ERROR)
            & (residual <= MAX_SINE * gap)
            & (gap > width)
            & (overlap >= MIN_OVERLAP)
            & (ridge.multiplicity == 1)
        )
        # The largest overlap of any eigenvector of the model.
        best = jnp.max(jnp.abs((ridge.direction @ model.columns) @ audit.turned))
        is_step = model.is_known & jnp.any(x != model.x)
        is_lost = is_step & (ridge.multiplicity == 1) & (best < MIN_OVERLAP)
        certificate = Certificate(
            overlap=jnp.where(is_sure, overlap, 0),
            residual=residual,
            gap=jnp.where(is_sure, gap, jnp.nan),
            neighbours=neighbours_of(eigenvalues, is_own),
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
        columns, pair = model.columns @ audit.turned, audit.pair @ model.columns.T
        kept = (eigenvalues, columns, pair, model.columns @ audit.probe)
        new = _with_model(ridge, new, x, grad, kept)
        return Tracked(new, certificate, counted.cost), is_sure | is_lost


class _Found(eqx.Module):
    """The vectors whose HVPs are known, and the model that reproduces them, in its old eigenbasis.

    The model is diag(eigenvalues) + left^T right + right^T left. The Ritz pair is the one that
    overlaps the old direction most, `remainder` = H e - theta e; `next` is the vector to add.
    """

    space: Space
    left: Float[Array, "m n"]
    right: Float[Array, "m n"]
    direction: Vector
    eigenvalue: Scalar
    remainder: Vector
    next: Vector
    is_found: Bool[Array, ""]


def _search(model: Model, old: Vector, hvp: Hvp, x: Vector, grad: Vector, noise: float) -> _Found:
    """The eigenvector at `x` that continues the direction `old`.

    HVPs may be off by `noise`, relative to the largest |eigenvalue|.
    """
    values, scale = model.eigenvalues, jnp.max(jnp.abs(model.eigenvalues))
    floor = jnp.sqrt(jnp.finfo(x.dtype).eps) * scale
    length = jnp.linalg.norm(x - model.x)
    per_length = 1 / jnp.where(length > 0, length, 1)
    first = unit(old + length * model.turn)
    step, change = (x - model.x) * per_length, (grad - model.grad) * per_length
    old, first, step, change, p, q = (
        jnp.stack([old, first, step, change, *model.pair]) @ model.columns
    )

    def image(left: Array, right: Array, rows: Array) -> Array:
        return rows * values[None] + (rows @ right.T) @ left + (rows @ left.T) @ right

    def next_to(left: Array, right: Array, vector: Vector, eigenvalue: Scalar) -> Vector:
        """(B - eigenvalue)^-1 vector, up to its length, by Woodbury's formula."""
        distances = values - eigenvalue
        inverse = 1 / jnp.where(jnp.abs(distances) < floor, floor, distances)
        rows = jnp.concatenate([left, right])
        swap = jnp.roll(jnp.eye(len(rows), dtype=x.dtype), len(left), axis=0)
        small = jnp.linalg.solve(swap + (rows * inverse[None]) @ rows.T, rows @ (inverse * vector))
        solved = unit(inverse * (vector - small @ rows))
        return jnp.where(jnp.all(jnp.isfinite(solved)), solved, vector)

    def paired(rows: Array, wrong: Array) -> Array:
        """The right factors of a correction whose left ones are the rows."""
        return wrong - (wrong @ rows.T) @ rows / 2

    # The last probe, and the change of the gradient.
    wrong = 2 * (change - image(p[None], q[None], step[None])[0])
    wrong = jnp.where(length > 0, wrong, 0)
    lefts = jnp.stack([p, step])
    rights = jnp.stack([q, paired(step[None], wrong[None])[0]])
    for _ in range(2):
        first = next_to(lefts, rights, first, first @ image(lefts, rights, first[None])[0])

    def should_continue(state: _Found) -> Bool[Array, ""]:
        return ~state.is_found & (state.space.count < max_hvps) & model.is_known

    def add(state: _Found) -> _Found:
        space = state.space.add(hvp, state.next)
        wrong = space.images - image(lefts, rights, space.rows)
        left = jnp.concatenate([lefts, space.rows])
        right = jnp.concatenate([rights, paired(space.rows, wrong)])
        ritz = space.ritz()
        overlaps = (space.rows @ old) @ ritz.coefficients
        best = jnp.argmax(overlaps**2)
        mix = ritz.coefficients[:, best] * jnp.where(overlaps[best] < 0, -1, 1).astype(x.dtype)
        direction, eigenvalue = mix @ space.rows, ritz.eigenvalues[best]
        remainder = mix @ space.images - eigenvalue * direction
        is_own = jnp.arange(x.size) == jnp.argmax(direction**2)
        gap = jnp.min(jnp.where(is_own, jnp.inf, jnp.abs(values - eigenvalue)))
        return _Found(
            space=space,
            left=left,
            right=right,
            direction=direction,
            eigenvalue=eigenvalue,
            remainder=remainder,
            next=next_to(left, right, direction, eigenvalue),
            is_found=jnp.linalg.norm(remainder) <= jnp.maximum(SINE * gap, noise * scale),
        )

    max_hvps = min(MAX_HVPS, x.size)
    space = Space.empty(max_hvps + 1, x.size, x.dtype)  # one for the probe
    left, right = (jnp.concatenate([rows, space.rows]) for rows in (lefts, rights))
    start = _Found(space, left, right, first, first[0], first, first, jnp.array(False))
    return jax.lax.while_loop(should_continue, add, start)


class _Audit(eqx.Module):
    """The model's eigenvalues and eigenvectors (`turned`, in the old eigenbasis), and its error.

    `pair` is the correction by the last probe.
    """

    space: Space
    matrix: Float[Array, "n n"]
    pair: Float[Array, "2 n"]
    eigenvalues: Float[Array, " n"]
    turned: Float[Array, "n n"]
    is_own: Bool[Array, " n"]
    gap: Scalar
    probe: Vector
    error: Scalar
    num_eigh: Int[Array, ""]


def _audited(model: Model, found: _Found, hvp: Hvp) -> _Audit:
    """The model that reproduces what was found, and its error, by one HVP or until it is small."""
    size, dtype = found.direction.size, found.direction.dtype
    floor = 10 * jnp.finfo(dtype).eps * jnp.max(jnp.abs(model.eigenvalues))

    def should_continue(state: _Audit) -> Bool[Array, ""]:
        has_room = state.space.count < len(state.space.rows)
        is_open = found.is_found & ~(state.error <= MAX_ERROR) & has_room
        return model.is_known & ((state.num_eigh == 0) | is_open)

    def audit(state: _Audit) -> _Audit:
        p, q = state.pair
        matrix = state.matrix + jnp.outer(p, q) + jnp.outer(q, p)
        eigenvalues, turned = jnp.linalg.eigh(matrix)
        is_own = jnp.arange(size) == jnp.argmax((found.direction @ turned) ** 2)
        distances = jnp.where(is_own, jnp.inf, jnp.abs(eigenvalues - found.eigenvalue))
        gap = jnp.min(distances)
        roots = jnp.sqrt(jnp.maximum(distances, floor))

        # The gap depends most on the eigenvectors whose eigenvalues are near.
        vector = unit(state.probe @ turned)
        vector = vector + jnp.where(vector < 0, -gap, gap) / distances
        space = state.space.add(hvp, turned @ (vector / roots))
        row, image = space.rows[state.space.count], space.images[state.space.count]
        # Of row = |B - theta|^-1/2 z the image is wrong by |B - theta|^1/2 S z.
        wrong = image - matrix @ row
        wrong = wrong - (state.space.rows @ wrong) @ state.space.rows
        inside = (wrong @ turned) / roots
        before = jnp.linalg.norm(jnp.where(is_own, 0, roots * (row @ turned)))
        return _Audit(
            space=space,
            matrix=matrix,
            pair=jnp.stack([row, wrong - (row @ wrong) * row / 2]),
            eigenvalues=eigenvalues,
            turned=turned,
            is_own=is_own,
            gap=gap,
            probe=turned @ inside,
            error=jnp.linalg.norm(inside) / jnp.where(before > 0, before, 1),
            num_eigh=state.num_eigh + 1,
        )

    half = found.left.T @ found.right
    zero, nothing = jnp.zeros((), dtype), jnp.zeros((size, size), dtype)
    start = _Audit(
        found.space,
        jnp.diag(model.eigenvalues) + half + half.T,
        nothing[:2],
        model.eigenvalues,
        nothing,
        jnp.zeros(size, bool),
        zero,
        model.probe @ model.columns,
        zero,
        jnp.array(0),
    )
    return jax.lax.while_loop(should_continue, audit, start)


def _with_model(
    old: Ridge, new: Ridge, x: Vector, grad: Vector, kept: tuple[Array, Array, Array, Array]
) -> Ridge:
    """The new ridge, with what the next step is to know: `kept` are further parts of the model."""
    length = jnp.linalg.norm(x - old.memory.x)
    is_turn = (length > 0) & (old.multiplicity == 1) & (new.multiplicity == 1)
    turn = (new.direction - old.direction) / jnp.where(is_turn, length, 1)
    eigenvalues, columns, pair, probe = kept
    turn = jnp.where(is_turn, turn, 0)
    memory = Model(x, grad, eigenvalues, columns, pair, turn, probe, jnp.array(True))
    return dataclasses.replace(new, memory=memory)
