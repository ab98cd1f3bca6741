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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ridgerider import environments
from ridgerider.data import digits, mnist
from ridgerider.problems.colored import ColoredImages
from ridgerider_experiments.penalties import Layers, Training, outputs, train
from ridgerider_experiments.settings import Base, sized
from ridgerider_experiments.show import markdown
from ridgerider_experiments.sweep import Job, grouped, interval, run_jobs

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
    workers: int = 1


def run(settings: Settings, out: Path, say: Callable[[str], None] = print) -> dict[str, Any]:
    jobs = [
        {"data": data, "seed": settings.seed + number, "methods": list(settings.methods)}
        for number in range(settings.num_seeds)
        for data in settings.data_sets
    ]
    done = run_jobs(work, jobs, out / "invariance.jsonl", settings.workers, say)
    return {"data": {name: summary(of) for name, of in grouped(jobs, done, "data").items()}}


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
    if name == "causal":
        parts = [
            causal(random, strength, count)
            for strength, count in zip((3, 1, -2), SIZES, strict=True)
        ]
        bare = [(np.delete(x, slice(3, 6), axis=1), y) for x, y in parts]
        return parts[:2], parts[2], (bare[:2], bare[2])
    if name == "colour":
        return colour(seed)
    if name == "tilt":
        inputs, labels = signals(seed)
        labels = np.where(random.random(len(labels)) < 0.1, labels >= 5, labels < 5).astype(int)
        rates = (0.2, 0.1, 0.9)
    else:
        images = digits(seed)
        inputs = np.concatenate([images.train_images, images.test_images]).reshape(-1, 64)
        labels = np.concatenate([images.train_labels, images.test_labels])
        rates = (0.5, 0.1, 0.0)
    rows = np.array_split(random.permutation(len(labels)), 5)
    parts, bare = [], []
    for own, rate in zip((rows[:2], rows[2:4], rows[4:]), rates, strict=True):
        x, y = (of[np.concatenate(own)] for of in (inputs, labels))
        is_off = random.random(len(y)) < rate
        if name == "tilt":
            shown = x + np.where(is_off, -1, 1)[:, None] * (2 * y - 1)[:, None] * TILT
        else:
            other = np.where(is_off, random.integers(0, 10, len(y)), y + 5 * (rate == 0))
            shown = np.maximum(x, (other % 10 / 10)[:, None])
        parts.append((shown, y))
        bare.append((x, y))
    return parts[:2], parts[2], (bare[:2], bare[2])


SIZES = (1000, 1000, 4000)  # of the causal tables


def causal(random: np.random.Generator, strength: float, count: int) -> Data:
    table = random.normal(size=(count, 10))
    labels = (table[:, :3].sum(axis=1) + random.logistic(size=count) > 0).astype(int)
    table[:, 3:6] += strength * (labels - 0.5)[:, None]
    return table, labels


def signals(seed: int) -> Data:
    from mnist1d.data import get_dataset_args, make_dataset  # optional

    settings = get_dataset_args()
    settings.seed, settings.num_samples = seed, 10_000
    made = make_dataset(settings)
    return tuple(np.concatenate([made[name], made[f"{name}_test"]]) for name in "xy")  # type: ignore[return-value]


def colour(seed: int) -> tuple[list[Data], Data, tuple[list[Data], Data]]:
    colored = ColoredImages(
        mnist().some(23_000, 5_000, seed), (0.2, 0.1), stride=2, num_validation=3_000, seed=seed
    )
    every = (*colored.train, colored.load_test())
    parts = [(one.images.reshape(len(one.images), -1), one.labels) for one in every]
    bare = [(one.grey().images.reshape(len(one.images), -1), one.labels) for one in every]
    return parts[:2], parts[2], (bare[:2], bare[2])


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
    layers = layers_of(sizes, keys)
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


def layers_of(sizes: tuple[int, ...], keys: Array) -> Layers:
    return [
        {
            "weights": jax.random.normal(own, (fan_in, fan_out), jnp.float32) * (2 / fan_in) ** 0.5,
            "bias": jnp.zeros(fan_out, jnp.float32),
        }
        for own, fan_in, fan_out in zip(keys, sizes[:-1], sizes[1:], strict=False)
    ]


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
            "test": interval(test),
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
            mean, half = of["test"]["mean"], (of["test"]["high"] - of["test"]["low"]) / 2
            apart = f"{100 * of['fit_minus_this']:+.1f} ({of['above']} of {of['runs']})"
            accuracy, apart = f"{100 * mean:.1f} ± {100 * half:.1f}", "" if name == "fit" else apart
            rows.append([METHODS[name], accuracy, apart, f"{of['seconds']:.1f}"])
        count = next(iter(methods.values()))["runs"]
        head = [f"{data}, {count} seeds", "test accuracy (%)", "`fit` minus this", "seconds"]
        parts.append(markdown(head, rows))
    return "\n".join(parts)
