"""Every check of an argument: one sentence that names it, what was wanted and what came.

What is wanted stands in the annotation: its type, the axes of an array, the number of arguments of
a function, and, as `Annotated`, the range of a number or how a function is called. `checked`
compares the arguments of a function with it, and `check_fields` the fields of a class.

A setting may be an array; under a trace nothing can be asked of its entries.
"""

import collections.abc
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cache, wraps
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import jax
import numpy as np
from jaxtyping import AbstractArray, Array, Float

ANYTHING = (Any, object, inspect.Parameter.empty)
SEVERAL: dict[Any, Any] = {
    list: Sequence,
    tuple: Sequence,
    Sequence: Sequence | np.ndarray | jax.Array,
    collections.abc.Collection: collections.abc.Collection,
    collections.abc.Iterable: collections.abc.Iterable,
}
MAX_COUNT = 2**31 - 1  # which programs hold in 32 bits
F = TypeVar("F", bound=Callable[..., Any])


class Range(NamedTuple):
    """What a number must be, in words and as a test."""

    wanted: str
    holds: Callable[[Any], Any]

    def __repr__(self) -> str:
        return self.wanted


def at_least(least: float) -> Range:
    return Range(f"at least {least}", lambda number: number >= least)


def whole(least: int, most: int = MAX_COUNT) -> Range:
    return Range(f"at least {least}", lambda number: least <= number <= most)


def between(least: float, most: float) -> Range:
    return Range(f"between {least} and {most}", lambda number: (number >= least) & (number <= most))


Number = float | Float[Array, ""]  # a setting: a new float compiles again, a new array does not
Count = Annotated[int, whole(1)]
Several = Annotated[int, whole(2)]
Whole = Annotated[int, whole(0)]
Seed = Annotated[int, whole(0, 2**63 - 1)]
POSITIVE = Range("positive", lambda number: number > 0)
Positive = Annotated[Number, POSITIVE]
Finite = Annotated[float, Range("finite", lambda number: number == number)]
Seconds = Annotated[float, POSITIVE]
AtLeast0 = Annotated[Number, at_least(0)]
Share = Annotated[Number, between(0, 1)]
Fraction = Annotated[
    Number, Range("at least 0 and below 1", lambda number: (number >= 0) & (number < 1))
]
Limit = Annotated[float, at_least(0)] | None


def checked(function: F) -> F:
    """The function, which raises before it runs unless its arguments are as they are annotated.

    >>> @checked
    ... def ride(max_steps: Count, order: Literal["first", "last"] | None = None): ...
    >>> try:
    ...     ride(3, order="random")
    ... except ValueError as error:
    ...     print(error)
    `order` must be 'first' or 'last', not 'random'.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:  # Python has a sentence for it
            return function(*args, **kwargs)
        _check_all(given, _wanted_by(function))
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


# One of the things that an argument may be: in words, and as a test, which knows the lengths of
# the axes that have a name.
Sizes = dict[str, int]
Wanted = tuple[str, Callable[[Any, Sizes], bool]]


def fits(hint: Any, value: Any) -> bool:
    """Whether a value is what an annotation says."""
    return any(is_right(value, {}) for _, is_right in _several(hint))


@cache
def _several(hint: Any) -> list[Wanted]:
    return list(_wanted(hint))


def check_fields(self: Any) -> None:
    """Raise unless the fields of a dataclass are as they are annotated."""
    names = [one.name for one in fields(self) if one.init]
    _check_all({name: getattr(self, name) for name in names}, _wanted_by(type(self)))  # type: ignore[arg-type]


KINDS = {"float": "numbers", "int": "whole numbers", "bool": "truth values", "prng_key": "keys"}


@cache
def _wanted_by(what: Any) -> dict[str, list[Wanted]]:
    """What each argument of a function, or each field of a class, may be."""
    if inspect.isclass(what):
        return {one.name: list(_wanted(one.type)) for one in fields(what)}  # type: ignore[arg-type]
    about = inspect.signature(what).parameters.values()
    single = [one for one in about if one.kind is not inspect.Parameter.VAR_POSITIONAL]
    return {one.name: list(_wanted(_evaluated(one.annotation, what))) for one in single}


def _evaluated(hint: Any, function: Any) -> Any:
    try:
        return eval(hint, function.__globals__) if isinstance(hint, str) else hint
    except NameError:  # for type checkers only
        return Any


def _check_all(given: Mapping[str, Any], wanted: Mapping[str, list[Wanted]]) -> None:
    owner = given.get("self", given.get("problem"))
    sizes = {"n": owner.size} if hasattr(owner, "deadline") else {}  # of a `Problem`
    for name, value in given.items():
        if name in wanted and not any(is_right(value, sizes) for _, is_right in wanted[name]):
            texts = dict.fromkeys(text for text, _ in wanted[name] if text != "None") or {"None": 0}
            *first, last = texts
            text = f"{', '.join(first)} or {last}" if first else last
            if isinstance(value, float) and not np.isfinite(value) and text != "finite":
                text += " and finite"
            elif isinstance(value, int) and value > MAX_COUNT:
                text += " and not so large"
            raise ValueError(f"`{name}` must be {text}, not {came(value)}.")


def _wanted(hint: Any) -> Iterator[Wanted]:
    """What a type stands for."""
    kind, parts = get_origin(hint), get_args(hint)
    kinds: dict[Any, Wanted] = {
        None: ("None", lambda value, _: value is None),
        NoneType: ("None", lambda value, _: value is None),
        bool: ("True or False", lambda value, _: isinstance(value, bool | np.bool_)),
        int: ("a whole number", lambda value, _: _is_number(value) and isinstance(value, int)),
        float: ("a number", lambda value, _: _is_number(value)),
        str: ("a string", lambda value, _: isinstance(value, str)),
        PathLike: ("a path", lambda value, _: isinstance(value, PathLike)),
        jax.Array: ("an array", lambda value, _: _is_array(value)),
        np.ndarray: ("an array", lambda value, _: _is_array(value)),
    }
    if kind in (Union, UnionType):
        for part in parts:
            yield from _wanted(part)
    elif kind is Annotated and isinstance(parts[1], str):
        ((_, is_right),) = _wanted(parts[0])
        yield f"callable as {parts[1]}", is_right
    elif kind is Annotated:
        yield _in_range(*parts)
    elif kind is Literal:
        yield from ((repr(one), _equal_to(one)) for one in parts)
    elif kind is collections.abc.Callable:
        yield _function(None if parts[0] is ... else len(parts[0]))
    elif kind in SEVERAL:
        yield _sequence(list(_wanted(parts[0])), SEVERAL[kind])
    elif kind in (dict, collections.abc.Mapping):
        yield _dictionary(list(_wanted(parts[1])))
    elif hint in kinds:
        yield kinds[hint]
    elif isinstance(hint, type) and issubclass(hint, AbstractArray):
        what = next((KINDS[name] for name in KINDS if name in " ".join(hint.dtypes)), "numbers")
        axes = ", ".join(hint.dim_str.split())
        text = f"an array of {what} of shape ({axes})" if axes else "a number"
        yield text, lambda value, sizes: _is_array(value) and _has_axes(value, hint, sizes)
    elif not isinstance(hint, type) or hint in ANYTHING or hint.__module__ == "jaxtyping":
        yield "anything", lambda value, _: True
    else:
        names = [*getattr(hint, "__annotations__", ()), *vars(hint)]
        names = [name for name in names if not name.startswith("_")]
        is_protocol = getattr(hint, "_is_protocol", False)
        text = f"{'an' if hint.__name__[0] in 'AEIO' else 'a'} {hint.__name__}"
        text += f" with {', '.join(names)}" if is_protocol else ""
        yield (
            text,
            (lambda value, _: all(hasattr(value, name) for name in names))
            if is_protocol
            else (lambda value, _: isinstance(value, hint)),
        )


def _dictionary(several: list[Wanted]) -> Wanted:
    is_each = _sequence(several, Sequence)[1]
    each = " or ".join(text for text, _ in several)
    text = "a dictionary" if each == "anything" else f"a dictionary, each value {each}"
    return text, lambda value, _: isinstance(value, Mapping) and is_each([*value.values()], _)


def _equal_to(one: Any) -> Callable[[Any, Sizes], bool]:
    return lambda value, _: isinstance(value, type(one)) and value == one


def _in_range(hint: Any, about: Range) -> Wanted:
    """A number, or an array of them, of which all are in a range."""
    several, kind = list(_wanted(hint)), {int: "a whole number ", float: "a number "}.get(hint, "")
    kind = "" if about.wanted in ("finite", "positive") else kind

    def is_right(value: Any, sizes: Sizes) -> bool:
        if not any(test(value, sizes) for _, test in several):
            return False
        if _is_unknown(value):
            return True
        if isinstance(value, int):  # an array holds no larger ones
            return bool(about.holds(value)) and (hint is float or value < 2**63)
        return bool(np.all(np.isfinite(value) & about.holds(value)))

    of = "of " if kind and about.wanted.startswith("at least") else ""
    return f"{kind}{of}{about.wanted}", is_right


def _function(count: int | None) -> Wanted:
    """What can be called with so many arguments."""

    def is_right(value: Any, _: Sizes) -> bool:
        try:
            if callable(value) and count is not None:
                inspect.signature(value).bind(*range(count))
        except TypeError:
            return False
        except ValueError:  # functions written in C do not always say
            pass
        return callable(value)

    plural = "" if count == 1 else "s"
    return "callable" if count is None else f"callable with {count} argument{plural}", is_right


def _sequence(several: list[Wanted], kinds: Any) -> Wanted:
    """Several of the same type."""

    def is_right(value: Any, sizes: Sizes) -> bool:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, kinds):
            return False
        if not isinstance(value, collections.abc.Collection):  # it would be used up
            return True
        is_empty = isinstance(value, np.ndarray | jax.Array) and not value.ndim
        return not is_empty and all(any(test(one, sizes) for _, test in several) for one in value)

    texts = " or ".join(text for text, _ in several)
    return ("a list" if texts == "anything" else f"a list, each entry {texts}"), is_right


def _is_array(value: Any) -> bool:
    is_array = isinstance(value, np.ndarray | np.generic | jax.Array)
    return is_array and (isinstance(value, jax.Array) or value.dtype.kind in "biuf")


def _has_axes(value: Any, hint: Any, sizes: Sizes) -> bool:
    """Whether an array has the type and the axes of a hint."""
    is_whole = hint.array_type is np.ndarray and value.dtype.kind in "iu"  # as good as numbers
    names = [str(value.dtype), "prng_key"] if value.dtype == object else [str(value.dtype)]
    if not (set(names) & set(hint.dtypes) or (is_whole and "float64" in hint.dtypes)):
        return "prng_key" in hint.dtypes and names[0].startswith("key")
    axes = hint.dim_str.split()
    if "..." in axes:
        return value.ndim >= len(axes) - 1
    lengths = {axis: int(axis) for axis in axes if axis.isdigit()} | sizes
    for axis, length in zip(axes, value.shape, strict=False):
        if lengths.setdefault(axis, length) != length:
            return False
    sizes |= lengths
    return len(axes) == value.ndim


def _is_number(value: Any) -> bool:
    is_plain = isinstance(value, int | float | np.integer | np.floating)
    return is_plain and not isinstance(value, bool)


def came(value: Any) -> str:
    """A value in the middle of a sentence."""
    if isinstance(value, np.ndarray | jax.Array):
        return f"an array of shape {value.shape} and type {value.dtype}"
    try:
        if isinstance(value, type):
            return f"the class {value.__name__}"
        if inspect.isroutine(value):
            return f"{value.__name__}{inspect.signature(value)}"
        text = one_line(repr(value))
    except Exception:  # of an object of the user's own
        text = "an object"
    return text if len(text) <= 100 else f"{text[:60]}..., of type {type(value).__name__}"


def check_count(name: str, value: Any, least: int = 1, most: int | None = None) -> None:
    """Raise unless `value` is a whole number from `least` to `most`."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):
        wanted = f"of at least {least}" if most is None else f"between {least} and {most}"
        raise ValueError(f"`{name}` must be a whole number {wanted}, not {value!r}.")


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    if value not in choices:
        *first, last = map(repr, choices)
        raise ValueError(f"`{name}` must be {', '.join(first)} or {last}, not {value!r}.")


def check_start(failure: str = "", **found: Any) -> None:
    """Raise where the loss at the start, or what else was found there, is NaN or infinite.

    `failure` is what the user's function has raised there.
    """
    for name, value in found.items():
        check_finite(f"the {name} at `start`", value, f" ({failure})" if failure else "")


def check_finite(where: str, value: Any, why: str = "") -> None:
    """Raise if an array holds NaN or infinity; of one that processes share, each sees its part."""
    if isinstance(value, jax.core.Tracer):
        return
    is_array = isinstance(value, jax.Array)
    parts = [shard.data for shard in value.addressable_shards] if is_array else [value]
    if not all(np.all(np.isfinite(part)) for part in parts):
        raise ValueError(f"{where} must be finite, but it holds NaN or infinity{why}.")


def check_takes(name: str, function: Any, count: int) -> None:
    """Raise if a function cannot be called with so many arguments."""
    wanted, is_right = _function(count)
    if callable(function) and not is_right(function, {}):
        raise ValueError(f"`{name}` must be {wanted}, not {came(function)}.")


def check_labels(what: str, labels: Any, num_examples: int, num_classes: int) -> None:
    """Raise unless there is a class, 0 to `num_classes` - 1, for each of the examples."""
    if np.shape(labels) != (num_examples,) or labels.dtype.kind not in "iu":
        raise ValueError(
            f"{what} must be whole numbers, one for each of the {num_examples} examples, not of "
            f"shape {np.shape(labels)} and type {labels.dtype}."
        )
    if num_examples and not 0 <= labels.min() <= labels.max() < num_classes:
        raise ValueError(
            f"{what} must be from 0 to {num_classes - 1}, but they go from {labels.min()} to "
            f"{labels.max()}."
        )


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Imports that only an extra of the library brings; without it one sentence says which."""
    try:
        yield
    except ImportError as error:
        raise ValueError(
            f"{what} needs {error.name}, which cannot be imported ({error}): "
            f"pip install 'ridgerider[{extra}]'."
        ) from error


@contextmanager
def told_of(name: str, how: str) -> Iterator[None]:
    """What a function of the user's raises when it is first called, in a sentence."""
    try:
        yield
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith("`"):  # a sentence already
            raise
        what = f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(f"`{name}` must be callable as {how}, but it raised {what}.") from error


def one_line(what: object) -> str:
    """Text for the middle of a sentence: without line breaks, and no full stop at its end.

    >>> one_line("no such\\nfile.")
    'no such file'
    >>> one_line("a callback failed: Traceback (most recent call last):\\n  File...\\nKeyError: 3")
    'a callback failed: KeyError: 3'
    """
    try:
        text = str(what)
    except Exception:  # an exception of the user's own may fail at this as well
        text = ""
    text, _, trace = text.partition("Traceback (most recent call last):")
    text += trace.rstrip().rpartition("\n")[2]
    text = " ".join(printable(text[:2000]).split())
    text = text if len(text) <= 400 else f"{text[:400]}..."
    return text.rstrip(".") or type(what).__name__


def check_directory(name: str, path: Path) -> None:
    """Raise unless a file can have its place there."""
    if not path.parent.is_dir():
        where = one_line(path.parent)
        raise ValueError(f"`{name}` must be in a directory that exists, but {where} does not.")


def count(number: int, one: str, many: str = "") -> str:
    """So many of a thing.

    >>> count(1, "leg"), count(2000, "leg"), count(2, "minimum", "minima")
    ('1 leg', '2,000 legs', '2 minima')
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def printable(text: str) -> str:
    """Text that cannot control a terminal: a space for each character that is not to be printed.

    >>> printable("a\\x1b[31m name\\nin two lines")
    'a [31m name\\nin two lines'
    """
    return "".join(one if one.isprintable() or one == "\n" else " " for one in text)


def _is_unknown(value: Any) -> bool:
    """Whether the entries are not at hand: under a trace, or in another process."""
    if isinstance(value, jax.core.Tracer):
        return True
    return isinstance(value, jax.Array) and not value.is_fully_addressable
