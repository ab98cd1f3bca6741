"""What one step of a ride costs with each update: Hessian-vector products, and processor time.

    ridgerider bench rides [fixed-steps | backtracking | outside]

The exact Hessian at the start of a ride is not included. Gaps are compared with dense spectra at
each later point of the ride: the outcome has the largest ratio of a reported gap to the true one.
"""

import importlib.util
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ridgerider as rr
from ridgerider import problems
from ridgerider.data import digits
from ridgerider.types import Ride
from ridgerider_experiments.bench import Row

# `Davidson` resolves clusters to the same accuracy with more HVPs.
UPDATES: dict[str, Any] = {
    "`QuasiNewton`": rr.QuasiNewton(exact_below=0),
    "`Davidson(resolve=False)`": rr.Davidson(resolve=False),
    "`Project`": rr.Project(),
}


def network_loss(weights: jax.Array, inputs: jax.Array, targets: jax.Array) -> jax.Array:
    """One hidden layer of tanh units with biases, eight inputs and one output."""
    width = weights.size // 10
    hidden = jnp.tanh(
        inputs @ weights[: 8 * width].reshape(8, width) + weights[None, 8 * width : 9 * width]
    )
    return jnp.mean((hidden @ weights[9 * width :] - targets) ** 2) + 1e-3 * weights @ weights


def networks(seed: int) -> Iterator[rr.Problem]:
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(200, 8))
    for width in (4, 8, 16, 30):
        start = 0.15 * random.normal(size=10 * width)
        yield rr.Problem(network_loss, jnp.asarray(start), inputs, np.sin(2 * inputs).sum(axis=1))


def fixed_steps(seed: int) -> Iterator[Row]:
    """The third ridge of tanh networks, 12 steps of 0.02, whatever becomes of the ridge."""
    for problem in networks(seed):
        rider = rr.Rider(step=rr.FixedStep(0.02), stop=(), max_steps=12, keep_path=True)
        yield from compared(f"tanh network, n = {problem.size}, steps of 0.02", problem, rider, 2)


def backtracking(seed: int) -> Iterator[Row]:
    """The steps that riders take by default; steps that are rejected are included."""
    images = digits()
    pixels = images.train_images[:300, ::2, ::2].astype(float)
    labels = images.train_labels[:300]
    small = problems.classifier(pixels, labels, widths=(11,), init_scale=0.01, decay=0.02)
    named = {
        "tree of depth 8, n = 32": (problems.tree(depth=8), 1),
        f"digits, n = {small.size}": (small, 0),
        **{f"tanh network, n = {one.size}": (one, 2) for one in networks(seed)},
    }
    for name, (problem, index) in named.items():
        yield from compared(name, problem, rr.Rider(max_steps=60, keep_path=True), index)


def compared(task: str, problem: rr.Problem, rider: rr.Rider, index: int) -> Iterator[Row]:
    for name, update in UPDATES.items():
        ride, seconds = ridden(problem, update, rider, index)
        steps = max(int(ride.num_steps), 1)
        hessians = max(int(ride.cost.hessians) - 1, 0)  # besides the first
        num_hvps = int(ride.cost.hvps) - problem.size * bool(ride.cost.hessians)
        outcome = (
            f"{steps} steps, {hessians} Hessians, {1e3 * seconds / steps:.2g} ms a step, "
            f"gap / true gap at most {gap_ratio(problem, ride):.2f}"
        )
        yield Row(task, name, num_hvps / steps, "HVPs a step", outcome)


def ridden(problem: rr.Problem, update: Any, rider: rr.Rider, index: int) -> tuple[Ride, float]:
    """A ride down from the start, and the processor time of its second run."""
    key = jax.random.key(0)
    spectrum = rr.DenseSpectrum()(problem, problem.x0, key)
    sign = -1 if problem.grad(problem.x0) @ spectrum.ridge(index).direction > 0 else 1
    rider = rr.Rider(**{**vars(rider), "update": update})
    for _ in range(2):
        began = time.process_time()
        ride = rider.ride(problem, problem.x0, spectrum.ridge(index, sign), key)
        jax.block_until_ready(ride.x)
    return ride, time.process_time() - began


def gap_ratio(problem: rr.Problem, ride: Ride) -> float:
    """The largest ratio of a gap that was reported to the true one; NaN if none was."""
    num, ratios = int(ride.num_steps) + 1, [np.nan]
    assert ride.trace.path is not None
    for x, eigenvalue, gap in zip(
        ride.trace.path[1:num], ride.trace.eigenvalue[1:num], ride.trace.gap[1:num], strict=True
    ):
        distances = np.sort(np.abs(np.linalg.eigvalsh(problem.hessian(x)) - eigenvalue))
        ratios.append(float(gap) / distances[1])
    return np.nanmax(ratios) if np.isfinite(ratios).any() else np.nan


def outside(seed: int) -> Iterator[Row]:
    """Rides on losses outside of JAX. ASE's HVPs are finite differences of gradients."""
    for name, problem in bridged(seed):
        yield from compared(name, problem, rr.Rider(max_steps=60, keep_path=True), 0)


def bridged(seed: int) -> Iterator[tuple[str, rr.Problem]]:
    if importlib.util.find_spec("torch"):
        import torch
        from torch import nn

        import ridgerider.torch

        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(0.3)
        inputs = torch.randn(40, 4, dtype=torch.float64)
        targets = torch.sin(2 * inputs).sum(dim=1, keepdim=True)
        yield (
            "a PyTorch module, n = 49",
            ridgerider.torch.problem(module, nn.MSELoss(), inputs, targets),
        )
    if importlib.util.find_spec("ase"):
        from ase import Atoms
        from ase.calculators.emt import EMT

        import ridgerider.ase

        random = np.random.default_rng(seed)
        places = 2.6 * np.array([[i % 2, i // 2 % 2, i // 4] for i in range(7)])
        atoms = Atoms("Cu7", positions=places + 0.1 * random.normal(size=(7, 3)), calculator=EMT())
        yield "seven copper atoms with ASE, n = 21", ridgerider.ase.problem(atoms)


TASKS = (fixed_steps, backtracking, outside)
