"""What the page of a map shows: its disconnectivity graph, points, and structures of clusters."""

from pathlib import Path
from typing import Any

import numpy as np

from ridgerider._search.results.landscape import Landscape
from ridgerider._search.results.load import load
from ridgerider._search.results.solutions import Stationary
from ridgerider.plot._map import tree_places


def is_map(meta: dict[str, Any]) -> bool:
    """Whether a run is a map, by its description."""
    return meta.get("mover") == "climbs"


def map_content(path: Path) -> dict[str, Any]:
    """All that the page shows of a map, for JSON."""
    landscape: Landscape = load(path)
    edges = {edge.saddle: edge for edge in landscape.edges()}
    leaves = landscape.meta["problem"]["params"]
    shape = leaves[0][1]
    # Parameters that are one array with rows of three are points in space.
    is_structure = len(leaves) == 1 and len(shape) == 2 and shape[1] == 3
    return {
        "completeness": str(landscape.completeness()),
        "minima": [_point(one, is_structure) for one in landscape.minima()],
        "saddles": [
            {**_point(one, is_structure), "ends": list(edges[number].minima)}
            for number, one in enumerate(landscape.saddles())
        ],
        "junctions": [
            {"saddle": one.saddle, "loss": one.loss, "parts": list(one.parts)}
            for one in landscape.junctions()
        ],
        "places": tree_places(landscape),
    }


def _point(one: Any, is_structure: bool) -> dict[str, Any]:
    assert isinstance(one, Stationary)
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
