"""What a page shows of a run file, as plain data for JSON.

A ride's trace as a page holds it: not every step, and as bytes.
"""

import base64
import contextlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ridgerider._search.results.export import plain
from ridgerider._search.results.measures import SIGNATURE, signature_classes
from ridgerider._search.results.result import Result
from ridgerider._search.runfile.store import RunFile
from ridgerider._search.tree import Fingerprint, Leg
from ridgerider.report._differ import differences

ENOUGH = 0.7072  # of the overlap: above it, no other ridge can overlap more
COLUMNS = ("loss", "eigenvalue", "overlap", "residual", "gap", "step_size", "multiplicity")


def pack_trace(trace: dict[str, np.ndarray], max_points: int) -> dict[str, Any] | None:
    """The names of the columns, and the columns one after the other, float32 in base64.

    The first column numbers the steps.

    >>> trace = {"loss": np.array([0.0, -1.0]), "overlap": np.array([1.0, 0.5])}
    >>> packed = pack_trace(trace, max_points=100)
    >>> packed["columns"], packed["num_points"]
    (['step', 'loss', 'overlap'], 2)
    >>> np.frombuffer(base64.b64decode(packed["data"]), "<f4").tolist()
    [0.0, 1.0, 0.0, -1.0, 1.0, 0.5]
    """
    if not trace:
        return None
    names = [name for name in COLUMNS if name in trace]
    steps = thinned(trace, max_points)
    near = trace["neighbours"][steps] if "neighbours" in trace else np.zeros((len(steps), 0))
    near = near[:, ~np.isnan(near).all(axis=0)]
    table = np.stack([steps, *(trace[name][steps] for name in names), *near.T])
    return {
        "columns": ["step", *names, *(f"neighbour {i}" for i in range(near.shape[1]))],
        "num_points": len(steps),
        "data": encoded(table),
    }


def encoded(values: np.ndarray) -> str:
    """Numbers as a page holds them: float32 in base64, infinite where they are too large for it.

    >>> np.frombuffer(base64.b64decode(encoded(np.array([0.5, -1e300]))), "<f4").tolist()
    [0.5, -inf]
    """
    with np.errstate(over="ignore"):
        return base64.b64encode(values.astype("<f4").tobytes()).decode()


def thinned(trace: dict[str, np.ndarray], max_points: int) -> np.ndarray:
    """Evenly spaced steps, the first and the last, and those at which the certificate is weakest.

    >>> thinned({"overlap": np.array([1.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0])}, max_points=3).tolist()
    [0, 3, 6]
    """
    num_rows = len(next(iter(trace.values())))
    if num_rows <= max_points:
        return np.arange(num_rows)
    steps = set(np.linspace(0, num_rows - 1, max_points).astype(int).tolist())
    for name, sign in (("overlap", 1), ("residual", -1), ("gap", 1)):
        column = trace.get(name)
        if column is not None and not np.isnan(column).all():
            steps.add(int(np.argmin(np.where(np.isnan(column), np.inf, sign * column))))
    return np.array(sorted(steps))


def certificate_of(trace: dict[str, np.ndarray]) -> str | None:
    """What a ride can show for itself: "complete", or what is missing; None without steps.

    Complete: at no step was the overlap below 0.7072, and everywhere the residual was below a tenth
    of the gap, so that the direction was within 6 degrees of the eigenspace. Where the gap is not
    known, the nearest eigenvalue that was seen stands for it.

    >>> trace = {"overlap": np.array([1.0, 0.9]), "residual": np.zeros(2), "gap": np.ones(2)}
    >>> certificate_of(trace), certificate_of({**trace, "gap": np.full(2, np.nan)})
    ('complete', 'gap')
    """
    if len(trace.get("overlap", ())) < 2:
        return None
    overlap, residual = trace["overlap"][1:], trace["residual"][1:]
    if not np.all(overlap >= ENOUGH):
        return "overlap"
    gap = trace.get("gap", np.full(len(overlap) + 1, np.nan))[1:]
    if "neighbours" in trace and "multiplicity" in trace:
        away = np.abs(trace["neighbours"][1:] - trace["eigenvalue"][1:, None])
        seen = np.min(np.where(np.isnan(away), np.inf, away), axis=1, initial=np.inf)
        gap = np.where((trace["multiplicity"][1:] > 0) & np.isnan(gap), seen, gap)
    return "complete" if np.all(residual <= 0.1 * gap) else "gap"


# Of all traces and of all spectra together. Of a spectrum the most negative clusters are kept.
MAX_POINTS, MAX_CLUSTERS = 250_000, 300_000
COSTS = ("values", "gradients", "hvps", "hessians", "eigendecompositions", "seconds")
MAX_COMPARED = 48  # solutions side by side on a page

IDENTITY = ("name", "problem", "settings", "rider")  # of a run: equal ones have equal legs


class AnotherRun(ValueError):
    """Another run has taken the place of the one that was read."""


@dataclass
class Reader:
    """The legs and solutions of a run, read from its file as it grows.

    `legs` are what the page's tree and tables need, `details` what it needs once a leg is chosen;
    `notes` are sentences to begin with. `groups` are the solutions: by what they
    do if a signature says so, else the minima; the leg that stands for each of them is that of
    lowest loss, of minima the shallowest. `labels` name the groups that a signature made.

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
    groups: list[dict[str, Any]] = field(default_factory=list)
    labels: dict[int, str] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    num_open: int = 0
    trouble: str = ""
    class_of: dict[str, int] = field(default_factory=dict)  # of each leg to a minimum
    members: dict[int, list[dict[str, Any]]] = field(default_factory=dict)  # of each group
    measured: dict[str, dict[str, Any]] = field(default_factory=dict)  # by name and fingerprint

    def __post_init__(self) -> None:
        self._known = set[Fingerprint]()
        self._differ: tuple[int, dict[str, Any]] | None = None
        self._num_first = 0  # how many legs were read first

    def read(self) -> int:
        """Read what is new, and return how many legs that are.

        Raises ValueError if it is not a run file, or damaged, and `AnotherRun` if it is another.
        """
        with self._opened() as run:
            names, meta = run.fingerprints(), plain(run.meta, str)
            is_same = all(meta.get(key) == self.meta.get(key) for key in IDENTITY)
            if self._known and not (is_same and self._known <= set(names)):
                raise AnotherRun(f"another run has taken the place of {self.path}")
            legs = [run.leg(name) for name in names if name not in self._known]
            self._known |= set(names)
            self.meta, self.num_open, measured = meta, run.num_open(), run.measures()
            if legs:  # the minima, as `Result.classes` has them
                groups = enumerate(Result(run).classes())
                self.class_of = {str(one.fingerprint): n for n, group in groups for one in group}
        self._num_first = self._num_first or len(legs)
        for leg in legs:
            self.legs.append(plain(_shown_leg(leg)))
            self.details.append(plain(_details(leg, max(1, self._num_first))))
        if legs or measured != self.measured:
            self.measured = measured
            self._group()
        return len(legs)

    def _opened(self) -> contextlib.AbstractContextManager[RunFile]:
        """The file for a moment, checked whole the first time, then only what is read.

        A connection that stays open keeps a log beside the file, which damages a new run there.
        """
        if self._known:
            return RunFile.open_damaged(self.path)
        return contextlib.closing(RunFile.open(self.path))

    @property
    def notes(self) -> list[str]:
        """What a reader of the page should know about the file."""
        if self.trouble and not self.legs:
            return [self.trouble]
        return [] if self.num_rides else ["No leg has been ridden yet."]

    # --- what was measured

    @property
    def _about(self) -> dict[str, Any]:
        return self.meta.get("measures") or {}

    @property
    def signature(self) -> str | None:
        """What the signature is called, if the run has one."""
        about = self._about.get("signature")
        return None if about is None else re.split("[:.]", str(about["name"]))[-1]

    @property
    def metric_names(self) -> list[str]:
        return list(self._about.get("metrics", {}))

    def metric(self, leg: dict[str, Any], name: str) -> float | None:
        value = leg.get("metrics", {}).get(name)
        return value[0] if isinstance(value, list) else value

    # --- how much there is

    @property
    def num_rides(self) -> int:
        return sum(bool(leg["fingerprint"]) for leg in self.legs)

    @property
    def num_points(self) -> int:
        """How many ends of legs the groups hold."""
        return sum(map(len, self.members.values()))

    def spent(self) -> dict[str, tuple[float, float]]:
        """Of each budget how much is spent, and how much there is."""
        budget = self.meta.get("budget") or {}
        done = {
            "max_rides": self.num_rides,
            "max_steps": sum(leg["num_steps"] for leg in self.legs),
            "max_hvps": sum(leg["cost"][2] for leg in self.legs),
            "max_seconds": sum(leg["cost"][5] for leg in self.legs),
        }
        return {name: (done[name], budget[name]) for name in done if budget.get(name) is not None}

    # --- the solutions of lowest loss

    @staticmethod
    def level(leg: dict[str, Any]) -> float:
        """The loss where a leg led to; at infinity its limit."""
        end = leg.get("solution")
        loss = leg["loss"] if end is None else end["loss"]
        if end is not None and end["kind"] == "at infinity" and end["limit"] is not None:
            loss = end["limit"]
        return float("inf") if loss is None else loss

    def best(self) -> dict[str, Any] | None:
        """The solution of lowest loss; where there is none, the lowest end of all."""
        return min(self.groups or self.legs, key=self._rank, default=None)

    def compared(self) -> list[int]:
        """The groups of lowest loss, as many as fit side by side."""
        ranks = list(map(self._rank, self.groups))
        return sorted(range(len(ranks)), key=ranks.__getitem__)[:MAX_COMPARED]

    def points(self) -> np.ndarray:
        """The points of the groups that are compared."""
        if not self.groups:
            return np.zeros((0, 0))
        names = [Fingerprint.parse(self.groups[one]["fingerprint"]) for one in self.compared()]
        with self._opened() as run:
            legs = [run.leg(name) for name in names]
        return np.array([leg.x if leg.finish is None else leg.finish.x for leg in legs])

    def differ(self) -> dict[str, Any]:
        """How the solutions of lowest loss differ."""
        if self._differ is None or self._differ[0] != self.num_points:
            points = self.points()
            apart = [np.linalg.norm(points - point, axis=1) for point in points]
            found = {
                "groups": self.compared(),
                "distances": [[float(f"{value:.5g}") for value in row] for row in apart],
                **differences(points, self.meta.get("problem", {}).get("params", [])),
            }
            self._differ = self.num_points, plain({**found, "values": encoded(found["values"])})
        return self._differ[1]

    def _rank(self, leg: dict[str, Any]) -> tuple[float, tuple[int, bytes]]:
        return float(f"{self.level(leg):.6g}"), Fingerprint.parse(leg["fingerprint"]).rank

    # --- the groups

    def _group(self) -> None:
        """Give legs their metrics and the number of their solution."""
        measures = self.measured
        numbers = [self.class_of.get(leg["fingerprint"]) for leg in self.legs]
        if self.signature is not None:
            values = measures.get(SIGNATURE, {})
            signatures = [  # None where a leg does not count
                values.get(leg["fingerprint"])
                if leg.get("solution", {"kind": "ride"})["kind"] in self._about["kinds"]
                else None
                for leg in self.legs
            ]
            numbers = signature_classes(signatures)
            named = zip(reversed(numbers), reversed(signatures), strict=True)
            self.labels = {group: _label(one) for group, one in named if group is not None}
        self.members = {}
        for leg, group in zip(self.legs, numbers, strict=True):
            where = leg["fingerprint"]
            found = {name: measures.get(name, {}).get(where) for name in self.metric_names}
            if any(value is not None for value in found.values()):
                leg["metrics"] = found
            leg.pop("group", None)
            if group is not None:
                leg["group"] = group
                self.members.setdefault(group, []).append(leg)
        first = 0 if self.signature is not None else 1  # minima that are one have one loss
        self.groups = [
            min(self.members[group], key=lambda leg: self._rank(leg)[first:])
            for group in range(len(self.members))
        ]


def _shown_leg(leg: Leg) -> dict[str, Any]:
    end = leg.finish
    shown: dict[str, Any] = {
        "fingerprint": str(leg.fingerprint),
        "loss": leg.loss,
        "num_steps": leg.num_steps,
        "ended_by": list(leg.ended_by),
        "num_ridges": leg.num_ridges,
        "num_branches": 2 * len(leg.turns),
        "eigenvalue": leg.trace["eigenvalue"][0] if leg.trace else None,
        "cost": [float(getattr(leg.cost, name)) for name in COSTS],
        "certificate": certificate_of(leg.trace),
    }
    if end is not None:
        numbers = ("loss", "grad_norm", "least_eigenvalue", "num_flat", "limit", "num_steps")
        shown["solution"] = {
            "kind": end.kind,
            "doubt": end.doubt,
            "cost": [float(getattr(end.cost, name)) for name in COSTS],
            **{name: getattr(end, name) for name in numbers},
        }
    if leg.linked_to is not None:
        shown["linked_to"] = str(leg.linked_to)
    return shown


def _details(leg: Leg, num_legs: int) -> dict[str, Any]:
    """What is shown of a chosen leg; a page of ten thousand legs stays small."""
    max_points = max(24, min(240, MAX_POINTS // num_legs))
    some = leg.clusters[: max(12, min(200, MAX_CLUSTERS // num_legs))]
    parts = ("eigenvalue", "multiplicity", "spread", "gap", "is_complete")
    return {
        "clusters": [[getattr(one, part) for part in parts] for one in some],
        "num_clusters": len(leg.clusters),
        "trace": pack_trace(leg.trace, max_points),
    }


def _label(signature: Any) -> str:
    """A signature in a few letters."""
    text = signature if isinstance(signature, str) else json.dumps(signature)
    return text if len(text) <= 40 else f"{text[:26]} … {text[-8:]}"
