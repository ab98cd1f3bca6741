r"""Ridges that several environments share, for out-of-distribution generalisation.

The paper asks for a direction e and an eigenvalue with

    H_i e = eigenvalue * e,  eigenvalue < 0,  for the Hessian H_i of every environment i.

Such a pair rarely exists, so the parameters are split into a featurizer and a ridden part, and

- `ride_common`, the paper's Algorithm 4, trains the featurizer until there is one;
- `consistent_ridge` takes the features as they are and finds the steepest direction along which all
  environments curve alike; `Agree` follows it, `consistency` scores any directions, and
  `shared_features` projects out what environments disagree on.

`fit` goes from a table with a group column to a classifier and a verdict in one call.
"""

from ridgerider.environments._algorithm_4 import Algorithm4 as Algorithm4
from ridgerider.environments._algorithm_4 import CommonRide as CommonRide
from ridgerider.environments._algorithm_4 import RidgeLosses as RidgeLosses
from ridgerider.environments._algorithm_4 import ride_common as ride_common
from ridgerider.environments._consistent_ridge import Agree as Agree
from ridgerider.environments._consistent_ridge import ConsistentRidge as ConsistentRidge
from ridgerider.environments._consistent_ridge import consistent_ridge as consistent_ridge
from ridgerider.environments._environments import Environments as Environments
from ridgerider.environments._environments import from_groups as from_groups
from ridgerider.environments._fit import Invariant as Invariant
from ridgerider.environments._fit import fit as fit
from ridgerider.environments._scores import Consistency as Consistency
from ridgerider.environments._scores import SharedFeatures as SharedFeatures
from ridgerider.environments._scores import agreement as agreement
from ridgerider.environments._scores import consistency as consistency
from ridgerider.environments._scores import extrapolate as extrapolate
from ridgerider.environments._scores import shared_features as shared_features
