"""Riders as plain data, and back: how a run file remembers what it was ridden with, without pickle.

Functions and classes are described by the name that a user imports them by, which survives a move
of the file that defines them; the file's own name, as 0.1 wrote it, is read as well. Only names of
this library and of optax are looked up again; whoever rides with rules of their own hands the rider
over once more.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import json
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ridgerider._core.placement import fetch
from ridgerider._core.problem import Problem, is_key
from ridgerider._core.train import describe_optimizer

TRUSTED = ("ridgerider", "optax")
# Where rules have their public names.
PUBLIC = (
    "ridgerider",
    "ridgerider.environments",
    "ridgerider.coordination",
    "ridgerider.baselines",
    "ridgerider.symmetry",
    "optax",
)


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
    if isinstance(data, list):
        return tuple(rebuild(item) for item in data)
    if not isinstance(data, dict):
        return data
    if "dict" in data:
        return {rebuild(name): rebuild(item) for name, item in data["dict"]}
    if "array" in data:
        return np.asarray(data["array"], data["dtype"])
    if "function" in data:
        return _look_up(data["function"])
    if "optimizer" in data:
        raise ValueError("the run was trained by an optimizer that is not named: pass the `rider`.")
    if "partial" in data:
        keywords = {name: rebuild(item) for name, item in data["keywords"].items()}
        return jax.tree_util.Partial(rebuild(data["partial"]), *rebuild(data["args"]), **keywords)
    kind = _look_up(data["type"])
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise ValueError(f"{data['type']} is not a kind of rule.")
    fields = {name: rebuild(item) for name, item in data["fields"].items()}
    try:
        return kind(**fields)
    except TypeError:
        raise ValueError(
            f"the run was ridden with another version of {data['type']}: pass the `rider` again."
        ) from None


def is_same_rule(stored: Any, value: Any) -> bool:
    """Whether `value` is what was described as `stored`, by whichever version."""
    try:
        stored = describe(rebuild(stored))
    except ValueError:  # rules of the user's own among them: names are compared
        stored = _renamed(stored)
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
            message = f"{path} belongs to another problem: the {part} of the one given differ"
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
    """What a name stands for, if a package we trust defines it (importing it does not count)."""
    module, _, path = name.partition(":")
    package, is_private = module.partition(".")[0], "._" in module
    places = [place for place in PUBLIC if place.partition(".")[0] == package]
    value = None
    if package in TRUSTED and path.isidentifier():
        for place in places if is_private else [module]:
            with contextlib.suppress(ImportError):  # another version may have it elsewhere
                value = value or getattr(importlib.import_module(place), path, None)
    if getattr(value, "__module__", "").partition(".")[0] not in TRUSTED:
        raise ValueError(
            f"the run was ridden with {name}, a rule of your own or of another version: pass the "
            "`rider` again."
        )
    return value
