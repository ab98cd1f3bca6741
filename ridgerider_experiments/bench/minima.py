"""Whether a point is a minimum in its box, by values of the function alone.

It shares nothing with the library, so that it can contradict it. All lengths are in units of the
box: u = (x - low) / (high - low).
"""

from collections.abc import Callable, Iterable

import numpy as np

from ridgerider_experiments.bench.functions import Case, Vector

EDGE = 1e-5  # a coordinate this close to a bound is on it
STEPS = (5e-5, 2e-6)  # of differences; the second is for narrow wells
FAR = 1e-3  # minima that differ by more are distinct; a stationary point may be as far
FLAT = 1e-5  # an eigenvalue that is smaller, relative to the largest, is zero
NUM_NEWTON = 3
DISTANCES = (1e-5, 1e-4, 1e-3, 1e-2)  # at which values are tried


def unit(case: Case, x: Vector) -> Vector:
    low, high = np.array(case.bounds, float).T
    return (np.asarray(x, float) - low) / (high - low)


def kind_of(case: Case, x: Vector) -> str:
    """`strict`, `degenerate` or `false`.

    A strict minimum has values that rise linearly from every active bound and, in the free
    coordinates, within `FAR` a stationary point with a positive definite Hessian. Any other point
    is degenerate if no value around it is lower, at several distances, and false if one is.
    """
    low, high = np.array(case.bounds, float).T

    def fun(u: Vector) -> float:
        return case.fun(low + (high - low) * np.clip(u, 0, 1))

    u = unit(case, x)
    if not ((u >= -EDGE) & (u <= 1 + EDGE)).all():
        return "false"
    u = np.where(u <= EDGE, 0.0, np.where(u >= 1 - EDGE, 1.0, u))
    tried = [polished(fun, u, step) for step in STEPS]
    if any(is_strict for is_strict, _, _ in tried):
        return "strict"
    mixed = np.random.default_rng(0).normal(size=(20, len(u)))
    mixed /= np.linalg.norm(mixed, axis=1, keepdims=True)
    ways, (_, u, _) = np.vstack([np.eye(len(u)), mixed, *(rows for *_, rows in tried)]), tried[0]
    nearby = [fun(u + sign * far * way) for way in ways for far in DISTANCES for sign in (1, -1)]
    return "false" if min(nearby) < fun(u) - 1e-9 * max(1.0, abs(fun(u))) else "degenerate"


def polished(fun: Callable[[Vector], float], u: Vector, step: float) -> tuple[bool, Vector, Vector]:
    """Whether it is a strict minimum, the point after Newton's steps, and the eigenvectors."""
    given, axes, is_free = u, np.eye(len(u)), (u > 0) & (u < 1)
    rounding, is_strict, room, last = 1e-14 * max(1.0, abs(fun(u))), True, EDGE / 2, 1e-3 * FAR
    for row in axes[~is_free]:  # a bound without a slope holds nothing: the point may be inside
        inward = step * row * (1 - 2 * u)
        one, two = (fun(u + part * inward) - fun(u) for part in (1, 2))
        if not (one > rounding and two < 3 * one):
            u, is_free, room, last = u + 2 * inward, is_free | (row > 0), step, 2 * step
    rows = axes[is_free]
    for _ in range(NUM_NEWTON if is_free.any() else 0):
        size = min(step, np.minimum(u, 1 - u)[is_free].min())
        hessian = hessian_of(fun, u, size * axes[is_free])
        if not np.isfinite(hessian).all():
            return False, given, rows
        rows = np.linalg.eigh(hessian)[1].T @ axes[is_free]
        # Once more, along each eigenvector: the errors of rows and columns do not cancel.
        ahead, behind = (np.array([fun(u + sign * size * row) for row in rows]) for sign in (1, -1))
        eigenvalues = (ahead - 2 * fun(u) + behind) / size**2
        tolerance = max(FLAT * abs(eigenvalues).max(), 4 * rounding / size**2)
        is_flat = abs(eigenvalues) <= tolerance
        slopes = (ahead - behind) / (2 * size)
        newton = (slopes / np.where(is_flat, np.inf, abs(eigenvalues))) @ rows
        u = np.where(is_free, np.clip(u - newton, room, 1 - room), u)
        if np.linalg.norm(u - given) > FAR:
            return False, given, rows
    u = given if fun(given) < fun(u) else u  # on a bound without a slope
    if is_free.any():  # at an inflection Newton's steps only halve, and a side is lower
        around = [fun(u + sign * 10 * step * row) for row in rows for sign in (1, -1)]
        is_strict = is_strict and min(around) >= fun(u) - rounding
        # Where all curvature vanishes, as at the minimum of x^4, it grows with the step.
        bends = (np.reshape(around, (-1, 2)).sum(axis=1) - 2 * fun(u)) / (10 * step) ** 2
        is_strict = is_strict and bool((bends <= 4 * eigenvalues + tolerance).all())
        is_strict = is_strict and bool(np.linalg.norm(newton) <= last)
        is_strict = is_strict and bool((eigenvalues > tolerance).all())
    return is_strict, u, rows


def hessian_of(fun: Callable[[Vector], float], u: Vector, steps: Vector) -> Vector:
    """By central differences along steps of one length."""
    square, value = float(steps[0] @ steps[0]), fun(u)
    hessian = np.diag([(fun(u + step) - 2 * value + fun(u - step)) / square for step in steps])
    for i, one in enumerate(steps):
        for j, two in enumerate(steps[:i]):
            both = fun(u + one + two) - fun(u + one - two) - fun(u - one + two) + fun(u - one - two)
            hessian[i, j] = hessian[j, i] = both / (4 * square)
    return hessian


def kinds(case: Case, points: Iterable[Vector]) -> list[str]:
    """The kinds of those points that are more than `FAR` from every better one."""
    found, kept = list[str](), np.zeros((0, len(case.bounds)))
    for x in sorted(points, key=case.fun):
        u = unit(case, x)
        if (((kept - u) ** 2).sum(axis=1) > FAR**2).all():
            kept = np.vstack([kept, u])
            found.append(kind_of(case, x))
    return found
