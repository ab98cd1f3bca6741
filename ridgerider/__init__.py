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
from ridgerider import symmetry as symmetry
from ridgerider import workers as workers
from ridgerider._core.descend.finish import Descend as Descend
from ridgerider._core.descend.finish import Finish as Finish
from ridgerider._core.descend.relax import Relax as Relax
from ridgerider._core.descend.train import Epoch as Epoch
from ridgerider._core.descend.train import Train as Train
from ridgerider._core.points.climb import Climb as Climb
from ridgerider._core.points.find_saddle import Saddle as Saddle
from ridgerider._core.points.find_saddle import find_saddle as find_saddle
from ridgerider._core.points.network import Network as Network
from ridgerider._core.points.network import NetworkStart as NetworkStart
from ridgerider._core.points.network import network_start as network_start
from ridgerider._core.points.symmetry import Symmetry as Symmetry
from ridgerider._core.problem.batches import Batches as Batches
from ridgerider._core.problem.batches import FixedRows as FixedRows
from ridgerider._core.problem.cost import Cost as Cost
from ridgerider._core.problem.problem import Problem as Problem
from ridgerider._core.ride.audit import Audit as Audit
from ridgerider._core.ride.certificate import Certificate as Certificate
from ridgerider._core.ride.correct import Valley as Valley
from ridgerider._core.ride.davidson import Davidson as Davidson
from ridgerider._core.ride.follow import Follow as Follow
from ridgerider._core.ride.residual import Residual as Residual
from ridgerider._core.ride.ride import Ride as Ride
from ridgerider._core.ride.ride import Trace as Trace
from ridgerider._core.ride.rider import Rider as Rider
from ridgerider._core.ride.step import Backtracking as Backtracking
from ridgerider._core.ride.step import FixedStep as FixedStep
from ridgerider._core.ride.step import Trial as Trial
from ridgerider._core.ride.stop import RidgeLost as RidgeLost
from ridgerider._core.ride.stop import Stalled as Stalled
from ridgerider._core.ride.stop import WithinNoise as WithinNoise
from ridgerider._core.ride.stop import curvature_gone as curvature_gone
from ridgerider._core.ride.stop import not_finite as not_finite
from ridgerider._core.ride.update import Keep as Keep
from ridgerider._core.ride.update import Project as Project
from ridgerider._core.ride.update import RandomRidge as RandomRidge
from ridgerider._core.ride.update import Tracked as Tracked
from ridgerider._core.runtime.compile import keep_compiled as keep_compiled
from ridgerider._core.spectra.block import BlockSpectrum as BlockSpectrum
from ridgerider._core.spectra.branches import Branching as Branching
from ridgerider._core.spectra.branches import Direction as Direction
from ridgerider._core.spectra.spectrum import Cluster as Cluster
from ridgerider._core.spectra.spectrum import DenseSpectrum as DenseSpectrum
from ridgerider._core.spectra.spectrum import Ridge as Ridge
from ridgerider._core.spectra.spectrum import Spectrum as Spectrum
from ridgerider._search.engine.explore import explore as explore
from ridgerider._search.engine.minimize import minimize_all as minimize_all
from ridgerider._search.engine.run import resume as resume
from ridgerider._search.engine.search import search as search
from ridgerider._search.results.landscape import Landscape as Landscape
from ridgerider._search.results.load import load as load
from ridgerider._search.results.measures import Measures as Measures
from ridgerider._search.results.measures import measure as measure
from ridgerider._search.results.progress import Bar as Bar
from ridgerider._search.results.progress import Progress as Progress
from ridgerider._search.results.result import Result as Result
from ridgerider._search.results.selection import Selection as Selection
from ridgerider._search.results.solutions import Solution as Solution
from ridgerider._search.tree.settings import Settings as Settings
from ridgerider._search.tree.tree import Branch as Branch
from ridgerider._search.tree.tree import Fingerprint as Fingerprint
from ridgerider._search.tree.tree import Leg as Leg
from ridgerider._search.tree.tree import Turn as Turn
from ridgerider.coordination import coordinate as coordinate
from ridgerider.ensembles import Ensemble as Ensemble
from ridgerider.ensembles import ensemble as ensemble
