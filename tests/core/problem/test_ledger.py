"""The ledger equals counters wrapped around the user's functions."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._core.problem.cost import Ledger
from tests.core.problem.test_functions import (
    DEPTHS,
    Counted,
    V,
    X,
    hessian,
    hvp,
    loss,
    value_and_grad,
)

CASES = {
    "gradient": {"value_and_grad": value_and_grad},
    "hvp": {"value_and_grad": value_and_grad, "hvp": hvp},
    "hessian": {"value_and_grad": value_and_grad, "hessian": hessian},
    "both": {"value_and_grad": value_and_grad, "hvp": hvp, "hessian": hessian},
}


def counted_problem(case):
    counters = {name: Counted(function) for name, function in CASES[case].items()}
    given = dict(counters)
    return rr.Problem.from_functions(given.pop("value_and_grad"), np.zeros(3), **given), counters


def check_balance(calls, counters):
    """The calls must be those that the counters saw."""
    counts = {name: counter.count for name, counter in counters.items()}
    assert calls.values == calls.gradients == counts["value_and_grad"]
    if "hvp" in counts or "hessian" in counts:
        assert calls.hvps == counts.get("hvp", 0) + 3 * counts.get("hessian", 0)
    if "hessian" in counts:
        assert calls.hessians == counts["hessian"]


@pytest.mark.parametrize("case", CASES)
def test_the_ledger_equals_a_counter(case):
    problem, counters = counted_problem(case)
    check_balance(rr.types.Cost(**problem.loss.calls), counters)  # of the checks at the start
    programs = {
        "value": lambda: problem.value(X),
        "gradient": lambda: jax.value_and_grad(problem.value)(X),
        "hvp": lambda: jax.jit(problem.hvp_at(X))(V),
        "hessian": lambda: problem.hessian(X),
        "error": lambda: problem.hvp_error(X, V),
        "lanes": lambda: jax.jit(jax.vmap(problem.hessian))(jnp.stack([X, 2 * X])),
        "third": lambda: jax.jvp(lambda x: problem.hvp(x, V), (X,), (V,)),
    }
    for name, program in programs.items():
        for counter in counters.values():
            counter.count = 0
        before = problem.loss.calls["values"]
        with problem.ledger() as ledger:
            jax.block_until_ready(program())
        check_balance(ledger.calls, counters)
        assert problem.loss.calls["values"] - before == ledger.calls.values
        if name != "error":  # that of an exact product is known
            assert ledger.calls.values + ledger.calls.hvps > 0


def test_searches_make_the_calls_that_are_recorded():
    problem, counters = counted_problem("gradient")
    counters["value_and_grad"].count = 0
    with problem.ledger() as ledger:
        rr.search(problem, max_rides=3, max_depth=1)
    assert ledger.calls.gradients == ledger.calls.values == counters["value_and_grad"].count > 0


def test_the_same_work_costs_the_same():
    problem, _ = counted_problem("gradient")
    costs = []
    for _ in range(2):
        with problem.ledger() as ledger:
            jax.block_until_ready((problem.value(X), problem.grad(X)))
        costs.append(ledger.calls.values)
    assert costs == [1, 1]  # the second time nothing is remembered, and within one a point is


def test_threads_do_not_see_the_calls_of_others():
    problem, _ = counted_problem("gradient")

    def work(count):
        with problem.ledger() as ledger:
            for number in range(count):
                jax.block_until_ready(problem.grad(X + number))
        return ledger.calls.gradients

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(1, 9))) == list(range(1, 9))


def test_a_failure_is_that_of_its_own_context():
    def fails(x):
        if x[0] > 0.5:
            raise RuntimeError("no convergence.")
        return value_and_grad(x)

    problem = rr.Problem.from_functions(fails, np.zeros(3), hvp=hvp)
    with problem.ledger() as bad:
        assert np.isnan(problem.value(jnp.ones(3)))
    with problem.ledger() as good:
        problem.value(jnp.zeros(3))
    assert bad.failure == "RuntimeError: no convergence" and good.failure == ""
    assert bad.calls.values == 1  # a call that fails is a call


def test_losses_in_jax_are_not_called_back():
    problem = rr.Problem(loss, jnp.zeros(3))
    with problem.ledger() as ledger:
        problem.value(X)
    assert ledger.calls is None
    charged = ledger.charge(rr.types.Cost(values=1, hvps=2, eigendecompositions=3))
    assert (charged.values, charged.hvps, charged.eigendecompositions) == (1, 2, 3)
    assert 0 < charged.seconds == ledger.seconds


def test_calls_that_were_counted_replace_what_programs_computed():
    ledger = Ledger(rr.types.Cost(values=17, gradients=5, hvps=1))
    charged = ledger.charge(rr.types.Cost(values=3, hessians=1, eigendecompositions=2))
    assert (charged.values, charged.gradients, charged.hvps, charged.hessians) == (17, 5, 1, 0)
    assert charged.eigendecompositions == 2


def test_a_copy_that_is_sent_counts_its_own_calls():
    problem, _ = counted_problem("hvp")
    again = pickle.loads(pickle.dumps(rr.Problem.from_functions(value_and_grad, np.zeros(3))))
    assert again.loss.calls["values"] == 0 < problem.loss.calls["values"]
    jax.block_until_ready(again.grad(jnp.asarray(DEPTHS)))
    assert again.loss.calls["gradients"] == 1
