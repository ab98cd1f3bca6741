"""How far a search has come."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ridgerider._core.cost import Cost
from ridgerider._core.finish import Finish
from ridgerider._search.same import IS_SOLUTION
from ridgerider._search.store import Store
from ridgerider._search.tree import Leg


@dataclass
class Progress:
    """What a search has done so far; handed to `progress` after every leg.

    Also after every epoch of a training that ends a leg; `training` says how far that has come.
    `num_open` counts the branches that wait, `num_minima` the minima, as `Result.minima` does;
    `best_loss` is the lowest loss at one of them. `waste` is the part of all steps that lanes idled
    through while the longest ride or descent beside them went on.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> def tell(done):
    ...     print(done.num_rides, "rides,", done.num_minima, "minima")
    >>> result = rr.search(wells(1), progress=tell)
    1 rides, 1 minima
    2 rides, 2 minima
    """

    num_rides: int = 0
    num_steps: int = 0
    num_open: int = 0
    num_minima: int = 0
    best_loss: float = float("inf")
    cost: Cost = Cost()
    training: str = ""
    _useful: int = field(default=0, repr=False)
    _spent: int = field(default=0, repr=False)

    @property
    def waste(self) -> float:
        return 1 - self._useful / self._spent if self._spent else 0.0

    @staticmethod
    def read(store: Store) -> "Progress":
        """As far as the run in the store has come."""
        done = Progress(store.num_legs(), store.num_steps(), cost=store.cost())
        for _, finish in store.finishes():
            done._add_finish(finish)
        return done

    def add(self, leg: Leg) -> None:
        self.num_rides += 1
        self.num_steps += leg.num_steps
        self.cost = self.cost + leg.cost
        self.training = ""
        if leg.finish is not None:
            self._add_finish(leg.finish)

    def add_lanes(self, legs: Sequence[Leg], num_lanes: int) -> None:
        """Count what rides side by side used of the steps they took."""
        rides = [leg.num_steps for leg in legs]
        descents = [int(leg.finish.num_steps) for leg in legs if leg.finish is not None]
        self._useful += sum(rides) + sum(descents)
        self._spent += num_lanes * (max(rides, default=0) + max(descents, default=0))

    def _add_finish(self, finish: Finish) -> None:
        if finish.kind in IS_SOLUTION:
            self.best_loss = min(self.best_loss, float(finish.loss))
