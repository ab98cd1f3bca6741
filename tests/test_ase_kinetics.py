"""Normal modes, free energies, rates by closed forms and dense solutions; files and movies."""

import pickle
import sqlite3
from contextlib import closing
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("ase", reason="ASE is not installed: ridgerider[ase]")
from ase import Atoms, units
from ase.build import add_adsorbate, fcc100
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones
from ase.constraints import FixAtoms
from ase.io import read
from ase.vibrations import Vibrations

import ridgerider.ase
from ridgerider.ase import rate

FIVE = [(0, 0, 0), (1.1, 0, 0), (0.5, 1, 0), (0.5, 0.4, 0.9), (0.5, 0.4, -0.9)]


@pytest.fixture(scope="module")
def five():
    return ridgerider.ase.explore(Atoms("Ar5", FIVE, calculator=LennardJones(rc=20.0)))


def test_a_pair_vibrates_as_its_curvature_says():
    pair = Atoms("Ar2", [(0, 0, 0), (1.1, 0, 0)], calculator=LennardJones(rc=20.0))
    landscape = ridgerider.ase.explore(pair)
    (energy,) = ridgerider.ase.normal_modes(landscape, landscape.minima()[0]).real
    reduced = pair.get_masses()[0] / 2
    # The curvature at the minimum is 72 / 2^(1/3).
    wanted = units._hbar * units.J * units.s * np.sqrt(72 * 2 ** (-1 / 3) / reduced)
    assert energy == pytest.approx(wanted, rel=1e-3)


def test_modes_are_those_of_ase(five, tmp_path):
    modes = ridgerider.ase.normal_modes(five, five.minima()[0])
    atoms = five.problem.loss._value_and_grad.atoms.copy()
    atoms.positions = five.minima()[0].params
    atoms.calc = LennardJones(rc=20.0)
    vibrations = Vibrations(atoms, name=str(tmp_path / "vib"), delta=1e-3)
    vibrations.run()
    wanted = np.sort(vibrations.get_energies().real)[-9:]
    np.testing.assert_allclose(np.sort(modes.real), wanted, rtol=1e-2)
    assert modes.zero_point_energy == pytest.approx(wanted.sum() / 2, rel=1e-2)
    saddle = ridgerider.ase.normal_modes(five, five.saddles()[0])
    assert saddle.wave_numbers[0] < -1 and len(saddle.real) == 8


def test_orders_of_point_groups(five):
    assert ridgerider.ase.symmetry_order(five, five.minima()[0]) == 12  # D3h
    assert ridgerider.ase.symmetry_order(five, five.saddles()[0]) in (4, 8)


def test_free_energies_are_classical_when_hot(five):
    hot = 1e5
    modes = ridgerider.ase.normal_modes(five, five.minima()[0]).real
    (found,) = ridgerider.ase.free_energies(five, hot)
    heat = units.kB * hot
    wanted = five.minima()[0].loss + heat * np.log(modes / heat).sum() + heat * np.log(12)
    assert found == pytest.approx(wanted, rel=1e-4)


def dense_rate(rates, begin, end):
    """1 / mean first passage time, from the linear equations."""
    rates = np.array(rates, float)
    left = [n for n in range(len(rates)) if n not in end]
    matrix = np.diag(rates.sum(axis=1)) - rates
    times = np.linalg.solve(matrix[np.ix_(left, left)], np.ones(len(left)))
    return 1 / np.mean([times[left.index(one)] for one in begin])


def test_rates_of_chains_and_of_random_networks():
    assert rate(np.array([[0, 2.0], [5.0, 0]]), 0, 1) == pytest.approx(2.0)
    a, b, c = 2.0, 1.0, 3.0  # 0 -> 1 -> 2 and back
    chain = np.array([[0, a, 0], [b, 0, c], [0, 7.0, 0]])
    assert rate(chain, 0, 2) == pytest.approx(a * c / (a + b + c))
    rng = np.random.default_rng(0)
    for size in (4, 7, 12):
        rates = 10 ** rng.uniform(-6, 6, size=(size, size))
        np.fill_diagonal(rates, 0)
        for begin, end in (([0], [size - 1]), ([0, 1], [2, size - 1])):
            assert rate(rates, begin, end) == pytest.approx(dense_rate(rates, begin, end), rel=1e-6)
    trapped = np.array([[0, 1.0, 1.0], [0, 0, 0], [1.0, 0, 0]])
    assert rate(trapped, 0, 2) == 0
    with pytest.raises(ValueError, match="must be different minima"):
        rate(chain, 0, 0)


@pytest.fixture(scope="module")
def hop():
    slab = fcc100("Al", size=(2, 2, 3))
    add_adsorbate(slab, "Au", 1.7, "hollow")
    slab.center(axis=2, vacuum=4.0)
    slab.set_constraint(FixAtoms(mask=slab.get_tags() > 1))
    slab.calc = EMT()
    other = slab.copy()
    other.positions[-1, 0] += slab.cell[0, 0] / 2
    return ridgerider.ase.connect(slab, other)


def test_gold_hops(hop):
    assert len(hop.minima()) == 1 and hop.starts() == [0, 0]
    barrier = hop.saddles()[0].loss - hop.minima()[0].loss
    assert barrier == pytest.approx(0.374, abs=1e-3) and hop.cost.gradients <= 600


def test_detailed_balance_and_files(tmp_path):
    positions = np.array([*FIVE, (1.4, 1.0, 0.0)])
    atoms = Atoms("Ar6", positions, calculator=LennardJones(rc=20.0))
    landscape = ridgerider.ase.explore(atoms)
    rates = ridgerider.ase.rate_matrix(landscape, 300.0)
    free = ridgerider.ase.free_energies(landscape, 300.0)
    weights = np.exp(-(free - free.min()) / (units.kB * 300.0))
    assert len(free) == 2 and (rates[0, 1] > 0) and not np.diag(rates).any()
    assert weights[0] * rates[0, 1] == pytest.approx(weights[1] * rates[1, 0], rel=1e-9)
    folder = ridgerider.ase.write_pathsample(landscape, tmp_path / "sample")
    database = ridgerider.ase.write_pele(landscape, tmp_path / "pele.sqlite")
    edges = [one for one in landscape.edges() if None not in one.minima]
    for minima, saddles in (
        ridgerider.ase.read_pathsample(folder, atoms),
        ridgerider.ase.read_pele(database, atoms),
    ):
        assert len(minima) == 2 and len(saddles) == len(edges) > 0
        for ours, theirs in zip(landscape.minima(), minima, strict=True):
            assert theirs.get_potential_energy() == pytest.approx(ours.loss, abs=1e-9)
            np.testing.assert_allclose(theirs.positions, ours.params, atol=1e-12)
        for edge, theirs in zip(edges, saddles, strict=True):
            assert sorted(theirs.info["minima"]) == sorted(edge.minima)
            assert theirs.get_potential_energy() == pytest.approx(edge.loss, abs=1e-9)
    with pytest.raises(ValueError, match=r"points\.min` must hold"):
        ridgerider.ase.read_pathsample(folder, atoms[:5])
    again = ridgerider.ase.explore(atoms, starts=minima, max_rides=4)
    assert len(again.minima()) == 2
    count = len(landscape.minima()) + len(landscape.saddles())
    for name in ("points.xyz", "points.traj", "points.db"):
        path = ridgerider.ase.save(landscape, tmp_path / name)
        found = read(path, ":")
        assert len(found) == count
        assert found[0].get_potential_energy() == pytest.approx(landscape.minima()[0].loss)
    with pytest.raises(ValueError, match=r"must end in \.xyz, \.traj or \.db"):
        ridgerider.ase.save(landscape, tmp_path / "points.pdf")
    frames = ridgerider.ase.path_movie(landscape, 0, 1)
    assert len(frames) >= 19 and frames[0].info["kind"] == "minimum"
    steps = [np.abs(b.positions - a.positions).max() for a, b in pairwise(frames)]
    assert max(steps) < 1.0


def replaced(path, coords):
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM tbl_transition_states")
        database.execute("UPDATE tbl_minima SET coords = ?", [coords])


def test_the_tables_of_pele(tmp_path):
    """Those that its documentation of `Minimum`, `TransitionState` and `Database` names."""
    atoms = Atoms("Ar5", FIVE, calculator=LennardJones(rc=20.0))
    path = ridgerider.ase.write_pele(ridgerider.ase.explore(atoms), tmp_path / "pele.sqlite")
    shared = {"_id", "energy", "coords", "fvib", "pgorder", "invalid", "user_data"}
    more = {"_minimum1_id", "_minimum2_id", "eigenval", "eigenvec"}
    with closing(sqlite3.connect(path)) as database:
        for table, wanted in (("minima", shared), ("transition_states", shared | more)):
            found = database.execute(f"PRAGMA table_info(tbl_{table})").fetchall()
            assert {row[1] for row in found} == wanted
        assert database.execute("PRAGMA user_version").fetchone() == (2,)
        ((coords, order),) = database.execute("SELECT coords, pgorder FROM tbl_minima").fetchall()
        assert order == 12 and pickle.loads(coords).shape == (15,)
    for protocol in range(2, 6):
        replaced(path, pickle.dumps(np.arange(15.0), protocol))
        (one,), _ = ridgerider.ase.read_pele(path, atoms)
        np.testing.assert_array_equal(one.positions.ravel(), np.arange(15.0))
    replaced(path, pickle.dumps(Atoms))
    with pytest.raises(ValueError, match=r"an array of NumPy, not ase\.atoms\.Atoms"):
        ridgerider.ase.read_pele(path, atoms)
    with pytest.raises(ValueError, match="must be a new file"):
        ridgerider.ase.write_pele(ridgerider.ase.explore(atoms, max_rides=1), path)
    with pytest.raises(ValueError, match="but there is no"):
        ridgerider.ase.read_pele(tmp_path / "none", atoms)
