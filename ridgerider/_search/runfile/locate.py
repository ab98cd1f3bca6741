"""Problems by name: `module:attribute`, or one of those that come with the library."""

import hashlib
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any

from ridgerider._check import one_line
from ridgerider._core.problem.problem import Problem

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


def load_problem(name: str) -> Problem:
    """A built-in problem by name, or yours as `module:attribute` from the current directory.

    The attribute is a `Problem` or a function without arguments that returns one.

    >>> load_problem("wells").size
    3
    """
    choices = f"the problem must be one of {', '.join(BUILT_IN)} or"
    problem = load_attribute(choices, BUILT_IN.get(name, name))
    # What is built in makes no problem, but may well end the process.
    if callable(problem) and not isinstance(problem, Problem | BuiltinFunctionType):
        try:
            inspect.signature(problem).bind()
        except TypeError as error:
            reason = one_line(error)
            raise ValueError(f"{name} must be callable without arguments: {reason}.") from None
        except ValueError:  # a builtin, of which nothing is known
            pass
        with _told(f"{name} cannot be called"):
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
    if isinstance(problem, Problem):
        return problem, None
    if not isinstance(problem, str):
        raise ValueError(
            "`problem` must be a Problem or its name as `module:attribute`, not "
            f"{type(problem).__name__}."
        )
    return load_problem(problem), problem


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
    here, module = str(Path.cwd()), None
    if here not in sys.path:
        sys.path.insert(0, here)
    with _told(f"module {module_name!r} cannot be imported"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name != module_name:
                raise
    if module is None:
        where = f"in {one_line(here)} or among the installed ones"
        raise ValueError(f"there is no module {module_name!r} {where}.")
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
