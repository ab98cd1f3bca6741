"""Problems by name: `module:attribute`, or one of those that come with the library."""

import importlib
import re
import sys
from pathlib import Path

from ridgerider._core.problem import Problem

BUILT_IN = {
    "surface": "ridgerider.problems:surface",
    "wells": "ridgerider.problems:wells",
    "factorization": "ridgerider.problems:factorization",
    "levers": "ridgerider.problems:levers",
    "digits": "ridgerider.problems:digits_classifier",
    "tree": "ridgerider.problems:tree",
}


def load_problem(name: str) -> Problem:
    """A built-in problem by name, or yours as `module:attribute` from the current directory.

    The attribute is a `Problem` or a function without arguments that returns one.

    >>> load_problem("wells").size
    3
    """
    name = BUILT_IN.get(name, name)
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", name):
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
