"""What every run keeps to, whatever moves along its branches: searches and maps alike."""

import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider.problems import himmelblau, wells


def chain(x):
    return jnp.sum(x**4 / 4 - x**2 / 2) + 0.1 * jnp.sum(x[1:] * x[:-1])


CHAIN = rr.Problem(chain, jnp.linspace(0.3, 0.8, 10))
RUNS = {
    "search": (rr.search, wells(3), {"members": "all", "max_depth": 2, "round_size": 5}),
    "explore": (rr.explore, himmelblau(), {"round_size": 5}),
    "explore in bounds": (rr.explore, himmelblau(), {"round_size": 5, "bounds": [(-5, 5)] * 2}),
    "explore, ten parameters": (rr.explore, CHAIN, {"round_size": 5}),  # legs share Hessians
}


@pytest.fixture(params=RUNS)
def run(request):
    make, problem, settings = RUNS[request.param]
    return lambda problem=problem, **more: make(problem, **{**settings, **more})


@pytest.fixture
def problem(request):
    return RUNS[request.node.callspec.params["run"]][1]


def rows(view):
    """All that a run has found, without its times."""
    store = view._store
    legs = [store.leg(name) for name in sorted(store.fingerprints(), key=str)]
    return [
        (str(leg.fingerprint), leg.loss, leg.x.tobytes(), leg.ended_by, leg.linked_to, leg.same_as)
        + (int(leg.cost.hvps), int(leg.cost.gradients), int(leg.cost.values))
        + ((leg.finish.kind, float(leg.finish.loss)) if leg.finish is not None else ())
        for leg in legs
    ]


class Stop(Exception):
    pass


def stop_after(count):
    def progress(done):
        if done.num_rides == count:
            raise Stop

    return progress


@pytest.mark.parametrize("cut", [1, 4, 7, 12])
def test_a_run_that_a_budget_cut_short_is_resumed_to_the_same(run, problem, cut, tmp_path):
    path = tmp_path / "run.sqlite"
    run(max_rides=cut, out=path)
    assert rows(rr.resume(path, problem, max_rides=16)) == rows(run(max_rides=16))


@pytest.mark.parametrize("cut", [1, 4, 12])
def test_a_run_that_was_interrupted_is_resumed_to_the_same(run, problem, cut, tmp_path):
    path = tmp_path / "run.sqlite"
    with pytest.raises(Stop):
        run(max_rides=16, out=path, progress=stop_after(cut))
    assert rows(rr.resume(path, problem)) == rows(run(max_rides=16))


class Backwards(Executor):
    """Does the last of what it was given first."""

    capacity = 3

    def __init__(self):
        self.waiting = []

    def submit(self, work, *args):
        future = Future()
        self.waiting.append((future, work, args))
        if len(self.waiting) == self.capacity or len(args[0]) < 2:
            while self.waiting:
                future, work, args = self.waiting.pop()
                future.set_result(work(*args))
        return future


def test_workers_and_the_order_of_arrival_change_nothing(run, monkeypatch):
    monkeypatch.setattr("ridgerider._search.engine.climbs.Climbs.task_size", 1)
    whole = rows(run(max_rides=20))
    with ThreadPoolExecutor(2) as executor:
        assert rows(run(max_rides=20, executor=executor)) == whole
    assert rows(run(max_rides=20, executor=Backwards())) == whole


def test_a_time_limit_is_kept_and_what_was_found_is_returned(run, problem, tmp_path):
    """A leg takes longer than the limit here, whatever the machine, so that the run is cut off."""
    path = tmp_path / "run.sqlite"
    cut = run(max_rides=20, max_seconds=0.02, out=path, progress=lambda done: time.sleep(0.05))
    assert len(cut) < 20 and cut.leg("").x.shape == (problem.size,)
    assert rows(rr.resume(path, problem, max_seconds=1e6)) == rows(
        run(max_rides=20, max_seconds=1e6)
    )


def test_progress_is_told_of_each_leg(run):
    seen = []
    view = run(max_rides=8, progress=lambda done: seen.append((done.num_rides, done.num_minima)))
    assert [count for count, _ in seen] == list(range(1, 9))
    assert seen[-1][1] == len(view.minima())
    with pytest.raises(ValueError, match=r"`progress` must be callable"):
        run(progress=3)


def test_compilation_is_told_apart(run):
    assert run(max_rides=1)._store.meta["seconds_compiling"] >= 0


class Counted:
    """A function of NumPy that knows how often it was called."""

    def __init__(self):
        self.num_calls = 0

    def __call__(self, x):
        self.num_calls += 1
        return float(np.sum(x**4 / 4 - x**2 / 2)), x**3 - x


CALLERS = [(rr.search, None), (rr.explore, None), (rr.search, "threads"), (rr.explore, "threads")]


@pytest.mark.parametrize("has_hvp", [False, True])
@pytest.mark.parametrize(("make", "executor"), [*CALLERS, (rr.find_saddle, None)])
def test_each_call_of_a_function_is_counted(make, executor, has_hvp):
    function, products = Counted(), []

    def hvp(x, v):
        products.append(v)
        return (3 * x**2 - 1) * v

    start = np.zeros(2) if make is rr.search else np.array([0.7, 0.4])
    problem = rr.Problem.from_functions(function, start, hvp=hvp if has_hvp else None)
    before = function.num_calls  # `from_functions` evaluates the start
    products.clear()
    if make is rr.find_saddle:
        cost = make(problem).cost
    elif executor is None:
        cost = make(problem, max_rides=6)._store.cost()
    else:
        with ThreadPoolExecutor(2) as threads:
            cost = make(problem, max_rides=6, executor=threads)._store.cost()
    assert int(cost.gradients) == int(cost.values) == function.num_calls - before
    assert int(cost.hvps) == len(products) or not has_hvp


class Boom(Exception):
    pass


@pytest.mark.parametrize("make", [rr.search, rr.explore])
def test_what_a_function_raises_is_the_reason_of_a_leg(make):
    function, broken = Counted(), []

    def sometimes(x):
        if broken and x[1] > 0.2:
            raise Boom("no convergence")
        return function(x)

    start = np.zeros(2) if make is rr.search else np.array([0.7, -0.4])
    problem = rr.Problem.from_functions(sometimes, start, check=False)
    broken.append(True)
    endings = make(problem, max_rides=8)._store.endings()
    assert endings["not_finite"] >= endings["failed: Boom: no convergence"] > 0


@pytest.mark.parametrize("fun", [lambda x: float("nan"), lambda x: jnp.nan * x[0]])
def test_a_function_that_is_nan_everywhere_has_no_minimum(fun):
    (found,) = rr.minimize_all(fun, [0.3, 0.4])
    assert not found.success
    with pytest.raises(ValueError, match="the loss is nan"):
        rr.explore(rr.Problem(lambda x: fun(x) + 0 * x[0], jnp.ones(2)))


def test_a_symmetry_merges_the_minima_of_a_search():
    def loss(x):
        return jnp.sum(x**4 / 4 - x**2 / 2) + 0.1 * jnp.sum(x) ** 2

    problem, settings = rr.Problem(loss, jnp.zeros(3)), {"members": "all", "max_rides": None}
    plain = rr.search(problem, **settings)
    merged = rr.search(problem, symmetry=rr.Symmetry(signature=jnp.sort), **settings)
    classes = plain.minima(signature=np.sort)
    assert len(plain.minima()) > len(classes) == len(merged.minima())
    losses = [[one.loss for one in minima] for minima in (merged.minima(), classes)]
    np.testing.assert_allclose(*losses, atol=1e-9)
