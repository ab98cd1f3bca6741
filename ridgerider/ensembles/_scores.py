"""What an ensemble is worth: numbers from the probabilities that its members predict."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from ridgerider._check import check_labels, checked

Probabilities = Float[np.ndarray, "members examples classes"]
Labels = Int[np.ndarray, " examples"]
# What `verdict` calls an equal accuracy, and how much more work it allows.
MARGIN, MOST_WORK = 0.005, 1.5
NUM_BINS = 15  # of confidence


@dataclass(frozen=True)
class Scores:
    """An ensemble on some inputs.

    - `accuracy`: of the mean prediction; `member_accuracy`: the mean over members.
    - `disagreement`: on how many inputs two members differ, the mean over pairs.
    - `nll`: negative log-likelihood of the mean prediction, in nats for each example.
    - `calibration_error`: how far its confidence and accuracy are apart, in bins of equal width,
      weighted by their counts.
    """

    accuracy: float
    member_accuracy: float
    disagreement: float
    nll: float
    calibration_error: float

    @staticmethod
    @checked
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
        confidence, is_right = mean.max(axis=-1), mean.argmax(axis=-1) == labels
        bins = np.minimum((confidence * NUM_BINS).astype(int), NUM_BINS - 1)
        gaps = np.bincount(bins, weights=confidence - is_right)
        likelihoods = np.maximum(mean[np.arange(len(labels)), labels], 1e-12)
        return Scores(
            accuracy=float(np.mean(is_right)),
            member_accuracy=float(np.mean(probabilities.argmax(axis=-1) == labels)),
            disagreement=float(_parts_that_differ(probabilities).mean()),
            nll=float(-np.log(likelihoods).mean()),
            calibration_error=float(np.abs(gaps).sum() / len(labels)),
        )


@checked
def disagreement(probabilities: Probabilities) -> Float[np.ndarray, "members members"]:
    """On which part of the inputs each two members guess differently.

    >>> disagreement(np.array([[[0.9, 0.1], [0.2, 0.8]], [[0.6, 0.4], [0.7, 0.3]]])).tolist()
    [[0.0, 0.5], [0.5, 0.0]]
    """
    guesses = probabilities.argmax(axis=-1)
    return np.mean(guesses[:, None] != guesses[None], axis=-1)


def verdict(
    mine: tuple[Probabilities, Probabilities],
    other: tuple[Probabilities, Probabilities],
    labels: Labels,
    work: float,
) -> str:
    """Whether one ensemble is more diverse than another at equal accuracy and little more work.

    Of each ensemble the probabilities for clean and for shifted inputs; `work` is a ratio. Either
    interval holds with 97.5 %, so that both do with 95 %; examples are paired.

    >>> clean = np.array([[[0.9, 0.1]] * 400] * 2)
    >>> verdict((clean, clean), (clean, clean), np.zeros(400, int), 2.0)[:46]
    'the claim fails here (more disagreement, work)'
    """
    right, other_right = (one[0].mean(axis=0).argmax(axis=-1) == labels for one in (mine, other))
    accuracy = _interval(right.astype(float) - other_right)
    differ, other_differ = (_parts_that_differ(one[1]) for one in (mine, other))
    # Half an example, where all members of an ensemble agree everywhere.
    mean, other_mean = (max(float(one.mean()), 0.5 / len(labels)) for one in (differ, other_differ))
    # The logarithm of the ratio varies with the examples as this does.
    half = np.ptp(_interval(differ / mean - other_differ / other_mean)[1:]) / 2
    ratio = mean / other_mean * np.exp([0, -half, half])
    parts = {
        "more disagreement": (ratio[1] > 1, ratio[2] <= 1),
        "accuracy": (accuracy[1] > -MARGIN, accuracy[2] <= -MARGIN),
        "work": (work <= MOST_WORK, work > MOST_WORK),
    }
    failed = [name for name, (_, is_refuted) in parts.items() if is_refuted]
    unshown = [name for name, (is_shown, _) in parts.items() if not is_shown]
    word = "holds here"
    if failed:
        word = f"fails here ({', '.join(failed)})"
    elif unshown:
        word = f"is undecided here ({', '.join(unshown)}: more examples would tell)"
    points = 100 * accuracy
    return (
        f"the claim {word}: disagreement {ratio[0]:.3g} times ({ratio[1]:.3g} to {ratio[2]:.3g}), "
        f"accuracy {points[0]:+.2f} points ({points[1]:+.2f} to {points[2]:+.2f}; more than "
        f"{-100 * MARGIN:+.2f} wanted), {work:.2f} times the work (at most {MOST_WORK:g})."
    )


def _interval(values: Float[np.ndarray, " examples"]) -> Float[np.ndarray, "3"]:
    """The mean, and its interval of 97.5 %, from the normal distribution."""
    half = 2.2414 * values.std() / np.sqrt(len(values))
    return values.mean() + half * np.array([0, -1, 1])


def _parts_that_differ(probabilities: Probabilities) -> Float[np.ndarray, " examples"]:
    """For each example, which part of the pairs of members guess differently."""
    guesses = probabilities.argmax(axis=-1)
    one, two = np.triu_indices(len(guesses), 1)
    if not len(one):
        return np.zeros(guesses.shape[1])
    return (guesses[one] != guesses[two]).mean(axis=0)


@checked
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
