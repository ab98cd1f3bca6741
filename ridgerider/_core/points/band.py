"""A path between two points that is relaxed sideways (a string), and its maxima.

Images move downhill across the path, by a step that a Hessian scales where one is known, and are
spread evenly along the path after each step. The maxima are close to transition states: a climb
starts from each.
"""

from collections.abc import Callable

import numpy as np

from ridgerider._core.points.domain import Domain
from ridgerider._core.problem.calls import Calls, Point, Rows
from ridgerider._core.runtime.clock import check_time

SOFTEST = 0.02  # of the largest curvature: below that, modes do not scale a step
ENOUGH = 0.05  # a band is relaxed where no image moves by more than this times the radius


class NoPath(ValueError):
    """A path leads through where the loss is not finite."""


def relaxed(
    calls: Calls,
    domain: Domain,
    images: Rows,
    num_steps: int,
    radius: float,
    hessian: np.ndarray | None = None,
) -> tuple[Rows, np.ndarray, Rows]:
    """The images of a path, relaxed between the first and the last, with losses and gradients."""
    scale, inner = _inverse(hessian), slice(1, -1)
    pairs = [calls.value_and_grad(one) for one in images]
    losses, grads = np.array([loss for loss, _ in pairs]), np.array([grad for _, grad in pairs])
    for number in np.flatnonzero(~np.isfinite(losses)):
        raise NoPath(
            "the losses on the path from one end to the other must be finite, but that of image "
            f"{number} of {len(images) - 2} is {losses[number]:g}."
        )
    pace, before = 0.0, None
    for _ in range(num_steps):
        check_time()
        aside = _across(images, grads)[inner]
        if scale is not None:
            step = -_across(images, np.array([scale(one) for one in aside]), inner=True)
        else:  # Barzilai and Borwein's step
            if before is None:
                pace = radius / max(float(np.linalg.norm(aside, axis=1).max()), 1e-300)
            else:
                moved, changed = images[inner] - before[0], aside - before[1]
                pace = float(np.sum(moved**2) / max(abs(float(np.sum(moved * changed))), 1e-300))
            step = -pace * aside
        lengths = np.linalg.norm(step, axis=1, keepdims=True)
        step = step * np.minimum(1, radius / np.maximum(lengths, 1e-300))
        before = images[inner].copy(), aside
        if not float(np.minimum(lengths, radius).max()) > ENOUGH * radius:
            break
        last = images.copy(), losses.copy(), grads.copy()
        images[inner] = [domain.inside(one) for one in images[inner] + step]
        images = _even(images)
        pairs = [calls.value_and_grad(one) for one in images[inner]]
        losses[inner] = [loss for loss, _ in pairs]
        grads[inner] = [grad for _, grad in pairs]
        if not np.isfinite(losses).all():
            return last
    return images, losses, grads


def maxima(images: Rows, losses: np.ndarray, grads: Rows) -> list[Point]:
    """The maxima of a path, by cubic polynomials between images, the highest first."""
    found, slopes = [], np.sum(grads * _tangents(images), axis=1)
    for number in range(len(images) - 1):
        way = images[number + 1] - images[number]
        one, two = losses[number : number + 2]
        left, right = slopes[number : number + 2] * float(np.linalg.norm(way))
        # one + left t + b t^2 + c t^3 with the slope `right` at 1
        b, c = 3 * (two - one) - 2 * left - right, left + right - 2 * (two - one)
        places = np.roots([3 * c, 2 * b, left]) if c or b else np.zeros(0)
        for t in places[np.isreal(places)].real:
            if 0 < t <= 1 and 2 * b + 6 * c * t < 0:
                found.append((one + left * t + b * t**2 + c * t**3, images[number] + t * way))
    tops, near = list[Point](), 0.01 * float(np.linalg.norm(images[1] - images[0]))
    for _, point in sorted(found, key=lambda pair: -pair[0]):
        if all(np.linalg.norm(point - one) > near for one in tops):
            tops.append(point)
    return tops


def aligned(domain: Domain, x: Point, target: Point) -> Point:
    """`x` moved along what a symmetry generates, as close to the target as that leads."""
    for _ in range(200):
        columns = domain.null(x)
        if not columns.shape[1]:
            return x
        step = columns @ (columns.T @ (target - x))
        size = float(np.linalg.norm(step))
        if size <= 1e-9 * max(1.0, float(np.linalg.norm(x))):
            break
        step = step * min(1.0, 0.03 * float(np.linalg.norm(x)) / size)
        middle = domain.null(x + step / 2)  # of second order, or turns would stretch
        step = middle @ (middle.T @ step)
        x = x + step
    return x


def _inverse(hessian: np.ndarray | None) -> Callable[[Point], Point] | None:
    if hessian is None or not np.isfinite(hessian).all():
        return None
    values, columns = np.linalg.eigh(hessian)
    sizes = np.maximum(np.abs(values), SOFTEST * np.abs(values).max(initial=0))
    if not sizes.all():
        return None
    return lambda grad: columns @ ((columns.T @ grad) / sizes)


def _across(images: Rows, vectors: Rows, inner: bool = False) -> Rows:
    """Vectors without their parts along the path."""
    tangents = _tangents(images)[1:-1] if inner else _tangents(images)
    return vectors - np.sum(vectors * tangents, axis=1, keepdims=True) * tangents


def _tangents(images: Rows) -> Rows:
    tangents = np.gradient(images, axis=0)
    return tangents / np.maximum(np.linalg.norm(tangents, axis=1, keepdims=True), 1e-300)


def _even(images: Rows) -> Rows:
    """Images spread evenly along the path."""
    lengths = np.linalg.norm(np.diff(images, axis=0), axis=1)
    places = np.concatenate([[0.0], np.cumsum(lengths)])
    even = np.linspace(0, places[-1], len(images))
    return np.stack([np.interp(even, places, column) for column in images.T], axis=1)
