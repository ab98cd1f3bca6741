"""What experiments show alike: tables in Markdown, figures as files, bars, paths of descents."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float
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


def save(figure: Any, path: Path) -> None:
    for suffix in ("png", "svg"):
        figure.savefig(path.with_name(f"{path.name}.{suffix}"), dpi=160)


def new_figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")


def descent_paths(
    problem: rr.Problem, starts: Float[Array, "starts n"], rate: float, num_steps: int
) -> Float[np.ndarray, "starts steps n"]:
    """Plain gradient descent; every point on the way."""

    def step(x: Float[Array, " n"], _: None) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        return x - rate * problem.grad(x), x

    def path(x: Float[Array, " n"]) -> Float[Array, "steps n"]:
        return jax.lax.scan(step, x, None, length=num_steps + 1)[1]

    return np.asarray(jax.jit(jax.vmap(path))(starts))


def plain(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)


def bars(
    ax: Axes, names: list[str], groups: list[dict[str, Any]], methods: dict[str, tuple]
) -> None:
    """Shares with intervals, in percent: a group of bars for each name, a bar for each method.

    Of a method come its label first and its colour last, None if it is not drawn.
    """
    drawn = {key: (label, color) for key, (label, *_, color) in methods.items() if color}
    width = 0.8 / len(drawn)
    for number, (key, (label, color)) in enumerate(drawn.items()):
        low, mean, high = (
            100 * np.array([group[key][part] for group in groups])
            for part in ("low", "mean", "high")
        )
        ax.bar(
            np.arange(len(groups)) + (number - (len(drawn) - 1) / 2) * width,
            mean,
            yerr=[mean - low, high - mean],
            width=0.92 * width,
            color=color,
            label=label,
            capsize=2,
            error_kw={"linewidth": 0.9},
        )
    ax.set_xticks(range(len(names)), names)
    ax.set(ylabel="solutions found (%)", ylim=(0, 105))
    ax.legend(frameon=False, fontsize=8, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1))
    plain(ax)
