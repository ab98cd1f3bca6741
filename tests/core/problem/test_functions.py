"""Losses outside of JAX: derivatives, differences and their error, what is counted, what fails."""

import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._core.points.classify import view
from ridgerider._core.problem import functions
from ridgerider._core.problem.calls import Calls
from ridgerider.workers import process_pool

DEPTHS = np.array([1.0, 0.6, 0.3])


def value_and_grad(x):
    """Wells that are not symmetric: every eigenvalue is simple."""
    value = np.sum(x**4 / 4 - DEPTHS * x**2 / 2) + x[0] * x[1] / 4
    return value, x**3 - DEPTHS * x + np.array([x[1], x[0], 0]) / 4


def hvp(x, v):
    return (3 * x**2 - DEPTHS) * v + np.array([v[1], v[0], 0 * v[2]]) / 4


def hessian(x):
    return np.array([hvp(x, row) for row in np.eye(3)])


def loss(x):
    return jnp.sum(x**4 / 4 - jnp.asarray(DEPTHS) * x**2 / 2) + x[0] * x[1] / 4


class Counted:
    """Counts the points at which a function is evaluated."""

    def __init__(self, function):
        self.function, self.count = function, 0

    def __call__(self, *args):
        self.count += 1
        return self.function(*args)


X = jnp.array([0.3, -0.2, 0.9])
V = jnp.array([1.0, 2.0, -0.5])


@pytest.mark.parametrize(
    "given", [{}, {"hvp": hvp}, {"hessian": hessian}, {"hvp": hvp, "hessian": hessian}]
)
def test_derivatives_are_those_of_jax(given):
    problem, exact = (
        rr.Problem.from_functions(value_and_grad, np.zeros(3), **given),
        rr.Problem(loss, jnp.zeros(3)),
    )
    tolerance = 1e-12 if given else 10 * problem.noise
    assert tolerance < 1e-8
    np.testing.assert_allclose(problem.value(X), exact.value(X), rtol=1e-14)
    np.testing.assert_allclose(problem.grad(X), exact.grad(X), rtol=1e-13)
    for product in (
        problem.hvp(X, V),
        jax.jit(lambda v: problem.hvp(X, v))(V),
        problem.hessian(X) @ V,
    ):
        np.testing.assert_allclose(product, exact.hvp(X, V), atol=3 * tolerance)
    points = jnp.stack([X, 2 * X])
    many = jax.jit(jax.vmap(lambda x: (problem.value(x), problem.hessian(x))))(points)
    for row, x in enumerate(points):
        np.testing.assert_allclose(many[0][row], exact.value(x), rtol=1e-13)
        np.testing.assert_allclose(many[1][row], exact.hessian(x), atol=3 * tolerance)


def test_higher_derivatives_are_differences_of_products():
    problem = rr.Problem.from_functions(value_and_grad, np.zeros(3), hvp=hvp)

    def along(function):
        return lambda x: jax.jvp(function, (x,), (V,))[1]

    np.testing.assert_allclose(along(along(problem.grad))(X), 6 * X * V**2, atol=1e-9)
    np.testing.assert_allclose(along(along(along(problem.grad)))(X), 6 * V**3, atol=1e-6)


def test_a_repeated_eigenvalue_has_the_same_branches():
    problem = rr.Problem.from_functions(
        lambda x: (np.sum(x**4 / 4 - x**2 / 2), x**3 - x), np.zeros(3)
    )
    spectrum = rr.DenseSpectrum()(problem, problem.x0, jax.random.key(0))
    assert [cluster.multiplicity for cluster in spectrum.clusters()] == [3]
    (branching,) = spectrum.branches(problem, problem.x0)
    assert branching.class_sizes == (4, 6, 3)


def test_parameters_may_be_a_pytree():
    def in_parts(params):
        value, grad = value_and_grad(np.append(params["a"], params["b"]))
        return value, {"a": grad[:2].reshape(2, 1), "b": grad[2]}

    problem = rr.Problem.from_functions(in_parts, {"a": np.zeros((2, 1)), "b": np.zeros(())})
    np.testing.assert_allclose(problem.grad(X), value_and_grad(np.asarray(X))[1], rtol=1e-14)
    assert problem.loss.__name__ == "in_parts"


def test_a_product_of_differences_takes_four_gradients():
    counted = Counted(value_and_grad)
    problem = rr.Problem.from_functions(counted, np.zeros(3))
    counted.count = 0
    jax.block_until_ready(problem.hvp_at(X)(V))
    assert counted.count == 4
    counted.count = 0
    jax.block_until_ready(problem.hessian(X))
    assert counted.count == 4 * 3


def noisy(x):
    """Curvatures 1 and 1e-5; the gradient is off by 1e-7, as that of a calculator may be."""
    value = x[0] ** 2 / 2 + 1e-5 * x[1] ** 2 / 2
    return value, np.array([x[0], 1e-5 * x[1]]) + 1e-7 * np.sin(1e6 * x[::-1] + 1)


def test_noise_is_measured_and_certifies_nothing():
    problem = rr.Problem.from_functions(noisy, np.ones(2), check=False)
    assert problem.noise > 1e-4
    exact = rr.Problem.from_functions(
        noisy, np.ones(2), hvp=lambda x, v: np.array([1, 1e-5]) * v, check=False
    )
    at = jnp.zeros(2)
    seen, known = (view(Calls(one), np.asarray(at), jax.random.key(0)) for one in (problem, exact))
    assert known.curvature.is_flat.sum() == 0 and known.curvature.least > 0
    assert seen.curvature.is_flat.sum() == 1  # 1e-5 is within what products may be off by
    ridge = rr.types.Ridge(jnp.array([0.0, 1.0]), jnp.array(1e-5), jnp.array(0), jnp.array(1))
    for update in (rr.Project(), rr.QuasiNewton(), rr.Davidson(), rr.Keep()):
        off = jnp.linalg.norm(problem.hvp(at, ridge.direction) - jnp.array([0.0, 1e-5]))
        tracked = update(problem, at, ridge, jax.random.key(0))
        error, _ = problem.hvp_error(at, tracked.ridge.direction)
        assert float(tracked.residual) >= float(error) > 0
        assert float(off) < 10 * float(error)


@pytest.fixture(scope="module")
def found():
    counted = Counted(value_and_grad)
    problem = rr.Problem.from_functions(counted, np.zeros(3))
    counted.count = 0
    return problem, rr.search(problem, max_rides=6), counted.count


def test_the_tree_and_the_minima_are_those_of_jax(found):
    _, result, _ = found
    exact = rr.search(rr.Problem(loss, jnp.zeros(3)), max_rides=6)
    assert result.fingerprints() == exact.fingerprints()
    assert result.kinds() == exact.kinds()
    for one, two in zip(result.minima(), exact.minima(), strict=True):
        assert one.fingerprint == two.fingerprint
        np.testing.assert_allclose(one.params, two.params, atol=1e-8)
        np.testing.assert_allclose(one.least_eigenvalue, two.least_eigenvalue, rtol=1e-6)


def test_the_ledger_holds_every_call(found):
    _, result, count = found
    cost = result.cost
    # A value and a gradient at one point are one call; two calls look for randomness.
    assert cost.gradients <= count + 2 and count <= cost.values + cost.gradients + 2
    assert cost.gradients >= 4 * cost.hvps


@pytest.mark.long
def test_rides_by_products_alone():
    rider = rr.Rider(
        spectrum=rr.BlockSpectrum(k=2, dense_below=0), update=rr.Davidson(), finish=None
    )
    problem = rr.Problem.from_functions(value_and_grad, np.zeros(3), hvp=hvp)
    result = rr.search(problem, rider, max_rides=2, max_depth=1)
    exact = rr.search(rr.Problem(loss, jnp.zeros(3)), rider, max_rides=2, max_depth=1)
    for one, two in zip(result, exact, strict=True):
        assert one.num_steps == two.num_steps and one.ended_by == two.ended_by
        np.testing.assert_allclose(one.x, two.x, atol=1e-9)
        assert one.trace["residual"].max() < 1e-4


def is_same_leg(one, two):
    return (
        np.array_equal(one.x, two.x)
        and one.ended_by == two.ended_by
        and all(np.array_equal(one.trace[name], two.trace[name], True) for name in one.trace)
        and (one.finish is None or np.array_equal(one.finish.x, two.finish.x))
        and one.cost.gradients == two.cost.gradients
    )


def test_resume_replay_and_threads(found, tmp_path):
    problem, whole, _ = found
    rr.search(problem, max_rides=3, out=tmp_path / "run.sqlite")
    again = rr.Problem.from_functions(value_and_grad, np.zeros(3))  # as another process would
    resumed = rr.resume(tmp_path / "run.sqlite", again, max_rides=6)
    assert all(map(is_same_leg, whole, resumed)) and len(whole) == len(resumed)
    name = whole.fingerprints()[-1]
    assert np.array_equal(whole.replay(name)[-1].x, whole.leg(name).x)
    with ThreadPoolExecutor(2) as threads:
        other = rr.search(problem, max_rides=6, executor=threads)
    assert all(map(is_same_leg, whole, other))


class Calculator:
    """Keeps its input while it computes, as calculators do: another thread may change it."""

    def __call__(self, x):
        self.x = x
        time.sleep(1e-3)
        return float(self.x @ self.x), 2 * self.x


def are_right(problems):
    """Values and gradients of problems in many threads, compiled and on the host."""
    programs = [jax.jit(problem.value) for problem in problems]

    def work(number):
        problem, x = problems[number % 2], np.full(2, float(number))
        on_host = Calls(problem).value_and_grad(x)[1]
        return float(programs[number % 2](x)) == 2 * number**2 and (on_host == 2 * x).all()

    with ThreadPoolExecutor(6) as threads:
        return all(threads.map(work, range(60)))


def test_one_thread_at_a_time_calls_a_function_that_two_problems_share(monkeypatch):
    calculator = Calculator()
    with ThreadPoolExecutor(6) as threads:  # their checks are calls, too
        problems = list(
            threads.map(
                lambda _: rr.Problem.from_functions(calculator, np.ones(2), hessian=hessian_of_two),
                range(6),
            )
        )
    assert are_right(problems)
    monkeypatch.setattr(functions, "CALLING", nullcontext())
    assert not are_right(problems)  # the test sees what the lock prevents


def hessian_of_two(x):
    return 2 * np.eye(2)


def test_problems_can_be_sent():
    problem = rr.Problem.from_functions(value_and_grad, np.zeros(3))
    again = pickle.loads(pickle.dumps(problem))
    assert again.noise == problem.noise and again.loss.step == problem.loss.step
    assert np.array_equal(again.hvp(X, V), problem.hvp(X, V))


@pytest.mark.long
def test_workers_ride_the_same_tree(found):
    problem, whole, _ = found
    with process_pool(2) as pool:
        result = rr.search(problem, max_rides=6, round_size=2, executor=pool)
    assert set(result.fingerprints()) == set(whole.fingerprints())
    assert all(is_same_leg(whole.leg(name), result.leg(name)) for name in whole.fingerprints())


def fails_ahead(x):
    if x[0] > 0.5:
        raise RuntimeError("no convergence.")
    return value_and_grad(x)


def test_an_error_ends_its_leg_alone(tmp_path):
    problem = rr.Problem.from_functions(fails_ahead, np.zeros(3), hvp=hvp)
    result = rr.search(problem, max_rides=2, max_depth=1, out=tmp_path / "run.sqlite")
    one, other = sorted(result, key=lambda leg: len(leg.ended_by))
    assert other.ended_by == ("not_finite", "failed: RuntimeError: no convergence")
    assert one.ended_by == ("curvature_gone",) and one.finish.is_converged  # the other way
    assert "no convergence" in " ".join(rr.load(tmp_path / "run.sqlite").endings())


def test_single_precision_on_the_outside_of_double():
    start = jnp.zeros(3, jnp.float32)
    problem = rr.Problem.from_functions(
        lambda x: tuple(np.float32(one) for one in value_and_grad(x)), start
    )
    assert problem.hvp(X.astype(jnp.float32), V.astype(jnp.float32)).dtype == jnp.float32
    np.testing.assert_allclose(
        problem.hvp(X.astype(jnp.float32), V.astype(jnp.float32)),
        hvp(np.asarray(X), np.asarray(V)),
        atol=100 * problem.noise,
    )
    assert problem.noise > 1e-6


def test_without_the_direct_way_the_public_one_is_taken(monkeypatch):
    monkeypatch.delattr(functions.mlir, "emit_python_callback")
    problem = rr.Problem.from_functions(value_and_grad, np.zeros(3), hvp=hvp)
    np.testing.assert_allclose(
        jax.jit(lambda x: problem.hessian(x))(X), hessian(np.asarray(X)), atol=1e-12
    )
    points = jnp.stack([X, 2 * X])
    products = jax.jit(jax.vmap(problem.hvp, (0, None)))(points, V)
    np.testing.assert_allclose(products, [hvp(x, np.asarray(V)) for x in points], atol=1e-12)


WRONG = {
    "wrong sign: are these forces": lambda x: (value_and_grad(x)[0], -value_and_grad(x)[1]),
    "coordinate 1 ": lambda x: (value_and_grad(x)[0], value_and_grad(x)[1] * [1, 1.5, 1]),
    r"shapes \[\(3,\)\], not \[\(2,\)\]": lambda x: (
        value_and_grad(x)[0],
        value_and_grad(x)[1][:2],
    ),
    "return two things": lambda x: value_and_grad(x)[0],
    "a real scalar first": lambda x: (x, x),
    "float32 or float64, not float16": lambda x: (np.float16(0), x.astype(np.float16)),
    "must be finite": lambda x: (np.nan, x),
    "not arrays of JAX": lambda x: (jnp.sum(x), x),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_functions_are_refused(message):
    with pytest.raises(ValueError, match=message):
        rr.Problem.from_functions(WRONG[message], np.zeros(3))


def test_wrong_products_and_arguments_are_refused():
    noise = np.random.default_rng(0)
    with pytest.raises(ValueError, match="must be deterministic"):
        rr.Problem.from_functions(lambda x: (noise.normal(), x), np.zeros(3))
    with pytest.raises(ValueError, match="must be the derivative of the gradient"):
        rr.Problem.from_functions(value_and_grad, np.zeros(3), hvp=lambda x, v: -hvp(x, v))
    with pytest.raises(ValueError, match=r"of shape \(3, 3\), not \(3,\)"):
        rr.Problem.from_functions(value_and_grad, np.zeros(3), hessian=lambda x: x)
    with pytest.raises(ValueError, match="`value_and_grad` must be callable"):
        rr.Problem.from_functions(None, np.zeros(3))
    with pytest.raises(ValueError, match=r"go into rr\.Problem\.from_functions"):
        rr.Problem(lambda x: np.sum(np.sin(x)), np.zeros(3))
