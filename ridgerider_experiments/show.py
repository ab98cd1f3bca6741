"""What experiments show alike: tables in Markdown, figures as files, bars, paths of descents."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import ridgerider as rr


def markdown(head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """A table.

    >>> print(markdown(["", "paper"], [["found", 4]]), end="")
    | | paper |
    |---|---|
    | found | 4 |
    """
    lines = [head, *rows]
    cells = [[f" {cell}" if cell != "" else "" for cell in line] for line in lines]
    text = ["|" + "".join(f"{cell} |" for cell in line) for line in cells]
    return "\n".join([text[0], "|" + "---|" * len(head), *text[1:]]) + "\n"


STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


@contextmanager
def drawing(path: Path, width: float, height: float, *shape: int, **axes: Any) -> Iterator[Any]:
    """The axes of a figure, to be drawn on; then it is saved, as PNG and as SVG."""
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure.subplots(*shape, **axes)
        save(figure, path)


def save(figure: Any, path: Path) -> None:
    for suffix in ("png", "svg"):
        figure.savefig(path.with_name(f"{path.name}.{suffix}"), dpi=160)


def descent_paths(
    problem: rr.Problem, starts: Float[Array, "starts n"], rate: float, num_steps: int
) -> Float[np.ndarray, "starts steps n"]:
    """Plain gradient descent; every point on the way."""

    def step(x: Float[Array, " n"], _: None) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        return x - rate * problem.grad(x), x

    def path(x: Float[Array, " n"]) -> Float[Array, "steps n"]:
        return jax.lax.scan(step, x, None, length=num_steps + 1)[1]

    return np.asarray(jax.jit(jax.vmap(path))(starts))


def bars(ax: Axes, depths: dict[str, dict[str, Any]], methods: dict[str, tuple]) -> None:
    """Shares with intervals, in percent: a group of bars for each depth, a bar for each method.

    Of a method come its label first and its colour last, None if it is not drawn.
    """
    drawn = {key: (label, color) for key, (label, *_, color) in methods.items() if color}
    width = 0.8 / len(drawn)
    for number, (key, (label, color)) in enumerate(drawn.items()):
        low, mean, high = (
            100 * np.array([group[key][part] for group in depths.values()])
            for part in ("low", "mean", "high")
        )
        ax.bar(
            np.arange(len(depths)) + (number - (len(drawn) - 1) / 2) * width,
            mean,
            yerr=[mean - low, high - mean],
            width=0.92 * width,
            color=color,
            label=label,
            capsize=2,
            error_kw={"linewidth": 0.9},
        )
    ax.set_xticks(range(len(depths)), [f"depth {depth}" for depth in depths])
    ax.set(ylabel="solutions found (%)", ylim=(0, 105))
    ax.legend(ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1))
