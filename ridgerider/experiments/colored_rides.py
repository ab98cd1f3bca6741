"""Ridge Rider on coloured images, in two ways: the paper's Algorithm 4, and consistent ridges.

In both, the ridden part is a head of two layers on ten features, near its saddle at zero:

    logit = a . tanh(W' features),   W: 10 x 4,  a: 4,   44 parameters
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

import ridgerider as rr
from ridgerider.environments import (
    CommonRidge,
    Environments,
    RidgeLosses,
    consistency_along,
    ride_common,
    shared_features,
)
from ridgerider.experiments.colored_baselines import (
    Images,
    Labels,
    Layers,
    Logits,
    Trained,
    Training,
    arrays,
    cross_entropy,
    hidden,
    objective,
    random_rows,
    squares,
    xavier,
)
from ridgerider.problems.colored import ColoredEnvironment

NUM_FEATURES, NUM_UNITS = 10, 4
NUM_STEPS = 9  # along the ridge, as in the paper


def head_logits(head: dict[str, Array], features: Float[Array, "examples m"]) -> Logits:
    return jnp.tanh(features @ head["weights"]) @ head["out"]


def adam(
    loss: Callable[[Any, list[tuple[Images, Labels]]], Array],
    params: Any,
    data: list[tuple[Images, Labels]],
    key: PRNGKeyArray,
    batch_size: int,
    num_steps: int,
) -> Any:
    """Adam at its usual rate on batches of all environments."""
    optimizer = optax.adam(1e-3)

    def step(carry: tuple, index: Array) -> tuple:
        params, state = carry
        batch = random_rows(data, jax.random.fold_in(key, index), batch_size)
        grads = jax.grad(loss)(params, batch)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            updates, state = optimizer.update(grads, state)
        return (jax.tree.map(jnp.add, params, updates), state), None

    return jax.lax.scan(step, (params, optimizer.init(params)), jnp.arange(num_steps))[0][0]


# --- Algorithm 4: 392-128 (ReLU)-10 (tanh), then the head


def features_of(featurizer: Layers, images: Images) -> Float[Array, "examples m"]:
    last = featurizer[-1]
    return jnp.tanh(hidden(featurizer, images) @ last["weights"] + last["bias"][None])


def network_logits(params: dict[str, Any], images: Images) -> Logits:
    return head_logits(params["head"], features_of(params["featurizer"], images))


def network_loss(params: dict[str, Any], images: Images, labels: Labels) -> Array:
    return cross_entropy(network_logits(params, images), labels)


def initialize(key: PRNGKeyArray, num_inputs: int, num_hidden: int = 128) -> dict[str, Any]:
    first, second, third = jax.random.split(key, 3)
    shape = (NUM_FEATURES, NUM_UNITS)
    return {
        "featurizer": xavier(first, (num_inputs, num_hidden, NUM_FEATURES)),
        "head": {
            "weights": 1e-2 * jax.random.normal(second, shape, jnp.float32),
            "out": 1e-2 * jax.random.normal(third, shape[1:], jnp.float32),
        },
    }


class WarmStart(eqx.Module):
    """150 steps on the mean loss, with a linear head that is thrown away."""

    data: list[tuple[Images, Labels]]
    batch_size: int = eqx.field(static=True)

    @eqx.filter_jit
    def __call__(self, params: dict[str, Any], key: PRNGKeyArray) -> dict[str, Any]:
        first, key = jax.random.split(key)

        def loss(both: tuple[Layers, Layers], data: list[tuple[Images, Labels]]) -> Array:
            featurizer, head = both
            logits = [
                (features_of(featurizer, images) @ head[0]["weights"] + head[0]["bias"][None])[:, 0]
                for images, _ in data
            ]
            losses = [cross_entropy(z, y) for z, (_, y) in zip(logits, data, strict=True)]
            return jnp.mean(jnp.stack(losses)) + 1e-3 * squares(featurizer)

        start = (params["featurizer"], xavier(first, (NUM_FEATURES, 1)))
        trained, _ = adam(loss, start, self.data, key, self.batch_size, num_steps=150)
        return {**params, "featurizer": trained}


def ride_algorithm_4(
    environments: tuple[ColoredEnvironment, ...],
    seed: int,
    batch_size: int,
    is_consistent: bool = True,
    **settings: Any,
) -> Trained:
    """Algorithm 4; without its consistency terms as a control."""
    data = arrays(environments)
    num_inputs = int(np.prod(data[0][0].shape[1:]))
    key = jax.random.key(seed)
    problems = [rr.Problem(network_loss, initialize(key, num_inputs), *one) for one in data]
    both = Environments(problems, {"featurizer": False, "head": True})
    alone = RidgeLosses(gap=0.0, probe_correlation=0.0, probe_gap=0.0)
    losses = RidgeLosses() if is_consistent else alone
    common = CommonRidge(losses=losses, batch=rr.Batches(batch_size), **settings)
    ride = ride_common(both, common, warm_start=WarmStart(data, batch_size), seed=seed)
    scores = ride.scores
    return Trained(
        steps=list(range(1, NUM_STEPS + 1)),
        logits=_Networks(jax.tree.map(lambda *leaves: jnp.stack(leaves), *ride.params[1:])),
        record={
            "eigenvalues": np.asarray(scores.eigenvalues).tolist(),
            "correlations": np.asarray(scores.correlations).tolist(),
            "overlaps": np.asarray(ride.overlaps).tolist(),
            "loss": ride.loss,
            "num_dropped": ride.num_dropped,
        },
    )


@dataclass(frozen=True)
class _Networks:
    stacked: dict[str, Any]

    def __call__(self, images: np.ndarray) -> Float[Array, "candidates examples"]:
        return _networks_logits(self.stacked, jnp.asarray(images))


@jax.jit
def _networks_logits(stacked: dict[str, Any], images: Images) -> Array:
    return jax.lax.map(lambda params: network_logits(params, images), stacked)


# --- consistent ridges


def ride_consistent(
    environments: tuple[ColoredEnvironment, ...],
    seed: int,
    batch_size: int,
    num_features: int = NUM_FEATURES,
) -> dict[str, Trained]:
    """Features from one half of the images, their consistent ridge from the other; and back.

    A featurizer trained on the very images would see more agreement than there is. With it come two
    controls that share its features: no projection, and a projection with images that were
    shuffled between the environments.
    """
    data = arrays(environments)
    folds: dict[str, list[Fold]] = {"consistent": [], "no_projection": [], "shuffled": []}
    for k in (0, 1):
        halves = [[(one[part::2], two[part::2]) for one, two in data] for part in (k, 1 - k)]
        key = jax.random.fold_in(jax.random.key(seed), k)
        layers = train_features(halves[0], key, batch_size)
        features = whiten(layers, halves[1], num_features)
        for name, of in folds.items():
            part = shuffle(halves[1], key) if name == "shuffled" else halves[1]
            of.append(ride_fold(features, part, key, is_projected=name != "no_projection"))
    return {
        name: Trained(
            steps=list(range(1, NUM_STEPS + 1)),
            logits=_Average(tuple(of)),
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
        return objective(training, layers, batch, jnp.array(0))

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
    seen = [_features(features, images) for images, _ in data]
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
def _features(features: Whitened, images: Images) -> Float[Array, "examples m"]:
    return features(images)


@eqx.filter_jit
def _ride(environments: Environments, key: PRNGKeyArray) -> rr.Ride:
    problem = environments.pooled()
    spectrum = RIDER.look(problem, problem.x0, key)
    ridge = rr.Ridge(
        direction=spectrum.eigenvectors[0],
        eigenvalue=spectrum.eigenvalues[0],
        index=jnp.array(0),
        multiplicity=jnp.array(NUM_UNITS),
    )
    # Both ways along it are the same function of the images.
    return RIDER.ride(problem, problem.x0, ridge, key)


@dataclass(frozen=True)
class _Average:
    """The mean logits of the folds."""

    folds: tuple[Fold, ...]

    def __call__(self, images: np.ndarray) -> Float[Array, "candidates examples"]:
        each = [_fold_logits(one.features, one.heads, jnp.asarray(images)) for one in self.folds]
        return jnp.mean(jnp.stack(each), axis=0)


@eqx.filter_jit
def _fold_logits(features: Whitened, heads: dict[str, Array], images: Images) -> Array:
    seen = features(images)
    return jax.lax.map(lambda head: head_logits(head, seen), heads)


def head_loss(head: dict[str, Array], features: Array, labels: Labels) -> Array:
    return cross_entropy(head_logits(head, features), labels)
