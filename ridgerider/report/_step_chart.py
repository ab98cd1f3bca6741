"""A chart of steps as SVG, with classes for colours so that the page's style decides them."""

import html
import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 26, 40


def step_chart(lines: Mapping[str, Sequence[tuple[float, float]]], title: str, axis: str) -> str:
    """One picture of all lines: what each reached when, to the end of it.

    >>> "<svg" in step_chart({"a": [(0, 0), (2, 1), (3, 1)]}, "found", "rides")
    True
    """
    points = [point for line in lines.values() for point in line]
    most = max([x for x, _ in points] + [1e-9])
    heights = [y for _, y in points] or [0.0, 1.0]
    low, high = min(heights), max(heights)
    if high <= low:
        around = 0.1 * abs(low) or 1.0
        low, high = low - around, high + around

    def x(value: float) -> float:
        return round(LEFT + value / most * (WIDTH - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        return round(TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)

    def text(words: str, x: float, y: float, anchor: str, kind: str = "") -> str:
        where = f'x="{x}" y="{y}" text-anchor="{anchor}" class="{kind}"'
        return f"<text {where}>{html.escape(words)}</text>"

    parts = [text(title, 0, 14, "start", "name")]
    for tick in ticks(low, high):
        parts.append(f'<path class="grid" d="M{LEFT} {y(tick)}H{WIDTH - RIGHT}"/>')
        parts.append(text(f"{tick:.6g}", LEFT - 8, y(tick) + 4, "end"))
    for tick in ticks(0, most):
        parts.append(text(f"{tick:,.6g}", x(tick), HEIGHT - BOTTOM + 16, "middle"))
    parts.append(text(axis, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, "middle"))
    said = []
    for number, (name, line) in enumerate(lines.items()):
        said.append(f"{name} {line[-1][1]:.6g}" if line else f"{name} nothing")
        if line:
            first, *rest = line
            path = f"M{x(first[0])} {y(first[1])}" + "".join(f"H{x(a)}V{y(b)}" for a, b in rest)
            tip = f"<title>{html.escape(said[-1])}</title>"
            parts.append(f'<path class="line r{number % 6}" d="{path}">{tip}</path>')
    label = html.escape(f"{title} over {axis}: {'; '.join(said)}")
    return (
        f'<svg class="steps" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg>'
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
