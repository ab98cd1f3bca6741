"""Environments in one call, against ERM, IRM and others, on data sets made from code.

    ridgerider reproduce invariance

Each data set has training environments in which something spurious predicts the label, more in one
than in another, and a test environment in which it misleads. `rr.environments.fit` and all
baselines see the training environments only; every method chooses its settings (features and
projections, or steps and the weight of the penalty) on held-out examples of these, by the mean
accuracy minus five times the gap between the environments.

- tilt: MNIST-1D signals, digits below five or not, a tenth of the labels flipped; a slope is added
  whose sign is the label, flipped at a rate of 0.2, 0.1 and, in the test, 0.9. Package `mnist1d`.
- background: the small digits, ten classes; the background's brightness is that of the class, or
  random at a rate of 0.5 and 0.1. In the test it is that of another class.
- causal: a table of ten columns. Three are parents of the label, three its children, with a
  strength of 3 and 1 in training and -2 in the test, four are noise.
- colour: coloured MNIST with 10,000 images in each environment, rates 0.2, 0.1 and 0.9.

The seeds 900 and above were used to write the method.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ridgerider import environments
from ridgerider.data import digits, mnist
from ridgerider.problems.colored import ColoredImages
from ridgerider_experiments.penalties import Layers, Training, outputs, train
from ridgerider_experiments.runner import (
    Base,
    Job,
    Runner,
    accuracy_interval,
    grouped,
    plus_minus,
    sized,
)
from ridgerider_experiments.show import markdown

PENALTIES = ("irm", "vrex", "fishr", "coral")
METHODS = {
    "fit": "`environments.fit`",
    "erm": "ERM",
    "irm": "IRM",
    "vrex": "V-REx",
    "group_dro": "Group-DRO",
    "fishr": "Fishr",
    "coral": "CORAL",
    "oracle": "ERM without what is spurious",
}
WEIGHTS = (10.0, 100.0, 1000.0)  # of a penalty, to choose from
WIDTH, EARLY = 128, 100  # hidden units; steps before which a penalty has weight 1
STEPS = {"batch_size": 128, "num_blocks": 4, "block_size": 100}  # of Adam
TILT = np.linspace(-1.5, 1.5, 40)
Data = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Settings(Base):
    data_sets: tuple[str, ...] = sized(
        ("tilt", "background", "causal", "colour"), quick=("background", "causal")
    )
    num_seeds: int = sized(20, quick=2)
    methods: tuple[str, ...] = sized(tuple(METHODS), quick=("fit", "erm", "irm", "oracle"))


def run(settings: Settings, runner: Runner) -> dict[str, Any]:
    jobs = [
        {"data": data, "seed": settings.seed + number, "methods": list(settings.methods)}
        for number in range(settings.num_seeds)
        for data in settings.data_sets
    ]
    done = grouped(jobs, runner(work, jobs), "data")
    return {"data": {name: summary(of) for name, of in done.items()}}


def work(job: Job) -> dict[str, Any]:
    """The accuracy in the test environment, and seconds, by method."""
    train, test, clean = make(job["data"], job["seed"])
    found = {}
    for name in job["methods"]:
        began = time.perf_counter()
        inputs, labels = zip(*(clean[0] if name == "oracle" else train), strict=True)
        if name == "fit":
            model: Any = "linear" if job["data"] == "causal" else "mlp"
            fitted = environments.fit(inputs, labels, model=model, seed=job["seed"])
            predict: Callable[[np.ndarray], np.ndarray] = fitted.predict
        else:
            method = "erm" if name == "oracle" else name
            predict = baseline(method, list(inputs), list(labels), job["seed"])
        seconds = time.perf_counter() - began
        table, targets = clean[1] if name == "oracle" else test
        found[name] = {"test": float(np.mean(predict(table) == targets)), "seconds": seconds}
    return found


# --- data sets


def make(name: str, seed: int) -> tuple[list[Data], Data, tuple[list[Data], Data]]:
    """Training environments, the test environment, and both without what is spurious."""
    random = np.random.default_rng(seed)
    pairs = {"causal": causal, "colour": colour, "tilt": tilt, "background": background}[name]
    parts, bare = zip(*pairs(random, seed), strict=True)
    return list(parts[:2]), parts[2], (list(bare[:2]), bare[2])


Pairs = Iterator[tuple[Data, Data]]  # of each environment: as it is, and without what is spurious


def dealt(
    random: np.random.Generator, inputs: np.ndarray, labels: np.ndarray, rates: tuple[float, ...]
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Two fifths for each of two training environments and one for the test, with what is off."""
    rows = np.array_split(random.permutation(len(labels)), 5)
    for own, rate in zip((rows[:2], rows[2:4], rows[4:]), rates, strict=True):
        x, y = (of[np.concatenate(own)] for of in (inputs, labels))
        yield x, y, random.random(len(y)) < rate


def tilt(random: np.random.Generator, seed: int) -> Pairs:
    from mnist1d.data import get_dataset_args, make_dataset  # optional

    given = get_dataset_args()
    given.seed, given.num_samples = seed, 10_000
    made = make_dataset(given)
    inputs, labels = (np.concatenate([made[name], made[f"{name}_test"]]) for name in "xy")
    labels = np.where(random.random(len(labels)) < 0.1, labels >= 5, labels < 5).astype(int)
    for x, y, is_off in dealt(random, inputs, labels, (0.2, 0.1, 0.9)):
        yield (x + (np.where(is_off, -1, 1) * (2 * y - 1))[:, None] * TILT, y), (x, y)


def background(random: np.random.Generator, seed: int) -> Pairs:
    images, rates = digits(seed), (0.5, 0.1, 0.0)
    inputs = np.concatenate([images.train_images, images.test_images]).reshape(-1, 64)
    labels = np.concatenate([images.train_labels, images.test_labels])
    for rate, (x, y, is_off) in zip(rates, dealt(random, inputs, labels, rates), strict=True):
        other = np.where(is_off, random.integers(0, 10, len(y)), y + 5 * (rate == 0))
        yield (np.maximum(x, (other % 10 / 10)[:, None]), y), (x, y)


def causal(random: np.random.Generator, seed: int) -> Pairs:
    for strength, count in ((3, 1000), (1, 1000), (-2, 4000)):
        table = random.normal(size=(count, 10))
        labels = (table[:, :3].sum(axis=1) + random.logistic(size=count) > 0).astype(int)
        table[:, 3:6] += strength * (labels - 0.5)[:, None]
        yield (table, labels), (np.delete(table, slice(3, 6), axis=1), labels)


def colour(random: np.random.Generator, seed: int) -> Pairs:
    colored = ColoredImages(
        mnist().some(23_000, 5_000, seed), (0.2, 0.1), stride=2, num_validation=3_000, seed=seed
    )
    for one in (*colored.train, colored.load_test()):
        seen, bare = (of.images.reshape(len(of.images), -1) for of in (one, one.grey()))
        yield (seen, one.labels), (bare, one.labels)


# --- baselines: a network with two hidden layers, and a penalty


def baseline(
    method: str, inputs: list[np.ndarray], labels: list[np.ndarray], seed: int
) -> Callable[[np.ndarray], np.ndarray]:
    """Trained on four fifths of each environment; steps and weight chosen on the last fifth."""
    center, scale = np.concatenate(inputs).mean(axis=0), np.concatenate(inputs).std()

    def seen(inputs: np.ndarray) -> Array:
        return jnp.asarray((inputs - center) / scale, jnp.float32)

    random, kept, held_out = np.random.default_rng(seed), list[Any](), list[Any]()
    for one, own in zip(map(seen, inputs), map(jnp.asarray, labels), strict=True):
        held, rest = np.split(random.permutation(len(own)), [len(own) // 5])
        held_out.append((one[held], own[held]))
        kept.append((one[rest], own[rest]))
    sizes = (inputs[0].shape[1], WIDTH, WIDTH, int(max(own.max() for own in labels)) + 1)
    keys = jax.random.split(jax.random.key(seed), len(sizes))
    weights = jnp.asarray(WEIGHTS if method in PENALTIES else WEIGHTS[:1], jnp.float32)
    trainings = [Training(method, weight=weight, late_from=EARLY) for weight in weights]
    layers = [
        {
            "weights": jax.random.normal(key, pair, jnp.float32) * (2 / pair[0]) ** 0.5,
            "bias": jnp.zeros(pair[1], jnp.float32),
        }
        for key, pair in zip(keys, pairwise(sizes), strict=False)
    ]
    each = [train(training, layers, kept, keys[-1], **STEPS) for training in trainings]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
    accuracies = np.array(
        [np.mean(np.asarray(guesses(stacked, one) == own), axis=-1) for one, own in held_out]
    )
    best = np.unravel_index(
        np.argmax(accuracies.mean(axis=0) - 5 * np.ptp(accuracies, axis=0)), accuracies.shape[1:]
    )
    chosen = jax.tree.map(lambda leaf: leaf[best][None, None], stacked)

    def predict(inputs: np.ndarray) -> np.ndarray:
        return np.asarray(guesses(chosen, seen(inputs))[0, 0])

    return predict


@jax.jit
def guesses(stacked: Layers, inputs: Array) -> Array:
    """Of each weight and block."""
    one = lambda layers: jnp.argmax(outputs(layers, inputs), axis=1)  # noqa: E731
    return jax.vmap(jax.vmap(one))(stacked)


# --- what is shown


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Means with 95 % intervals, and differences to `fit` on equal seeds."""
    found: dict[str, Any] = {}
    for name in runs[0]:
        test = np.array([run[name]["test"] for run in runs])
        apart = np.array([run["fit"]["test"] for run in runs]) - test
        found[name] = {
            "test": accuracy_interval(test),
            "seconds": float(np.median([run[name]["seconds"] for run in runs])),
            "fit_minus_this": float(apart.mean()),
            "above": int(np.sum(apart > 0)),
            "runs": len(runs),
        }
    return found


def table(results: dict[str, Any]) -> str:
    parts = []
    for data, methods in results["data"].items():
        rows = []
        for name, of in methods.items():
            apart = f"{100 * of['fit_minus_this']:+.1f} ({of['above']} of {of['runs']})"
            cells = [plus_minus(of["test"]), "" if name == "fit" else apart]
            rows.append([METHODS[name], *cells, f"{of['seconds']:.1f}"])
        head = [f"{data}, {of['runs']} seeds", "test accuracy (%)", "`fit` minus this", "seconds"]
        parts.append(markdown(head, rows))
    return "\n".join(parts)
