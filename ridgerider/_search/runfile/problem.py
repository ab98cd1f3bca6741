"""What a run file knows of its problem: shapes of the parameters, digests of start and data."""

import hashlib
import json
import re
from typing import Any

import jax
import numpy as np

from ridgerider._check import one_line
from ridgerider._core.problem.placement import fetch
from ridgerider._core.problem.problem import Problem, is_key
from ridgerider._search.runfile.rules import describe


def describe_problem(problem: Problem) -> dict[str, Any]:
    """Shapes and dtypes of the parameters, digests of the start and the data."""
    leaves = jax.tree_util.tree_leaves_with_path(problem.start)
    return {
        "params": [
            [jax.tree_util.keystr(path), list(leaf.shape), str(leaf.dtype)] for path, leaf in leaves
        ],
        "start": digest(problem.start),
        "data": digest(problem.args),
    }


def check_problem(meta: dict[str, Any], problem: Problem, path: Any) -> None:
    """Raise unless a run with this `meta` was begun with the problem."""
    stored, given = meta["problem"], describe_problem(problem)
    for part in ("params", "start", "data"):
        if stored[part] != given[part]:
            message = (
                f"{one_line(path)} belongs to another problem: the {part} of the one given differ"
            )
            dtypes = [described["params"][0][2] for described in (stored, given)]
            if dtypes[0] != dtypes[1]:
                message += f" ({dtypes[0]} there, {dtypes[1]} here: see jax_enable_x64)"
            raise ValueError(f"{message}.")


def digest(tree: Any) -> str:
    """A hash of the structure, shapes, dtypes and bytes of a pytree."""
    # Functions in the structure print their addresses, which are others in each process.
    structure = re.sub(r"0x[0-9a-f]+", "", str(jax.tree.structure(tree)))
    hashed = hashlib.sha256(structure.encode())
    for leaf in jax.tree.leaves(tree):
        if is_key(leaf):
            leaf = jax.random.key_data(leaf)
        if not isinstance(leaf, np.ndarray | np.generic | jax.Array | bool | int | float | complex):
            hashed.update(json.dumps(describe(leaf)).encode())
            continue
        array = np.asarray(fetch(leaf))
        hashed.update(f"{array.shape}{array.dtype}".encode())
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()[:16]
