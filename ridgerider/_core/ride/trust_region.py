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
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

from ridgerider._check import Positive, check_fields, whole
from ridgerider._core.linalg.space import Hvp, Space
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Counted, Problem, Scalar, Vector
from ridgerider._core.ride.step import Attempt, Trial, halved_until, zeros_of
from ridgerider._core.ride.update import Certificate, Tracked
from ridgerider._core.spectra.spectrum import Ridge

MIN_HVPS = 4  # for each step
DAMPING = 0.01  # where it begins, relative to the largest Ritz value
REACH = 4.0  # of the corrector's move, relative to the step along the ridge
MAX_SIZE = 1.0
MAX_MISTAKE = 0.5
MIN_OVERLAP = 0.7072
MAX_HALVINGS = 4
WORTH_MORE = 0.1  # more HVPs while they raise what the move is predicted to gain by this share


class LocalModel(eqx.Module):
    """The loss around a point of a ride as `Follow` models it, and how good the last model was."""

    x: Vector
    loss: Scalar
    slope: Scalar  # along the ridge
    move: Vector
    move_slope: Scalar
    move_curvature: Scalar
    damping: Scalar  # of the move, relative to the largest Ritz value
    mistake: Scalar  # of the last prediction, relative to the size of its parts


class Follow(eqx.Module):
    """UpdateRidge for networks, with a corrector and a step rule that share its model of the loss.

    The corrector's move is found with the ridge and applied at the next step, no longer than
    four times the step along the ridge. It is damped more after a step whose change of the loss
    was not as predicted, and less after one that was. A step is halved, up to four times, where the
    change of the loss differs from its prediction by more than half of the sum of the prediction's
    parts, or where the ridge is lost: overlap < 0.7072. After one that differs by less than a third
    of that, the next is longer by half, up to a length of 1.

    The model is the `memory` of the ridge. A rider that follows has no other `correct` and `step`.

    **Arguments**

    - `max_hvps`: HVPs for each step. More than four are spent only while they raise what the move
      is predicted to gain by a tenth.
    - `size`: of the first step along the ridge.

    >>> import ridgerider as rr
    >>> problem = Problem(lambda x: 5 * x[0] ** 2 - x[1] ** 2 + x[2] ** 2, jnp.array([0.3, 0.1, 0]))
    >>> ridge = Ridge(jnp.array([0.0, 1.0, 0.0]), jnp.array(-2.0), jnp.array(0), jnp.array(1))
    >>> tracked = rr.Follow()(problem, problem.x0, ridge, jax.random.key(0))
    >>> round(float(tracked.ridge.eigenvalue), 3), float(tracked.ridge.memory.move[0]) < -0.2
    (-2.0, True)
    """

    max_hvps: Annotated[int, whole(MIN_HVPS)] = eqx.field(static=True, default=8)
    size: Positive = 0.05

    __check_init__ = check_fields

    @eqx.filter_jit
    def __call__(self, problem: Problem, x: Vector, ridge: Ridge, key: PRNGKeyArray) -> Tracked:
        del key
        ridge = self.begin(problem, x, ridge) if ridge.memory is None else ridge
        counted = Counted(problem)
        loss, grad, hvp = problem.value(x), problem.grad(x), problem.hvp_at(x)
        counted.charge(gradients=1)  # the rider counts the value
        error = _error(counted, x, grad)
        mistake, damping = self._judge(ridge, x, loss)
        space, found = self._grow(hvp, ridge.direction, grad, error, damping)
        counted.charge(hvps=space.count)
        model = LocalModel(
            x=x,
            loss=loss,
            slope=found.direction @ grad,
            move=found.move,
            move_slope=found.slope,
            move_curvature=found.curvature,
            damping=damping,
            mistake=mistake,
        )
        new = dataclasses.replace(
            ridge, direction=found.direction, eigenvalue=found.eigenvalue, memory=model
        )
        certificate = Certificate(overlap=found.overlap, residual=found.residual)
        return Tracked(new, certificate, counted.cost, loss)

    def begin(self, problem: Problem, x: Vector, ridge: Ridge) -> Ridge:
        """The ridge with a model in which nothing is known yet: its loss is NaN."""
        del problem
        zero, none = jnp.zeros((), x.dtype), jnp.asarray(jnp.nan, x.dtype)
        damping = jnp.asarray(DAMPING, x.dtype)
        nothing = LocalModel(x, none, zero, jnp.zeros_like(x), zero, zero, damping, zero)
        return dataclasses.replace(ridge, space=None, memory=nothing)

    def correct(self, problem: Problem, x: Vector, ridge: Ridge) -> tuple[Vector, Cost]:
        """The move that was found with the ridge; it costs nothing more."""
        del problem
        model = ridge.memory
        length = jnp.linalg.norm(model.move)
        most = REACH * jnp.linalg.norm(x - model.x)
        share = jnp.minimum(1, most / jnp.where(length > 0, length, 1))
        return x + share * model.move, Cost()

    def step(self, attempt: Attempt, size: Scalar) -> tuple[Trial, Scalar]:
        """A step as long as the model of the loss holds."""

        def holds(trial: Trial) -> Bool[Array, ""]:
            is_right = trial.ridge.memory.mistake <= MAX_MISTAKE
            return is_right & (trial.overlap >= MIN_OVERLAP)

        trial = halved_until(holds, attempt, size, 0.0, MAX_HALVINGS)
        is_easy = holds(trial) & (trial.ridge.memory.mistake < MAX_MISTAKE / 3)
        grown = jnp.minimum(1.5 * trial.step_size, jnp.asarray(MAX_SIZE, size.dtype))
        return trial, jnp.where(is_easy, grown, trial.step_size)

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

    def _grow(
        self, hvp: Hvp, direction: Vector, grad: Vector, error: Vector, damping: Scalar
    ) -> tuple[Space, "_Found"]:
        """The Krylov space of ridge and gradient, two HVPs at a time as long as they pay."""
        most = min(self.max_hvps // 2 * 2, 2 * grad.size)
        least = min(MIN_HVPS, most)

        def should_continue(growth: tuple[Space, _Found, Array]) -> Bool[Array, ""]:
            space, _, pays = growth
            return (space.count < least) | (pays & (space.count < most))

        def grow(growth: tuple[Space, _Found, Array]) -> tuple[Space, _Found, Array]:
            space, old, _ = growth
            # A loop of two, so that the HVP is compiled once.
            space = jax.lax.fori_loop(0, 2, extend, space)
            found = _ridge_and_move(space, grad, error, damping)
            # A move gains minus its slope, to first order.
            return space, found, -found.slope > -(1 + WORTH_MORE) * old.slope

        def extend(_: int, space: Space) -> Space:
            last = space.images[jnp.maximum(space.count - 2, 0)]
            first = jnp.where(space.count == 0, direction, grad)
            return space.add(hvp, jnp.where(space.count < 2, first, last))

        space = Space.empty(most, grad.size, grad.dtype)
        nothing = zeros_of(_ridge_and_move, space, grad, error, damping)
        growth = (space, nothing, jnp.array(True))
        return jax.lax.while_loop(should_continue, grow, growth)[:2]


class _Found(eqx.Module):
    """The ridge and the corrector's move, with its slope and the curvature along it."""

    direction: Vector
    eigenvalue: Scalar
    overlap: Scalar
    residual: Scalar
    move: Vector
    slope: Scalar
    curvature: Scalar


def _error(counted: Counted, x: Vector, grad: Vector) -> Vector:
    """A sample of the gradient's error, half of what two halves of the rows differ by."""
    problem, rows = counted.problem, counted.problem.rows
    if rows is None or rows.shape[1] < 2 or rows.shape[1] % 2:
        return jnp.zeros_like(grad)
    counted.charge(gradients=1)
    # `grad` is the mean of that of every other row and that of the rest.
    return problem.on_rows(rows[:, ::2], problem.num_chunks).grad(x) - grad


def _ridge_and_move(space: Space, grad: Vector, error: Vector, damping: Scalar) -> _Found:
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
    newton, eigenvalue = -size * along / bottom, ritz.eigenvalues[own]
    direction, image = (ritz.coefficients[:, own] @ rows for rows in (space.rows, space.images))
    return _Found(
        direction=sign * direction,
        eigenvalue=eigenvalue,
        overlap=jnp.abs(overlap),
        residual=jnp.linalg.norm(image - eigenvalue * direction),
        move=(ritz.coefficients @ newton) @ space.rows,
        slope=newton @ along,
        curvature=jnp.sum(jnp.where(is_stiff, ritz.eigenvalues * newton**2, 0)),
    )
