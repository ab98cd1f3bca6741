"""Equivalent minima: those that are closer than a tolerance, as `Result.classes` has it."""

from dataclasses import dataclass, field

import numpy as np

from ridgerider._search.tree import Fingerprint

MAX_DISTANCES = 48  # of a distance matrix that can be looked at


@dataclass
class Classes:
    """Classes of minima that grow as minima are added; the first of a class stands for it.

    >>> classes = Classes()
    >>> for name, x in {"0+": [1.0, 0.0], "0-": [-1.0, 0.0], "1+": [1.0, 1e-5]}.items():
    ...     print(name, classes.add(Fingerprint.parse(name), np.array(x), loss=-1.0))
    0+ 0
    0- 1
    1+ 0
    >>> classes.distances()
    {'classes': [0, 1], 'distances': [[0.0, 2.0], [2.0, 0.0]]}
    """

    tolerance: float = 1e-3
    names: list[Fingerprint] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    _points: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))

    def add(self, fingerprint: Fingerprint, x: np.ndarray, loss: float | None) -> int:
        """The class of a minimum, which may be a new one."""
        count = len(self.names)
        known = self._points[:count]
        if count:
            # `is_same` for all of them at once.
            size = np.maximum(1.0, np.linalg.norm(known, axis=1))
            (near,) = np.nonzero(np.linalg.norm(known - x, axis=1) <= self.tolerance * size)
            if len(near):
                return int(near[0])
        if count == len(self._points):
            larger = np.zeros((2 * count + 8, len(x)), x.dtype)
            if count:
                larger[:count] = known
            self._points = larger
        self._points[count] = x
        self.names.append(fingerprint)
        self.losses.append(loss)
        return count

    def distances(self) -> dict[str, list]:
        """Between the minima of lowest loss."""
        order = sorted(
            range(len(self.names)),
            key=lambda one: (
                np.inf if self.losses[one] is None else float(f"{self.losses[one]:.6g}"),
                self.names[one].depth,
                self.names[one].sort_key(),
            ),
        )[:MAX_DISTANCES]
        points = self._points[order]
        apart = [np.linalg.norm(points - point, axis=1) for point in points]
        return {
            "classes": order,
            "distances": [[float(f"{value:.5g}") for value in row] for row in apart],
        }
