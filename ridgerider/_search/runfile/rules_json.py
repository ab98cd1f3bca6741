"""Rules (riders, spectra, orders, symmetries, ...) as JSON, and back, without pickle.

`RULES` lists all that a run file may instantiate: a file may come from a stranger, so only these
are rebuilt, from values of the types that their fields have. Functions and classes are written by
the name that a user imports them by. Whoever rides with custom rules passes the rider again.

What a run file knows of its problem: shapes of the parameters, digests of start and data.

Problems by name: `module:attribute`, or one of those that come with the library.
"""

import dataclasses
import functools
import hashlib
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any

import jax
import numpy as np

from ridgerider._check import checked, fits, one_line
from ridgerider._core.descend.train import describe_optimizer
from ridgerider._core.problem.problem import Problem, fetch, is_key

# All that a run file may instantiate, by the place that a user imports it from.
RULES = {
    "ridgerider": (
        "Rider",
        *("DenseSpectrum", "BlockSpectrum"),
        *("QuasiNewton", "Project", "Davidson", "Residual", "Keep", "RandomRidge", "Follow"),
        *("FixedStep", "Backtracking", "Valley"),
        *("Descend", "Relax", "Train"),
        *("Batches", "Climb", "Symmetry"),
        *("RidgeLost", "Stalled", "curvature_gone", "not_finite"),
    ),
    "ridgerider.environments": ("Agree",),
    "ridgerider.types": ("FixedRows",),
    "ridgerider.symmetry": (
        *("Motions", "PointCopy", "PointSignature", "RigidCopy", "RigidSignature"),
        *("PeriodCopy", "PeriodSignature", "UnitSignature"),
    ),
    "ridgerider.ase": ("CellMotions", "CellSignature", "Connected"),
    "ridgerider.problems": ("is_one_cluster",),
    "optax": ("adabelief", "adagrad", "adam", "adamw", "lbfgs", "nadam", "rmsprop", "sgd"),
}
# Where else things have public names.
PUBLIC = (*RULES, "ridgerider.coordination", "ridgerider.baselines")


def describe(value: Any) -> Any:
    """A value as JSON: numbers, strings, lists, and dictionaries that name a type or a function."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    optax = sys.modules.get("optax")  # that takes a while to import
    if optax and isinstance(value, optax.GradientTransformation):  # closures: they have no name
        return {"optimizer": hashlib.sha256(describe_optimizer(value).encode()).hexdigest()[:16]}
    if isinstance(value, tuple | list):
        return [describe(item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[describe(name), describe(item)] for name, item in value.items()]}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return {"array": np.asarray(value).tolist(), "dtype": str(value.dtype)}
    if isinstance(value, functools.partial):
        keywords = {name: describe(item) for name, item in value.keywords.items()}
        function, args = describe(value.func), describe(value.args)
        return {"partial": function, "args": args, "keywords": keywords}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [item.name for item in dataclasses.fields(value)]
        fields = {name: describe(getattr(value, name)) for name in names}
        return {"type": _name_of(type(value)), "fields": fields}
    return {"function": _name_of(value if hasattr(value, "__qualname__") else type(value))}


def rebuild(data: Any) -> Any:
    """The value that `describe` described; raises ValueError for what is not in `RULES`."""
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
    if "optimizer" in data:
        raise ValueError("the run was trained by an optimizer that is not named: pass the `rider`.")
    if "dict" in data:
        return {_rebuilt(name): _rebuilt(item) for name, item in data["dict"]}
    if "array" in data:
        if data["dtype"] not in ("float32", "float64", "int32", "int64", "uint32", "bool"):
            raise ValueError(f"an array in the run file cannot be of {one_line(data['dtype'])}.")
        return np.asarray(data["array"], data["dtype"])
    if "partial" in data:
        function, args = _look_up(data["partial"]["function"]), _rebuilt(data["args"])
        keywords = {name: _rebuilt(item) for name, item in data["keywords"].items()}
        for value in (*args, *keywords.values()):
            if not isinstance(value, bool | int | float | str | np.ndarray | None):
                raise ValueError("arguments of a function in the run file must be plain values.")
        return jax.tree_util.Partial(function, *args, **keywords)
    if "function" in data:
        return _look_up(data["function"])
    kind = _look_up(data["type"])
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise ValueError(f"{one_line(data['type'])} is not a kind of rule.")
    values = {name: _rebuilt(item) for name, item in data["fields"].items()}
    types = {item.name: item.type for item in dataclasses.fields(kind)}
    if not values.keys() <= types.keys():
        raise ValueError(f"the run used another version of {data['type']}: pass the `rider` again.")
    for name, value in values.items():
        if not fits(types[name], value):
            raise ValueError(
                f"`{name}` of {data['type']} in the run file cannot be {one_line(repr(value))}."
            )
    return kind(**values)


def _name_of(value: Any) -> str:
    """`module:name`; of the modules that have it, the public one."""
    name = value.__qualname__
    places = (place for place in PUBLIC if getattr(sys.modules.get(place), name, None) is value)
    return f"{next(places, value.__module__)}:{name}"


def _look_up(name: str) -> Any:
    """What a name of `RULES` stands for."""
    module, _, attribute = name.partition(":")
    if attribute not in RULES.get(module, ()):
        raise ValueError(
            f"the run used {one_line(name)}, a custom rule or one of another version: "
            "pass the `rider` again."
        )
    return getattr(importlib.import_module(module), attribute)


def describe_problem(problem: Problem) -> dict[str, Any]:
    """Shapes and dtypes of the parameters, digests of the start and the data."""
    leaves = jax.tree_util.tree_leaves_with_path(problem.start)
    return {
        "params": [
            [jax.tree_util.keystr(path), list(leaf.shape), str(leaf.dtype)] for path, leaf in leaves
        ],
        "start": digest(problem.start),
        "data": digest(problem.args),
        # What the loss says of itself: its `quantity` and `unit`, and atoms to be drawn.
        "about": getattr(problem.loss, "about", {}),
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


NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
BUILT_IN = {
    "surface": "ridgerider.problems:surface",
    "wells": "ridgerider.problems:wells",
    "levers": "ridgerider.problems:levers",
    "digits": "ridgerider.problems:digits_classifier",
    "tree": "ridgerider.problems:tree",
    "camel": "ridgerider.problems:six_hump_camel",
    "himmelblau": "ridgerider.problems:himmelblau",
    "mueller-brown": "ridgerider.problems:mueller_brown",
    "rastrigin": "ridgerider.problems:rastrigin",
    "atoms": "ridgerider.problems:lennard_jones",
}
# What these note of their solutions, by functions of the library's own.
OWN_MEASURES = {
    "levers": "ridgerider.problems.levers:lever_measures",
    "digits": "ridgerider.problems.classifier:digits_measures",
    "tree": "ridgerider.problems.tree:tree_measures",
}


OURS = {
    *BUILT_IN,
    *BUILT_IN.values(),
    "ridgerider_experiments.demo:tree",
}  # anybody's file may name these


@checked
def load_problem(name: str) -> Problem:
    """A built-in problem by name, or yours as `module:attribute` from the current directory.

    The attribute is a `Problem` or a function without arguments that returns one.

    >>> load_problem("wells").size
    3
    """
    choices = f"the problem (`name`) must be one of {', '.join(BUILT_IN)} or"
    problem = load_attribute(choices, BUILT_IN.get(name, name))
    # What is built in makes no problem, but may well end the process.
    if callable(problem) and not isinstance(problem, Problem | BuiltinFunctionType):
        with _told(f"{name} must be callable without arguments"):
            problem = problem()
    if not isinstance(problem, Problem):
        if inspect.iscoroutine(problem):
            problem.close()  # or Python warns that nobody waited for it
        raise ValueError(
            f"{name} must be a Problem or a function that returns one, "
            f"not {type(problem).__name__}."
        )
    return problem


def _of_file(name: str) -> str:
    """A file below the current directory is the module of that name.

    >>> _of_file("./models/mine.py:problem"), _of_file("mine:problem")
    ('models.mine:problem', 'mine:problem')
    """
    file, is_file, attribute = name.partition(".py:")
    return f"{file.removeprefix('./').replace('/', '.')}:{attribute}" if is_file else name


def loaded(problem: Problem | str) -> tuple[Problem, str | None]:
    """The problem, and the name it was loaded by if it came by name."""
    return (problem, None) if isinstance(problem, Problem) else (load_problem(problem), problem)


def own_measures(name: str) -> Any:
    """The `Measures` that a built-in problem brings, or None.

    >>> own_measures("levers").about()["signature"]["name"], own_measures("mine:problem")
    ('ridgerider.problems.levers:joint_action', None)
    """
    return load_attribute("", OWN_MEASURES[name])() if name in OWN_MEASURES else None


def load_attribute(wanted: str, name: str) -> Any:
    """What `module:attribute` stands for, seen from the current directory.

    >>> load_attribute("`--metric` must be", "math:sqrt")(4)
    2.0
    """
    if not NAME.fullmatch(_of_file(name)):
        raise ValueError(
            f"{wanted} module:attribute, such as mine:problem for `problem` in mine.py, not "
            f"{name!r}."
        )
    module_name, attribute = _of_file(name).split(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    with _told(f"module {module_name!r} cannot be imported in {one_line(here)}"):
        module = importlib.import_module(module_name)
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise ValueError(f"module {module_name!r} has no attribute {attribute!r}.") from None


def made_here(name: str) -> str:
    """A mark of the working directory and of the source of the module that a problem is named in.

    Empty if that module is not found, or is one of Python's own. Nothing is imported.
    """
    name = _of_file(name)
    module = name.partition(":")[0]
    if not NAME.fullmatch(name) or module.partition(".")[0] in sys.stdlib_module_names:
        return ""
    marks = hashlib.blake2b(digest_size=16)
    try:
        here = str(Path.cwd())
        marks.update(here.encode("utf-8", "surrogateescape"))
        places: list[str] | None = [here, *sys.path]
        for count in range(1, module.count(".") + 2):
            spec = PathFinder.find_spec(".".join(module.split(".")[:count]), places)
            if spec is None:
                return ""
            if spec.has_location and spec.origin is not None:
                marks.update(hashlib.blake2b(Path(spec.origin).read_bytes()).digest())
            places = None if (found := spec.submodule_search_locations) is None else list(found)
    except (OSError, ImportError, ValueError):
        return ""
    return marks.hexdigest()


def name_to_load(meta: dict[str, Any], path: object, *, trust: bool = False) -> str:
    """The name of a run's problem, if it may be loaded: see docs/security.md.

    It may if it is one of the library's, if the run was made here, or if the user says so.
    """
    name = meta["name"]
    if name in OURS or trust or (meta.get("made") and meta["made"] == made_here(name)):
        return name
    module = one_line(name.partition(":")[0])
    raise ValueError(
        f"{one_line(path)} was not made here, or the source has changed since, and names "
        f"{one_line(name)!r}: module {module!r} would be imported and run. Say --trust if "
        "you trust both, or name the problem yourself with --problem MODULE:NAME."
    )


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Whatever the user's code raises, also `sys.exit`, is one sentence, with its cause."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        raise ValueError(f"{what}: it calls sys.exit({error.code!r}).") from error
    except BaseException as error:
        raise ValueError(f"{what}: {type(error).__name__}: {one_line(error)}.") from error
