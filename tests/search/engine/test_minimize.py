"""The minima of functions that SciPy's users have."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import Bounds, rosen, rosen_der

import ridgerider as rr
from ridgerider._search.engine.minimize import Box

# The six-dimensional Hartmann function.
WEIGHTS = np.array([1.0, 1.2, 3.0, 3.2])
WIDTHS = np.array(
    [
        [10, 3, 17, 3.5, 1.7, 8],
        [0.05, 10, 17, 0.1, 8, 14],
        [3, 3.5, 1.7, 10, 17, 8],
        [17, 8, 0.05, 10, 0.1, 14],
    ]
)
PLACES = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


def hartmann(x):
    off = x - PLACES
    parts = WEIGHTS * np.exp(-np.sum(WIDTHS * off**2, axis=1))
    return -np.sum(parts), 2 * np.sum(parts[:, None] * WIDTHS * off, axis=0)


def griewank(x):
    roots = np.sqrt(np.arange(1, len(x) + 1))
    cosines = np.cos(x / roots)
    value = 1 + np.sum(x**2) / 4000 - np.prod(cosines)
    others = np.array([np.prod(np.delete(cosines, row)) for row in range(len(x))])
    return value, x / 2000 + others * np.sin(x / roots) / roots


def wells(x):
    return np.sum((np.asarray(x) ** 2 - 1) ** 2) + 0.2 * x[0]


def check_minima(found, function):
    """Lowest first, each once, and stationary by the function's own account."""
    values = [one.fun for one in found]
    assert values == sorted(values) and all(one.success for one in found)
    for one in found:
        value, grad = function(one.x)
        assert one.fun == pytest.approx(value, abs=1e-12)
        assert np.linalg.norm(grad) < 1e-5 and one.least_eigenvalue > 0
        assert one.nfev > 0 and one.njev > 0
    for row, one in enumerate(found):
        assert all(np.linalg.norm(one.x - two.x) > 1e-4 for two in found[:row])


@pytest.mark.long
def test_hartmann():
    found = rr.minimize_all(hartmann, np.full(6, 0.5), jac=True, bounds=[(0, 1)] * 6)
    check_minima(found, hartmann)
    assert found[0].fun == pytest.approx(-3.32237, abs=1e-5)
    assert found[1].fun == pytest.approx(-3.20316, abs=1e-5)


@pytest.mark.long
def test_griewank():
    found = rr.minimize_all(griewank, [1.0, 2.0], jac=True)
    check_minima(found, griewank)
    assert found[0].fun == pytest.approx(0, abs=1e-12) and len(found) >= 3


@pytest.mark.long
def test_rosenbrock():
    found = rr.minimize_all(rosen, [-0.5, 0.5, 0.2, 0.1], jac=rosen_der)
    check_minima(found, lambda x: (rosen(x), rosen_der(x)))
    np.testing.assert_allclose(found[0].x, 1, atol=1e-6)


def test_values_of_numpy_alone():
    found = rr.minimize_all(wells, [0.1])
    assert [one.success for one in found] == [True, True]
    exact = np.sort(np.roots([4, 0, -4, 0.2]))[[0, 2]]
    np.testing.assert_allclose([one.x[0] for one in found], exact, atol=1e-6)
    assert found[0].x.dtype == np.float64


def test_what_jax_can_trace_is_compiled():
    calls = []

    def traced(x, depth):
        calls.append(1)
        return jnp.sum(x**4 / 4 - depth * x**2 / 2)

    found = rr.minimize_all(traced, [0.1], (0.25,))
    np.testing.assert_allclose(sorted(one.x[0] for one in found), [-0.5, 0.5], atol=1e-8)
    assert len(calls) < found[0].nfev + found[0].njev + 30


def test_a_box_has_free_coordinates():
    low, high = [-1, None, 0, None], [2, 3, None, None]
    box = Box(list(zip(low, high, strict=True)), np.array([0.5, 1, 2, -5.0]))
    u = box.to_u(np.array([0.5, 1, 2, -5.0]))
    np.testing.assert_allclose(box.to_x(u), [0.5, 1, 2, -5], atol=1e-12)
    far = box.to_x(np.linspace(-9, 9, 40).reshape(10, 4))
    assert (far[:, 0] >= -1).all() and (far[:, :2] <= [2, 3]).all() and (far[:, 2] >= 0).all()
    slopes = jax.jacobian(lambda u: box.to_x(u, jnp))(jnp.asarray(u))
    np.testing.assert_allclose(np.diag(slopes), box.slopes(u), atol=1e-12)


@pytest.mark.long
def test_a_minimum_on_a_bound():
    found = rr.minimize_all(lambda x: (x[0] ** 2 - 1) ** 2 + x[0], [0.5], bounds=Bounds(0, 2))
    inside = max(np.roots([4, 0, -4, 1]))
    np.testing.assert_allclose(sorted(one.x[0] for one in found), [0, inside], atol=1e-6)


def test_an_inflection_is_no_minimum():
    found = rr.minimize_all(lambda x: x[0] ** 3 + x[0] ** 6, [0.1], max_rides=10)
    assert [one.x[0] for one in found] == pytest.approx([-(0.5 ** (1 / 3))])
    (end,) = rr.minimize_all(lambda x: x[0] ** 3, [0.1], max_rides=10)
    assert not end.success and "falls" in end.message


def test_bad_input_is_refused():
    def refused(match, *args, **options):
        with pytest.raises(ValueError, match=match):
            rr.minimize_all(*args, **options)

    refused("`fun` must be callable", 3, [0.0])
    refused("`x0` must be a sequence of numbers", wells, "no")
    refused("`x0` must be one row of numbers", wells, [[0.0]])
    refused("`bounds` must be 1 pairs", wells, [0.0], bounds=[(0, 1), (0, 1)])
    refused("each low below its high", wells, [0.0], bounds=[(0, 0)])
    refused("`x0` must be within `bounds`", wells, [2.0], bounds=[(0, 1)])
    refused("`jac` is needed for more than 100", wells, np.zeros(101))
    refused("`max_rides` must be a whole number", wells, [0.0], max_rides=0)
    refused("wrong sign", wells, [0.1], jac=lambda x: -4 * x * (x**2 - 1) - 0.2)
