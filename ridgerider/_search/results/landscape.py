"""Landscape: the map that `explore` made, read from its run file.

Minima are the places, saddles of index 1 the passes between them. The barrier between two minima is
the loss at the highest point of the lowest way: of all ways along passes, the one whose highest
pass is lowest, which is the way in a minimum spanning tree.
"""

import contextlib
import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ridgerider._check import check_count, needs
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem
from ridgerider._search.engine.climbs import is_jump
from ridgerider._search.engine.movers import stored_mover
from ridgerider._search.results import notebook
from ridgerider._search.results.export import Row, solution_row
from ridgerider._search.results.result import Result, Solution, Solutions, Table
from ridgerider._search.runfile.problem import check_problem
from ridgerider._search.runfile.write import Store
from ridgerider._search.tree.tree import Fingerprint, Leg, Turn

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True)
class Stationary(Solution):
    """A stationary point of a map.

    `number` is its place in `minima()` or `saddles()`, lowest loss first; `morse_index` counts the
    negative eigenvalues of the Hessian there; `multiplicity` the legs that came to it.
    """

    morse_index: int = 0
    number: int = -1


@dataclass(frozen=True)
class Edge:
    """A pass: a saddle of index 1, and the minima below it on both sides, by number.

    A side is None if the descent to it did not end at a minimum. Both may be the same one.
    """

    saddle: int
    minima: tuple[int | None, int | None]
    loss: float


@dataclass(frozen=True)
class Junction:
    """Where two parts of a map join as the loss rises: at a saddle.

    `parts` are numbers of minima, or, from the number of minima on, of junctions before this one.
    """

    saddle: int
    loss: float
    parts: tuple[int, int]


class Barrier(float):
    """The loss at the highest point of the lowest way between two minima.

    It is symmetric, and infinite between minima that no way joins; `text` then says which parts of
    the map they are in. `forward` and `backward` are its height above either minimum, `saddle` the
    number of the highest saddle.
    """

    saddle: int | None
    forward: float
    backward: float
    text: str

    def __new__(
        cls, loss: float, saddle: int | None, forward: float, backward: float, text: str
    ) -> "Barrier":
        new = super().__new__(cls, loss)
        new.saddle, new.forward, new.backward, new.text = saddle, forward, backward, text
        return new

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple:
        return Barrier, (float(self), self.saddle, self.forward, self.backward, self.text)


@dataclass(frozen=True)
class Way:
    """The lowest way between two minima: points in turn minima and saddles, by what they are."""

    points: tuple[Stationary, ...]

    @property
    def losses(self) -> tuple[float, ...]:
        return tuple(one.loss for one in self.points)

    @property
    def maximum(self) -> float:
        return max(self.losses)

    @property
    def minima(self) -> tuple[Stationary, ...]:
        return self.points[::2]

    @property
    def saddles(self) -> tuple[Stationary, ...]:
        return self.points[1::2]

    def __len__(self) -> int:
        return len(self.points)


@dataclass(frozen=True)
class Estimate:
    """How many there are, from how often each was found (Chao), with an interval of 95 %.

    From `once` found once and `twice` found twice: found + once (once - 1) / 2 (twice + 1). It is a
    lower bound in expectation, and says nothing of what cannot be reached.
    """

    found: int
    once: int
    twice: int
    estimate: float
    low: float
    high: float

    @staticmethod
    def of(counts: Iterable[int]) -> "Estimate":
        """From the number of visits to each.

        >>> Estimate.of([3, 2, 5, 2, 4]).estimate
        5.0
        """
        counts = list(counts)
        found, once, twice = len(counts), counts.count(1), counts.count(2)
        missing = once * (once - 1) / (2 * (twice + 1))
        if missing <= 0:
            return Estimate(found, once, twice, float(found), float(found), float(found))
        variance = (
            missing
            + once * (2 * once - 1) ** 2 / (4 * (twice + 1) ** 2)
            + once**2 * twice * (once - 1) ** 2 / (4 * (twice + 1) ** 4)
        )
        spread = math.exp(1.96 * math.sqrt(math.log(1 + variance / missing**2)))
        return Estimate(
            found, once, twice, found + missing, found + missing / spread, found + missing * spread
        )

    def __str__(self) -> str:
        about = f"about {self.estimate:.0f} ({self.low:.0f} to {self.high:.0f})"
        return f"{self.found} found, {about} within reach of such rides"


@dataclass(frozen=True)
class Completeness:
    """What was climbed, and what may be missing.

    `climbed[number]` is, for each minimum, how many ways up were climbed and how many are known;
    `alike` counts ways that a symmetry makes equal to one that was.
    """

    climbed: tuple[tuple[int, int], ...]
    alike: int
    num_open: int
    minima: Estimate
    saddles: Estimate
    endings: Counter[str] = field(default_factory=Counter)

    @property
    def is_exhausted(self) -> bool:
        """Nothing is left to climb."""
        return self.num_open == 0

    def __str__(self) -> str:
        ridden, total = (sum(counts) for counts in zip(*self.climbed, strict=True))
        done = sum(one == most for one, most in self.climbed)
        rest = (
            "nothing is left to climb"
            if self.is_exhausted
            else f"{self.num_open} branches are open"
        )
        return (
            f"{ridden} of {total} ways up climbed, all of them from {done} of "
            f"{len(self.climbed)} minima; {rest}. "
            f"Minima: {self.minima}. Transition states: {self.saddles}."
        )


class Landscape:
    """The stationary points of a loss, and the ways between them.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import six_hump_camel
    >>> landscape = rr.explore(six_hump_camel())
    >>> len(landscape.minima())
    6
    >>> landscape.barrier(0, 1) == landscape.barrier(1, 0)
    True
    """

    def __init__(self, store: Store, problem: Problem | None = None, mover: Any = None):
        self._store, self.problem = store, problem
        self.result = Result(store, problem, mover)

    @staticmethod
    def load(path: str | PathLike, problem: Problem | None = None) -> "Landscape":
        """Open the run file of a map, also while it is still being written."""
        store = Store.open(path)
        with store.closed_on_error():
            meta = store.meta
            if meta["mover"] != "climbs":
                raise ValueError(f"{path} is a search and no map: use rr.load.")
            if problem is not None:
                check_problem(meta, problem, path)
            mover: Any = None
            with contextlib.suppress(ValueError):  # a symmetry of the user's own
                mover = stored_mover(path, meta)
        return Landscape(store, problem, mover)

    def __repr__(self) -> str:
        where = self.file or "memory"
        return (
            f"Landscape({self.name!r}, {len(self.minima())} minima, {len(self.saddles())} "
            f"transition states, {len(self.result)} legs, in {where})"
        )

    def _repr_html_(self) -> str:
        names = [Fingerprint(), *self.fingerprints()[: notebook.MAX_TREE]]
        minima, numbers = self.minima(), dict[str, Any]()
        numbers["minima"], numbers["transition states"] = len(minima), len(self.saddles())
        numbers["parts"], numbers["climbs and descents"] = len(self.components()), len(self)
        return notebook.box(
            notebook.title(self.name, f"in {self.file or 'memory'}"),
            notebook.tiles(numbers),
            notebook.tree({name: self.leg(name) for name in names}),
            minima._repr_html_(),
        )

    def to_pandas(self) -> Any:
        """A row for each stationary point, minima first. Needs pandas.

        >>> import ridgerider as rr
        >>> from ridgerider.problems import six_hump_camel
        >>> frame = rr.explore(six_hump_camel()).to_pandas()
        >>> frame[frame.morse_index == 0].loss.round(3).tolist()
        [-1.032, -1.032, -0.215, -0.215, 2.104, 2.104]
        """
        points = (*self.minima(), *self.saddles(None))
        return notebook.frame([_point_row(one) for one in points if isinstance(one, Stationary)])

    def export(self, path: str | PathLike, *, table: Table = "solutions") -> FilePath:
        """Write a table as `Result.export` does; "solutions" are all stationary points.

        >>> import tempfile
        >>> import ridgerider as rr
        >>> from ridgerider.problems import mueller_brown
        >>> path = rr.explore(mueller_brown()).export(f"{tempfile.mkdtemp()}/points.csv")
        >>> [line.split(",")[:2] for line in path.read_text().splitlines()][:3]
        [['number', 'morse_index'], ['0', '0'], ['1', '0']]
        """
        return _Points(self).export(path, table=table)

    @property
    def file(self) -> FilePath | None:
        """The run file, or None if the map is in memory."""
        return self._store.path

    @property
    def name(self) -> str:
        return self._store.meta["name"]

    @property
    def cost(self) -> Cost:
        return self._store.cost()

    def leg(self, fingerprint: str | Fingerprint) -> Leg:
        """One climb or descent, whole."""
        return self.result.leg(fingerprint)

    def fingerprints(self) -> list[Fingerprint]:
        return self.result.fingerprints()

    def __len__(self) -> int:
        """How many climbs and descents were ridden."""
        return len(self.result)

    def replay(self, fingerprint: str | Fingerprint) -> list[Leg]:
        """Ride one path again from the start, climbs and descents in turn."""
        return self.result.replay(fingerprint, keep_path=False)

    # --- points

    def minima(self) -> Solutions:
        """The different minima, lowest first."""
        return Solutions([one for one in self._points if one.morse_index == 0])

    def starts(self) -> list[int | None]:
        """By number, the minimum below the start and below each of `starts`; None: none was found.

        >>> import jax.numpy as jnp
        >>> import ridgerider as rr
        >>> problem = rr.Problem(lambda x: jnp.sum((x**2 - 1) ** 2 + x / 4), jnp.array([0.8]))
        >>> landscape = rr.explore(problem, starts=[jnp.array([-0.7])])
        >>> here, there = landscape.starts()
        >>> here, there, round(float(landscape.barrier(here, there)), 3)
        (1, 0, 1.008)
        """
        links = self._store.links()
        numbers = {one.fingerprint: one.number for one in self.minima()}  # type: ignore[attr-defined]
        root = self.leg(Fingerprint())
        names = [root.fingerprint]
        for (index, member), way in zip(root.turns, root.ways, strict=True):
            if is_jump(way):
                names.append(root.fingerprint.child(Turn(index, 1, member)))
        return [numbers.get(links.get(name, name)) for name in names]

    def saddles(self, index: int | None = 1) -> Solutions:
        """The different saddles with so many negative eigenvalues, lowest first; None: all."""
        if index is not None:
            check_count("index", index, 1)
        return Solutions(
            [one for one in self._points if one.morse_index and index in (None, one.morse_index)]
        )

    def edges(self) -> list[Edge]:
        """The passes: each saddle of index 1 with the minima below it."""
        return list(self._edges)

    # --- ways

    def graph(self) -> "networkx.MultiGraph":
        """Minima as nodes and passes as edges, with their losses."""
        with needs("landscape", "a graph"):
            import networkx
        graph = networkx.MultiGraph()
        for one in self.minima():
            assert isinstance(one, Stationary)
            graph.add_node(one.number, loss=one.loss, fingerprint=str(one.fingerprint))
        for edge in self._edges:
            a, b = edge.minima
            if a is not None and b is not None:
                graph.add_edge(a, b, key=edge.saddle, loss=edge.loss, saddle=edge.saddle)
        return graph

    def components(self) -> list[list[int]]:
        """The minima that ways join, by number, the largest part first."""
        left, parts = set(range(len(self.minima()))), []
        while left:
            part = self._reached(min(left))
            left -= part.keys()
            parts.append(sorted(part))
        return sorted(parts, key=lambda part: (-len(part), part))

    def junctions(self) -> list[Junction]:
        """How the minima join as the loss rises, lowest first: the disconnectivity graph.

        >>> import ridgerider as rr
        >>> from ridgerider.problems import mueller_brown
        >>> [(one.saddle, one.parts) for one in rr.explore(mueller_brown()).junctions()]
        [(0, (1, 2)), (1, (0, 3))]
        """
        count = len(self.minima())
        part, found = list(range(count)), list[Junction]()
        edges = {edge.saddle: edge for ends in self._tree.values() for edge in ends}
        for edge in sorted(edges.values(), key=lambda edge: (edge.loss, edge.saddle)):
            a, b = (part[end] for end in edge.minima if end is not None)
            found.append(Junction(edge.saddle, edge.loss, (min(a, b), max(a, b))))
            new = count + len(found) - 1
            part = [new if one in (a, b) else one for one in part]
        return found

    def barrier(self, a: Any, b: Any) -> Barrier:
        """The highest loss on the lowest way from `a` to `b`: numbers, points or addresses."""
        one, two = self._number(a), self._number(b)
        losses = [point.loss for point in self.minima()]
        steps = self._steps(one, two)
        if steps is None:
            parts = self.components()
            where = [next(i for i, part in enumerate(parts) if n in part) for n in (one, two)]
            text = (
                f"inf: no way joins minimum {one}, in component {where[0]} of {len(parts)}, and "
                f"minimum {two}, in component {where[1]}"
            )
            return Barrier(math.inf, None, math.inf, math.inf, text)
        if not steps:
            return Barrier(losses[one], None, 0.0, 0.0, f"{losses[one]:.6g}")
        top = max(steps, key=lambda edge: edge.loss)
        loss = top.loss
        text = f"{loss:.6g}"
        return Barrier(loss, top.saddle, loss - losses[one], loss - losses[two], text)

    def path(self, a: Any, b: Any) -> Way:
        """The lowest way from `a` to `b`: minima and saddles in turn."""
        one, two = self._number(a), self._number(b)
        steps = self._steps(one, two)
        if steps is None:
            raise ValueError(f"there is no way: {self.barrier(one, two)}.")
        minima, saddles = self.minima(), self.saddles()
        here, points = one, [minima[one]]
        for edge in steps:
            here = edge.minima[0] if edge.minima[1] == here else edge.minima[1]  # type: ignore
            points += [saddles[edge.saddle], minima[here]]
        return Way(tuple(points))  # type: ignore[arg-type]  # they are Stationary

    # --- completeness

    def completeness(self) -> Completeness:
        """Which ways up were climbed, and an estimate of what is missing."""
        ridden = Counter(name.parent for name in self._store.fingerprints() if name and name[-1].up)
        climbed, alike = [], 0
        for one in self.minima():
            leg = self._legs[one.fingerprint]
            total = sum(1 if way.is_even else 2 for way in leg.ways)
            climbed.append((ridden[one.fingerprint], total))
            alike += sum(2 * way.class_size for way in leg.ways) - total
        return Completeness(
            climbed=tuple(climbed),
            alike=alike,
            num_open=self._store.num_open(),
            minima=Estimate.of(one.multiplicity for one in self.minima()),
            saddles=Estimate.of(one.multiplicity for one in self.saddles()),
            endings=self.result.endings(),
        )

    # --- inside

    @cached_property
    def _legs(self) -> dict[Fingerprint, Leg]:
        """The legs that stand for the points."""
        links = self._store.links()
        names = [name for name, _ in self._store.finishes() if name not in links]
        legs = {name: self._store.leg(name) for name in names}
        return {
            name: leg
            for name, leg in legs.items()
            if leg.finish is not None and leg.finish.kind in ("minimum", "saddle", "unverified")
        }

    @cached_property
    def _points(self) -> list[Stationary]:
        visits = Counter(self._store.links().values())
        points = [self._stationary(leg, 1 + visits[name]) for name, leg in self._legs.items()]
        points.sort(
            key=lambda one: (
                one.morse_index,
                float(f"{one.loss:.9g}"),
                one.fingerprint.depth,
                one.fingerprint.sort_key(),
            )
        )
        numbers, numbered = Counter[int](), []
        for one in points:
            numbered.append(replace(one, number=numbers[one.morse_index]))
            numbers[one.morse_index] += 1
        return numbered

    @cached_property
    def _edges(self) -> list[Edge]:
        links = self._store.links()
        numbers = {one.fingerprint: one.number for one in self._points if one.morse_index == 0}
        below: dict[Fingerprint, list[int]] = {}
        for name in self._store.fingerprints():
            if name and not name[-1].up:
                end = numbers.get(links.get(name, name))
                if end is not None:
                    below.setdefault(name.parent, []).append(end)
        edges = []
        for one in self.saddles():
            assert isinstance(one, Stationary)
            ends = below.get(one.fingerprint, [])
            leg = self._legs[one.fingerprint]
            if ends and leg.ways and leg.ways[0].is_even:  # the other side is a copy of this one
                ends = ends * 2
            both = sorted(ends)[:2]
            pair = (both[0] if both else None, both[1] if len(both) > 1 else None)
            edges.append(Edge(one.number, pair, one.loss))
        return edges

    @cached_property
    def _tree(self) -> dict[int, list[Edge]]:
        """A minimum spanning forest: for each minimum its edges."""
        parent = list(range(len(self.minima())))

        def root(number: int) -> int:
            while parent[number] != number:
                parent[number] = parent[parent[number]]
                number = parent[number]
            return number

        tree: dict[int, list[Edge]] = {}
        for edge in sorted(self._edges, key=lambda edge: (edge.loss, edge.saddle)):
            a, b = edge.minima
            if a is None or b is None or root(a) == root(b):
                continue
            parent[root(a)] = root(b)
            for end in (a, b):
                tree.setdefault(end, []).append(edge)
        return tree

    def _reached(self, start: int) -> dict[int, tuple[int, Edge] | None]:
        """The minima that ways lead to, each with where from."""
        seen: dict[int, tuple[int, Edge] | None] = {start: None}
        queue = deque([start])
        while queue:
            here = queue.popleft()
            for edge in self._tree.get(here, []):
                for end in edge.minima:
                    if end is not None and end not in seen:
                        seen[end] = (here, edge)
                        queue.append(end)
        return seen

    def _steps(self, a: int, b: int) -> list[Edge] | None:
        seen = self._reached(a)
        if b not in seen:
            return None
        steps: list[Edge] = []
        while (before := seen[b]) is not None:
            b, edge = before
            steps.append(edge)
        return steps[::-1]

    def _number(self, what: Any) -> int:
        minima = self.minima()
        if isinstance(what, Stationary) and what.morse_index == 0:
            what = what.fingerprint
        if isinstance(what, str | Fingerprint):
            name = Fingerprint.parse(what)
            name = self._store.links().get(name, name)
            for one in minima:
                if one.fingerprint == name:
                    assert isinstance(one, Stationary)
                    return one.number
            raise ValueError(f"`{what}` must be the address of a minimum of this map.")
        check_count("a minimum", what, 0, len(minima) - 1)
        return what

    def _stationary(self, leg: Leg, visits: int) -> Stationary:
        finish = leg.finish
        assert finish is not None
        params: PyTree = np.asarray(finish.x)
        if self.problem is not None:
            params = jax.device_get(self.problem.unravel(jnp.asarray(params)))
        return Stationary(
            fingerprint=leg.fingerprint,
            params=params,
            loss=float(finish.loss),
            grad_norm=float(finish.grad_norm),
            least_eigenvalue=float(finish.least_eigenvalue),
            kind=finish.kind,
            cost=leg.cost,
            multiplicity=visits,
            num_flat=int(finish.num_flat),
            error=float(finish.error),
            doubt=finish.doubt,
            morse_index=leg.num_ridges,
        )


class _Points(Result):
    """The tables of a map: its stationary points, with how often each was found."""

    def __init__(self, landscape: Landscape):
        super().__init__(landscape._store, landscape.problem, None)
        self._landscape = landscape

    def _listed(self, table: Table) -> list[Solution]:
        minima, saddles = self._landscape.minima(), self._landscape.saddles(None)
        return [*minima, *saddles] if table == "solutions" else list(minima)

    def _row(self, one: Solution, kind: str) -> Row:
        assert isinstance(one, Stationary)
        return {**_point_row(one), **super()._row(one, kind)}


def _point_row(one: Stationary) -> Row:
    return {"number": one.number, "morse_index": one.morse_index, **solution_row(one)}
