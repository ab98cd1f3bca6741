"""What a page shows of a run file, as plain data for JSON."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ridgerider._search.classes import Classes
from ridgerider._search.reader import LegRow, RunReader
from ridgerider._search.same import IS_SOLUTION
from ridgerider._search.store import VERSION
from ridgerider._search.tree import Fingerprint, Way
from ridgerider.report._plain import number, plain, plain_cluster, plain_cost, plain_finish
from ridgerider.report._trace import pack_trace

# Of all traces and of all spectra together. Of a spectrum the most negative clusters are kept.
MAX_POINTS, MAX_CLUSTERS = 250_000, 300_000
MAX_DISTANCES = 48  # of a distance matrix that can be looked at


@dataclass
class Reader:
    """The legs and solutions of a run, as far as they can be read.

    `legs` are what the page's tree and tables need, `details` what it needs once a leg is looked
    at; `notes` say in a sentence each what could not be read.

    >>> import tempfile
    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> path = f"{tempfile.mkdtemp()}/run.sqlite"
    >>> _ = rr.search(wells(1), rr.Rider(finish=None), out=path)
    >>> reader = Reader(Path(path))
    >>> reader.read()
    3
    >>> [leg["fingerprint"] for leg in reader.legs], reader.read()
    (['', '0+', '0-'], 0)
    """

    path: Path
    legs: list[dict[str, Any]] = field(default_factory=list)
    details: list[dict[str, Any]] = field(default_factory=list)
    trouble: str = ""
    _max_points: int = 0
    _max_clusters: int = 0

    def __post_init__(self) -> None:
        self.file = RunReader(self.path)
        self.classes = Classes[Fingerprint]()
        self._losses: dict[Fingerprint, float] = {}
        self._numbers: dict[Fingerprint | None, int] = {}
        self._ways: dict[Fingerprint, dict[str, Way]] = {}

    def read(self) -> int:
        """Read what is new, and return how many legs that are.

        Raises ValueError if it is no run file, and `AnotherRun` if one has taken its place.
        """
        rows = self.file.read()
        if not self._max_points:  # a page of ten thousand legs stays small
            num_legs = max(1, self.file.num_legs or 1)
            self._max_points = max(24, min(240, MAX_POINTS // num_legs))
            self._max_clusters = max(12, min(200, MAX_CLUSTERS // num_legs))
        self._ways |= {row.fingerprint: row.ways for row in rows if row.ways}
        self.legs += map(self._leg, rows)
        self.details += map(self._details, rows)
        self._classify(rows)
        return len(rows)

    @property
    def meta(self) -> dict[str, Any]:
        return plain(self.file.meta)

    @property
    def notes(self) -> list[str]:
        """What a reader of the page should know about the file."""
        if self.trouble and not self.legs:
            return [self.trouble]
        notes, unreadable = [], self.file.unreadable
        if self.file.version > VERSION:
            notes.append(
                f"The file is of version {self.file.version}, newer than the version {VERSION} "
                "that this ridgerider knows: what it does not know is not shown."
            )
        if unreadable:
            what, why = next(iter(unreadable.items()))
            more = f" and {len(unreadable) - 1} more" if len(unreadable) > 1 else ""
            notes.append(
                f"The file is damaged: {len(self.legs)} legs could be read, but not {what}{more} "
                f"({why})."
            )
        if not any(leg["fingerprint"] for leg in self.legs):
            notes.append("No leg has been ridden yet.")
        return notes

    def distances(self) -> dict[str, list]:
        """Between the minima of lowest loss, one for each class."""

        def rank(number: int) -> tuple[float, int, bytes]:
            name = self.classes.names[number]
            return float(f"{self._losses[name]:.6g}"), name.depth, name.sort_key()

        order = sorted(range(len(self.classes)), key=rank)[:MAX_DISTANCES]
        points = np.array([self.classes.points[self.classes.names[one]] for one in order])
        apart = [np.linalg.norm(points - point, axis=1) for point in points]
        return {
            "classes": order,
            "distances": [[float(f"{value:.5g}") for value in row] for row in apart],
        }

    def _leg(self, row: LegRow) -> dict[str, Any]:
        leg = _leg(row)
        if row.linked_to is not None:
            leg["linked_to"] = row.linked_to
        if row.fingerprint:
            ways = self._ways.get(row.fingerprint.parent, {})
            way = ways.get(str(row.fingerprint[-1]))
            if way is not None:
                leg["way"] = [way.order, number(way.kappa), way.class_size]
        return leg

    def _details(self, row: LegRow) -> dict[str, Any]:
        return {
            "clusters": [plain_cluster(one) for one in row.clusters[: self._max_clusters]],
            "num_clusters": len(row.clusters),
            "trace": pack_trace(row.trace, self._max_points),
        }

    def _classify(self, rows: list[LegRow]) -> None:
        """Number the classes of new minima, shallow legs first as `Result.classes` has it."""
        shown = self.legs[len(self.legs) - len(rows) :]
        ends = [
            (row, leg["solution"])
            for row, leg in zip(rows, shown, strict=True)
            if row.finish is not None and row.finish.kind in IS_SOLUTION
        ]
        # One that stands for others first.
        for row, solution in sorted(
            ends,
            key=lambda end: (
                end[0].same_as is not None,
                end[0].fingerprint.depth,
                end[0].fingerprint.sort_key(),
            ),
        ):
            assert row.finish is not None
            if row.same_as in self._numbers:
                number = self._numbers[row.same_as]
            else:
                number = self.classes.add(
                    row.fingerprint, np.asarray(row.finish.x), float(row.finish.error)
                )
            solution["class"] = self._numbers[row.fingerprint] = number
            self._losses[row.fingerprint] = float(row.finish.loss)


def _leg(row: LegRow) -> dict[str, Any]:
    leg: dict[str, Any] = {
        "fingerprint": str(row.fingerprint),
        "loss": number(row.loss),
        "num_steps": row.num_steps,
        "ended_by": list(row.ended_by),
        "num_ridges": row.num_ridges,
        "num_branches": row.num_branches,
        "eigenvalue": number(row.trace["eigenvalue"][0]) if row.trace else None,
        "cost": plain_cost(row.cost),
    }
    if row.finish is not None:
        leg["solution"] = plain_finish(row.finish)
    return leg
