"""The page of a map: its disconnectivity graph, points, and the structures of clusters."""

import contextlib
import html
import os
from pathlib import Path
from typing import Any

import numpy as np

from ridgerider._core.problem.problem import Problem
from ridgerider._search.results.landscape import Landscape, Stationary
from ridgerider._search.runfile.write import Store
from ridgerider.plot._map import tree_places
from ridgerider.report._page import _source, embedded, fill_page


def report_map(
    path: str | os.PathLike, out: str | os.PathLike | None = None, problem: Problem | None = None
) -> Path:
    """Write a map as one HTML page; `report` does it for the run file of one."""
    path = Path(path)
    out = path.with_name("report.html") if out is None else Path(out)
    if not out.parent.is_dir():
        raise ValueError(f"`out` must be in a directory that exists, but {out.parent} does not.")
    out.write_text(map_page(Landscape.load(path, problem)), encoding="utf-8")
    return out


def map_page(landscape: Landscape, token: str | None = None, num_legs: int = 0) -> str:
    """The page of a map; with a `token` one that asks whether there are more than `num_legs`."""
    content = {**content_of(landscape), "token": token, "num_legs": num_legs}
    parts = {"title": html.escape(f"{landscape.name} · Ridge Rider"), "data": embedded(content)}
    connect = "'self'" if token else "'none'"
    script = "\n".join(map(_source, ("recorder.js", "map.js")))
    return fill_page(parts, name="map", script=script, connect=connect)


def is_map(path: Path) -> bool:
    """Whether a run file is there, can be read, and holds a map."""
    try:
        store = Store.open(path)
    except ValueError:
        return False
    with contextlib.closing(store), contextlib.suppress(ValueError):
        return "map" in store.meta
    return False


def content_of(landscape: Landscape) -> dict[str, Any]:
    """All that the page shows, for JSON."""
    edges = {edge.saddle: edge for edge in landscape.edges()}
    junctions = landscape.junctions()
    shape = _shape(landscape)
    return {
        "name": landscape.name,
        "completeness": str(landscape.completeness()),
        "minima": [_point(one, shape) for one in landscape.minima()],
        "saddles": [
            {**_point(one, shape), "ends": list(edges[number].minima)}
            for number, one in enumerate(landscape.saddles())
        ],
        "junctions": [
            {"saddle": one.saddle, "loss": one.loss, "parts": list(one.parts)} for one in junctions
        ],
        "tree": [
            {"saddle": one.saddle, "minima": list(edges[one.saddle].minima)} for one in junctions
        ],
        "places": tree_places(landscape),
    }


def _point(one: Any, shape: tuple[int, int] | None) -> dict[str, Any]:
    assert isinstance(one, Stationary)
    point = {
        "loss": one.loss,
        "least": one.least_eigenvalue,
        "visits": one.multiplicity,
        "address": str(one.fingerprint),
    }
    if shape is None:
        return point
    places = np.ravel(one.params).reshape(shape)
    places = places - places.mean(axis=0)
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
    nearest = np.median(np.min(apart + np.diag(np.full(len(places), np.inf)), axis=1))
    return {**point, "points": np.round(places, 4).tolist(), "bond": 1.25 * float(nearest)}


def _shape(landscape: Landscape) -> tuple[int, int] | None:
    """That of the parameters if they are points in space: one array with rows of three."""
    leaves = landscape.result.meta["problem"]["params"]
    shape = leaves[0][1]
    is_points = len(leaves) == 1 and len(shape) == 2 and shape[1] == 3
    return (shape[0], 3) if is_points else None
