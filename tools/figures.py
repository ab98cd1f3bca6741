"""The figures of the manual, each in a light and a dark version.

    python -m tools.figures [NAME ...]

A function draws the figure of its name from the examples of a page, so that both agree. The page
names `images/NAME.png`; in the dark theme it shows `images/NAME-dark.png`.
"""

import contextlib
import re
import runpy
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

import ridgerider as rr
from ridgerider.problems import rastrigin, surface, wells
from ridgerider_experiments import surface as experiment
from ridgerider_experiments.runner import Runner

DOCS = Path(__file__).parents[1] / "docs"
COLORS = ("#3B8FC7", "#E0661C", "#1FA67A", "#E69F00", "#CC79A7")  # 3:1 on white and on black
GALLERY = (
    "own_function",
    "own_network",
    "clusters",
    "landscape",
    "pytorch",
    "levers",
    "environments",
    "policies",
    "ensemble",
)
LOW, HIGH = {True: "#0A1622", False: "#9FA6AE"}, {True: "#4A525C", False: "#FFFFFF"}


def style(is_dark: bool) -> Any:
    ink, paper = ("#D0D4D8", "#131416") if is_dark else ("#222222", "#FFFFFF")
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    return {
        **dict.fromkeys(inked, ink),
        **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), paper),
        "axes.prop_cycle": cycler(color=COLORS),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10,
        "font.size": 9,
        "image.cmap": "cool" if is_dark else "viridis",
        "legend.frameon": False,
        "lines.markersize": 7,
    }


@cache
def example(page: str, count: int | None = None) -> Any:
    """What the first `count` examples of a page leave behind."""
    left: dict[str, Any] = {}
    text = (DOCS / f"{page}.md").read_text()
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[:count]:
        exec(block, left)
    return left


def contours(ax: Any, loss: Callable, x: Any, y: Any, top: float | None = None) -> None:
    """A function of two variables; darker is lower."""
    a, b = (np.linspace(low, high, 161) for low, high in (x, y))
    values = np.asarray(jax.vmap(jax.vmap(loss))(jnp.stack(jnp.meshgrid(a, b), axis=-1)))
    height = np.sqrt(
        np.clip((values - values.min()) / ((top or values.max()) - values.min()), 0, 1)
    )
    is_dark = matplotlib.rcParams["figure.facecolor"] != "#FFFFFF"
    shades = LinearSegmentedColormap.from_list("", [LOW[is_dark], HIGH[is_dark]])
    ax.contourf(a, b, height, np.linspace(0, 1, 16), cmap=shades)
    ax.set(xlim=x, ylim=y)


def arrow(ax: Any, begin: Any, end: Any, text: str = "", color: str | None = None) -> None:
    how = {"arrowstyle": "->", "color": color or matplotlib.rcParams["text.color"], "lw": 1.6}
    ax.annotate(text, end, begin, arrowprops=how, ha="center", va="center")


def boxes(ax: Any, places: dict[str, tuple], arrows: dict[tuple, str]) -> None:
    """Texts in frames, and arrows between them with a text each."""
    frame = {"boxstyle": "round,pad=0.5", "facecolor": "none", "edgecolor": COLORS[0]}
    drawn = {
        text: ax.text(*place, text, ha="center", va="center", bbox=frame)
        for text, place in places.items()
    }
    for (begin, end), text in arrows.items():
        how = {"arrowstyle": "->", "color": COLORS[1], "lw": 1.5, "shrinkA": 2, "shrinkB": 2}
        how |= {"patchA": drawn[begin].get_bbox_patch(), "patchB": drawn[end].get_bbox_patch()}
        ax.annotate("", places[end], places[begin], arrowprops=how)
        middle = np.mean([places[begin], places[end]], axis=0)
        ax.text(middle[0], middle[1] + 0.05, text, ha="center", va="bottom", fontsize=8)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    ax.axis("off")


# --- tutorials and explanation


def start_tree(figure: Any) -> None:
    rr.plot.tree(example("start", 4)["result"], figure.subplots())


def first_map(figure: Any) -> None:
    landscape, axes = example("first-map", 1)["landscape"], figure.subplots(1, 2)
    rr.plot.disconnectivity(landscape, axes[0])
    rr.plot.plane(landscape, axes[1])
    axes[0].set_title("at which loss minima become connected")
    axes[1].set_title("minima (dots), transition states (triangles)")


def ridge(figure: Any) -> None:
    """What a ridge is: eigenvectors at the start, rides along them, and their eigenvalues."""
    problem = surface()
    result: Any = rr.search(problem, rr.Rider(keep_path=True), max_depth=1)
    plane, along = figure.subplots(1, 2, width_ratios=(1.4, 1))
    contours(plane, lambda x: problem.value(x[::-1]), (-4, 4), (-1.6, 1.6), 1.0)
    for number, leg in enumerate(result):
        path = leg.trace["path"][:, ::-1]
        arrow(plane, (0, 0), 0.7 * (path[1] - path[0]) / np.linalg.norm(path[1] - path[0]))
        plane.plot(*path.T, color=COLORS[number], lw=2)
        end = np.asarray(leg.finish.x)[::-1]
        plane.plot(*np.stack([path[-1], end]).T, ":", color=COLORS[number], lw=1.6)
        plane.plot(*end, "o", color=COLORS[number])
        plane.annotate(str(leg.fingerprint), end, xytext=(8, 4), textcoords="offset points")
    for number in (0, 2):
        leg = list(result)[number]
        along.plot(leg.trace["eigenvalue"], color=COLORS[number], label=f"ride {leg.fingerprint}")
    along.axhline(0, color="gray", lw=0.8, ls="--")
    along.set(title="a ride ends where this reaches zero", xlabel="step", ylabel="eigenvalue")
    along.legend()
    plane.set(title="arrows: ridges; lines: rides; dotted: descents", xticks=[], yticks=[])


def one_ride(figure: Any) -> None:
    leg = rr.search(surface(), rr.Rider(keep_path=True), max_rides=4).leg("1+")
    axes = figure.subplots(2, 3)
    rr.plot.ride(leg, axes.ravel()[:5])
    axes[1, 2].axis("off")


def symmetric(figure: Any) -> None:
    """One ride of each class of directions: how many hidden units grow."""
    left = example("symmetric", 1)
    result = rr.search(left["problem"], rr.Rider(keep_path=True, finish=None), max_depth=1)
    rides = [leg for leg in result if str(leg.fingerprint)[-1] == "+"][:3]
    for ax, leg in zip(figure.subplots(1, 3, sharey=True), rides, strict=True):
        weights = np.abs(
            [left["problem"].unravel(jnp.asarray(x))["out"] for x in leg.trace["path"]]
        )
        for unit in range(3):
            ax.plot(weights[:, unit], "os^"[unit] + "-", label=f"unit {unit + 1}", ms=9 - 3 * unit)
        ax.set(title=f"ride {leg.fingerprint}", xlabel="step")
    figure.axes[0].set(ylabel="|output weight|")
    figure.axes[0].legend()


def crossing(figure: Any) -> None:
    """A certificate along a ride: two eigenvalues come close, and the ridge turns."""

    def loss(x: Any) -> Any:
        return (
            -(x[0] ** 2) + x[0] ** 4 / 12 - x[1] ** 2 / 2 + x[1] ** 4 / 12 + x[0] ** 2 * x[1] / 20
        )

    problem = rr.Problem(loss, jnp.zeros(2))
    rider = rr.Rider(update=rr.Project(), keep_path=True, finish=None)
    leg = rr.search(problem, rider, max_rides=1).leg("0+")
    plane, values, overlap = figure.subplots(1, 3)
    contours(plane, loss, (-0.5, 3), (-2.5, 0.5))
    plane.plot(*leg.trace["path"].T, ".-")
    plane.set(title="the ride turns", xticks=[], yticks=[])
    hessians = [problem.hessian(jnp.asarray(x)) for x in leg.trace["path"]]
    values.plot(np.linalg.eigvalsh(np.asarray(hessians)), color="gray", lw=1, label="all")
    values.plot(leg.trace["eigenvalue"], lw=2.4, label="followed")
    values.set(title="two eigenvalues nearly meet", xlabel="step", ylabel="eigenvalue")
    values.legend(
        *zip(*list(zip(*values.get_legend_handles_labels(), strict=True))[1:], strict=True)
    )
    overlap.plot(leg.trace["overlap"], ".-")
    for limit, text in ((0.95, "shorten the step below"), (0.7072, "end the ride below")):
        overlap.axhline(limit, color="gray", ls="--", lw=0.8)
        overlap.text(0, limit - 0.005, text, va="top", fontsize=8)
    overlap.set(title="the overlap certifies each step", xlabel="step", ylim=(0.6, 1.01))


def overlap(figure: Any) -> None:
    """Completeness: found, and estimated with its interval, against the true number."""
    how: Any = {"bounds": [(-5.12, 5.12)] * 2, "share_of_starts": 0.5, "round_size": 8}
    maps = [rr.explore(rastrigin(2), max_calls=500 * 2**k, **how) for k in range(6)]  # 11 x 11
    calls = [one.cost.values + one.cost.gradients for one in maps]
    estimates = [one.completeness().minima for one in maps]
    middle = np.array([one.estimate for one in estimates])
    ends = np.abs(middle - [[one.low for one in estimates], [one.high for one in estimates]])
    ax = figure.subplots()
    ax.axhline(121, color="gray", ls="--", label="the true number")
    ax.errorbar(calls, middle, ends, fmt="o", capsize=4, label="estimated, with its interval")
    ax.plot(calls, [one.found for one in estimates], "s-", label="found")
    ax.set(xscale="log", xlabel="values and gradients", ylabel="minima", ylim=(0, 300))
    ax.legend(loc="upper right")


# --- guides


def bounds(figure: Any) -> None:
    """All minima of a bounded function, two of them on a bound, and the barriers."""

    def fun(x: Any) -> Any:
        return jnp.sum((x**2 - 1) ** 2) + 0.2 * x[0]

    landscape = rr.explore(rr.Problem(fun, jnp.array([0.1, 0.2])), bounds=[(-2, 2), (-0.6, 2)])
    plane, graph = figure.subplots(1, 2, width_ratios=(1.3, 1))
    contours(plane, fun, (-2.1, 2.1), (-1, 2), 5.0)
    plane.plot([-2, 2, 2, -2, -2], [-0.6, -0.6, 2, 2, -0.6], color=COLORS[0], label="bounds")
    for points, mark, color, name in (
        (landscape.minima(), "o", COLORS[1], "minimum"),
        (landscape.saddles(), "^", COLORS[2], "transition state"),
    ):
        plane.plot(*np.array([one.params for one in points]).T, mark, color=color, label=name)
    plane.set(xlabel="$x_0$", ylabel="$x_1$", ylim=(-1, 2.1))
    figure.legend(*plane.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    rr.plot.disconnectivity(landscape, graph)
    graph.set(title="lines join at the height of the barrier", ylabel="value")


def climb(figure: Any) -> None:
    """What a climb is: the points that one evaluates, from a minimum to a saddle; then descents."""
    gradient, seen = example("first-map", 1)["value_and_grad"], list[np.ndarray]()

    def camel(x: Any) -> Any:
        a, b = x
        return (4 - 2.1 * a**2 + a**4 / 3) * a**2 + a * b + (4 * b**2 - 4) * b**2

    def value_and_grad(x: np.ndarray) -> tuple:
        seen.append(np.array(x))
        return gradient(x)

    def hessian(x: np.ndarray) -> np.ndarray:
        return np.array([[8 - 25.2 * x[0] ** 2 + 10 * x[0] ** 4, 1], [1, 48 * x[1] ** 2 - 8]])

    problem = rr.Problem.from_functions(value_and_grad, np.array([0.5, 0.5]), hessian=hessian)
    legs = list(rr.explore(problem, round_size=1, max_rides=3))
    ends = [next(i for i, x in enumerate(seen) if np.linalg.norm(x - leg.x) < 1e-6) for leg in legs]
    begin = next(i for i, x in enumerate(seen) if np.linalg.norm(x - legs[2].x) < 1e-6)
    ax = figure.subplots()
    contours(ax, camel, (-0.6, 2.2), (-0.1, 1.2), 4.0)
    up = seen[begin : ends[0] + 1]
    ax.plot(*np.array(up).T, ".-", color=COLORS[1], label="climb along the softest mode")
    ax.plot(*np.array(seen[ends[0] : ends[1] + 1]).T, ".:", color=COLORS[0], label="descent")
    ax.plot(*legs[0].x, "^", color=COLORS[1])
    for leg in legs[1:]:
        ax.plot(*leg.x, "o", color=COLORS[0])
    for leg, text in zip(legs, ("saddle", "new minimum", "minimum"), strict=True):
        where = (0, -16 if text == "saddle" else 12)
        ax.annotate(text, leg.x, xytext=where, textcoords="offset points", ha="center")
    ax.legend(loc="lower right")
    ax.set(xlabel="a", ylabel="b")


def atoms(figure: Any) -> None:
    """Both conformers of ethanol, the transition state between them, and all energies."""
    from ase.visualize.plot import plot_atoms

    from ridgerider.ase import path_movie

    landscape = example("atoms", 1)["landscape"]
    axes = figure.subplot_mosaic("abc;ddd", height_ratios=(1, 1.3))
    frames = path_movie(landscape, 0, 1)
    names = ("minimum 0", "transition state between them", "minimum 1")
    for place, number, name in zip("abc", (0, len(frames) // 2, -1), names, strict=True):
        plot_atoms(frames[number], axes[place], rotation="90x,20y")
        axes[place].set(title=name)
        axes[place].axis("off")
    low, ax = landscape.minima()[0].loss, axes["d"]
    for number, one in enumerate(landscape.minima()):
        ax.plot([number - 0.15, number + 0.15], [one.loss - low] * 2, color=COLORS[1], lw=3)
    for number, edge in enumerate(landscape.edges()):
        x = np.mean(edge.minima) + (0 if 0 < np.mean(edge.minima) < 1 else number % 2 / 4 - 0.3)
        x = x + 0.6 if x > 0.8 else x
        for end in edge.minima:
            ax.plot(
                [x, end], [edge.loss - low, landscape.minima()[end].loss - low], ":", color="gray"
            )
        ax.plot(x, edge.loss - low, "^", color=COLORS[0])
    ax.set(ylabel="energy (eV)", xticks=[0, 1], xticklabels=["minimum 0", "minimum 1"])


def network(figure: Any) -> None:
    """The ridges at the start of a network, and the loss along some of them."""
    problem = example("networks", 1)["start"].problem
    rider = rr.Rider.for_networks(finish=None)
    result = rr.search(problem, rider, max_rides=4, max_ridges=2, max_depth=1)
    ridges, losses = figure.subplots(1, 2)
    rr.plot.spectrum(result.leg(""), ridges)
    for leg in result:
        losses.plot(leg.trace["loss"], label=f"ride {leg.fingerprint}")
    losses.set(xlabel="step", ylabel="training loss", title="rides")
    losses.legend()


def beginnings(figure: Any) -> None:
    """The loss along each ridge, and where members of an ensemble begin."""
    from ridgerider.ensembles import AlongRidges

    problem, ax = example("ensembles", 1)["problem"], figure.subplots()
    begins = AlongRidges()(problem, jax.random.key(0))
    for number, one in zip(range(4), begins, strict=False):
        far = np.linspace(0, 1.3, 40)
        line = [float(problem.value(problem.x0 + part * (one.x - problem.x0))) for part in far]
        length = float(jnp.linalg.norm(one.x - problem.x0))
        ax.plot(far * length, line, color=COLORS[number], label=f"ridge {one.name}")
        ax.plot(length, problem.value(one.x), "o", color=COLORS[number])
    ax.set(xlabel="distance from the saddle", ylabel="training loss")
    ax.legend()


def order(figure: Any) -> None:
    """What is followed first: the same problem, ten rides, three orders."""
    problem, orders = wells(3), ("breadth_first", "depth_first", "steepest_first")
    for ax, name in zip(figure.subplots(1, 3, sharey=True), orders, strict=True):
        rr.plot.tree(rr.search(problem, rr.Rider(finish=None), order=name, max_rides=10), ax)
        figure.axes[-1].remove()  # the scale of colours
        ax.set_title(name)


def rules(figure: Any) -> None:
    """Where each field of a rider acts."""
    places = {
        "spectrum\nridges at a point": (0.1, 0.75),
        "step\nalong the ridge": (0.37, 0.75),
        "correct\nback into the valley": (0.65, 0.75),
        "update\nthe same ridge, here": (0.9, 0.75),
        "stop\nis the ride over?": (0.65, 0.2),
        "finish\ndescend to a solution": (0.2, 0.2),
    }
    one, two, three, four, five, six = places
    pairs = {(one, two): "", (two, three): "", (three, four): "", (four, five): ""}
    boxes(figure.subplots(), places, {**pairs, (five, two): "no  ", (five, six): "yes"})


def choose(figure: Any) -> None:
    """How much is added to the mean score, by the number of examples and of solutions."""
    ax, examples = figure.subplots(), np.geomspace(20, 10_000, 60)
    for solutions in (1, 10, 100):
        margin = np.sqrt(np.log(solutions / 0.05) / (2 * examples))
        ax.plot(examples, margin, label=f"best of {solutions} solution{'s' * (solutions > 1)}")
    ax.set(xscale="log", xlabel="new examples $m$", ylabel="margin above the mean score")
    ax.legend()


def rounds(figure: Any) -> None:
    """Four workers: a round ends with its longest ride."""
    lengths = [leg.num_steps for leg in example("start", 4)["result"]][:48]
    for ax, size in zip(figure.subplots(1, 2, sharex=True, sharey=True), (4, 16), strict=True):
        now = 0
        for first in range(0, len(lengths), size):
            free = np.full(4, now)
            for length in lengths[first : first + size]:
                worker = int(free.argmin())
                ax.barh(worker + 1, length, left=free[worker], edgecolor=ax.get_facecolor())
                free[worker] += length
            now = free.max()
            ax.axvline(now, color="gray", ls=":", lw=1)
        ax.set(title=f"round_size={size}: {now} steps", xlabel="time in steps of a ride")
    figure.axes[0].set(ylabel="worker", yticks=range(1, 5))


def trust(figure: Any) -> None:
    """Which commands run code, and whose."""
    places = {
        "a run file": (0.1, 0.5),
        "show, report, watch,\ncheck, export, load": (0.45, 0.82),
        "resume, replay": (0.45, 0.18),
        "reads data,\nruns nothing": (0.85, 0.82),
        "imports the problem only if it is yours,\nor you say --trust": (0.8, 0.18),
    }
    file, read, run, safe, code = places
    boxes(
        figure.subplots(),
        places,
        {(file, read): "", (file, run): "", (read, safe): "", (run, code): ""},
    )


def figures(figure: Any) -> None:
    """What `rr.plot` draws of a search."""
    result, axes = rr.search(surface(), rr.Rider(keep_path=True)), figure.subplots(1, 3)
    rr.plot.tree(result, axes[0])
    rr.plot.landscape(result, ("0+", "1+"), axes[1])
    rr.plot.spectrum(result.leg("1+"), axes[2])


def axis(figure: Any) -> None:
    """A ride along a symmetry axis ends at a saddle; the next turn leaves the axis."""
    problem, ax = wells(2), figure.subplots()
    result = rr.search(problem, rr.Rider(keep_path=True), max_rides=12)
    contours(ax, problem.value, (-1.5, 1.5), (-1.8, 1.8), 0.3)
    for name, color in (("0+", COLORS[0]), ("0+ 0+", COLORS[1])):
        leg: Any = result.leg(name)
        ax.plot(*leg.trace["path"].T, color=color, lw=2.2, label=f"ride {name}")
        ax.plot(*np.stack([leg.x, leg.finish.x]).T, ":", color=color)
        ax.plot(*leg.finish.x, {"saddle": "^"}.get(leg.finish.kind, "o"), color=color)
    ax.legend()


SIZES = {
    start_tree: (8, 3.6),
    first_map: (8, 3.4),
    ridge: (8, 3.2),
    one_ride: (8, 3.8),
    symmetric: (8, 2.6),
    crossing: (8, 3),
    overlap: (6, 3.2),
    bounds: (8, 3.6),
    climb: (6, 4),
    atoms: (7, 4),
    network: (8, 3),
    beginnings: (6, 3.2),
    order: (9, 3),
    rules: (8, 2.6),
    choose: (6, 3),
    rounds: (8, 2.8),
    trust: (8, 2.4),
    figures: (11, 2.8),
    axis: (5, 4),
}


NAMES = [one.__name__.replace("_", "-") for one in SIZES]
NAMES += ["surface", "report", "report-phone", *(f"gallery/{one}" for one in GALLERY)]


def screenshot(name: str, out: Path) -> None:
    """The report of a search, in Chromium."""
    from playwright.sync_api import sync_playwright

    rr.search(surface(), rr.Rider(keep_path=True), out=out / "run.sqlite", name="surface")
    page = rr.report.report(out / "run.sqlite")
    page.write_text(page.read_text().replace(str(out.resolve()), "runs/surface"))
    width, height = (390, 844) if name == "report-phone" else (1200, 850)
    is_dark = matplotlib.rcParams["figure.facecolor"] != "#FFFFFF"
    with sync_playwright() as started:
        path = shutil.which("chromium")
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        tab = browser.new_page(
            viewport={"width": width, "height": height},
            device_scale_factor=1.5,
            color_scheme="dark" if is_dark else "light",
        )
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-ready]", state="attached")
        tab.screenshot(path=out / f"{name}.png")


def drawn(name: str, out: Path) -> None:
    """Draw into a folder: a figure of this file, of the paper, or of the gallery."""
    if name == "surface":
        experiment.run(experiment.Settings(), Runner(out))
    elif name.startswith("report"):
        screenshot(name, out)
    elif name.startswith("gallery/"):
        with contextlib.chdir(out):
            runpy.run_path(str(DOCS / f"{name}.py"))
    else:
        function = globals()[name.replace("-", "_")]
        figure = Figure(SIZES[function], layout="constrained")
        function(figure)
        figure.savefig(out / f"{name}.png", dpi=140)


def main(names: list[str]) -> None:
    jax.config.update("jax_enable_x64", True)
    for name in names or NAMES:
        for is_dark in (False, True):
            with tempfile.TemporaryDirectory() as out, matplotlib.rc_context(style(is_dark)):
                drawn(name, Path(out))
                (path,) = Path(out).glob("*.png")
                shutil.copy(path, DOCS / "images" / f"{name}{'-dark' * is_dark}.png")
        print(name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
