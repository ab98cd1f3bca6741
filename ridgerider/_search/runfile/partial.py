"""Reading what there is of a run file: of a growing one what is new, of a damaged one what is left.

Only the file is read, never a process.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ridgerider._check import one_line
from ridgerider._search.runfile import schema
from ridgerider._search.runfile.read import RunFile
from ridgerider._search.runfile.rows import checked_leg
from ridgerider._search.runfile.schema import Row
from ridgerider._search.tree.tree import Fingerprint, Leg

T = TypeVar("T")


class AnotherRun(Exception):
    """The file holds another run than before."""


@dataclass
class PartialRun:
    """The legs of a run, as far as they can be read; `unreadable` says of what is missing why.

    >>> import tempfile
    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> path = f"{tempfile.mkdtemp()}/run.sqlite"
    >>> _ = rr.search(wells(1), rr.Rider(finish=None), out=path)
    >>> run = PartialRun(Path(path))
    >>> [str(leg.fingerprint) for leg in run.read()], run.read()
    (['', '0+', '0-'], [])
    """

    path: Path
    meta: dict[str, Any] = field(default_factory=dict)
    num_legs: int | None = None  # that the file should hold
    num_open: int = 0
    measures: dict[str, dict[str, Any]] = field(default_factory=dict)  # by name and fingerprint
    unreadable: dict[str, str] = field(default_factory=dict)
    _legs_unreadable: dict[str, str] = field(default_factory=dict)
    _last: int = 0
    _names: set[Fingerprint] = field(default_factory=set)
    _begun: tuple[str, Row | None] | None = None  # its name and the row of the start
    _damages: dict[str, str] | None = None

    def read(self) -> list[Leg]:
        """Read what is new, and return the legs among it, without the directions of their ridges.

        Raises ValueError if it is not a run file, and `AnotherRun` if one has taken its place.
        """
        with RunFile.open_damaged(self.path) as run:
            # Evaluating the start takes other seconds each time.
            begun = self._tried("its beginning", lambda: (run.meta["name"], run.rows("")[0]))
            if self._begun and begun and begun != self._begun:
                raise AnotherRun(str(self.path))
            self._begun = begun
            self.unreadable = {}  # but for legs, which are read once, it is tried again
            if self._damages is None:  # once, and then row by row
                self._damages = run.damages()
            for what, why in self._damages.items():
                if what != "the start" and not what.startswith("leg "):
                    self.unreadable[what] = why
            for _, row in run.readable_rows("meta"):
                name = schema.row_name("meta", row)
                found = self._tried(name, schema.read_meta, row["key"], row["value"])
                if found is not None and row["key"] != schema.SUM:
                    self.meta[str(row["key"])] = found
            legs = list(self._new_legs(run))
            self.num_legs = self._tried("the number of legs", run.last_row, "legs")
            self.num_open = self._tried("the open branches", run.num_open) or 0
            self.measures = self._tried("what was measured", run.measures) or {}
            self.unreadable = {**self._legs_unreadable, **self.unreadable}
        return legs

    def ends(self, fingerprints: Iterable[Fingerprint]) -> dict[Fingerprint, np.ndarray]:
        """The points at which the descents of these legs ended, or else the rides themselves."""
        found = {}
        with RunFile.open_damaged(self.path) as run:
            for name in fingerprints:
                leg = self._tried(f"leg {name}", lambda name=name: self._leg(*run.rows(str(name))))
                if leg is not None:
                    found[name] = leg.x if leg.finish is None else np.asarray(leg.finish.x)
        return found

    def _new_legs(self, run: RunFile) -> Iterator[Leg]:
        missing = self._legs_unreadable
        for number, row in run.readable_rows("legs", self._last, missing):
            self._last, name = number, row["fingerprint"]
            try:
                leg = self._leg(row, run.rows(name)[1])
            except Exception as error:
                what = schema.leg_name(name) if isinstance(name, str) else f"leg number {number}"
                missing[what] = one_line(error)
                continue
            if leg.fingerprint in self._names:  # it was settled since, which stores it again
                continue
            self._names.add(leg.fingerprint)
            below = leg.below and replace(leg.below, directions=leg.below.directions[:, :0])
            yield replace(leg, directions=leg.directions[:, :0], below=below)

    def _leg(self, row: Row | None, end: Row | None) -> Leg:
        size = schema.num_params(self.meta) if "problem" in self.meta else None
        return checked_leg(row, end, size)

    def _tried(self, what: str, read: Callable[..., T], *args: Any) -> T | None:
        """What `read` returns, or None and a note that it could not be read."""
        try:
            return read(*args)
        except Exception as error:
            self.unreadable[what] = one_line(error)
            return None
