"""Modules of PyTorch: the same derivatives, rides and minima as in JAX, and state dictionaries."""

import copy
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._core.problem import functions
from ridgerider.workers import process_pool

torch = pytest.importorskip("torch", reason="PyTorch is not installed: ridgerider[torch]")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import ridgerider.torch  # noqa: E402

HVP_RIDER = rr.Rider(
    spectrum=rr.BlockSpectrum(k=1, dense_below=0, tolerance=1e-4),
    update=rr.Davidson(),
    finish=None,
    max_steps=4,
)


def mlp(dtype, inputs=3, hidden=3, outputs=2):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs)).to(dtype)


def examples(dtype, inputs=3, outputs=2):
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(20, inputs, generator=generator, dtype=dtype),
        torch.randn(20, outputs, generator=generator, dtype=dtype),
    )


def in_jax(params, inputs, targets):
    hidden = jnp.tanh(inputs @ params["0.weight"].T + params["0.bias"][None])
    outputs = hidden @ params["2.weight"].T + params["2.bias"][None]
    return jnp.mean((outputs - targets) ** 2)


def both(dtype):
    """The same network, weights and data in the two frameworks."""
    module, data = mlp(dtype), examples(dtype)
    weights = {name: jnp.asarray(one.detach().numpy()) for name, one in module.named_parameters()}
    return (
        ridgerider.torch.problem(module, F.mse_loss, *data),
        rr.Problem(in_jax, weights, *(jnp.asarray(one.numpy()) for one in data)),
        module,
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_derivatives_are_those_of_jax(dtype, tolerance):
    ours, other, _ = both(dtype)
    x = ours.x0
    assert np.array_equal(x, other.x0)
    v = jnp.asarray(np.random.default_rng(0).normal(size=(2, ours.size)), x.dtype)
    scale = float(jnp.abs(other.hessian(x)).max())
    np.testing.assert_allclose(ours.value(x), other.value(x), atol=tolerance)
    np.testing.assert_allclose(ours.grad(x), other.grad(x), atol=tolerance)
    product = jax.jit(lambda v: ours.hvp(x, v))
    for row in v:
        np.testing.assert_allclose(product(row), other.hvp(x, row), atol=10 * tolerance * scale)
    np.testing.assert_allclose(ours.hessian(x), other.hessian(x), atol=tolerance * scale)
    assert ours.dtype == np.dtype(str(dtype).removeprefix("torch."))


class Decayed(nn.Module):
    """Returns the sum of squares of its parameters as well."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, inputs):
        return self.network(inputs), sum(one.square().sum() for one in self.parameters())


def test_every_forward_pass_is_counted():
    calls = []

    def counted_loss(outputs, targets):
        calls.append(1)
        return F.mse_loss(outputs, targets)

    problem = ridgerider.torch.problem(mlp(torch.float64), counted_loss, *examples(torch.float64))
    assert problem.loss.calls["values"] == len(calls)
    with problem.ledger() as ledger:
        jax.block_until_ready((problem.grad(problem.x0), problem.hessian(problem.x0)))
    assert problem.loss.calls["values"] == len(calls)
    counts = (ledger.calls.values, ledger.calls.gradients, ledger.calls.hvps)
    assert counts == (2, 2, problem.size)  # the gradient, once more with its graph


def decayed_loss(outputs, targets):
    return F.mse_loss(outputs[0], targets) + 0.01 * outputs[1]


def decayed_in_jax(params, inputs, targets):
    squares = sum(jnp.sum(one**2) for one in params.values())
    own = {name.removeprefix("network."): one for name, one in params.items()}
    return in_jax(own, inputs, targets) + 0.01 * squares


def taught():
    """A network of two hidden units, close to its saddle at 0, and what another one answers."""
    network, (inputs, _) = mlp(torch.float64, 2, 2, 1), examples(torch.float64, 2)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter *= 3
        targets = network(inputs)
        for parameter in network.parameters():
            parameter *= 0.05
    return Decayed(network), decayed_loss, inputs, targets


@pytest.fixture(scope="module")
def searched():
    module, loss, *data = taught()
    ours = ridgerider.torch.problem(module, loss, *data)
    other = rr.Problem(decayed_in_jax, ours.start, *(jnp.asarray(one.numpy()) for one in data))
    rider, options = rr.Rider(), {"max_rides": 4, "max_depth": 1}
    return ours, module, rider, options, rr.search(ours, rider, **options), other


def test_the_tree_and_the_minima_are_those_of_jax(searched):
    _, _, rider, options, result, other = searched
    exact = rr.search(other, rider, **options)
    assert result.fingerprints() == exact.fingerprints() and len(result) >= 2
    for one, two in zip(result, exact, strict=True):
        assert (one.num_steps, one.ended_by) == (two.num_steps, two.ended_by)
        np.testing.assert_allclose(one.x, two.x, atol=1e-8)
    assert len(result.minima()) == len(exact.minima()) > 0
    for one, two in zip(result.minima(), exact.minima(), strict=True):
        np.testing.assert_allclose(one.loss, two.loss, atol=1e-10)
        for name in two.params:
            np.testing.assert_allclose(one.params[name], two.params[name], atol=1e-5)


def test_solutions_are_state_dictionaries(searched):
    ours, module, _, _, result, _ = searched
    before = copy.deepcopy(module.state_dict())
    for solution in result.solutions():
        fresh = copy.deepcopy(module)
        fresh.load_state_dict(solution.params)
        value = decayed_loss(fresh(ours.loss.data[0]), ours.loss.data[1])
        assert value.item() == pytest.approx(solution.loss, rel=1e-12)
        for params in (solution.params, fresh.state_dict(), dict(fresh.named_parameters())):
            np.testing.assert_array_equal(
                ours.ravel(params), result.leg(solution.fingerprint).finish.x
            )
            assert ours.with_start(params).x0.tolist() == ours.ravel(params).tolist()
    assert all(torch.equal(before[name], module.state_dict()[name]) for name in before)


@pytest.mark.long
def test_resume_is_bit_equal(searched, tmp_path):
    ours, _, rider, options, whole, _ = searched
    rr.search(ours, rider, **{**options, "max_rides": 1}, out=tmp_path / "run.sqlite")
    again = ridgerider.torch.problem(*taught())
    resumed = rr.resume(tmp_path / "run.sqlite", again, max_rides=4)
    for one, two in zip(whole, resumed, strict=True):
        assert np.array_equal(one.x, two.x) and np.array_equal(one.finish.x, two.finish.x)
    module, loss, inputs, targets = taught()
    other = ridgerider.torch.problem(module, loss, 2 * inputs, targets)
    with pytest.raises(ValueError, match="the data of the one given differ"):
        rr.resume(tmp_path / "run.sqlite", other, max_rides=2)


def test_problems_can_be_sent():
    ours, _, _ = both(torch.float64)
    v = jnp.ones(ours.size)
    first = ours.hvp(ours.x0, v)  # the graph that is kept now is not sent
    again = pickle.loads(pickle.dumps(ours))
    assert np.array_equal(again.hvp(again.x0, v), first)


def cnn():
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Softplus(), nn.Flatten(), nn.Linear(32, 3)
    )
    inputs = torch.randn(6, 1, 6, 6, dtype=torch.float64)
    return module.double().eval(), F.cross_entropy, inputs, torch.arange(6) % 3


def transformer():
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True, activation="gelu")
    inputs = torch.randn(3, 4, 4, dtype=torch.float64)
    return block.double().eval(), F.mse_loss, inputs, torch.roll(inputs, 1, 1)


@pytest.mark.parametrize("make", [cnn, pytest.param(transformer, marks=pytest.mark.long)])
def test_other_modules_ride_with_certificates(make):
    problem = ridgerider.torch.problem(*make())
    leg = rr.search(problem, HVP_RIDER, max_rides=1).leg("0+")
    assert leg.num_steps == 4 and (leg.trace["eigenvalue"] < 0).all()
    assert (leg.trace["overlap"] > 0.95).all()
    scale = np.abs(np.linalg.eigvalsh(problem.hessian(problem.x0))).max()
    assert (leg.trace["residual"] <= 2e-4 * scale).all()
    # against PyTorch's own dense Hessian
    x = torch.from_numpy(problem.loss.start())
    with ridgerider.torch._alone():
        own = torch.autograd.functional.hessian(problem.loss.loss, x).numpy()
    np.testing.assert_allclose(problem.hessian(problem.x0), own, atol=1e-10 * scale)


def test_chosen_parameters_only():
    module, data = mlp(torch.float64), examples(torch.float64)
    whole = ridgerider.torch.problem(module, F.mse_loss, *data)
    by_name = ridgerider.torch.problem(module, F.mse_loss, *data, params=["2"])
    assert sorted(by_name.start) == ["2.bias", "2.weight"]
    np.testing.assert_allclose(by_name.grad(by_name.x0), whole.grad(whole.x0)[12:], rtol=1e-12)


def test_batches_are_those_of_jax():
    ours, other, _ = both(torch.float64)
    batches = rr.Batches(size=8, micro_size=4)
    one, two = (batches(problem, jax.random.key(0), 0) for problem in (ours, other))
    assert np.array_equal(one.rows, two.rows)
    v = jnp.ones(ours.size)
    np.testing.assert_allclose(one.grad(ours.x0), two.grad(ours.x0), atol=1e-12)
    np.testing.assert_allclose(one.hvp(ours.x0, v), two.hvp(ours.x0, v), atol=1e-12)


@pytest.mark.long
def test_digits_keep_their_accuracy():
    images = pytest.importorskip("sklearn.datasets").load_digits()
    inputs = torch.from_numpy(images.data[:300] / 16)
    labels = torch.from_numpy(images.target[:300])
    module = mlp(torch.float64, 64, 8, 10)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.01)
    problem = ridgerider.torch.problem(module, F.cross_entropy, inputs, labels)
    rider = rr.Rider(
        spectrum=rr.BlockSpectrum(k=2, tolerance=1e-3),
        update=rr.Davidson(),
        max_steps=30,
        finish=rr.Descend(max_steps=60, max_hvps=0),
    )
    result = rr.search(problem, rider, max_rides=2)
    weights = {name: jnp.asarray(one.detach().numpy()) for name, one in module.named_parameters()}
    for solution in result.solutions():
        trained = copy.deepcopy(module)
        trained.load_state_dict(solution.params)
        ours = float((trained(inputs).argmax(1) == labels).double().mean())
        weights = {name: one.numpy() for name, one in solution.params.items()}
        hidden = np.tanh(inputs.numpy() @ weights["0.weight"].T + weights["0.bias"])
        outputs = hidden @ weights["2.weight"].T + weights["2.bias"]
        assert ours == (outputs.argmax(1) == labels.numpy()).mean() > 0.8


def test_a_start_for_networks_in_jax_is_another():
    module, data = mlp(torch.float64), [one.numpy() for one in examples(torch.float64)]
    for params in (module, dict(module.named_parameters())):
        with pytest.raises(ValueError, match=r"not of PyTorch: there it is ridgerider\.torch"):
            rr.network_start(params, lambda params, inputs: inputs, *data)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_start_of_a_module_is_that_of_the_same_network_in_jax(dtype):
    module, (inputs, targets) = mlp(dtype), examples(dtype)
    labels = targets.argmax(1)
    before = copy.deepcopy(module.state_dict())
    start = ridgerider.torch.network_start(module, inputs, labels, factor=0.1)

    def apply(params, inputs):
        hidden = jnp.tanh(inputs @ params["0.weight"].T + params["0.bias"][None])
        return hidden @ params["2.weight"].T + params["2.bias"][None]

    params = {name: jnp.asarray(one.numpy()) for name, one in before.items()}
    data = jnp.asarray(inputs.numpy()), jnp.asarray(labels.numpy())
    other = rr.network_start(params, apply, *data, factor=0.1)
    assert start.head == other.head == ("['2.bias']", "['2.weight']")
    assert start.reason == other.reason == ""
    rtol = 1e-9 if dtype == torch.float64 else 1e-3
    for name in ("loss", "grad_norm", "body_grad_norm"):
        np.testing.assert_allclose(getattr(start, name), getattr(other, name), rtol=rtol)
    np.testing.assert_allclose(start.eigenvalues[0], other.eigenvalues[0], rtol=rtol)
    np.testing.assert_allclose(start.problem.x0, other.problem.x0, rtol=1e-6)
    state = start.problem.params_of(start.problem.x0)
    assert state["0.weight"].dtype == dtype and torch.equal(state["0.weight"], before["0.weight"])
    for name, tensor in module.state_dict().items():  # the user's
        assert torch.equal(tensor, before[name])


def test_a_module_rides_from_its_start():
    module, (inputs, targets) = mlp(torch.float32), examples(torch.float32)
    start = ridgerider.torch.network_start(module, inputs, targets)  # the mean square
    rider = rr.Rider.for_networks(max_steps=5, finish=rr.Relax(epochs=1, min_steps=100))
    (leg,) = rr.search(start.problem, rider, max_rides=1)
    assert leg.num_steps > 0 and leg.finish.loss < leg.loss < start.loss


def test_the_start_of_a_module_with_normalisation_and_tokens():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.LayerNorm(8), nn.Linear(8, 5))
    tokens = torch.randint(5, (20, 2))
    start = ridgerider.torch.network_start(module, tokens, tokens[:, 0])
    assert start.head == ("['3.bias']", "['3.weight']") and start.eigenvalues[0] < 0
    named = ridgerider.torch.network_start(
        module, tokens, tokens[:, 0], head=lambda params: params["3.weight"]
    )
    assert named.head == ("['3.weight']",)


def test_bad_starts_of_modules_are_refused():
    module, (inputs, targets) = mlp(torch.float64), examples(torch.float64)
    labels = targets.argmax(1)
    cases = [
        ("must be a Module", (mlp, inputs, labels), {}),
        ("must be a Tensor, not an array", (module, inputs.numpy(), labels), {}),
        ("one leading length", (module, inputs, labels[:3]), {}),
        ("`targets` must be from 0 to 1", (module, inputs, labels + 1), {}),
        ("`factor` must be positive", (module, inputs, labels), {"factor": 0.0}),
        ("BatchNorm1d", (nn.Sequential(nn.BatchNorm1d(3), module), inputs, labels), {}),
        ("end in a linear layer", (nn.Sequential(module, nn.Softmax(1)), inputs, labels), {}),
    ]
    for match, args, options in cases:
        if isinstance(args[0], nn.Module):
            args[0].double()
        with pytest.raises(ValueError, match=match):
            ridgerider.torch.network_start(*args, **options)
    with pytest.warns(UserWarning, match="no derivative where it is"):
        still = nn.Sequential(nn.Linear(3, 3), nn.Threshold(100.0, 1.0), nn.Linear(3, 2)).double()
        ridgerider.torch.network_start(still, inputs, labels)


class Slow(nn.Module):
    """Two factors, with a pause in which another thread may put its parameters into the module."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, x):
        first = self.weight * x
        time.sleep(1e-3)
        return first * self.weight


def test_threads_do_not_share_parameters(monkeypatch):
    module, x = Slow(), torch.ones(1, 1, dtype=torch.float64)
    problems = [ridgerider.torch.problem(module, torch.mean, x) for _ in range(2)]
    values = [jax.jit(problem.value) for problem in problems]

    def work(number):
        weight = jnp.full(1, float(number))
        return float(values[number % 2](weight)) == number**2

    def are_right():
        with ThreadPoolExecutor(6) as threads:
            return all(threads.map(work, range(60)))

    assert are_right()
    for place in (functions, ridgerider.torch):
        monkeypatch.setattr(place, "CALLING", nullcontext())
    assert not are_right()  # the test sees what the lock prevents


class Block(nn.Module):
    """A residual block with group normalisation."""

    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv1d(channels, channels, 3, padding=1)
        self.norm = nn.GroupNorm(2, channels)

    def forward(self, x):
        return x + torch.tanh(self.norm(self.first(x)))


def resnet():
    torch.manual_seed(0)
    inner = [nn.Conv1d(1, 4, 3, padding=1), Block(4), nn.AdaptiveAvgPool1d(1), nn.Flatten()]
    return nn.Sequential(*inner, nn.Linear(4, 3))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.GRU(1, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.inner(x.swapaxes(1, 2))[0][:, -1])


def gru():
    torch.manual_seed(0)
    return Recurrent()


def signals(count=12):
    random = torch.Generator().manual_seed(1)
    return torch.randn(count, 1, 8, generator=random), torch.arange(count) % 3


def start_of(module, inputs, labels):
    start = ridgerider.torch.network_start(module, inputs, labels)
    return start.loss, start.eigenvalues


@pytest.mark.parametrize("make", [resnet, gru])
def test_starts_on_many_threads_are_one(make):
    module, (inputs, labels) = make(), signals()
    expected = start_of(module, inputs, labels)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: start_of(module, inputs, labels), range(6)))
    assert found == [expected] * 6


@pytest.mark.long
@pytest.mark.parametrize("make", [resnet, gru])
def test_hundreds_of_starts_are_one(make):
    """A thousand of both networks in one process; each compiles two programs."""
    module, (inputs, labels) = make(), signals()
    expected = start_of(module, inputs, labels)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: start_of(module, inputs, labels), range(500)))
    assert found == [expected] * 500


def test_programs_of_many_modules_are_dropped(monkeypatch):
    """They would fill the table of memory maps, and end the process."""
    dropped = []
    monkeypatch.setattr(jax, "clear_caches", lambda: dropped.append(1))
    monkeypatch.setattr(ridgerider.torch, "MAX_MADE", 3)
    for _ in range(6):
        ridgerider.torch.problem(mlp(torch.float64), F.mse_loss, *examples(torch.float64))
    assert len(dropped) == 2


@pytest.mark.long
@pytest.mark.parametrize("make", [resnet, gru])
def test_a_thousand_searches_are_one(make):
    """By threads that share the module, and by worker processes that share a copy each."""
    module, (inputs, labels) = make(), signals()
    problems = [ridgerider.torch.problem(module, F.cross_entropy, inputs, labels) for _ in range(4)]

    def found(number, **options):
        (leg,) = rr.search(problems[number % 4], HVP_RIDER, max_rides=1, **options)
        return leg.loss, *leg.x.tolist()

    with ThreadPoolExecutor(4) as threads:
        by_threads = list(threads.map(found, range(900)))
    with process_pool(2) as workers:
        by_workers = [found(number, executor=workers) for number in range(100)]
    assert by_threads + by_workers == [found(0)] * 1000


def test_training_mode_without_randomness_and_buffers():
    """Buffers are part of the state, and a mode without effect is no reason to refuse."""
    module, (inputs, labels) = resnet(), signals()
    module.register_buffer("counter", torch.zeros(3))
    assert module.training
    assert start_of(module, inputs, labels) == start_of(module.eval(), inputs, labels)
    problem = ridgerider.torch.problem(module, F.cross_entropy, inputs, labels)
    assert problem.params_of(problem.x0)["counter"].tolist() == [0, 0, 0]
    module[1].norm = nn.BatchNorm1d(4)
    with pytest.raises(ValueError, match=r"must be in evaluation mode, since 1\.norm"):
        ridgerider.torch.network_start(module.train(), inputs, labels)


def test_hooks_are_called_and_may_change_outputs():
    module, (inputs, labels) = resnet(), signals()
    plain = ridgerider.torch.problem(module, F.cross_entropy, inputs, labels)
    module[0].register_forward_hook(lambda _, given, out: 2 * out)
    hooked = ridgerider.torch.problem(module, F.cross_entropy, inputs, labels)
    with torch.no_grad():
        expected = float(F.cross_entropy(module(inputs), labels))
    assert float(hooked.value(hooked.x0)) == pytest.approx(expected, rel=1e-5)
    assert float(plain.value(plain.x0)) == pytest.approx(expected, rel=1e-5)  # the same module


class Tied(nn.Module):
    """One weight in two places."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3, bias=False).double()
        self.outer = nn.Linear(3, 3, bias=False).double()
        self.outer.weight = self.inner.weight

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)))


def test_shared_parameters_are_one():
    inputs, _ = examples(torch.float64)
    module = Tied()
    problem = ridgerider.torch.problem(module, F.mse_loss, inputs[:, :3], inputs[:, :3])
    assert problem.size == 9
    expected = torch.autograd.functional.hessian(
        lambda w: F.mse_loss(torch.tanh(inputs[:, :3] @ w.T) @ w.T, inputs[:, :3]),
        module.inner.weight.detach(),
    ).reshape(9, 9)
    np.testing.assert_allclose(problem.hessian(problem.x0), expected, atol=1e-10)
    state = problem.params_of(2 * problem.x0)
    module.load_state_dict(state)
    assert module.outer.weight is module.inner.weight
    np.testing.assert_allclose(state["outer.weight"], state["inner.weight"])


def test_a_compiled_module_is_the_module():
    module, (inputs, labels) = resnet(), signals()
    compiled = torch.compile(module, backend="eager")
    assert start_of(compiled, inputs, labels) == start_of(module, inputs, labels)


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x):
        return x * self.weight + torch.randn(())


def test_bad_input_is_refused():
    inputs, targets = examples(torch.float64)
    module = mlp(torch.float64)

    def refused(match, module, loss=F.mse_loss, data=(inputs, targets), **options):
        with pytest.raises(ValueError, match=match):
            ridgerider.torch.problem(module, loss, *data, **options)

    refused("must be a Module, not mlp", mlp)
    refused("BatchNorm1d.*module.eval", nn.Sequential(nn.BatchNorm1d(3)).double())
    refused("Dropout", nn.Sequential(module, nn.Dropout()))
    refused("float32 or float64, but 0.weight is torch.float16", copy.deepcopy(module).half())
    refused(
        "must be on one device, but data.0. is on cpu and the parameters are on meta",
        copy.deepcopy(module).to("meta"),
    )
    refused("a scalar tensor, not \\(20, 2\\)", module, lambda out, to: out - to)
    refused("must be deterministic", Noisy(), data=(inputs, inputs))
    refused("one leading length", module, data=(inputs, targets[:3]))
    refused(r"`data\[1\]` must be a tensor, not int", module, data=(inputs, 3))
    refused("names of parameters.*'3'", module, params=["3"])
    refused("at least one parameter", module, params=[])
    refused("'all' or a list, each entry a string, not 'some'", module, params="some")
    with pytest.raises(ValueError, match="the gradient must be that of the values"):
        ridgerider.torch.problem(
            module,
            lambda out, to: F.mse_loss(out, to) + (out - out.detach()).sum(),
            inputs,
            targets,
        )
