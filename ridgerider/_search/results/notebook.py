"""What a notebook shows of a value: plain HTML without script, and tables of pandas.

All text is escaped: names and doubts come from run files.
"""

import html
from collections.abc import Mapping, Sequence
from typing import Any

from ridgerider._check import needs

MAX_ROWS = 12
LEFT = '"text-align:left"'


def summary(title: str, numbers: Mapping[str, Any]) -> str:
    """A title, and numbers below their names.

    >>> "<b>leg 0+</b>" in summary("leg 0+", {"steps": 3})
    True
    """
    shown = table(list(numbers), [list(numbers.values())])
    return f"<p><b>{html.escape(title)}</b></p>{shown}"


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


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text as columns, for a terminal.

    >>> print(aligned([["name", "loss"], ["a", "-1.5"]]))
    name  loss
    a     -1.5
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def frame(rows: Any) -> Any:
    """A pandas table, where pandas is installed."""
    with needs("pandas", "a table"):
        import pandas
    return pandas.DataFrame(rows)
