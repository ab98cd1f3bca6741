"""Ensembles along ridges against deep ensembles, under shifts and at equal loss.

    ridgerider reproduce ensembles

The claim: ensembles from distinct ridges are more diverse than deep ensembles, at equal accuracy
and at most twice the cost. Every method trains as many networks with the same optimizer to the same
training loss (snapshots and repulsion, which are trained together, for as many epochs). Seeds are
paired: each draws the images, the shifts and every start. The recipe was found on seeds 0 and 1 of
the digits and its length chosen on seeds 1000 to 1003; other seeds are evidence.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PRNGKeyArray, PyTree
from scipy import ndimage

import ridgerider as rr
from ridgerider.data import images_of
from ridgerider.ensembles import AlongRidges, Beginning, Fresh, RandomDirections
from ridgerider.problems import classifier
from ridgerider_experiments.runner import Base, Job, Runner, grouped, interval, sized
from ridgerider_experiments.show import drawing, markdown

METHODS = {
    "ridges": ("ridges, one straight step", "#D55E00"),
    "ridden": ("ridges, followed", "#E69F00"),
    "algorithm_2": ("ridges, followed by Algorithm 2", "#F0E442"),
    "deep": ("deep ensemble", "#0072B2"),
    "deep_budget": ("deep ensemble, work of the ridges", "#56B4E9"),
    "random": ("random directions, same length", "#333333"),
    "repulsive": ("repulsion of predictions", "#CC79A7"),
}
# Penalties for members that are trained together, on predictions (members, examples, classes).
PENALTIES: dict[str, Callable[[Array], Array]] = {
    # How alike two members' predictions are.
    "repulsive": lambda guesses: (
        jnp.mean(jnp.sum(jnp.sum(guesses, axis=0) ** 2 - jnp.sum(guesses**2, axis=0), axis=-1))
        / (len(guesses) * (len(guesses) - 1))
    ),
    # Negative correlation (Liu and Yao, 1999): minus the spread around the mean prediction.
    "correlated": lambda guesses: (
        -jnp.mean(jnp.sum((guesses - jnp.mean(guesses, axis=0, keepdims=True)) ** 2, axis=-1))
    ),
}
CLAIM = ("ridges", "deep")
SHIFTS = ("noise", "shift", "rotation")
SETS = ("clean", *SHIFTS)
MARGIN = 0.005  # accuracies that are lower by less than this are equal
MOST_COST = 2.0  # of ridges, in units of a deep ensemble's
INIT_SCALE = 1e-3  # near enough to zero for distinct ridges


@dataclass(frozen=True)
class Size:
    """What differs between the small digits and larger images."""

    widths: tuple[int, ...]  # an arm for each
    num_seeds: int  # for the claim
    num_members: int
    rate: float  # of Adam
    target: float  # training loss that all are trained to
    methods: tuple[str, ...]


@dataclass(frozen=True)
class Settings(Base):
    # The small digits and MNIST; or a folder.
    data: str = sized("all", quick="digits")
    small: Size = sized(
        Size((16, 64), 100, 8, 3e-3, 0.05, tuple(METHODS)),
        quick=Size((16,), 2, 4, 3e-3, 0.2, ("ridges", "deep", "random")),
    )
    large: Size = sized(  # any methods; they take minutes
        Size((128,), 40, 6, 1e-3, 0.1, CLAIM), quick=Size((16,), 2, 4, 1e-3, 0.3, CLAIM)
    )
    num_baseline_seeds: int = sized(5, quick=1)  # for methods that are no part of the claim
    max_images: int = sized(10_000, quick=2_000)  # for training
    max_test_images: int = sized(10_000, quick=1_000)
    max_epochs: int = sized(300, quick=60)


def run(settings: Settings, runner: Runner) -> dict[str, Any]:
    """Every method on every seed; what is done is kept and not done again."""
    done = runner(work, jobs_of(settings))
    runs = grouped(done, done, "arm")
    results = {"arms": {name: summary(of, len(runs)) for name, of in runs.items()}, "runs": done}
    draw(results, runner.out)
    return results


def jobs_of(settings: Settings) -> list[Job]:
    """What decides the result of each seed of each arm, and nothing else."""
    jobs = []
    for data in ("digits", "mnist") if settings.data == "all" else (settings.data,):
        size = settings.small if data == "digits" else settings.large
        for width, number in product(size.widths, range(size.num_seeds)):
            methods = size.methods if number < settings.num_baseline_seeds else CLAIM
            own = {"data": data, "width": width, "methods": list(methods)}
            own |= {part: getattr(size, part) for part in ("num_members", "rate", "target")}
            left_out = ("small", "large", "num_baseline_seeds")
            jobs.append(settings.job(*left_out, **own, seed=settings.seed + number))
    return jobs


# --- one seed


def work(job: Job) -> dict[str, Any]:
    """All methods on one seed of one arm."""
    data, seed = job["data"], job["seed"]
    images = images_of(data, seed)
    if data != "digits":
        images = images.some(job["max_images"], job["max_test_images"], seed)
    start: Any = {"widths": (job["width"],), "init_scale": INIT_SCALE, "seed": seed}
    start["num_classes"] = images.num_classes
    trial = Trial(job, classifier(images.train_images, images.train_labels, **start))
    sets = shifted(images.test_images, seed)
    labels = images.test_labels
    methods = {name: judge(trial.make(name), sets, labels) for name in job["methods"]}
    return {"arm": f"{images.name}, {job['width']} hidden units", "seed": seed, "methods": methods}


class Trial:
    """The networks of every method, from one seed and one start."""

    def __init__(self, job: Job, problem: rr.Problem):
        self.seed, self.k, self.rate = job["seed"], job["num_members"], job["rate"]
        self.problem = problem
        self.finish = rr.Train(
            jax.tree_util.Partial(optax.adam, self.rate),
            rr.Batches(128),
            epochs=job["max_epochs"],
            target=job["target"],
        )
        self.made: dict[str, rr.Ensemble] = {}
        self.begins: dict[str, Any] = {
            "ridges": AlongRidges(),
            "ridden": AlongRidges(rr.Rider.for_networks(max_steps=20)),
            "algorithm_2": AlongRidges(
                rr.Rider(
                    update=rr.Residual(num_steps=10),
                    step=rr.FixedStep(0.2),
                    batch=rr.Batches(512, kind="fixed"),
                    stop=(rr.curvature_gone, rr.not_finite),
                    finish=None,
                    max_steps=20,
                )
            ),
            "deep": Fresh(),
        }

    def make(self, name: str) -> rr.Ensemble:
        if name == "deep_budget":
            made = self.made["ridges"].deep(budget=self.made["ridges"].work)
        elif name in PENALTIES:
            made = self.together(name)
        else:
            begin = self.random_directions() if name == "random" else self.begins[name]
            made = rr.ensemble(
                self.problem, self.k, finish=self.finish, begin=begin, seed=self.seed
            )
        self.made[name] = made
        return made

    def random_directions(self) -> RandomDirections:
        """As long as the straight steps along ridges."""
        ridges = self.begins["ridges"](self.problem, jax.random.key(self.seed))
        lengths = [
            float(jnp.linalg.norm(one.x - self.problem.x0)) for one in islice(ridges, self.k)
        ]
        return RandomDirections(round(float(np.mean(lengths)), 3))

    def together(self, name: str) -> rr.Ensemble:
        """All networks at once, with a penalty on their predictions."""
        like, key = self.made["deep"], jax.random.key(self.seed)
        starts = [one.x for one in islice(Fresh()(self.problem, key), self.k)]
        loss = Together(self.problem.loss, self.problem.start, name)
        together = rr.Problem(loss, jnp.stack(starts), *self.problem.args)
        # As many epochs as the deep ensemble took to its target.
        epochs = round(np.mean([len(one.history["loss"]) - 1 for one in like.members]))
        finish = rr.Train(self.finish.optimizer, rr.Batches(128), epochs=max(1, int(epochs)))
        begin = partial(_one, "all", together.x0)
        (joint,) = rr.ensemble(together, 1, finish=finish, begin=begin).members
        share = replace(joint, is_at_target=True)  # one pass of all of them is a pass of each
        members = [
            replace(share, name=f"{name} {number}", x=x)
            for number, x in enumerate(joint.x.reshape(self.k, -1))
        ]
        spent = {"cost": joint.cost, "work": self.k * joint.work}
        return replace(like, members=tuple(members), dropped={}, **spent)


def _one(name: str, x: Array, problem: rr.Problem, key: PRNGKeyArray) -> Any:
    yield Beginning(name, x)


class Together(eqx.Module):
    """The mean loss of many networks, with a penalty on their predictions."""

    loss: Any
    start: PyTree
    penalty: str = eqx.field(static=True)

    def __call__(self, xs: Array, images: Array, labels: Array) -> Array:
        losses = jax.vmap(lambda x: self.loss(self._params(x), images, labels))(xs)
        guesses = jax.nn.softmax(self._logits(xs, images))
        return jnp.mean(losses) + PENALTIES[self.penalty](guesses)

    def logits(self, xs: Array, images: Array) -> Array:
        return jnp.mean(self._logits(xs, images), axis=0)

    def _logits(self, xs: Array, images: Array) -> Array:
        return jax.vmap(lambda x: self.loss.logits(self._params(x), images))(xs)

    def _params(self, x: Array) -> PyTree:
        return ravel_pytree(self.start)[1](x)


# --- images


def shifted(images: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Clean, with noise, shifted to the right by a tenth of the width, turned by 30 degrees."""
    random, size = np.random.default_rng([seed, 1]), images.shape[-1]
    pixels = max(1, round(size / 10))
    noise = random.normal(size=images.shape) * (0.3 if size < 16 else 0.5)
    moved = np.zeros_like(images)
    moved[..., pixels:] = images[..., :-pixels]
    turned = ndimage.rotate(images, 30, axes=(1, 2), reshape=False, order=1)
    found = (images, np.clip(images + noise, 0, 1), moved, np.clip(turned, 0, 1))
    return {name: one.astype(np.float32) for name, one in zip(SETS, found, strict=True)}


def jumbled(images: np.ndarray) -> np.ndarray:
    """With the quarters exchanged across: the pixels of digits, but no digits."""
    half = images.shape[1] // 2, images.shape[2] // 2
    return np.roll(images, half, axis=(1, 2))


def judge(made: rr.Ensemble, sets: dict[str, np.ndarray], labels: np.ndarray) -> dict[str, Any]:
    scores: dict[str, Any] = {name: asdict(made.scores(of, labels)) for name, of in sets.items()}
    return {
        **scores,
        "auroc": {"jumbled": made.auroc(sets["clean"], jumbled(sets["clean"]))},
        "members": len(made),
        "missed_target": sum(not member.is_at_target for member in made.members),
        "work": made.work,
    }


# --- statistics


def summary(runs: list[dict[str, Any]], num_arms: int) -> dict[str, Any]:
    """Means of every method, and ridges against the deep ensemble with simultaneous intervals."""
    methods = {}
    for name in runs[0]["methods"]:
        of = [run["methods"][name] for run in runs if name in run["methods"]]
        methods[name] = {**_mean(of), "num_seeds": len(of)}
    num_tests = num_arms * (len(SHIFTS) + 2)

    def pairs(*path: str) -> list[Any]:
        """What stands under these names, of ridges and of the deep ensemble."""
        of_each = [[run["methods"][name] for name in CLAIM] for run in runs]
        for part in path:
            of_each = [[one[part] for one in pair] for pair in of_each]
        return of_each

    claim = {
        **{
            f"disagreement, {name}": ratio(pairs(name, "disagreement"), num_tests)
            for name in SHIFTS
        },
        "accuracy": difference(pairs("clean", "accuracy"), num_tests),
        "work": ratio(pairs("work"), num_tests),
    }
    found = {"num_seeds": len(runs), "methods": methods, "claim": claim, "num_tests": num_tests}
    return {**found, "verdict": verdict(claim)}


def difference(pairs: list[tuple[float, float]], num_tests: int = 1) -> dict[str, float]:
    return interval([one - two for one, two in pairs], num_tests)


def ratio(pairs: list[tuple[float, float]], num_tests: int = 1) -> dict[str, float]:
    """The geometric mean of ratios, with the interval of their logarithms."""
    logs = [math.log(max(one, 1e-6) / max(two, 1e-6)) for one, two in pairs]
    return {name: math.exp(min(of, 700)) for name, of in interval(logs, num_tests).items()}


def verdict(claim: dict[str, dict[str, float]], most_work: float = MOST_COST) -> str:
    """Confirmed if each part of the claim is, refuted if one part is, else undecided."""
    parts = {part_verdict(what, one, most_work) for what, one in claim.items()}
    if parts == {"yes"}:
        return "confirmed"
    return "refuted" if "no" in parts else "undecided"


def part_verdict(what: str, one: dict[str, float], most_work: float = MOST_COST) -> str:
    """Whether one part of the claim holds."""
    if what == "work":
        holds, fails = one["high"] <= most_work, one["low"] > most_work
    else:
        bound = -MARGIN if what == "accuracy" else 1
        holds, fails = one["low"] > bound, one["high"] <= bound
    return "yes" if holds else "no" if fails else "undecided"


def _mean(of: list[Any]) -> Any:
    """The mean of numbers, inside dictionaries as well."""
    if isinstance(of[0], dict):
        return {name: _mean([one[name] for one in of if name in one]) for name in of[0]}
    return float(np.mean(of)) if isinstance(of[0], int | float) else of[0]


# --- what is shown


def draw(results: dict[str, Any], out: Path) -> None:
    arms = results["arms"]
    size = (3.4 * len(arms) + 1.6, 3.6)
    with drawing(out / "ensembles", *size, 1, len(arms), squeeze=False) as (axes,):
        for ax, (name, of) in zip(axes, arms.items(), strict=True):
            for number, (method, scores) in enumerate(of["methods"].items()):
                label, color = METHODS[method]
                apart = [scores[shift]["disagreement"] for shift in SHIFTS]
                places = np.arange(len(SHIFTS)) + 0.08 * (number - len(of["methods"]) / 2)
                ax.plot(apart, places, "o", color=color, label=label)
            ax.set_yticks(range(len(SHIFTS)), SHIFTS)
            ax.set(xlabel="disagreement of two members", xlim=(0, None))
            ax.set_title(f"{name}: {of['verdict']}", fontsize=9)
            ax.grid(alpha=0.25, axis="x")
        most = max(axes, key=lambda ax: len(ax.get_legend_handles_labels()[0]))
        axes[0].figure.legend(*most.get_legend_handles_labels(), loc="outside right upper")


def table(results: dict[str, Any]) -> str:
    return "\n".join(part for name, of in results["arms"].items() for part in _arm_lines(name, of))


def _arm_lines(name: str, of: dict[str, Any]) -> list[str]:
    methods, rows = of["methods"], []
    for what, one in of["claim"].items():
        if what == "accuracy":
            low, mean, high = (f"{100 * one[part]:+.3g}" for part in ("low", "mean", "high"))
            cells = [f"{mean} points", f"{low} to {high}", "above -0.50 points"]
        else:
            cells = [f"{one['mean']:.3g} times", f"{one['low']:.3g} to {one['high']:.3g}"]
            cells.append("at most 2" if what == "work" else "above 1")
        rows.append([what, *cells, part_verdict(what, one)])
    deep, scored = methods["deep"]["work"], []
    for method, scores in methods.items():
        clean, shifts = scores["clean"], [scores[shift] for shift in SHIFTS]
        scored.append(
            [
                *(METHODS[method][0], scores["num_seeds"], f"{scores['members']:.3g}"),
                f"{100 * clean['accuracy']:.2f} %",
                " / ".join(f"{one['disagreement']:.3f}" for one in shifts),
                " / ".join(f"{100 * one['accuracy']:.1f}" for one in shifts),
                " / ".join(f"{one['nll']:.3f}" for one in (clean, *shifts)),
                f"{clean['calibration_error']:.3f}",
                ", ".join(f"{where} {value:.3f}" for where, value in scores["auroc"].items()),
                f"{scores['work'] / deep:.2f}",
            ]
        )
    head = ["method", "seeds", "members", "accuracy", "disagreement (noise / shift / rotation)"]
    head += ["accuracy so", "NLL, clean and so", "calibration error", "AUROC", "work"]
    missed = {METHODS[m][0]: scores["missed_target"] for m, scores in methods.items()}
    late = ", ".join(f"{name} {count:.2g}" for name, count in missed.items() if count)
    return [
        f"### {name}: the claim is {of['verdict']}\n",
        f"Ridges against the deep ensemble, {of['num_seeds']} paired seeds; the intervals hold "
        f"with 95 % for all {of['num_tests']} tests of the claim at once.\n",
        markdown(["the claim", "ridges against deep", "interval", "wanted", "is it so?"], rows),
        markdown(head, scored),
        f"Members that did not reach the target, mean over seeds: {late or 'none'}. Work is in "
        "units of the deep ensemble's.\n",
    ]
