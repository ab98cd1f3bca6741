r"""Normal modes, free energies and rates of a map of atoms.

In the harmonic approximation the free energy of a stationary point is, with the wave numbers of its
real modes and the order s of its point group,

    G = E + sum(h nu / 2) + kB T sum(log(1 - exp(-h nu / kB T))) + kB T log(s),

where rotations and translations, which are almost the same for all points, are left out. The rate
over a transition state is kB T / h exp(-(G_ts - G_min) / kB T); 1 / s counts the copies of a point,
and so the ways over it. Rates between sets of minima come from the rate matrix, from which
minima in between are eliminated one by one (graph transformation).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ridgerider._check import Positive, Whole, came, checked, needs
from ridgerider._search.results.landscape import Landscape
from ridgerider._search.results.result import Stationary
from ridgerider.ase._motions import Motions, point_group
from ridgerider.ase._problem import energy_of

with needs("ase", "ridgerider.ase"):
    from ase import units
    from ase.thermochemistry import HarmonicThermo

PLANCK = 2 * np.pi * units._hbar * units.J * units.s  # eV times ASE's unit of time
SLOWEST = 1.0  # cm^-1: modes below it are motions of the whole


@dataclass(frozen=True)
class Modes:
    """Normal modes of a stationary point.

    - `energies`: h nu of each, in eV; that of an imaginary mode is negative.
    - `vectors`: displacements of the free coordinates, as rows, not weighted with masses.
    """

    energies: np.ndarray
    vectors: np.ndarray

    @property
    def wave_numbers(self) -> np.ndarray:
        """In 1/cm; negative: imaginary."""
        return self.energies / units.invcm

    @property
    def real(self) -> np.ndarray:
        """Energies of the modes that are vibrations."""
        return self.energies[self.energies > SLOWEST * units.invcm]

    @property
    def zero_point_energy(self) -> float:
        return float(self.real.sum() / 2)


@checked
def normal_modes(landscape: Landscape, point: Stationary) -> Modes:
    """The normal modes of a minimum or saddle, from the Hessian that the map holds.

    >>> from ase import Atoms
    >>> from ase.calculators.lj import LennardJones
    >>> import ridgerider.ase
    >>> atoms = Atoms("Ar3", [(0, 0, 0), (1.1, 0, 0), (0.5, 1, 0)], calculator=LennardJones(rc=10))
    >>> landscape = ridgerider.ase.explore(atoms)
    >>> len(ridgerider.ase.normal_modes(landscape, landscape.minima()[0]).real)
    3
    """
    energy = energy_of(landscape)
    hessian = landscape.leg(point.fingerprint).hessian
    if hessian is None:
        raise ValueError("`landscape` must hold Hessians, as one of ridgerider.ase.explore does.")
    roots = np.sqrt(np.repeat(energy.atoms.get_masses(), 3) @ energy.basis**2)
    values, columns = np.linalg.eigh(hessian / np.outer(roots, roots))
    frequencies = np.sign(values) * np.sqrt(np.abs(values)) / (2 * np.pi)
    return Modes(PLANCK * frequencies, columns.T / roots)


@checked
def free_energies(
    landscape: Landscape, temperature: Positive, points: Iterable[Stationary] | None = None
) -> np.ndarray:
    """The harmonic free energies of points, in eV; of all minima if none are given."""
    found = []
    for one in landscape.minima() if points is None else points:
        thermo = HarmonicThermo(normal_modes(landscape, one).real, potentialenergy=one.loss)
        copies = units.kB * temperature * np.log(symmetry_order(landscape, one))
        found.append(thermo.get_helmholtz_energy(temperature, verbose=False) + copies)
    return np.array(found)


@checked
def symmetry_order(landscape: Landscape, point: Stationary, tolerance: Positive = 0.02) -> int:
    """How many swaps of equal atoms a rigid motion or mirror undoes; 1 for atoms in a cell.

    It is the order of the point group; each atom is found within five times the `tolerance`.
    """
    energy = energy_of(landscape)
    if not Motions(energy).is_free:
        return 1
    positions = energy.positions(point.params)
    return max(1, len(point_group(positions, energy.atoms.numbers, 5 * float(tolerance))))


@checked
def rate_matrix(landscape: Landscape, temperature: Positive) -> np.ndarray:
    """Rates k[i, j] from minimum i to minimum j, in 1/s, by harmonic transition state theory.

    Each transition state of the map counts with all of its copies.
    """
    minima, saddles = landscape.minima(), landscape.saddles()
    low = free_energies(landscape, temperature)
    high = free_energies(landscape, temperature, saddles)
    heat = units.kB * temperature
    attempts, rates = heat / PLANCK * units.s, np.zeros((len(minima), len(minima)))
    for edge in landscape.edges():
        one, two = edge.minima
        if one is None or two is None or one == two:
            continue
        for begin, end in ((one, two), (two, one)):
            rates[begin, end] += attempts * np.exp(-(high[edge.saddle] - low[begin]) / heat)
    return rates


@checked
def rate(
    rates: np.ndarray,
    begin: Whole | Sequence[Whole],
    end: Whole | Sequence[Whole],
    weights: Sequence[float] | np.ndarray | None = None,
) -> float:
    """The rate from one set of minima to another in the steady state, by graph transformation.

    - `rates[i, j]`: from i to j, as of `rate_matrix`.
    - `weights`: of the minima in `begin`, equal if None; free energies give them at equilibrium.

    1 / rate is the mean first passage time, averaged over the sources.

    >>> import numpy as np
    >>> rates = np.array([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0], [0.0, 1.0, 0.0]])
    >>> round(1 / rate(rates, 0, 2), 6)  # 1/2 + 1/3 + (1/3) 1/2
    1.0
    """
    rates = np.array(rates, float)
    sources, sinks = (np.atleast_1d(np.asarray(one, int)) for one in (begin, end))
    if rates.ndim != 2 or rates.shape[0] != rates.shape[1]:
        raise ValueError(f"`rates` must be a square matrix, not of shape {rates.shape}.")
    if not len(sources) or not len(sinks) or set(sources) & set(sinks):
        raise ValueError("`begin` and `end` must be different minima, at least one of each.")
    if max(*sources, *sinks) >= len(rates):
        raise ValueError(f"`begin` and `end` must be numbers of minima below {len(rates)}.")
    if weights is not None and np.shape(weights) != sources.shape:
        raise ValueError(f"`weights` must be one for each of `begin`, not {came(weights)}.")
    np.fill_diagonal(rates, 0)
    out = rates.sum(axis=1)
    is_there = out > 0
    jumps = rates / np.where(is_there, out, 1)[:, None]
    times = np.where(is_there, 1 / np.where(is_there, out, 1), np.inf)
    shares = np.ones(len(sources)) if weights is None else np.asarray(weights, float)
    total = 0.0
    for source, share in zip(sources, shares / shares.sum(), strict=True):
        total += share * _first_passage(
            jumps.copy(), times.copy(), int(source), set(sinks.tolist())
        )
    return float(1 / total) if total > 0 else 0.0


def _first_passage(jumps: np.ndarray, times: np.ndarray, source: int, sinks: set[int]) -> float:
    """Mean time from a minimum to any of the sinks: all others are eliminated, one by one."""
    for gone in range(len(times)):
        if gone in sinks or gone == source:
            continue
        stays, reached = 1 - jumps[gone, gone], jumps[:, gone].copy()
        onward = jumps[gone].copy()
        jumps[:, gone] = jumps[gone] = onward[gone] = 0
        if not stays > 0 or not np.isfinite(times[gone]):  # never left again
            times = np.where(reached > 0, np.inf, times)
            continue
        times = times + reached * times[gone] / stays
        jumps = jumps + np.outer(reached, onward / stays)
    escape = sum(jumps[source, sink] for sink in sinks)
    return float(times[source] / escape) if escape > 0 else np.inf
