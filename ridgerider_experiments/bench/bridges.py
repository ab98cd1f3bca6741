"""Losses outside of JAX: what a call, a product, a spectrum and a ride cost through the bridge.

    ridgerider bench bridges

Calls and products of one task are measured in turn, several times, and the least processor time
counts: other work on the machine only ever adds to it.
"""

import gc
import importlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgerider._check import needs
from ridgerider._core.problem.host import call_host
from ridgerider._core.problem.problem import Problem
from ridgerider._core.ride.davidson import Davidson
from ridgerider._core.ride.rider import Rider
from ridgerider._core.ride.step import FixedStep
from ridgerider._core.spectra.matrix_free import BlockSpectrum
from ridgerider_experiments.bench.peers import Row

ROUNDS = 7  # of which the fastest counts
BATCH = 256
HIDDEN = {"100,000": 125, "10,000": 13}  # units of a network of 784 inputs, 10 classes
LARGE = 2_500_000  # single-precision numbers: 10 MB
MAX_PRODUCTS = 2000  # of the power method


def compare(seed: int = 0) -> Iterator[Row]:
    """All tasks, one after the other; of each the first row is ours."""
    yield from small_calls()
    for name in HIDDEN:
        yield from products(name, seed)
    yield from lowest_pairs(seed)
    yield from ride(seed)
    yield from large_calls(10_000)


def small_calls(count: int = 200) -> Iterator[Row]:
    """A function of ten parameters, called in a compiled loop and by Python."""

    def value_and_grad(x: np.ndarray) -> tuple[float, np.ndarray]:
        return float(x @ x) / 2, x

    problem = Problem.from_functions(value_and_grad, np.ones(10), hvp=lambda x, v: v)
    x = problem.x0

    @jax.jit
    def loop(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, count, lambda _, x: x - 1e-4 * problem.grad(x), x)

    def alone() -> None:
        point = np.ones(10)
        for _ in range(count):
            point = point - 1e-4 * value_and_grad(point)[1]

    ours, own = _least(lambda: jax.block_until_ready(loop(x)), alone, rounds=50)
    task = "a gradient of 10 parameters"
    above = f"{1e6 * (ours - own) / count:.0f} us of processor time above the function"
    yield Row(task, "ridgerider, in a program", 1e6 * ours / count, "us", above)
    yield Row(task, "the function itself", 1e6 * own / count, "us", "")


def products(name: str, seed: int = 0, count: int = 10) -> Iterator[Row]:
    """Hessian-vector products of a network at one point, and each at a point of its own."""
    import torch

    problem = network(HIDDEN[name], seed)
    x, functions = problem.x0, problem.loss
    v = jnp.asarray(np.random.default_rng(seed).normal(size=problem.size), x.dtype)

    @jax.jit
    def at_one(x: jax.Array, v: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, count, lambda _, v: problem.hvp(x, v), v)

    @jax.jit
    def at_many(x: jax.Array, v: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, count, lambda _, x: x + 1e-6 * problem.hvp(x, v), x)

    loss = functions._loss(None)  # type: ignore[attr-defined]
    point, vector = torch.tensor(np.asarray(x)), torch.tensor(np.asarray(v))

    def twice() -> None:
        for _ in range(count):
            here = point.clone().requires_grad_()
            (grad,) = torch.autograd.grad(loss(here), here, create_graph=True)
            torch.autograd.grad(grad, here, vector)

    def forward() -> None:
        for _ in range(count):
            torch.func.jvp(torch.func.grad(loss), (point,), (vector,))

    times = _least(
        lambda: jax.block_until_ready(at_one(x, v)),
        lambda: jax.block_until_ready(at_many(x, v)),
        twice,
        forward,
    )
    who = (
        "ridgerider, at one point",
        "ridgerider, each at another point",
        "PyTorch, the gradient of grad . v",
        "PyTorch, `torch.func.jvp` of `grad`",
    )
    exact = torch.func.jvp(torch.func.grad(loss), (point,), (vector,))[1].numpy()
    off = float(np.abs(np.asarray(problem.hvp(x, v)) - exact).max() / np.abs(exact).max())
    for one, seconds in zip(who, times, strict=True):
        task = f"a product, {name} parameters, batch {BATCH}"
        yield Row(task, one, 1e3 * seconds / count, "ms", f"equal to {off:.0e}")


def lowest_pairs(seed: int = 0, k: int = 10) -> Iterator[Row]:
    """The ten lowest eigenpairs of a network, through the bridge, in JAX, and by other tools."""
    task = f"the {k} lowest eigenpairs, 10,000 parameters"
    ours = network(HIDDEN["10,000"], seed)
    look, key = BlockSpectrum(k=k, tolerance=1e-3), jax.random.key(seed)
    known: Any = None
    for who, problem in (("PyTorch", ours), ("JAX", in_jax(ours))):
        run = jax.jit(lambda x, problem=problem: look(problem, x, key))
        jax.block_until_ready(run(problem.x0))
        began = time.perf_counter()
        found = jax.block_until_ready(run(problem.x0))
        seconds = time.perf_counter() - began
        known = found.eigenvalues if known is None else known
        off = float(jnp.abs(found.eigenvalues - known).max())
        outcome = f"{int(found.cost.hvps)} products, {int(found.is_converged.sum())} of {k}"
        yield Row(task, f"ridgerider, loss in {who}", seconds, "s", f"{outcome}, off by {off:.0e}")
    yield from power_method(task, ours, np.asarray(known), k, seed)
    yield from other_tools(task, ours, np.asarray(known), k)


def power_method(
    task: str, problem: Problem, known: np.ndarray, k: int, seed: int
) -> Iterator[Row]:
    """Power iteration with deflation on shift - H, as hessian-eigenthings and PyHessian do on H."""
    functions: Any = problem.loss
    x, generator = np.asarray(problem.x0), np.random.default_rng(seed)
    began, count, found, values = time.perf_counter(), 0, np.zeros((0, problem.size)), []
    shift = 0.0
    for number in range(k + 1):  # the first one is the shift, the largest |eigenvalue|
        row = generator.normal(size=problem.size).astype(x.dtype)
        value = 0.0
        while count < MAX_PRODUCTS:
            row = row - found.T @ (found @ row)
            row /= np.linalg.norm(row)
            image = functions.multiply(x, row.astype(x.dtype)[None], None)[0]
            count, before, value = count + 1, value, float(row @ image)
            row = image if number == 0 else shift * row - image
            if abs(value - before) <= 1e-3 * abs(value):  # the rule that both use
                break
        if number == 0:
            shift = abs(value)
            continue
        found = np.vstack([found, row / np.linalg.norm(row)])
        values.append(value)
    seconds = time.perf_counter() - began
    off = float(np.abs(np.sort(values) - known).max())
    yield Row(task, "power iteration", seconds, "s", f"{count} products, off by {off:.0e}")


def other_tools(task: str, problem: Problem, known: np.ndarray, k: int) -> Iterator[Row]:
    """Peers for PyTorch, if they are installed."""
    functions: Any = problem.loss
    module, (inputs, targets) = functions.module, functions.data
    try:
        curvlinops = importlib.import_module("curvlinops")
        from scipy.sparse.linalg import eigsh
    except ImportError:
        yield Row(task, "curvlinops", float("nan"), "s", "not installed")
    else:
        began = time.perf_counter()
        operator = curvlinops.HessianLinearOperator(
            module, functions.criterion, list(module.parameters()), [(inputs, targets)]
        )
        matrix = Counted(operator.to_scipy())
        values = eigsh(matrix.operator(), k, which="SA", tol=1e-3, return_eigenvectors=False)
        off = float(np.abs(np.sort(values) - known).max())
        outcome = f"{matrix.count} products, off by {off:.0e}"
        yield Row(task, "curvlinops, SciPy `eigsh`", time.perf_counter() - began, "s", outcome)
    try:
        pyhessian = importlib.import_module("pyhessian")
    except ImportError:
        yield Row(task, "PyHessian", float("nan"), "s", "not installed")
        return
    began = time.perf_counter()
    tool = pyhessian.hessian(module, functions.criterion, data=(inputs, targets), cuda=False)
    values, _ = tool.eigenvalues(top_n=k, maxIter=MAX_PRODUCTS // k, tol=1e-3)
    outcome = f"the {k} largest |eigenvalues|, {sum(value < 0 for value in values)} of them below 0"
    yield Row(task, "PyHessian", time.perf_counter() - began, "s", outcome)


class Counted:
    """A linear operator that counts its products."""

    def __init__(self, inner: Any):
        self.inner, self.count = inner, 0

    def multiply(self, v: np.ndarray) -> np.ndarray:
        self.count += 1
        return self.inner @ v.astype(np.float32)

    def operator(self) -> Any:
        from scipy.sparse.linalg import LinearOperator

        return LinearOperator(self.inner.shape, matvec=self.multiply, dtype=np.float32)


def ride(seed: int = 0, num_steps: int = 50) -> Iterator[Row]:
    """Fifty steps along the lowest ridge of the same network, in the two frameworks."""
    ours = network(HIDDEN["10,000"], seed)
    key = jax.random.key(seed)
    ridge = BlockSpectrum(k=2, tolerance=1e-3)(ours, ours.x0, key).ridge(0)
    rider = Rider(
        update=Davidson(tolerance=1e-2, resolve=False),
        step=FixedStep(0.02),
        stop=(),
        finish=None,
        max_steps=num_steps,
    )
    end: Any = None
    for who, problem in (("PyTorch", ours), ("JAX", in_jax(ours))):
        jax.block_until_ready(rider.ride(problem, problem.x0, ridge, key))
        began = time.perf_counter()
        found = jax.block_until_ready(rider.ride(problem, problem.x0, ridge, key))
        seconds = time.perf_counter() - began
        end = found.x if end is None else end
        apart = float(jnp.linalg.norm(found.x - end))
        spent = f"{int(found.cost.hvps)} products, loss {float(found.loss):.5f}"
        outcome = f"{spent}, ends {apart:.0e} apart"
        task = f"a ride of {num_steps} steps, 10,000 parameters"
        yield Row(task, f"ridgerider, loss in {who}", seconds, "s", outcome)


def large_calls(count: int) -> Iterator[Row]:
    """Callbacks with arrays of 10 MB, in one program, in threads, in processes; their memory."""
    task = f"{count:,} callbacks of 10 MB"
    for who, run in (
        ("in one program", lambda: many_callbacks(count)),
        ("in two threads", lambda: _in_threads(count)),
        ("in two processes", lambda: _in_processes(count)),
    ):
        many_callbacks(20)
        gc.collect()
        before, began = _memory(), time.perf_counter()
        run()
        seconds, grown = time.perf_counter() - began, _memory() - before
        yield Row(task, who, seconds, "s", f"no deadlock, {grown:+.0f} MB after all of them")


def many_callbacks(count: int) -> float:
    """Call a function on 10 MB so many times from one program."""
    x = jnp.ones(LARGE, jnp.float32)
    return float(_large_loop(x, count)[0])


def halved(x: np.ndarray) -> tuple[np.ndarray, ...]:
    return (x * np.float32(0.5),)


@jax.jit
def _large_loop(x: jax.Array, count: int) -> jax.Array:
    return jax.lax.fori_loop(0, count, lambda _, x: call_host(halved, (x,), x)[0] + 1, x)


def _in_threads(count: int) -> None:
    threads = [threading.Thread(target=many_callbacks, args=(count // 2,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _in_processes(count: int) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        list(pool.map(many_callbacks, [count // 2] * 2))


def _memory() -> float:
    """What this process holds, in MB; 0 where the system does not say."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * 4096 / 1e6 if path.exists() else 0.0


def network(hidden: int, seed: int) -> Problem:
    """A classifier of random images in PyTorch, in single precision."""
    with needs("torch", "this benchmark"):
        import torch

        from ridgerider.torch import problem
    torch.manual_seed(seed)
    module = torch.nn.Sequential(
        torch.nn.Linear(784, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 10)
    )
    inputs, targets = torch.randn(BATCH, 784), torch.randint(10, (BATCH,))
    return problem(module, torch.nn.CrossEntropyLoss(), inputs, targets)


def in_jax(problem: Problem) -> Problem:
    """The same network, with the same weights and data, in JAX."""

    def loss(params: Any, inputs: jax.Array, targets: jax.Array) -> jax.Array:
        hidden = jnp.tanh(inputs @ params["0.weight"].T + params["0.bias"][None])
        scores = hidden @ params["2.weight"].T + params["2.bias"][None]
        chosen = jnp.take_along_axis(jax.nn.log_softmax(scores), targets[:, None], axis=1)
        return -jnp.mean(chosen)

    return Problem(loss, problem.start, *(jnp.asarray(one) for one in problem.args))


def _least(*functions: Callable[[], Any], rounds: int = ROUNDS) -> list[float]:
    """The least time of each, all of them measured in turn."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, own in zip(functions, times, strict=True):
            began = time.process_time()
            function()
            own.append(time.process_time() - began)
    return [min(own) for own in times]
