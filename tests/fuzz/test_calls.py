"""Wrong arguments: every call works or raises one sentence that names the argument."""

import inspect
import re
import warnings

import numpy as np
import pytest

import ridgerider as rr
from tests.fuzz import calls
from tests.fuzz.commands import alarm

SECONDS = 120


def attempts():
    """Every argument of every public function, with each of the wrong values."""
    names = dict(calls.public())
    for name, what, make in calls.cases():
        function = what if name in names else what()
        for argument, about in inspect.signature(function).parameters.items():
            kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            if about.kind not in kinds:
                for number in range(len(calls.WRONG)):
                    yield name, function, make, argument, number


def fault(function, make, argument, value) -> str:
    """What is wrong with how a call ended; nothing, if it is as it should be."""
    arguments = make() | {argument: value}
    try:
        with alarm(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(**arguments)
    except (ValueError, TypeError) as error:
        text = str(error)
        is_sentence = "\n" not in text and text.endswith((".", "?")) and len(text) < 700
        # Where two arrays do not fit together, either may be named.
        names = list(arguments) if isinstance(value, np.ndarray) else [argument]
        is_named = re.search(rf"`({'|'.join(names)})\b", text) is not None
        return "" if is_sentence and is_named else f"{type(error).__name__}: {text[:300]}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    return ""


@pytest.mark.parametrize("count", [250, pytest.param(1000, marks=pytest.mark.long)])
def test_wrong_arguments(tmp_path, monkeypatch, count):
    monkeypatch.chdir(tmp_path)
    every = list(attempts())
    chosen = np.random.default_rng(5).choice(len(every), count, replace=False)
    faults = []
    for name, function, make, argument, number in (every[index] for index in chosen):
        value = calls.WRONG[number]
        if wrong := fault(function, make, argument, value):
            faults.append(f"{name}({argument}={value!r}): {wrong}")
    assert not faults, "\n".join(faults)


def test_every_public_name_is_called():
    """A new function has to be added to `CALLS`, unless it needs no argument."""
    for name, function, make in calls.cases():
        if name in dict(calls.public()):
            inspect.signature(function).bind(**make())


def test_wrong_arguments_are_refused_before_the_first_call():
    """The function is not called for a setting that is wrong."""
    num_calls = 0

    def value_and_grad(x):
        nonlocal num_calls
        num_calls += 1
        return np.sum(x**4 / 4 - x**2 / 2), x**3 - x

    problem = rr.Problem.from_functions(value_and_grad, np.full(2, 0.3), check=False)
    before, wrong = num_calls, object()
    for function in (rr.search, rr.explore, rr.find_saddle):
        for argument in list(inspect.signature(function).parameters)[1:]:
            with pytest.raises(ValueError, match=f"`{argument}`"):
                function(problem, **{argument: wrong})
    assert num_calls == before
