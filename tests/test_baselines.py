import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider import baselines
from ridgerider._core.problem.calls import measured
from ridgerider.problems import surface, wells
from ridgerider.problems.surface import surface_loss

METHODS = [
    baselines.GradientDescent(step_size=0.5),
    baselines.RidgeRider(rr.Rider()),
    baselines.RidgeRider(baselines.random_ridge(rr.Rider(finish=None))),
    baselines.RandomVectors(),
    baselines.EigenvectorDescent(),
]
VALUE, GRAD, HESSIAN = map(
    jax.jit, (surface_loss, jax.grad(surface_loss), jax.hessian(surface_loss))
)


def names(methods):
    return [f"{type(method).__name__}{i}" for i, method in enumerate(methods)]


@pytest.mark.parametrize("method", METHODS, ids=names(METHODS))
def test_every_method_keeps_to_its_budget_and_its_ledger(method):
    problem, budget = wells(2), 300
    ends = method(problem, max_steps=budget, seed=1)
    again = method(problem, max_steps=budget, seed=1)
    assert len(ends.x) > 0 and ends.num_steps <= budget
    assert np.all(np.diff(ends.step) > 0) and ends.step[-1] <= ends.num_steps
    assert np.array_equal(ends.x, again.x) and np.array_equal(ends.step, again.step)
    np.testing.assert_allclose(ends.loss, [problem.value(jnp.asarray(x)) for x in ends.x])
    # A step computes something, and whatever it computes is counted.
    work = ends.cost.gradients + ends.cost.hessians + ends.cost.hvps
    assert work >= ends.num_steps and ends.cost.seconds > 0


def test_until_ends_a_method():
    seen = []

    def until(x):
        seen.append(x)
        return len(seen) == 2

    ends = baselines.RandomVectors()(wells(2), max_steps=10_000, until=until)
    assert len(ends.x) == 32 and np.array_equal(np.concatenate(seen), ends.x)
    assert ends.num_steps < 10_000


def test_rides_are_those_of_a_search():
    problem, rider = wells(2), rr.Rider()
    ends = baselines.RidgeRider(rider)(problem, max_steps=100_000, seed=3)
    result = rr.search(problem, rider, max_rides=None, round_size=16, seed=3)
    assert len(ends.x) == len(result) and result.num_open() == 0
    known = np.stack([leg.finish.x for leg in result])
    np.testing.assert_allclose(np.unique(ends.x, axis=0), np.unique(known, axis=0), atol=1e-12)
    unit = measured(problem)[1]  # which a search begins with
    for name in ("values", "gradients", "hvps", "hessians", "eigendecompositions"):
        assert getattr(ends.cost + unit, name) == getattr(result.cost, name)


@pytest.mark.parametrize("seed", range(3))
def test_descent_against_a_plain_loop(seed):
    problem, method = (
        surface(),
        baselines.GradientDescent(spread=0.1, step_size=0.05, tolerance=1e-4),
    )
    ends = method(problem, max_steps=2000, seed=seed)  # so few are made in one lane
    x = method.start(problem, jax.random.split(jax.random.key(seed), 1)[0])
    num_steps = 1
    while np.linalg.norm(GRAD(x)) > 1e-4:
        x, num_steps = x - 0.05 * GRAD(x), num_steps + 1
    np.testing.assert_allclose(ends.x[0], x, atol=1e-12)
    assert ends.step[0] == num_steps and ends.cost.gradients == 2000


def test_a_run_of_descent_ends_at_its_target():
    few = baselines.GradientDescent(step_size=0.1, target=-0.05)(wells(1), max_steps=3000)
    assert np.all(few.loss <= -0.05) and np.mean(few.loss) > -0.06


def test_many_lanes_find_what_one_finds():
    problem, method = wells(2), baselines.GradientDescent(step_size=0.5)
    signs = [
        {tuple(x) for x in np.sign(method(problem, max_steps=steps).x)} for steps in (5000, 200_000)
    ]
    assert signs[0] == signs[1] and len(signs[0]) == 4


def test_random_vectors_never_turn():
    rider = rr.Rider(update=rr.Keep(), step=rr.FixedStep(0.25), finish=None, max_steps=3, stop=())
    ends = baselines.RandomVectors(rider)(wells(3), max_steps=200)
    np.testing.assert_allclose(np.linalg.norm(ends.x, axis=1), 0.75)
    assert np.linalg.matrix_rank(ends.x) == 3


@pytest.mark.parametrize("seed", range(3))
def test_eigenvector_descent_against_a_plain_loop(seed):
    problem, method = surface(), baselines.EigenvectorDescent(spread=0.1)
    ends = method(problem, max_steps=200, seed=seed)
    x = np.asarray(method.start(problem, jax.random.split(jax.random.key(seed), 1)[0]))
    fell, num_steps = 1.0, 0
    while fell > method.tolerance:
        rows = np.linalg.eigh(HESSIAN(jnp.asarray(x)))[1].T
        tried = [x + sign * 8 * 0.5**k * row for k in range(12) for row in rows for sign in (1, -1)]
        losses = [float(VALUE(jnp.asarray(one))) for one in tried]
        fell = max(float(VALUE(jnp.asarray(x))) - min(losses), 0.0)
        x = tried[int(np.argmin(losses))] if fell > 0 else x
        num_steps += 1
    assert ends.step[0] == num_steps
    np.testing.assert_allclose(ends.loss[0], VALUE(jnp.asarray(x)), atol=1e-10)


def test_the_ablations_change_one_rule_each():
    rider = rr.Rider(max_steps=77)
    assert isinstance(baselines.fixed_ridge(rider).update, rr.Keep)
    assert isinstance(baselines.random_ridge(rider).update, rr.RandomRidge)
    assert rr.curvature_gone not in baselines.random_ridge(rider).stop
    both = baselines.fixed_step(baselines.fixed_ridge(rider), 0.2)
    assert both.step == rr.FixedStep(0.2) and both.max_steps == 77 and both.stop == rider.stop


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: baselines.GradientDescent(step_size=-1.0),
            "`step_size` must be positive, not -1.0",
        ),
        (lambda: baselines.GradientDescent(spread=0), "`spread` must be positive, not 0"),
        (lambda: baselines.EigenvectorDescent(spread=0), "`spread` must be positive, not 0"),
        (
            lambda: baselines.RidgeRider(order="sideways")(wells(1), max_steps=1),
            "`order` must be one",
        ),
        (
            lambda: baselines.RidgeRider(max_ridges=0),
            "`max_ridges` must be a whole number of at least",
        ),
        (
            lambda: baselines.GradientDescent()(wells(1)),
            "`max_steps` or `max_seconds` must be given",
        ),
        (
            lambda: baselines.GradientDescent()(wells(1), max_steps=-1),
            "`max_steps` must be a number of at",
        ),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()
