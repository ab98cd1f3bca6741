"""TopSearch on a Lennard-Jones cluster, run by a Python that has it: see `clusters`.

    python clusters_topsearch.py "[0.1, 0.2, ...]"

from the atoms' coordinates. Prints what it found as JSON. It imports nothing of this library.
"""

import json
import random
import sys

import numpy as np


def main(start: list[float], num_hops: int = 50) -> None:
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

    count, atoms = [0], len(start) // 3

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
    random.seed(0)
    coords = AtomicCoordinates(["C"] * atoms, np.array(start))
    same = MolecularSimilarity(0.1, 5e-4, allow_inversion=True)
    network, potential = KineticTransitionNetwork(), Counted()
    moves = AtomicPerturbation(0.8, atoms - 1)  # by 0.4 to either side, as SciPy's hops
    hopping = BasinHopping(network, potential, same, moves)
    single = HybridEigenvectorFollowing(potential, 1e-5, 150, 0.1)
    double = NudgedElasticBand(potential, 10.0, 10.0, 20, 1e-2)
    sampling = NetworkSampling(network, coords, hopping, single, double, same)
    sampling.get_minima(coords, num_hops, 1e-6, 0.8, test_valid=False)
    print(network.n_minima, "minima after", count[0], "gradients", file=sys.stderr)
    sampling.get_transition_states("ClosestEnumeration", 4)
    minima = [network.get_minimum_coords(number).tolist() for number in range(network.n_minima)]
    saddles = [network.G.edges[edge]["coords"].tolist() for edge in network.G.edges]
    print(json.dumps({"minima": minima, "saddles": saddles, "gradients": count[0]}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
