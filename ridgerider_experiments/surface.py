"""Figure 1: gradient descent against Ridge Rider on a two-dimensional surface.

    ridgerider reproduce surface

Paper: gradient descent from near the origin finds only the two local minima, Ridge Rider also the
two global ones.

Differs from the paper: the function, which it does not give.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes

import ridgerider as rr
from ridgerider import plot
from ridgerider.problems.surface import surface, surface_minima
from ridgerider_experiments.runner import Base, Runner, sized
from ridgerider_experiments.show import descent_paths, drawing, markdown

COLORS = ("#D55E00", "#E69F00", "#009E73", "#CC79A7")  # distinguishable with any colour vision


@dataclass(frozen=True)
class Settings(Base):
    num_starts: int = sized(100, quick=20)  # of gradient descent; ours, the paper gives none
    start_size: float = 0.1  # standard deviation around the origin: "near the origin"
    learning_rate: float = 0.05
    num_steps: int = 2000  # enough for every run to come to rest


def run(settings: Settings, runner: Runner) -> dict[str, Any]:
    problem, known = surface(), surface_minima()
    noise = jax.random.normal(
        jax.random.key(settings.seed), (settings.num_starts, 2), problem.dtype
    )
    how = (settings.learning_rate, settings.num_steps)
    paths = descent_paths(problem, settings.start_size * noise, *how)
    result = rr.search(problem, rr.Rider(keep_path=True), seed=settings.seed)
    draw(problem, settings, result, paths, runner.out)
    # The known minima at which some descent ended.
    is_reached = np.linalg.norm(paths[:, -1, None] - known[None], axis=2).min(axis=0) < 1e-3
    lowest = float(problem.value(jnp.asarray(known[-1])))

    def counts(minima: Any) -> dict[str, int]:
        losses = [float(problem.value(jnp.asarray(x))) for x in minima]
        is_global = [abs(loss - lowest) < 1e-6 for loss in losses]
        return {"minima": len(losses), "global_minima": sum(is_global)}

    ridge_rider = counts(one.params for one in result.minima())
    return {"gd": counts(known[is_reached]), "rr": {**ridge_rider, "rides": len(result)}}


def draw(
    problem: rr.Problem, settings: Settings, result: rr.Result, gd_paths: np.ndarray, out: Path
) -> None:
    """Both sets of paths over the loss, as in Figure 1."""
    first = [leg for leg in result if leg.fingerprint.depth == 1]
    how = (settings.learning_rate, settings.num_steps)
    descents = descent_paths(problem, jnp.stack([jnp.asarray(leg.x) for leg in first]), *how)
    dotted: dict[str, Any] = {"linewidth": 1.4, "linestyle": (0, (1, 1.2))}
    titles = ("Gradient descent from near the maximum", "Ridge Rider")
    with drawing(out / "surface", 9, 4.2, 1, 2, sharey=True) as (left, right):
        for ax, title in zip((left, right), titles, strict=True):
            draw_loss(problem, ax)
            ax.set(title=title, xlabel="weak direction")
        left.set_ylabel("strong direction")
        for path in gd_paths:
            left.plot(*path[:, ::-1].T, color="#0072B2", linewidth=0.7, alpha=0.6)
        ring = {"color": "#0072B2", "fillstyle": "none", "markersize": 9}
        left.plot(*gd_paths[:, -1, ::-1].T, "o", label="where it ends", **ring)
        for leg, descent, color in zip(first, descents, COLORS, strict=True):
            look = {"color": color, "linewidth": 2.2, "label": f"ride {leg.fingerprint}"}
            right.plot(*leg.trace["path"][:, ::-1].T, **look)
            right.plot(*descent[:, ::-1].T, color=color, **dotted)
            right.plot(*descent[-1, ::-1], "o", color=color, markersize=8)
        right.plot([], [], color="#444444", label="descent", **dotted)
        for ax in (left, right):
            ax.legend(loc="upper right", labelcolor="#222222")


def draw_loss(problem: rr.Problem, ax: Axes) -> None:
    """The loss as shades, darker is lower, with contours and a cross on each minimum."""
    weak, strong = np.linspace(-4, 4, 401), np.linspace(-1.6, 1.6, 161)
    points = jnp.stack(jnp.meshgrid(strong, weak, indexing="ij"), axis=-1)
    losses = jax.jit(jax.vmap(jax.vmap(problem.value)))(points)
    plot.shades(ax, weak, strong, np.asarray(losses), top=1.0)
    ax.plot(*surface_minima()[:, ::-1].T, "+", color="black", markersize=7)


def table(results: dict[str, Any]) -> str:
    gd, ridge = (
        f"{results[name]['minima']} ({results[name]['global_minima']} global)"
        for name in ("gd", "rr")
    )
    rows = [
        ("minima found by gradient descent", "2 local", gd),
        ("minima found by Ridge Rider", "2 local, 2 global", ridge),
        ("rides", "4 first ridges", results["rr"]["rides"]),
    ]
    return markdown(["", "paper", "ours"], rows)
