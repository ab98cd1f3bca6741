"""A start for any network: what is its head, what is scaled, and why a start may be useless."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen

import ridgerider as rr

KEY = jax.random.key(0)
INPUTS = jax.random.normal(KEY, (40, 6))
LABELS = jnp.argmax(INPUTS[:, :3], axis=1)


def dense(key, sizes, dtype=jnp.float64):
    keys = jax.random.split(key, len(sizes))
    return [
        {"w": jax.random.normal(one, (a, b), dtype) / a**0.5, "b": jnp.zeros(b, dtype)}
        for one, a, b in zip(keys, sizes[:-1], sizes[1:], strict=False)
    ]


def perceptron(activation):
    def apply(params, inputs):
        for layer in params[:-1]:
            inputs = activation(inputs @ layer["w"] + layer["b"][None])
        return inputs @ params[-1]["w"] + params[-1]["b"][None]

    return apply


TANH, LINEAR = perceptron(jnp.tanh), perceptron(lambda hidden: hidden)


def changed(start, params):
    """The names of the leaves that the start changed."""
    pairs = zip(jax.tree.leaves_with_path(start.params), jax.tree.leaves(params), strict=True)
    return {jax.tree_util.keystr(path) for (path, one), two in pairs if np.any(one != two)}


@pytest.mark.parametrize("apply", [TANH, LINEAR])
def test_only_the_head_is_scaled(apply):
    params = dense(KEY, (6, 5, 3, 3))  # a hidden layer as wide as the outputs
    params[-1]["b"] = jnp.ones(3)
    start = rr.network_start(params, apply, INPUTS, LABELS, factor=0.1)
    assert set(start.head) == changed(start, params) == {"[2]['b']", "[2]['w']"}
    np.testing.assert_allclose(start.params[-1]["w"], 0.1 * params[-1]["w"], rtol=1e-12)


def test_what_is_reported_is_what_is_there():
    start = rr.network_start(dense(KEY, (6, 5, 3)), TANH, INPUTS, LABELS)
    problem = start.problem
    np.testing.assert_allclose(start.loss, problem.value(problem.x0))
    np.testing.assert_allclose(start.grad_norm, jnp.linalg.norm(problem.grad(problem.x0)))
    eigenvalues = np.linalg.eigvalsh(problem.hessian(problem.x0))
    np.testing.assert_allclose(start.eigenvalues[0], eigenvalues[0], rtol=1e-3)
    assert start.body_grad_norm < 0.1 * start.grad_norm


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_the_dtype_is_kept(dtype):
    params = dense(KEY, (6, 5, 3), dtype)
    start = rr.network_start(params, TANH, INPUTS.astype(dtype), LABELS)
    assert {leaf.dtype for leaf in jax.tree.leaves(start.params)} == {jnp.dtype(dtype)}
    assert start.problem.dtype == dtype


def test_flax_and_equinox():
    class Net(linen.Module):
        @linen.compact
        def __call__(self, inputs):
            hidden = linen.LayerNorm(param_dtype=float)(linen.Dense(5, param_dtype=float)(inputs))
            return linen.Dense(3, param_dtype=float, name="head")(jnp.tanh(hidden))

    net = Net()
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        params = net.init(KEY, INPUTS)["params"]

        def apply(params, inputs):
            return net.apply({"params": params}, inputs)

        start = rr.network_start(params, apply, INPUTS, LABELS)
    assert changed(start, params) == {"['head']['kernel']"}  # its bias is zero
    model = eqx.nn.MLP(6, 3, 5, 1, activation=jnp.tanh, key=KEY)
    params, rest = eqx.partition(model, eqx.is_inexact_array)
    start = rr.network_start(
        params, lambda params, inputs: jax.vmap(eqx.combine(params, rest))(inputs), INPUTS, LABELS
    )
    assert changed(start, params) == {".layers[1].weight", ".layers[1].bias"}


def test_a_head_may_be_named():
    params = {"embed": jax.random.normal(KEY, (3, 4)), "w": jnp.eye(4)}

    def apply(params, tokens):  # tied weights: what reads is what writes
        return jnp.tanh(params["embed"][tokens] @ params["w"]) @ params["embed"].T

    tokens = jnp.arange(12) % 3
    with pytest.raises(ValueError, match="must end in a linear layer"):
        rr.network_start(params, apply, tokens, tokens)
    start = rr.network_start(params, apply, tokens, tokens, head=lambda params: params["w"])
    assert start.head == ("['w']",)


def test_useless_starts_say_why():
    params = dense(KEY, (6, 5, 5, 3))
    small = [1e-4 * layer["w"] for layer in params]

    def deep_linear(weights, inputs):
        return inputs @ weights[0] @ weights[1] @ weights[2]

    with pytest.warns(UserWarning, match="saddle of higher order"):
        start = rr.network_start(small, deep_linear, INPUTS, LABELS)
    assert start.reason.startswith("The start is useless")
    with pytest.warns(UserWarning, match="no derivative where it is"):
        rr.network_start(params, perceptron(jnp.sign), INPUTS, LABELS)
    with pytest.warns(UserWarning, match="no derivative where it is"):
        zero = jax.tree.map(jnp.zeros_like, params)
        rr.network_start(zero, perceptron(jax.nn.relu), INPUTS, LABELS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # deep linear and relu networks have curvature there
        rr.network_start([1e4 * leaf for leaf in small], deep_linear, INPUTS, LABELS)
        rr.network_start(params, perceptron(jax.nn.relu), INPUTS, LABELS)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"targets": LABELS + 1}, "`targets` must be from 0 to 2"),
        ({"targets": LABELS[:5]}, "common leading length"),
        ({"apply": 3}, "`apply` must be callable"),
        ({"factor": 0.0}, "`factor` must be positive"),
        ({"params": {}}, "`params` must be a pytree of arrays, one or more, not {}"),
        ({"apply": lambda params, inputs: TANH(params, inputs)[0]}, "a row for each of the 32"),
        (
            {"apply": lambda params, inputs: TANH(params, inputs - jnp.mean(inputs, 0)[None])},
            "each example by itself",
        ),
        (
            {"apply": lambda params, inputs: jax.nn.log_softmax(TANH(params, inputs))},
            "must end in a linear layer",
        ),
        ({"inputs": INPUTS.at[0, 0].set(jnp.nan)}, "each example by itself|must be finite"),
    ],
)
def test_bad_input(change, match):
    args = {"params": dense(KEY, (6, 5, 3)), "apply": TANH, "inputs": INPUTS, "targets": LABELS}
    args |= change
    with pytest.raises(ValueError, match=match):
        rr.network_start(**args)


def test_problem_functions_can_be_compiled():
    problem = rr.Problem(lambda layers: jnp.sum(layers[0] ** 2), [jnp.ones(2)])
    np.testing.assert_allclose(jax.jit(problem.hessian)(problem.x0), 2 * np.eye(2))
    assert float(jax.jit(problem.value)(problem.x0)) == 2
