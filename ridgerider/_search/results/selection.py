"""Choosing one of several solutions with data that did not find them, and what that proves."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import ArrayLike, PyTree

from ridgerider._check import check_choice
from ridgerider._search.runfile.problem import arrays_of, digest

if TYPE_CHECKING:
    from ridgerider._search.results.solutions import Solution

Score = Callable[..., ArrayLike]


@dataclass(frozen=True)
class Selection:
    """The solution chosen, the mean score of each one compared, and a bound that allows for choice.

    With probability `1 - delta` over the examples, the expected score of `solution` on new examples
    of the same kind is no worse than `bound`, though it was chosen for its score: Hoeffding's
    inequality holds for all `len(scores)` candidates at once.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> import numpy as np
    >>> target = np.sign(np.random.default_rng(0).normal(0.7, 1, size=(400, 2)))
    >>> def misses(params, target):
    ...     return (np.sign(params) != target).mean(axis=1)
    >>> chosen = rr.search(wells(2)).select(misses, target, best="low")
    >>> np.sign(chosen.solution.params).tolist()
    [1.0, 1.0]
    >>> print(chosen)
    0+ 0+: 0.2475 on average over 400 examples, the lowest of 4
    expected score at most 0.3215 with probability 0.95
    """

    solution: "Solution"
    score: float
    bound: float
    delta: float
    best: Literal["low", "high"]
    num_examples: int
    candidates: tuple["Solution", ...]
    scores: np.ndarray

    def __str__(self) -> str:
        which, side = ("lowest", "most") if self.best == "low" else ("highest", "least")
        return (
            f"{self.solution.fingerprint}: {self.score:.4g} on average over {self.num_examples} "
            f"examples, the {which} of {len(self.scores)}\n"
            f"expected score at {side} {self.bound:.4g} with probability {1 - self.delta:g}"
        )


def choose(
    candidates: "Sequence[Solution]",
    score: Score,
    data: tuple[PyTree, ...],
    best: Literal["low", "high"],
    delta: float,
    between: tuple[float, float],
    seen: Sequence[str],
) -> Selection:
    """The candidate with the best mean score, and its bound; `seen` are digests of other data."""
    check_choice("best", best, ("low", "high"))
    if not 0 < delta < 1:
        raise ValueError(f"`delta` must lie between 0 and 1, not {delta!r}.")
    if not (len(between) == 2 and between[0] < between[1] and np.isfinite(between).all()):
        raise ValueError(f"`between` must be two finite numbers, the lower first, not {between!r}.")
    if not data:
        raise ValueError("`data` must be given: select scores solutions on examples of its own.")
    for array in arrays_of(data):
        if digest(array) in seen:
            raise ValueError(
                f"`data` holds an array of shape {array.shape} that the search was run on: choose "
                "with other examples, or pass allow_same_data=True and do not trust the bound."
            )
    if not candidates:
        raise ValueError("there is nothing to select from: the run holds no minima.")
    rows = []
    for one in candidates:
        row = np.asarray(score(one.params, *data), dtype=np.float64)
        if row.ndim != 1 or not len(row):
            raise ValueError(
                f"`score` must return a vector, one number per example, not shape {row.shape}."
            )
        if not np.isfinite(row).all() or row.min() < between[0] or row.max() > between[1]:
            raise ValueError(
                f"`score` must stay within `between` {tuple(between)}, but came to "
                f"{row.min():.4g} ... {row.max():.4g} at {one.fingerprint}."
            )
        rows.append(row)
    if len({len(row) for row in rows}) > 1:
        raise ValueError("`score` must return as many numbers for each solution: one per example.")
    means = np.array([row.mean() for row in rows])
    place = int(np.argmin(means) if best == "low" else np.argmax(means))
    width = hoeffding_width(len(rows), len(rows[0]), delta, between)
    bound = means[place] + (width if best == "low" else -width)
    return Selection(
        solution=candidates[place],
        score=float(means[place]),
        bound=float(np.clip(bound, *between)),
        delta=delta,
        best=best,
        num_examples=len(rows[0]),
        candidates=tuple(candidates),
        scores=means,
    )


def hoeffding_width(
    num_compared: int, num_examples: int, delta: float, between: tuple[float, float] = (0.0, 1.0)
) -> float:
    """How far, on one side, the worst of `num_compared` means may be from its expectation."""
    low, high = between
    return (high - low) * math.sqrt(math.log(num_compared / delta) / (2 * num_examples))
