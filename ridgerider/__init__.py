"""Find different solutions of a differentiable problem by following its Hessian's eigenvectors.

>>> import jax.numpy as jnp
>>> import ridgerider as rr
>>> def loss(params, depths):
...     return jnp.sum(params["x"] ** 4 / 4 - depths * params["x"] ** 2 / 2)
>>> problem = rr.Problem(loss, {"x": jnp.zeros(2)}, jnp.array([1.0, 0.5]))
>>> result = rr.search(problem, rr.Rider(), max_rides=20)
>>> len(result.minima())
4
"""

from ridgerider import plot as plot
from ridgerider import report as report
from ridgerider import workers as workers
from ridgerider._audit import Audit as Audit
from ridgerider._batch import Batches as Batches
from ridgerider._block_spectrum import BlockSpectrum as BlockSpectrum
from ridgerider._block_spectrum import GradientKrylov as GradientKrylov
from ridgerider._block_spectrum import PowerSpectrum as PowerSpectrum
from ridgerider._correct import Valley as Valley
from ridgerider._davidson import Davidson as Davidson
from ridgerider._finish import Descend as Descend
from ridgerider._finish import Finish as Finish
from ridgerider._problem import Cost as Cost
from ridgerider._problem import Problem as Problem
from ridgerider._progress import Progress as Progress
from ridgerider._residual import Residual as Residual
from ridgerider._result import Result as Result
from ridgerider._result import Solution as Solution
from ridgerider._result import load as load
from ridgerider._ride import Ride as Ride
from ridgerider._ride import Trace as Trace
from ridgerider._ride_batch import ride_batch as ride_batch
from ridgerider._rider import Rider as Rider
from ridgerider._saddle import Saddle as Saddle
from ridgerider._saddle import find_saddle as find_saddle
from ridgerider._search import resume as resume
from ridgerider._search import search as search
from ridgerider._select import Selection as Selection
from ridgerider._spectrum import Cluster as Cluster
from ridgerider._spectrum import DenseSpectrum as DenseSpectrum
from ridgerider._spectrum import Ridge as Ridge
from ridgerider._spectrum import Spectrum as Spectrum
from ridgerider._step import Backtracking as Backtracking
from ridgerider._step import FixedStep as FixedStep
from ridgerider._step import Trial as Trial
from ridgerider._stop import RidgeLost as RidgeLost
from ridgerider._stop import Stalled as Stalled
from ridgerider._stop import curvature_gone as curvature_gone
from ridgerider._stop import not_finite as not_finite
from ridgerider._tree import Branch as Branch
from ridgerider._tree import Fingerprint as Fingerprint
from ridgerider._tree import Leg as Leg
from ridgerider._tree import RandomOrder as RandomOrder
from ridgerider._tree import Search as Search
from ridgerider._tree import Settings as Settings
from ridgerider._tree import Turn as Turn
from ridgerider._tree import best_first as best_first
from ridgerider._tree import breadth_first as breadth_first
from ridgerider._tree import depth_first as depth_first
from ridgerider._tree import steepest_first as steepest_first
from ridgerider._update import Keep as Keep
from ridgerider._update import Project as Project
from ridgerider._update import RandomRidge as RandomRidge
from ridgerider._update import Tracked as Tracked
from ridgerider.coordination import coordinate as coordinate
