"""A ride's trace as a page holds it: not every step, and as bytes."""

import base64
from typing import Any

import numpy as np

ENOUGH = 0.7072  # of the overlap: above it, no other ridge can overlap more
COLUMNS = ("loss", "eigenvalue", "overlap", "residual", "gap", "step_size", "multiplicity")


def pack_trace(trace: dict[str, np.ndarray], max_points: int) -> dict[str, Any] | None:
    """The names of the columns, and the columns one after the other, float32 in base64.

    The first column numbers the steps.

    >>> trace = {"loss": np.array([0.0, -1.0]), "overlap": np.array([1.0, 0.5])}
    >>> packed = pack_trace(trace, max_points=100)
    >>> packed["columns"], packed["num_points"]
    (['step', 'loss', 'overlap'], 2)
    >>> np.frombuffer(base64.b64decode(packed["data"]), "<f4").tolist()
    [0.0, 1.0, 0.0, -1.0, 1.0, 0.5]
    """
    if not trace:
        return None
    names = [name for name in COLUMNS if name in trace]
    steps = thinned(trace, max_points)
    near = trace["neighbours"][steps] if "neighbours" in trace else np.zeros((len(steps), 0))
    near = near[:, ~np.isnan(near).all(axis=0)]
    table = np.stack([steps, *(trace[name][steps] for name in names), *near.T])
    return {
        "columns": ["step", *names, *(f"neighbour {i}" for i in range(near.shape[1]))],
        "num_points": len(steps),
        "data": encoded(table),
    }


def encoded(values: np.ndarray) -> str:
    """Numbers as a page holds them: float32 in base64, infinite where they are too large for it.

    >>> np.frombuffer(base64.b64decode(encoded(np.array([0.5, -1e300]))), "<f4").tolist()
    [0.5, -inf]
    """
    with np.errstate(over="ignore"):
        return base64.b64encode(values.astype("<f4").tobytes()).decode()


def thinned(trace: dict[str, np.ndarray], max_points: int) -> np.ndarray:
    """Evenly spaced steps, the first and the last, and those at which the certificate is weakest.

    >>> thinned({"overlap": np.array([1.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0])}, max_points=3).tolist()
    [0, 3, 6]
    """
    num_rows = len(next(iter(trace.values())))
    if num_rows <= max_points:
        return np.arange(num_rows)
    steps = set(np.linspace(0, num_rows - 1, max_points).astype(int).tolist())
    for name, sign in (("overlap", 1), ("residual", -1), ("gap", 1)):
        column = trace.get(name)
        if column is not None and not np.isnan(column).all():
            steps.add(int(np.argmin(np.where(np.isnan(column), np.inf, sign * column))))
    return np.array(sorted(steps))


def certificate_of(trace: dict[str, np.ndarray]) -> str | None:
    """What a ride can show for itself: "complete", or what is missing; None without steps.

    Complete: at no step was the overlap below 0.7072, and everywhere the residual was below a tenth
    of the gap, so that the direction was within 6 degrees of the eigenspace. Where the gap is not
    known, the nearest eigenvalue that was seen stands for it.

    >>> trace = {"overlap": np.array([1.0, 0.9]), "residual": np.zeros(2), "gap": np.ones(2)}
    >>> certificate_of(trace), certificate_of({**trace, "gap": np.full(2, np.nan)})
    ('complete', 'gap')
    """
    if len(trace.get("overlap", ())) < 2:
        return None
    overlap, residual = trace["overlap"][1:], trace["residual"][1:]
    if not np.all(overlap >= ENOUGH):
        return "overlap"
    gap = (
        np.array(trace["gap"][1:], dtype=float) if "gap" in trace else np.full(len(overlap), np.nan)
    )
    if "neighbours" in trace and "multiplicity" in trace:
        away = np.abs(trace["neighbours"][1:] - trace["eigenvalue"][1:, None])
        seen = np.min(np.where(np.isnan(away), np.inf, away), axis=1, initial=np.inf)
        is_known = (trace["multiplicity"][1:] > 0) & np.isnan(gap)
        gap = np.where(is_known, seen, gap)
    return "complete" if np.all(residual <= 0.1 * gap) else "gap"
