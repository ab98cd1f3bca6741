"""What an ensemble is worth: numbers from the probabilities that its members predict."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from ridgerider._check import check_labels

Probabilities = Float[np.ndarray, "members examples classes"]
Labels = Int[np.ndarray, " examples"]


@dataclass(frozen=True)
class Scores:
    """An ensemble on some inputs.

    - `accuracy`: of the mean prediction; `member_accuracy`: the mean over members.
    - `disagreement`: on how many inputs two members differ, the mean over pairs.
    - `nll`: negative log-likelihood of the mean prediction, `calibration_error`: the expected one.
    """

    accuracy: float
    member_accuracy: float
    disagreement: float
    nll: float
    calibration_error: float

    @staticmethod
    def of(probabilities: Probabilities, labels: Labels) -> "Scores":
        """From what the members predict.

        >>> one, two = [[0.9, 0.1], [0.2, 0.8]], [[0.6, 0.4], [0.7, 0.3]]
        >>> scores = Scores.of(np.array([one, two]), np.array([0, 1]))
        >>> scores.accuracy, scores.member_accuracy, scores.disagreement
        (1.0, 0.75, 0.5)
        """
        labels = np.asarray(labels)
        check_labels("`labels`", labels, *probabilities.shape[1:])
        mean = probabilities.mean(axis=0)
        pairs = disagreement(probabilities)[np.triu_indices(len(probabilities), 1)]
        return Scores(
            accuracy=float(np.mean(mean.argmax(axis=-1) == labels)),
            member_accuracy=float(np.mean(probabilities.argmax(axis=-1) == labels)),
            disagreement=float(pairs.mean()) if len(pairs) else 0.0,
            nll=negative_log_likelihood(mean, labels),
            calibration_error=calibration_error(mean, labels),
        )


def disagreement(probabilities: Probabilities) -> Float[np.ndarray, "members members"]:
    """On which part of the inputs each two members guess differently.

    >>> disagreement(np.array([[[0.9, 0.1], [0.2, 0.8]], [[0.6, 0.4], [0.7, 0.3]]])).tolist()
    [[0.0, 0.5], [0.5, 0.0]]
    """
    guesses = probabilities.argmax(axis=-1)
    return np.mean(guesses[:, None] != guesses[None], axis=-1)


def negative_log_likelihood(mean: Float[np.ndarray, "examples classes"], labels: Labels) -> float:
    """Of the labels, in nats for each example; probabilities below 1e-12 count as that.

    >>> round(negative_log_likelihood(np.array([[0.5, 0.5]]), np.array([0])), 3)
    0.693
    """
    return float(-np.log(np.maximum(mean[np.arange(len(labels)), labels], 1e-12)).mean())


def calibration_error(
    mean: Float[np.ndarray, "examples classes"], labels: Labels, num_bins: int = 15
) -> float:
    """How far confidence and accuracy are apart, in bins of equal width, weighted by their counts.

    >>> round(calibration_error(np.array([[0.9, 0.1], [0.1, 0.9]]), np.array([0, 1])), 3)
    0.1
    """
    confidence, is_right = mean.max(axis=-1), mean.argmax(axis=-1) == labels
    bins = np.minimum((confidence * num_bins).astype(int), num_bins - 1)
    gaps = np.bincount(bins, weights=confidence - is_right, minlength=num_bins)
    return float(np.abs(gaps).sum() / len(labels))


def auroc(inside: Float[np.ndarray, " m"], outside: Float[np.ndarray, " n"]) -> float:
    """The chance that an input from outside has a higher score than one from inside; ties halve.

    >>> auroc(np.array([0.1, 0.2]), np.array([0.2, 0.3]))
    0.875
    """
    from scipy.stats import mannwhitneyu  # slow to import

    above = mannwhitneyu(outside, inside, method="asymptotic").statistic
    return float(above / (len(inside) * len(outside)))


def entropy(mean: Float[np.ndarray, "examples classes"]) -> Float[np.ndarray, " examples"]:
    """Of the mean prediction: how uncertain the ensemble is."""
    return -np.sum(mean * np.log(np.maximum(mean, 1e-12)), axis=-1)
