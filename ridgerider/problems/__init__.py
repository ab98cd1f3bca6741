"""Ready problems with known answers, and how a problem is found by name."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from ridgerider._problem import Problem
from ridgerider.problems.factorization import factorization as factorization
from ridgerider.problems.surface import surface as surface
from ridgerider.problems.wells import wells as wells

BUILT_IN: dict[str, Callable[[], Problem]] = {
    "surface": surface,
    "wells": wells,
    "factorization": factorization,
}


def load_problem(name: str) -> Problem:
    """A built-in problem by name, or yours as `module:attribute` from the current directory.

    The attribute is a `Problem` or a function without arguments that returns one.

    >>> load_problem("wells").size
    3
    """
    if name in BUILT_IN:
        return BUILT_IN[name]()
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise ValueError(
            f"the problem must be one of {', '.join(BUILT_IN)} or module:attribute, not {name!r}."
        )
    found = _attribute(module_name, attribute)
    problem = found() if callable(found) and not isinstance(found, Problem) else found
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
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ValueError(
            f"there is no module {module_name!r} in {here} or among the installed ones."
        ) from None
    if not hasattr(module, attribute):
        raise ValueError(f"module {module_name!r} has no attribute {attribute!r}.")
    return getattr(module, attribute)
