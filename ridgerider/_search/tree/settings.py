"""What decides a tree besides the problem and the rider, and when a search stops."""

import math
import numbers
from dataclasses import dataclass
from typing import Literal

from ridgerider._check import check_choice, check_count, check_positive, check_share
from ridgerider._core.problem.cost import Cost
from ridgerider._search.tree.tree import Fingerprint


@dataclass(frozen=True)
class Settings:
    """What decides the tree, besides the problem and the rider. Part of a run's identity.

    >>> Settings(max_depth=2).is_last(Fingerprint.parse("0+ 1-"))
    True
    """

    seed: int = 0
    order: str = "breadth_first"
    members: Literal["branches", "all", "one"] = "branches"
    max_ridges: int | None = None
    max_depth: int | None = None
    round_size: int = 1
    branch_at: Literal["end", "saddle"] = "end"
    unit: float = 1.0  # of length: see `Problem.unit`
    share_of_starts: float | None = 0.0  # of the legs of a round; None: as they yield
    until_enough: bool = False  # end where hardly any minimum is missing

    def __post_init__(self) -> None:
        check_choice("members", self.members, ("branches", "all", "one"))
        check_choice("branch_at", self.branch_at, ("end", "saddle"))
        check_count("seed", self.seed, 0)
        check_count("round_size", self.round_size, 1)
        check_positive("unit", self.unit)
        if self.share_of_starts is not None:
            check_share("share_of_starts", self.share_of_starts)
        for name in ("max_ridges", "max_depth"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), 1)

    def is_last(self, fingerprint: Fingerprint) -> bool:
        """Whether a leg is as deep as the search may go."""
        return self.max_depth is not None and fingerprint.depth >= self.max_depth


@dataclass(frozen=True)
class Budget:
    """When to stop. Not a part of a run's identity: `resume` may raise it."""

    max_rides: int | None = 100
    max_steps: int | None = None
    max_hvps: int | None = None
    max_seconds: float | None = None
    max_points: int | None = None
    max_calls: int | None = None

    def __post_init__(self) -> None:
        for name, value in list(vars(self).items()):
            if value is None:
                continue
            if (
                isinstance(value, bool)
                or not isinstance(value, numbers.Real)
                or not 0 <= float(value) < math.inf
            ):
                raise ValueError(
                    f"`{name}` must be a number of at least 0, and finite, or None, not {value!r}."
                )
            # A NumPy number would not go into the run file.
            plain = int(value) if isinstance(value, numbers.Integral) else float(value)
            object.__setattr__(self, name, plain)

    def rides_left(self, rides: int) -> float:
        return math.inf if self.max_rides is None else max(0, self.max_rides - rides)

    def is_spent(self, steps: int, cost: Cost, points: int) -> bool:
        """Whether no further round may begin, given what was spent so far."""
        spent = (
            (self.max_steps, steps),
            (self.max_hvps, cost.hvps),
            (self.max_points, points),
            (self.max_calls, cost.values + cost.hvps),
        )
        return any(limit is not None and used >= limit for limit, used in spent)

    def seconds_left(self, spent: float) -> float:
        """How long the work may go on."""
        return math.inf if self.max_seconds is None else self.max_seconds - spent
