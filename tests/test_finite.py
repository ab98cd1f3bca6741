"""No setting may be infinite or no number: every numeric field of every rule, and every option."""

import dataclasses
import inspect
import typing

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from typer.testing import CliRunner

import ridgerider as rr
from ridgerider import baselines, cli, environments, problems
from ridgerider._search.runfile.rules_json import RULES
from ridgerider._search.tree import Budget
from ridgerider.dice import Dice
from ridgerider.problems import wells
from ridgerider.types import Settings

BAD = (float("inf"), float("-inf"), float("nan"))
# An option that means "no limit" where it is infinite.
NO_LIMIT = {("GradientDescent", "target"), ("EigenvectorDescent", "target")}


def is_numeric(kind):
    inner = typing.get_args(kind)
    return kind in (int, float) or any(is_numeric(one) for one in inner if one is not bool)


def rules():
    """Every public class with settings that can be made without arguments."""
    for place in (rr, environments, baselines):
        for name in dir(place):
            kind = getattr(place, name)
            if isinstance(kind, type) and dataclasses.is_dataclass(kind):
                is_rule = "__call__" in vars(kind) or kind is rr.Rider
                if is_rule and all(has_default(item) for item in dataclasses.fields(kind)):
                    yield name, kind
    yield "Budget", Budget
    yield "Settings", Settings
    yield "Dice", Dice
    yield "Batches", rr.Batches


def has_default(item):
    missing = dataclasses.MISSING
    return item.default is not missing or item.default_factory is not missing


FIELDS = [
    (name, kind, item.name)
    for name, kind in rules()
    for item in dataclasses.fields(kind)
    if is_numeric(item.type) and item.init and (name, item.name) not in NO_LIMIT
]


STATIC = {
    name: {item.name for item in dataclasses.fields(kind) if item.metadata.get("static")}
    for name, kind in rules()
}


def test_the_list_is_not_empty():
    known = {name for name, *_ in FIELDS}
    assert {"Backtracking", "Descend", "Davidson", "Rider", "Settings", "Budget"} <= known
    assert len(FIELDS) > 40


@pytest.mark.parametrize(("name", "kind", "field"), FIELDS)
def test_fields_of_rules(name, kind, field):
    base = {"size": 5} if kind is rr.Batches else {}
    for bad in BAD:
        is_static = field in STATIC[name]
        for value in (bad,) if is_static else (bad, np.float32(bad), jnp.asarray(bad)):
            with pytest.raises(ValueError, match=f"`{field}`"):
                kind(**{**base, field: value})
    with pytest.raises(ValueError, match=f"`{field}`"):
        kind(**{**base, field: "a"})


@pytest.mark.parametrize(
    "call",
    [
        lambda bad: rr.search(wells(1), max_seconds=bad),
        lambda bad: rr.search(wells(1), max_rides=bad),
        lambda bad: rr.find_saddle(wells(1), noise=bad),
        lambda bad: rr.workers.process_pool(1, lease=bad),
        lambda bad: rr.workers.dask(num_workers=1, lease=bad),
        lambda bad: rr.search(wells(1), max_rides=1).minima(bad),
        lambda bad: problems.tree(p_terminal=bad),
    ],
)
def test_arguments(call):
    for bad in BAD:
        with pytest.raises(ValueError, match="must be"):
            call(bad)


@pytest.mark.parametrize("command", ["search", "resume", "watch", "reproduce", "demo", "bench"])
def test_options(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (found,) = (one for one in cli.app.registered_commands if one.name == command)
    numeric = [
        name
        for name, parameter in inspect.signature(found.callback).parameters.items()
        if is_numeric(typing.get_args(parameter.annotation)[0])
    ]
    target = {"search": ["wells"], "reproduce": ["surface"], "demo": [], "bench": []}
    for name in numeric:
        for bad in ("inf", "-inf", "nan", "1e999"):
            option = f"--{name.replace('_', '-')}"
            line = [command, *target.get(command, ["."]), f"{option}={bad}"]
            ended = CliRunner().invoke(cli.app, line)
            assert ended.exit_code, f"{line} {ended.output}"
            assert isinstance(ended.exception, ValueError | OSError | SystemExit)
    assert numeric or command not in ("search", "resume")


def test_a_least_size_that_rounds_to_zero_ends_all_the_same():
    """In float32 1e-50 is zero, and no size is less; nothing keeps this ridge."""
    problem = rr.Problem(
        lambda x: jnp.where(jnp.abs(x[0]) > 0, jnp.nan, 1.0) * -(x[0] ** 2) + x[1] ** 2,
        jnp.zeros(2, "float32"),
    )
    rider = rr.Rider(step=rr.Backtracking(min_size=1e-50), finish=None, max_steps=5)
    result = rr.search(problem, rider, max_rides=1)
    assert result.endings()["not_finite"] == 1


def test_every_rule_with_settings_can_be_rebuilt_from_a_file():
    """A new rule goes into the list of those that a run file may name."""
    listed = {name for names in RULES.values() for name in names}
    for place in (rr, environments):
        for name in dir(place):
            kind = getattr(place, name)
            is_class = isinstance(kind, type) and dataclasses.is_dataclass(kind)
            assert not is_class or "__call__" not in vars(kind) or name in (*listed, "Network"), (
                name
            )
    assert all(hasattr(optax, name) for name in RULES["optax"])
