"""Ready problems with known answers, and how a problem is found by name."""

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path

from ridgerider._core.problem import Problem
from ridgerider.problems.classifier import Classifier as Classifier
from ridgerider.problems.classifier import classifier as classifier
from ridgerider.problems.classifier import digits_classifier
from ridgerider.problems.colored import ColoredImages as ColoredImages
from ridgerider.problems.colored import colored_digits as colored_digits
from ridgerider.problems.colored import colored_mnist as colored_mnist
from ridgerider.problems.factorization import factorization as factorization
from ridgerider.problems.levers import Levers as Levers
from ridgerider.problems.levers import WornLevers as WornLevers
from ridgerider.problems.levers import levers as levers
from ridgerider.problems.surface import surface as surface
from ridgerider.problems.tree import tree as tree
from ridgerider.problems.wells import wells as wells

BUILT_IN: dict[str, Callable[[], Problem]] = {
    "surface": surface,
    "wells": wells,
    "factorization": factorization,
    "levers": levers,
    "digits": digits_classifier,
    "tree": tree,
}


def load_problem(name: str) -> Problem:
    """A built-in problem by name, or yours as `module:attribute` from the current directory.

    The attribute is a `Problem` or a function without arguments that returns one.

    >>> load_problem("wells").size
    3
    """
    if name in BUILT_IN:
        return BUILT_IN[name]()
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
