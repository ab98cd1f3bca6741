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

import ast as _ast
from importlib import import_module as _import_module
from pathlib import Path as _Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ridgerider import environments as environments
    from ridgerider import plot as plot
    from ridgerider import report as report
    from ridgerider import symmetry as symmetry
    from ridgerider import types as types
    from ridgerider import workers as workers
    from ridgerider._core.descend.finish import Descend as Descend
    from ridgerider._core.descend.train import Relax as Relax
    from ridgerider._core.descend.train import Train as Train
    from ridgerider._core.points.climb import Climb as Climb
    from ridgerider._core.points.find_saddle import find_saddle as find_saddle
    from ridgerider._core.points.network import network_start as network_start
    from ridgerider._core.points.symmetry import Symmetry as Symmetry
    from ridgerider._core.problem.batches import Batches as Batches
    from ridgerider._core.problem.problem import Problem as Problem
    from ridgerider._core.ride.correct import Valley as Valley
    from ridgerider._core.ride.quasi_newton import QuasiNewton as QuasiNewton
    from ridgerider._core.ride.rider import Rider as Rider
    from ridgerider._core.ride.step import Backtracking as Backtracking
    from ridgerider._core.ride.step import FixedStep as FixedStep
    from ridgerider._core.ride.stop import RidgeLost as RidgeLost
    from ridgerider._core.ride.stop import Stalled as Stalled
    from ridgerider._core.ride.stop import curvature_gone as curvature_gone
    from ridgerider._core.ride.stop import not_finite as not_finite
    from ridgerider._core.ride.trust_region import Follow as Follow
    from ridgerider._core.ride.update import Davidson as Davidson
    from ridgerider._core.ride.update import Keep as Keep
    from ridgerider._core.ride.update import Project as Project
    from ridgerider._core.ride.update import RandomRidge as RandomRidge
    from ridgerider._core.ride.update import Residual as Residual
    from ridgerider._core.runtime.compile import keep_compiled as keep_compiled
    from ridgerider._core.spectra.block import BlockSpectrum as BlockSpectrum
    from ridgerider._core.spectra.spectrum import DenseSpectrum as DenseSpectrum
    from ridgerider._search.engine.connect import connect as connect
    from ridgerider._search.engine.explore import explore as explore
    from ridgerider._search.engine.minimize import minimize_all as minimize_all
    from ridgerider._search.engine.run import load as load
    from ridgerider._search.engine.run import resume as resume
    from ridgerider._search.engine.run import search as search
    from ridgerider._search.results.landscape import Landscape as Landscape
    from ridgerider._search.results.measures import Measures as Measures
    from ridgerider._search.results.measures import measure as measure
    from ridgerider._search.results.progress import Bar as Bar
    from ridgerider._search.results.result import Result as Result
    from ridgerider.coordination import coordinate as coordinate
    from ridgerider.ensembles import Ensemble as Ensemble
    from ridgerider.ensembles import ensemble as ensemble

# Each of these names is imported when it is first used.
_WHERE = {
    alias.name: node.module
    for node in _ast.walk(_ast.parse(_Path(__file__).read_text()))
    if isinstance(node, _ast.ImportFrom) and str(node.module).startswith("ridgerider")
    for alias in node.names
}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'ridgerider' has no attribute {name!r}")
    is_module = _WHERE[name] == __name__
    module = _import_module(f"{__name__}.{name}" if is_module else str(_WHERE[name]))
    globals()[name] = value = module if is_module else getattr(module, name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *_WHERE]
