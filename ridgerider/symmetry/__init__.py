"""Symmetries that are ready to use, for `explore(symmetry=...)` and `search(symmetry=...)`.

A user's own is a `Symmetry`: generators, a signature, or both.
"""

from ridgerider._core.points.symmetry import PeriodCopy as PeriodCopy
from ridgerider._core.points.symmetry import PeriodSignature as PeriodSignature
from ridgerider._core.points.symmetry import Symmetry as Symmetry
from ridgerider._core.points.symmetry import periodic as periodic
from ridgerider.symmetry._points import Motions as Motions
from ridgerider.symmetry._points import PointCopy as PointCopy
from ridgerider.symmetry._points import PointSignature as PointSignature
from ridgerider.symmetry._points import RigidCopy as RigidCopy
from ridgerider.symmetry._points import RigidSignature as RigidSignature
from ridgerider.symmetry._points import UnitSignature as UnitSignature
from ridgerider.symmetry._points import point_set as point_set
from ridgerider.symmetry._points import rigid as rigid
from ridgerider.symmetry._points import units as units
