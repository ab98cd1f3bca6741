"""Ridge Rider on coloured images: the consistent ridge, and the paper's Algorithm 4.

The ridden part is a head of two layers on ten features, near its saddle at zero:

    logit = a . tanh(W' features),   W: 10 x 4,  a: 4,   44 parameters

Consistent ridge: features of a network trained on one half of the images, whitened; what the
environments disagree on is projected out, and the steepest ridge that is left is ridden.

Algorithm 4: a network 392-128 (ReLU)-10 (tanh), then the head. After the warm start only the layer
to the ten features is trained. A whole featurizer learns by heart where environments should agree:
its accuracies are equal in both on training images and apart on others.

Baselines: the settings of `ridgerider_experiments.penalties` on coloured images, and an oracle, ERM
on images without colour. The network has two hidden layers of 128 units and one logit. V-REx and
Fishr have IRM's settings, DRO and Group-DRO those of ERM. Decays, rates and IRM's weight are those
published by its authors, who chose them by the test environment. Their networks (390 hidden units
for IRM, 256 for ERM) and batches (all images) are larger than ours.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

import ridgerider as rr
from ridgerider.environments import (
    Algorithm4,
    Environments,
    RidgeLosses,
    ride_common,
    shared_features,
)
from ridgerider.problems.colored import ColoredEnvironment
from ridgerider.types import Ride, Ridge
from ridgerider_experiments import penalties
from ridgerider_experiments.penalties import Data, Inputs, Labels, Layers, Training

Logits = Float[Array, " examples"]
NUM_FEATURES, NUM_UNITS = 10, 4
NUM_STEPS = 9  # along the ridge, as in the paper
RIDER = rr.Rider(
    spectrum=rr.DenseSpectrum(gauge="random"),  # at zero every ridge is repeated for each unit
    step=rr.FixedStep(0.1),
    stop=(rr.curvature_gone, rr.RidgeLost(), rr.not_finite),
    finish=None,
    max_steps=NUM_STEPS,
    keep_path=True,
)


def head_logits(head: dict[str, Array], features: Float[Array, "examples m"]) -> Logits:
    return jnp.tanh(features @ head["weights"]) @ head["out"]


def head_loss(head: dict[str, Array], features: Array, labels: Labels) -> Array:
    return penalties.cross_entropy(head_logits(head, features), labels)


# --- baselines

IRM = Training("irm", 0.0004898536566546834, 0.00110794568, 91257.18613115903)
TRAININGS = {
    "erm": Training(),
    "irm": IRM,
    "vrex": replace(IRM, penalty="vrex"),
    "fishr": replace(IRM, penalty="fishr"),
    "dro": Training("dro"),
    "group_dro": Training("group_dro"),
    "oracle": Training(),
}


@dataclass(frozen=True)
class Trained:
    """A method's candidates, in the order of their steps, with `logits(images)` for each of them.

    Made from training environments alone.
    """

    steps: list[int]
    logits: Callable[[np.ndarray], Float[Array, "candidates examples"]]


def arrays(environments: tuple[ColoredEnvironment, ...]) -> Data:
    return [(jnp.asarray(one.images), jnp.asarray(one.labels)) for one in environments]


def trained_from(
    training: Training, data: Data, key: PRNGKeyArray, *, width: int = 128, **sizes: int
) -> Layers:
    """After one step and each block of steps that follow, stacked."""
    first, key = jax.random.split(key)
    layers = penalties.perceptron(first, (data[0][0][0].size, width, width, 1))
    return penalties.train(training, layers, data, key, num_first=1, **sizes)


def train_baseline(
    name: str, environments: tuple[ColoredEnvironment, ...], seed: int, **sizes: int
) -> Trained:
    """1 + num_blocks * block_size steps; a candidate after each block."""
    logits = grey_logits if name == "oracle" else layer_logits
    if name == "oracle":
        environments = tuple(one.grey() for one in environments)
    stacked = trained_from(TRAININGS[name], arrays(environments), jax.random.key(seed), **sizes)
    steps = [1 + (block + 1) * sizes["block_size"] for block in range(sizes["num_blocks"])]
    return Trained(steps, partial(stacked_logits, logits, stacked))


@partial(jax.jit, static_argnums=0)
def stacked_logits(logits: Callable[..., Logits], stacked: Any, images: Inputs) -> Array:
    """Of each candidate."""
    return jax.lax.map(lambda params: logits(params, images), stacked)


def layer_logits(layers: Layers, images: Inputs) -> Logits:
    return penalties.outputs(layers, images)[:, 0]


def grey_logits(layers: Layers, images: Inputs) -> Logits:
    return layer_logits(layers, jnp.repeat(images.sum(axis=1, keepdims=True), 2, axis=1))


# --- the consistent ridge


class Whitened(eqx.Module):
    """The last hidden layer's leading principal components, each of variance one, projected."""

    layers: Layers
    center: Float[Array, " width"]
    matrix: Float[Array, "width m"]

    @eqx.filter_jit
    def __call__(self, images: Inputs) -> Float[Array, "examples m"]:
        # In double precision where that is on: the Hessians are small, and exact ones are wanted.
        return ((penalties.hidden(self.layers, images) - self.center[None]) @ self.matrix).astype(
            float
        )


@eqx.filter_jit
def whiten(layers: Layers, data: Data, num_features: int) -> Whitened:
    inner = jnp.concatenate([penalties.hidden(layers, images) for images, _ in data])
    center = jnp.mean(inner, axis=0)
    apart = inner - center[None]
    variances, columns = jnp.linalg.eigh(apart.T @ apart / len(apart))
    leading = slice(-1, -1 - num_features, -1)
    return Whitened(layers, center, columns[:, leading] / jnp.sqrt(variances[leading])[None])


Fold = tuple[Whitened, dict[str, Array]]  # a featurizer with the heads along a ride, stacked


def ride_consistent(
    environments: tuple[ColoredEnvironment, ...],
    seed: int,
    batch_size: int,
) -> dict[str, Trained]:
    """Features from one half of the images, their consistent ridge from the other; and back.

    A featurizer trained on the very images would see more agreement than there is. With it come two
    controls that share its features: no projection, and a projection with images that were
    shuffled between the environments.
    """
    data = arrays(environments)
    folds: dict[str, list[Fold]] = {"consistent": [], "no_projection": [], "shuffled": []}
    for k in range(2):
        halves = [[(one[part::2], two[part::2]) for one, two in data] for part in (k, 1 - k)]
        key = jax.random.fold_in(jax.random.key(seed), k)
        # A short training, of 150 steps: enough for features, colour and shape alike.
        sizes = {"width": 256, "batch_size": batch_size, "num_blocks": 1, "block_size": 149}
        stacked = trained_from(Training(), halves[0], key, **sizes)
        features = whiten(jax.tree.map(lambda leaf: leaf[0], stacked), halves[1], NUM_FEATURES)
        for name, of in folds.items():
            part = shuffle(halves[1], key) if name == "shuffled" else halves[1]
            of.append(ride_fold(features, part, key, is_projected=name != "no_projection"))
    steps = list(range(1, NUM_STEPS + 1))
    return {name: Trained(steps, partial(mean_logits, of)) for name, of in folds.items()}


def shuffle(data: Data, key: PRNGKeyArray) -> Data:
    """Deal all images anew, to as many environments."""
    images, labels = (jnp.concatenate(parts) for parts in zip(*data, strict=True))
    order = jax.random.permutation(key, len(labels)).reshape(len(data), -1)
    return [(images[rows], labels[rows]) for rows in order]


def ride_fold(features: Whitened, data: Data, key: PRNGKeyArray, is_projected: bool) -> Fold:
    """Project out what the environments disagree on, and ride the steepest ridge that is left."""
    seen = [features(images) for images, _ in data]
    shared = shared_features(seen, [labels.astype(float) - 0.5 for _, labels in data])
    if is_projected:
        seen = [one @ shared.projection for one in seen]
        projected = features.matrix @ shared.projection.astype(features.matrix.dtype)
        features = Whitened(features.layers, features.center, projected)
    dtype, num_features = seen[0].dtype, seen[0].shape[1]
    start = {
        "weights": jnp.zeros((num_features, NUM_UNITS), dtype),
        "out": jnp.zeros(NUM_UNITS, dtype),
    }
    problems = [rr.Problem(head_loss, start, z, y) for z, (_, y) in zip(seen, data, strict=True)]
    both = Environments(problems)
    ride = _ride(both, key)
    path = ride.trace.path
    assert path is not None
    # A ride that ended early stays where it is.
    taken = jnp.minimum(1 + jnp.arange(NUM_STEPS), ride.num_steps)
    return features, jax.vmap(lambda x: both.with_ridden(start, x))(path[taken])


@eqx.filter_jit
def _ride(environments: Environments, key: PRNGKeyArray) -> Ride:
    problem = environments.pooled()
    spectrum = RIDER.spectrum_at(problem, problem.x0, key)
    ridge = Ridge(
        direction=spectrum.eigenvectors[0],
        eigenvalue=spectrum.eigenvalues[0],
        index=jnp.array(0),
        multiplicity=jnp.array(NUM_UNITS),
    )
    # Both ways along it are the same function of the images.
    return RIDER.ride(problem, problem.x0, ridge, key)


def mean_logits(folds: list[Fold], images: np.ndarray) -> Float[Array, "candidates examples"]:
    each = []
    for features, heads in folds:
        seen = features(jnp.asarray(images))
        each.append(jax.lax.map(lambda head, seen=seen: head_logits(head, seen), heads))
    return jnp.mean(jnp.stack(each), axis=0)


# --- Algorithm 4


def features_of(featurizer: Layers, images: Inputs) -> Float[Array, "examples m"]:
    last = featurizer[-1]
    return jnp.tanh(penalties.hidden(featurizer, images) @ last["weights"] + last["bias"][None])


def network_logits(params: dict[str, Any], images: Inputs) -> Logits:
    return head_logits(params["head"], features_of(params["featurizer"], images))


def network_loss(params: dict[str, Any], images: Inputs, labels: Labels) -> Array:
    return penalties.cross_entropy(network_logits(params, images), labels)


def initialize(key: PRNGKeyArray, num_inputs: int, num_hidden: int = 128) -> dict[str, Any]:
    first, second, third = jax.random.split(key, 3)
    shape = (NUM_FEATURES, NUM_UNITS)
    return {
        "featurizer": penalties.perceptron(first, (num_inputs, num_hidden, NUM_FEATURES)),
        "head": {
            "weights": 1e-2 * jax.random.normal(second, shape, jnp.float32),
            "out": 1e-2 * jax.random.normal(third, shape[1:], jnp.float32),
        },
    }


@eqx.filter_jit
def warm_start(
    data: Data, batch_size: int, params: dict[str, Any], key: PRNGKeyArray
) -> dict[str, Any]:
    """150 steps of Adam on the mean loss, with a linear head that is thrown away."""
    first, key = jax.random.split(key)
    start = (params["featurizer"], penalties.perceptron(first, (NUM_FEATURES, 1)))
    optimizer = optax.adam(1e-3)

    def loss(both: tuple[Layers, Layers], data: Data) -> Array:
        featurizer, head = both
        losses = [
            penalties.cross_entropy(
                penalties.outputs(head, features_of(featurizer, images)), labels
            )
            for images, labels in data
        ]
        return jnp.mean(jnp.stack(losses)) + 1e-3 * penalties.squares(featurizer)

    def step(carry: tuple, index: Array) -> tuple:
        both, state = carry
        batch = penalties.random_rows(data, jax.random.fold_in(key, index), batch_size)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            updates, state = optimizer.update(jax.grad(loss)(both, batch), state)
        return (jax.tree.map(jnp.add, both, updates), state), None

    (trained, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), jnp.arange(150))[0]
    return {**params, "featurizer": trained}


class PrintedLosses(RidgeLosses):
    """L1 and L2 to the letter: signs, the first Hessian twice in a denominator, means of ratios.

    The paper gives no value of beta; all are 1. At a zero of a denominator a ratio counts as 0.
    """

    def values(
        self, environments: Environments, params: Any, direction: Array, probes: Array
    ) -> tuple[Array, Array]:
        both = jnp.concatenate([direction[None], probes])
        images = environments.hvps(params, both)
        curvatures = jnp.einsum("ikr,kr->ik", images, both)
        lengths = jnp.linalg.norm(images, axis=2) * jnp.linalg.norm(both, axis=1)[None]
        correlations = ratio(curvatures, lengths)
        loss = sum((one.value(one.x0) for one in environments.ridden(params)), jnp.zeros(()))
        apart = jnp.abs(curvatures[0] - curvatures[1])
        ridge = loss - jnp.sum(correlations[:, 0] + curvatures[:, 0])
        ridge = ridge + apart[0] / jnp.sum(direction**2)
        one, two = correlations[:, 1:] ** 2
        agreement = ratio(jnp.abs(one - two), 2 * one)
        size = ratio(apart, jnp.sum(jnp.abs(curvatures), axis=0))[1:]
        return ridge, jnp.mean(agreement + size)


def ratio(above: Array, below: Array) -> Array:
    is_zero = below == 0
    return jnp.where(is_zero, 0, above / jnp.where(is_zero, 1, below))


def ride_algorithm_4(
    environments: tuple[ColoredEnvironment, ...], seed: int, batch_size: int, kind: str
) -> Trained:
    """Algorithm 4; "no_consistency": without its consistency terms, as a control.

    "whole": the whole featurizer is trained; "literal": the printed losses, the whole network near
    zero and no warm start.
    """
    data, key, is_literal = arrays(environments), jax.random.key(seed), kind == "literal"
    start = initialize(key, data[0][0][0].size)
    if is_literal:  # the paper's N(0, epsilon), whose epsilon it does not give
        leaves, shape = jax.tree.flatten(start)
        keys = jax.random.split(key, len(leaves))
        drawn = [0.01 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
        start = jax.tree.unflatten(shape, drawn)
    problems = [rr.Problem(network_loss, start, *one) for one in data]
    both = Environments(problems, {"featurizer": False, "head": True})
    losses = {
        "literal": PrintedLosses(),
        "no_consistency": RidgeLosses(gap=0.0, probe_correlation=0.0, probe_gap=0.0),
    }
    common = Algorithm4(
        losses=losses.get(kind, RidgeLosses()),
        batch=rr.Batches(batch_size),
        num_pretrain=400,
        feature_rate=3e-3,
        decay=0.0 if is_literal else 1e-3,
        trained=kind in ("whole", "literal") or {"featurizer": [False, True], "head": False},
    )
    first = None if is_literal else partial(warm_start, data, batch_size)
    ride = ride_common(both, common, warm_start=first, seed=seed)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *ride.params[1:])
    steps = list(range(1, NUM_STEPS + 1))
    return Trained(steps, partial(stacked_logits, network_logits, stacked))
