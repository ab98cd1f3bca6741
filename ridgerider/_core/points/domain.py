"""Where steps may go: outside of what a symmetry generates, and inside of bounds."""

import numpy as np
from jaxtyping import Bool, Float

from ridgerider._core.points.symmetry import Symmetry, rows_at
from ridgerider._core.problem.calls import Point, Rows
from ridgerider._core.problem.problem import Problem
from ridgerider._core.runtime.compile import program_of

Mask = Bool[np.ndarray, " n"]


class Domain:
    """The directions of a symmetry, which steps leave out, and bounds, at which steps are held."""

    def __init__(
        self,
        problem: Problem,
        symmetry: Symmetry | None = None,
        low: Point | None = None,
        high: Point | None = None,
    ):
        self.symmetry, self._generators = symmetry, None
        if symmetry is not None and symmetry.generators is not None:
            self._generators = program_of(
                (problem, symmetry), lambda both, x: rows_at(both[0], both[1], x)
            )
        self._low, self._high = low, high
        self._none = np.zeros((problem.size, 0), problem.dtype)
        self._last: tuple[Point, Rows] | None = None

    def null(self, x: Point) -> Float[np.ndarray, "n k"]:
        """Orthonormal columns that span the generators of the symmetry at `x`."""
        rows = self._rows(x)
        if not len(rows):
            return self._none
        sizes, mix = np.linalg.eigh(rows @ rows.T)
        is_there = sizes > 1e-6 * sizes.max()  # fewer for atoms on a line
        return rows.T @ (mix[:, is_there] / np.sqrt(sizes[is_there]))

    def worst_slope(self, x: Point, grad: Point) -> tuple[float, int]:
        """The largest part of a gradient along a generator, of its norm or 1, and which that is."""
        rows = self._rows(x)
        if not len(rows):
            return 0.0, 0
        sizes = np.linalg.norm(rows, axis=1) * max(float(np.linalg.norm(grad)), 1.0)
        parts = np.abs(rows @ grad) / np.maximum(sizes, np.finfo(x.dtype).tiny)
        worst = int(np.argmax(parts))
        return float(parts[worst]), worst

    def _rows(self, x: Point) -> Rows:
        """The generators at a point; those of the last one are remembered."""
        if self._generators is None:
            return self._none.T
        if self._last is None or self._last[0] is not x:
            self._last = x, np.asarray(self._generators(x))
        return self._last[1]

    # --- bounds

    def inside(self, x: Point) -> Point:
        return x if self._low is None else np.clip(x, self._low, self._high)

    def beyond(self, x: Point, step: Point) -> Mask:
        """Coordinates at a bound that a step would cross."""
        if self._low is None:
            return np.zeros(len(x), bool)
        return ((x <= self._low) & (step < 0)) | ((x >= self._high) & (step > 0))

    def held(self, x: Point, grad: Point) -> Mask:
        """Coordinates at a bound that the way downhill would cross."""
        return self.beyond(x, -grad)

    def with_held(self, null: Float[np.ndarray, "n k"], held: Mask) -> Float[np.ndarray, "n k"]:
        """Null directions with those of the coordinates that are held."""
        if not held.any():
            return null
        return np.concatenate([null, np.eye(len(held), dtype=null.dtype)[:, held]], axis=1)
