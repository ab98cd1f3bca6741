"""The experiment with ensembles: its statistics, its shifts, its words."""

import dataclasses
import itertools
import json
import math
from pathlib import Path

import jax
import numpy as np
import pytest

from ridgerider.data import digits
from ridgerider.problems import classifier
from ridgerider_experiments import ensemble_depth, ensembles
from ridgerider_experiments.runner import Runner, interval


def claim(ratio=(1.2, 1.5), accuracy=(-0.001, 0.001), work=(1.1, 1.5)):
    def between(low, high):
        return {"mean": (low + high) / 2, "low": low, "high": high}

    shifts = {f"disagreement, {name}": between(*ratio) for name in ensembles.SHIFTS}
    return {**shifts, "accuracy": between(*accuracy), "work": between(*work)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "confirmed"),
        ({"ratio": (0.9, 1.5)}, "undecided"),
        ({"ratio": (0.5, 0.9)}, "refuted"),
        ({"accuracy": (-0.01, 0.01)}, "undecided"),
        ({"accuracy": (-0.02, -0.01)}, "refuted"),
        ({"accuracy": (0.01, 0.02)}, "confirmed"),
        ({"work": (1.5, 2.5)}, "undecided"),
        ({"work": (2.1, 2.5)}, "refuted"),
        ({"ratio": (math.nan, math.nan)}, "undecided"),
    ],
)
def test_the_claim_is_confirmed_refuted_or_undecided(changes, expected):
    assert ensembles.verdict(claim(**changes)) == expected


def test_intervals_hold_for_all_tests_at_once():
    # 400 times twelve intervals of noise: all twelve hold together in 95 % of them, or more.
    random, num_tests = np.random.default_rng(0), 12
    found = [
        all(
            one["low"] <= 0 <= one["high"]
            for one in (interval(list(random.normal(size=6)), num_tests) for _ in range(num_tests))
        )
        for _ in range(400)
    ]
    assert np.mean(found) > 0.95 - 3 * math.sqrt(0.05 * 0.95 / 400)
    ratio = ensembles.ratio([(2.0, 1.0), (8.0, 1.0)])
    assert ratio["mean"] == pytest.approx(4) and ratio["low"] < 1 < ratio["high"]


def test_shifts_and_jumbled_images():
    images = digits().test_images
    sets = ensembles.shifted(images, 0)
    np.testing.assert_array_equal(sets["clean"], images)
    np.testing.assert_array_equal(sets["shift"][:, :, 1:], images[:, :, :-1])
    assert not sets["shift"][:, :, 0].any()
    assert all(one.min() >= 0 and one.max() <= 1 for one in sets.values())
    np.testing.assert_array_equal(sets["noise"], ensembles.shifted(images, 0)["noise"])
    mixed = ensembles.jumbled(images)
    np.testing.assert_array_equal(mixed[:, :4, :4], images[:, 4:, 4:])
    np.testing.assert_array_equal(ensembles.jumbled(mixed), images)


def made_up_run(seed):
    random = np.random.default_rng(seed)

    def method(disagreement):
        numbers = {"accuracy": 0.9, "member_accuracy": 0.9, "nll": 0.3, "calibration_error": 0.1}
        sets = {
            name: {**numbers, "disagreement": disagreement * random.uniform(0.95, 1.05)}
            for name in ensembles.SETS
        }
        about = {"members": 4, "dropped": {}, "missed_target": 0, "epochs": 3.0}
        return {**sets, **about, "auroc": {"jumbled": 0.8}, "work": 5.0, "seconds": 1.0}

    methods = {"ridges": method(0.3), "deep": method(0.2)}
    return {"arm": "made up, 3 hidden units", "seed": seed, "methods": methods}


def test_table_and_figure(tmp_path):
    runs = [made_up_run(seed) for seed in range(5)]
    results = {"arms": {runs[0]["arm"]: ensembles.summary(runs, 1)}, "runs": runs}
    table = ensembles.table(results)
    assert "### made up, 3 hidden units: the claim is confirmed" in table
    assert "| accuracy | +0 points | +0 to +0 | above -0.50 points | yes |" in table
    assert "| work | 1 times | 1 to 1 | at most 2 | yes |" in table
    ensembles.draw(results, tmp_path)
    assert (tmp_path / "ensembles.png").stat().st_size > 10_000
    json.dumps(results)


@pytest.mark.parametrize("experiment", [ensembles, ensemble_depth])
def test_the_table_of_the_documentation_is_the_commands(experiment):
    """A file of `docs/images` is what the command wrote to results.json, without the runs."""
    docs, name = Path(__file__).parents[2] / "docs", experiment.__name__.rpartition(".")[2]
    results = json.loads((docs / "images" / f"{name.replace('_', '-')}.json").read_text())
    assert experiment.table(results) in (docs / "results-ensembles.md").read_text()
    for of in results["arms"].values() if experiment is ensembles else ():
        assert of["verdict"] == ensembles.verdict(of["claim"])


def test_arms_are_those_of_the_data():
    def arms(settings):
        jobs = ensembles.jobs_of(settings)
        return list(dict.fromkeys((job["data"], job["width"]) for job in jobs))

    settings = ensembles.Settings()
    assert arms(settings) == [("digits", 16), ("digits", 64), ("mnist", 128)]
    assert arms(dataclasses.replace(settings, data="some/folder")) == [("some/folder", 128)]


def test_later_seeds_have_the_methods_of_the_claim_only():
    jobs = ensembles.jobs_of(ensembles.Settings())
    first, later = (jobs[number]["methods"] for number in (0, 9))
    assert first == list(ensembles.METHODS) and set(later) == set(ensembles.CLAIM)


@pytest.mark.parametrize("name", list(ensembles.PENALTIES))
def test_members_together_have_the_mean_loss_and_a_penalty(name):
    images = digits().some(60, 10)
    problem = classifier(images.train_images, images.train_labels, widths=(3,), num_classes=10)
    xs = np.random.default_rng(0).normal(size=(3, problem.size)).astype(np.float32)
    together = ensembles.Together(problem.loss, problem.start, name)
    guesses = np.stack(
        [jax.nn.softmax(problem.loss.logits(problem.unravel(x), problem.args[0])) for x in xs]
    )
    pairs = [np.mean(np.sum(one * two, 1)) for one, two in itertools.combinations(guesses, 2)]
    spread = np.mean(np.sum((guesses - guesses.mean(0)) ** 2, axis=2))
    expected = {"repulsive": np.mean(pairs), "correlated": -spread}[name]
    expected += np.mean([float(problem.value(x)) for x in xs])
    assert float(together(xs, *problem.args)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.long
def test_every_method_makes_as_many_members_as_it_should(tmp_path):
    small = ensembles.Size((16,), 1, 4, 3e-3, 0.2, tuple(ensembles.METHODS))
    settings = dataclasses.replace(ensembles.Settings.quick(0), small=small, max_epochs=3)
    results = ensembles.run(settings, Runner(tmp_path, lambda line: None))
    (arm,) = results["arms"].values()
    assert set(arm["methods"]) == set(ensembles.METHODS)
    for name, scores in arm["methods"].items():
        assert scores["members"] == 4 or name == "deep_budget"
        assert 0 < scores["noise"]["disagreement"] < 1 and scores["work"] > 0
    again = ensembles.run(
        settings, Runner(tmp_path, lambda line: None)
    )  # what is done is not done again
    assert again["runs"] == results["runs"]
