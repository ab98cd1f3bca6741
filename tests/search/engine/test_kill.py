"""A run that is killed at random moments, again and again, ends at the same result.

`python -m tests.search.engine.test_kill KIND PATH` begins a run, or continues it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ridgerider as rr
from ridgerider.problems import classifier, himmelblau, wells

SETTINGS = {"order": "best_first", "max_ridges": 2, "max_rides": 250, "round_size": 4, "seed": 1}


def say(done):
    print(done, flush=True)


def search(path):
    if path.exists():
        return rr.resume(path, wells(5), progress=say)
    return rr.search(wells(5), out=path, progress=say, **SETTINGS)


def explore(path, workers=rr.workers.process_pool):
    with workers(num_workers=2) as pool:
        if path.exists():
            return rr.resume(path, himmelblau(), progress=say, executor=pool)
        return rr.explore(himmelblau(), out=path, progress=say, executor=pool, round_size=4)


def dask(path):
    return explore(path, rr.workers.dask)


def ensemble(path):
    random = np.random.default_rng(0)
    inputs, labels = (
        jnp.asarray(random.normal(size=(96, 6))),
        jnp.asarray(random.integers(3, size=96)),
    )
    problem = classifier(inputs, labels, widths=(5,), init_scale=1e-3)
    finish = rr.Train(optax.adam(0.01), rr.Batches(8), epochs=30, folder=str(path))
    return rr.ensemble(problem, 4, finish=finish, progress=say)


def reproduce(path):
    from ridgerider_experiments import reproduce as run

    run("ablation", path, quick=True, say=say)


KINDS = {one.__name__: one for one in (search, explore, dask, ensemble, reproduce)}


def found(kind, path):
    """What a run that is over has found, without times."""
    if kind == "ensemble":
        return {one.name: one.read_bytes() for one in sorted(path.rglob("*")) if one.is_file()}
    if kind == "reproduce":
        text = (path / "results.json").read_text()
        return json.loads(
            text,
            object_hook=lambda found: {
                name: value
                for name, value in found.items()
                if "second" not in name and name != "commit"
            },
        )
    view = rr.load(path)
    return {
        str(leg.fingerprint): (
            leg.x.tobytes(),
            leg.ended_by,
            str(leg.linked_to),
            int(leg.cost.hvps),
        )
        for leg in map(view.leg, view.fingerprints())
    }


def begin(kind, path):
    return subprocess.Popen(
        [sys.executable, "-m", __name__, kind, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        start_new_session=True,
    )


def finish(kind, path):
    child = begin(kind, path)
    child.communicate()
    assert child.returncode == 0
    return found(kind, path)


def kill_and_continue(kind, path, random, most, longest):
    """Kill a run up to `most` times, each a moment after it printed a line; return how often."""
    for number in range(most):
        child = begin(kind, path)
        child.stdout.readline()
        time.sleep(random.uniform(0, longest))
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        if child.returncode == 0:
            return number
    return most


# The moments are spread over a run by `longest`, in seconds; each run is killed up to three times.
LONG = [
    ("search", 0.7, 75),
    ("explore", 0.3, 75),
    ("dask", 0.3, 15),
    ("ensemble", 1.5, 75),
    ("reproduce", 3.0, 75),
]


@pytest.mark.parametrize(
    ("kind", "longest", "num_kills"),
    [("search", 0.7, 1), *(pytest.param(*one, marks=pytest.mark.long) for one in LONG)],
)
def test_kills(tmp_path, kind, longest, num_kills):
    random, killed, number = np.random.default_rng(0), 0, 0
    whole = finish(kind, tmp_path / "whole")
    while killed < num_kills:
        path, number = tmp_path / f"{number}", number + 1
        killed += kill_and_continue(kind, path, random, min(3, num_kills - killed), longest)
        assert finish(kind, path) == whole, f"after {killed} kills"
        print(kind, killed, "kills of", num_kills, flush=True)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    KINDS[sys.argv[1]](Path(sys.argv[2]))
