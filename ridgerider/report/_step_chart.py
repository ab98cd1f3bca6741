"""A chart of steps as SVG, with classes for colours so that the page's style decides them."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 26, 40


@dataclass(frozen=True)
class Line:
    """What one run reached when; it holds until `total` was spent."""

    name: str
    points: Sequence[tuple[float, float]]
    total: float


def step_chart(lines: Sequence[Line], title: str, axis: str) -> str:
    """One picture of all lines.

    >>> "<svg" in step_chart([Line("a", [(0, 0), (2, 1)], 3.0)], "found", "rides")
    True
    """
    most = max([line.total for line in lines] + [1e-9])
    heights = [y for line in lines for _, y in line.points]
    low, high = (min(heights), max(heights)) if heights else (0.0, 1.0)
    if high <= low:
        around = 0.1 * abs(low) or 1.0
        low, high = low - around, high + around

    def x(value: float) -> float:
        return LEFT + value / most * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<text x="0" y="14" class="name">{html.escape(title)}</text>']
    for tick in ticks(low, high):
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" '
            f'y2="{y(tick):.1f}"/><text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" '
            f'text-anchor="end">{tick:.6g}</text>'
        )
    for tick in ticks(0, most):
        parts.append(
            f'<text x="{x(tick):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
            f"{_short(tick)}</text>"
        )
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 4}" text-anchor="middle">'
        f"{html.escape(axis)}</text>"
    )
    for number, line in enumerate(lines):
        if line.points:
            path = _path([(x(a), y(b)) for a, b in line.points], x(line.total))
            last = f"{html.escape(line.name)}: {line.points[-1][1]:.6g}"
            parts.append(
                f'<path class="line r{number % 6}" d="{path}"><title>{last}</title></path>'
            )
    label = f"{title} over {axis}: " + "; ".join(
        f"{line.name} {line.points[-1][1]:.6g}" if line.points else f"{line.name} nothing"
        for line in lines
    )
    return (
        f'<svg class="steps" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{html.escape(label)}">{"".join(parts)}</svg>'
    )


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between two.

    >>> ticks(0, 10), ticks(-1, 0)
    ([0, 2, 4, 6, 8, 10], [-1.0, -0.8, -0.6, -0.4, -0.2, 0.0])
    """
    rough = (high - low) / most
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * k for k in (1, 2, 5, 10) if unit * k >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _path(points: Sequence[tuple[float, float]], end: float) -> str:
    first, *rest = points
    parts = [f"M{first[0]:.1f} {first[1]:.1f}", *(f"H{a:.1f}V{b:.1f}" for a, b in rest)]
    return "".join([*parts, f"H{end:.1f}"])


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"
