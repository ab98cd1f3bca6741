"""Losses outside of JAX: what a call, an HVP and a spectrum cost through the bridge.

    ridgerider bench bridges

Calls and HVPs of one task are measured in turn, several times, and the least processor time counts.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ridgerider as rr
from ridgerider_experiments.bench import Row, least, timed

BATCH = 256
HIDDEN = {"100,000": 125, "10,000": 13}  # units of a network of 784 inputs, 10 classes
MAX_HVPS = 2000  # of the power method


def small_calls(seed: int, count: int = 200) -> Iterator[Row]:
    """A function of ten parameters, called in a compiled loop and by Python."""

    def value_and_grad(x: np.ndarray) -> tuple[float, np.ndarray]:
        return float(x @ x) / 2, x

    problem = rr.Problem.from_functions(value_and_grad, np.ones(10), hvp=lambda x, v: v)
    x = problem.x0

    @jax.jit
    def loop(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, count, lambda _, x: x - 1e-4 * problem.grad(x), x)

    def alone() -> None:
        point = np.ones(10)
        for _ in range(count):
            point = point - 1e-4 * value_and_grad(point)[1]

    ours, own = least(lambda: loop(x), alone, rounds=50)
    task = "a gradient of 10 parameters"
    above = f"{1e6 * (ours - own) / count:.0f} us of processor time above the function"
    yield Row(task, "ridgerider, in a program", 1e6 * ours / count, "us", above)
    yield Row(task, "the function itself", 1e6 * own / count, "us", "")


def hvps(seed: int) -> Iterator[Row]:
    for name in HIDDEN:
        yield from hvps_of(name, seed)


def hvps_of(name: str, seed: int = 0, count: int = 10) -> Iterator[Row]:
    """HVPs of a network at one point, and each at another point."""
    import torch

    network = Network(HIDDEN[name], seed)
    problem = network.problem
    x, loss = problem.x0, network.loss
    v = jnp.asarray(np.random.default_rng(seed).normal(size=problem.size), x.dtype)

    @jax.jit
    def at_one(x: jax.Array, v: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, count, lambda _, v: problem.hvp(x, v), v)

    @jax.jit
    def at_many(x: jax.Array, v: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, count, lambda _, x: x + 1e-6 * problem.hvp(x, v), x)

    point, vector = (
        {name: torch.tensor(np.asarray(leaf)) for name, leaf in problem.unravel(one).items()}
        for one in (x, v)
    )

    def twice() -> None:
        for _ in range(count):
            here = {name: leaf.clone().requires_grad_() for name, leaf in point.items()}
            leaves = tuple(here.values())
            grads = torch.autograd.grad(loss(here), leaves, create_graph=True)
            torch.autograd.grad(grads, leaves, tuple(vector.values()))

    def forward() -> None:
        for _ in range(count):
            torch.func.jvp(torch.func.grad(loss), (point,), (vector,))

    ways = {
        "ridgerider, at one point": lambda: at_one(x, v),
        "ridgerider, each at another point": lambda: at_many(x, v),
        "PyTorch, the gradient of grad . v": twice,
        "PyTorch, `torch.func.jvp` of `grad`": forward,
    }
    image = torch.func.jvp(torch.func.grad(loss), (point,), (vector,))[1]
    exact = problem.ravel({name: leaf.numpy() for name, leaf in image.items()})
    off = float(np.abs(np.asarray(problem.hvp(x, v)) - exact).max() / np.abs(exact).max())
    task = f"an HVP, {name} parameters, batch {BATCH}"
    for who, spent in zip(ways, least(*ways.values()), strict=True):
        yield Row(task, who, 1e3 * spent / count, "ms", f"equal to {off:.0e}")


def lowest_pairs(seed: int = 0, k: int = 10) -> Iterator[Row]:
    """The ten lowest eigenpairs of a network: through the bridge, in JAX, by power iteration."""
    task = f"the {k} lowest eigenpairs, 10,000 parameters"
    network, key = Network(HIDDEN["10,000"], seed), jax.random.key(seed)
    lowest, known = rr.BlockSpectrum(k=k, tolerance=1e-3), None
    for who, problem in (("PyTorch", network.problem), ("JAX", network.in_jax())):
        run = jax.jit(lambda x, problem=problem: lowest(problem, x, key))
        found = run(problem.x0)
        known = found.eigenvalues if known is None else known
        off = float(jnp.abs(found.eigenvalues - known).max())
        _, spent = timed(run, problem.x0)
        outcome = f"{int(found.cost.hvps)} HVPs, {int(found.is_converged.sum())} of {k}"
        yield Row(task, f"ridgerider, loss in {who}", spent, "s", f"{outcome}, off by {off:.0e}")
    words, spent = timed(power_method, network, np.asarray(known), k)
    yield Row(task, "power iteration", spent, "s", words)


def power_method(network: "Network", known: np.ndarray, k: int) -> str:
    """Power iteration with deflation on shift - H, as hessian-eigenthings and PyHessian do on H."""
    problem, generator = network.problem, np.random.default_rng(0)
    multiply = jax.jit(lambda v: problem.hvp(problem.x0, v))
    count, shift, found, values = 0, 0.0, np.zeros((0, problem.size)), list[float]()
    for number in range(k + 1):  # the first one is the shift, the largest |eigenvalue|
        row, value = generator.normal(size=problem.size), 0.0
        while count < MAX_HVPS:
            row = row - found.T @ (found @ row)
            row /= np.linalg.norm(row)
            image = np.asarray(multiply(jnp.asarray(row, problem.dtype)))
            count, before, value = count + 1, value, float(row @ image)
            row = image if number == 0 else shift * row - image
            if abs(value - before) <= 1e-3 * abs(value):  # the rule that both use
                break
        if number == 0:
            shift = abs(value)
        else:
            found = np.vstack([found, row / np.linalg.norm(row)])
            values.append(value)
    return f"{count} HVPs, off by {np.abs(np.sort(values) - known).max():.0e}"


class Network:
    """A classifier of random images in PyTorch, in single precision."""

    def __init__(self, hidden: int, seed: int):
        import torch

        from ridgerider.torch import problem

        torch.manual_seed(seed)
        self.module = torch.nn.Sequential(
            torch.nn.Linear(784, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 10)
        )
        self.criterion = torch.nn.CrossEntropyLoss()
        self.data = torch.randn(BATCH, 784), torch.randint(10, (BATCH,))
        self.problem = problem(self.module, self.criterion, *self.data)

    def loss(self, params: dict[str, Any]) -> Any:
        """The loss as a function of its parameters by name, in PyTorch."""
        import torch

        inputs, targets = self.data
        return self.criterion(torch.func.functional_call(self.module, params, (inputs,)), targets)

    def in_jax(self) -> rr.Problem:
        """The same network, with the same weights and data, in JAX."""

        def loss(params: Any, inputs: jax.Array, targets: jax.Array) -> jax.Array:
            hidden = jnp.tanh(inputs @ params["0.weight"].T + params["0.bias"][None])
            scores = hidden @ params["2.weight"].T + params["2.bias"][None]
            chosen = jnp.take_along_axis(jax.nn.log_softmax(scores), targets[:, None], axis=1)
            return -jnp.mean(chosen)

        return rr.Problem(loss, self.problem.start, *map(jnp.asarray, self.problem.args))


TASKS = (small_calls, hvps, lowest_pairs)
