"""Figures of a map: which minima join at which height, the network, a way, and the plane itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ridgerider.plot._figures import MINIMUM, SADDLE, Plane, _axes, shades

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ridgerider._search.results.landscape import Landscape

LINE = "#444444"


def disconnectivity(landscape: Landscape, ax: Axes | None = None) -> Axes:
    """The disconnectivity graph: a leaf for each minimum, joined where a way first leads over.

    A line ends below at the loss of its minimum; lines join at the loss of the lowest highest
    saddle between their minima. Minima that no path joins have separate lines.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import mueller_brown
    >>> ax = rr.plot.disconnectivity(rr.explore(mueller_brown()))
    >>> ax.get_ylabel(), len(ax.lines)
    ('loss', 5)
    """
    ax = _axes(ax)
    places = tree_places(landscape)
    losses = [one.loss for one in landscape.minima()]
    junctions = landscape.junctions()
    heights = losses + [one.loss for one in junctions]
    joined = set()
    for number, one in enumerate(junctions):
        top, column = one.loss, places[len(losses) + number]
        for part in one.parts:
            joined.add(part)
            # Straight up, then to the junction: lines that join high do not cross others.
            x, y = places[part], heights[part]
            bend = y + 0.85 * (top - y)
            ax.plot([x, x, column], [y, bend, top], color=LINE, lw=1.0)
    highest = max(heights)
    step = 0.08 * ((highest - min(heights)) or 1.0)
    for number in range(len(heights)):
        if number not in joined:
            x = places[number]
            ax.plot([x, x], [heights[number], highest + step], color=LINE, lw=1.0)
    ax.scatter([places[i] for i in range(len(losses))], losses, s=14, color=MINIMUM, zorder=3)
    ax.set(xticks=[], ylabel="loss")
    ax.spines[["top", "right", "bottom"]].set_visible(False)
    return ax


def tree_places(landscape: Landscape) -> list[float]:
    """Where leaves and junctions lie from left to right: lower branches in the middle."""
    losses = [one.loss for one in landscape.minima()]
    junctions = landscape.junctions()
    count = len(losses)
    lowest = list(losses)
    members: list[list[int]] = [[number] for number in range(count)]
    for one in junctions:
        a, b = sorted(one.parts, key=lambda part: lowest[part])
        # The lower part stays in the middle: the other goes to the shorter side.
        middle = members[a]
        first = middle.index(min(middle, key=losses.__getitem__))
        is_left = first <= len(middle) / 2
        members.append(members[b] + middle if is_left else middle + members[b])
        lowest.append(min(lowest[a], lowest[b]))
    inner = {part for one in junctions for part in one.parts}
    roots = [number for number in range(len(members)) if number not in inner]
    order = [leaf for root in roots for leaf in members[root]]
    places = [0.0] * len(members)
    for place, leaf in enumerate(order):
        places[leaf] = float(place)
    for number, one in enumerate(junctions):
        places[count + number] = sum(places[part] for part in one.parts) / 2
    return places


def plane(landscape: Landscape, ax: Axes | None = None) -> Axes:
    """A loss of two parameters with all its stationary points, and lines over the passes.

    What is more than a little higher than the highest saddle is drawn like that.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import mueller_brown
    >>> ax = rr.plot.plane(rr.explore(mueller_brown()))
    >>> len(ax.lines)
    4
    """
    problem = landscape.problem
    if problem is None or problem.size != 2:
        size = "none" if problem is None else problem.size
        raise ValueError(f"a plane needs a map with its problem, of 2 parameters, not {size}.")
    ax = _axes(ax)
    minima, saddles = landscape.minima(), landscape.saddles()
    places = [np.asarray(problem.ravel(one.params)) for one in minima]
    passes = [np.asarray(problem.ravel(one.params)) for one in saddles]
    both = np.array([*places, *passes])
    low, high = both.min(axis=0), both.max(axis=0)
    margin = 0.25 * np.maximum(high - low, 0.5)
    xs, ys = (np.linspace(*ends, 161) for ends in zip(low - margin, high + margin, strict=True))
    values = Plane(np.zeros(2), *np.eye(2)).loss(problem, xs, ys)
    losses = [one.loss for one in (*minima, *saddles)]
    shades(ax, xs, ys, values, top=max(losses) + 0.3 * (max(losses) - min(losses)))
    for edge in landscape.edges():
        for end in edge.minima:
            if end is not None:
                ax.plot(*np.array([passes[edge.saddle], places[end]]).T, color="0.2", lw=1.2)
    for points, color, marker in ((places, MINIMUM, "o"), (passes, SADDLE, "^")):
        if points:
            x, y = np.array(points).T
            ax.scatter(x, y, color=color, marker=marker, s=24, zorder=3)
    return ax
