"""Newton steps, errors of eigenvalues, flat directions and Morse indices, against closed forms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._core.linalg.lowest import lowest_pairs
from ridgerider._core.points import classify
from ridgerider._core.points.classify import FALLS, UNKNOWN, Curvature
from ridgerider._core.points.domain import Domain
from ridgerider._core.problem.calls import Calls
from ridgerider._core.runtime.compile import eigh

KEY = jax.random.key(0)


def dense_view(problem, x):
    x = np.asarray(x, problem.dtype)
    loss, grad, hessian = Calls(problem).expansion(x)
    return classify.view_of(problem, x, loss, grad, hessian, eigh(hessian), 0.0)


def verdict(problem, here, **more):
    return classify.verdict(Calls(problem), Domain(problem), here, **more)


def half_square(x, matrix):
    return x @ matrix @ x / 2


def quadratic(eigenvalues, dtype="float64", seed=0):
    """A quadratic loss with these eigenvalues, its matrix, and its eigenvectors as columns."""
    eigenvalues = np.asarray(eigenvalues, dtype)
    size = len(eigenvalues)
    columns, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))
    matrix = jnp.asarray((columns * eigenvalues) @ columns.T, dtype)
    problem = rr.Problem(half_square, jnp.zeros(size, dtype), matrix)
    return problem, np.asarray(matrix), columns


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_newton_step_solves_the_linearised_problem(dtype):
    problem, _, _ = quadratic([-2.0, -0.5, 1.0, 3.0], dtype)
    x = jnp.array([1.0, -2.0, 0.5, 3.0], dtype)
    here = dense_view(problem, x)
    np.testing.assert_allclose(
        here.x + here.step, np.zeros(4), atol=2e-5 if dtype == "float32" else 1e-12
    )
    assert float(here.grad @ here.downhill) < 0
    assert dense_view(problem, problem.x0).curvature.is_down.sum() == 2
    assert float(here.reach) == pytest.approx(1, rel=1e-4)
    assert here.step.dtype == dtype


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sign", [-1, 1])
def test_an_eigenvalue_is_flat_within_its_error_and_not_beyond(dtype, sign):
    error = 1000 * 2 * np.finfo(dtype).eps  # of four eigenvalues, the largest of size 1
    for factor, num_flat in ((0.5, 1), (2.0, 0)):
        values = np.sort(np.array([sign * factor * error, 0.25, 0.5, 1.0], dtype))
        problem = rr.Problem(lambda x, v: v @ x**2 / 2, jnp.zeros(4, dtype), jnp.asarray(values))
        curvature = dense_view(problem, problem.x0).curvature
        assert curvature.is_flat.sum() == num_flat
        assert curvature.is_down.sum() == (sign < 0 and not num_flat)
        assert bool(curvature.is_known)
        assert float(curvature.least) == pytest.approx(0.25 if num_flat else values.min())


def test_flat_directions_are_weak_and_left_alone():
    problem, matrix, columns = quadratic([0.0, 0.0, 1.0, 2.0])
    x = jnp.arange(4.0)
    here = dense_view(problem, x)
    weak = columns[:, :2] @ columns[:, :2].T
    np.testing.assert_allclose(here.x + here.step, weak @ np.asarray(x), atol=1e-12)
    rows = here.curvature.rows[here.curvature.is_weak]
    np.testing.assert_allclose(rows.T @ rows, weak, atol=1e-12)
    part = classify.flat_part(Calls(problem), here, np.asarray(x))
    np.testing.assert_allclose(part, weak @ np.asarray(x), atol=1e-12)
    np.testing.assert_allclose(matrix @ (here.x + here.step), np.zeros(4), atol=1e-12)


def test_the_turn_of_a_gradient_is_no_curvature():
    """Beside a circle of minima a rotation has the curvature |grad| / |x|."""
    ring = rr.Problem(lambda x: (jnp.sum(x**2) - 1) ** 2, jnp.zeros(2))
    curvature = dense_view(ring, jnp.array([0.99, 0.0])).curvature
    assert float(curvature.eigenvalues[0]) == pytest.approx(4 * (0.99**2 - 1))
    assert curvature.is_flat.sum() == 1 and curvature.is_down.sum() == 0
    assert float(curvature.rounding) < 1e-10


SPECTRA = {
    "minimum": (np.linspace(0.5, 20, 320), 0, 0),
    "saddle": (np.concatenate([[-1.0, -0.5], np.linspace(0.5, 20, 318)]), 2, 0),
    "flat": (np.concatenate([np.zeros(3), np.linspace(0.5, 20, 317)]), 0, 3),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_with_and_without_a_matrix(name):
    eigenvalues, index, num_flat = SPECTRA[name]
    problem, _, _ = quadratic(eigenvalues)
    x, calls = np.zeros(320), Calls(problem)
    dense = dense_view(problem, x).curvature
    lean = classify.lowest_curvature(calls, x, x, KEY, 1000)
    for curvature in (dense, lean):
        assert curvature.is_known and curvature.is_down[0] == (index > 0)
        assert curvature.is_flat.sum() == num_flat and curvature.is_down.sum() == index
        assert float(curvature.least) == pytest.approx(-1.0 if index else 0.5, abs=1e-6)
    assert 8 < calls.cost.hvps <= 1000
    early = classify.lowest_curvature(calls, x, x, KEY, 10)
    assert not early.is_known or index


def test_an_index_is_known_if_nothing_is_left_out():
    problem, _, _ = quadratic(np.concatenate([[-1.0, -0.5, -0.25], np.linspace(0.5, 20, 317)]))
    x, hvp = jnp.full(320, 0.01), problem.hvp_at(jnp.zeros(320))

    @functools.partial(jax.jit, static_argnums=1)
    def find(start, k):
        return lowest_pairs(hvp, start, k, 1e-8, 2000, 2 * k + 20, KEY)

    for k, is_known in ((2, False), (6, True)):
        start = jax.random.normal(KEY, (320,))
        pairs = find(start, k)
        curvature = classify.curvature_of(Calls(problem), np.zeros(320), np.zeros(320), pairs)
        assert curvature.is_known == is_known
        assert curvature.is_down.sum() == min(k, 3)
    step, _ = jax.jit(lambda grad: classify.newton_step(hvp, grad, pairs, 1e-9, False))(
        problem.grad(x)
    )
    # What is left is that of conjugate gradients, 1e-3 of the gradient.
    assert float(jnp.linalg.norm(x + step)) < 2e-3 * float(jnp.linalg.norm(problem.grad(x)))


def test_a_view_of_a_large_problem_has_a_step_and_no_curvature():
    problem, _, _ = quadratic(np.linspace(0.5, 20, 320))
    here = classify.view(Calls(problem), np.full(320, 0.01), KEY)
    assert float(here.reach * here.size) == pytest.approx(0.01 * 320**0.5, rel=1e-2)
    assert not here.curvature.is_known and float(here.curvature.least) == 0
    assert int(verdict(problem, here).doubt) == UNKNOWN


def test_what_is_not_known_is_nothing():
    none = np.zeros((0, 3))
    curvature = Curvature(none[:, 0], none, none[:, 0], 1.0, 0.0, 0.0, False)
    assert curvature.least == 0 and not curvature.is_flat.sum()
    assert not curvature.is_down.any() and not curvature.is_weak.any()


LEVEL = {  # losses with a zero eigenvalue, or two, at 0: what the loss does there
    "minimum": [
        lambda x: x[0] ** 2 + x[1] ** 4,
        lambda x: (x[1] - x[0] ** 2) ** 2 + x[0] ** 6,
        lambda x: jnp.sum(x**4),
    ],
    "saddle": [
        lambda x: x[0] ** 2 - x[1] ** 4,
        lambda x: (x[1] - x[0] ** 2) ** 2 - x[0] ** 6,  # rises along the axes
        lambda x: jnp.sum(x**4) - 6 * x[0] ** 2 * x[1] ** 2,  # likewise
    ],
    "unverified": [lambda x: x[0] ** 2 + x[1] ** 3, lambda x: x[0] ** 2 + x[1] ** 5],
}


CASES = [(kind, loss) for kind, losses in LEVEL.items() for loss in losses]


def level(x, which):
    """All in one loss: one program is compiled for all."""
    return jax.lax.switch(which, [loss for _, loss in CASES], x)


@pytest.mark.parametrize("which", range(len(CASES)))
def test_where_there_is_no_curvature_the_loss_decides(which):
    kind, problem = CASES[which][0], rr.Problem(level, jnp.zeros(2), jnp.array(which))
    found = verdict(problem, dense_view(problem, problem.x0))
    assert bool(found.is_down.any()) == (kind == "saddle")
    assert bool(np.any(found.tilt != 0)) == (kind == "unverified")
    assert int(found.doubt) == (0 if kind == "minimum" else FALLS)


def test_an_eigenvalue_is_known_to_within_its_change_over_a_newton_step():
    cubic = rr.Problem(lambda x: x[0] ** 3 + x[0] ** 6, jnp.zeros(1))
    for x in (1e-9, -1e-9, 1e-20):
        here = dense_view(cubic, jnp.array([x]))
        assert here.curvature.is_flat.sum() == 0 and float(here.curvature.eigenvalues[0]) != 0
        found = verdict(cubic, here)
        assert abs(float(found.tilt[0])) == 1 and not found.is_down.any()


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_where_curvature_has_faded_values_confirm_what_is_left(offset):
    # With the offset, all values are zero as far as they are compared.
    def loss(x, offset):
        return (offset + 5e-8 * x[0] ** 2) - offset

    problem = rr.Problem(loss, jnp.zeros(2, "float32"), jnp.asarray(offset, "float32"))
    here = dense_view(problem, problem.x0)
    assert verdict(problem, here).doubt == 0
    assert verdict(problem, here, largest=1.0).doubt == (classify.LEVEL if offset else 0)
