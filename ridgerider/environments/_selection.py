"""Choosing a setting without the test environment.

A rule sees `Accuracies`, accuracies in the training environments and on held-out images of them:

- `train gap`: the mean training accuracy minus `KAPPA` times the gap between environments;
- `extrapolated validation`: the accuracy of a fixed predictor is affine in a rate at which an
  environment mixes two distributions, so validation accuracies extrapolate to the rate of the test.
  It assumes that the shift lies on the line through the training environments;
- `oracle (test)`: the best in the test environment; for comparison only.

Only the last one calls `test`, which it must be given.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

RULES = ("train gap", "extrapolated validation", "oracle (test)")
KAPPA = 5.0


@dataclass(frozen=True)
class Accuracies:
    """Accuracies of one candidate, one for each environment.

    >>> Accuracies(train=(0.8, 0.9), validation=(0.79, 0.9)).gap
    0.1
    """

    train: tuple[float, ...]
    validation: tuple[float, ...] = ()

    @property
    def gap(self) -> float:
        return round(max(self.train) - min(self.train), 12)


def select(
    rule: str,
    scores: Sequence[Accuracies],
    *,
    rates: Sequence[float] | None = None,
    target: float | None = None,
    test: Callable[[int], float] | None = None,
) -> int:
    """The number of the candidate that a named rule chooses.

    **Arguments**

    - `rule`: one of those above.
    - `rates`, `target`: where the environments and the expected one lie on a line; for
      `extrapolated validation`.
    - `test`: the accuracy of a candidate in the test environment; for `oracle (test)` alone.

    >>> colour, shape = Accuracies((0.8, 0.9), (0.8, 0.9)), Accuracies((0.73, 0.72), (0.72, 0.73))
    >>> select("train gap", [colour, shape])
    1
    >>> select("extrapolated validation", [colour, shape], rates=(0.2, 0.1), target=0.9)
    1
    """
    if rule not in RULES:
        raise ValueError(f"`rule` must be one of {', '.join(RULES)}, not {rule!r}.")
    if not scores:
        raise ValueError("`scores` must hold at least one candidate, but there is none.")
    if (test is not None) != (rule == "oracle (test)"):
        what = "needs" if test is None else "must not be given"
        raise ValueError(f"`rule` {rule} {what} `test`, the accuracy in the test environment.")
    if rule == "train gap":
        values = [float(np.mean(one.train)) - KAPPA * one.gap for one in scores]
    elif rule == "extrapolated validation":
        if rates is None or target is None:
            raise ValueError("`rates` and `target` must be given to extrapolate.")
        values = [extrapolate(one.validation, rates, target) for one in scores]
    else:
        assert test is not None
        values = [test(index) for index in range(len(scores))]
    return int(np.argmax(values))


def extrapolate(accuracies: Sequence[float], rates: Sequence[float], target: float) -> float:
    """The line of least squares through the accuracies at `rates`, at `target`.

    >>> round(extrapolate((0.8, 0.9), (0.2, 0.1), 0.9), 3)
    0.1
    """
    if len(set(rates)) < 2 or len(rates) != len(accuracies):
        raise ValueError(
            f"`rates` must be one for each of {len(accuracies)} accuracies, with two that differ, "
            f"not {tuple(rates)}."
        )
    slope, level = np.polyfit(np.asarray(rates, float), np.asarray(accuracies, float), 1)
    return float(slope * target + level)
