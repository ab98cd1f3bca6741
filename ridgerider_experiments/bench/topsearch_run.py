"""TopSearch on atoms, run by a Python that has it: see `topsearch`. It imports nothing of ours.

    python topsearch_run.py atoms.xyz

Settings are those of its examples: for 7 Lennard-Jones atoms, used for any number of argon atoms,
and for a molecule, ethanol, whose energy is GFN2-xTB here. Prints what it found as JSON.
"""

import json
import random
import sys

import numpy as np


def main(path: str) -> None:
    import ase.io
    from topsearch.data.coordinates import AtomicCoordinates, MolecularCoordinates
    from topsearch.data.kinetic_transition_network import KineticTransitionNetwork
    from topsearch.global_optimisation.basin_hopping import BasinHopping
    from topsearch.global_optimisation.perturbations import (
        AtomicPerturbation,
        MolecularPerturbation,
    )
    from topsearch.potentials.potential import Potential
    from topsearch.sampling.exploration import NetworkSampling
    from topsearch.similarity.molecular_similarity import MolecularSimilarity
    from topsearch.transition_states.hybrid_eigenvector_following import (
        HybridEigenvectorFollowing,
    )
    from topsearch.transition_states.nudged_elastic_band import NudgedElasticBand

    atoms = ase.io.read(path)
    symbols, start = list(atoms.symbols), atoms.positions.ravel()
    is_cluster = set(symbols) == {"Ar"}

    class Counted(Potential):
        """Energy and gradient of one call, which counts once; values alone are free."""

        count = 0

        def __init__(self):  # type: ignore[no-untyped-def]
            self.atomistic = True
            if not is_cluster:
                from tblite.ase import TBLite

                atoms.calc = TBLite(method="GFN2-xTB", verbosity=0)

        def both(self, x):  # type: ignore[no-untyped-def]
            if not is_cluster:
                atoms.positions = x.reshape(-1, 3)
                return atoms.get_potential_energy(), -atoms.get_forces().ravel()
            points = x.reshape(-1, 3)
            sides = points[:, None] - points
            squares = np.sum(sides**2, axis=2)
            np.fill_diagonal(squares, np.inf)
            sixth = squares**-3
            slopes = 24 * (sixth - 2 * sixth**2) / squares
            return 2 * np.sum(sixth**2 - sixth), (slopes[:, :, None] * sides).sum(axis=1).ravel()

        def function(self, position):  # type: ignore[no-untyped-def]
            return self.both(position)[0]

        def gradient(self, position):  # type: ignore[no-untyped-def]
            return self.function_gradient(position)[1]

        def function_gradient(self, position):  # type: ignore[no-untyped-def]
            self.count += 1
            return self.both(position)

    np.random.seed(0)
    random.seed(0)
    network, potential = KineticTransitionNetwork(), Counted()
    if is_cluster:
        coords = AtomicCoordinates(["C"] * len(atoms), start, bond_cutoff=1.5)
        same = MolecularSimilarity(0.2, 1e-1, weighted=False, allow_inversion=True)
        moves = AtomicPerturbation(max_displacement=0.5, max_atoms=3)
        single = HybridEigenvectorFollowing(
            potential, 1e-4, 150, 1e-1, max_uphill_step_size=0.3, positive_eigenvalue_step=0.3
        )
        double = NudgedElasticBand(potential, 50.0, 10.0, 20, 1e-2)
        hops = {"n_steps": 150, "conv_crit": 1e-5, "temperature": 1.0}
        cycles = 4
    else:
        coords = MolecularCoordinates(symbols, start)
        coords.remove_atom_clashes = lambda: None  # by another force field
        same = MolecularSimilarity(0.3, 1e-3, weighted=False)
        moves = MolecularPerturbation(max_displacement=180.0, max_bonds=2)
        single = HybridEigenvectorFollowing(
            potential,
            1e-2,
            50,
            0.8,
            max_uphill_step_size=0.3,
            positive_eigenvalue_step=0.1,
            steepest_descent_conv_crit=1e-2,
            eigenvalue_conv_crit=1e-3,
        )
        double = NudgedElasticBand(potential, 50.0, 5.0, 10, 1.0)
        hops = {"n_steps": 15, "conv_crit": 1e-2, "temperature": 100.0}
        cycles = 2
    hopping = BasinHopping(network, potential, same, moves)
    sampling = NetworkSampling(network, coords, hopping, single, double, same)
    sampling.get_minima(coords, test_valid=True, **hops)
    print(network.n_minima, "minima after", potential.count, "gradients", file=sys.stderr)
    sampling.get_transition_states("ClosestEnumeration", cycles, remove_bounds_minima=False)
    minima = [network.get_minimum_coords(number).tolist() for number in range(network.n_minima)]
    saddles = [network.G.edges[edge]["coords"].tolist() for edge in network.G.edges]
    print(json.dumps({"minima": minima, "saddles": saddles, "gradients": potential.count}))


if __name__ == "__main__":
    main(sys.argv[1])
