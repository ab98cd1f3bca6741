import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from tests.cases import make_quadratic


def loss(params, scale):
    return scale * (jnp.sum(params["w"] ** 3) * params["b"] + jnp.sin(params["b"]))


@pytest.fixture(params=[jnp.float32, jnp.float64])
def problem(request):
    start = {"w": jnp.array([[0.3, -0.2]], request.param), "b": jnp.array(0.5, request.param)}
    return rr.Problem(loss, start, jnp.array(2.0, request.param))


def test_derivatives_agree_with_closed_form(problem):
    b, w0, w1 = np.asarray(problem.x0, float)  # leaves are ravelled by key
    tolerance = 20 * jnp.finfo(problem.dtype).eps
    grad = 2 * np.array([w0**3 + w1**3 + np.cos(b), 3 * b * w0**2, 3 * b * w1**2])
    hessian = 2 * np.array(
        [[-np.sin(b), 3 * w0**2, 3 * w1**2], [3 * w0**2, 6 * b * w0, 0], [3 * w1**2, 0, 6 * b * w1]]
    )
    v = jnp.array([1.0, -2.0, 0.5], problem.dtype)
    expected = (grad, hessian @ np.asarray(v), hessian)
    for one, two in zip(derivatives(problem, problem.x0, v)[1:], expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=tolerance, atol=tolerance)


@eqx.filter_jit
def derivatives(problem, x, v):
    return problem.value(x), problem.grad(x), problem.hvp(x, v), problem.hessian(x)


def test_dtype_is_kept(problem):
    outs = derivatives(problem, problem.x0, problem.x0)
    assert {out.dtype for out in outs} == {problem.dtype}


def test_params_survive_the_round_trip(problem):
    params = problem.unravel(problem.x0)
    assert jax.tree.structure(params) == jax.tree.structure(problem.start)
    assert all(map(np.array_equal, jax.tree.leaves(params), jax.tree.leaves(problem.start)))


def test_numpy_leaves_are_welcome():
    assert rr.Problem(lambda p: p["a"].sum(), {"a": np.zeros(3)}).size == 3


def test_with_start_keeps_loss_and_data():
    problem, _ = make_quadratic([-1.0, 2.0])
    moved = problem.with_start(jnp.ones(2))
    assert moved.loss is problem.loss and moved.args[0] is problem.args[0]
    assert moved.x0.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("loss", "start", "message"),
    [
        (lambda x: x, jnp.zeros(3), r"`loss` must return a real scalar.*\(3,\).*forget a mean"),
        (
            lambda x: jax.lax.complex(x, x).sum(),
            jnp.zeros(3),
            r"`loss` must return a real scalar.*complex",
        ),
        (lambda x: x.sum() > 0, jnp.zeros(3), r"`loss` must return a real scalar.*bool"),
        (3.0, jnp.zeros(3), r"`loss` must be callable.*3\.0"),
        (jnp.sum, jnp.zeros(3, complex), r"`start` must be float32 or float64, not complex"),
        (jnp.sum, {"n": jnp.arange(3)}, r"`start\['n'\]` must be float32 or float64, not int"),
        (jnp.sum, jnp.zeros(3, "float16"), r"`start` must be float32 or float64, not float16"),
        (jnp.sum, "text", r"`start` must be float32 or float64, not str"),
        (jnp.sum, jnp.array([1.0, jnp.nan]), r"`start` must be finite"),
        (jnp.sum, [jnp.zeros(1), jnp.array([jnp.inf])], r"`start\[1\]` must be finite"),
        (jnp.sum, {}, r"`start` must hold at least one parameter"),
        (jnp.sum, [jnp.zeros(0)], r"`start` must hold at least one parameter"),
        (lambda p: p[0] + 0.0, [jnp.zeros((), "float32"), jnp.zeros(())], "float32 and float64"),
    ],
)
def test_bad_input_is_one_sentence(loss, start, message):
    with pytest.raises(ValueError, match=message):
        rr.Problem(loss, start)


def test_random_arrays_in_a_loss_are_noticed():
    random = np.random.default_rng(0)
    noisy = rr.Problem(lambda x: jnp.sum(x * random.normal(size=2)), jnp.ones(2))
    with pytest.raises(ValueError, match="two traces of it differ"):
        noisy.check_deterministic()
    fixed = random.normal(size=2)
    rr.Problem(lambda x: jnp.sum(x * fixed), jnp.ones(2)).check_deterministic()
    key = jax.random.key(0)
    rr.Problem(
        lambda x: jnp.sum(x * jax.random.normal(key, (2,))), jnp.ones(2)
    ).check_deterministic()


def mean_loss(x, numbers):
    return jnp.mean(numbers) * x[0] ** 2


def test_another_start_keeps_the_batch():
    batch = rr.Problem(mean_loss, jnp.ones(1), jnp.arange(6.0)).on_rows(jnp.array([[0, 1]]))
    assert float(batch.with_start(batch.start).value(batch.x0)) == 0.5


def data_loss(x, data):
    return jnp.mean(jnp.tanh(data @ x) ** 2) - jnp.sum(x**3)


def test_the_hvp_at_a_point_is_that_of_batches_and_chunks():
    data = jax.random.normal(jax.random.key(0), (200, 6))
    problem = rr.Problem(data_loss, jnp.linspace(0.1, 0.6, 6), data)
    x, v = problem.x0 + 0.3, jnp.cos(jnp.arange(6.0))
    chunks = problem.on_rows(jnp.arange(200).reshape(4, 50))
    for one in (problem, rr.types.FixedRows()(problem, jax.random.key(0), 0), chunks):
        np.testing.assert_allclose(one.value(x), problem.value(x), rtol=1e-12)
        np.testing.assert_allclose(one.grad(x), problem.grad(x), atol=1e-12)
        np.testing.assert_allclose(one.hvp_at(x)(v), problem.hvp(x, v), atol=1e-11)
