"""Choosing a setting without the test environment, by accuracies in the training environments."""

from collections.abc import Sequence

import numpy as np

from ridgerider._check import checked

KAPPA = 5.0


@checked
def agreement(accuracies: Sequence[float] | np.ndarray) -> float:
    """The mean accuracy minus five times the gap between environments: larger is better.

    >>> colour, shape = (0.8, 0.9), (0.73, 0.72)
    >>> agreement(shape) > agreement(colour)
    True
    """
    if not len(accuracies):
        raise ValueError("`accuracies` must hold one for each environment, but it is empty.")
    return float(np.mean(accuracies) - KAPPA * round(float(np.ptp(accuracies)), 12))


@checked
def extrapolate(accuracies: Sequence[float], rates: Sequence[float], target: float) -> float:
    """The line of least squares through the accuracies at `rates`, at `target`.

    The accuracy of a fixed predictor is affine in the rate at which an environment mixes two
    distributions. This assumes that the shift lies on the line through the training environments.

    >>> round(extrapolate((0.8, 0.9), (0.2, 0.1), 0.9), 3)
    0.1
    """
    if len(set(rates)) < 2 or len(rates) != len(accuracies):
        raise ValueError(
            f"`rates` must be one for each of the {len(accuracies)} `accuracies`, with two that "
            f"differ, not {tuple(rates)}."
        )
    slope, level = np.polyfit(np.asarray(rates, float), np.asarray(accuracies, float), 1)
    return float(slope * target + level)
