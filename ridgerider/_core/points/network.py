r"""A start for any network: the head scaled down, everything else as it was initialised.

Let the outputs of a network be f(x) = W h(x) + b, with features h and a last linear layer, the
*head* (W, b). Where W is small, the loss hardly depends on what comes before it, but its mixed
derivative by W and by the features does not vanish: every feature that would help is a pair of
directions, one down and one up. So there is negative curvature of order one, however deep the
network is. Were all layers scaled, the curvature would be the product of all but two of them, and a
normalisation layer would see nothing but its own epsilon.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from ridgerider._check import Positive, Seed, came, check_start, checked, fits, told_of
from ridgerider._core.problem.batches import FixedRows
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem, Scalar
from ridgerider._core.ride.rider import NETWORK_EFFORT, spectrum_on_batch
from ridgerider._core.runtime.compile import compiled
from ridgerider._core.spectra.block import BlockSpectrum

Apply = Annotated[Callable[[PyTree, Array], Array], "apply(params, inputs)"]
LossOf = Annotated[Callable[[Array, Array], Scalar], "loss(outputs, targets)"]
# A network on a few examples, and, at a random point (so that nothing is zero by accident), what
# moves its outputs: the outputs, those of the first example by itself, the gradients of the first
# and of the last output, and which leaves move them linearly.
Looked = tuple[Array, Array, tuple[list[Array], list[Array]], list[Bool[Array, ""]]]
LOOK = BlockSpectrum.for_networks()  # as `Rider.for_networks` looks
NUM_LOOKED_AT = 32  # examples with which the head is found
# Of the loss at the start, what a ridge must be able to lower it by within a length of 10.
USEFUL = 0.05


def cross_entropy(outputs: Array, targets: Array) -> Scalar:
    """The mean of -log softmax(outputs)[target]; outputs have one more axis than targets."""
    logs = jax.nn.log_softmax(outputs)
    return -jnp.mean(jnp.take_along_axis(logs, targets[..., None], axis=-1))


def mean_squares(outputs: Array, targets: Array) -> Scalar:
    return jnp.mean((outputs - targets) ** 2)


class Network(eqx.Module):
    """The loss of a network: `loss(apply(params, inputs), targets)`.

    >>> network = Network(lambda params, inputs: inputs @ params)
    >>> round(float(network(jnp.zeros((2, 3)), jnp.ones((4, 2)), jnp.array([0, 1, 2, 0]))), 3)
    1.099
    """

    apply: Apply
    loss: LossOf = cross_entropy

    def __call__(self, params: PyTree, inputs: Array, targets: Array) -> Scalar:
        return self.loss(self.apply(params, inputs), targets)

    def logits(self, params: PyTree, inputs: Array) -> Array:
        return self.apply(params, inputs)

    def accuracy(self, params: PyTree, inputs: Array, targets: Array) -> Scalar:
        """The fraction of the targets that get the largest output."""
        guesses = jnp.argmax(self.apply(params, inputs), axis=-1)
        return jnp.mean(guesses == jnp.asarray(targets).astype(guesses.dtype))


@dataclass(frozen=True)
class NetworkStart:
    """Where a network's rides begin, and what is there.

    - `params`: as they came, with the `head` scaled; `problem`: the loss from there, with the data.
    - `head`: the names of the leaves that were scaled, and `factor` what by.
    - `grad_norm`, `body_grad_norm`: of the whole gradient, and of all but the head.
    - `eigenvalues`: the distinct negative ones that `Rider.for_networks` sees there.
    - `reason`: empty, or why this start is useless.

    >>> import ridgerider as rr
    >>> params = {"in": jnp.eye(2, 4), "out": jnp.ones((4, 2))}
    >>> def apply(params, inputs):
    ...     return jnp.tanh(inputs @ params["in"]) @ params["out"]
    >>> start = rr.network_start(params, apply, jnp.eye(2), jnp.array([0, 1]))
    >>> start.head, start.eigenvalues[0] < -0.1
    (("['out']",), True)
    """

    params: PyTree
    problem: Problem
    head: tuple[str, ...]
    factor: float
    loss: float
    grad_norm: float
    body_grad_norm: float
    eigenvalues: tuple[float, ...]
    reason: str
    cost: Cost

    def __str__(self) -> str:
        what = (
            f"{len(self.eigenvalues)} distinct negative eigenvalues, "
            f"the least {self.eigenvalues[0]:.3g}"
            if self.eigenvalues
            else "no negative eigenvalue"
        )
        head = ", ".join(self.head)
        text = (
            f"Head {head} times {self.factor:g}: loss {self.loss:.4g}, gradient norm "
            f"{self.grad_norm:.3g} (before the head {self.body_grad_norm:.3g}), {what}."
        )
        return f"{text} {self.reason}".rstrip()


@checked
def network_start(
    params: PyTree,
    apply: Apply,
    inputs: Array,
    targets: Array,
    *,
    loss: LossOf | None = None,
    head: Callable[[PyTree], Any] | None = None,
    factor: Positive = 0.01,
    seed: Seed = 0,
) -> NetworkStart:
    """A start near a saddle for any network: its last linear layer is scaled, nothing else.

    Warns if the start is not usable, with the reason. `start.problem` is what to search.

    **Arguments**

    - `params`: as the network was initialised; any pytree of one floating-point type.
    - `apply(params, inputs) -> outputs`: each example by itself, the outputs along the last axis.
    - `inputs`, `targets`: data, with a common leading length.
    - `loss(outputs, targets) -> scalar`: a mean over examples. Default: the cross-entropy for whole
      numbers, the mean square for others.
    - `head(params)`: the leaf of the last layer, or a tuple of leaves. Default: the leaves each of
      whose slices moves one output alone, and moves it linearly.
    - `factor`: what the head is multiplied by.

    >>> import ridgerider as rr
    >>> from ridgerider.data import digits
    >>> images = digits()
    >>> pixels = jnp.asarray(images.train_images).reshape(-1, 64)
    >>> keys = jax.random.split(jax.random.key(0))
    >>> params = {
    ...     "hidden": jax.random.normal(keys[0], (64, 8), pixels.dtype) / 8,
    ...     "head": jax.random.normal(keys[1], (8, 10), pixels.dtype),
    ... }
    >>> def apply(params, pixels):
    ...     return jnp.tanh(pixels @ params["hidden"]) @ params["head"]
    >>> start = rr.network_start(params, apply, pixels, jnp.asarray(images.train_labels))
    >>> start.head, start.reason
    (("['head']",), '')
    """
    kinds = {base for leaf in jax.tree.leaves(params) for base in type(leaf).__mro__}
    if any(kind.__module__.partition(".")[0] == "torch" for kind in kinds):
        raise ValueError(
            "`params` must be arrays of a network written in JAX, not of PyTorch: there it is "
            "ridgerider.torch.network_start(module, inputs, targets)."
        )
    inputs, targets = jnp.asarray(inputs), jnp.asarray(targets)
    leaves = jax.tree.leaves(params)
    if not leaves or not all(isinstance(leaf, float) or fits(np.ndarray, leaf) for leaf in leaves):
        raise ValueError(f"`params` must be a pytree of arrays, one or more, not {came(params)}.")
    if inputs.ndim < 1 or not len(inputs) or inputs.shape[:1] != targets.shape[:1]:
        raise ValueError(
            "`inputs` and `targets` must have a common leading length of at least 1, not the "
            f"shapes {inputs.shape} and {targets.shape}."
        )
    params, is_whole = jax.tree.map(jnp.asarray, params), jnp.issubdtype(targets.dtype, jnp.integer)
    few, random = inputs[:NUM_LOOKED_AT], np.random.default_rng(seed)
    moved = jax.tree.map(
        lambda leaf: leaf + 0.3 * random.standard_normal(np.shape(leaf)).astype(leaf.dtype), params
    )
    seen = _checked_outputs(params, moved, apply, few)
    count = seen[0].shape[-1]
    if loss is None and is_whole:  # labels
        low, high = int(jnp.min(targets)), int(jnp.max(targets))
        if low < 0 or high >= count:
            raise ValueError(
                f"`targets` must be from 0 to {count - 1}, as there are {count} outputs, but they "
                f"go from {low} to {high}."
            )
    is_head = _named(params, head) if head is not None else _find_head(params, seen)
    start = jax.tree.map(
        lambda leaf, is_in: leaf * jnp.asarray(factor, leaf.dtype) if is_in else leaf,
        params,
        is_head,
    )
    network = Network(apply, loss or (cross_entropy if is_whole else mean_squares))
    problem = Problem(network, start, inputs, targets)
    return start_at(problem, start, is_head, factor, seed)


def start_at(
    problem: Problem, params: PyTree, is_head: PyTree, factor: Positive, seed: int
) -> NetworkStart:
    """What is at a start whose head was scaled; warns where it is useless."""
    norms = jax.device_get(compiled(_norms, "little")(problem, is_head))
    value, grad_norm, body_grad_norm = map(float, norms)
    check_start(loss=value, gradient=grad_norm)
    # The program by which a search computes the spectrum at its start.
    look = compiled(spectrum_on_batch, NETWORK_EFFORT)
    key = jax.random.key(seed)
    spectrum = jax.device_get(look(problem, LOOK, FixedRows(), problem.x0, key))
    found = spectrum.clusters()[: spectrum.num_downhill()]
    least, reason = found[0].eigenvalue if found else 0.0, ""
    # A length of 10 along the ridge lowers the loss by 50 |eigenvalue| at best.
    if not found or 50 * abs(least) < USEFUL * abs(value):
        curvature = (
            f"its least eigenvalue is {least:.2g}" if found else "it has no negative eigenvalue"
        )
        reason = (
            f"The start is useless: {curvature}. Has an activation no derivative where it is "
            "evaluated (relu or abs at zero, sign, round), or are layers before the head small, "
            "which makes a saddle of higher order? Pass the parameters as they are initialised."
        )
        warnings.warn(reason, stacklevel=3)
    heads = zip(jax.tree.leaves_with_path(params), jax.tree.leaves(is_head), strict=True)
    return NetworkStart(
        params=params,
        problem=problem,
        head=tuple(jax.tree_util.keystr(path) for (path, _), is_in in heads if is_in),
        factor=float(factor),
        loss=value,
        grad_norm=grad_norm,
        body_grad_norm=body_grad_norm,
        eigenvalues=tuple(cluster.eigenvalue for cluster in found),
        reason=reason,
        cost=jax.device_get(spectrum.cost + Cost(values=1, gradients=1)),
    )


def _norms(problem: Problem, is_head: PyTree) -> tuple[Scalar, Scalar, Scalar]:
    """The loss and the norm of its gradient, of all of it and without the head."""
    on_rows, x = FixedRows()(problem, jax.random.key(0), 0), problem.x0
    grad = on_rows.grad(x)
    body = jax.tree.map(
        lambda leaf, is_in: jnp.zeros_like(leaf) if is_in else leaf, problem.unravel(grad), is_head
    )
    return on_rows.value(x), jnp.linalg.norm(grad), jnp.linalg.norm(problem.ravel(body))


def _named(params: PyTree, head: Callable[[PyTree], Any]) -> PyTree:
    """Which leaves `head` names."""
    leaves, structure = jax.tree.flatten(params)
    numbered = jax.tree.unflatten(structure, range(len(leaves)))
    chosen = set(jax.tree.leaves(head(numbered)))
    if not chosen:
        raise ValueError("`head` must return a leaf of `params` or some of them, but it is empty.")
    return jax.tree.map(lambda number: number in chosen, numbered)


def _find_head(params: PyTree, looked: Looked) -> PyTree:
    """The leaves each of whose slices moves one output alone, and moves it linearly."""

    def is_one_slice(grads: list[Array], axis: int) -> bool:
        """Whether the first and the last output are moved by the first and last slice alone."""
        return all(
            np.any(grad) and not np.any(np.delete(grad, number, axis))
            for grad, number in zip(map(np.asarray, grads), (0, -1), strict=True)
        )

    is_head = [
        any(is_one_slice(grads, axis) for axis in range(grads[0].ndim)) and bool(is_linear)
        for *grads, is_linear in zip(*looked[2], looked[3], strict=True)
    ]
    if not any(is_head):
        raise ValueError(
            "`apply` must end in a linear layer, but no leaf of `params` moves one output alone "
            "and linearly: return outputs before any softmax, or name the last layer as "
            "head=lambda params: ..."
        )
    return jax.tree.unflatten(jax.tree.structure(params), is_head)


def _evaluated(apply: Apply, params: PyTree, there: PyTree, inputs: Array) -> Looked:
    outputs = apply(params, inputs)
    leaves, tree = jax.tree.flatten(there)
    num_outputs = outputs.shape[-1] if outputs.ndim else 0

    def at(index: int, factor: float) -> Array:
        moved = [leaf * factor if number == index else leaf for number, leaf in enumerate(leaves)]
        return apply(jax.tree.unflatten(tree, moved), inputs)

    def is_linear(index: int) -> Bool[Array, ""]:
        if num_outputs not in leaves[index].shape:
            return jnp.array(False)
        zero, one, two = (at(index, factor) for factor in (0.0, 1.0, 2.0))
        rounding = float(jnp.finfo(one.dtype).eps) ** 0.5
        return jnp.max(jnp.abs(two - 2 * one + zero)) <= rounding * jnp.max(jnp.abs(two))

    def moved_by(number: int) -> list[Array]:
        def one_output(params: PyTree) -> Scalar:
            outputs = apply(params, inputs)[..., number]
            # Weights that no symmetry of the outputs cancels.
            weights = np.cos(np.arange(outputs.size)).reshape(outputs.shape)
            return jnp.sum(outputs * weights.astype(outputs.dtype))

        return jax.tree.leaves(jax.grad(one_output)(there))

    grads = moved_by(0), moved_by(num_outputs - 1)
    return outputs, apply(params, inputs[:1]), grads, [*map(is_linear, range(len(leaves)))]


def _checked_outputs(params: PyTree, random: PyTree, apply: Apply, few: Array) -> Looked:
    """The network on a few examples. Raises unless each of them has outputs by itself."""
    with told_of("apply", "apply(params, inputs), for these `params` and `inputs`"):
        shape = getattr(jax.eval_shape(apply, params, few), "shape", None)
    if not shape or shape[0] != len(few):
        raise ValueError(
            f"`apply` must return an array with a row for each of the {len(few)} inputs, not "
            f"{'no array' if shape is None else f'one of shape {shape}'}."
        )
    seen = jax.device_get(compiled(_evaluated, "none")(apply, params, random, few))
    outputs, alone = seen[:2]
    rounding = float(np.finfo(outputs.dtype).eps) ** 0.5
    if not np.max(np.abs(alone - outputs[:1])) <= rounding * np.max(np.abs(outputs)):
        raise ValueError(
            "`apply` must treat each example by itself, but the outputs of the first change with "
            "the others. Does the network use the statistics of its batch, or draw random numbers?"
        )
    return seen
