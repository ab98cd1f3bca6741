"""Ctrl-C and SIGTERM while anything runs: the command ends at once, and says how to go on.

Nothing here is timed but by a generous limit: on a busy machine even a prompt end takes a while.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import pytest

import ridgerider as rr
from ridgerider._search.crew.interrupt import interruptible

MODULE = """
import jax, jax.numpy as jnp, ridgerider as rr

def slow(x, count):
    # Compiled, and deaf to signals: a loop that takes minutes.
    def add(i, total):
        return total + jnp.sin(total + i)
    return jax.lax.fori_loop(0, count, add, jnp.zeros((), x.dtype)) * 0

def well(x):
    return jnp.sum(x**4 / 4 - x**2 / 2)

def beyond(x, count, least):  # slow there, but for halves, where the unit of length is measured
    is_slow = (jnp.abs(x[0]) > least) & (x[0] % 0.5 != 0)
    return well(x) + jax.lax.cond(is_slow, lambda: slow(x, count), lambda: 0.0)

def only_far(x, count):  # slow on the way, not at the start
    return beyond(x, count, 0.3)

def only_below(x, count):  # slow where descents end, not where rides do
    return beyond(x, count, 0.8)

def many(x):  # slow to compile
    for number in range(1500):
        x = jnp.sin(x * number) + x * jnp.cos(x + number)
    return jnp.sum(x**2)

ride = rr.Problem(only_far, jnp.zeros(1), 2_000_000_000)
descent = rr.Problem(only_below, jnp.zeros(1), 2_000_000_000)
compilation = rr.Problem(lambda x: well(x) + 0 * many(x), jnp.zeros(1))
"""
# What is started in the background of a shell ignores Ctrl-C.
HEARING = [
    sys.executable,
    "-c",
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.argv[1], sys.argv[1:])",
]
COMMAND = [sys.executable, "-m", "ridgerider.cli", "search"]
LIMIT = 30  # seconds that an end may take here; 2 on a machine that has nothing else to do


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODULE)


def stopped(name, *options, stop=signal.SIGINT, ready=None, patience=300):
    """Start a search, stop it once it is at work, and return its code, words and seconds."""
    paths = [*filter(None, sys.path), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    child = subprocess.Popen(
        [*HEARING, *COMMAND, name, "--max-rides", "2", "--out", "here", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    try:
        return _stopped(child, stop, ready, patience)
    finally:
        child.kill()


def _stopped(child, stop, ready, patience):
    end = time.monotonic() + patience
    while time.monotonic() < end and child.poll() is None and not (ready and ready()):
        time.sleep(0.1)
    assert ready is None or ready(), "it did not begin"
    time.sleep(2)  # into what is slow
    assert child.poll() is None, child.communicate()[0]
    began = time.monotonic()
    child.send_signal(stop)
    out, _ = child.communicate(timeout=LIMIT)
    return child.returncode, out, time.monotonic() - began


def has_run():
    return Path("here/run.sqlite").exists()


@pytest.mark.parametrize(
    ("name", "stop"),
    [
        pytest.param("ride", signal.SIGINT),
        pytest.param("ride", signal.SIGTERM, marks=pytest.mark.long),
        pytest.param("descent", signal.SIGINT, marks=pytest.mark.long),
    ],
)
def test_a_search_is_stopped_while_it_rides(name, stop):
    code, out, seconds = stopped(f"mine:{name}", stop=stop, ready=has_run)
    print(f"{name}: {seconds:.2f} s")
    assert code == 128 + stop and "Traceback" not in out
    assert out.count("stopped; continue with: ridgerider resume here/run.sqlite") == 1
    assert rr.load("here/run.sqlite").num_open() == 2


@pytest.mark.long
def test_a_search_is_stopped_while_it_compiles():
    code, out, seconds = stopped("mine:compilation", ready=Path("here").exists)
    print(f"compilation: {seconds:.2f} s")
    assert code == 130 and "stopped; nothing was ridden yet" in out and "Traceback" not in out


@pytest.mark.long
@pytest.mark.parametrize("workers", [("--workers", "1"), ("--workers", "1", "--dask", "local")])
def test_a_search_with_workers_is_stopped(workers):
    code, out, seconds = stopped("mine:ride", *workers, ready=has_run)
    print(f"{workers}: {seconds:.2f} s")
    assert code == 130 and "continue with: ridgerider resume" in out and "Traceback" not in out


SCRIPT = """
import sys, jax
jax.config.update("jax_enable_x64", True)
import ridgerider as rr
from mine import ride
try:
    rr.search(ride, out="here.sqlite", max_rides=1)
except KeyboardInterrupt:
    print("heard", flush=True)
    raise
"""


@pytest.mark.long
def test_a_script_hears_it_and_ends_by_the_signal(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    child = subprocess.Popen(
        [*HEARING, sys.executable, "script.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    while not Path("here.sqlite").exists() and child.poll() is None:
        time.sleep(0.1)
    time.sleep(2)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=LIMIT)
    assert child.returncode == -signal.SIGINT and "heard" in out and "KeyboardInterrupt" in err


def test_work_is_done_and_errors_come_back():
    assert interruptible(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        interruptible(divmod, 1, 0)


def test_settings_of_one_thread_are_kept():
    def precision():
        return jax.config.jax_default_matmul_precision

    with jax.default_matmul_precision("highest"):
        assert interruptible(precision) == "highest"


def test_an_interrupt_leaves_the_work_behind():
    begun, go_on = threading.Event(), threading.Event()

    def work():
        begun.set()
        go_on.wait(60)

    def interrupt():
        begun.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            interruptible(work)
    finally:
        signal.signal(signal.SIGINT, before)
        go_on.set()
    assert interruptible(pow, 2, 3) == 8
