"""Problems of users that do anything: a sentence says whose error it is, and where."""

import itertools
import os
import subprocess
import sys

import pytest

from tests.fuzz.commands import Ended, run

HEAD = """
import sys, os
import jax, jax.numpy as jnp, numpy as np
import ridgerider as rr
class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")
class Odd(BaseException):
    pass
def deep(n):
    return deep(n + 1)
"""
# What goes wrong...
RAISES = (
    "raise ValueError('mine')",
    "raise ValueError('two\\nlines.')",
    "raise KeyError('mine')",
    "raise TypeError",
    "raise RuntimeError('x' * 10_000)",
    "raise OSError(2, 'mine', 'file\\nname')",
    "raise MemoryError",
    "raise Mute",
    "raise Odd('odd')",
    "raise StopIteration",
    "raise AssertionError",
    "raise SystemExit",
    "raise GeneratorExit",
    "raise UnicodeDecodeError('utf8', b'x', 0, 1, 'mine')",
    "raise ExceptionGroup('many', [ValueError('a'), TypeError('b')])",
    "raise jax.errors.JaxRuntimeError('INTERNAL: mine')",
    "raise OverflowError('\\ud800')",
    "sys.exit(0)",
    "sys.exit('bye')",
    "sys.exit(3)",
    "deep(0)",
    "1 / 0",
    "undefined",
    "[][1]",
    "None.attribute",
    "import nowhere_to_be_found",
    "from os import nothing_of_this_name",
    "open('/nowhere/at/all')",
    "np.zeros(2) @ np.zeros(3)",
    "jnp.zeros(2) + jnp.zeros(3)",
    "next(iter([]))",
    "exec('def (')",
    "assert False, 'mine'",
)
# ... and where.
PLACES = {
    "module": "{bad}\nproblem = None",
    "factory": "def problem():\n    {bad}",
    "inner": "def helper():\n    {bad}\ndef problem():\n    return helper()",
    "loss": "def loss(x):\n    {bad}\nproblem = lambda: rr.Problem(loss, jnp.zeros(2))",
    "later": (
        "calls = []\ndef loss(x):\n    calls.append(1)\n    if len(calls) > 1:\n        {bad}\n"
        "    return jnp.sum(x**4 - x**2)\nproblem = rr.Problem(loss, jnp.zeros(2))"
    ),
    "lambda": "def bad(*_):\n    {bad}\n"
    "problem = lambda: rr.Problem(lambda x: bad(x), jnp.zeros(1))",
    "attribute": "def __getattr__(name):\n    if name == 'problem':\n        {bad}\n"
    "    raise AttributeError(name)",
    "pytree": (
        "@jax.tree_util.register_pytree_node_class\nclass Tree:\n    def tree_flatten(self):\n"
        "        {bad}\n    @classmethod\n    def tree_unflatten(cls, *_):\n        {bad}\n"
        "problem = lambda: rr.Problem(lambda x: 0.0, Tree())"
    ),
    "args": (
        "class Data:\n    def __array__(self, *_, **__):\n        {bad}\n"
        "def loss(x, data):\n    return jnp.sum(x**4 - x**2) + jnp.sum(np.asarray(data))\n"
        "problem = lambda: rr.Problem(loss, jnp.zeros(2), Data())"
    ),
}
# Losses that are wrong in themselves.
LOSSES = (
    *(
        "None",
        "3",
        "'text'",
        "x",
        "jnp.sum(x) * 1j",
        "jnp.zeros(0)",
        "jnp.sum(x) > 0",
        "[jnp.sum(x)]",
    ),
    *("np.sum(np.sin(x))", "float(jnp.sum(x))", "jnp.sum(x).item()", "int(x[0])", "x.sum() or 1"),
    *("jnp.nan * jnp.sum(x)", "jnp.inf + 0 * jnp.sum(x)", "jnp.sum(x)", "0.0 * jnp.sum(x)"),
    *("jnp.sum(x**2)", "jnp.sum(jnp.abs(x))", "jnp.sum(jnp.sqrt(x))", "jnp.sum(jnp.log(x))"),
    *(
        "jnp.sum(x**4 - x**2) * 1e300 * 1e300",
        "jnp.sum(x**4 - x**2) * 1e-320",
        "-jnp.sum(x**4 + x**2)",
    ),
    *("jnp.sum(1 / x)", "jnp.sum(x**4 - x**2) + jnp.where(x[0] > 0.1, jnp.nan, 0.0)"),
    *("jnp.sum(x**4 - x**2) + np.random.normal()", "-jnp.exp(jnp.exp(jnp.exp(jnp.sum(x**2))))"),
    "jax.pure_callback(lambda v: 1 / 0, jax.ShapeDtypeStruct((), x.dtype), x)",
    "jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * x[0]), (0, 1.0))[1]",
    "jax.lax.stop_gradient(jnp.sum(x**4 - x**2))",
    "jnp.sum(jax.lax.stop_gradient(x) * x) - jnp.sum(x**2)",
    "jnp.linalg.cholesky(jnp.diag(x) - jnp.eye(2)).sum()",
    "jnp.sum(x[5:]) - jnp.sum(x**2)",
)
STARTS = (
    *(
        "jnp.zeros(2)",
        "jnp.zeros(0)",
        "None",
        "[]",
        "{}",
        "3",
        "'x'",
        "jnp.zeros(2, int)",
        "np.nan",
    ),
    *(
        "jnp.array([jnp.inf, 0])",
        "jnp.zeros(2, complex)",
        "(jnp.zeros(1), jnp.zeros(1, 'float32'))",
    ),
    *("{'a': None}", "object()", "[1, 2]", "np.zeros(2, object)", "jnp.zeros(2, 'float16')"),
    *("jnp.zeros(2, 'float32')", "np.zeros((0, 3))", "lambda: 0", "jax.random.key(0)", "range(3)"),
)
ATTRIBUTES = (
    *(
        "problem = 3",
        "problem = rr.Problem",
        "problem = rr",
        "problem = print",
        "problem = sys.exit",
    ),
    *("problem = os.getcwd", "problem = lambda x: x", "problem = type", "problem = None", "pass"),
    *("def problem():\n    yield 1", "async def problem():\n    pass", "problem = property()"),
    *("class problem:\n    pass", "del rr", "raise SystemExit(0)", "import this_is_not_there", "("),
    *(
        "\t bad indent",
        "\x0c",
        "problem = '\\ud800'",
        "from __future__ import nothing",
        "x" * 100_000,
    ),
    *("sys.stdout = None", "sys.stderr = None", "sys.path[:] = []", "del sys.modules['jax']"),
)


def modules():
    """All of them, in a fixed order that mixes the kinds."""
    for (place, frame), bad in itertools.product(PLACES.items(), RAISES):
        yield f"{place}: {bad}", HEAD + frame.replace("{bad}", bad)
    for loss in LOSSES:
        yield loss, f"{HEAD}problem = lambda: rr.Problem(lambda x: {loss}, jnp.zeros(2))"
    for start in STARTS:
        yield start, f"{HEAD}problem = lambda: rr.Problem(lambda x: jnp.sum(x**4 - x**2), {start})"
    for text in ATTRIBUTES:
        yield text, HEAD + text


ALL = list(modules())


def test_there_are_enough():
    assert len(ALL) >= 300


SOME = [pytest.param(slice(None), marks=pytest.mark.long), slice(0, None, 12), slice(-4, None)]


@pytest.mark.parametrize("which", SOME)
def test_hostile_modules(tmp_path, monkeypatch, which):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    codes = dict.fromkeys(range(3), 0)
    for number, (what, text) in list(enumerate(ALL))[which]:
        name = f"hostile_{number}"
        (tmp_path / f"{name}.py").write_text(text, errors="surrogatepass")
        kept = sys.stdout, sys.stderr, list(sys.path), dict(sys.modules)
        try:
            ended = run("search", f"{name}:problem", "--max-rides", "1", "--max-steps", "20")
        finally:
            sys.stdout, sys.stderr, sys.path[:] = kept[:3]
            sys.modules.update(kept[3])
            sys.modules.pop(name, None)
        try:
            ended.check()
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}") from None
        codes[ended.code] += 1
        if ": raise" in what and not what.startswith("pytree"):
            assert ended.code == 2 and f"{name}.py" in ended.err, f"{what}: {ended}"
    print(codes)
    assert codes[2] > len(ALL[which]) / 2


def test_an_iteration_that_a_loss_ends_is_its_own(tmp_path, monkeypatch):
    """Python makes another error of it in a generator."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    frame = PLACES["later"].replace("{bad}", "raise StopIteration")
    (tmp_path / "hostile_end.py").write_text(HEAD + frame)
    ended = run("search", "hostile_end:problem", "--max-rides", "1")
    ended.check()
    assert ended.code == 2 and "the problem raised StopIteration" in ended.err
    assert "hostile_end.py" in ended.err


def test_what_a_callback_raises_is_told_once(tmp_path):
    """Not by JAX as well; as a user sees it, so in a process of its own."""
    callback = "jax.pure_callback(lambda v: 1 / 0, jax.ShapeDtypeStruct((), x.dtype), x)"
    problem = f"problem = lambda: rr.Problem(lambda x: {callback}, jnp.zeros(2))"
    (tmp_path / "hostile_callback.py").write_text(HEAD + problem)
    done = subprocess.run(
        [sys.executable, "-m", "ridgerider.cli", "search", "hostile_callback:problem"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    Ended(tuple(done.args), done.returncode, done.stdout, done.stderr).check()
    assert done.returncode == 2 and "ZeroDivisionError: division by zero" in done.stderr
