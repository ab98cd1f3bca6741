"""Scores of ensembles against closed forms and loops written by hand."""

import numpy as np
import pytest
from scipy import stats

from ridgerider.ensembles import Scores, auroc, disagreement

SEEDS = (0, 1, 2)


def random_predictions(seed, members=4, examples=60, classes=3):
    logits = np.random.default_rng(seed).normal(size=(members, examples, classes))
    return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_disagreement_against_a_loop(seed):
    guesses = random_predictions(seed).argmax(axis=-1)
    found = disagreement(random_predictions(seed))
    for i, one in enumerate(guesses):
        for j, two in enumerate(guesses):
            assert found[i, j] == pytest.approx(sum(one != two) / len(one))
    scores = Scores.of(random_predictions(seed), np.zeros(60, int))
    assert scores.disagreement == pytest.approx(found.sum() / (4 * 3))


@pytest.mark.parametrize("seed", SEEDS)
def test_auroc_against_all_pairs_and_the_rank_test(seed):
    random = np.random.default_rng(seed)
    inside, outside = random.integers(0, 6, 30).astype(float), random.integers(2, 9, 20) * 1.0
    pairs = np.sign(outside[:, None] - inside[None])
    assert auroc(inside, outside) == pytest.approx(np.mean((pairs + 1) / 2))
    other = stats.mannwhitneyu(outside, inside).statistic / (30 * 20)
    assert auroc(inside, outside) == pytest.approx(other)
    assert auroc(inside, inside + 100) == 1 and auroc(inside + 100, inside) == 0
    assert auroc(inside, inside) == pytest.approx(0.5)


def test_calibration_in_closed_form():
    # 8 of 10 right where 0.75 is claimed, and 1 of 2 where 0.95 is: (10 * 0.05 + 2 * 0.45) / 12.
    mean = np.array([[0.75, 0.25]] * 10 + [[0.95, 0.05]] * 2)
    labels = np.array([0] * 8 + [1] * 2 + [0, 1])
    assert Scores.of(mean[None], labels).calibration_error == pytest.approx(
        (10 * 0.05 + 2 * 0.45) / 12
    )
    sure = np.eye(3)[[0, 1, 2]]
    assert Scores.of(sure[None], np.array([0, 1, 2])).calibration_error == 0


def test_likelihood_in_closed_form():
    mean = np.array([[0.5, 0.5], [0.25, 0.75]])
    expected = -(np.log(0.5) + np.log(0.25)) / 2
    assert Scores.of(mean[None], np.array([1, 0])).nll == pytest.approx(expected)
    assert Scores.of(np.array([[[1.0, 0.0]]]), np.array([1])).nll == -np.log(1e-12)


def test_an_ensemble_of_one_agrees_with_itself():
    scores = Scores.of(random_predictions(0, members=1), np.zeros(60, int))
    assert scores.disagreement == 0 and scores.accuracy == scores.member_accuracy


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([0, 3]), "`labels` must be from 0 to 2, but they go from 0 to 3"),
        (np.array([-1, 0]), "`labels` must be from 0 to 2, but they go from -1 to 0"),
        (np.array([0]), "not an array of shape .1,. and type int64"),
        (np.array([0.0, 1.0]), "not an array of shape .2,. and type float64"),
    ],
)
def test_wrong_labels_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        Scores.of(random_predictions(0, examples=2), labels)
