"""One HTML page with all that it needs: style, script and data.

The page may run its own script and nothing else, and load nothing: its security policy names the
hashes of script and style. Whatever comes from a run file is data in it, never markup.

What the page of a map shows: its disconnectivity graph, points, and structures of clusters.
"""

import base64
import hashlib
import html
import json
import os
from functools import cache
from importlib.resources import files
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ridgerider._check import check_directory, one_line
from ridgerider._search.engine.run import load
from ridgerider._search.results.landscape import Landscape
from ridgerider._search.results.result import Stationary
from ridgerider._search.runfile.store import beside
from ridgerider.plot._figures import tree_places
from ridgerider.report._read import Reader
from ridgerider.report._verdict import verdict


def is_map(meta: dict[str, Any]) -> bool:
    """Whether a run is a map, by its description."""
    return meta.get("mover") == "climbs"


def map_content(path: Path) -> dict[str, Any]:
    """All that the page shows of a map, for JSON."""
    landscape: Landscape = load(path)
    edges = {edge.saddle: edge for edge in landscape.edges()}
    leaves = landscape.meta["problem"]["params"]
    shape, about = leaves[0][1], landscape.meta["problem"].get("about", {})
    # Parameters that are one array with rows of three are points in space.
    is_structure = len(leaves) == 1 and len(shape) == 2 and shape[1] == 3

    def point(one: Stationary) -> dict[str, Any]:
        return _atoms(landscape, about, one) if about else _point(one, is_structure)

    names = ("quantity", "unit", "formula", "symbols", "colors", "radii")
    return {
        "completeness": str(landscape.completeness()),
        "about": {name: about[name] for name in names} if about else None,
        "minima": [point(one) for one in landscape.minima()],
        "saddles": [
            {**point(one), "ends": list(edges[number].minima)}
            for number, one in enumerate(landscape.saddles())
        ],
        "junctions": [
            {"saddle": one.saddle, "loss": one.loss, "parts": list(one.parts)}
            for one in landscape.junctions()
        ],
        "places": tree_places(landscape),
    }


def _point(one: Stationary, is_structure: bool) -> dict[str, Any]:
    point = {
        "loss": one.loss,
        "least": one.least_eigenvalue,
        "visits": one.multiplicity,
        "fingerprint": str(one.fingerprint),
    }
    if not is_structure:
        return point
    places = np.ravel(one.params).reshape(-1, 3)
    places = places - places.mean(axis=0)
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
    nearest = np.median(np.min(apart + np.diag(np.full(len(places), np.inf)), axis=1))
    return {**point, "points": np.round(places, 4).tolist(), "bond": 1.25 * float(nearest)}


def _atoms(landscape: Landscape, about: dict[str, Any], one: Stationary) -> dict[str, Any]:
    """A point with all of its atoms, wave numbers in 1/cm, and the mode of a transition state."""
    free, count = np.repeat(about["is_free"], 3), len(about["symbols"])
    basis = np.eye(3 * count)[:, free] if about["basis"] is None else np.array(about["basis"])
    places = np.ravel(about["positions"]) * (~free if about["basis"] is None else 1.0)
    places = (places + basis @ np.ravel(one.params)).reshape(-1, 3)
    point = {**_point(one, False), "points": np.round(places - places.mean(axis=0), 4).tolist()}
    hessian = landscape.leg(one.fingerprint).hessian
    if hessian is None:
        return point
    roots = np.sqrt(np.repeat(about["masses"], 3) @ basis**2)
    values, columns = np.linalg.eigh(hessian / np.outer(roots, roots))
    waves = INVERSE_CM * np.sign(values) * np.sqrt(np.abs(values))
    point["waves"] = np.round(waves, 1).tolist()
    if one.morse_index:
        mode = basis @ (columns[:, 0] / roots)
        point["mode"] = np.round(mode / np.abs(mode).max(), 4).reshape(-1, 3).tolist()
    return point


INVERSE_CM = 521.4709  # of the square root of eV / Angstrom^2 / atomic mass unit

SCRIPTS: dict[str, str] = {
    "page": "base chart terms recorder export tree leg tables differ cost main",
    "map": "recorder map",
    "compare": "base chart compare",
    "index": "",
}


def page(
    reader: Reader, token: str | None = None, *, claim: str = "", index: str | None = None
) -> str:
    """The page of a run as far as it was read; with a `token` one that asks for what is new."""
    content: dict[str, Any] = {"token": token, "claim": claim, "index": index}
    if is_map(reader.meta):
        content |= {**map_content(reader.path), "name": _name(reader)}
        content |= {"notes": reader.notes, "num_legs": len(reader.legs)}
    else:
        content |= {**summary(reader), "legs": reader.legs, "num_details": len(reader.details)}
    name = "map" if is_map(reader.meta) else "page"
    details, connect = "\n".join(map(embedded, reader.details)), "'self'" if token else "'none'"
    return fill_page(name, content["name"], content, details=details, connect=connect)


def _name(reader: Reader) -> str:
    return str(reader.meta.get("name", reader.path.stem))


def summary(reader: Reader) -> dict[str, Any]:
    """All that is known of a run besides its legs."""
    params = reader.meta.get("problem", {}).get("params", [])
    return {
        "name": _name(reader),
        "path": str(reader.path),
        "meta": reader.meta,
        "size": sum(prod(shape) for _, shape, *_ in params),
        "num_open": reader.num_open,
        "notes": reader.notes,
        "groups": [leg["fingerprint"] for leg in reader.groups],
        "labels": reader.labels,
        "signature": reader.signature,
        "metrics": reader.metric_names,
        "differ": reader.differ(),
        "verdict": verdict(reader),
    }


def fill_page(
    name: str,
    title: str,
    content: Any = None,
    *,
    connect: str = "'none'",
    **parts: str,
) -> str:
    """A template with its style, scripts and data in place; the other `parts` are markup."""
    style = _source("page.css")
    script = "\n".join(['"use strict";', *(_source(f"{one}.js") for one in SCRIPTS[name].split())])
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        f"img-src data:; connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    parts |= {"policy": policy, "style": style, "script": script, "data": embedded(content)}
    parts["title"] = html.escape(f"{title} · Ridge Rider")
    # Split once, so that no content is searched for placeholders.
    first, *rest = _source(f"{name}.html").split("{{")
    pieces = [first]
    for piece in rest:
        key, _, after = piece.partition("}}")
        pieces += [parts[key], after]
    return "".join(pieces)


def embedded(content: Any) -> str:
    """JSON that cannot end the element that it stands in."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _source(name: str) -> str:
    return (files("ridgerider.report") / "page" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def place_for(out: str | os.PathLike | None, default: Path) -> Path:
    """Where to write a page: a file, or a directory for the default name; it must exist."""
    place = default if out is None else Path(out)
    place = place / default.name if place.is_dir() else place
    check_directory("out", place)
    return place


def write_page(out: Path, text: str) -> Path:
    """Write a page whole or not at all: beside its place, then moved there."""
    with beside(out) as new:
        try:
            new.write_text(text, encoding="utf-8", errors="backslashreplace")
            new.replace(out)
        except OSError as error:
            reason = one_line(error.strerror or error)
            raise OSError(f"`out` cannot be written at {one_line(out)}: {reason}.") from error
    return out
