"""How far a search has come, and a bar that shows it in a notebook."""

import operator
import os
import shutil
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import jax

from ridgerider._check import count
from ridgerider._core.descend.finish import Finish
from ridgerider._core.problem.cost import Cost
from ridgerider._search.runfile.store import Store
from ridgerider._search.same import IS_SOLUTION
from ridgerider._search.tree import Leg


@dataclass
class Progress:
    """What a search has done so far; handed to `progress` after every leg.

    Also after every epoch of a training that ends a leg; `training` says how far that has come.
    `num_open` counts the branches that wait, `num_minima` the minima, as `Result.minima` does;
    `best_loss` is the lowest loss at one of them. `max_rides` is the budget, if there is one.

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
    max_rides: float | None = None

    @property
    def fraction(self) -> float:
        """How much of the work known so far is done: of the budget, or of the branches found."""
        known = self.num_rides + self.num_open
        return self.num_rides / max(
            1, known if self.max_rides is None else min(known, self.max_rides)
        )

    def __str__(self) -> str:
        rides = count(self.num_rides, "ride")
        if self.max_rides is not None:
            rides = f"{self.num_rides}/{self.max_rides} rides"
        best = f", lowest loss {self.best_loss:.6g}" if self.num_minima else ""
        training = f", {self.training}" if self.training else ""
        minima = count(self.num_minima, "minimum", "minima")
        seconds = f"{self.cost.seconds:.1f} s"
        return f"{rides}, {self.num_open} open, {minima}{best}, {seconds}{training}"

    def _repr_html_(self) -> str:
        full = f"width:{100 * self.fraction:.1f}%;height:100%;background:#3B8FC4;border-radius:5px"
        frame = "height:10px;max-width:480px;background:#8883;border-radius:5px;margin:4px 0"
        bar = f'<div role="progressbar" style="{frame}"><div style="{full}"></div></div>'
        return f"<div>{bar}{self}</div>"

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
        self.training = ""
        self.settle(Cost(), leg)

    def settle(self, known: Cost, leg: Leg) -> None:
        """What a leg has become, of whose cost a part was `known`."""
        self.cost = self.cost + jax.tree.map(operator.sub, leg.cost, known)
        self._add_finish(leg.finish)

    def _add_finish(self, finish: Finish | None) -> None:
        if finish is not None and finish.kind in IS_SOLUTION:
            self.best_loss = min(self.best_loss, float(finish.loss))


class Bar:
    """A progress bar in a notebook during a search; elsewhere a line every few seconds.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> result = rr.search(wells(1), rr.Rider(finish=None), progress=rr.Bar())  # doctest: +ELLIPSIS
    1/100 rides, 1 open, 0 minima, ... s
    """

    every: float = 0.1  # seconds between two looks in a notebook; lines are fifty times as rare

    def __init__(self) -> None:
        self._shown: Any = None
        self._last = -float("inf")

    def __call__(self, done: Progress) -> None:
        is_notebook = _is_notebook()
        every = self.every if is_notebook else 50 * self.every
        is_last = done.fraction >= 1 and is_notebook
        if time.monotonic() - self._last < every and not is_last:
            return
        self._last = time.monotonic()
        if not is_notebook:
            print(done)
        elif self._shown is None:
            from IPython.display import display

            self._shown = display(done, display_id=True)
        else:
            self._shown.update(done)


class Line:
    """A context: from two seconds on, a line tells how far a run is, and how to stop it.

    On a terminal, as one line of the error stream that is written again and again, and in a
    notebook; nowhere else. `RIDGERIDER_QUIET` in the environment switches it off.

    >>> with Line(is_wanted=True) as line:
    ...     line.done.num_rides = 3  # no terminal: nothing is written
    """

    silence, every = 2.0, 1.0  # seconds before the first line, and between two

    def __init__(self, is_wanted: bool, done: Progress | None = None):
        self.done = Progress() if done is None else done
        is_seen = sys.stderr is not None and sys.stderr.isatty()
        is_on = is_wanted and not os.environ.get("RIDGERIDER_QUIET")
        is_on &= is_seen or _is_notebook()
        self._over = threading.Event()
        work = self._tell if is_on else self._over.wait
        self._thread = threading.Thread(target=work, daemon=True)

    def __enter__(self) -> "Line":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _tell(self) -> None:
        began, bar, pause = time.monotonic(), Bar(), self.silence
        while not self._over.wait(pause):
            pause = self.every
            if _is_notebook():
                bar(self.done)
                continue
            doing = str(self.done) if self.done.num_rides else "the first descent"
            spent = f"ridgerider, {time.monotonic() - began:.0f} s: {doing}"
            text = f"{spent} (Ctrl-C stops it)"[: shutil.get_terminal_size().columns - 1]
            print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)
        if pause == self.every and not _is_notebook():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _is_notebook() -> bool:
    """Whether there is a kernel to which pictures can be sent."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None
