"""Command lines made of everything: each ends with a sentence, and starts no long work."""

import numpy as np
import pytest

import ridgerider as rr
from ridgerider.problems import wells
from tests.fuzz.commands import run

NUMBERS = (
    *("0", "1", "2", "-1", "inf", "-inf", "nan", "1e400", "1e-400", "0.1", "1e308", "5e-324"),
    *("9" * 30, "9" * 5000, "", " ", "x", "0x10", "1_0", "٣", "None", "true", "\n", "-0.0"),
)
TEXTS = (
    *("", " ", "x", "wells", "mine:problem", "os:abort", "sys:exit", "a:b:c", "../x", "\n", "0+"),
    *("0+ 0+", "v9+", "9" * 400 + "+", "[red]", "a\nb", "\ud800", "'", '"', "%s", "run", "here"),
    *("gradient", "random", "dense", "hvp", "all", "one", "both", "best_first", "x" * 5000, "--"),
)
PLACES = ("run.sqlite", "here", "nowhere", "", ".", "/", "/dev/null", "x" * 300, "a\nb", "mine.py")
SEARCH = (
    *("--order", "--members", "--branch-at", "--engine", "--out", "--dask"),
    *("--max-ridges", "--max-depth", "--round-size", "--seed", "--max-steps", "--max-hvps"),
    "--max-seconds",
)
OPTIONS = {
    "search": (*SEARCH, "--help"),
    "resume": ("--max-rides", "--max-seconds", "--problem", "--trust"),
    "show": ("--help", "--nothing"),
    "report": ("--out", "--problem"),
    "replay": ("--problem", "--trust"),
    "check": ("--repair", "--nothing"),
    "watch": ("--port",),
    "reproduce": ("--out", "--seed", "--workers", "--quick"),
    "nothing": ("--nothing",),
}
FILE = """
import jax.numpy as jnp
import ridgerider as rr
problem = rr.Problem(lambda x: jnp.sum(x**4 - x**2), jnp.zeros(1))
"""


def pick(random, *choices):
    words = choices[random.integers(len(choices))]
    return words[random.integers(len(words))]


def line(random):
    """A command with an argument or two and some options; whatever could ride is kept short."""
    command = pick(random, tuple(OPTIONS))
    words = [command]
    if command == "search":
        words += [pick(random, ("wells",), TEXTS), "--max-rides", "1"]
    elif command == "reproduce":
        words += [pick(random, tuple(text for text in TEXTS if text != "all"))]  # no experiment
    elif command == "watch":
        words += [pick(random, ("nowhere", "x" * 300, "a\nb"))]  # nothing that it would serve
    else:
        words += [pick(random, PLACES)]
    if command == "replay":
        words += [pick(random, TEXTS)]
    for _ in range(random.integers(0, 4)):
        option = pick(random, OPTIONS[command])
        words.append(option)
        if option == "--dask":
            words.append(pick(random, ("x", "tcp://", "tcp://x:y", "")))
        elif option == "--round-size":
            words.append(pick(random, ("0", "1", "2", "-1", "x")))
        elif option not in ("--trust", "--repair", "--quick", "--help"):
            words.append(pick(random, NUMBERS, TEXTS))
    if random.random() < 0.1:
        words.insert(random.integers(len(words) + 1), pick(random, TEXTS, NUMBERS))
    return words


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.long)])
def test_command_lines(tmp_path, monkeypatch, count):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(FILE)
    rr.search(wells(), rr.Rider(max_steps=40), out="run.sqlite", max_rides=2, name="wells")
    codes = dict.fromkeys(range(3), 0)
    for number in range(count):
        words = line(np.random.default_rng([4, number]))
        if "\x00" in "".join(words):
            continue
        ended = run(*words, seconds=120)
        ended.check()
        codes[ended.code] += 1
    print(codes)
    assert codes[2] > count / 3


def test_what_is_built_in_is_no_problem_and_is_not_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("os:abort", "sys:exit", "faulthandler:_sigabrt"):
        ended = run("search", name, "--max-rides", "1")
        ended.check()
        assert ended.code == 2 and f"{name} must be a Problem" in ended.err
