"""Consistent ridges on coloured images: project out what environments disagree on, and ride."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import ridgerider as rr
from ridgerider.environments import (
    Environments,
    consistency_along,
    shared_features,
)
from ridgerider.problems.colored import ColoredEnvironment
from ridgerider.types import Ride, Ridge
from ridgerider_experiments.colored_mnist.baselines import (
    Images,
    Labels,
    Layers,
    Trained,
    Training,
    arrays,
    cross_entropy,
    hidden,
    objective,
    xavier,
)
from ridgerider_experiments.colored_mnist.head import (
    NUM_FEATURES,
    NUM_STEPS,
    NUM_UNITS,
    adam,
    head_logits,
)


def ride_consistent(
    environments: tuple[ColoredEnvironment, ...],
    seed: int,
    batch_size: int,
    num_features: int = NUM_FEATURES,
    num_networks: int = 1,
    methods: tuple[str, ...] = ("consistent", "no_projection", "shuffled"),
) -> dict[str, Trained]:
    """Features from one half of the images, their consistent ridge from the other; and back.

    A featurizer trained on the very images would see more agreement than there is. With it come two
    controls that share its features: no projection, and a projection with images that were
    shuffled between the environments. `num_networks`: so often, and the average of all.
    """
    data = arrays(environments)
    folds: dict[str, list[Fold]] = {name: [] for name in methods}
    for k in range(2 * num_networks):
        parts = (k % 2, 1 - k % 2)
        halves = [[(one[part::2], two[part::2]) for one, two in data] for part in parts]
        key = jax.random.fold_in(jax.random.key(seed), k)
        layers = train_features(halves[0], key, batch_size)
        features = whiten(layers, halves[1], num_features)
        for name, of in folds.items():
            part = shuffle(halves[1], key) if name == "shuffled" else halves[1]
            of.append(ride_fold(features, part, key, is_projected=name != "no_projection"))
    return {
        name: Trained(
            steps=list(range(1, NUM_STEPS + 1)),
            logits=partial(mean_logits, of),
            record={part: [fold.record[part] for fold in of] for part in of[0].record},
        )
        for name, of in folds.items()
    }


def shuffle(data: list[tuple[Images, Labels]], key: PRNGKeyArray) -> list[tuple[Images, Labels]]:
    """Deal all images anew, to as many environments."""
    images, labels = (jnp.concatenate(parts) for parts in zip(*data, strict=True))
    order = jax.random.permutation(key, len(labels)).reshape(len(data), -1)
    return [(images[rows], labels[rows]) for rows in order]


@eqx.filter_jit
def train_features(
    data: list[tuple[Images, Labels]], key: PRNGKeyArray, batch_size: int, num_steps: int = 150
) -> Layers:
    """A short training on the pooled images: enough for features, colour and shape alike."""
    training = Training(num_hidden=256)
    first, key = jax.random.split(key)
    num_inputs = int(np.prod(data[0][0].shape[1:]))
    layers = xavier(first, (num_inputs, training.num_hidden, training.num_hidden, 1))

    def loss(layers: Layers, batch: list[tuple[Images, Labels]]) -> Array:
        return objective(training, layers, batch, jnp.array(0))[0]

    return adam(loss, layers, data, key, batch_size, num_steps)


class Whitened(eqx.Module):
    """The last hidden layer's leading principal components, each of variance one, projected."""

    layers: Layers
    center: Float[Array, " width"]
    matrix: Float[Array, "width m"]

    def __call__(self, images: Images) -> Float[Array, "examples m"]:
        # In double precision where that is on: the Hessians are small, and exact ones are wanted.
        return ((hidden(self.layers, images) - self.center[None]) @ self.matrix).astype(float)


@eqx.filter_jit
def whiten(layers: Layers, data: list[tuple[Images, Labels]], num_features: int) -> Whitened:
    inner = jnp.concatenate([hidden(layers, images) for images, _ in data])
    center = jnp.mean(inner, axis=0)
    apart = inner - center[None]
    variances, columns = jnp.linalg.eigh(apart.T @ apart / len(apart))
    leading = slice(-1, -1 - num_features, -1)
    return Whitened(layers, center, columns[:, leading] / jnp.sqrt(variances[leading])[None])


RIDER = rr.Rider(
    spectrum=rr.DenseSpectrum(gauge="random"),  # at zero every ridge is repeated for each unit
    step=rr.FixedStep(0.1),
    stop=(rr.curvature_gone, rr.RidgeLost(), rr.not_finite),
    finish=None,
    max_steps=NUM_STEPS,
    keep_path=True,
)


@dataclass(frozen=True)
class Fold:
    """A featurizer with the heads along a ride, stacked."""

    features: Whitened
    heads: dict[str, Array]
    record: dict[str, Any]


def ride_fold(
    features: Whitened, data: list[tuple[Images, Labels]], key: PRNGKeyArray, is_projected: bool
) -> Fold:
    """Project out what the environments disagree on, and ride the steepest ridge that is left."""
    seen = [eqx.filter_jit(features)(images) for images, _ in data]
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
    scores = consistency_along(both, start, ride)
    path = ride.trace.path
    assert path is not None
    # A ride that ended early stays where it is.
    taken = jnp.minimum(1 + jnp.arange(NUM_STEPS), ride.num_steps)
    return Fold(
        features=features,
        heads=jax.vmap(lambda x: both.with_ridden(start, x))(path[taken]),
        record={
            "eigenvalues": np.asarray(scores.eigenvalues).tolist(),
            "standard_errors": np.asarray(scores.standard_errors).tolist(),
            "correlations": np.asarray(scores.correlations).tolist(),
            "overlaps": np.asarray(ride.trace.overlap)[: int(ride.num_steps) + 1].tolist(),
            "difference": float(jnp.linalg.norm(shared.signals[0] - shared.signals[1])),
            "noise": float(shared.noise),
        },
    )


@eqx.filter_jit
def _ride(environments: Environments, key: PRNGKeyArray) -> Ride:
    problem = environments.pooled()
    spectrum = RIDER.look(problem, problem.x0, key)
    ridge = Ridge(
        direction=spectrum.eigenvectors[0],
        eigenvalue=spectrum.eigenvalues[0],
        index=jnp.array(0),
        multiplicity=jnp.array(NUM_UNITS),
    )
    # Both ways along it are the same function of the images.
    return RIDER.ride(problem, problem.x0, ridge, key)


def mean_logits(folds: list[Fold], images: np.ndarray) -> Float[Array, "candidates examples"]:
    each = [_fold_logits(one.features, one.heads, jnp.asarray(images)) for one in folds]
    return jnp.mean(jnp.stack(each), axis=0)


@eqx.filter_jit
def _fold_logits(features: Whitened, heads: dict[str, Array], images: Images) -> Array:
    seen = features(images)
    return jax.lax.map(lambda head: head_logits(head, seen), heads)


def head_loss(head: dict[str, Array], features: Array, labels: Labels) -> Array:
    return cross_entropy(head_logits(head, features), labels)
