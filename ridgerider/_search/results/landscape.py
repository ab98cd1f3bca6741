"""Landscape: the map that `explore` made, read from its run file.

Minima are the places, saddles of index 1 the passes between them. The barrier between two minima is
the loss at the highest point of the lowest path: of all paths along passes, the one whose highest
pass is lowest, which is the path in a minimum spanning tree.
"""

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ridgerider._check import AtLeast0, Count, Limit, check_count, checked
from ridgerider._search.engine.climbs import is_guess, is_jump
from ridgerider._search.results.completeness import Completeness, Estimate
from ridgerider._search.results.result import (
    RunView,
    Signature,
    Solutions,
    Stationary,
    grouped,
    mark_by,
)
from ridgerider._search.tree import Fingerprint, Leg, Turn

if TYPE_CHECKING:
    import networkx

Place = int | str | Fingerprint | Stationary  # how a minimum is named


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
    """The loss at the highest point of the lowest path between two minima.

    It is symmetric, and infinite between minima that no known path joins; printed, it says what may
    help. `forward` and `backward` are its height above either minimum, `saddle` the
    number of the highest saddle.
    """

    saddle: int | None = None
    forward: float = math.inf
    backward: float = math.inf
    text: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class DiscretePath:
    """The lowest path between two minima: minima and the saddles between them, in turn."""

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


class Landscape(RunView):
    """The stationary points of a loss, and the paths between them.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import six_hump_camel
    >>> landscape = rr.explore(six_hump_camel())
    >>> len(landscape.minima())
    6
    >>> landscape.barrier(0, 1) == landscape.barrier(1, 0)
    True
    """

    def to_pandas(self) -> Any:
        """A row for each stationary point, minima first. Needs pandas.

        >>> import ridgerider as rr
        >>> from ridgerider.problems import six_hump_camel
        >>> frame = rr.explore(six_hump_camel()).to_pandas()
        >>> frame[frame.morse_index == 0].loss.round(3).tolist()
        [-1.032, -1.032, -0.215, -0.215, 2.104, 2.104]
        """
        return Solutions(self._points).to_pandas()

    def _listed(self) -> Sequence[Stationary]:
        return self._points

    # --- points

    @checked
    def minima(
        self, tolerance: AtLeast0 | None = None, *, signature: Signature | None = None
    ) -> Solutions[Stationary]:
        """The different minima, lowest first. Ends of other kinds are in `solutions()`.

        With `tolerance` or `signature`, as in `Result.minima`, those that are equal by these are
        one: the lowest stands for them, and keeps its number.

        >>> import jax.numpy as jnp
        >>> import ridgerider as rr
        >>> problem = rr.Problem(lambda x: jnp.sum((x**2 - 1) ** 2), jnp.array([0.7, 0.6]))
        >>> landscape = rr.explore(problem)
        >>> len(landscape.minima()), len(landscape.minima(signature=jnp.sort))
        (4, 3)
        """
        minima = [one for one in self._points if one.kind == "minimum"]
        if tolerance is None and signature is None:
            return Solutions(minima)
        return Solutions(
            replace(group[0], multiplicity=sum(one.multiplicity for one in group))
            for group in grouped(minima, mark_by(tolerance, signature))
        )

    @checked
    def saddles(self, index: Count | None = 1) -> Solutions[Stationary]:
        """The different saddles with `index` negative eigenvalues, lowest first; None: all."""
        return Solutions(
            [one for one in self._points if one.morse_index and index in (None, one.morse_index)]
        )

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
        return [self._minimum_at.get(name) for name in self.start_names()]

    def start_names(self) -> list[Fingerprint]:
        """The fingerprints of the legs that lead to the minima of `starts()`."""
        root = self.leg(Fingerprint())
        names = [root.fingerprint]
        for (index, member), way in zip(root.turns, root.ways, strict=True):
            if is_jump(way) and not is_guess(way):
                names.append(root.fingerprint.child(Turn(index, 1, member)))
        return names

    @checked
    def connect(
        self, a: Place, b: Place, *, num_images: Count = 7, max_calls: Limit = None
    ) -> "Landscape":
        """The map with what lies between two minima; see `rr.connect`. It needs the problem.

        The legs are added to this run, and to its file if it has one.

        >>> import ridgerider as rr
        >>> from ridgerider.problems import mueller_brown
        >>> landscape = rr.explore(mueller_brown(), max_rides=20)
        >>> landscape.connect(0, 1).barrier(0, 1).saddle is not None
        True
        """
        from ridgerider._search.engine.connect import connected

        minima = self.minima()
        names = [minima[self._number(*one)].fingerprint for one in (("a", a), ("b", b))]
        return connected(self, (names[0], names[1]), num_images, max_calls)

    # --- paths

    def edges(self) -> list[Edge]:
        """The passes: each saddle of index 1 with the minima below it."""
        return list(self._edges)

    def graph(self) -> "networkx.MultiGraph":
        """Minima as nodes and passes as edges, with their losses."""
        import networkx  # when it is needed: it takes a while

        graph = networkx.MultiGraph()
        for one in self.minima():
            graph.add_node(one.number, loss=one.loss, fingerprint=str(one.fingerprint))
        for edge in self._edges:
            a, b = edge.minima
            if a is not None and b is not None:
                graph.add_edge(a, b, key=edge.saddle, loss=edge.loss, saddle=edge.saddle)
        return graph

    def components(self) -> list[list[int]]:
        """The minima that paths join, by number, the largest part first."""
        import networkx

        parts = map(sorted, networkx.connected_components(self._forest))
        return sorted(parts, key=lambda part: (-len(part), part))

    def junctions(self) -> list[Junction]:
        """How the minima join as the loss rises, lowest first: the disconnectivity graph.

        >>> import ridgerider as rr
        >>> from ridgerider.problems import mueller_brown
        >>> [(one.saddle, one.parts) for one in rr.explore(mueller_brown()).junctions()]
        [(0, (1, 2)), (1, (0, 3))]
        """
        count, found = len(self.minima()), list[Junction]()
        part = list(range(count))  # that each minimum is in
        joined = sorted(self._forest.edges(data=True), key=lambda ends: ends[2]["weight"])
        for one, two, about in joined:
            edge = self._edges[about["saddle"]]
            a, b = sorted((part[one], part[two]))
            part = [count + len(found) if number in (a, b) else number for number in part]
            found.append(Junction(edge.saddle, edge.loss, (a, b)))
        return found

    @checked
    def barrier(self, a: Place, b: Place) -> Barrier:
        """The highest loss on the lowest known path from `a` to `b`; see `path`."""
        one, two = self._number("a", a), self._number("b", b)
        try:
            path = self.path(one, two)
        except ValueError as error:
            barrier = Barrier(math.inf)
            barrier.text = f"inf: {error}"
            return barrier
        barrier = Barrier(path.maximum)
        if path.saddles:
            barrier.saddle = max(path.saddles, key=lambda point: point.loss).number
        barrier.forward, barrier.backward = (barrier - path.losses[end] for end in (0, -1))
        barrier.text = f"{path.maximum:.6g}"
        hops = [edge for edge in self._edges if edge.minima == (one, one)]
        if one == two and hops:
            hop = min(hops, key=lambda edge: edge.loss)
            barrier.text += (
                f": both are minimum {one}; saddle {hop.saddle} joins it with a copy or itself, "
                f"{hop.loss - barrier:.6g} above it"
            )
        return barrier

    @checked
    def path(self, a: Place, b: Place) -> DiscretePath:
        """The lowest known path from `a` to `b`: minima and saddles in turn."""
        import networkx

        one, two = self._number("a", a), self._number("b", b)
        try:
            nodes = networkx.shortest_path(self._forest, one, two)
        except networkx.NetworkXNoPath:
            is_cut = self.endings()["max_steps"]
            raise ValueError(
                f"no path is known between minima {one} and {two}; {self.num_open()} branches are "
                f"open, connect({one}, {two}) looks for a path"
                + (f", and {is_cut} climbs ended by max_steps of rr.Climb." if is_cut else ".")
            ) from None
        minima, saddles = self.minima(), self.saddles()
        points = [minima[one]]
        for ends in pairwise(nodes):
            points += [saddles[self._forest.edges[ends]["saddle"]], minima[ends[1]]]
        return DiscretePath(tuple(points))

    def completeness(self) -> Completeness:
        """Which ascent directions were climbed, and an estimate of what is missing."""
        ridden = Counter(name.parent for name in self.fingerprints() if name[-1].up)
        left = Counter(one.fingerprint.parent for one in self._store.open_branches())
        climbed = [
            (ridden[name], ridden[name] + left[name])
            for name in (one.fingerprint for one in self.minima())
        ]
        ends = {name: self._links.get(name, name) for name in self.fingerprints() if name}
        known = {one.fingerprint for one in self.minima()}
        by_starts = {end for name, end in ends.items() if name[-1].start} & known
        by_climbs = {end for name, end in ends.items() if not name[-1].start} & known
        minima = Estimate.of(one.multiplicity for one in self.minima())
        return Completeness(
            climbed=tuple(climbed),
            num_open=self.num_open(),
            minima=minima.or_overlap(len(by_starts), len(by_climbs), len(by_starts & by_climbs)),
            saddles=Estimate.of(one.multiplicity for one in self.saddles()),
        )

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C ended it before its budget did."""
        return bool(self._store.meta.get("is_interrupted"))

    # --- inside

    @cached_property
    def _links(self) -> dict[Fingerprint, Fingerprint]:
        return self.links()

    @cached_property
    def _legs(self) -> dict[Fingerprint, Leg]:
        """The legs that stand for the points."""
        return {
            name: self._store.leg(name)
            for name, finish in self._store.finishes()
            if name not in self._links and finish.kind in ("minimum", "saddle")
        }

    @cached_property
    def _points(self) -> list[Stationary]:
        """Minima first, then saddles, each kind with the lowest first."""
        visits, points = Counter(self._links.values()), []
        for name, leg in self._legs.items():
            assert leg.finish is not None
            found = {**vars(self._solution(name, leg.finish)), "cost": leg.cost}
            found["multiplicity"] = 1 + visits[name]
            points.append(Stationary(**found, morse_index=leg.num_ridges))
        points.sort(
            key=lambda one: (one.morse_index, float(f"{one.loss:.9g}"), one.fingerprint.rank)
        )
        numbers = Counter[int]()
        for place, one in enumerate(points):
            points[place] = replace(one, number=numbers[one.morse_index])
            numbers[one.morse_index] += 1
        return points

    @cached_property
    def _minimum_at(self) -> dict[Fingerprint, int]:
        """The number of the minimum that a leg reached, by its fingerprint."""
        numbers = {one.fingerprint: one.number for one in self.minima()}
        links = {name: numbers[end] for name, end in self._links.items() if end in numbers}
        return numbers | links

    @cached_property
    def _edges(self) -> list[Edge]:
        below: dict[Fingerprint, list[int]] = {}
        for name in self.fingerprints():
            if not name[-1].up and name in self._minimum_at:
                below.setdefault(name.parent, []).append(self._minimum_at[name])
        edges = []
        for one in self.saddles():
            ends, ways = below.get(one.fingerprint, []), self._legs[one.fingerprint].ways
            if ends and ways and ways[0].is_even:  # the other side is a copy of this one
                ends = ends * 2
            first, second, *_ = *sorted(ends), None, None
            edges.append(Edge(one.number, (first, second), one.loss))
        return edges

    @cached_property
    def _forest(self) -> "networkx.Graph":
        """A minimum spanning forest, each of whose edges has the number of its saddle."""
        import networkx

        graph = networkx.Graph()
        graph.add_nodes_from(range(len(self.minima())))
        lowest_first = sorted(self._edges, key=lambda edge: (edge.loss, edge.saddle))
        for weight, edge in enumerate(lowest_first):
            a, b = edge.minima
            if a is not None and b is not None and not graph.has_edge(a, b):
                graph.add_edge(a, b, weight=weight, saddle=edge.saddle)
        return networkx.minimum_spanning_tree(graph)

    def _number(self, name: str, what: Place) -> int:
        if isinstance(what, Stationary) and what.morse_index == 0:
            what = what.fingerprint
        if isinstance(what, str | Fingerprint):
            with suppress(ValueError):
                if Fingerprint.parse(what) in self._minimum_at:
                    return self._minimum_at[Fingerprint.parse(what)]
            raise ValueError(
                f"`{name}` must be the fingerprint of a minimum of this map, not {str(what)!r}."
            )
        check_count(name, what, 0, len(self.minima()) - 1)
        return int(what)  # type: ignore[arg-type]
