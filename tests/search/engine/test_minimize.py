"""The minima of functions that SciPy's users have."""

import time

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import Bounds, rosen, rosen_der

import ridgerider as rr

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
        assert np.linalg.norm(grad) < 1e-4 and one.least_eigenvalue > 0
        assert one.nfev > 0
    for row, one in enumerate(found):
        assert all(np.linalg.norm(one.x - two.x) > 1e-4 for two in found[:row])


def test_hartmann():
    found = rr.minimize_all(hartmann, np.full(6, 0.5), jac=True, bounds=[(0, 1)] * 6)
    check_minima(found, hartmann)
    assert found[0].fun == pytest.approx(-3.32237, abs=1e-5)
    assert found[1].fun == pytest.approx(-3.20316, abs=1e-5)


def test_griewank():
    found = rr.minimize_all(griewank, [1.0, 2.0], jac=True, max_calls=3000)
    check_minima(found, griewank)
    assert len(found) >= 3


def test_rosenbrock():
    found = rr.minimize_all(rosen, [-0.5, 0.5, 0.2, 0.1], jac=rosen_der, max_calls=5000)
    check_minima(found, lambda x: (rosen(x), rosen_der(x)))
    np.testing.assert_allclose(found[0].x, 1, atol=1e-5)


def test_values_of_numpy_alone():
    found = rr.minimize_all(wells, [0.1])
    exact = np.sort(np.roots([4, 0, -4, 0.2]))[[0, 2]]
    np.testing.assert_allclose([one.x[0] for one in found], exact, atol=1e-6)
    assert found[0].x.dtype == np.float64 and found.success


def test_a_function_of_jax_is_differentiated_by_jax():
    def traced(x, depth):
        return jnp.sum(x**4 / 4 - depth * x**2 / 2)

    found = rr.minimize_all(traced, [0.1], 0.25)
    np.testing.assert_allclose(sorted(one.x[0] for one in found), [-0.5, 0.5], atol=1e-8)
    assert found.nhev > 0


@pytest.mark.parametrize("derivatives", ["values", "jac", "both", "hess"])
def test_every_call_is_counted(derivatives):
    calls = {"fun": 0, "jac": 0, "hess": 0}

    def counted(name, function):
        def call(x):
            calls[name] += 1
            return function(x)

        return call

    slopes = counted("jac", lambda x: 4 * x * (x**2 - 1) + np.eye(len(x))[0] * 0.2)
    options = {"values": {}, "jac": {"jac": slopes}, "both": {"jac": True}}
    options["hess"] = {"jac": slopes, "hess": counted("hess", lambda x: np.diag(12 * x**2 - 4))}
    fun = (
        (lambda x: (wells(x), 4 * x * (x**2 - 1) + np.eye(2)[0] * 0.2))
        if (derivatives == "both")
        else wells
    )
    found = rr.minimize_all(
        counted("fun", fun), [0.3, 0.4], bounds=[(-2, 2)] * 2, max_calls=400, **options[derivatives]
    )
    assert (found.nfev, found.njev, found.nhev) == tuple(calls.values())
    assert found.nfev <= 400 and len(found) >= 2


def test_minima_on_bounds_are_those_of_karush_kuhn_and_tucker():
    found = rr.minimize_all(lambda x: (x[0] ** 2 - 1) ** 2 + x[0], [0.5], bounds=Bounds(0, 2))
    inside = max(np.roots([4, 0, -4, 1]))
    np.testing.assert_allclose(sorted(one.x[0] for one in found), [0, inside], atol=1e-6)
    assert sorted(one.active_bounds[0] for one in found) == [-1, 0]
    # Along the face x = 1 there are two; the corner that is a maximum is none.
    found = rr.minimize_all(
        lambda x: -x[0] + (x[1] ** 2 - 1) ** 2, [0.0, 0.2], bounds=[(-1, 1), (-2, 2)]
    )
    assert sorted(np.round(one.x, 4).tolist() for one in found) == [[1, -1], [1, 1]]
    assert all(one.active_bounds.tolist() == [1, 0] for one in found)


# By their roots: name, function, bounds, where the minima are.
LINES = {
    "a maximum at an end": (lambda x: -x * np.sin(x), (0, 10), [2.028758, 7.978666]),
    "a minimum at an end": (
        lambda x: 2 * np.cos(x) + np.cos(2 * x),
        (-np.pi / 2, 2 * np.pi),
        [-np.pi / 2, 2 * np.pi / 3, 4 * np.pi / 3],
    ),
    "a maximum and an inflection": (
        lambda x: np.sin(x) ** 3 + np.cos(x) ** 3,
        (0, 2 * np.pi),
        [np.pi / 4, np.pi, 3 * np.pi / 2],
    ),
    "an inflection": (lambda x: x**3 + x**6, (-2, 2), [-(0.5 ** (1 / 3))]),
    "a flat maximum": (lambda x: -((x**2 - 1) ** 2) * x**4 + x**8, (-2, 2), [-(3**-0.5), 3**-0.5]),
    "a flat minimum": (lambda x: x**4, (-2, 3), [0.0]),
}


@pytest.mark.parametrize("name", LINES)
def test_lines_have_the_minima_of_their_roots(name):
    function, bounds, exact = LINES[name]
    found = rr.minimize_all(lambda x: float(function(x[0])), [bounds[1] / 3], bounds=[bounds])
    np.testing.assert_allclose(sorted(one.x[0] for one in found), exact, atol=2e-3)


def test_a_narrow_curved_valley_in_wide_bounds():
    def wayburn_seader(x):
        ring = 1.613 - 4 * (x[0] - 0.3125) ** 2 - 4 * (x[1] - 1.625) ** 2
        return ring**2 + (x[1] - 1) ** 2

    found = rr.minimize_all(wayburn_seader, [100.0, -40.0], bounds=[(-500, 500)] * 2)
    exact = 0.3125 + np.sqrt(1.613 / 4 - 0.625**2) * np.array([-1, 1])
    assert found.success
    for one in found:  # both are minima; in such bounds they are close
        assert abs(one.x[1] - 1) < 1e-3 and np.abs(one.x[0] - exact).min() < 1e-3


@pytest.mark.parametrize("x0", [0.0, np.pi / 2, 3.0])  # a maximum, a saddle's place, flat
def test_starts_at_a_maximum_or_on_a_plateau(x0):
    def fun(x):
        return float(np.cos(2 * x[0])) if abs(x[0]) < 2.3 else float(np.cos(4.6))

    found = rr.minimize_all(fun, [x0], bounds=[(-4, 4)], max_calls=3000)
    best = sorted(one.x[0] for one in found if one.fun < -0.99)
    np.testing.assert_allclose(best, [-np.pi / 2, np.pi / 2], atol=1e-4)


def test_a_start_that_leads_nowhere_is_replaced():
    def plateau(x):
        if x[0] > 1.5:
            raise ArithmeticError("no")
        return float(np.exp(-((abs(x[0]) / 0.4) ** 8)) * (x[0] ** 2 - 0.02))

    found = rr.minimize_all(plateau, [1.8], bounds=[(-2, 2)], max_calls=2000)
    assert abs(found[0].x[0]) < 0.01
    assert "the descent from `x0` ended otherwise" in found.message
    assert "calls failed with ArithmeticError: no" in found.message
    (end,) = rr.minimize_all(lambda x: x[0] ** 3, [0.1], max_calls=500)
    assert not end.success


def test_the_message_says_that_the_time_was_up():
    def slow(x):
        time.sleep(0.005)
        return wells(x)

    found = rr.minimize_all(slow, [0.3, 0.4], bounds=[(-2, 2)] * 2, max_seconds=2)
    assert "`max_seconds`, 2, have passed" in found.message and found[0].success


@pytest.mark.parametrize("jac", ["2-point", "3-point", "cs"])
def test_differences_by_their_names(jac):
    calls = []

    def fun(x):
        calls.append(np.iscomplexobj(x))
        return np.sum((x**2 - 1) ** 2) + 0.2 * x[0]

    found = rr.minimize_all(fun, [0.3], bounds=[(-2, 2)], jac=jac)
    exact = np.sort(np.roots([4, 0, -4, 0.2]))[[0, 2]]
    np.testing.assert_allclose([one.x[0] for one in found], exact, atol=1e-6)
    assert found.nfev == len(calls) and any(calls) == (jac == "cs")
    assert any(one.nit > 0 for one in found)


def test_products_with_the_hessian():
    def hessp(x, p):
        return (12 * x**2 - 4) * p

    def slopes(x):
        return 4 * x * (x**2 - 1) + np.eye(len(x))[0] * 0.2

    found = rr.minimize_all(wells, [0.3, 0.4], jac=slopes, hessp=hessp, bounds=[(-2, 2)] * 2)
    assert len(found) == 4 and found.nhev > 0


def test_an_interrupt_returns_what_was_found():
    def tell(done):
        if done.num_minima >= 2:
            raise KeyboardInterrupt

    found = rr.minimize_all(wells, [0.3, 0.4], bounds=[(-2, 2)] * 2, callback=tell)
    assert len(found) >= 2 and "it was interrupted" in found.message


def test_the_estimate_needs_starts_and_climbs():
    found = rr.minimize_all(wells, [0.3, 0.4], bounds=[(-2, 2)] * 2)
    complete = found.completeness
    assert complete.minima.found == len(found) == 4
    assert complete.minima.low <= complete.minima.estimate <= complete.minima.high
    assert "nothing is left" not in str(complete)


def test_the_same_seed_finds_the_same():
    one, two, other = (
        rr.minimize_all(
            griewank, [1.0, 2.0], jac=True, bounds=[(-20, 20)] * 2, max_calls=900, seed=s
        )
        for s in (3, 3, 4)
    )
    assert [end.x.tolist() for end in one] == [end.x.tolist() for end in two]
    assert [end.x.tolist() for end in one] != [end.x.tolist() for end in other]


def test_angles_are_equal_modulo_their_period():
    """cos 3a + cos 2b: three minima times two, a = pi/3, pi, 5 pi/3 and b = pi/2, 3 pi/2."""

    def fun(x):
        return np.cos(3 * x[0]) + np.cos(2 * x[1])

    wanted = {(a, b) for a in (1, 3, 5) for b in (1.5, 4.5)}
    for bounds, low in ((None, 0.0), ([(-np.pi, np.pi)] * 2, -np.pi)):
        found = rr.minimize_all(fun, [0.3, 0.2], period=2 * np.pi, bounds=bounds, max_calls=4000)
        x = np.array([one.x for one in found])
        turned = np.round((x % (2 * np.pi)) / (np.pi / 3), 4)
        assert {(a, b) for a, b in turned} == wanted and len(found) == 6
        assert (x >= low).all() and (x <= low + 2 * np.pi).all()
    mixed = rr.minimize_all(
        lambda x: np.cos(x[0]) + x[1] ** 2, [3, 0.5], period=[2 * np.pi, None], bounds=[(0, 7)] * 2
    )
    assert len(mixed) == 1 and np.allclose(mixed[0].x, [np.pi, 0], atol=1e-5)
    assert mixed[0].active_bounds.tolist() == [0, -1]


def test_tol_is_the_accuracy_of_x():
    runs = [
        rr.minimize_all(hartmann, np.full(6, 0.5), jac=True, bounds=[(0, 1)] * 6, tol=tol)
        for tol in (None, 1e-4)
    ]
    assert runs[1].nfev < runs[0].nfev
    assert np.allclose(runs[0][0].x, runs[1][0].x, atol=1e-3)


def test_the_least_eigenvalue_is_that_of_the_function():
    """Of 3 a^2 + b^2 + c with c at its bound: 2, though the box is wide along b."""
    found = rr.minimize_all(
        lambda x: 3 * x[0] ** 2 + x[1] ** 2 + x[2],
        [3, 3, 0.5],
        bounds=[(-10, 10), (-40, 50), (0, 1)],
        max_calls=2000,
    )
    assert len(found) == 1 and found[0].least_eigenvalue == pytest.approx(2, rel=1e-3)


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
    refused("`max_calls` must be a whole number", wells, [0.0], max_calls=0)
    refused("`jac` must be callable", wells, [0.0], jac="none")
    refused("`hess` must be callable", wells, [0.0], hess=True)
    refused("`hessp` must be callable", wells, [0.0], hessp=3)
    refused("`constraints` must be empty: use `bounds`", wells, [0.0], constraints={"type": "eq"})
    refused("`options` must be maxfun", wells, [0.0], options={"gtol": 1e-3})
    refused("`period` must be a positive number", wells, [0.0], period=-1)
    refused("`period` must be a positive number", wells, [0.0], period=[1, 2])
    refused("`period` must be at most as long as", wells, [0.5], period=2, bounds=[(0, 1)])
    refused("`period` must leave the loss unchanged", wells, [0.3], period=1)
    refused("not one of .* calls did: failed: ZeroDivisionError", lambda x: 1 / 0, [0.0])
    refused("not one of .* calls did: failed: .*not shape", lambda x: x, [0.0, 1.0])
    refused("wrong sign", wells, [0.1], jac=lambda x: -4 * x * (x**2 - 1) - 0.2)
