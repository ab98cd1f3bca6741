"""How solutions differ: parameter by parameter, and leaf by leaf."""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.cluster.hierarchy import leaves_list, linkage

MAX_COLUMNS = 128  # of a heat map; of more parameters, those that differ most
MAX_LEAVES = 60  # of the pytree, told one by one

Points = Float[np.ndarray, "points size"]
Params = Sequence[Sequence[Any]]  # path, shape and dtype of each leaf, as the run file has them


def differences(points: Points, params: Params) -> dict[str, Any]:
    """What a page shows of how points differ, for JSON.

    >>> points = np.array([[0.0, 1.0, 2.0], [0.0, 1.0, 5.0]])
    >>> found = differences(points, [["['a']", [2], "float64"], ["['b']", [], "float64"]])
    >>> found["columns"], [leaf["name"] for leaf in found["leaves"]]
    (['a[0]', 'a[1]', 'b'], ['a', 'b'])
    >>> found["leaves"][1]["apart"], found["order"]
    ([3.0], [0, 1])
    """
    if not len(points):
        return {
            "columns": [],
            "leaves": [],
            "order": [],
            "values": np.zeros((0, 0)),
            "num_parameters": 0,
        }
    size = points.shape[1]
    if sum(math.prod(shape) for _, shape, *_ in params) != size:  # what they are is not known
        params = [["", [size], ""]]
    spread = points.std(axis=0)
    kept = np.sort(np.argsort(-spread, kind="stable")[:MAX_COLUMNS])
    if size > MAX_COLUMNS or size > 12:  # few parameters stay in the user's order
        kept = kept[similar(points[:, kept].T)]
    return {
        "columns": names_of(params, kept),
        "values": points[:, kept],
        "order": similar(points).tolist(),
        "leaves": _leaves(points, params),
        "num_parameters": size,
    }


def similar(rows: Float[np.ndarray, "rows columns"]) -> np.ndarray:
    """An order of the rows in which neighbours are alike.

    >>> similar(np.array([[0.0], [5.0], [0.1], [5.1]])).tolist() in ([0, 2, 1, 3], [2, 0, 1, 3])
    True
    """
    if len(rows) < 3 or not np.isfinite(rows).all():
        return np.arange(len(rows))
    order = leaves_list(linkage(rows, "average", optimal_ordering=len(rows) <= MAX_COLUMNS))
    return order if order[0] <= order[-1] else order[::-1]


def names_of(params: Params, which: np.ndarray) -> list[str]:
    """What parameters are called, from their numbers in the vector of all of them.

    >>> names_of([["[0]['w']", [2, 2], "float64"], [".b", [], "float64"]], np.array([3, 4]))
    ['0.w[1,1]', 'b']
    """
    names, ends = [], np.cumsum([math.prod(shape) for _, shape, *_ in params])
    for number in which:
        leaf = int(np.searchsorted(ends, number, side="right"))
        path, shape = params[leaf][0], tuple(params[leaf][1])
        place = int(number) - (int(ends[leaf - 1]) if leaf else 0)
        index = ",".join(str(one) for one in np.unravel_index(place, shape)) if shape else ""
        names.append(leaf_name(path) + (f"[{index}]" if index else ""))
    return names


def leaf_name(path: str) -> str:
    """A leaf of the parameters in short; the only one is `x`.

    >>> leaf_name("[0]['weights']"), leaf_name(".layer.bias"), leaf_name("")
    ('0.weights', 'layer.bias', 'x')
    """
    parts = re.findall(r"\['([^']*)'\]|\[([^\]]*)\]|\.([^.\[]+)", path)
    return ".".join("".join(part) for part in parts) or path or "x"


def _leaves(points: Points, params: Params) -> list[dict[str, Any]]:
    """For each leaf its distance between each pair of points, pair by pair."""
    first, leaves = 0, []
    for path, shape, *_ in params[:MAX_LEAVES]:
        size = math.prod(shape)
        part = points[:, first : first + size]
        first += size
        apart = [
            float(f"{np.linalg.norm(part[i] - part[j]):.4g}")
            for i in range(len(part))
            for j in range(i)
        ]
        leaves.append({"name": leaf_name(path), "size": size, "apart": apart})
    return leaves
