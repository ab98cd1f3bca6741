r"""Zero-shot coordination (the paper's Algorithm 3): a policy that fits a stranger's.

Strangers agree on the method beforehand and on nothing else. Each runs Ridge Rider on its own, from
a saddle that all symmetries of the game leave in place. A *fingerprint*, the indices of the ridges
ridden, then names the same policy for everybody as long as each index names the same ridge; where
symmetries repeat an eigenvalue it does not, and the runs end at equivalent but incompatible
policies. So many independent runs are simulated, and the fingerprint whose policies play best with
each other is deployed.

For each run:

1. start near `game.start` and find the saddle, by low gradient and high entropy;
2. ride the ridges of each fingerprint, both ways, with a random basis inside every eigenspace: the
   solver's own is the same in all runs, and perfect cross-play by that accident;
3. of the ways to ride a fingerprint take the one with the best self-play. Ways that score the same
   are images of each other under a symmetry, and the run's own key decides;
4. only then polish, by descent from the end of the ride: a polished wrong way may score better.
"""

from ridgerider.coordination._coordinate import RIDER as RIDER
from ridgerider.coordination._coordinate import Candidate as Candidate
from ridgerider.coordination._coordinate import Coordination as Coordination
from ridgerider.coordination._coordinate import coordinate as coordinate
from ridgerider.coordination._equilibria import Equilibrium as Equilibrium
from ridgerider.coordination._equilibria import equilibria as equilibria
from ridgerider.coordination._game import Baseline as Baseline
from ridgerider.coordination._game import Game as Game
from ridgerider.coordination._game import other_play as other_play
from ridgerider.coordination._game import play_alone as play_alone
from ridgerider.coordination._payoff_game import PayoffGame as PayoffGame
from ridgerider.coordination._payoff_game import card_game as card_game
from ridgerider.coordination._payoff_game import hanabi as hanabi
from ridgerider.coordination._payoff_game import signalling as signalling
from ridgerider.coordination._symmetry import SymmetryGroup as SymmetryGroup
from ridgerider.coordination._symmetry import SymmetryReport as SymmetryReport
from ridgerider.coordination._symmetry import symmetry_report as symmetry_report
