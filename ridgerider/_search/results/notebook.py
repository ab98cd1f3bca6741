"""What a notebook shows of a value: tiles, a small tree, curves, a table. Plain HTML, no script.

Colours are those of the notebook but for the marks, so that it can be read in the dark, too. All
text is escaped: names and doubts come from run files.
"""

import html
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ridgerider._check import needs
from ridgerider._search.tree.tree import Fingerprint, Leg, Turn

MARKS = {"minimum": "#D55E00", "at infinity": "#D55E00", "saddle": "#3B8FC4"}
GREY = "#8A939C"
MAX_ROWS, MAX_TREE = 12, 400
LEFT = '"text-align:left"'
TILE = "display:inline-block;margin:0 22px 6px 0;vertical-align:top"


def box(title: str, more: str, *parts: str) -> str:
    """Parts below a title."""
    head = f"<p><b>{html.escape(title)}</b> {html.escape(more)}</p>"
    return f'<div style="max-width:720px;line-height:1.35">{head}{"".join(parts)}</div>'


def tiles(numbers: Mapping[str, Any]) -> str:
    """A row of numbers with what they are.

    >>> "<b" in tiles({"legs": 3})
    True
    """
    shown = "".join(
        f'<div style="{TILE}"><div style="opacity:.7;font-size:85%">{html.escape(name)}</div>'
        f'<b style="font-size:135%">{html.escape(str(value))}</b></div>'
        for name, value in numbers.items()
    )
    return f"<div>{shown}</div>"


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """The first rows, and how many there are besides.

    >>> "&lt;b&gt;" in table(["name"], [["<b>"]])
    True
    """
    head = "".join(f"<th style={LEFT}>{html.escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr>{''.join(f'<td style={LEFT}>{html.escape(str(cell))}</td>' for cell in row)}</tr>"
        for row in rows[:MAX_ROWS]
    )
    more = f"<p>... and {len(rows) - MAX_ROWS} more</p>" if len(rows) > MAX_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def tree(legs: Mapping[Fingerprint, Leg], width: int = 640, height: int = 220) -> str:
    """The tree of rides as a small picture: height is loss, marks are the ends of descents."""
    places = columns(legs)
    losses = [leg.loss for leg in legs.values()]
    losses += [float(leg.finish.loss) for leg in legs.values() if leg.finish is not None]
    low, high = _range(losses)
    most = max(max(places.values()), 1.0)

    def point(name: Fingerprint, loss: float) -> tuple[float, float]:
        down = (high - loss) / (high - low) if np.isfinite(loss) else 0.0
        return 10 + places[name] / most * (width - 20), 10 + down * (height - 20)

    lines, marks = [], []
    for name, leg in legs.items():
        x, y = point(name, leg.loss)
        if name:
            x0, y0 = point(name.parent, legs[name.parent].loss)
            lines.append(
                f"M{x0:.1f} {y0:.1f}C{x0:.1f} {(y0 + y) / 2:.1f} {x:.1f} {y0:.1f} {x:.1f} {y:.1f}"
            )
        if leg.finish is not None:
            end = point(name, float(leg.finish.loss))[1]
            color = MARKS.get(leg.finish.kind, GREY)
            what = f"{name}: {leg.finish.kind}, loss {float(leg.finish.loss):.6g}"
            marks.append(
                f'<path d="M{x:.1f} {y:.1f}V{end:.1f}" stroke="{color}" stroke-dasharray="1 2"/>'
                f'<circle cx="{x:.1f}" cy="{end:.1f}" r="3" fill="{color}">'
                f"<title>{what}</title></circle>"
            )
    drawn = f'<path d="{"".join(lines)}" stroke="{GREY}" fill="none"/>{"".join(marks)}'
    return _svg(width, height, drawn, "Tree of rides: height is loss")


def curves(named: Mapping[str, np.ndarray], width: int = 300, height: int = 110) -> str:
    """A small picture of each quantity, step by step."""
    pictures = []
    for name, values in named.items():
        low, high = _range(values)
        across = np.linspace(4, width - 4, len(values))
        down = 22 + (high - np.nan_to_num(values, nan=high)) / (high - low) * (height - 28)
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True))
        label = f"{name}: {values[0]:.4g} to {values[-1]:.4g}"
        drawn = (
            f'<text x="4" y="13" font-size="12" fill="currentColor">{html.escape(label)}</text>'
            f'<polyline points="{points}" fill="none" stroke="{MARKS["saddle"]}"/>'
        )
        pictures.append(_svg(width, height, drawn, label))
    return f"<div>{''.join(pictures)}</div>"


def columns(names: Iterable[Fingerprint]) -> dict[Fingerprint, float]:
    """The place of each leg across a tree: leaves side by side, others above their rides.

    >>> names = [Fingerprint.parse(text) for text in ("", "0+", "0-")]
    >>> [columns(names)[name] for name in names]
    [0.5, 0.0, 1.0]
    """
    order = sorted(names, key=lambda name: list(map(_rank, name)))  # each before those behind it
    children = defaultdict[Fingerprint, list[Fingerprint]](list)
    for name in order:
        if name:
            children[name.parent].append(name)
    places: dict[Fingerprint, float] = {}
    for name in order:
        if name not in children:
            places[name] = float(len(places))
    for name in reversed(order):
        if name in children:
            places[name] = (places[children[name][0]] + places[children[name][-1]]) / 2
    return places


def frame(rows: Any, **options: Any) -> Any:
    """A pandas table, where pandas is installed."""
    with needs("pandas", "a table"):
        import pandas
    return pandas.DataFrame(rows, **options)


def _rank(turn: Turn) -> tuple[int, ...]:
    """Forwards by rank, then backwards in the opposite order."""
    rank = turn.sign * turn.index, turn.sign * turn.member
    return int(turn.sign < 0), *rank, int(turn.below), int(turn.up)


def _range(values: Any) -> tuple[float, float]:
    finite = np.asarray(values, float)[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    return low, high if high > low else low + 1.0


def _svg(width: int, height: int, drawn: str, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'style="max-width:100%;margin-right:16px" aria-label="{html.escape(label)}">{drawn}</svg>'
    )
