"""A search that is killed at a random moment, again and again, ends at the same tree."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import ridgerider as rr
from ridgerider.problems import wells
from tests.cases import same_tree

SETTINGS = {"order": "best_first", "max_ridges": 2, "max_rides": 250, "round_size": 4, "seed": 1}
CHILD = """
import sys, jax
jax.config.update("jax_enable_x64", True)
import ridgerider as rr
from ridgerider.problems import wells
from tests.search.engine.test_kill import SETTINGS
say = lambda done: print(done.num_rides, flush=True)
rr.search(wells(5), out=sys.argv[1], progress=say, **SETTINGS)
"""


def start_and_kill(path, seconds):
    """Kill the search so many seconds after its first leg was stored; how far did it come?"""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    child.stdout.readline()
    time.sleep(seconds)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    return child.returncode


@pytest.fixture(scope="module")
def whole():
    return rr.search(wells(5), **SETTINGS)


@pytest.mark.parametrize("num_kills", [1, pytest.param(30, marks=pytest.mark.long)])
def test_kills(whole, tmp_path, num_kills):
    random, killed, came = np.random.default_rng(0), 0, []
    for number in range(num_kills):
        path = tmp_path / f"{number}.sqlite"
        code = start_and_kill(path, random.uniform(0, 0.7))
        before = len(rr.load(path))
        killed += code == -signal.SIGKILL
        came.append(before)
        resumed = rr.resume(path, wells(5))
        assert len(resumed) == 250 and same_tree(whole, resumed), f"after {before} legs"
        assert [len(group) for group in resumed.classes()] == [
            len(group) for group in whole.classes()
        ]
    assert killed == num_kills
    # The moments were spread over the search, and none came after its end.
    assert len(set(came)) > num_kills / 2 and max(came) < 250
