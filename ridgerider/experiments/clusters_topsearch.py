"""TopSearch on a Lennard-Jones cluster, run by a Python that has it: see `clusters`.

Prints how many minima, transition states and gradients. It imports nothing of this library.
"""

import sys

import numpy as np


def main(atoms: int, num_hops: int = 100) -> None:
    from topsearch.data.coordinates import AtomicCoordinates
    from topsearch.data.kinetic_transition_network import KineticTransitionNetwork
    from topsearch.global_optimisation.basin_hopping import BasinHopping
    from topsearch.global_optimisation.perturbations import AtomicPerturbation
    from topsearch.potentials.atomic import LennardJones
    from topsearch.sampling.exploration import NetworkSampling
    from topsearch.similarity.molecular_similarity import MolecularSimilarity
    from topsearch.transition_states.hybrid_eigenvector_following import (
        HybridEigenvectorFollowing,
    )
    from topsearch.transition_states.nudged_elastic_band import NudgedElasticBand

    count = [0]

    class Counted(LennardJones):
        def gradient(self, position):  # type: ignore[no-untyped-def]
            count[0] += 1
            return super().gradient(position)

        def function_gradient(self, position):  # type: ignore[no-untyped-def]
            before = count[0]
            both = super().function_gradient(position)
            count[0] = before + 1
            return both

    np.random.seed(0)
    start = np.random.normal(size=3 * atoms) * 0.56 * atoms ** (1 / 3)
    coords = AtomicCoordinates(["C"] * atoms, start)
    same = MolecularSimilarity(0.1, 5e-4, allow_inversion=True)
    network, potential = KineticTransitionNetwork(), Counted()
    hopping = BasinHopping(network, potential, same, AtomicPerturbation(1.0, atoms - 1))
    single = HybridEigenvectorFollowing(potential, 1e-5, 150, 0.1)
    double = NudgedElasticBand(potential, 10.0, 10.0, 20, 1e-2)
    sampling = NetworkSampling(network, coords, hopping, single, double, same)
    sampling.get_minima(coords, num_hops, 1e-6, 1.0, test_valid=False)
    sampling.get_transition_states("ClosestEnumeration", 4)
    print(network.n_minima, network.n_ts, count[0])


if __name__ == "__main__":
    main(int(sys.argv[1]))
