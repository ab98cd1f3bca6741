"""A problem that is spread over devices, or over processes, is ridden as if it were on one."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.core.problem.sharded_ride import ride


@pytest.fixture(scope="module")
def plain():
    return ride(split=False)


def run(*arguments):
    script = Path(__file__).with_name("sharded_ride.py")
    path = os.pathsep.join([str(script.parents[2]), *sys.path])
    return subprocess.Popen(
        [sys.executable, str(script), *map(str, arguments)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path},
    )


def check(plain, path, num_devices):
    found = np.load(path)
    legs = list(plain)
    assert int(found["devices"]) == num_devices and len(legs) == 2
    assert str(found["problem"]) == str(plain.meta["problem"])  # the same start and data
    assert found["steps"].tolist() == [leg.num_steps for leg in legs]
    assert found["hvps"].tolist() == [leg.cost.hvps for leg in legs]
    for leg in legs:
        # Sums over devices are split differently: rounding, times what a few steps make of it.
        np.testing.assert_allclose(leg.x, found[str(leg.fingerprint)], rtol=0, atol=1e-10)


def test_four_devices(plain, tmp_path):
    assert run(tmp_path / "four.npz", 4).wait(300) == 0
    check(plain, tmp_path / "four.npz", 4)


@pytest.mark.long
def test_two_processes(plain, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    both = [run(tmp_path / f"{rank}.npz", port, rank) for rank in (0, 1)]
    assert [one.wait(300) for one in both] == [0, 0]
    for rank in (0, 1):
        check(plain, tmp_path / f"{rank}.npz", 2)
