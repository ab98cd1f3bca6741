"""Atoms with calculators: the minima of the same potential in JAX, fixed atoms, cells, movies."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr

pytest.importorskip("ase", reason="ASE is not installed: ridgerider[ase]")
from ase import Atoms
from ase.build import bulk, fcc100
from ase.calculators.emt import EMT
from ase.calculators.emt import beta as BETA
from ase.calculators.lj import LennardJones
from ase.constraints import FixAtoms, FixBondLength
from ase.io import read, write

import ridgerider.ase
from ridgerider.ase import _energy

CUTOFF = 20.0
SHORT = rr.Rider(max_steps=15)
LONG = rr.Rider()


def distances(positions):
    first, second = np.triu_indices(len(positions), 1)
    return jnp.sqrt(jnp.sum((positions[first] - positions[second]) ** 2, axis=1))


def lennard_jones(positions):
    """As ASE has it: every pair is shifted by its energy at the cutoff."""
    powers = distances(positions) ** -6
    return jnp.sum(4 * (powers**2 - powers) - 4 * (CUTOFF**-12 - CUTOFF**-6))


def ring(count, radius=1.1, height=0.0):
    """A polygon around an axis: flat, so that it can be ridden out of its plane."""
    angles = 2 * np.pi * np.arange(count) / count
    return np.stack([radius * np.cos(angles), radius * np.sin(angles), 0 * angles + height], 1)


def argon(count):
    # Slightly crooked: no eigenvalue is repeated.
    positions = ring(count - 1) if count > 3 else np.array([[-1.2, 0, 0], [0, 0.05, 0]])
    positions = np.concatenate([positions, [[0, 0, 0.1]] if count > 3 else [[1.3, 0, 0]]])
    positions += 0.05 * np.random.default_rng(0).normal(size=positions.shape)
    return Atoms(f"Ar{count}", positions, calculator=LennardJones(rc=CUTOFF))


def copper_in_jax(atoms):
    """Effective medium theory for one kind of atoms, with the constants of ASE."""
    calculator = atoms.calc
    atoms.get_potential_energy()
    constants = {name: float(values[0]) for name, values in calculator.par.items()}
    rc, slope = calculator.rc, calculator.acut

    def energy(positions):
        first, second = np.nonzero(~np.eye(len(positions), dtype=bool))
        r = jnp.sqrt(jnp.sum((positions[first] - positions[second]) ** 2, axis=1))
        weight = jnp.where(
            r < calculator.rc_list, 1 / (1 + jnp.exp(slope * (r - rc))), jnp.zeros_like(r)
        )
        s0, kappa, eta2 = constants["s0"], constants["kappa"], constants["eta2"]
        ones = jnp.exp(-eta2 * (r - BETA * s0)) * weight
        twos = jnp.exp(-kappa * (r / BETA - s0)) * weight
        sums = jnp.zeros(len(positions)).at[first].add(ones)
        ds = -jnp.log(sums * constants["inv12gamma1"]) / (BETA * eta2)
        lds = constants["lambda"] * ds
        cohesive = constants["E0"] * ((1 + lds) * jnp.exp(-lds) - 1)
        return (
            jnp.sum(cohesive + 6 * constants["V0"] * jnp.exp(-kappa * ds))
            + jnp.sum(twos) * constants["neghalfv0overgamma2"]
        )

    return energy


def check_same_search(atoms, energy, rides, rider=LONG):
    ours = ridgerider.ase.problem(atoms)
    other = rr.Problem(energy, jnp.asarray(atoms.positions))
    np.testing.assert_allclose(ours.value(ours.x0), other.value(other.x0), rtol=1e-10)
    np.testing.assert_allclose(ours.hessian(ours.x0), other.hessian(other.x0), atol=1e-6)
    result, exact = (rr.search(one, rider, max_rides=rides, max_depth=1) for one in (ours, other))
    assert result.fingerprints() == exact.fingerprints()
    minima, wanted = result.minima(), exact.minima()
    assert len(minima) == len(wanted) >= 1
    np.testing.assert_allclose(
        [one.loss for one in minima], [one.loss for one in wanted], atol=1e-6
    )
    assert all(one.num_flat == 6 for one in minima)  # translations and rotations
    for one, two in zip(minima, wanted, strict=True):
        inside = [np.sort(distances(np.asarray(end.params))) for end in (one, two)]
        np.testing.assert_allclose(*inside, atol=1e-6)
    assert result.cost.gradients >= 4 * result.cost.hvps > 0
    return result


@pytest.fixture(scope="module")
def three():
    return check_same_search(argon(3), lennard_jones, 1, SHORT)


def test_three_argon_atoms(three):
    shift = 3 * 4 * (CUTOFF**-12 - CUTOFF**-6)
    assert three.minima()[0].loss == pytest.approx(-3 - shift, abs=1e-6)  # a triangle


@pytest.mark.long
def test_seven_argon_atoms():
    check_same_search(argon(7), lennard_jones, 2)


@pytest.mark.long
def test_five_copper_atoms():
    positions = np.concatenate([ring(3, 1.5), [[0, 0, 1.2], [0.3, 0.2, 2.9]]])
    atoms = Atoms("Cu5", positions, calculator=EMT())
    check_same_search(atoms, copper_in_jax(atoms), 1)


def test_copper_has_the_same_derivatives():
    atoms = Atoms("Cu5", np.concatenate([ring(4, 1.8), [[0, 0, 1.5]]]), calculator=EMT())
    ours = ridgerider.ase.problem(atoms)
    other = rr.Problem(copper_in_jax(atoms), jnp.asarray(atoms.positions))
    np.testing.assert_allclose(ours.value(ours.x0), other.value(other.x0), rtol=1e-10)
    np.testing.assert_allclose(ours.grad(ours.x0), other.grad(other.x0), atol=1e-9)
    scale = float(jnp.abs(other.hessian(other.x0)).max())
    np.testing.assert_allclose(ours.hessian(ours.x0), other.hessian(other.x0), atol=1e-7 * scale)


def test_solutions_are_atoms_and_rides_are_movies(three, tmp_path):
    atoms = ridgerider.ase.to_atoms(three)[0]
    assert atoms.get_potential_energy() == pytest.approx(three.minima()[0].loss)
    assert atoms.info["kind"] == "minimum"
    assert three.minima()[0].grad_norm < 1e-5
    name = str(three.minima()[0].fingerprint)
    frames = ridgerider.ase.movie(three, name)
    assert len(frames) == three.leg(name).num_steps + 2
    write(tmp_path / "ride.xyz", frames)
    again = read(tmp_path / "ride.xyz", ":")
    assert len(again) == len(frames) and again[1].info["step"] == 1
    np.testing.assert_allclose(again[-1].positions, frames[-1].positions, atol=1e-6)
    assert again[1].get_potential_energy() == pytest.approx(float(three.leg(name).trace["loss"][1]))
    with pytest.raises(ValueError, match=r"must be a run of ridgerider\.ase"):
        ridgerider.ase.to_atoms(
            rr.search(rr.Problem(lennard_jones, argon(3).positions), max_rides=0)
        )


@pytest.mark.long
def test_resume_is_bit_equal(three, tmp_path):
    whole = rr.search(three.problem, SHORT, max_rides=2, max_depth=1)
    rr.search(three.problem, SHORT, max_rides=1, max_depth=1, out=tmp_path / "run.sqlite")
    again = ridgerider.ase.problem(argon(3))
    resumed = rr.resume(tmp_path / "run.sqlite", again, max_rides=2)
    for one, two in zip(whole, resumed, strict=True):
        assert np.array_equal(one.x, two.x) and np.array_equal(one.finish.x, two.finish.x)


def test_fixed_atoms_and_cells():
    crystal = bulk("Cu", cubic=True)
    crystal.calc = EMT()
    crystal.set_constraint(FixAtoms([0, 1]))
    crystal.positions[2] += 0.1
    problem = ridgerider.ase.problem(crystal)
    assert problem.size == 6
    np.testing.assert_allclose(
        problem.grad(problem.x0), -crystal.get_forces()[2:].ravel(), atol=1e-12
    )
    moved = problem.loss._value_and_grad.at(crystal.positions[2:] + 0.1, 0.0)
    assert np.array_equal(moved.positions[:2], crystal.positions[:2]) and moved.pbc.all()
    before = crystal.positions.copy()
    problem.value(problem.x0 + 1)
    assert np.array_equal(crystal.positions, before)


class Slow(LennardJones):
    """A pause between its input and its results."""

    def calculate(self, *args, **kwargs):
        time.sleep(1e-3)
        super().calculate(*args, **kwargs)


def test_threads_share_a_calculator(monkeypatch):
    calculator, ends = Slow(), [(0, 0, 0), (1.2, 0, 0)]
    energies = [
        ridgerider.ase.EnergyAndForces(Atoms("Ar2", ends, calculator=calculator)) for _ in range(2)
    ]

    def work(number):
        positions = np.array([[0.0, 0, 0], [1 + 0.01 * number, 0, 0]])
        atoms = Atoms("Ar2", positions, calculator=LennardJones())
        try:
            energy, forces = energies[number % 2](positions)
        except Exception:  # where another thread was in between
            return False
        return energy == atoms.get_potential_energy() and (forces == -atoms.get_forces()).all()

    def are_right():
        with ThreadPoolExecutor(6) as threads:
            return all(threads.map(work, range(60)))

    assert are_right()
    monkeypatch.setattr(_energy, "CALLING", nullcontext())
    assert not are_right()  # the test sees what the lock prevents


class Fails(LennardJones):
    """A calculator that does not come back from everywhere."""

    def calculate(self, atoms=None, properties=None, system_changes=None):
        if np.abs(atoms.positions - argon(3).positions).max() > 0.3:
            raise RuntimeError("the atoms are too far out.")
        LennardJones.calculate(self, atoms, properties, system_changes)


def test_a_calculator_that_fails_ends_its_leg_alone(three):
    atoms = argon(3)
    atoms.calc = Fails(rc=CUTOFF)
    problem = ridgerider.ase.problem(atoms)
    rider = rr.Rider(finish=None, max_steps=20)
    result = rr.search(problem, rider, max_rides=2, max_depth=1)
    endings = " ".join(result.endings())
    assert len(result) == 2 and "failed: RuntimeError: the atoms are too far out" in endings


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="must be an Atoms, not"):
        ridgerider.ase.problem([1])
    with pytest.raises(ValueError, match="must have a calculator"):
        ridgerider.ase.problem(Atoms("Ar"))
    atoms = argon(3)
    atoms.set_constraint(FixBondLength(0, 1))
    with pytest.raises(ValueError, match="not FixBondLength"):
        ridgerider.ase.problem(atoms)
    atoms.set_constraint(FixAtoms([0, 1, 2]))
    with pytest.raises(ValueError, match="an atom that is not fixed"):
        ridgerider.ase.problem(atoms)


def test_the_ends_of_a_path_must_be_alike():
    slab = fcc100("Cu", size=(2, 2, 2), vacuum=4.0)
    slab.set_constraint(FixAtoms(mask=slab.get_tags() > 1))
    slab.calc = EMT()

    def changed(change):
        other = slab.copy()
        change(other)
        return other

    for change, message in (
        (lambda other: other.set_cell(1.05 * slab.cell), "`final` must have the cell"),
        (lambda other: other.symbols.__setitem__(3, "Au"), "but atom 3 is Au and not Cu"),
        (lambda other: other.pop(), "but it has 7 atoms and not 8"),
        (lambda other: other.positions.__iadd__(0.3), "the fixed atoms of `initial`"),
    ):
        with pytest.raises(ValueError, match=message):
            ridgerider.ase.connect(slab, changed(change))
