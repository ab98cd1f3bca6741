"""Riders as plain data, and back: how a run file remembers what it was ridden with, without pickle.

Functions and classes are described by the name that a user imports them by, which survives a move
of the file that defines them; the file's own name, as 0.1 wrote it, is read as well. A file may
come from a stranger: only what `RULES` lists is ever rebuilt, from values of the types that its
fields have. Whoever rides with rules of their own hands the rider over once more.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import json
import re
import sys
from collections.abc import Callable
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ridgerider._check import one_line
from ridgerider._core.descend.train import describe_optimizer
from ridgerider._core.problem.placement import fetch
from ridgerider._core.problem.problem import Problem, is_key

# All that a run file may ask for, by the place that a user imports it from.
RULES = {
    "ridgerider": (
        "Rider",
        *("DenseSpectrum", "BlockSpectrum", "GradientKrylov", "PowerSpectrum", "NetworkSpectrum"),
        *("Project", "Davidson", "Residual", "Keep", "RandomRidge", "Follow"),
        *("FixedStep", "Backtracking", "TrustRegion", "Valley", "Recall"),
        *("Descend", "Relax", "Train"),
        *("Batches", "FixedRows", "Climber", "Climb", "Symmetry"),
        *("RidgeLost", "Stalled", "WithinNoise", "curvature_gone", "not_finite"),
        *("RandomOrder", "breadth_first", "depth_first", "best_first", "steepest_first"),
        *("fewest_visits", "lowest_first"),
    ),
    "ridgerider.environments": ("Agree",),
    "ridgerider.symmetry": (
        *("Motions", "PointCopy", "PointSignature", "RigidCopy", "RigidSignature"),
        "UnitSignature",
    ),
    "ridgerider.problems": ("is_one_cluster",),
    "optax": ("adabelief", "adagrad", "adam", "adamw", "lbfgs", "nadam", "rmsprop", "sgd"),
}
# Where else things have public names.
PUBLIC = (*RULES, "ridgerider.coordination", "ridgerider.baselines")


def describe(value: Any) -> Any:
    """`value` as JSON: numbers, strings, lists, and dictionaries that name a type or a function."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, optax.GradientTransformation):  # closures, which have no name of their own
        return {"optimizer": hashlib.sha256(describe_optimizer(value).encode()).hexdigest()[:16]}
    if isinstance(value, tuple | list):
        return [describe(item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[describe(name), describe(item)] for name, item in value.items()]}
    if isinstance(value, functools.partial):
        return {
            "partial": describe(value.func),
            "args": describe(value.args),
            "keywords": _named(value.keywords),
        }
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
        return {"type": _name_of(type(value)), "fields": _named(fields)}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return {"array": np.asarray(value).tolist(), "dtype": str(value.dtype)}
    return {"function": _name_of(value if hasattr(value, "__qualname__") else type(value))}


def rebuild(data: Any) -> Any:
    """The value that `describe` described; raises ValueError for what is not ours to look up."""
    try:
        return _rebuilt(data)
    except ValueError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as bad:
        raise ValueError(
            f"what the run was ridden with cannot be read ({type(bad).__name__}: {one_line(bad)}): "
            "pass the `rider` again."
        ) from bad


def _rebuilt(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(_rebuilt(item) for item in data)
    if not isinstance(data, dict):
        return data
    if "dict" in data:
        return {_rebuilt(name): _rebuilt(item) for name, item in data["dict"]}
    if "array" in data:
        return _array(data["array"], data["dtype"])
    if "function" in data:
        return _look_up(data["function"])
    if "optimizer" in data:
        raise ValueError("the run was trained by an optimizer that is not named: pass the `rider`.")
    if "partial" in data:
        return _partial(data)
    kind = _look_up(data["type"])
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise ValueError(f"{one_line(data['type'])} is not a kind of rule.")
    values = {name: _rebuilt(item) for name, item in data["fields"].items()}
    types = {item.name: item.type for item in dataclasses.fields(kind)}
    if not values.keys() <= types.keys():
        raise ValueError(
            f"the run was ridden with another version of {data['type']}: pass the `rider` again."
        )
    for name, value in values.items():
        if not _fits(types[name], value):
            raise ValueError(
                f"`{name}` of {data['type']} in the run file cannot be {one_line(repr(value))}."
            )
    return kind(**values)


def _array(entries: Any, dtype: Any) -> np.ndarray:
    if dtype not in ("float32", "float64", "int32", "int64", "uint32", "bool"):
        raise ValueError(f"an array in the run file cannot be of type {one_line(dtype)}.")
    return np.asarray(entries, dtype)


def _partial(data: dict[str, Any]) -> Any:
    """A function of optax with some of its arguments, which are plain values."""
    arguments = _rebuilt(data["args"]), {name: _rebuilt(x) for name, x in data["keywords"].items()}
    if not all(map(_is_plain, (*arguments[0], *arguments[1].values()))):
        raise ValueError("arguments of a function in the run file must be plain values.")
    return jax.tree_util.Partial(
        _look_up(data["partial"]["function"]), *arguments[0], **arguments[1]
    )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str | np.ndarray)


def _fits(kind: Any, value: Any) -> bool:
    """Whether a value may be that of a field with this annotation."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(one, value) for one in inner)
    if origin is Literal:
        return isinstance(value, str | int) and value in inner
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(inner[0], one) for one in value)
    if origin is Callable:
        return callable(value)
    if kind in (bool, str, type(None)):
        return isinstance(value, kind)
    if kind in (int, float):
        is_number = isinstance(value, int if kind is int else int | float)
        return is_number and not isinstance(value, bool)
    if dataclasses.is_dataclass(kind):
        return isinstance(value, kind)  # type: ignore[arg-type]
    return isinstance(value, np.ndarray)


def is_same_rule(stored: Any, value: Any) -> bool:
    """Whether `value` is what was described as `stored`, by whichever version."""
    try:
        stored = describe(rebuild(stored))
    except ValueError:  # rules of the user's own among them: names are compared
        try:
            stored = _renamed(stored)
        except (KeyError, TypeError, AttributeError):
            return False
    return stored == describe(value)


def describe_problem(problem: Problem) -> dict[str, Any]:
    """Shapes and dtypes of the parameters, digests of the start, the data and its arrays."""
    leaves = jax.tree_util.tree_leaves_with_path(problem.start)
    return {
        "params": [
            [jax.tree_util.keystr(path), list(leaf.shape), str(leaf.dtype)] for path, leaf in leaves
        ],
        "start": digest(problem.start),
        "data": digest(problem.args),
        "arrays": [digest(array) for array in arrays_of(problem.args)],
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


def arrays_of(tree: Any) -> list[jax.Array]:
    """The arrays of more than one number, in the precision the library computes with."""
    arrays = [
        leaf
        for leaf in jax.tree.leaves(tree)
        if isinstance(leaf, np.ndarray | jax.Array) and not is_key(leaf)
    ]
    return [jnp.asarray(leaf) for leaf in arrays if leaf.size > 1 and leaf.dtype.kind not in "OSU"]


def _named(items: dict[str, Any]) -> dict[str, Any]:
    return {name: describe(item) for name, item in items.items()}


def _name_of(value: Any) -> str:
    name = value.__qualname__
    places = (place for place in PUBLIC if getattr(sys.modules.get(place), name, None) is value)
    return f"{next(places, value.__module__)}:{name}"


def _renamed(data: Any) -> Any:
    """A description with the names of this version, as far as they are ours."""
    if isinstance(data, list):
        return [_renamed(item) for item in data]
    if not isinstance(data, dict):
        return data
    renamed = {key: _renamed(item) for key, item in data.items()}
    for key in {"type", "function"} & renamed.keys():
        with contextlib.suppress(ValueError):
            value = _look_up(renamed[key])
            renamed[key] = _name_of(value)
            if key == "type":  # a version may have added fields
                renamed["fields"] = {**_defaults(value), **renamed["fields"]}
    return renamed


def _defaults(kind: Any) -> dict[str, Any]:
    missing = dataclasses.MISSING
    return {
        item.name: describe(item.default)
        for item in dataclasses.fields(kind)
        if item.default is not missing
    }


def _look_up(name: str) -> Any:
    """What a name of `RULES` stands for; the private file that 0.1 named is left out of it."""
    module, _, path = name.partition(":")
    for place, names in RULES.items():
        is_private = "._" in module and module.partition(".")[0] == place.partition(".")[0]
        if path in names and (module == place or is_private):
            return getattr(importlib.import_module(place), path)
    raise ValueError(
        f"the run was ridden with {one_line(name)}, a rule of your own or of another version: pass "
        "the `rider` again."
    )
