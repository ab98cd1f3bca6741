"""For which networks and data ensembles along ridges are more diverse than deep ones.

    ridgerider reproduce ensemble-depth

Ensembles of each kind of network are trained by Adam to one training loss, on paired seeds:

- whole: one straight step along each ridge of a start with all weights near zero (not for networks
  with normalisation or attention, which such a start leaves without a gradient);
- head: the same for `rr.network_start`, whose last layer alone is small;
- repulsive, correlated: penalties on likeness and negative correlation of predictions, all members
  together, for as many epochs as the deep ensemble took;
- deep: random initialisations.

The claim: members disagree more under noise and under a shift, accuracy is not lower by half a
point, and the work is at most 1.5 times as much. Networks are chosen on the digits: those for which
the means of `whole` or `head` fulfil the claim. They are judged on other data sets, by 95 %
intervals over other seeds, corrected for all tests there (Bonferroni).
"""

import os
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

import ridgerider as rr
from ridgerider.data import cache_folder, images_of
from ridgerider_experiments.chain import halved
from ridgerider_experiments.ensembles import Trial, difference, ratio, verdict
from ridgerider_experiments.runner import Base, Job, Runner, sized
from ridgerider_experiments.show import markdown

METHODS = ("whole", "head", "repulsive", "correlated")
TARGETS = {"digits": 0.05, "mnist1d": 0.8, "mnist": 0.1, "fashion": 0.3}  # training losses
# Layers of a sequence of vectors, and whether they are normalised.
KINDS: dict[str, tuple[tuple[str, ...], bool]] = {
    "dense 1": (("dense",), False),
    "dense 2": (("dense",) * 2, False),
    "dense 3": (("dense",) * 3, False),
    "dense 2, normalised": (("dense",) * 2, True),
    "conv": (("conv", "conv"), False),
    "conv, normalised": (("conv", "conv"), True),
    "transformer": (("tokens", "attention", "tokens"), True),
}
MOST_WORK = 1.5
TESTS = {"noise": ratio, "shift": ratio, "accuracy": difference, "work": ratio}


@dataclass(frozen=True)
class Settings(Base):
    choose_on: str = "digits"
    confirm_on: tuple[str, ...] = sized(("mnist", "fashion", "mnist1d"), quick=())
    kinds: tuple[str, ...] = sized(tuple(KINDS), quick=("dense 1", "transformer"))
    num_seeds: int = sized(10, quick=1)  # to choose
    num_confirm: int = sized(20, quick=1)
    width: int = sized(32, quick=8)
    num_members: int = 4
    max_epochs: int = sized(150, quick=3)
    max_images: int = 3000


def run(settings: Settings, runner: Runner) -> dict[str, Any]:
    def arm(data: str, kind: str, seeds: range, methods: tuple[str, ...]) -> list[dict[str, Any]]:
        left_out = ("choose_on", "confirm_on", "kinds", "num_seeds", "num_confirm")
        own = {"data": data, "kind": kind, "methods": methods}
        return runner(work, [settings.job(*left_out, **own, seed=seed) for seed in seeds])

    first = settings.seed + settings.num_seeds
    chosen, rows = {}, {}
    for kind in settings.kinds:
        seeds = range(settings.seed, first)
        found = summary(arm(settings.choose_on, kind, seeds, METHODS), 1)
        chosen[f"{settings.choose_on}: {kind}"] = found
        likely = tuple(method for method in found if found[method]["is_likely"])
        if {"whole", "head"} & {*likely}:  # the others are there to compare with
            rows[kind] = likely
    runner.say(f"chosen: {rows}")
    num_tests = max(len(TESTS) * sum(map(len, rows.values())) * len(settings.confirm_on), 1)
    seeds = range(first, first + settings.num_confirm)
    confirmed = {
        f"{data}: {kind}": summary(arm(data, kind, seeds, methods), num_tests)
        for (kind, methods), data in product(rows.items(), settings.confirm_on)
    }
    return {"chosen": chosen, "confirmed": confirmed, "num_tests": num_tests}


# --- one seed


def data_of(name: str, seed: int, most: int) -> tuple[np.ndarray, ...]:
    """Training inputs and labels, test inputs and labels; inputs are sequences."""
    table: tuple[np.ndarray, ...]
    if name == "mnist1d":
        from mnist1d.data import get_dataset_args, make_dataset  # optional

        given = get_dataset_args()
        given.seed = seed
        made = make_dataset(given)
        table = (made["x"][..., None], made["y"], made["x_test"][..., None], made["y_test"])
    else:
        mnist = Path(os.environ.get("RIDGERIDER_DATA") or cache_folder("mnist"))
        fashion = str(mnist.resolve().parent / "fashion-mnist")  # next to MNIST
        images = images_of(fashion if name == "fashion" else name, seed)
        images = images.some(most, most, seed)
        table = (images.train_images, images.train_labels, images.test_images, images.test_labels)
        if table[0].shape[1] == 28:
            table = tuple(halved(of) if of.ndim == 3 else of for of in table)
    return tuple(of.astype(np.float32 if of.ndim > 1 else np.int32) for of in table)


def work(job: Job) -> dict[str, Any]:
    """Each method on one seed of one network."""
    inputs, labels, test, truth = data_of(job["data"], job["seed"], job["max_images"])
    random = np.random.default_rng([job["seed"], 1])
    noise = 0.5 * test.std() * random.normal(size=test.shape)
    length = max(1, round(test.shape[1] / 10))
    moved = {"noise": (test + noise).astype(np.float32), "shift": np.roll(test, length, axis=1)}
    layers, is_normalised = KINDS[job["kind"]]
    model = Network(layers, is_normalised)
    params = model.params(inputs.shape[1:], job["width"], jax.random.key(job["seed"]))
    head = rr.network_start(params, model, jnp.asarray(inputs), jnp.asarray(labels)).problem
    # The product of all layers is scaled by a hundredth, and the head by another one.
    small = 0.01 ** (1 / len(layers))
    near_zero = jax.tree.map(lambda leaf: small * leaf if leaf.ndim > 1 else leaf, params)
    size = {"rate": 3e-3, "target": TARGETS[job["data"]], **job}
    trials = {"head": Trial(size, head), "whole": Trial(size, head.with_start(near_zero))}
    found = {}
    for name in ("deep", *job["methods"]):
        if name == "whole" and is_normalised:
            continue
        made = trials.get(name, trials["head"]).make("ridges" if name in trials else name)
        found[name] = {
            "accuracy": made.scores(test, truth).accuracy,
            **{shift: made.scores(of, truth).disagreement for shift, of in moved.items()},
            "nll": made.scores(test, truth).nll,
            "work": made.work,
            "missed": sum(not member.is_at_target for member in made.members),
        }
    return found


@dataclass(frozen=True)
class Network:
    """Layers of a sequence, and a linear one that reads all of what comes out."""

    layers: tuple[str, ...]
    is_normalised: bool

    def params(self, shape: tuple[int, ...], width: int, key: PRNGKeyArray) -> PyTree:
        length, channels = shape
        found = []
        for layer in (*self.layers, "head"):
            if layer in ("dense", "head"):
                length, channels = 1, channels * length
            taps = {"conv": (3,), "attention": (4,)}.get(layer, ())
            size = (*taps, channels, 10 if layer == "head" else width)
            key, own = jax.random.split(key)
            weights = jax.random.normal(own, size, jnp.float32) / np.sqrt(np.prod(size[:-1]))
            vectors = {"bias": jnp.zeros(size[-1]), "scale": jnp.ones(size[-1])}
            found.append({"weights": weights, **vectors})
            length, channels = (length + 1) // 2 if layer == "conv" else length, width
        return [*found[:-1], {"weights": found[-1]["weights"], "bias": found[-1]["bias"]}]

    def __call__(self, params: PyTree, x: Array) -> Array:
        for layer, own in zip(self.layers, params[:-1], strict=True):
            weights = own["weights"]
            if layer == "attention":
                query, keys, value = (x @ one for one in weights[:3])
                scores = query @ jnp.swapaxes(keys, 1, 2) / np.sqrt(x.shape[-1])
                x = x + jax.nn.softmax(scores) @ value @ weights[3]
            elif layer == "conv":
                axes = ("NWC", "WIO", "NWC")
                x = jax.lax.conv_general_dilated(x, weights, (2,), "SAME", dimension_numbers=axes)
            else:
                x = (x.reshape(len(x), 1, -1) if layer == "dense" else x) @ weights
            x = x + own["bias"]
            if self.is_normalised:
                x = jax.nn.standardize(x) * own["scale"]
            x = x if layer == "attention" else jnp.tanh(x)
        return x.reshape(len(x), -1) @ params[-1]["weights"] + params[-1]["bias"]


def summary(runs: list[dict[str, Any]], num_tests: int) -> dict[str, Any]:
    """Each method against the deep ensemble."""
    found: dict[str, Any] = {}
    for name in METHODS:
        if name not in runs[0]:
            continue
        tests = {
            what: test([(one[name][what], one["deep"][what]) for one in runs], num_tests)
            for what, test in TESTS.items()
        }
        means = {what: dict.fromkeys(("low", "high"), one["mean"]) for what, one in tests.items()}
        found[name] = {
            **tests,
            "nll": float(np.mean([one[name]["nll"] - one["deep"]["nll"] for one in runs])),
            "seeds": len(runs),
            "missed": [
                float(np.mean([one[of]["missed"] for one in runs])) for of in (name, "deep")
            ],
            "is_likely": verdict(means, MOST_WORK) == "confirmed",
            "verdict": verdict(tests, MOST_WORK),
        }
    return found


def table(results: dict[str, Any]) -> str:
    def shown(one: dict[str, float], is_sure: bool, how: str, scale: float = 1.0) -> str:
        low, mean, high = (format(scale * one[name], how) for name in ("low", "mean", "high"))
        return f"{mean} ({low} to {high})" if is_sure else mean

    parts = []
    for stage in ("chosen", "confirmed"):
        rows, is_sure = [], stage == "confirmed"
        for name, arm in results[stage].items():
            for method, of in arm.items():
                is_so = of["verdict"] if is_sure else "yes" if of["is_likely"] else "no"
                rows.append(
                    [
                        *(name, method, of["seeds"]),
                        *(shown(of[what], is_sure, ".2f") for what in ("noise", "shift")),
                        shown(of["accuracy"], is_sure, "+.2f", 100),
                        f"{of['nll']:+.3f}",
                        shown(of["work"], is_sure, ".2f"),
                        " / ".join(f"{count:.1f}" for count in of["missed"]),
                        is_so,
                    ]
                )
        head = ["network", "method", "seeds", "disagreement, noise (times)", "shift (times)"]
        head += ["accuracy (points)", "NLL", "work (times)", "missed the target / deep"]
        parts.append(markdown([*head, "the claim" if is_sure else "chosen"], rows))
    return "\n".join(parts)
