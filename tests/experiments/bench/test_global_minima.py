"""The benchmark of global minima: its functions, its check of minima, its counts."""

import numpy as np
import pytest
from scipy.optimize import OptimizeResult, check_grad

from ridgerider_experiments import bench
from ridgerider_experiments.bench import global_minima as benchmark
from ridgerider_experiments.bench.functions import SUITE, Case, random_cases
from ridgerider_experiments.bench.minima import kind_of, kinds

NAMED = {case.name: case for case in SUITE}
MINIMIZERS = {
    "Problem10": [7.97866571],
    "Ackley": [0, 0],
    "Branin01": [np.pi, 2.275],
    "CamelSix": [0.08984201, -0.71265640],
    "DixonPrice": 2.0 ** -(1 - 0.5 ** np.arange(4)),
    "GoldsteinPrice": [0, -1],
    "Hartmann3": [0.11461434, 0.55564885, 0.85254695],
    "Hartmann6": [0.20168951, 0.15001069, 0.47687398, 0.27533243, 0.31165162, 0.65730053],
    "Langermann": [2.00299219, 1.006096],
    "Levy03": np.ones(8),
    "McCormick": [-0.54719755, -1.54719755],
    "Michalewicz": [2.20290552, 1.57079633],
    "Penalty01": [-1, -1],
    "PermFunction": [1, 2],
    "Schaffer06": [0, 0],
    "Shekel10": [4.00074653, 4.00059293, 3.99966340, 3.99950981],
    "StyblinskiTang": np.full(5, -2.90353403),
    "Trid": [6, 10, 12, 12, 10, 6],
}


def test_functions_have_their_least_values_at_the_published_points():
    for name, x in MINIMIZERS.items():
        least = NAMED[name].least
        np.testing.assert_allclose(NAMED[name].fun(np.array(x, float)), least, rtol=1e-7, atol=1e-7)


def test_no_value_is_below_the_least():
    random = np.random.default_rng(0)
    assert len(NAMED) == len(SUITE) >= 45
    for case in SUITE:
        low, high = np.array(case.bounds, float).T
        values = [case.fun(x) for x in random.uniform(low, high, (100, len(low)))]
        assert min(values) >= case.least - 1e-7 * max(1, abs(case.least)), case.name
        assert 1 <= len(low) <= 10


def test_random_functions_are_those_of_the_seed():
    x = np.full(6, 0.3)
    once, again, other = (
        [one.fun(x[: len(one.bounds)]) for one in random_cases(s)] for s in (1, 1, 2)
    )
    assert once == again and len(once) >= 20 and len({*once, *other}) == 2 * len(once)


@pytest.mark.parametrize(
    "name, x, kind",
    [
        ("Problem10", [0.0], "false"),  # a bound from which -x sin x falls
        ("Problem10", [10.0], "false"),  # a bound towards which it rises
        ("Problem10", [4.9], "false"),  # a maximum
        ("Problem10", [7.98], "strict"),
        ("Problem10", [7.9], "false"),  # one percent of the box beside the minimum
        ("Adjiman", [2.0, 0.10578347], "strict"),  # on a face
        ("CosineMixture", [1, -1, 1], "strict"),  # in a corner
        ("CamelSix", [0, 0], "false"),  # a saddle
        ("DropWave", [0, 0.5201], "degenerate"),  # on a ring of minima
        ("Powell", [0, 0, 0, 0], "degenerate"),
        ("MieleCantrell", [0, 1, 1, 1], "degenerate"),  # all curvature vanishes
        ("Easom", [-80, -80], "degenerate"),  # flat
        ("Easom", [3.1416, 3.1416], "strict"),
        ("Problem22", [3.1406], "false"),  # beside an inflection
    ],
)
def test_kinds_of_known_points(name, x, kind):
    assert kind_of(NAMED[name], np.array(x, float)) == kind


def test_a_flat_direction_that_falls_further_out_is_no_minimum():
    falling = Case("", lambda x: float(x[0] ** 2 - x[1] ** 4), [(-1, 1)] * 2)
    assert kind_of(falling, np.zeros(2)) == "false"


def test_close_points_count_once():
    points = [np.array(x, float) for x in ([3, 2], [3.001, 2], [-2.805118, 3.131313], [0, 0])]
    assert kinds(NAMED["HimmelBlau"], points) == ["strict", "strict", "false"]


@pytest.mark.parametrize("who", benchmark.PEERS)
def test_peers_use_all_of_their_calls_and_no_more(who):
    counted = []

    def fun(x):
        counted.append(NAMED["Rastrigin"].fun(x))
        return counted[-1]

    case = Case("", fun, NAMED["Rastrigin"].bounds, 0.0)
    run = benchmark.peer(who, case, 150, np.array([1.2, 3.4]), 0)
    assert len(counted) == run.calls == 150
    assert run.best() == min(counted) and run.best(50) >= run.best()
    assert all(value == counted[until - 1] for until, value in run.better)


def test_rows_of_the_peers_alone():
    rows = list(benchmark.suite(0, "CamelThree", budget=400))
    assert [row.who for row in rows[: len(benchmark.PEERS)]] == list(benchmark.PEERS)
    assert rows[0].cost == 400 and rows[0].outcome.startswith("global minimum 3 of 3, 9 strict")
    assert rows[-1].task == "suite, 1 functions"
    assert not list(benchmark.unseen(0, "CamelThree", budget=400))


class Ends(list):
    nfev = 2


def test_calls_errors_and_false_minima_of_ours_are_seen(monkeypatch):
    def two_ends(fun, x0, bounds):
        values = [fun(x) for x in ([7.97866571], [0.0], x0)]
        ends = zip(([7.97866571], [0.0]), values, strict=False)
        return Ends(OptimizeResult(x=np.array(x), fun=f, success=True) for x, f in ends)

    def fails(fun, x0, bounds):
        raise RuntimeError("no")

    monkeypatch.setattr(benchmark.rr, "minimize_all", two_ends)
    first = next(iter(benchmark.suite(0, "Problem10")))
    assert first.cost == 3 and first.outcome.startswith(
        "global minimum 3 of 3, 3 strict minima, 3 false, 0 time-outs, 0 errors, "
        "calls reported as counted 0 of 3"
    )
    monkeypatch.setattr(benchmark.rr, "minimize_all", fails)
    assert (
        "0 of 3, 0 strict minima, 0 false, 0 time-outs, 3 errors"
        in next(iter(benchmark.suite(0, "Problem10"))).outcome
    )


@pytest.mark.parametrize("make", [benchmark.sinusoid, benchmark.mixture, benchmark.factorisation])
def test_gradients_of_the_fits(make):
    fit = make(0)
    x = np.random.default_rng(1).normal(size=len(fit.bounds))
    error = check_grad(lambda x: fit.fun(x)[0], lambda x: fit.fun(x)[1], x)
    assert error < 1e-5 * np.linalg.norm(fit.fun(x)[1])
    canonical = fit.canonical(x)
    np.testing.assert_allclose(fit.fun(canonical)[0], fit.fun(x)[0])


def test_one_function_can_be_asked_for_in_this_benchmark_only():
    with pytest.raises(ValueError, match="`only` must be left out but for global, not peers"):
        next(bench.compare("peers", only="Ackley"))
    assert not list(bench.compare("global", "fits", only="no such fit"))
