r"""Riding a network: one linearisation for ridge and corrector, a trust region for both.

At a point, a Krylov space from the ridge e and the gradient g holds all that a step needs. Its Ritz
vector that overlaps e most is the ridge here. Along its other Ritz vectors u_j of positive
curvature theta_j, a damped Newton step leads back into the valley,

    move = - size * sum_j (u_j . g) / (theta_j + damping) u_j,

which the next step takes along. The step from there, of length s along the ridge and with a share t
of the move, is predicted to change the loss by

    s (e . g) + s^2 lambda / 2 + t (move . g) + t^2 (move . H move) / 2,

and what it does change tells whether the next one may be longer. Two halves of the batch give the
noise of the gradient: the part of the move that is noise is left out.
"""

import dataclasses
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from ridgerider._check import check_count, check_fraction, check_positive
from ridgerider._core.linalg.lean import Rows, grow_while
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Number, Problem, Scalar, Vector
from ridgerider._core.ride.certificate import Certificate
from ridgerider._core.ride.step import Attempt, Trial
from ridgerider._core.ride.update import Tracked
from ridgerider._core.runtime.compile import Effort
from ridgerider._core.spectra.spectrum import Ridge

REACH = 4.0  # how much longer than the step along the ridge the move may be
MAX_HALVINGS = 4


class Footing(eqx.Module):
    """What is known at a point of a ride: the loss, its model, and how good the last model was."""

    x: Vector
    loss: Scalar
    slope: Scalar  # along the ridge
    move: Vector
    move_slope: Scalar
    move_curvature: Scalar
    damping: Scalar  # of the move, relative to the largest Ritz value
    noise: Scalar  # of the gradient: the square of its error over its own square
    mistake: Scalar  # of the last prediction, relative to the size of its parts


class Follow(eqx.Module):
    """UpdateRidge for networks: the ridge and the corrector from one Krylov space.

    The corrector's move is applied by `Recall` at the next step. It is damped more after a step
    whose change of the loss was not as predicted, and less after one that was.

    **Arguments**

    - `min_hvps`, `max_hvps`: products for each step. More than the least are spent only while they
      raise what the move is predicted to gain by a tenth.
    - `damping`: where it begins, relative to the largest Ritz value.

    >>> import ridgerider as rr
    >>> problem = Problem(lambda x: 5 * x[0] ** 2 - x[1] ** 2 + x[2] ** 2, jnp.array([0.3, 0.1, 0]))
    >>> ridge = Ridge(jnp.array([0.0, 1.0, 0.0]), jnp.array(-2.0), jnp.array(0), jnp.array(1))
    >>> tracked = rr.Follow()(problem, problem.x0, ridge, jax.random.key(0))
    >>> round(float(tracked.ridge.eigenvalue), 3), float(tracked.ridge.memory.move[0]) < -0.2
    (-2.0, True)
    """

    min_hvps: int = eqx.field(static=True, default=4)
    max_hvps: int = eqx.field(static=True, default=8)
    damping: Number = 0.01
    # Rides of networks are short beside their descents, and compiling them is what one waits for.
    effort: ClassVar[Effort] = "little"

    def __check_init__(self) -> None:
        check_count("min_hvps", self.min_hvps, 2)
        check_count("max_hvps", self.max_hvps, self.min_hvps)
        check_positive("damping", self.damping)

    @eqx.filter_jit
    def __call__(self, problem: Problem, x: Vector, ridge: Ridge, key: PRNGKeyArray) -> Tracked:
        del key
        ridge = self.blank(x, ridge) if ridge.memory is None else ridge
        loss, grad, product = problem.expanded_at(x)
        error, num_gradients = _error(problem, x, grad)
        mistake, damping = self._judge(ridge, x, loss)
        most = min(self.max_hvps // 2 * 2, 2 * problem.size)  # two at a time
        num_hvps, found = grow_while(
            product,
            jnp.stack([ridge.direction, grad]),
            min(self.min_hvps, most),
            most,
            lambda space: _move(space, grad, error, damping),
            0.1,
        )
        footing = Footing(
            x=x,
            loss=loss,
            slope=found.direction @ grad,
            move=found.move,
            move_slope=found.slope,
            move_curvature=found.curvature,
            damping=damping,
            noise=error @ error / jnp.maximum(grad @ grad, jnp.finfo(x.dtype).tiny),
            mistake=mistake,
        )
        new = Ridge(
            found.direction, found.eigenvalue, ridge.index, ridge.multiplicity, None, footing
        )
        certificate = Certificate(overlap=found.overlap, residual=found.residual)
        return Tracked(new, certificate, Cost(gradients=num_gradients, hvps=num_hvps), loss)

    def blank(self, x: Vector, ridge: Ridge) -> Ridge:
        """The ridge with a memory in which nothing is yet: its loss is NaN."""
        zero, none = jnp.zeros((), x.dtype), jnp.asarray(jnp.nan, x.dtype)
        damping = jnp.asarray(self.damping, x.dtype)
        nothing = Footing(x, none, zero, jnp.zeros_like(x), zero, zero, damping, zero, zero)
        return dataclasses.replace(ridge, memory=nothing)

    def _judge(self, ridge: Ridge, x: Vector, loss: Scalar) -> tuple[Scalar, Scalar]:
        """How wrong the prediction of the step to `x` was, and the damping that follows from it."""
        old = ridge.memory
        is_first = jnp.isnan(old.loss)
        step = x - old.x
        size = step @ ridge.direction
        length = jnp.linalg.norm(old.move)
        share = jnp.linalg.norm(step - size * ridge.direction) / jnp.where(length > 0, length, 1)
        parts = jnp.stack(
            [
                size * old.slope,
                size**2 * ridge.eigenvalue / 2,
                share * old.move_slope,
                share**2 * old.move_curvature / 2,
            ]
        )
        rounding = 4 * jnp.finfo(loss.dtype).eps * jnp.abs(loss)
        wrong = jnp.abs(loss - old.loss - jnp.sum(parts))
        mistake = jnp.where(is_first, 0, wrong / (jnp.sum(jnp.abs(parts)) + rounding))
        factor = jnp.where(mistake < 0.25, 0.5, jnp.where(mistake < 0.5, 1.0, 4.0))
        adapted = jnp.clip(old.damping * factor.astype(loss.dtype), 1e-4, 10.0)
        return mistake, jnp.where(is_first, old.damping, adapted)


def _error(problem: Problem, x: Vector, grad: Vector) -> tuple[Vector, int]:
    """A sample of the gradient's error, half of what two halves of the rows differ by.

    And how many gradients there are now.
    """
    if problem.rows is None or problem.rows.shape[1] < 2 or problem.rows.shape[1] % 2:
        return jnp.zeros_like(grad), 1
    one, _ = problem.halves()
    return one.grad(x) - grad, 2  # `grad` is the mean of both


class _Found(eqx.Module):
    direction: Vector
    eigenvalue: Scalar
    overlap: Scalar
    residual: Scalar
    move: Vector
    slope: Scalar
    curvature: Scalar

    @property
    def worth(self) -> Scalar:
        """What the move is predicted to gain, to first order."""
        return -self.slope


def _move(space: Rows, grad: Vector, error: Vector, damping: Scalar) -> _Found:
    ritz = space.ritz()
    own = jnp.argmax(ritz.coefficients[0] ** 2)  # the first row is the old direction
    overlap = ritz.coefficients[0, own]
    sign = jnp.where(overlap < 0, -1, 1).astype(grad.dtype)
    is_stiff = (ritz.eigenvalues > 0) & ritz.is_there & (jnp.arange(len(space.rows)) != own)
    along, noise = ((space.rows @ vector) @ ritz.coefficients for vector in (grad, error))
    along, noise = jnp.where(is_stiff, along, 0), jnp.where(is_stiff, noise, 0)
    largest = jnp.max(jnp.where(is_stiff, ritz.eigenvalues, 0))
    tiny = jnp.finfo(grad.dtype).tiny
    # Of a sum of signal and noise, this part is signal.
    size = jnp.maximum(1 - noise @ noise / jnp.maximum(along @ along, tiny), 0)
    bottom = jnp.where(is_stiff, ritz.eigenvalues + damping * largest, 1)
    newton = -size * along / bottom
    return _Found(
        direction=sign * (ritz.coefficients[:, own] @ space.rows),
        eigenvalue=ritz.eigenvalues[own],
        overlap=jnp.abs(overlap),
        residual=space.residuals(ritz)[own],
        move=(ritz.coefficients @ newton) @ space.rows,
        slope=newton @ along,
        curvature=jnp.sum(jnp.where(is_stiff, ritz.eigenvalues * newton**2, 0)),
    )


class Recall(eqx.Module):
    """The corrector of `Follow`: the move that was found with the ridge, no longer than `reach`
    times the step along it.

    >>> import ridgerider as rr
    >>> rr.Rider(update=rr.Follow(), correct=rr.Recall()).correct.reach
    4.0
    """

    reach: Number = REACH

    def __check_init__(self) -> None:
        check_positive("reach", self.reach)

    def __call__(self, problem: Problem, x: Vector, ridge: Ridge) -> tuple[Vector, Cost]:
        footing = ridge.memory
        length = jnp.linalg.norm(footing.move)
        most = self.reach * jnp.linalg.norm(x - footing.x)
        share = jnp.minimum(1, most / jnp.where(length > 0, length, 1))
        return x + share * footing.move, Cost()


class TrustRegion(eqx.Module):
    """A step as long as the model of the loss holds: for `Follow` and `Recall`.

    A step is halved, up to four times, where the change of the loss differs from its prediction by
    more than `mistake` times the sum of the prediction's parts, or where the ridge is lost:
    overlap < `min_overlap`. After one that differs by less than a third of that, the next is
    longer by half.

    >>> TrustRegion(size=0.2).size
    0.2
    """

    size: Number = 0.05
    max_size: Number = 1.0
    mistake: Number = 0.5
    min_overlap: Number = 0.7072

    def __check_init__(self) -> None:
        for name in ("size", "max_size", "mistake"):
            check_positive(name, getattr(self, name))
        check_fraction("min_overlap", self.min_overlap)

    def __call__(self, attempt: Attempt, size: Scalar) -> tuple[Trial, Scalar]:
        attempt = jax.jit(attempt)
        empty = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(attempt, size)
        )

        def go_on(carry: tuple[Trial, Scalar, Int[Array, ""]]) -> Bool[Array, ""]:
            trial, size, count = carry
            # A step of length zero is none: it is where a ride begins.
            may_halve = (size > 0) & (count <= MAX_HALVINGS)
            return (count == 0) | (~self._holds(trial) & may_halve)

        def again(
            carry: tuple[Trial, Scalar, Int[Array, ""]],
        ) -> tuple[Trial, Scalar, Int[Array, ""]]:
            last, size, count = carry
            trial = attempt(size)
            trial = eqx.tree_at(lambda t: t.cost, trial, last.cost + trial.cost)
            return trial, size / 2, count + 1

        trial, _, _ = jax.lax.while_loop(go_on, again, (empty, size, jnp.array(0)))
        is_easy = self._holds(trial) & (trial.ridge.memory.mistake < self.mistake / 3)
        grown = jnp.minimum(1.5 * trial.step_size, jnp.asarray(self.max_size, size.dtype))
        return trial, jnp.where(is_easy, grown, trial.step_size)

    def _holds(self, trial: Trial) -> Bool[Array, ""]:
        mistake = trial.ridge.memory.mistake
        # Written with `<=`, so that a NaN counts as a mistake.
        return (mistake <= self.mistake) & (trial.overlap >= self.min_overlap)
