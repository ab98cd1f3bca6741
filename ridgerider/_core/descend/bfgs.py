"""Leave a saddle for the minimum below: BFGS that begins with the Hessian of the saddle.

Its negative curvature is taken by its size, so that the first steps lead away. Each step takes one
gradient, as a rule, and no eigendecomposition. Steps are short, so that a descent ends below where
it began.
"""

import math

import numpy as np
from jaxtyping import Float

from ridgerider._core.descend.inside import Descent
from ridgerider._core.linalg.host import eigh
from ridgerider._core.points.domain import Domain
from ridgerider._core.problem.calls import Calls, Point
from ridgerider._core.spectra.spectrum import tolerance_of

SOFTEST = 1e-2  # of the largest curvature: softer modes count as this at first
LONGEST = 2.0  # radii that a step may be long
ENOUGH = 1e-4  # of what the slope promises a step must gain


def slide(
    calls: Calls,
    domain: Domain,
    x: Point,
    hessian: Float[np.ndarray, "n n"],
    radius: float,
    most: float = np.inf,
    resolution: float = 0.0,
    max_steps: int = 600,
    saddle: Point | None = None,
) -> Descent:
    """Down from `x`, no farther than `most`, with the Hessian of a point nearby.

    A step no longer than the `resolution`, or than rounding, is the last. Where `x` is past the
    first minimum on the line from a `saddle`, it begins nearer to that, with shorter steps.

    >>> import jax.numpy as jnp
    >>> from ridgerider._core.problem.problem import Problem
    >>> problem = Problem(lambda x: (x[0] ** 2 - 1) ** 2 + x[1] ** 2, jnp.zeros(2))
    >>> start = np.array([0.1, 0.0], problem.dtype)
    >>> end = slide(Calls(problem), Domain(problem), start, np.diag([-4.0, 2.0]), 0.1)
    >>> [round(float(entry), 3) for entry in end.x]
    [1.0, 0.0]
    """
    here, halvings = Descent(x, *calls.value_and_grad(x), []), 0
    while saddle is not None and halvings < 5 and here.grad @ (here.x - saddle) > 0:
        halvings, x = halvings + 1, domain.inside((saddle + here.x) / 2)
        here = Descent(x, *calls.value_and_grad(x), [])
    begin, longest = x, LONGEST * radius / 2**halvings
    unit = float(calls.problem.unit)
    here.losses.append(here.loss)
    eps, tolerance = float(np.finfo(x.dtype).eps), tolerance_of(None, x.dtype)
    inverse = _inverse(hessian, _norm(here.grad) / longest)
    while here.is_finite and not here.is_far:
        if len(here.losses) > max_steps:
            here.is_long = True
            break
        x, loss, grad = here.x, here.loss, here.grad
        held = domain.held(x, grad)
        while True:  # among the coordinates that no bound holds
            step = -np.where(held, 0, inverse @ np.where(held, 0, grad))
            beyond = domain.beyond(x, step) & ~held
            if not beyond.any():
                break
            held = held | beyond
        size, length = max(_norm(x), unit), _norm(step)
        is_last = length <= max(10 * tolerance * size, resolution)
        share, slack = min(1.0, longest / max(length, 1e-300)), 1000 * eps * abs(loss)
        while True:
            new = domain.inside(x + share * step)
            there = Descent(new, *calls.value_and_grad(new), here.losses)
            away = new - x
            promised = float(grad @ away)
            if there.is_finite and (is_last or there.loss <= loss + ENOUGH * promised + slack):
                break
            if share * length <= tolerance * size:  # the loss falls no more, or is not finite
                here.is_lost = not there.is_finite
                return here
            rise = there.loss - loss - promised
            share *= min(max(-promised / (2 * rise), 0.1), 0.5) if rise > 0 else 0.5
        there.losses.append(there.loss)
        there.is_far = _norm(new - begin) > most
        here = there
        if is_last:
            break
        inverse = _updated(inverse, away, here.grad - grad, -share * grad)
    return here


def _inverse(hessian: Float[np.ndarray, "n n"], least: float) -> Float[np.ndarray, "n n"]:
    """Of the Hessian with the sizes of its eigenvalues, `least` at least."""
    eigenvalues, columns = eigh(hessian)
    sizes = np.abs(eigenvalues)
    return (columns / np.maximum(sizes, max(SOFTEST * sizes.max(), least, 1e-300))) @ columns.T


def _updated(
    inverse: Float[np.ndarray, "n n"], step: Point, change: Point, expected: Point
) -> Float[np.ndarray, "n n"]:
    """The inverse with what a step has shown of the Hessian; it stays positive definite.

    `expected` is the change of the gradient that the model has predicted. Where the loss curves
    downwards, or hardly at all, some of that is mixed in (Powell's damping).
    """
    curvature, own = float(step @ change), float(step @ expected)
    if curvature < 0.2 * own:
        part = 0.8 * own / (own - curvature)
        change = part * change + (1 - part) * expected
        curvature = float(step @ change)
    if not curvature > 0:
        return inverse
    image, step = inverse @ change, step / curvature
    first = (curvature + float(change @ image)) / 2 * step - image
    mixed = first[:, None] * step
    return inverse + mixed + mixed.T


def _norm(vector: Point) -> float:
    return math.sqrt(float(vector @ vector))
