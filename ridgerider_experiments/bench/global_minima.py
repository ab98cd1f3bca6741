"""`minimize_all` against SciPy's global optimisers, all with the same number of calls.

    ridgerider bench global [suite | unseen | fits | first-answer] [--only NAME]

For each function and each of three random starts `minimize_all` runs with its defaults; more than a
minute of processor time is a time-out. Each peer then gets as many calls as it made; one that ends
earlier begins again elsewhere. The global minimum, f*, is found if a value is at most
1e-3 max(1, |f*|) above it: for `minimize_all` one that it returns, for a peer any that it computes.
Minima are those that `ridgerider_experiments.bench.minima` confirms. `suite` has the known
functions of `ridgerider_experiments.bench.functions`, `unseen` random ones, whose f* is the least
value of all runs and of one multi-start with 50,000 calls. `suite(seed,
budget=8000)` runs the peers alone.
"""

import itertools
import os
import subprocess
import sys
import tempfile
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import optimize

import ridgerider as rr
from ridgerider_experiments.bench import Row
from ridgerider_experiments.bench.functions import SUITE, Case, Vector, random_cases
from ridgerider_experiments.bench.minima import kinds

OURS, MULTI_START = "ridgerider", "multi-start"
NUM_STARTS, MAX_SECONDS, LONG = 3, 60.0, 50_000  # seconds of processor time
DETERMINISTIC = ("shgo", "direct")  # these take no start: one run serves all
# A run of a peer: the function, its bounds, a start, random numbers, and how many runs were before.
PEERS: dict[str, Callable[..., Any]] = {
    MULTI_START: lambda f, box, x, rng, k: optimize.minimize(f, x, method="L-BFGS-B", bounds=box),
    "dual_annealing": lambda f, box, x, rng, k: optimize.dual_annealing(f, box, x0=x, rng=rng),
    "shgo": lambda f, box, x, rng, k: optimize.shgo(f, box, n=100 * 2**k),
    "differential_evolution": lambda f, box, x, rng, k: optimize.differential_evolution(
        f, box, rng=rng
    ),
    "basinhopping": lambda f, box, x, rng, k: optimize.basinhopping(
        f, x, minimizer_kwargs={"method": "L-BFGS-B", "bounds": box}, rng=rng
    ),
    "direct": lambda f, box, x, rng, k: optimize.direct(
        f, box, maxfun=10**6, maxiter=10**6, locally_biased=k % 2 == 0
    ),
}


class Spent(Exception):
    """All calls are used up, or the time."""


@dataclass
class Run:
    """What a method found: better and better values, and ends, each with the calls until then."""

    calls: int = 0
    better: list[tuple[int, float]] = field(default_factory=list)
    ends: list[tuple[int, Vector]] = field(default_factory=list)
    seconds: float = 0.0
    reported: int = -1
    failure: str = ""

    def best(self, calls: float = np.inf) -> float:
        return min((value for until, value in self.better if until <= calls), default=np.inf)


@dataclass(frozen=True)
class Fit:
    """A loss with its gradient; equal solutions have one canonical form."""

    fun: Callable[[Vector], tuple[float, Vector]]
    bounds: list[tuple[float, float]]
    canonical: Callable[[Vector], Vector] = np.asarray
    symmetry: Any = None


def peer(who: str, case: Case, budget: int, x: Vector, seed: int) -> Run:
    """A peer from `x`, and again from random points until the calls are used up."""
    run, random, began = Run(), np.random.default_rng(seed), time.process_time()
    low, high = np.array(case.bounds, float).T

    def fun(x: Vector) -> float:
        if run.calls >= budget or time.process_time() > began + MAX_SECONDS:
            raise Spent
        run.calls, value = run.calls + 1, case.fun(x)
        is_better = not run.better or value < run.better[-1][1]
        if is_better and ((low <= x) & (x <= high)).all():
            run.better.append((run.calls, value))
        return value

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for count in itertools.count():
            before = run.calls
            try:
                end = PEERS[who](fun, case.bounds, x, random, count)
            except Spent:
                break
            run.ends.append((run.calls, end.x))
            if run.calls == before:
                break
            x = random.uniform(low, high)
    run.seconds = time.process_time() - began
    return run


def minimized(case: Case, x: Vector) -> Run:
    """The default call of `minimize_all`, counted."""
    run, began = Run(), time.process_time()

    def fun(x: Vector) -> float:
        run.calls += 1
        return case.fun(np.array(x, float))  # refuses JAX's tracers, which would not be counted

    try:
        results = rr.minimize_all(fun, x, bounds=case.bounds)
    except Exception as error:  # whatever it is, it is a failure of the library
        return replace(run, seconds=time.process_time() - began, failure=repr(error))
    run.seconds, run.reported = time.process_time() - began, int(results.nfev)
    run.better = [(run.calls, min(case.fun(one.x) for one in results))]
    run.ends = [(run.calls, one.x) for one in results if one.success]
    return run if run.seconds <= MAX_SECONDS else replace(run, failure="time-out")


# --- tables


def runs_of(case: Case, seed: int, budget: int | None) -> tuple[dict[str, list[Run]], list[int]]:
    """All methods on one function, from each start, and the budgets; if given, the peers alone."""
    low, high = np.array(case.bounds, float).T
    random = np.random.default_rng([seed, zlib.crc32(case.name.encode())])
    starts = random.uniform(low, high, (NUM_STARTS, len(low)))
    runs = {OURS: [minimized(case, x) for x in starts]} if budget is None else {}
    budgets = [run.calls for run in runs[OURS]] if budget is None else [budget] * NUM_STARTS
    for who in PEERS:
        if who in DETERMINISTIC:
            runs[who] = [peer(who, case, max(budgets), starts[0], seed)] * NUM_STARTS
        else:
            each = zip(budgets, starts, strict=True)
            runs[who] = [peer(who, case, calls, x, seed + k) for k, (calls, x) in enumerate(each)]
    return runs, budgets


def least_of(case: Case, runs: dict[str, list[Run]], seed: int) -> float:
    """The global minimum, or the best that is known of it."""
    if case.least is not None:
        return case.least
    middle = np.array(case.bounds, float).mean(axis=1)
    long = peer(MULTI_START, case, LONG, middle, seed)
    return min(run.best() for run in (long, *itertools.chain(*runs.values())))


def score(case: Case, who: str, runs: list[Run], budgets: list[int], least: float) -> Counter[str]:
    """What the runs of one method found with these budgets, summed over the starts."""
    total = Counter[str]()
    for run, budget in zip(runs, budgets, strict=True):
        ends = [x for until, x in run.ends if until <= budget]
        found = kinds(case, ends) if who in (OURS, MULTI_START) else []
        total["global"] += run.best(budget) <= least + 1e-3 * max(1.0, abs(least))
        total["strict"] += found.count("strict")
        total["false"] += found.count("false")
        total["calls"] += min(run.calls, budget)
        total["reported"] += run.reported == run.calls
        total["time-outs"] += run.failure == "time-out"
        total["errors"] += run.failure not in ("", "time-out")
        total["milliseconds"] += round(1e3 * run.seconds)
    return total


def words(who: str, total: Counter[str], num_functions: int) -> str:
    num_runs = NUM_STARTS * num_functions
    text = f"global minimum {total['global']} of {num_runs}"
    if who in (OURS, MULTI_START):
        text += f", {total['strict']} strict minima"
    if who == OURS:
        text += (
            f", {total['false']} false, {total['time-outs']} time-outs, {total['errors']} errors,"
            f" calls reported as counted {total['reported']} of {num_runs}"
        )
    return f"{text}, {total['milliseconds'] / 1e3:.1f} s"


def compared(
    title: str, cases: list[Case], seed: int, only: str | None, budget: int | None
) -> Iterator[Row]:
    """The rows of each function, then those of all together."""
    chosen = [case for case in cases if only in (None, case.name)]
    totals, num_enough = dict[str, Counter[str]](), 0
    for case in chosen:
        runs, budgets = runs_of(case, seed, budget)
        least = least_of(case, runs, seed)
        scores = {who: score(case, who, of, budgets, least) for who, of in runs.items()}
        for who, one in scores.items():
            totals.setdefault(who, Counter()).update(one)
            task, text = f"{case.name}, {len(case.bounds)} parameters", words(who, one, 1)
            yield Row(task, who, one["calls"] / NUM_STARTS, "calls", text)
        if OURS in scores:
            num_enough += scores[OURS]["strict"] >= 0.95 * scores[MULTI_START]["strict"]
    for who, total in totals.items():
        text = words(who, total, len(chosen))
        if who == OURS:
            text += f", >= 95 % of multi-start's minima on {num_enough} of {len(chosen)} functions"
        yield Row(f"{title}, {len(chosen)} functions", who, total["calls"], "calls", text)


def suite(seed: int, only: str | None = None, budget: int | None = None) -> Iterator[Row]:
    yield from compared("suite", SUITE, seed, only, budget)


def unseen(seed: int, only: str | None = None, budget: int | None = None) -> Iterator[Row]:
    yield from compared("unseen", random_cases(seed), seed, only, budget)


# --- fits: modes, and gradients for each


def sinusoid(seed: int) -> Fit:
    """Amplitude, frequency and phase, from sixty noisy values."""
    random, t = np.random.default_rng(seed), np.linspace(0, 10, 60)
    y = 1.5 * np.sin(2.3 * t + 0.7) + random.normal(0, 0.3, len(t))

    def fun(x: Vector) -> tuple[float, Vector]:
        wave, slope = np.sin(x[1] * t + x[2]), x[0] * np.cos(x[1] * t + x[2])
        rest = x[0] * wave - y
        return float(rest @ rest), 2 * np.array([rest @ wave, rest @ (t * slope), rest @ slope])

    return Fit(fun, [(0.1, 3), (0.2, 8), (-np.pi, np.pi)])


def mixture(seed: int) -> Fit:
    """The means of five Gaussians of equal weight and known width, in the plane; any order."""
    random = np.random.default_rng(seed)
    data = (random.uniform(-4, 4, (5, 1, 2)) + random.normal(size=(5, 30, 2))).reshape(-1, 2)

    def fun(x: Vector) -> tuple[float, Vector]:
        apart = x.reshape(5, 1, 2) - data
        logs = -(apart**2).sum(axis=2) / 2
        total = np.logaddexp.reduce(logs, axis=0)
        return -float(total.sum()), (np.exp(logs - total)[:, :, None] * apart).sum(axis=1).ravel()

    def rows(x: Any) -> Any:
        return x.reshape(5, 2)

    def ordered(x: Vector) -> Vector:
        return rows(x)[np.argsort(x[::2])].ravel()

    return Fit(fun, [(-7, 7)] * 10, ordered, rr.symmetry.units(rows))


def factorisation(seed: int) -> Fit:
    """A matrix of 6 x 6, weighted, as a product of two vectors, which may both change sign."""
    random = np.random.default_rng(seed)
    matrix = np.diag(random.uniform(1, 2, 6)) + random.normal(0, 0.1, (6, 6))
    weights = np.where(np.eye(6) > 0, 1.0, random.uniform(0, 20, (6, 6)))

    def fun(x: Vector) -> tuple[float, Vector]:
        rest = weights * (np.outer(x[:6], x[6:]) - matrix)
        slope = np.append(rest @ x[6:], x[:6] @ rest)
        return float((rest**2 / weights).sum() + 0.01 * x @ x), 2 * slope + 0.02 * x

    return Fit(fun, [(-3, 3)] * 12, lambda x: x * np.sign(x[np.argmax(abs(x[:6]))]))


def fits(seed: int, only: str | None = None) -> Iterator[Row]:
    for make in (sinusoid, mixture, factorisation):
        if only in (None, make.__name__):
            yield from fitted(make.__name__, make(seed), seed)


def fitted(name: str, fit: Fit, seed: int) -> Iterator[Row]:
    """Ours, multi-start with as many gradients, and a long multi-start."""
    low, high = np.array(fit.bounds, float).T
    random, run = np.random.default_rng(seed), Run()
    case = Case(name, lambda x: fit.fun(x)[0], fit.bounds)

    def fun(x: Vector) -> tuple[float, Vector]:
        run.calls += 1
        return fit.fun(np.array(x, float))

    def row(who: str, points: list[Vector]) -> Row:
        modes = kinds(case, map(fit.canonical, points)).count("strict")
        text = f"{modes} modes, {run.calls} gradients"
        return Row(f"fit: {name}", who, run.calls / max(modes, 1), "gradients a mode", text)

    x0 = random.uniform(low, high)
    if fit.symmetry is None:
        results = rr.minimize_all(fun, x0, jac=True, bounds=fit.bounds)
        yield row(OURS, [one.x for one in results if one.success])
    else:
        problem = rr.Problem.from_functions(fun, x0)
        landscape = rr.explore(problem, symmetry=fit.symmetry, max_seconds=MAX_SECONDS, seed=seed)
        yield row(OURS, [np.asarray(one.params) for one in landscape.minima()])
    for who, budget in ((MULTI_START, run.calls), ("long multi-start", max(LONG, 4 * run.calls))):
        run.calls, points = 0, list[Vector]()
        while run.calls < budget:
            x = random.uniform(low, high)
            end = optimize.minimize(fun, x, jac=True, method="L-BFGS-B", bounds=fit.bounds)
            points += [end.x] if run.calls <= budget else []
        yield row(who, points)


# --- the first answer

FIRST = """
import time
import numpy as np
import ridgerider as rr
def one(x):
    return np.sin(3 * x[0]) * np.cos(2 * x[1]) + x @ x / 4
def two(x):
    return np.cos(2 * x[0] + x[1]) + np.sin(x[1]) ** 2
rr.minimize_all(one, [1, 1], bounds=2 * [(-3, 3)])
first = time.process_time()
rr.minimize_all(two, [1, 1], bounds=2 * [(-3, 3)])
print(first, time.process_time() - first)
"""


def first_answer(seed: int, only: str | None = None) -> Iterator[Row]:
    """Processor time of a fresh process, from its start, and of a second function in it."""
    task = "minimize_all, a new NumPy function of 2 parameters"
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CACHE_HOME": folder}
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        for cache in ("nothing compiled on disk", "compiled programs on disk"):
            code = [sys.executable, "-c", FIRST]
            first, second = map(float, subprocess.check_output(code, env=environment).split())
            yield Row(task, f"fresh process, {cache}", first, "s", "imports included")
            yield Row(task, f"second function, {cache}", second, "s")


TASKS = (suite, unseen, fits, first_answer)
