"""Whoever rides, wherever and however often they die: the same tree."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from contextlib import suppress
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider import workers
from ridgerider._search.crew.lost_workers import Job, check_versions, open_job, wrong_with
from ridgerider._search.engine import rides as _rides
from ridgerider._search.engine.rides import Rides
from ridgerider._search.runfile.store import versions
from ridgerider._search.tree import Settings
from ridgerider.problems import wells
from ridgerider.problems.wells import wells_loss
from tests.cases import same_tree

RIDER = rr.Rider(finish=None, step=rr.FixedStep(0.1))  # soon compiled
SETTINGS = {"order": "best_first", "round_size": 8, "max_rides": 60, "seed": 1}
NUM_KILLS = [1, pytest.param(20, marks=pytest.mark.long)]


@pytest.fixture(scope="module")
def plain():
    return rr.search(wells(4), RIDER, **SETTINGS)


@pytest.fixture(scope="module")
def pool():
    with workers.process_pool(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def cluster():
    with workers.dask(num_workers=2) as cluster:
        yield cluster


# --- the same result however it runs


@pytest.fixture(scope="module")
def finished():
    return rr.search(wells(4), **SETTINGS)


@pytest.mark.parametrize("engine", ["pool", "cluster"])
def test_engines_agree_to_the_last_bit(finished, engine, request):
    executor = request.getfixturevalue(engine)
    assert same_tree(finished, rr.search(wells(4), executor=executor, **SETTINGS))


def test_a_problem_may_travel_by_name(plain, pool):
    result = rr.search("tests.workers.test_workers:four_wells", RIDER, executor=pool, **SETTINGS)
    assert same_tree(plain, result) and result.name == "tests.workers.test_workers:four_wells"
    with pytest.raises(ValueError, match=r"shifting_wells must be the same problem"):
        rr.search(
            "tests.workers.test_workers:four_shifting_wells", RIDER, executor=pool, **SETTINGS
        )


def four_wells():
    return wells(4)


def four_shifting_wells():
    return rr.Problem(wells_loss, jnp.zeros(4), jnp.linspace(0.5, 1.5, 4) + os.getpid() % 97 / 1e3)


# --- workers that die, hang or lie


def kill_at_random(pids, is_over, count, longest):
    """Kill one of `pids()` again and again; returns the number of kills."""
    random, killed = np.random.default_rng(0), 0
    while killed < count and not is_over.is_set():
        time.sleep(random.uniform(0, longest))
        alive = pids()
        if alive:
            with suppress(ProcessLookupError):  # dead already, and not one of these kills
                os.kill(alive[random.integers(len(alive))], signal.SIGKILL)
                killed += 1
    return killed


def search_under_fire(executor, pids, num_kills, longest, problem, settings):
    """A search while its workers are killed; it goes on until all the kills have happened."""
    is_over, num_killed = threading.Event(), []
    killer = threading.Thread(
        target=lambda: num_killed.append(kill_at_random(pids, is_over, num_kills, longest))
    )
    stored = []

    def slow_down(done):
        stored.append(done.num_rides)
        if killer.is_alive():
            time.sleep(0.1)

    killer.start()
    try:
        result = rr.search(
            problem, RIDER, executor=executor, max_deaths=50, progress=slow_down, **settings
        )
    finally:
        is_over.set()
        killer.join()
    assert stored == list(range(1, len(result) + 1))  # none doubled
    return result, num_killed[0]


@pytest.mark.long  # the first of those killed below was up
def test_killed_processes_change_nothing():
    settings = {**SETTINGS, "max_rides": 200}
    whole = rr.search(wells(4), RIDER, **settings)  # first: what is compiled is not waited for
    with workers.process_pool(2) as own:
        result, killed = search_under_fire(own, own.pids, 20, 1.0, wells(4), settings)
    assert killed == 20 and same_tree(whole, result)


@pytest.mark.parametrize("num_kills", NUM_KILLS)
def test_killed_dask_workers_change_nothing(cluster, num_kills):
    def pids():
        nannies = cluster.cluster.workers.values()
        return [nanny.pid for nanny in nannies if nanny.pid is not None]

    settings = {**SETTINGS, "max_rides": 200}
    whole = rr.search(wells(4), RIDER, **settings)  # first: what is compiled is not waited for
    # As after any earlier search, workers have imported us: a kill while a job is delivered to them
    # ends a search.
    rr.search(wells(4), executor=cluster, max_rides=2)
    result, killed = search_under_fire(cluster, pids, num_kills, 1.0, wells(4), settings)
    assert killed == num_kills and same_tree(whole, result)


def kill_early(up, starting, is_over, count, early):
    """Kill `count` workers, `early` of them before they are up; returns how many of each."""
    random, killed = np.random.default_rng(1), [0, 0]
    while sum(killed) < count and not is_over.is_set():
        is_early = killed[1] < min(early, 2 * killed[0])
        pids = [pid for pid in (starting() if is_early else up()) if pid is not None]
        if pids:
            time.sleep(random.uniform(0, 0.3))
            with suppress(ProcessLookupError):
                os.kill(pids[random.integers(len(pids))], signal.SIGKILL)
                killed[is_early] += 1
        time.sleep(0.02)
    return killed


def search_under_early_fire(executor, up, starting, count, early):
    is_over, killed = threading.Event(), []
    work = [up, starting, is_over, count, early]
    killer = threading.Thread(target=lambda: killed.extend(kill_early(*work)))
    killer.start()

    def slow_down(done):
        if killer.is_alive():
            time.sleep(0.3)

    settings = {**SETTINGS, "max_rides": 60 + 2 * count}
    try:
        result = rr.search(
            wells(4), RIDER, executor=executor, max_deaths=500, progress=slow_down, **settings
        )
    finally:
        is_over.set()
        killer.join()
    return same_tree(rr.search(wells(4), RIDER, **settings), result), killed


EARLY = [(3, 2), pytest.param(100, 30, marks=pytest.mark.long)]


@pytest.mark.parametrize(("count", "early"), EARLY)
def test_processes_killed_while_they_start_change_nothing(count, early):
    def starting():
        children = [one._child for one in own._workers if one.pid is None]
        return [child.pid for child in children if child is not None and child.exitcode is None]

    with workers.process_pool(2) as own:
        is_same, killed = search_under_early_fire(own, own.pids, starting, count, early)
    assert is_same and sum(killed) == count and killed[1] >= early


@pytest.mark.long
def test_dask_workers_killed_while_they_start_change_nothing(cluster):
    def pids(status):
        nannies = list(cluster.cluster.workers.values())
        processes = [nanny.process for nanny in nannies if nanny.process is not None]
        return [
            one.pid for one in processes if one.pid and (one.status.name == "starting") == status
        ]

    is_same, killed = search_under_early_fire(
        cluster, lambda: pids(False), lambda: pids(True), 100, 30
    )
    assert is_same and sum(killed) == 100 and killed[1] >= 20


ENTRY = """
import jax
jax.config.update("jax_enable_x64", True)
import ridgerider as rr
from ridgerider.problems import wells
with rr.workers.process_pool(1) as pool:
    rr.search(wells(1), executor=pool, max_rides=1)
"""


def test_an_entry_that_is_not_protected_is_told(tmp_path):
    (tmp_path / "script.py").write_text(ENTRY)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert "the entry of your script must be protected by `if __name__" in done.stderr
    assert done.returncode == 1


def test_workers_may_leave_and_join(plain, cluster):
    def rescale(done):
        if done.num_rides in (10, 30):
            cluster.cluster.scale(1 if done.num_rides == 10 else 2)

    result = rr.search(wells(4), RIDER, executor=cluster, progress=rescale, **SETTINGS)
    assert same_tree(plain, result)


def test_a_result_counts_even_if_its_worker_has_left_since(cluster, monkeypatch):
    distributed = pytest.importorskip("distributed")
    with pytest.raises(ZeroDivisionError):
        cluster.submit(divmod, 7, 0).result(60)
    monkeypatch.setattr(distributed.Future, "status", "lost")
    assert cluster.submit(divmod, 7, 2).result(60) == (3, 1)


def deadly_wells():
    """Loaded in a worker, kills it whenever it is to ride 0+."""
    if multiprocessing.parent_process() is not None:
        _rides._ride = deadly_ride
    return wells(4)


ride = _rides._ride


def deadly_ride(problem, rider, settings, branch, ledger):
    if str(branch.fingerprint) == "0+":
        os.kill(os.getpid(), signal.SIGKILL)
    return ride(problem, rider, settings, branch, ledger)


def test_a_leg_that_kills_its_workers_is_given_up(plain):
    with workers.process_pool(1) as own:
        result = rr.search(
            "tests.workers.test_workers:deadly_wells",
            RIDER,
            executor=own,
            round_size=4,
            max_rides=4,
            max_deaths=2,
        )
    assert list(map(str, result.fingerprints())) == ["0+", "0-", "1+", "1-"]  # whoever was last
    failed = result.leg("0+")
    reason = "failed: 2 workers lost, it was killed, crashed or ran out of memory"
    assert failed.ended_by == (reason,) and failed.turns == () and failed.num_steps == 0
    assert np.array_equal(failed.x, wells(4).x0)
    assert all(same_tree_leg(plain, leg) for leg in result if leg.num_steps)


def test_a_worker_that_hangs_loses_its_lease(pool):
    with workers.process_pool(1, lease=2) as own:
        with pytest.raises(workers.WorkerLost, match=r"did not answer within its lease of 2 s"):
            own.submit(time.sleep, 1000).result()
        assert own.submit(os.getpid).result() == own.pids()[0]
    with pytest.raises(TimeoutError, match="its own"):
        pool.submit(time_out).result()


def time_out():
    raise TimeoutError("its own")


class Garbling(ThreadPoolExecutor):
    """Garbles what comes back, each branch once."""

    def __init__(self, garble):
        super().__init__(1)
        self.garble, self.known = garble, set()

    def submit(self, work, branches, *args):
        names = {branch.fingerprint for branch in branches}
        is_new = not names & self.known
        self.known |= names
        garble = self.garble if is_new else list
        return super().submit(lambda: garble(work(branches, *args)))


@pytest.mark.parametrize(
    "garble",
    [
        lambda legs: None,
        lambda legs: [leg.x for leg in legs],
        lambda legs: [
            rr.types.Leg(**{**vars(leg), "fingerprint": rr.types.Fingerprint()}) for leg in legs
        ],
        lambda legs: [rr.types.Leg(**{**vars(leg), "x": leg.x[:2]}) for leg in legs],
        lambda legs: [rr.types.Leg(**{**vars(leg), "x": leg.x * np.nan}) for leg in legs],
        lambda legs: [rr.types.Leg(**{**vars(leg), "x": leg.x.astype("float32")}) for leg in legs],
    ],
)
def test_garbage_is_ridden_again(plain, garble):
    with Garbling(garble) as executor:
        settings = {**SETTINGS, "max_rides": 16}
        result = rr.search(wells(4), RIDER, executor=executor, **settings)
    assert len(result) == 16 and all(same_tree_leg(plain, leg) for leg in result)


def same_tree_leg(result, leg):
    return np.array_equal(result.leg(leg.fingerprint).x, leg.x)


def test_wrong_with_accepts_what_is_right(plain):
    branch = plain.leg("").branch(rr.types.Turn(0, 1))
    assert wrong_with([plain.leg("0+")], [branch]) == ""


CHILD = """
import signal, sys, time, jax
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background ignores it
jax.config.update("jax_enable_x64", True)
import ridgerider as rr
from ridgerider import workers
from ridgerider.problems import wells
from tests.workers.test_workers import RIDER, SETTINGS

def say(done):
    print(done.num_rides, flush=True)
    if done.num_rides == 41:
        time.sleep(60)

if __name__ == "__main__":
    with workers.process_pool(int(sys.argv[2])) as pool:
        rr.search(wells(4), RIDER, out=sys.argv[1], executor=pool, progress=say, **SETTINGS)
"""


@pytest.mark.parametrize(
    ("stop", "num_workers", "engine"), [(signal.SIGKILL, 2, "cluster"), (signal.SIGINT, 1, "pool")]
)
def test_a_stopped_coordinator_resumes_under_another_engine(
    plain, tmp_path, stop, num_workers, engine, request
):
    path, script = tmp_path / "run.sqlite", tmp_path / "child.py"
    script.write_text(CHILD)
    child = subprocess.Popen(
        [sys.executable, str(script), str(path), str(num_workers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    for line in child.stdout:
        if line.strip() == b"41":
            break
    child.send_signal(stop)
    child.communicate(timeout=60)  # also waits for the workers, who hold the pipe
    assert child.returncode != 0 and len(rr.load(path)) == 41
    resumed = rr.resume(path, wells(4), executor=request.getfixturevalue(engine))
    assert same_tree(plain, resumed)


# --- bad input


def test_a_broken_executor_of_another_kind_is_told(tmp_path):
    class Broken(Executor):
        def submit(self, work, *args):
            future = Future()
            future.set_exception(BrokenExecutor("a process ended abruptly"))
            return future

    path = tmp_path / "run.sqlite"
    with pytest.raises(OSError, match=r"the executor cannot replace it; workers.process_pool can"):
        rr.search(wells(4), RIDER, executor=Broken(), out=path)
    assert len(rr.load(path)) == 0


OPEN_FILE = Path(os.devnull).open()  # noqa: SIM115


def with_file(x, file):
    return jnp.sum(x**4 - x**2)


def inner_loss():
    def loss(x):
        return jnp.sum(x**4 - x**2)

    return loss


@pytest.mark.parametrize(
    ("problem", "rider", "message"),
    [
        (
            rr.Problem(lambda x: jnp.sum(x**4 - x**2), jnp.zeros(1)),
            rr.Rider(),
            r"cannot be sent to workers: .*<lambda>.*at the top of a module",
        ),
        (
            rr.Problem(inner_loss(), jnp.zeros(1)),
            rr.Rider(),
            r"cannot be sent to workers: .*inner_loss.<locals>.loss",
        ),
        (
            rr.Problem(with_file, jnp.zeros(1), OPEN_FILE),
            rr.Rider(),
            r"cannot be sent to workers: .*TextIOWrapper.*pass what is in a file",
        ),
        (
            wells(1),
            rr.Rider(stop=(lambda ride: ride.loss < 0,)),
            r"^`problem` or `rider` cannot be sent to workers: .*<lambda>",
        ),
    ],
)
def test_what_cannot_be_sent_is_named(problem, rider, message):
    with pytest.raises(ValueError, match=message):
        pickle.dumps(Job(problem, Rides(rider), Settings()))


def test_what_cannot_be_sent_is_found_before_any_work(pool, tmp_path):
    problem = rr.Problem(lambda x: jnp.sum(x**4 - x**2), jnp.zeros(1))
    with pytest.raises(ValueError, match=r"cannot be sent to workers"):
        rr.search(problem, executor=pool, out=tmp_path / "run.sqlite")
    assert not list(tmp_path.iterdir())


def test_versions_must_agree():
    check_versions(versions())
    with pytest.raises(ValueError, match=r"a worker has jax .* and the coordinator 0.0.1"):
        check_versions({**versions(), "jax": "0.0.1"})
    name, about, content = Job(wells(1), Rides(RIDER), Settings()).parcel
    about = {**about, "versions": {**versions(), "python": "3.5.0"}}
    with pytest.raises(ValueError, match=r"a worker has python .* and the coordinator 3.5.0"):
        open_job(name, about, content)


def test_what_a_worker_cannot_import_is_told(pool):
    class Sender:
        parcel = ("absent", {"versions": versions(), "flags": {}}, b"cabsent\nloss\n.")

    with pytest.raises(ValueError, match=r"a worker cannot import .* No module named 'absent'"):
        pool.submit(open_job, *Sender.parcel).result()


def fork():
    return ProcessPoolExecutor(1, multiprocessing.get_context("fork"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: workers.process_pool(0), r"`num_workers` must be a whole number .* 1, not 0"),
        (lambda: workers.process_pool(1, lease=0), "`lease` must be positive, not 0"),
        (lambda: workers.dask(num_workers=0), r"`num_workers` must be a whole number"),
        (lambda: rr.search(wells(1), executor=fork()), r"`executor` must not fork"),
        (lambda: rr.search(wells(1), executor=2), r"`executor` must be an Executor, not"),  # type: ignore[arg-type]
        (lambda: rr.search(wells(1), max_deaths=0), r"`max_deaths` must be a whole number"),
    ],
)
def test_bad_input_is_one_sentence(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_without_dask(monkeypatch):
    monkeypatch.setitem(sys.modules, "ridgerider.workers._dask", None)
    with pytest.raises(ValueError, match=r"`dask` needs .*pip install 'ridgerider.cluster"):
        workers.dask()


def test_a_scheduler_that_does_not_answer(monkeypatch):
    monkeypatch.setattr("ridgerider.workers._dask.TIMEOUT", 1)
    with pytest.raises(ConnectionError, match=r"none answers at tcp://127.0.0.1:9 within 1 s"):
        workers.dask("tcp://127.0.0.1:9")
