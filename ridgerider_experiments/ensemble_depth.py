"""Where ensembles along ridges are more diverse than deep ones: depth, data, and kind of start.

    ridgerider reproduce ensemble-depth

Dense tanh networks of one to three hidden layers are trained by Adam to one training loss, from
each kind of beginning, on paired seeds:

- whole: ridges of a start with all weights near zero, one straight step along each;
- head: ridges of `rr.network_start`, whose last layer alone is small;
- own: a random initialisation for each member, its last layer scaled as for `head`, and one
  straight step along a ridge of that start, another one for each member;
- deep: random initialisations.

The claim: members disagree more under noise and under a shift, accuracy is not lower by half a
point, and the work is at most 1.5 times as much. `holds` and `fails` are 95 % intervals over seeds,
corrected for the number of tests in the table (Bonferroni).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import PRNGKeyArray

import ridgerider as rr
from ridgerider.data import digits
from ridgerider.ensembles import AlongRidges, Beginning, Fresh
from ridgerider.problems import classifier
from ridgerider_experiments.ensembles import difference, ratio
from ridgerider_experiments.settings import Base, sized
from ridgerider_experiments.show import markdown
from ridgerider_experiments.sweep import Job, run_jobs

STARTS = ("whole", "head", "own")
TARGETS = {"digits": 0.1, "mnist1d": 0.5}  # training losses
MARGIN, MOST_WORK = 0.005, 1.5


@dataclass(frozen=True)
class Settings(Base):
    data_sets: tuple[str, ...] = sized(("digits", "mnist1d"), quick=("digits",))
    depths: tuple[int, ...] = sized((1, 2, 3), quick=(1,))
    num_seeds: int = sized(5, quick=2)
    width: int = sized(48, quick=12)
    num_members: int = 4
    max_epochs: int = sized(150, quick=40)
    workers: int = 1


def run(settings: Settings, out: Path, say: Callable[[str], None] = print) -> dict[str, Any]:
    jobs = [
        settings.job(
            *("data_sets", "depths", "num_seeds"),
            data=data,
            depth=depth,
            seed=settings.seed + number,
        )
        for number in range(settings.num_seeds)
        for data in settings.data_sets
        for depth in settings.depths
    ]
    done = run_jobs(work, jobs, out / "ensemble-depth.jsonl", settings.workers, say)
    arms: dict[str, list[dict[str, Any]]] = {}
    for job, result in zip(jobs, done, strict=True):
        arms.setdefault(f"{job['data']}, {job['depth']}", []).append(result)
    num_tests = 4 * len(arms) * len(STARTS)
    return {"arms": {name: summary(of, num_tests) for name, of in arms.items()}}


def data_of(name: str, seed: int) -> tuple[np.ndarray, ...]:
    """Training inputs and labels, test inputs and labels."""
    if name == "digits":
        images = digits(seed)
        flat = [of.reshape(len(of), -1) for of in (images.train_images, images.test_images)]
        return flat[0], images.train_labels, flat[1], images.test_labels
    from mnist1d.data import get_dataset_args, make_dataset  # optional

    given = get_dataset_args()
    given.seed = seed
    made = make_dataset(given)
    table = (made["x"], made["y"], made["x_test"], made["y_test"])
    return tuple(of.astype(np.float32 if of.ndim > 1 else np.int32) for of in table)


def work(job: Job) -> dict[str, Any]:
    """Each kind of beginning on one seed of one network."""
    inputs, labels, test, truth = data_of(job["data"], job["seed"])
    random = np.random.default_rng([job["seed"], 1])
    moved = {
        "noise": (test + 0.3 * random.normal(size=test.shape)).astype(np.float32),
        "shift": np.roll(test, 1 if job["data"] == "digits" else 2, axis=1),
    }
    widths = (job["width"],) * job["depth"]
    scale = 1e-3 ** (1 / job["depth"])
    near_zero = classifier(inputs, labels, widths=widths, init_scale=scale, seed=job["seed"])
    key = jax.random.key(job["seed"])
    apply = near_zero.loss.logits  # type: ignore[attr-defined]
    params = near_zero.unravel(next(Fresh()(near_zero, key)).x)
    head = rr.network_start(params, apply, near_zero.args[0], near_zero.args[1]).problem
    begins: dict[str, Any] = {
        "whole": (near_zero, AlongRidges()),
        "head": (head, AlongRidges()),
        "own": (head, own_ridges),
        "deep": (head, Fresh()),
    }
    finish = rr.Train(
        jax.tree_util.Partial(optax.adam, 3e-3),
        rr.Batches(128),
        epochs=job["max_epochs"],
        target=TARGETS[job["data"]],
    )
    found = {}
    for name, (problem, begin) in begins.items():
        made = rr.ensemble(
            problem, job["num_members"], apply=apply, finish=finish, begin=begin, seed=job["seed"]
        )
        found[name] = {
            "accuracy": made.scores(test, truth).accuracy,
            **{shift: made.scores(of, truth).disagreement for shift, of in moved.items()},
            "work": made.work,
            "missed": sum(not member.is_at_target for member in made.members),
        }
    return found


def own_ridges(problem: rr.Problem, key: PRNGKeyArray) -> Iterator[Beginning]:
    """A start of its own for each member, and another ridge of each."""
    fresh = Fresh()(problem, key)
    for number in count():
        params = problem.unravel(next(fresh).x)
        params[-1] = jax.tree.map(lambda leaf: 0.01 * leaf, params[-1])
        there = problem.with_start(params)
        steps = AlongRidges()(there, jax.random.fold_in(key, number))
        step = list(islice(steps, 1 + number % 4))[-1]
        yield Beginning(f"own {number}", step.x, step.work, step.cost, step.how)


def summary(runs: list[dict[str, Any]], num_tests: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in STARTS:
        pairs = {
            what: [(one[name][what], one["deep"][what]) for one in runs]
            for what in ("accuracy", "noise", "shift", "work")
        }
        tests = {
            what: (difference if what == "accuracy" else ratio)(of, num_tests)
            for what, of in pairs.items()
        }
        found[name] = {
            **tests,
            "seeds": len(runs),
            "missed": float(np.mean([one[name]["missed"] for one in runs])),
            "missed_deep": float(np.mean([one["deep"]["missed"] for one in runs])),
        }
        found[name]["verdict"] = verdict(tests)
    return found


def verdict(tests: dict[str, dict[str, float]]) -> str:
    parts = [
        *((tests[name]["low"] > 1, tests[name]["high"] <= 1) for name in ("noise", "shift")),
        (tests["accuracy"]["low"] > -MARGIN, tests["accuracy"]["high"] <= -MARGIN),
        (tests["work"]["high"] <= MOST_WORK, tests["work"]["low"] > MOST_WORK),
    ]
    if all(holds for holds, _ in parts):
        return "holds"
    return "fails" if any(fails for _, fails in parts) else "undecided"


def table(results: dict[str, Any]) -> str:
    def shown(one: dict[str, float], how: str, scale: float = 1.0) -> str:
        low, mean, high = (format(scale * one[name], how) for name in ("low", "mean", "high"))
        return f"{mean} ({low} to {high})"

    rows = []
    for name, arm in results["arms"].items():
        for start in STARTS:
            of = arm[start]
            rows.append(
                [
                    *(name, start, of["seeds"]),
                    *(shown(of[what], ".2f") for what in ("noise", "shift")),
                    shown(of["accuracy"], "+.2f", 100),
                    f"{of['work']['mean']:.2f}",
                    f"{of['missed']:.1f} / {of['missed_deep']:.1f}",
                    of["verdict"],
                ]
            )
    head = ["data, hidden layers", "ridges of", "seeds", "disagreement, noise (times)"]
    head += ["shift (times)", "accuracy (points)", "work (times)", "missed the target / deep"]
    return markdown([*head, "the claim"], rows)
