"""The loop over rounds: choose branches, move along them, settle what came back, repeat.

What differs between a search, a map and the baselines is the *mover*:

    begin(problem, settings) -> Leg                  the start
    move(problem, settings, branches) -> legs        pure and picklable: any process may do it
    classify(problem, leg) -> leg                    what is at its end, if `move` left that open
    branches_at(problem, settings, leg) -> branches  what leaves the end of a leg
    known(problem, store, valid) -> points           which ends are the same

`points.keep(leg)` takes note of a leg that was settled before; `points.settle(legs)` yields each
leg with what is at its end, and the fingerprint of the leg that had ended there before, or None.

A round is chosen at once, and legs are stored as they arrive. They are *settled* in the order in
which they were chosen, whatever the order of arrival: a leg that ends where another had ended
before is linked to that one, and from any other its branches are added to the frontier. So neither
the number of workers nor the order of arrival nor an interruption changes a run.

A repaired run is *replayed*: all branches are made anew and chosen again from the start. Legs that
the file still has are taken from there, with what was decided of them; the others are ridden.
"""

import math
import operator
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Annotated

import jax
import numpy as np

from ridgerider._check import Count, check_fields
from ridgerider._core.descend.finish import Epoch, listening
from ridgerider._core.problem.problem import fetch
from ridgerider._core.runtime.clock import OutOfTime, check_time
from ridgerider._search.crew.interrupt import interruptible
from ridgerider._search.crew.lost_workers import Crew, Job, check_executor
from ridgerider._search.engine.climbs import Climbs, Valid
from ridgerider._search.engine.rides import Rides
from ridgerider._search.engine.starts import Yields, is_special
from ridgerider._search.results.measures import Measures, has_descents, measure_missing, measured
from ridgerider._search.results.progress import Progress
from ridgerider._search.runfile.schema import REPAIRED
from ridgerider._search.runfile.store import Store
from ridgerider._search.tree import (
    Branch,
    Budget,
    Fingerprint,
    Frontier,
    Leg,
    Order,
    Turn,
    with_priority,
)

Mover = Rides | Climbs


@dataclass(frozen=True)
class Means:
    """How a run is computed: nothing of it changes the result."""

    executor: Executor | None = None
    max_deaths: Count = 3
    progress: Annotated[Callable[[Progress], None], "progress(done)"] | None = None
    measures: Measures | None = None
    verbose: bool = True  # without `progress`: a line on a terminal

    def __post_init__(self) -> None:
        check_fields(self)
        check_executor(self.executor)


class Engine:
    """One run: its rounds, until the budget is spent or no branch is left."""

    def __init__(
        self,
        job: Job,
        order: Order,
        budget: Budget,
        store: Store,
        means: Means,
        valid: Valid | None = None,
    ):
        self.job, self.order, self.budget, self.store = job, order, budget, store
        self.means, self.problem, self.settings = means, job.problem, job.settings
        self.done = Progress.read(store)
        self.done.max_rides = budget.max_rides
        self.has_descents = bool(means.measures) and has_descents(store.meta)
        mover: Mover = job.mover
        self.known = mover.known(self.problem, store, valid)
        is_replayed = bool(store.meta.get(REPAIRED))
        if is_replayed:
            store.reset_branches(self.branches_at(store.leg(Fingerprint())))
        self.frontier = Frontier()
        self.frontier.tell(store.open_branches())
        self.pending = deque(store.pending())  # the branches of the round that are not settled
        self.arrived: dict[Fingerprint, Leg] = {}
        self.yields, self._rounds = Yields(), store.rounds()
        self.stored = set[Fingerprint]()  # legs of the file that are not settled, or to be replayed
        for name in store.fingerprints():
            leg = store.leg(name)
            if leg.is_settled and not (is_replayed and name):
                self.known.keep(leg)
                self._count(leg, leg.linked_to)
            else:
                self.stored.add(name)

    def run(self) -> None:
        crew = Crew(self.job, self._load, self.means.executor, self.means.max_deaths)
        if self.means.measures:
            measure_missing(self.store, self.means.measures, self.problem)
        listener = None if self.means.progress is None else self._tell_training
        try:
            with listening(listener):
                while branches := interruptible(self._chosen):
                    crew.send(branches)
                    while len(crew):
                        self._settle(crew.receive())
        except OutOfTime:  # what was under way is ridden from its beginning on resume
            pass
        finally:  # also when it is interrupted
            crew.cancel()
        if not self.stored:
            self.store.set_meta(REPAIRED, False)

    def _chosen(self) -> list[Branch]:
        """The branches to move along now: those of a new round, or of one that was cut short.

        A round is chosen whole, so that one that a budget cuts short is finished on resume, before
        anything else is chosen.
        """
        left = self.budget.rides_left(self.done.num_rides)
        self._settle([])
        has_starts = self.settings.share_of_starts != 0.0
        while not self.pending and (len(self.frontier) or has_starts):
            spent = (self.done.num_steps, self.done.cost, self.known.num_points)
            is_replayed = any(name[-1].start for name in self.stored) or any(
                one.fingerprint in self.stored for one in self.frontier if self.stored
            )
            if not is_replayed and (not left or self.budget.is_spent(*spent)):
                break
            self.pending.extend(self._next_round())
            if not self.pending:
                break
            self._rounds |= self.store.choose(self.pending)
            self._settle([])
        waiting = [one for one in self.pending if not self._is_here(one)]
        return waiting[: int(min(left, len(waiting)))]

    def _is_here(self, branch: Branch) -> bool:
        """Whether a branch has been ridden."""
        return branch.fingerprint in self.arrived or branch.fingerprint in self.stored

    def _next_round(self) -> list[Branch]:
        """Open branches and, where these are wanted, new starts."""
        size, share = self.settings.round_size, self.settings.share_of_starts
        if share == 0.0:
            return self.frontier.ask(size)
        if (share is None or self.settings.until_enough) and self.yields.is_enough(
            self.problem.size
        ):
            # A map continues with what lies between its minima.
            return [] if self.settings.until_enough else self.frontier.ask(size)
        num_starts = math.ceil(share * size) if share else 0
        if share is None:
            num_starts = self.yields.num_starts(size, len(self.frontier))
        if not self._rounds:  # the user's own starts come first
            num_given = sum(not one.fingerprint[-1].up for one in self.frontier)
            num_starts = max(0, min(num_starts, size - num_given))
        first = sum(name[-1].start for name in self._rounds)
        names = (Fingerprint((Turn(first + n, 1, start=True),)) for n in range(num_starts))
        starts = [Branch(name, math.nan, 0.0, 1, priority=(2, (name[0].index,))) for name in names]
        return self.frontier.ask(size - num_starts) + starts

    def _load(self, branch: Branch) -> Branch:
        """A branch with its arrays."""
        if not branch.fingerprint[-1].start:
            return self.store.load(branch)
        number, seed = branch.fingerprint[-1].index, self.settings.seed
        x, mover = fetch(self.problem.x0), self.job.mover
        bottom = (
            self.yields.bottom(self._rounds[branch.fingerprint]) if is_special(number) else None
        )
        x = mover.spread(number, seed, x) if bottom is None else bottom.astype(x.dtype)
        return replace(branch, x=x, direction=np.zeros_like(x))

    def _count(self, leg: Leg, link: Fingerprint | None) -> None:
        if leg.fingerprint in self._rounds and self.settings.share_of_starts != 0.0:
            at_minimum = link is not None and self.store.end(link).kind == "minimum"
            self.yields.add(self._rounds[leg.fingerprint], leg, link, at_minimum)

    def _settle(self, legs: list[Leg]) -> None:
        """Store legs that have arrived; settle those before which none is missing."""
        self.arrived |= {leg.fingerprint: leg for leg in legs}
        ready, new = list[Leg](), {leg.fingerprint for leg in legs}
        while self.pending and self._is_here(self.pending[0]):
            name = self.pending.popleft().fingerprint
            is_stored = name in self.stored
            ready.append(self.store.leg(name) if is_stored else self.arrived.pop(name))
            self.stored.discard(name)
        for leg in legs:
            if leg.fingerprint in self.arrived:
                self.store.add(leg)
                self._tell(leg)
        settled = self.known.settle([leg for leg in ready if not leg.is_settled])
        # Each is stored before the next, which may be compared with it.
        for row, before in enumerate(ready):
            try:
                leg, link = interruptible(self._next, before, settled)
            except OutOfTime:
                for one in ready[row:]:
                    self.store.add(one)
                raise
            if self.means.measures:  # first, so that whoever reads the leg finds them
                found = measured(self.means.measures, self.problem, leg, self.has_descents)
                self.store.set_measures(None, found)
            children = [] if link else self.branches_at(leg)
            new_branches = self.store.settle(replace(leg, linked_to=link), children)
            self._count(leg, link)
            # A branch that waits holds no array: a million of them must fit.
            self.frontier.tell(
                replace(one, x=None, direction=None, hessian=None) for one in new_branches
            )
            if before.fingerprint in new:
                self._tell(leg)
            else:
                self.done.settle(before.cost, leg)

    def _next(
        self, before: Leg, settled: Iterator[tuple[Leg, Fingerprint | None]]
    ) -> tuple[Leg, Fingerprint | None]:
        """The next settled leg, charged with what it cost to settle it."""
        if before.is_settled:  # before the file was repaired
            self.known.keep(before)
            return before, before.linked_to
        with self.problem.ledger() as ledger:
            leg, link = next(settled)
        check_time()
        spent = ledger.charge(jax.tree.map(operator.sub, leg.cost, before.cost))
        return replace(leg, cost=before.cost + spent), link

    def _tell(self, leg: Leg) -> None:
        """Count a leg, and say how far the run has come."""
        self.done.add(leg)
        self.done.num_minima = self.known.num_minima
        self.done.num_open = len(self.frontier) + sum(
            not self._is_here(one) for one in self.pending
        )
        if self.means.progress is not None:
            self.means.progress(self.done)

    def branches_at(self, leg: Leg) -> list[Branch]:
        """The branches that leave a leg."""
        branches = self.job.mover.branches_at(self.problem, self.settings, leg)
        return [with_priority(branch, self.order) for branch in branches]

    def _tell_training(self, epoch: Epoch) -> None:
        self.done.training = str(epoch)
        assert self.means.progress is not None
        self.means.progress(self.done)
