"""Result: what a search found, read from its run file; its solutions, one by one and as a table."""

import html
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ridgerider._check import AtLeast0, checked
from ridgerider._core.descend.finish import Finish, Kind
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem, flat
from ridgerider._search.crew.interrupt import interruptible
from ridgerider._search.results import export as files
from ridgerider._search.runfile.store import RunFile
from ridgerider._search.same import IS_SOLUTION, TOLERANCE, Classes, reach_of
from ridgerider._search.tree import Fingerprint, Leg, Settings, Turn

ROW = (
    *("fingerprint", "kind", "loss", "grad_norm", "least_eigenvalue", "num_flat", "error"),
    *("multiplicity", "equivalent_to", "num_copies", "doubt"),
)


@dataclass(frozen=True)
class Solution:
    """Where the descent from the end of a leg ended.

    - `kind`: "minimum", "saddle", "at infinity", "unverified" (`doubt` says why) or "unconverged".
    - `multiplicity`: how many legs led to this solution; `equivalent_to`: the one that stands for
      all of them.
    - `num_flat`: how many eigenvalues of the Hessian are zero but for rounding, e.g. those of
      rotations; `least_eigenvalue` is the least of the others.
    - `error`: how far the exact stationary point may be, across flat directions.
    - `limit`, `direction`: at infinity, what the loss falls to, and the unit vector, shaped like
      the parameters, along which it does.
    - `num_copies`: how many fingerprints are equivalent to this one, itself included: the product
      of the sizes of the classes it turns into. The others lead to symmetric copies, were not
      ridden, and some of them lead to the same copy; `members="all"` rides them.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> solution = rr.search(wells(1)).minima()[0]
    >>> str(solution.fingerprint), solution.kind, round(solution.loss, 4)
    ('0+', 'minimum', -0.0625)
    """

    fingerprint: Fingerprint
    params: PyTree
    loss: float
    grad_norm: float
    least_eigenvalue: float
    kind: Kind
    cost: Cost
    equivalent_to: Fingerprint | None = None
    multiplicity: int = 1
    num_flat: int = 0
    error: float = 0.0
    doubt: str = ""
    limit: float = float("nan")
    direction: PyTree = None
    num_copies: int = 1

    @property
    def level(self) -> float:
        """The loss; at infinity its limit."""
        return self.limit if self.kind == "at infinity" else self.loss

    def as_row(self) -> dict[str, Any]:
        """As plain values, without the parameters; `loss` is the limit if it is at infinity."""
        same = "" if self.equivalent_to is None else str(self.equivalent_to)
        text = {"fingerprint": str(self.fingerprint), "loss": self.level, "equivalent_to": same}
        return {name: text.get(name, getattr(self, name)) for name in ROW}


@dataclass(frozen=True)
class Stationary(Solution):
    """A stationary point of a map.

    `number` is its place in `minima()` or `saddles()`, lowest loss first; `morse_index` counts the
    negative eigenvalues of the Hessian there; `multiplicity` the legs that reached it.
    """

    morse_index: int = 0
    number: int = -1

    def as_row(self) -> dict[str, Any]:
        return {"number": self.number, "morse_index": self.morse_index, **super().as_row()}


S = TypeVar("S", bound=Solution)


class Solutions(tuple[S, ...]):
    """A tuple of solutions that prints as a table, in a notebook too.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> frame = rr.search(wells(1)).minima().to_pandas()
    >>> frame.fingerprint.tolist(), frame.kind.unique().tolist()
    (['0+', '0-'], ['minimum'])
    """

    def __repr__(self) -> str:
        if not self:
            return "none; ends of other kinds are in `solutions()`"
        columns = self.columns()
        return files.aligned([list(columns), *zip(*columns.values(), strict=True)])

    def _repr_html_(self) -> str:
        columns = self.columns()
        return files.table(list(columns), list(zip(*columns.values(), strict=True)))

    def to_pandas(self) -> Any:
        """A row for each solution, without its parameters. Needs pandas."""
        return files.frame([one.as_row() for one in self])

    def columns(self) -> dict[str, list[str]]:
        """What is shown. Optional columns are there if they differ from the default."""
        columns = {
            "fingerprint": [str(one.fingerprint) for one in self],
            "loss": shown_levels([one.level for one in self]),
            "least eigenvalue": [f"{one.least_eigenvalue:.3g}" for one in self],
            "multiplicity": [str(one.multiplicity) for one in self],
        }
        for name, field, default in (
            ("kind", "kind", "minimum"),
            ("flat", "num_flat", 0),
            ("copies", "num_copies", 1),
        ):
            values = [getattr(one, field) for one in self]
            if any(value != default for value in values):
                columns[name] = list(map(str, values))
        return columns


def shown_levels(levels: Sequence[float]) -> list[str]:
    """Losses with six digits, or as many as show how they differ, if they are close together.

    >>> shown_levels([-1234.56789, -1234.56701, -1230.0])
    ['-1234.56789', '-1234.56701', '-1230.00000']
    """
    finite = [one for one in levels if math.isfinite(one)]
    spread = max(finite, default=0.0) - min(finite, default=0.0)
    size = max(map(abs, finite), default=0.0)
    if not 1e-12 * size < spread < 1e-2 * size:
        return [f"{one:.6g}" for one in levels]
    decimals = min(12, max(0, 5 - math.floor(math.log10(spread))))
    return [f"{one:.{decimals}f}" for one in levels]


Signature = Callable[[PyTree], Any]
Mark = Callable[[Any], tuple[np.ndarray, float]]  # what a solution is compared by, and its reach


def grouped(solutions: Iterable[S], mark: Mark) -> list[list[S]]:
    """Solutions that are the same by their marks, in order."""
    classes, groups = Classes[int](), defaultdict[int, list[S]](list)
    for number, one in enumerate(solutions):
        groups[classes.add(number, *mark(one))].append(one)
    return list(groups.values())


def mark_by(tolerance: AtLeast0 | None, signature: Signature | None) -> Mark:
    """The parameters or their signature, which may differ by `tolerance` of their size."""

    def mark(one: Solution) -> tuple[np.ndarray, float]:
        found = flat(one.params if signature is None else signature(one.params))
        return found, reach_of(found, TOLERANCE if tolerance is None else float(tolerance))

    return mark


Table = Literal["solutions", "minima", "legs"]


class RunView:
    """What a search and a map have in common: legs and solutions, read from the run file."""

    def __init__(self, store: RunFile, problem: Problem | None = None, mover: Any = None):
        self._store, self.problem, self._mover = store, problem, mover

    def _repr_html_(self) -> str:
        minima, cost = self.minima(), self.cost
        numbers = {
            "different minima": len(minima),
            "lowest loss": f"{minima[0].level:.6g}" if minima else "-",
            "legs": len(self),
            "branches open": self.num_open(),
            "Hessian-vector products": f"{int(cost.hvps):,}",
            "seconds": f"{cost.seconds:.1f}",
        }
        shown = files.table(list(numbers), [list(numbers.values())])
        return f"<p><b>{html.escape(repr(self))}</b></p>{shown}{minima._repr_html_()}"

    def __repr__(self) -> str:
        where = self.file or "memory"
        return f"{type(self).__name__}({self.name!r}, {len(self)} legs, in {where})"

    @property
    def file(self) -> Path | None:
        """The run file, or None if the run is in memory."""
        return self._store.path

    @property
    def name(self) -> str:
        return self._store.meta["name"]

    @property
    def meta(self) -> dict[str, Any]:
        """What the run is: problem, rider, settings, versions."""
        return self._store.meta

    @property
    def settings(self) -> Settings:
        """What decides the tree, besides the problem and the rider."""
        return self._store.settings

    # --- the tree

    def fingerprints(self) -> list[Fingerprint]:
        """The fingerprints of all legs, in the order they were stored."""
        return [fingerprint for fingerprint in self._store.fingerprints() if fingerprint]

    @checked
    def leg(self, fingerprint: str | Fingerprint) -> Leg:
        """One leg, whole. The start is the leg with the empty fingerprint."""
        try:
            return self._store.leg(Fingerprint.parse(fingerprint))
        except KeyError:
            raise ValueError(
                f"`fingerprint` must be a leg of this run, but {str(fingerprint)!r} was not ridden."
            ) from None

    def __iter__(self) -> Iterator[Leg]:
        return map(self.leg, self.fingerprints())

    def __len__(self) -> int:
        """How many legs were ridden."""
        return self._store.num_legs()

    def endings(self) -> Counter[str]:
        """How many legs ended by each rule.

        >>> import ridgerider as rr
        >>> from ridgerider.problems import wells
        >>> rr.search(wells(1)).endings()
        Counter({'curvature_gone': 2})
        """
        return self._store.endings()

    def kinds(self) -> Counter[str]:
        """How many descents ended at each kind of point.

        >>> import ridgerider as rr
        >>> from ridgerider.problems import wells
        >>> rr.search(wells(2), max_rides=4).kinds()  # along an axis they end at saddles
        Counter({'saddle': 4})
        """
        return Counter(finish.kind for _, finish in self._store.finishes())

    def links(self) -> dict[Fingerprint, Fingerprint]:
        """The legs that reached a point that another had reached before, with that one."""
        return self._store.links()

    def num_open(self) -> int:
        """How many branches were found but not ridden."""
        return self._store.num_open()

    @property
    def cost(self) -> Cost:
        """What the whole run cost."""
        return self._store.cost()

    # --- the solutions

    def measures(self) -> dict[str, dict[Fingerprint, Any]]:
        """What was measured of the solutions, as stored: by name, the value at each leg.

        The signature comes under "signature"; of a score on examples the mean and their number.
        See `Measures`.
        """
        return {
            name or "signature": {Fingerprint.parse(text): one for text, one in rows.items()}
            for name, rows in self._store.measures().items()
        }

    def solutions(self) -> Solutions:
        """Every end of a descent, minima and others, shallow legs first."""
        sizes = self._store.class_sizes() if self._store.settings.members == "branches" else {}
        found = []
        for name, finish in self._store.finishes():
            path = (Fingerprint(name[: depth + 1]) for depth in range(name.depth))
            num_copies = math.prod(sizes.get(one, 1) for one in path)
            found.append(replace(self._solution(name, finish), num_copies=num_copies))
        return Solutions(found)

    @checked
    def classes(
        self, tolerance: AtLeast0 | None = None, *, signature: Signature | None = None
    ) -> list[list[Solution]]:
        """All minima, grouped as in `minima`; the first of each group stands for it."""
        minima = [solution for solution in self.solutions() if solution.kind in IS_SOLUTION]
        minima.sort(key=lambda one: one.fingerprint.rank)
        same, known = self._store.links("same_as"), {one.fingerprint: one for one in minima}

        def place(one: Solution) -> tuple[np.ndarray, float]:
            # That of the first, unless its leg was damaged and is yet to be ridden again.
            first = known.get(same.get(one.fingerprint, one.fingerprint), one)
            return flat(first.params), first.error

        is_stored = tolerance is None and signature is None
        groups = grouped(minima, place if is_stored else mark_by(tolerance, signature))
        return [
            [
                replace(one, equivalent_to=group[0].fingerprint, multiplicity=len(group))
                for one in group
            ]
            for group in groups
        ]

    @property
    def can_replay(self) -> bool:
        """Whether the problem and the rider are at hand."""
        return self.problem is not None and self._mover is not None

    @checked
    def replay(self, fingerprint: str | Fingerprint) -> list[Leg]:
        """Ride one path again from the start, turn by turn, and return its legs.

        The traces hold every point on the way. The path need not be one that was ridden.

        >>> import jax.numpy as jnp
        >>> import ridgerider as rr
        >>> result = rr.search(rr.Problem(lambda x: jnp.sum(x**4 / 4 - x**2 / 2), jnp.zeros(1)))
        >>> leg = result.replay("0+")[0]
        >>> bool((leg.x == result.leg("0+").x).all()), leg.trace["path"].shape[0] - leg.num_steps
        (True, 1)
        """
        if not self.can_replay or self.problem is None:
            raise ValueError(
                "to replay, load the run with its `problem` (and `rider`): rr.load(path, problem)."
            )
        if not (fingerprint := Fingerprint.parse(fingerprint)):
            raise ValueError("`fingerprint` must have one turn or more, such as 0+.")
        settings = replace(self._store.settings, max_ridges=None, max_depth=None)
        if settings.members == "branches":
            settings = replace(settings, members="all")
        mover, legs = self._mover, list[Leg]()
        if mover.name == "rides":
            mover = replace(mover, rule=replace(mover.rule, keep_path=True))
            leg = interruptible(mover.begin, self.problem, settings)
        else:
            leg = self.leg(Fingerprint())  # other starts are in the file only
        for turn, following in zip(fingerprint, [*fingerprint[1:], None], strict=True):
            _check_turn(leg, turn)
            if following is not None:
                settings = replace(settings, branch_at="saddle" if following.below else "end")
            (leg,) = interruptible(mover.move, self.problem, settings, [leg.branch(turn)])
            leg = mover.classify(self.problem, leg)
            legs.append(leg)
        return legs

    # --- export

    @checked
    def export(self, path: str | os.PathLike, *, table: Table = "solutions") -> Path:
        """Write a table to a `.csv`, `.json` or `.npz` file.

        **Arguments**

        - `table`: "solutions", every end of a descent; "minima", the different ones; or "legs",
          rides and costs without parameters.

        A CSV file has a column for each parameter. JSON also says what was run; NaN is null. Arrays
        are named by the leaves of the parameters.

        >>> import tempfile
        >>> import ridgerider as rr
        >>> from ridgerider.problems import wells
        >>> path = rr.search(wells(1)).export(f"{tempfile.mkdtemp()}/minima.csv", table="minima")
        >>> path.read_text().splitlines()[0].split(",")[-1]
        'params[0]'
        """
        path, params = Path(path), self.meta["problem"]["params"]
        files.check_export(path, table, params)
        if table == "legs":
            rows = self._leg_rows()
        else:
            found = self._listed() if table == "solutions" else self.minima()
            rows = [files.solution_row(one, params) for one in found]
        if not rows:
            raise ValueError(f"there is nothing to export: the run holds no {table}.")
        return files.write_rows(path, rows, table, {"run": self.meta, "cost": vars(self.cost)})

    def minima(self) -> Solutions:
        """The different minima, lowest first."""
        raise NotImplementedError

    def _listed(self) -> Sequence[Solution]:
        """What the table "solutions" has."""
        return self._with_classes()

    def _leg_rows(self) -> list[files.Row]:
        ends = {one.fingerprint: one for one in self._with_classes()}
        return [files.leg_row(leg, ends.get(leg.fingerprint)) for leg in self]

    def _with_classes(self) -> list[Solution]:
        """All solutions, minima with the class they are in."""
        known = {one.fingerprint: one for group in self.classes() for one in group}
        return [known.get(one.fingerprint, one) for one in self.solutions()]

    def _solution(self, fingerprint: Fingerprint, finish: Finish) -> Solution:
        params = np.asarray(finish.x)
        if self.problem is not None:
            params = self.problem.params_of(params)
        direction = None
        if finish.kind == "at infinity" and finish.runaway is not None:
            direction = np.asarray(finish.runaway) / np.linalg.norm(finish.runaway)
            if self.problem is not None:
                direction = jax.device_get(self.problem.unravel(jnp.asarray(direction)))
        shared = ("loss", "grad_norm", "least_eigenvalue", "kind", "cost", "num_flat", "error")
        known = {name: getattr(finish, name) for name in (*shared, "doubt", "limit")}
        return Solution(fingerprint=fingerprint, params=params, direction=direction, **known)


class Result(RunView):
    """The tree of rides and the solutions at their ends, read from the run file when needed.

    >>> import jax.numpy as jnp
    >>> import ridgerider as rr
    >>> problem = rr.Problem(lambda x: (x[0] ** 2 - 1) ** 2 + x[1] ** 2 - 5, jnp.zeros(2))
    >>> result = rr.search(problem)
    >>> print(result.minima())
    fingerprint  loss  least eigenvalue  multiplicity
    0+           -5    2                 1
    0-           -5    2                 1
    >>> result.leg("0-").ended_by
    ('curvature_gone',)
    """

    def minima(
        self, tolerance: AtLeast0 | None = None, *, signature: Signature | None = None
    ) -> Solutions:
        """The different minima, also those at infinity, lowest loss first.

        Each stands with the shallowest fingerprint that leads to it. Two are one if their distance
        is within their errors. With flat directions, such as rotations, they are one if a walk
        along these leads from one to the other; at infinity, if the loss does not rise between
        them.

        **Arguments**

        - `tolerance`: instead, two are one if they are closer than this times their size, or 1 if
          that is larger.
        - `signature(params)`: what a solution *is*, as an array; compared in place of the
          parameters, with a `tolerance` of 1e-3 unless another is given. A canonical form undoes a
          symmetry (`jnp.sort`); a model's outputs on a probe set compare functions.

        >>> import jax.numpy as jnp
        >>> import ridgerider as rr
        >>> problem = rr.Problem(lambda x: jnp.sum((x**2 - 1) ** 2), jnp.zeros(2))
        >>> result = rr.search(problem, members="all", max_depth=2)
        >>> len(result.minima()), len(result.minima(signature=jnp.sort))
        (4, 3)
        """
        classes = self.classes(tolerance, signature=signature)
        # Losses that agree to six digits are equal but for rounding; the fingerprint decides
        # between them.
        minima = (group[0] for group in classes)
        return Solutions(
            sorted(minima, key=lambda one: (float(f"{one.level:.6g}"), one.fingerprint.rank))
        )

    def to_pandas(self) -> Any:
        """A row for each leg: how its descent ended, what the ride did, what both cost.

        `loss` is that of the solution, `ride_loss` that of the ride's end. Needs pandas.

        >>> import ridgerider as rr
        >>> from ridgerider.problems import wells
        >>> frame = rr.search(wells(1)).to_pandas()
        >>> frame[["fingerprint", "kind", "ended_by"]].values.tolist()
        [['0+', 'minimum', 'curvature_gone'], ['0-', 'minimum', 'curvature_gone']]
        """
        return files.frame(self._leg_rows())


def _check_turn(leg: Leg, turn: Turn) -> None:
    where = f"after {leg.fingerprint}" if leg.fingerprint else "at the start"
    if turn.below and leg.below is None:
        raise ValueError(f"`fingerprint` turns into {turn} {where}, but there is no saddle below.")
    ways = leg.place(turn)[2].turns
    if (turn.index, turn.member) not in ways:
        here = f"{leg.num_ridges} ridges"
        if turn.up:
            first = ", ".join(str(Turn(index, 1, member, up=True)) for index, member in ways[:5])
            here = f"{len(ways)} ridges to climb, {first}{' ...' * (len(ways) > 5)}"
        raise ValueError(f"`fingerprint` turns into {turn} {where}, but there are only {here}.")
    cluster = leg.place(turn)[2].clusters[turn.index]
    if turn.up and cluster.eigenvalue < 0 and turn.member < cluster.multiplicity:
        raise ValueError(f"`fingerprint` turns into {turn} {where}, but that ridge leads down.")
