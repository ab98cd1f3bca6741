"""Ready problems with known answers, and how a problem is found by name."""

from ridgerider._search.runfile.rules_json import BUILT_IN as BUILT_IN
from ridgerider._search.runfile.rules_json import load_problem as load_problem
from ridgerider.problems.classifier import Classifier as Classifier
from ridgerider.problems.classifier import classifier as classifier
from ridgerider.problems.classifier import digits_classifier as digits_classifier
from ridgerider.problems.colored import ColoredImages as ColoredImages
from ridgerider.problems.colored import colored_digits as colored_digits
from ridgerider.problems.colored import colored_mnist as colored_mnist
from ridgerider.problems.landscapes import himmelblau as himmelblau
from ridgerider.problems.landscapes import is_one_cluster as is_one_cluster
from ridgerider.problems.landscapes import lennard_jones as lennard_jones
from ridgerider.problems.landscapes import mueller_brown as mueller_brown
from ridgerider.problems.landscapes import rastrigin as rastrigin
from ridgerider.problems.landscapes import six_hump_camel as six_hump_camel
from ridgerider.problems.levers import Levers as Levers
from ridgerider.problems.levers import levers as levers
from ridgerider.problems.surface import surface as surface
from ridgerider.problems.tree import tree as tree
from ridgerider.problems.wells import wells as wells
