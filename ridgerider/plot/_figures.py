"""Figures of a search.

The plane of two rides: through the point where their ways part and the ends of both.

    x(a, b) = origin + a first + b second,    first, second orthonormal

Where the ends lie on one line with that point, as for the two ways along one ridge, another ridge
of the point takes the place of the second. Paths leave the plane: a projected path is seen from
above, and the loss below it is that of the plane and not its own.

Figures of a map: which minima join at which height, and the plane itself.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ridgerider._check import Several, came, checked, needs
from ridgerider._core.problem.problem import Problem
from ridgerider._core.runtime.compile import compiled
from ridgerider._search.results.landscape import Landscape
from ridgerider._search.results.result import Result
from ridgerider._search.same import IS_SOLUTION
from ridgerider._search.tree import Fingerprint, Leg, Turn

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Plane:
    """A plane in parameter space.

    >>> plane = Plane(np.zeros(3), np.array([1.0, 0.0, 0.0]), np.array([0.0, 0.0, 1.0]))
    >>> plane.project(np.array([[1.0, 2.0, 3.0]])).tolist()
    [[1.0, 3.0]]
    """

    origin: np.ndarray
    first: np.ndarray
    second: np.ndarray

    def project(self, points: np.ndarray) -> Float[np.ndarray, "points 2"]:
        return (np.atleast_2d(points) - self.origin) @ np.stack([self.first, self.second], axis=1)

    def loss(
        self, problem: Problem, a: Float[np.ndarray, " columns"], b: Float[np.ndarray, " rows"]
    ) -> Float[np.ndarray, "rows columns"]:
        """The loss where the coordinates are `a` and `b`, a row for each `b`.

        >>> problem = Problem(lambda x: x[0] + 10 * x[1], jnp.zeros(2))
        >>> plane = Plane(np.zeros(2), np.array([1.0, 0.0]), np.array([0.0, 1.0]))
        >>> plane.loss(problem, np.array([0.0, 1.0]), np.array([0.0, 1.0, 2.0])).tolist()
        [[0.0, 1.0], [10.0, 11.0], [20.0, 21.0]]
        """
        rows = (self.origin + value * self.second + a[:, None] * self.first for value in b)
        run = compiled(_losses)
        return np.stack([np.asarray(run(problem, jnp.asarray(row, problem.dtype))) for row in rows])


def _losses(problem: Problem, points: Array) -> Array:
    return jax.lax.map(problem.value, points)


def ridden(result: Result, name: str | Fingerprint) -> list[Leg]:
    """The legs on the way to a ride and itself, with every point if there is a way to know them."""
    name = result.leg(name).fingerprint
    if not name:
        raise ValueError("the start is not a ride: name two rides such as 0+ and 1+.")
    way = [result.leg(Fingerprint(name[: depth + 1])) for depth in range(len(name))]
    if all("path" in one.trace for one in way) or not result.can_replay:
        return way
    again = result.replay(name)
    return [replace(one, trace=new.trace) for one, new in zip(way, again, strict=True)]


def plane_of(result: Result, one: Leg, two: Leg) -> Plane:
    """The plane of two rides."""
    pairs = zip(one.fingerprint.parent, two.fingerprint.parent, strict=False)
    fork = result.leg(Fingerprint(t for t, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
    first = one.x - fork.x
    length = float(np.linalg.norm(first))
    for other in (two.x - fork.x, *fork.directions):
        rest = other - first * (other @ first) / max(length**2, 1e-300)
        # Of a line only rounding is left.
        if length > 0 and np.linalg.norm(rest) > 1e-3 * np.linalg.norm(other) > 0:
            return Plane(fork.x, first / length, rest / np.linalg.norm(rest))
    raise ValueError(
        f"the rides {one.fingerprint} and {two.fingerprint} span no plane: choose two others."
    )


COLORS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9")
MINIMUM, SADDLE, OTHER, FAINT = "#D55E00", "#0072B2", "#666666", "#9AA3AD"
MARKERS = {
    "minimum": ("o", MINIMUM),
    "at infinity": ("v", MINIMUM),
    "saddle": ("^", SADDLE),
    "unverified": ("D", OTHER),
    "unconverged": ("s", OTHER),
}
MAX_PATHS = 60  # of other rides
RIDE = ("loss", "eigenvalue", "overlap", "residual", "step_size")


@checked
def tree(result: Result, ax: "Axes | None" = None) -> "Axes":
    """The tree of rides: height is loss, colour the eigenvalue of a ride, dots are minima.

    Both ways along a ridge lie mirrored, so that a symmetric loss makes a symmetric tree. Dotted
    lines are descents: all that reached a minimum, and all others from where no ride leads on.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> ax = rr.plot.tree(rr.search(wells(2), rr.Rider(finish=None, keep_path=True)))
    >>> ax.get_ylabel(), len(ax.collections[0].get_segments())  # a line for each ride
    ('loss', 12)
    """
    ax = _axes(ax)
    from matplotlib.collections import LineCollection

    legs = {leg.fingerprint: leg for leg in (result.leg(""), *result)}
    places = {name: np.array([x, legs[name].loss]) for name, x in tree_columns(legs).items()}
    rides = [leg for leg in legs.values() if leg.fingerprint]
    eigenvalues = np.array([leg.trace["eigenvalue"][0] if leg.trace else np.nan for leg in rides])
    t = np.linspace(0, 1, 24)[:, None]
    bend = np.hstack([np.sqrt(t**2 * (3 - 2 * t)), t])
    begins = [places[leg.fingerprint.parent] for leg in rides]
    lines = LineCollection(
        [a + (places[b.fingerprint] - a) * bend for a, b in zip(begins, rides, strict=True)],
        array=eigenvalues,
        clim=(float(np.nanmin(eigenvalues, initial=-1e-9)), 0),
        linewidths=float(np.clip(40 / max(len(rides), 1), 0.6, 2.2)),
        zorder=2,
    )
    ax.add_collection(lines)
    if ax.figure is not None:
        ax.figure.colorbar(lines, ax=ax, label="eigenvalue where the ride begins")
    inner = {leg.fingerprint.parent for leg in rides}
    ends = defaultdict[str, list[tuple[float, float]]](list)
    for leg in rides:
        (x, loss), end = places[leg.fingerprint], leg.finish
        if end is not None and (leg.fingerprint not in inner or end.kind in IS_SOLUTION):
            ax.plot([x, x], [loss, float(end.loss)], ":", color=FAINT, linewidth=0.9, zorder=1)
            ends[end.kind].append((x, float(end.loss)))
        if len(rides) <= 16:
            style: Any = {"textcoords": "offset points", "xytext": (4, 3), "fontsize": 7}
            ax.annotate(str(leg.fingerprint[-1]), (x, loss), **style)
    for kind, points in ends.items():
        marker, color = MARKERS[kind]
        size = float(np.clip(160 / len(points), 2.5, 6))
        ax.plot(*np.array(points).T, marker, color=color, markersize=size, label=kind, zorder=3)
    if len(ends) > 1:
        ax.legend(frameon=False, fontsize=8)
    ax.plot(*places[Fingerprint()], "o", color="gray", fillstyle="none", zorder=4)
    ax.set(ylabel="loss", xticks=[])
    ax.spines[["top", "right", "bottom"]].set_visible(False)
    ax.autoscale_view()
    return ax


@checked
def ride(leg: Leg, axes: Sequence[Any] | None = None) -> Sequence[Any]:
    """One ride, step by step: loss, eigenvalue with its neighbours, overlap, residual, step size.

    `axes` are five.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> leg = rr.search(wells(2), rr.Rider(finish=None, keep_path=True), max_rides=1).leg("0+")
    >>> axes = rr.plot.ride(leg)
    >>> [ax.get_ylabel() for ax in axes]
    ['loss', 'eigenvalue', 'overlap', 'residual', 'step size']
    """
    if not leg.trace:
        what = "failed" if leg.fingerprint else "is the start"
        raise ValueError(f"`leg` must be a ride with steps, but this one {what}.")
    if axes is None:
        axes = _figure(6, 7.5).subplots(len(RIDE), sharex=True)
    if len(axes) != len(RIDE) or not all(hasattr(ax, "set_ylabel") for ax in axes):
        raise ValueError(
            f"`axes` must be {len(RIDE)}, one for each of {', '.join(RIDE)}, not {len(axes)}."
        )
    steps = np.arange(leg.num_steps + 1)
    for name, ax in zip(RIDE, axes, strict=True):
        ax.plot(steps, leg.trace[name], color=COLORS[1] if name == "loss" else COLORS[0])
        ax.set_ylabel(name.replace("_", " "))
        ax.spines[["top", "right"]].set_visible(False)
        if name in ("residual", "step_size") and np.any(leg.trace[name] > 0):
            ax.set_yscale("log", nonpositive="mask")
    if "neighbours" in leg.trace:
        near = leg.trace["neighbours"]
        axes[1].plot(steps, near, ".", color=FAINT, markersize=3, zorder=1)
    axes[1].axhline(0, color=FAINT, linewidth=0.8, linestyle="--")
    axes[2].axhline(0.7072, color=FAINT, linewidth=0.8, linestyle="--")
    axes[0].set_title(f"ride {leg.fingerprint}, ended by {', '.join(leg.ended_by)}", fontsize=10)
    axes[-1].set_xlabel("step")
    return axes


@checked
def spectrum(leg: Leg, ax: "Axes | None" = None) -> "Axes":
    """The eigenvalues where a leg ends: a stem for each cluster, as high as it is repeated.

    Those that lead downhill are marked by triangles.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import levers
    >>> start = rr.search(levers(), rr.Rider(finish=None), max_rides=0).leg("")
    >>> ax = rr.plot.spectrum(start)
    >>> ax.get_xlabel(), [text.get_text() for text in ax.texts]
    ('eigenvalue', ['x6', 'x2', 'x6'])
    """
    ax = _axes(ax)
    for number, cluster in enumerate(leg.clusters):
        marker, color = ("v", MINIMUM) if number < leg.num_ridges else ("o", SADDLE)
        height = cluster.multiplicity
        ax.plot([cluster.eigenvalue] * 2, [0, height], color=color, linewidth=1.6)
        ax.plot(cluster.eigenvalue, height, marker, color=color, markersize=5)
        if height > 1:
            where = {"xytext": (0, 5), "textcoords": "offset points", "ha": "center"}
            ax.annotate(f"x{height}", (cluster.eigenvalue, height), fontsize=8, **where)  # type: ignore[arg-type]
    ax.axvline(0, color=FAINT, linewidth=0.8, linestyle="--")
    ax.set(xlabel="eigenvalue", ylabel="multiplicity", ylim=(0, None))
    ax.locator_params(axis="y", integer=True, min_n_ticks=1)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


@checked
def landscape(
    result: Result,
    rides: tuple[str | Fingerprint, str | Fingerprint] = ("0+", "1+"),
    ax: "Axes | None" = None,
    *,
    num_points: Several = 61,
) -> "Axes":
    """The loss in the plane of two rides, with the tree projected into it; darker is lower.

    The run must have been loaded with its problem. Both rides are drawn step by step, and all
    others too if the rider kept their paths. Dotted lines lead to where descents ended.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> result = rr.search(wells(2), rr.Rider(finish=None, keep_path=True), max_rides=4)
    >>> ax = rr.plot.landscape(result, ("0+", "1+"), num_points=9)
    >>> ax.get_xlabel(), len(ax.lines)
    ('along ride 0+', 4)
    """
    if result.problem is None:
        raise ValueError(
            "to draw a landscape, load the run with its `problem`: rr.load(path, problem)."
        )
    if len(rides) != 2:
        raise ValueError(f"`rides` must be two fingerprints, not {rides!r}.")
    ways = [ridden(result, name) for name in rides]
    plane = plane_of(result, ways[0][-1], ways[1][-1])
    own = {leg.fingerprint: (leg, number) for number, way in enumerate(ways) for leg in way}
    others = [name for name in result.fingerprints() if name not in own][:MAX_PATHS]
    legs = [(result.leg(name), None) for name in others] + list(own.values())
    lines = []
    for leg, _ in legs:  # a straight line where no path is stored
        path = leg.trace.get("path", np.stack([result.leg(leg.fingerprint.parent).x, leg.x]))
        end = leg.x if leg.finish is None else np.asarray(leg.finish.x)
        lines.append((plane.project(path), plane.project(np.stack([leg.x, end]))))
    near = np.concatenate([part for line in lines[len(others) :] for part in line])
    low, high = near.min(axis=0), near.max(axis=0)
    margin = 0.3 * np.maximum(high - low, 0.5 * (high - low).max())
    a, b = (np.linspace(low[i] - margin[i], high[i] + margin[i], num_points) for i in (0, 1))
    ax = shades(_axes(ax), a, b, plane.loss(result.problem, a, b))
    for (leg, number), (path, descent) in zip(legs, lines, strict=True):
        color, width = ("#F5F5F5", 1.1) if number is None else (COLORS[1 + 2 * number], 2.4)
        ax.plot(*path.T, color=color, linewidth=width, zorder=2)
        if leg.finish is not None:
            ax.plot(*descent.T, ":", color=color, linewidth=width, zorder=2)
            marker = MARKERS[leg.finish.kind][0]
            ax.plot(*descent[-1], marker, color=color, markeredgecolor="black", zorder=3)
    ax.set(
        xlabel=f"along ride {ways[0][-1].fingerprint}",
        ylabel=f"across it, towards ride {ways[1][-1].fingerprint}",
        xlim=(a[0], a[-1]),
        ylim=(b[0], b[-1]),
    )
    return ax


@checked
def shades(
    ax: "Axes", a: np.ndarray, b: np.ndarray, loss: np.ndarray, top: float | None = None
) -> "Axes":
    """A loss on a grid as grey shades with contours, darker is lower.

    Its rows belong to `b`, its columns to `a`. What is above `top` is as bright as it; default: the
    highest tenth.

    >>> from matplotlib.figure import Figure
    >>> ax, side = Figure().subplots(), np.linspace(-1, 1, 5)
    >>> shades(ax, side, side, side[:, None] ** 2 + side**2) is ax
    True
    """
    top = float(np.nanquantile(loss, 0.9)) if top is None else top
    low = float(np.nanmin(loss))
    # What lies far above the rest would take all shades: the root of the height leaves most of
    # them, and of the contours, to the valleys.
    height = np.sqrt(np.clip((loss - low) / max(top - low, 1e-300), 0, 1))
    ax.pcolormesh(
        a, b, height, cmap="Greys_r", shading="gouraud", rasterized=True, vmin=-0.5, vmax=1.05
    )
    if top > low:
        levels = np.linspace(0, 1, 16)[1:-1]
        ax.contour(a, b, height, levels=levels, colors="white", linewidths=0.5)
    return ax


# --- inside


def _axes(ax: "Axes | None") -> "Axes":
    if ax is not None and not hasattr(ax, "set_xlabel"):
        raise ValueError(f"`ax` must be Axes of Matplotlib or None, not {came(ax)}.")
    return _figure(6.4, 4.4).subplots() if ax is None else ax


def _figure(width: float, height: float) -> "Figure":
    with needs("plot", "a figure"):
        from matplotlib.figure import Figure
    return Figure(figsize=(width, height), layout="constrained")


def tree_columns(names: Iterable[Fingerprint]) -> dict[Fingerprint, float]:
    """The place of each leg across a tree: leaves side by side, others above their rides.

    >>> names = [Fingerprint.parse(text) for text in ("", "0+", "0-")]
    >>> [tree_columns(names)[name] for name in names]
    [0.5, 0.0, 1.0]
    """

    def rank(turn: Turn) -> tuple[int, ...]:  # forwards by rank, then backwards the other way
        place = turn.sign * turn.index, turn.sign * turn.member
        return int(turn.sign < 0), *place, int(turn.below), int(turn.up)

    order = sorted(names, key=lambda name: list(map(rank, name)))  # each before those behind it
    children = defaultdict[Fingerprint, list[Fingerprint]](list)
    for name in filter(None, order):
        children[name.parent].append(name)
    leaves = [name for name in order if name not in children]
    places = {name: float(place) for place, name in enumerate(leaves)}
    for name in reversed(order):
        if name in children:
            places[name] = (places[children[name][0]] + places[children[name][-1]]) / 2
    return places


@checked
def disconnectivity(landscape: Landscape, ax: "Axes | None" = None) -> "Axes":
    """The disconnectivity graph: a leaf for each minimum, joined where a way first leads over.

    A line ends below at the loss of its minimum; lines join at the loss of the lowest highest
    saddle between their minima. Minima that no path joins have separate lines.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import mueller_brown
    >>> ax = rr.plot.disconnectivity(rr.explore(mueller_brown()))
    >>> ax.get_ylabel(), len(ax.lines)
    ('loss', 5)
    """
    ax, places = _axes(ax), tree_places(landscape)
    losses, junctions = [one.loss for one in landscape.minima()], landscape.junctions()
    heights = losses + [one.loss for one in junctions]
    step = 0.08 * ((max(heights) - min(heights)) or 1.0)
    joins = zip(junctions, places[len(losses) :], strict=True)
    above = {part: (column, one.loss) for one, column in joins for part in one.parts}
    for number, (x, y) in enumerate(zip(places, heights, strict=True)):
        # Straight up, then to the junction: lines that join high do not cross others.
        column, top = above.get(number, (x, max(heights) + step))
        ax.plot([x, x, column], [y, y + 0.85 * (top - y), top], color="gray", lw=1.0)
    ax.scatter(places[: len(losses)], losses, s=14, color=MINIMUM, zorder=3)
    about = landscape.meta["problem"]["about"]
    ax.set(xticks=[], ylabel=f"{about['quantity']} ({about['unit']})" if about else "loss")
    ax.spines[["top", "right", "bottom"]].set_visible(False)
    return ax


def tree_places(landscape: Landscape) -> list[float]:
    """Where leaves and junctions lie from left to right: lower branches in the middle."""
    losses, junctions = [one.loss for one in landscape.minima()], landscape.junctions()
    parts, inner = [[number] for number in range(len(losses))], set[int]()
    for one in junctions:
        inner |= set(one.parts)
        # The lower part stays in the middle: the other goes to the shorter side.
        lower, other = sorted(
            (parts[part] for part in one.parts), key=lambda part: min(losses[leaf] for leaf in part)
        )
        is_left = lower.index(min(lower, key=losses.__getitem__)) <= len(lower) / 2
        parts.append(other + lower if is_left else lower + other)
    order = [leaf for n, part in enumerate(parts) if n not in inner for leaf in part]
    places = list(map(float, np.argsort(order)))
    for one in junctions:
        places.append(sum(places[part] for part in one.parts) / 2)
    return places


@checked
def plane(landscape: Landscape, ax: "Axes | None" = None) -> "Axes":
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
    places, passes = (
        np.array([problem.ravel(one.params) for one in some]).reshape(-1, 2)
        for some in (minima, saddles)
    )
    both = np.concatenate([places, passes])
    low, high = both.min(axis=0), both.max(axis=0)
    margin = 0.25 * np.maximum(high - low, 0.5)
    xs, ys = (np.linspace(*ends, 161) for ends in zip(low - margin, high + margin, strict=True))
    losses = [one.loss for one in (*minima, *saddles)]
    top = max(losses) + 0.3 * (max(losses) - min(losses))
    shades(ax, xs, ys, Plane(np.zeros(2), *np.eye(2)).loss(problem, xs, ys), top=top)
    for edge in landscape.edges():
        for end in edge.minima:
            if end is not None:
                ax.plot(*np.stack([passes[edge.saddle], places[end]]).T, color="0.2", lw=1.2)
    for points, color, marker in ((places, MINIMUM, "o"), (passes, SADDLE, "^")):
        ax.scatter(points[:, 0], points[:, 1], color=color, marker=marker, s=24, zorder=3)
    return ax
