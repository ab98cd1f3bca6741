"""Where steps may go: outside of what a symmetry generates, and inside of bounds."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float

from ridgerider._core.points.symmetry import Symmetry, rows_at
from ridgerider._core.problem.calls import Point
from ridgerider._core.problem.problem import Problem
from ridgerider._core.runtime.compile import program_of

Mask = Bool[np.ndarray, " n"]
Matrix = Float[np.ndarray, "n n"]


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
        # chart.moved(x, step): where a step leads that bends, as a turn about a bond does;
        # chart.carriers(x, new): matrices that carry gradients from `x` to `new`, and back;
        # chart.ways(x): displacements to climb along from a minimum, instead of its modes;
        # chart.onward(x, new): the unit vector along which such a displacement continues at `new`.
        self.chart = getattr(problem.loss, "chart", None)
        # loss.is_lost(x): there is nothing to be found any more by a climb that is there.
        self._is_lost = getattr(problem.loss, "is_lost", None)
        # Of atoms the symmetry is certain, and what a calculator makes of it is noise.
        self._is_certain = getattr(problem.loss, "has_certain_symmetry", False)
        # loss.keeper(x): a function that restores, after a step, a symmetry of `x`; or None.
        self._keeper = getattr(problem.loss, "keeper", None)
        self._none = np.zeros((problem.size, 0), problem.dtype)

    def null(self, x: Point) -> Float[np.ndarray, "n k"]:
        """Orthonormal columns that span the generators of the symmetry at `x`."""
        return self.level(x, np.zeros_like(x))[0]

    def level(self, x: Point, grad: Point) -> tuple[Float[np.ndarray, "n k"], float, int]:
        """Orthonormal columns that span the generators, and how level the loss is along them.

        That is the largest part of the gradient along a generator, of its norm or 1, and the number
        of that generator.
        """
        if self._generators is None:
            return self._none, 0.0, 0
        rows = np.asarray(self._generators(x))
        if not len(rows):
            return self._none, 0.0, 0
        sizes, mix = np.linalg.eigh(rows @ rows.T)
        is_there = sizes > 1e-6 * sizes.max()  # fewer for atoms on a line
        null = rows.T @ (mix[:, is_there] / np.sqrt(sizes[is_there]))
        if self._is_certain:
            return null, 0.0, 0
        lengths = np.linalg.norm(rows, axis=1) * max(float(np.linalg.norm(grad)), 1.0)
        parts = np.abs(rows @ grad) / np.maximum(lengths, np.finfo(x.dtype).tiny)
        worst = int(np.argmax(parts))
        return null, float(parts[worst]), worst

    # --- steps that bend

    def moved(self, x: Point, step: Point) -> Point:
        """Where a step leads."""
        return self.inside(x + step if self.chart is None else self.chart.moved(x, step))

    def keeper(self, x: Point) -> Callable[[Point], Point] | None:
        """What restores a symmetry of `x` after a step, where noise would break it."""
        return None if self._keeper is None else self._keeper(x)

    def carriers(self, x: Point, new: Point) -> tuple[Matrix, Matrix] | None:
        """Matrices that carry gradients on the way, and back; None: these stay as they are."""
        return None if self.chart is None else self.chart.carriers(x, new)

    def is_lost(self, x: Point) -> bool:
        """Whether a climb need not be continued from `x`."""
        return self._is_lost is not None and self._is_lost(x)

    # --- bounds

    @property
    def is_bounded(self) -> bool:
        return self._low is not None

    def inside(self, x: Point) -> Point:
        return x if self._low is None else np.clip(x, self._low, self._high)

    def inward(self, x: Point) -> Float[np.ndarray, "k n"]:
        """Unit vectors away from each bound that `x` is at."""
        if self._low is None or self._high is None:
            return np.zeros((0, len(x)))
        signs = (x <= self._low).astype(float) - (x >= self._high)
        return np.diag(signs)[signs != 0]

    def beyond(self, x: Point, step: Point) -> Mask:
        """Coordinates at a bound that a step would cross."""
        if self._low is None:
            return np.zeros(len(x), bool)
        return ((x <= self._low) & (step < 0)) | ((x >= self._high) & (step > 0))

    def first_out(self, x: Point, path: Float[np.ndarray, "n times"]) -> int:
        """Which column of a path from `x` is the first that reaches a bound, or the last one."""
        if self._low is None or self._high is None:
            return -1
        low, high, ends = self._low[:, None], self._high[:, None], x[:, None] + path
        is_inner = (low < x[:, None]) & (x[:, None] < high)
        is_out = (is_inner & ((ends <= low) | (ends >= high))).any(axis=0)
        return int(np.argmax(np.append(is_out[:-1], True)))

    def held(self, x: Point, grad: Point) -> Mask:
        """Coordinates at a bound that the way downhill would cross."""
        return self.beyond(x, -grad)

    def slope(self, x: Point, grad: Point) -> float:
        """How steep it is along coordinates that no bound holds."""
        return float(np.linalg.norm(np.where(self.held(x, grad), 0, grad)))

    def with_held(self, null: Float[np.ndarray, "n k"], held: Mask) -> Float[np.ndarray, "n k"]:
        """Null directions with those of the coordinates that are held."""
        if not held.any():
            return null
        return np.concatenate([null, np.eye(len(held), dtype=null.dtype)[:, held]], axis=1)
