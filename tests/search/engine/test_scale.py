"""Whatever is decided does not depend on the units of the parameters and of the loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._core.problem.calls import measured

# Of the parameters, of the loss, and its zero.
SCALES = [
    (1.0, 1.0, 0.0),
    (1e-8, 1.0, 0.0),
    (1e-3, 1e-8, 0.0),
    (1e4, 1.0, 100.0),
    (1e8, 1e8, 0.0),
    (1e-8, 1e8, 3e8),
]


def wells(x, length, height, zero):
    x = x / length
    return height * (jnp.sum(x**4 / 4 - x**2 / 2) + x[0] * x[1] / 10) + zero


def problem_at(x, scales):
    return rr.Problem(wells, scales[0] * jnp.asarray(x), *map(jnp.asarray, scales))


def decisions(scales):
    """What is found, in units of the parameters."""
    landscape = rr.explore(problem_at([0.3, 0.2], scales), max_rides=40)
    result = rr.search(problem_at([0.0, 0.0], scales), max_rides=20)
    saddle = rr.find_saddle(problem_at([0.3, 0.2], scales))
    end = rr.Descend()(landscape.problem, landscape.problem.x0, jax.random.key(0), None)
    points = (*landscape.minima(), *landscape.saddles(None), *result.minima())
    names = [(one.kind, str(one.fingerprint)) for one in points]
    names += [(end.kind, ""), ("saddle", str(saddle.morse_index))]
    where = [one.params for one in points] + [end.x, saddle.params]
    return names, np.stack(where) / scales[0]


def test_invariance_under_the_units_of_parameters_and_loss():
    wanted, where = decisions(SCALES[0])
    assert len(wanted) == 4 + 5 + 4 + 2
    for scales in SCALES[1:]:
        found, there = decisions(scales)
        assert sorted(found) == sorted(wanted)
        order = [np.argmin(np.abs(there - one).sum(axis=1)) for one in where]
        np.testing.assert_allclose(there[order], where, atol=1e-6)


@pytest.mark.parametrize("factor", [0.2, 0.4, 2.0, 5.0])
def test_all_minima_between_two_units(factor):
    """The unit is rounded to a power of ten: in between, other legs lead to the same points."""
    landscape = rr.explore(problem_at([0.3, 0.2], (factor, 1.0, 0.0)), max_rides=40)
    assert len(landscape.minima()) == 4 and len(landscape.saddles(None)) == 5


def test_small_parameters_have_a_small_unit():
    def loss(x):
        return jnp.sum((1e8 * x) ** 4 / 4 - (1e8 * x) ** 2 / 2) + 1e15 * x[0] * x[1]

    start = jnp.array([3e-9, 2e-9])
    assert float(measured(rr.Problem(loss, start))[0].unit) == pytest.approx(1e-8)
    found = rr.minimize_all(loss, start, max_calls=4000)
    assert [one.fun for one in found] == pytest.approx([-0.605, -0.605, -0.405, -0.405])


def test_a_loss_without_any_length_has_the_unit_one():
    problem, cost = measured(rr.Problem(lambda x: x @ x, jnp.ones(2)))
    assert float(problem.unit) == 1 and cost.gradients > 1


@pytest.mark.parametrize("length", [1e-8, 1e-3, 1e4, 1e8])
@pytest.mark.parametrize(("factor", "shift"), [(1e-6, 0.0), (1e6, 3e6)])
def test_functions_outside_of_jax_in_other_units(length, factor, shift):
    def of(length, factor, shift):
        def value_and_grad(x):
            a, b = x / length
            value = (4 - 2.1 * a**2 + a**4 / 3) * a**2 + a * b + (4 * b**2 - 4) * b**2
            grad = np.array([8 * a - 8.4 * a**3 + 2 * a**5 + b, a + 16 * b**3 - 8 * b])
            return factor * value + shift, factor * grad / length

        start = np.full(2, 0.5 * length)
        landscape = rr.explore(rr.Problem.from_functions(value_and_grad, start), max_rides=60)
        minima = rr.minimize_all(value_and_grad, start, jac=True, max_calls=1500)
        points = [*landscape.minima(), *landscape.saddles()]
        return len(points), sorted(round((one.fun - shift) / factor, 4) for one in minima)

    assert of(length, factor, shift) == of(1.0, 1.0, 0.0)
