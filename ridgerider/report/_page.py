"""One HTML page with all that it needs: style, script and data.

The page may run its own script and nothing else, and load nothing: its security policy names the
hashes of script and style. Whatever comes from a run file is data in it, never markup.
"""

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from math import prod
from typing import Any

import numpy as np

from ridgerider._core.problem.problem import Problem
from ridgerider._search.tree.tree import Fingerprint
from ridgerider.plot._landscape import Landscape, Path
from ridgerider.report._differ import MAX_SEGMENTS, flatness, loss_between
from ridgerider.report._plain import plain
from ridgerider.report._read import Reader
from ridgerider.report._trace import encoded
from ridgerider.report._verdict import verdict

MAX_PATHS = 40  # of other rides in a landscape: those nearest to its plane
SCRIPTS = (
    "base",
    "terms",
    "recorder",
    "export",
    "tree",
    "leg",
    "tables",
    "differ",
    "cost",
    "landscape",
    "main",
)


def page(
    reader: Reader,
    landscapes: Sequence[Landscape] = (),
    token: str | None = None,
    *,
    problem: Problem | None = None,
    claim: str = "",
    index: str | None = None,
) -> str:
    """The page of a run as far as it was read; with a `token` one that asks for what is new."""
    content = {
        **summary(reader),
        "legs": reader.legs,
        "num_details": len(reader.details),
        "landscapes": [plain_landscape(one) for one in landscapes],
        "token": token,
        "claim": claim,
        "index": index,
        **({} if problem is None else at_hand(reader, problem)),
    }
    return fill_page(
        {
            "title": html.escape(f"{content['name']} · Ridge Rider"),
            "data": embedded(content),
            "details": "\n".join(map(embedded, reader.details)),
        },
        connect="'self'" if token else "'none'",
        script=_script(),
    )


def at_hand(reader: Reader, problem: Problem) -> dict[str, Any]:
    """What takes the problem itself: how flat solutions are, and the loss between them."""
    points = reader.points()
    flat = [flatness(problem, point) for point in points]
    few = points[:MAX_SEGMENTS]
    pairs = [(i, j) for i in range(len(few)) for j in range(i)]
    return {
        "flatness": plain(flat),
        "segments": {f"{i},{j}": loss_between(problem, few[j], few[i]) for i, j in pairs},
    }


def summary(reader: Reader) -> dict[str, Any]:
    """All that is known of a run besides its legs."""
    params = reader.meta.get("problem", {}).get("params", [])
    return {
        "name": str(reader.meta.get("name", reader.path.stem)),
        "path": str(reader.path),
        "meta": reader.meta,
        "size": sum(prod(shape) for _, shape, *_ in params),
        "num_open": reader.file.num_open,
        "notes": reader.notes,
        "classes": [str(name) for name in reader.classes.names],
        "groups": [leg["fingerprint"] for leg in reader.groups],
        "labels": reader.labels,
        "signature": reader.signature,
        "metrics": reader.metric_names,
        "differ": reader.differ(),
        "verdict": verdict(reader),
    }


def fill_page(
    content: dict[str, str], *, name: str = "page", script: str = "", connect: str = "'none'"
) -> str:
    """A template with its style, script and content in place."""
    return fill(f"{name}.html", ("page.css",), content, script=script, connect=connect)


def fill(
    template: str,
    styles: Sequence[str],
    content: dict[str, str],
    *,
    script: str = "",
    connect: str = "'none'",
) -> str:
    style = "\n".join(map(_source, styles))
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        f"img-src data:; connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    parts = {**content, "policy": policy, "style": style, "script": script}
    # Split once, so that no content is looked at for placeholders.
    first, *rest = _source(template).split("{{")
    pieces = [first]
    for piece in rest:
        key, _, after = piece.partition("}}")
        pieces += [parts[key], after]
    return "".join(pieces)


def embedded(content: Any) -> str:
    """JSON that cannot end the element that it stands in."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def plain_landscape(found: Landscape) -> dict[str, Any]:
    """A landscape for JSON."""
    return {
        "rides": [str(name) for name in found.rides],
        "a": [float(found.a[0]), float(found.a[-1])],
        "b": [float(found.b[0]), float(found.b[-1])],
        "num_columns": len(found.a),
        "num_rows": len(found.b),
        "loss": encoded(found.loss),
        "num_paths": len(found.paths),
        "paths": [
            {
                "fingerprint": str(path.fingerprint),
                "points": _rounded(path.points[_few(len(path.points))]),
                "descent": None if path.descent is None else _rounded(path.descent),
                "is_stored": path.is_stored,
                "kind": path.kind,
                "is_exact": path.is_exact,
            }
            for path in _nearest(found)
            if np.isfinite(path.points).all()
            and (path.descent is None or np.isfinite(path.descent).all())
        ],
    }


def _nearest(found: Landscape) -> list[Path]:
    """The two rides and what leads to them, and of the others those nearest to the plane."""
    own = {Fingerprint(name[: i + 1]) for name in found.rides for i in range(len(name))}
    others = [path for path in found.paths if path.fingerprint not in own]
    others.sort(key=lambda path: path.away)
    return [path for path in found.paths if path.fingerprint in own] + others[:MAX_PATHS]


def _few(num: int, most: int = 200) -> np.ndarray:
    return np.unique(np.linspace(0, num - 1, min(num, most)).astype(int))


def _rounded(points: np.ndarray) -> list:
    return np.vectorize(lambda value: float(f"{value:.5g}"))(points).tolist()


@cache
def _source(name: str) -> str:
    return (files("ridgerider.report") / "page" / name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    return '"use strict";\n(() => {\n' + "\n".join(_source(f"{n}.js") for n in SCRIPTS) + "\n})();"


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
