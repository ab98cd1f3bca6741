"""Figure 5: the first ridge decides which digits are learned first.

    ridgerider reproduce mnist-diversity

Near zero the Hessian of a two-layer network has only as many distinct negative eigenvalues as the
cross-moment of labels and pixels has singular values, one less than there are classes, each
repeated once for every hidden unit. So there are nine first ridges to choose from, not hundreds:
raw indices 0 to 50 are all copies of the first, and further from zero the copies come apart. Both
are ridden until their curvature is gone (EndRide), from starts of several scales, several times on
other batches, and a permutation test asks whether the accuracies by digit depend on the ridge. Some
raw indices are ridden once more with the paper's own settings (S = 1 and steps of 2.32e-4) and
looked at in its windows, 200 to 600 and 4000 to 5000 steps.

Differs from the paper: one ridge for each distinct eigenvalue, as raw indices number copies in an
accidental basis; larger steps and an exact update, beside the paper's settings.
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import ridgerider as rr
from ridgerider.data import Images, images_of
from ridgerider.problems import classifier
from ridgerider.types import Cost, Ridge
from ridgerider_experiments.chain import RIDER, Point, chain, downhill_ridge, guesses
from ridgerider_experiments.runner import Base, Job, Runner, grouped, sized
from ridgerider_experiments.show import drawing, markdown

LABELS = {
    "clusters": "distinct ridges",
    "raw": "raw indices",
    "paper": "raw indices, the paper's settings",
}


@dataclass(frozen=True)
class Settings(Base):
    data: str = sized("mnist", quick="digits")  # or a folder
    max_images: int = sized(100_000, quick=2_000)  # of those for training, and of those for testing
    width: int = sized(128, quick=16)
    init_scale: float = 1e-3  # near enough to zero for copies to be copies
    batch_size: int = sized(1024, quick=512)
    look_size: int = sized(4096, quick=1400)  # images the first spectrum is computed on
    num_hvps: int = 80  # for the distinct ridges
    num_raw: int = sized(51, quick=16)  # raw indices; all are computed at once
    raw_every: int = sized(1, quick=4)  # that is ridden
    # Further scales of the start, and which raw index is ridden there.
    scales: tuple[float, ...] = sized((1e-2, 0.1), quick=(0.1,))
    scale_every: int = 5
    cluster_tolerance: float = 0.02
    num_repeats: int = sized(3, quick=2)
    num_steps: int = 60  # along the first ridge
    early: tuple[int, ...] = (30, 40, 50, 60)  # steps whose accuracies are averaged
    max_late_hvps: int = sized(600, quick=200)  # of the rides that follow
    num_permutations: int = sized(9_999, quick=999)
    # With the paper's settings; fewer than 4000 leave its late window out.
    paper_steps: int = sized(5000, quick=600)
    paper_every: int = sized(12, quick=8)  # raw index that is ridden
    paper_repeats: int = 2


def run(settings: Settings, runner: Runner) -> dict[str, Any]:
    distinct = scene_of(settings, settings.init_scale)[2]
    steps = {"raw": settings.raw_every, "paper": settings.paper_every}
    steps |= {str(scale): settings.scale_every for scale in settings.scales}
    every = {"clusters": list(distinct)}
    every |= {name: list(range(0, settings.num_raw, step)) for name, step in steps.items()}
    jobs = [
        settings.job(group=name, index=index, repeat=repeat)
        for name, indices in every.items()
        for index in indices
        for repeat in range(settings.paper_repeats if name == "paper" else settings.num_repeats)
    ]
    pairs = list(zip(jobs, runner(work, jobs), strict=True))
    groups = {}
    for name in every:
        own, done = zip(*(pair for pair in pairs if pair[0]["group"] == name), strict=True)
        groups[name] = compared(grouped(own, done, "index"), settings)
    draw(groups, runner.out)
    return {"groups": groups}


def compared(found: dict[int, list[dict[str, list[float]]]], settings: Settings) -> dict[str, Any]:
    """The accuracies of each first ridge, and whether they depend on it."""
    group: dict[str, Any] = {"indices": list(found)}
    for part, p_value in (("early", "p_value"), ("late", "late_p_value")):
        rows = [[one[part] for one in repeats if part in one] for repeats in found.values()]
        if rows[0]:
            group[part] = np.mean(rows, axis=1).tolist()
            group[p_value] = permutation_test(np.array(rows), settings)
    return group


@cache
def scene_of(
    settings: Settings, scale: float
) -> tuple[Images, rr.Problem, dict[int, Ridge], dict[int, Ridge]]:
    """The data, the network at its start, and the first ridges there: distinct ones, and all."""
    images = images_of(settings.data).some(settings.max_images, settings.max_images)
    start: Any = {"widths": (settings.width,), "init_scale": scale, "seed": settings.seed}
    problem = classifier(images.train_images, images.train_labels, **start)
    key = jax.random.key(settings.seed)
    on_batch = rr.Batches(settings.look_size)(problem, key, 0)
    distinct = distinct_ridges(settings, on_batch, key)
    return images, problem, distinct, raw_ridges(settings, on_batch, key)


def work(job: Job) -> dict[str, list[float]]:
    """One ride along one first ridge: accuracy by digit, early and late."""
    settings, group = Settings.of(job), job["group"]
    scale = settings.init_scale if group in LABELS else float(group)
    images, problem, distinct, raw = scene_of(settings, scale)
    if group != "clusters":
        settings = replace(settings, max_late_hvps=0)
    along = ride_paper if group == "paper" else ride
    ridge = (distinct if group == "clusters" else raw)[job["index"]]
    found = along(settings, problem, images, ridge, job["repeat"])
    return {part: accuracies.tolist() for part, accuracies in found.items()}


PIECE = 50  # steps of the paper's between two looks
WINDOWS = {"early": (200, 600), "late": (4000, 5000)}  # the paper's


def ride_paper(
    settings: Settings, problem: rr.Problem, images: Images, ridge: Ridge, repeat: int
) -> dict[str, np.ndarray]:
    """Accuracy by digit in the paper's windows that were reached, with its settings."""
    rider = rr.Rider(
        update=rr.Residual(num_steps=1, direction_rate=3.20e-6, eigenvalue_rate=0.00055),
        step=rr.FixedStep(0.000232),
        batch=rr.Batches(min(2824, problem.num_examples)),
        stop=(rr.not_finite,),
        finish=None,
        max_steps=PIECE,
    )
    x, seen = problem.x0, defaultdict[str, list[np.ndarray]](list)
    for step in range(PIECE, settings.paper_steps + 1, PIECE):
        key = jax.random.fold_in(jax.random.key(1000 * settings.seed + repeat), step)
        done = _ride_on(rider, problem, x, ridge, key)
        x, ridge = done.x, done.ridge
        for name, (first, last) in WINDOWS.items():
            if first <= step <= last:
                seen[name].append(by_digit(problem, x, images))
    return {name: np.mean(rows, axis=0) for name, rows in seen.items()}


_ride_on = eqx.filter_jit(rr.Rider.ride)


def distinct_ridges(
    settings: Settings, on_batch: rr.Problem, key: PRNGKeyArray
) -> dict[int, Ridge]:
    """One ridge per distinct eigenvalue, which points downhill."""
    lowest = rr.BlockSpectrum.for_networks(
        k=settings.num_hvps // 2,
        max_hvps=settings.num_hvps,
        cluster_tolerance=settings.cluster_tolerance,
    )
    spectrum = eqx.filter_jit(lowest)(on_batch, on_batch.x0, key)
    return {index: spectrum.ridge(index) for index in range(spectrum.num_downhill())}


def raw_ridges(settings: Settings, on_batch: rr.Problem, key: PRNGKeyArray) -> dict[int, Ridge]:
    """The paper's numbering: every eigenvector on its own.

    All of them from one space, so that index 50 costs no more than the others: 51 pairs at once.
    """
    lowest = rr.BlockSpectrum(k=settings.num_raw, tolerance=1e-2)
    spectrum, grad = eqx.filter_jit(lowest)(on_batch, on_batch.x0, key), on_batch.grad(on_batch.x0)
    return {
        row: downhill_ridge(spectrum, jnp.asarray(row), grad) for row in range(settings.num_raw)
    }


def ride(
    settings: Settings, problem: rr.Problem, images: Images, ridge: Ridge, repeat: int
) -> dict[str, np.ndarray]:
    """Accuracy by digit, early and, with more rides, late."""
    then = replace(RIDER, correct=rr.Valley(), batch=rr.Batches(settings.batch_size))
    first = replace(then, correct=None, max_steps=settings.num_steps, keep_path=True)
    key = jax.random.key(1000 * settings.seed + repeat)
    done = _ride_on(first, problem, problem.x0, ridge, key)
    path = done.trace.path
    assert path is not None
    early = np.minimum(settings.early, int(done.num_steps))  # a ride that ended stays where it is
    found = {"early": np.mean([by_digit(problem, path[step], images) for step in early], 0)}
    if settings.max_late_hvps:
        points = chain(problem, then, start=Point(done.x, done.x, Cost()), seed=repeat)
        end = next(point for point in points if point.cost.hvps >= settings.max_late_hvps)
        found["late"] = by_digit(problem, end.x, images)
    return found


def by_digit(problem: rr.Problem, x: Array, images: Images) -> Float[np.ndarray, " classes"]:
    labels = images.test_labels
    is_right = np.asarray(guesses(problem, x, jnp.asarray(images.test_images))) == labels
    return np.array([is_right[labels == digit].mean() for digit in range(images.num_classes)])


def permutation_test(
    accuracies: Float[np.ndarray, "ridges repeats digits"], settings: Any
) -> float:
    """How often runs dealt to ridges at random differ as much between ridges as they did.

    The statistic is the variance between ridges, summed over digits.
    """
    random = np.random.default_rng(settings.seed)
    runs = accuracies.reshape(-1, accuracies.shape[-1])

    def between(order: np.ndarray) -> float:
        return float(runs[order].reshape(accuracies.shape).mean(axis=1).var(axis=0).sum())

    observed = between(np.arange(len(runs)))
    # Rounding must not make a dealing that equals the observed one smaller.
    as_large = [
        between(random.permutation(len(runs))) >= observed * (1 - 1e-12)
        for _ in range(settings.num_permutations)
    ]
    return (1 + sum(as_large)) / (1 + len(as_large))


def draw(groups: dict[str, Any], out: Path) -> None:
    with drawing(out / "mnist-diversity", 4 * len(groups), 6, 2, len(groups)) as axes:
        for column, (name, group) in zip(axes.T, groups.items(), strict=True):
            for ax, part in zip(column, ("early", "late"), strict=True):
                if part not in group:  # the ride had fewer steps
                    ax.set_axis_off()
                    continue
                matrix, indices = np.asarray(group[part]).T, group["indices"]
                image = ax.imshow(matrix, cmap="cividis", vmin=0, vmax=1, aspect="auto")
                every = -(-len(indices) // 12)
                ax.set_xticks(range(0, len(indices), every), indices[::every])
                ax.set_yticks(range(len(matrix)))
                ax.set(xlabel="index of the first ridge", ylabel=f"digit, {part}")
            column[0].set_title(label_of(name))
        axes[0, 0].figure.colorbar(image, ax=axes, label="test accuracy", shrink=0.7)


def label_of(group: str) -> str:
    return LABELS.get(group, f"raw indices, start {group}")


def table(results: dict[str, Any]) -> str:
    groups = {label_of(name): of for name, of in results["groups"].items()}
    counts = [len(of["indices"]) for of in groups.values()]
    rows: list[list[Any]] = [["first ridges", "indices up to about 50", *counts]]
    for name, part in (("early", "p_value"), ("late", "late_p_value")):
        cells = [f"{of[part]:.4f}" if part in of else "not ridden" for of in groups.values()]
        rows.append([f"digits depend on the ridge, {name}: p", "(picture)", *cells])
    for name in ("early", "late"):
        of_each = groups.values()
        means = [f"{100 * np.mean(of[name]):.1f} %" if name in of else "-" for of in of_each]
        rows.append([f"mean test accuracy, {name}", "", *means])
    text = markdown(["", "paper", *groups], rows)
    for name, of in groups.items():
        best = [int(np.argmax(row)) for row in of["early"]]
        words = [f"{index}: {digit}" for index, digit in zip(of["indices"], best, strict=True)]
        if len(set(best)) == 1:
            words = [f"{best[0]} on all"]
        text += f"\nBest digit early, {name}: {', '.join(words)}.\n"
    return text
