"""Figures of a search with Matplotlib: axes in, axes out.

Each function draws into the `ax` it is given, or into a new figure's, and returns it; save it with
`ax.figure.savefig(...)`. Colours are distinguishable with any colour vision.
"""

from ridgerider.plot._figures import COLORS as COLORS
from ridgerider.plot._figures import disconnectivity as disconnectivity
from ridgerider.plot._figures import landscape as landscape
from ridgerider.plot._figures import plane as plane
from ridgerider.plot._figures import ride as ride
from ridgerider.plot._figures import shades as shades
from ridgerider.plot._figures import spectrum as spectrum
from ridgerider.plot._figures import tree as tree
