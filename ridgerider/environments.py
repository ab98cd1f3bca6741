r"""Ridges that several environments share, for out-of-distribution generalisation.

The paper asks for a direction e and an eigenvalue with

    H_i e = eigenvalue * e,  eigenvalue < 0,  for the Hessian H_i of every environment i.

Such a pair rarely exists, so the parameters are split into a featurizer and a ridden part, and

- `ride_common`, the paper's Algorithm 4, trains the featurizer until there is one;
- `consistent_ridge` takes the features as they are and finds the steepest direction along which all
  environments curve alike; `Agree` follows it, `rank_ridges` ranks ordinary ridges by it, and
  `shared_features` projects out what environments disagree on.
"""

from ridgerider._common_ride import CommonRide as CommonRide
from ridgerider._common_ride import CommonRidge as CommonRidge
from ridgerider._common_ride import ride_common as ride_common
from ridgerider._common_ridge import RidgeLosses as RidgeLosses
from ridgerider._consistency import Consistency as Consistency
from ridgerider._consistency import RankedRidges as RankedRidges
from ridgerider._consistency import SharedFeatures as SharedFeatures
from ridgerider._consistency import consistency as consistency
from ridgerider._consistency import consistency_along as consistency_along
from ridgerider._consistency import rank_ridges as rank_ridges
from ridgerider._consistency import shared_features as shared_features
from ridgerider._consistent import Agree as Agree
from ridgerider._consistent import ConsistentRidge as ConsistentRidge
from ridgerider._consistent import consistent_ridge as consistent_ridge
from ridgerider._env_selection import RULES as RULES
from ridgerider._env_selection import Scores as Scores
from ridgerider._env_selection import Selection as Selection
from ridgerider._env_selection import extrapolate as extrapolate
from ridgerider._env_selection import select as select
from ridgerider._environments import Environments as Environments
from ridgerider._environments import from_groups as from_groups
