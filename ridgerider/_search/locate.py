"""Problems by name: `module:attribute`, or one of those that come with the library."""

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ridgerider._core.problem import Problem

NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
BUILT_IN = {
    "surface": "ridgerider.problems:surface",
    "wells": "ridgerider.problems:wells",
    "factorization": "ridgerider.problems:factorization",
    "levers": "ridgerider.problems:levers",
    "digits": "ridgerider.problems:digits_classifier",
    "tree": "ridgerider.problems:tree",
}
# What these note of their solutions, by functions of the library's own.
OWN_MEASURES = {
    "levers": "ridgerider.problems.levers:lever_measures",
    "digits": "ridgerider.problems.classifier:digits_measures",
    "tree": "ridgerider.problems.tree:tree_measures",
}


def load_problem(name: str) -> Problem:
    """A built-in problem by name, or yours as `module:attribute` from the current directory.

    The attribute is a `Problem` or a function without arguments that returns one.

    >>> load_problem("wells").size
    3
    """
    name = BUILT_IN.get(name, name)
    if not NAME.fullmatch(name):
        raise ValueError(
            f"the problem must be one of {', '.join(BUILT_IN)} or module:attribute, such as "
            f"mine:problem for `problem` in mine.py, not {name!r}."
        )
    problem = _attribute(*name.split(":"))
    if callable(problem) and not isinstance(problem, Problem):
        try:
            problem = problem()
        except TypeError as error:
            raise ValueError(f"{name} must be callable without arguments: {error}.") from error
    if not isinstance(problem, Problem):
        raise ValueError(
            f"{name} must be a Problem or a function that returns one, "
            f"not {type(problem).__name__}."
        )
    return problem


def own_measures(name: str) -> Any:
    """The `Measures` that a built-in problem brings, or None.

    >>> own_measures("levers").about()["signature"]["name"], own_measures("mine:problem")
    ('ridgerider.problems.levers:joint_action', None)
    """
    return _attribute(*OWN_MEASURES[name].split(":"))() if name in OWN_MEASURES else None  # type: ignore[operator]


def load_function(option: str, name: str) -> Callable[..., Any]:
    """A function as `module:function` from the current directory.

    >>> load_function("--metric", "math:sqrt")(4)
    2.0
    """
    if not NAME.fullmatch(name):
        raise ValueError(
            f"`{option}` must be module:function, such as mine:accuracy for `accuracy` in mine.py, "
            f"not {name!r}."
        )
    function = _attribute(*name.split(":"))
    if not callable(function):
        raise ValueError(f"`{option}` {name} must be a function, not {type(function).__name__}.")
    return function


def _attribute(module_name: str, attribute: str) -> object:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == module_name:
            where = f"in {here} or among the installed ones"
            raise ValueError(f"there is no module {module_name!r} {where}.") from None
        raise ValueError(
            f"module {module_name!r} cannot be imported: {type(error).__name__}: {error}."
        ) from error
    if not hasattr(module, attribute):
        raise ValueError(f"module {module_name!r} has no attribute {attribute!r}.")
    return getattr(module, attribute)
