r"""Forces as the gradient of a problem, and Hessians from as few force calls as noise allows.

The noise d of the forces is measured. A one-sided difference with the step h is off by about
T h / 2 + 2 d / h, with the third derivatives T, a central one by F h^2 / 6 + d / h, with the fourth
derivatives F. One-sided differences are taken where their error is small, else central ones. The
softest modes, which decide the kind of a point, are corrected by central differences of fourth
order, with a longer step.

A Hessian has no part along rigid motions of free atoms, which cost no force call. What a Hessian
costs is one force call (or two) for each other coordinate, and eight for the softest modes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ridgerider._check import one_line
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.functions import Block, Functions, Point, Rows
from ridgerider.ase._between import between
from ridgerider.ase._bonds import Connected
from ridgerider.ase._energy import EnergyAndForces
from ridgerider.ase._motions import Motions, point_group, symmetrized

THIRD, FOURTH = 50.0, 200.0  # typical derivatives of covalent bonds, eV/Angstrom^3 and ^4
SOFT_THIRD = 5.0  # along the modes that are climbed
ONE_SIDED = 0.02  # eV/Angstrom^2: the largest error of a one-sided difference
SOFTEST = 2  # modes that are corrected
RESOLUTION = 1e-4  # Angstrom, where noise allows
SOFT = 0.2  # eV/Angstrom^2: over which a noise of the force moves a stationary point
TOO_NOISY = 5e-3  # eV/Angstrom
ROUNDING = 1e-10  # sums of several threads come in any order
SYMMETRIC = 2e-3  # Angstrom: what is as close to a symmetry has it
KEPT = 4  # points whose forces are remembered


class Forces(Functions):
    """The energy of some atoms with its derivatives; each call of the calculator is counted once.

    `hvps` and `hessians` are not counted: they are made of force calls, which are.
    """

    has_certain_symmetry = True

    def __init__(self, energy: EnergyAndForces, motions: Motions):
        super().__init__(energy.start.size, np.float64, 1, energy.__name__)
        self._value_and_grad, self.motions = energy, motions
        self.valid: Connected | None = None  # whose atoms have left is not climbed any further
        self._shape = energy.start.shape
        self._remembered: dict[bytes, tuple[float, Point]] = {}
        self._error: tuple[bytes, float] | None = None
        self.step, self.about = 1e-2, energy.about()
        x = energy.start.ravel()
        try:
            self.grad_noise = self._measured_noise(x)
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(
                "the calculator must work for `atoms` and close to them, but it failed: "
                f"{type(error).__name__}: {one_line(error)}."
            ) from error
        if self.grad_noise > TOO_NOISY:
            name = type(energy.atoms.calc).__name__
            raise ValueError(
                f"the forces of {name} must be smooth, but they have a noise of "
                f"{self.grad_noise:.2g} eV/Angstrom, and at most {TOO_NOISY:g} is tolerated: "
                "converge its energies more tightly (`accuracy` of TBLite, for example)."
            )
        self.resolution = max(RESOLUTION, 3 * self.grad_noise / SOFT)

    # --- calls

    def evaluate(self, x: Block, rows: Rows) -> tuple[np.ndarray, Block]:
        del rows
        value, grad = self.at(x[0])
        return np.array([value]), grad[None]

    def at(self, x: Point) -> tuple[float, Point]:
        """Energy and gradient; the last few are remembered."""
        name = x.tobytes()
        if name not in self._remembered:
            found = self._called(x)
            while len(self._remembered) >= KEPT:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[name] = found
        return self._remembered[name]

    def _called(self, x: Point) -> tuple[float, Point]:
        self.count(values=1, gradients=1)
        value, grad = self._value_and_grad(x.reshape(self._shape))
        return float(value), np.ravel(grad)

    def _measured_noise(self, x: Point) -> float:
        """The noise of the forces; calculators that remember the last point are made to forget."""
        energy, rng = self._value_and_grad, np.random.default_rng(0)
        unit = rng.normal(size=x.size)
        unit /= np.linalg.norm(unit)
        first, grad = self.at(x)
        if not (np.isfinite(first) and np.isfinite(grad).all()):
            raise ValueError("energy and forces of `atoms` must be finite, but they are not.")
        for _ in range(2):
            self._called(x + 0.05 * unit)
            again = self._called(x)[1]
            if np.allclose(again, grad, rtol=ROUNDING, atol=ROUNDING):
                break
            if energy.resets or not hasattr(energy.atoms.calc, "reset"):
                raise ValueError(
                    "the calculator must be deterministic, but the forces of two calls for the "
                    f"same atoms differ by {np.abs(again - grad).max():.3g} eV/Angstrom."
                )
            energy.resets = True
            grad = self._called(x)[1]
            self._remembered.clear()
        # Differences of fourth order leave the noise alone: sqrt(70) times as large.
        table = np.array([self.at(x + k * 1e-3 * unit)[1] for k in range(6)])
        noise = float(np.abs(np.diff(table, 4, axis=0)).max() / 70**0.5)
        rows = self.motions.rows(x)
        if len(rows):  # forces do not push along rigid motions
            lengths = np.maximum(np.linalg.norm(rows, axis=1), 1e-9)
            noise = max(noise, float(np.abs(rows @ grad / lengths).max()))
        turned = self.motions.turned(x)
        if turned is not None:
            moved, matrix = turned
            other = self.at(moved)[1].reshape(-1, 3) @ matrix
            noise = max(noise, float(np.abs(other - grad.reshape(-1, 3)).max()))
        return max(noise, 1e-13 * max(1.0, float(np.abs(grad).max())))

    # --- differences

    def multiply(self, x: Point, v: Block, rows: Rows) -> Block:
        """One force call for each HVP, besides that at `x`, along rows that climbs ask for."""
        del rows
        h = _one_sided(self.grad_noise, SOFT_THIRD)
        return np.stack([self._ahead(x, row, h) for row in v])

    def dense(self, x: Point, rows: Rows) -> np.ndarray:
        del rows
        noise, space = self.grad_noise, self.motions.complement(x)
        h = _one_sided(noise, THIRD)
        if THIRD * h <= ONE_SIDED:
            images = np.stack([self._ahead(x, row, h) for row in space])
        else:
            h = (3 * noise / FOURTH) ** (1 / 3)
            images = np.stack([self._central(x, row, h) for row in space])
        inside = images @ space.T
        inside, error = (inside + inside.T) / 2, 0.0
        softest = np.linalg.eigh(inside)[1][:, :SOFTEST].T @ space
        products, errors = self.differences(x, softest, None)
        for row, product in zip(softest @ space.T, products @ space.T, strict=True):
            wrong = product - inside @ row
            inside += (
                np.outer(wrong, row) + np.outer(row, wrong) - (row @ wrong) * np.outer(row, row)
            )
        error = float(errors.max(initial=0.0))
        self._error = (x.tobytes(), error)
        return space.T @ inside @ space

    def differences(self, x: Point, v: Block, rows: Rows) -> tuple[Block, np.ndarray]:
        """HVPs of fourth order, and what each may be off by."""
        del rows
        h = float(np.clip((self.grad_noise / FOURTH) ** 0.2, 1e-3, 0.06))
        near, far = (np.stack([self._central(x, row, k * h) for row in v]) for k in (1, 2))
        lengths = np.linalg.norm(v, axis=1)
        error = np.linalg.norm(near - far, axis=1) / 3 + self.grad_noise / h * lengths
        return (4 * near - far) / 3, error / 10  # ten times of which counts as an error

    def errors(self, x: Point, v: Block, rows: Rows) -> np.ndarray:
        if self._error is not None and self._error[0] == x.tobytes():
            return np.full(len(v), self._error[1])
        return super().errors(x, v, rows)

    def _ahead(self, x: Point, row: Point, h: float) -> Point:
        size = float(np.linalg.norm(row)) or 1.0
        return (self.at(x + h / size * row)[1] - self._center(x)) * (size / h)

    def _central(self, x: Point, row: Point, h: float) -> Point:
        size = float(np.linalg.norm(row)) or 1.0
        ahead, behind = (self.at(x + sign * h / size * row)[1] for sign in (1, -1))
        return (ahead - behind) * (size / (2 * h))

    def _center(self, x: Point) -> Point:
        """The gradient at `x`, which stays remembered while others come and go."""
        found = self.at(x)
        self._remembered[x.tobytes()] = self._remembered.pop(x.tobytes())
        return found[1]

    def between(self, begin: Point, end: Point, count: int) -> Block:
        """Images on a path between two points, which are the first and the last."""
        return between(self._value_and_grad, begin, end, count)

    def keeper(self, x: Point) -> Callable[[Point], Point] | None:
        """What keeps the symmetry of a cluster at `x`, off which noise would let climbs slide."""
        if not self.motions.is_free or self.chart is not None:
            return None
        numbers = self._value_and_grad.atoms.numbers
        group = [images for _, images in point_group(x.reshape(-1, 3), numbers, SYMMETRIC)]
        if len(group) < 2:
            return None
        return lambda new: symmetrized(new.reshape(-1, 3), group).ravel()

    def is_lost(self, x: Point) -> bool:
        return self.valid is not None and self.valid.is_lost(x)

    def params_of(self, x: Point) -> np.ndarray:
        return np.array(x, float).reshape(self._shape)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_remembered": {}, "preparation": Cost()}


def _one_sided(noise: float, third: float) -> float:
    """The step of a one-sided difference at which curvature and noise count the same."""
    return float(np.clip(2 * (noise / third) ** 0.5, 1e-6, 0.02))
