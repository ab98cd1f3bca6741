"""The values that rules, movers and results are made of: for annotations and plug-ins of yours.

>>> from ridgerider.types import Cost
>>> int((Cost(hvps=2) + Cost(hvps=1)).hvps)
3
"""

from ridgerider._core.descend.finish import Epoch as Epoch
from ridgerider._core.descend.finish import Finish as Finish
from ridgerider._core.points.find_saddle import Saddle as Saddle
from ridgerider._core.points.network import Network as Network
from ridgerider._core.points.network import NetworkStart as NetworkStart
from ridgerider._core.points.symmetry import Symmetry as Symmetry
from ridgerider._core.problem.batches import FixedRows as FixedRows
from ridgerider._core.problem.cost import Cost as Cost
from ridgerider._core.ride.rider import Ride as Ride
from ridgerider._core.ride.rider import Trace as Trace
from ridgerider._core.ride.step import Trial as Trial
from ridgerider._core.ride.update import Certificate as Certificate
from ridgerider._core.ride.update import Tracked as Tracked
from ridgerider._core.spectra.branches import Branching as Branching
from ridgerider._core.spectra.branches import Direction as Direction
from ridgerider._core.spectra.spectrum import Cluster as Cluster
from ridgerider._core.spectra.spectrum import Ridge as Ridge
from ridgerider._core.spectra.spectrum import Spectrum as Spectrum
from ridgerider._search.engine.rides import Rides as Rides
from ridgerider._search.results.measures import Measures as Measures
from ridgerider._search.results.progress import Progress as Progress
from ridgerider._search.results.result import Solution as Solution
from ridgerider._search.tree import Branch as Branch
from ridgerider._search.tree import Fingerprint as Fingerprint
from ridgerider._search.tree import Frontier as Frontier
from ridgerider._search.tree import Leg as Leg
from ridgerider._search.tree import Settings as Settings
from ridgerider._search.tree import Turn as Turn
from ridgerider._search.tree import shuffled as shuffled
