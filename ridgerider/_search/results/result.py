"""Result: what a search found, read from its run file."""

import contextlib
import copy
import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from jaxtyping import PyTree

from ridgerider._check import check_at_least, check_choice
from ridgerider._core.descend.finish import Finish, Kind
from ridgerider._core.problem.cost import Cost
from ridgerider._core.problem.problem import Problem
from ridgerider._core.ride.rider import Rider
from ridgerider._search.crew.interrupt import interruptible
from ridgerider._search.engine.movers import stored_mover
from ridgerider._search.results import notebook
from ridgerider._search.results.export import (
    Row,
    check_columns,
    leaves,
    leg_row,
    numbers,
    solution_row,
    write_csv,
    write_json,
)
from ridgerider._search.results.selection import (
    Score,
    Selection,
    check_not_seen,
    check_selection,
    choose,
)
from ridgerider._search.runfile.problem import check_problem
from ridgerider._search.runfile.write import Store
from ridgerider._search.same.classes import Classes
from ridgerider._search.same.points import IS_SOLUTION, TOLERANCE, reach_of
from ridgerider._search.tree.settings import Settings
from ridgerider._search.tree.tree import Fingerprint, Leg, Turn

Signature = Callable[[PyTree], Any]
Table = Literal["solutions", "minima", "legs"]
FORMATS = ("csv", "json", "npz", "safetensors")


@dataclass(frozen=True)
class Solution:
    """Where descent from the end of a leg came to rest.

    - `kind`: "minimum", "saddle", "at infinity", "unverified" (`doubt` says why) or "unconverged".
    - `multiplicity`: how many legs led to this solution; `equivalent_to`: the one that stands for
      all of them.
    - `num_flat`: how many eigenvalues of the Hessian are zero but for rounding, e.g. those of
      rotations; `least_eigenvalue` is the least of the others.
    - `error`: how far the exact stationary point may be, across flat directions.
    - `limit`, `direction`: at infinity, what the loss falls to, and the unit vector, shaped like
      the parameters, along which it does.
    - `num_copies`: how many addresses like this one there are, itself included: the product of the
      sizes of the classes it turns into. Those others lead to symmetric copies, were not ridden,
      and some of them lead to the same copy; `members="all"` rides them.

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


class Solutions(Sequence[Solution]):
    """Solutions that print as a table, in a notebook too.

    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> frame = rr.search(wells(1)).minima().to_pandas()
    >>> frame.fingerprint.tolist(), frame.kind.unique().tolist()
    (['0+', '0-'], ['minimum'])
    """

    def __init__(self, solutions: Sequence[Solution]):
        self._solutions = tuple(solutions)

    def __len__(self) -> int:
        return len(self._solutions)

    @overload
    def __getitem__(self, index: int) -> Solution: ...
    @overload
    def __getitem__(self, index: slice) -> "Solutions": ...
    def __getitem__(self, index: int | slice) -> "Solution | Solutions":
        if isinstance(index, slice):
            return Solutions(self._solutions[index])
        return self._solutions[index]

    def __repr__(self) -> str:
        columns = self._columns()
        rows = [tuple(columns), *(tuple(show(one) for show in columns.values()) for one in self)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def _repr_html_(self) -> str:
        columns = self._columns()
        return notebook.table(
            list(columns), [[show(one) for show in columns.values()] for one in self]
        )

    def to_pandas(self) -> Any:
        """A row for each solution, without its parameters. Needs pandas."""
        return notebook.frame([solution_row(one) for one in self])

    def _columns(self) -> dict[str, Callable[[Solution], str]]:
        columns: dict[str, Callable[[Solution], str]] = {
            "fingerprint": lambda one: str(one.fingerprint),
            "loss": lambda one: f"{one.level:.6g}",
            "least eigenvalue": lambda one: f"{one.least_eigenvalue:.3g}",
            "multiplicity": lambda one: str(one.multiplicity),
        }
        # What is seldom said is said where there is something to say.
        if any(one.kind != "minimum" for one in self):
            columns["kind"] = lambda one: one.kind
        if any(one.num_flat for one in self):
            columns["flat"] = lambda one: str(one.num_flat)
        if any(one.num_copies > 1 for one in self):
            columns["copies"] = lambda one: str(one.num_copies)
        return columns


class Result:
    """A tree of rides and the solutions at its ends. Reads the run file, so it costs no memory.

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

    def __init__(self, store: Store, problem: Problem | None = None, mover: Any = None):
        self._store, self.problem, self._mover = store, problem, mover

    def __repr__(self) -> str:
        where = self.path or "memory"
        return f"Result({self.name!r}, {len(self)} legs, in {where})"

    def _repr_html_(self) -> str:
        minima, cost, names = self.minima(), self.cost, self.fingerprints()
        numbers = {
            "different minima": len(minima),
            "lowest loss": f"{minima[0].level:.6g}" if minima else "-",
            "legs": len(names),
            "branches open": self.num_open(),
            "Hessian-vector products": f"{int(cost.hvps):,}",
            "seconds": f"{cost.seconds:.1f}",
        }
        shown = [Fingerprint(), *names[: notebook.MAX_TREE]]
        some = f", the first {len(shown) - 1} drawn" if len(shown) <= len(names) else ""
        return notebook.box(
            notebook.title(self.name, f"in {self.path or 'memory'}{some}"),
            notebook.tiles(numbers),
            notebook.tree({name: self.leg(name) for name in shown}),
            minima._repr_html_(),
        )

    @property
    def path(self) -> Path | None:
        """The run file, or None if the run was kept in memory."""
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
        """The addresses of all legs, in the order they were stored."""
        return [fingerprint for fingerprint in self._store.fingerprints() if fingerprint]

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

    def links(self) -> dict[Fingerprint, Fingerprint]:
        """The legs that came to a point where another had come before, with that one."""
        return self._store.links()

    def num_open(self) -> int:
        """How many branches were found but not ridden."""
        return self._store.num_open()

    @property
    def cost(self) -> Cost:
        """What the whole run cost."""
        return self._store.cost()

    def costs(self) -> dict[Fingerprint, Cost]:
        """What each leg cost, the descent at its end included."""
        return self._store.costs()

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
        return Solutions(
            [
                replace(self._solution(fingerprint, finish), num_copies=_copies(fingerprint, sizes))
                for fingerprint, finish in self._store.finishes()
            ]
        )

    def kinds(self) -> Counter[str]:
        """How many descents ended at each kind of point.

        >>> import ridgerider as rr
        >>> from ridgerider.problems import wells
        >>> rr.search(wells(2), max_rides=4).kinds()  # along an axis they end at saddles
        Counter({'saddle': 4})
        """
        return self._store.kinds()

    def num_saddles(self) -> int:
        """How many descents ended at a saddle, as they do along a symmetry axis."""
        return self.kinds()["saddle"]

    def minima(
        self, tolerance: float | None = None, *, signature: Signature | None = None
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
        return Solutions(
            sorted(
                (group[0] for group in classes),
                key=lambda one: (
                    float(f"{one.level:.6g}"),
                    one.fingerprint.depth,
                    one.fingerprint.sort_key(),
                ),
            )
        )

    def classes(
        self, tolerance: float | None = None, *, signature: Signature | None = None
    ) -> list[list[Solution]]:
        """All minima, grouped as in `minima`; the first of each group stands for it."""
        check_at_least("tolerance", tolerance)
        minima = [solution for solution in self.solutions() if solution.kind in IS_SOLUTION]
        minima.sort(key=lambda one: (one.fingerprint.depth, one.fingerprint.sort_key()))
        classes, groups = Classes[Fingerprint](), defaultdict[int, list[Solution]](list)
        if tolerance is None and signature is None:
            same, errors = self._store.same(), {one.fingerprint: one.error for one in minima}
            points = {one.fingerprint: _flat(one.params) for one in minima}
            for one in minima:
                name = same.get(one.fingerprint, one.fingerprint)
                if name not in points:  # its leg was damaged, and is yet to be ridden again
                    name = one.fingerprint
                groups[classes.add(name, points[name], errors[name])].append(one)
        else:
            for one in minima:
                mark = _flat(one.params if signature is None else signature(one.params))
                reach = reach_of(mark, TOLERANCE if tolerance is None else tolerance)
                groups[classes.add(one.fingerprint, mark, reach)].append(one)
        return [
            [
                replace(one, equivalent_to=group[0].fingerprint, multiplicity=len(group))
                for one in group
            ]
            for group in groups.values()
        ]

    def select(
        self,
        score: Score,
        *data: PyTree,
        best: Literal["low", "high"],
        delta: float = 0.05,
        between: tuple[float, float] = (0.0, 1.0),
        tolerance: float | None = None,
        signature: Signature | None = None,
        allow_same_data: bool = False,
    ) -> Selection:
        """Choose one of the minima with examples that were not used to find them.

        **Arguments**

        - `score(params, *data)`: one number per example, within `between`; whether the `best` is
          the `"low"` (an error) or the `"high"` one (a success) must be said.
        - `data`: the examples. Arrays the search itself was run on are refused, unless
          `allow_same_data`; that two sets share single examples is not seen.
        - `delta`: how often, at most, the bound may fail.
        - `tolerance`, `signature`: which minima count as one, as in `minima`. The fewer are
          compared, the tighter the bound.

        The bound needs a search that did not look at these examples, not even through `order`.

        >>> import jax.numpy as jnp
        >>> import ridgerider as rr
        >>> def loss(slope, inputs, targets):  # either slope will do where the inputs are positive
        ...     return jnp.mean((slope**2 - (targets / inputs) ** 2) ** 2)
        >>> inputs = jnp.linspace(0.5, 1, 20)
        >>> result = rr.search(rr.Problem(loss, jnp.zeros(1), inputs, -inputs))
        >>> def is_right(slope, inputs, targets):
        ...     return jnp.sign(slope * inputs) == jnp.sign(targets)
        >>> others = jnp.linspace(-2, 2, 100)
        >>> chosen = result.select(is_right, others, -others, best="high")
        >>> [round(float(slope), 3) for slope in chosen.solution.params]
        [-1.0]
        >>> chosen.score, round(chosen.bound, 3)
        (1.0, 0.864)
        """
        check_selection(best, delta, between, data)
        if not allow_same_data:
            check_not_seen(self.meta["problem"].get("arrays", []), data)
        candidates = self.minima(tolerance, signature=signature)
        if not candidates:
            raise ValueError("there is nothing to select from: the run holds no minima.")
        return choose(candidates, score, data, best, delta, between)

    @property
    def can_replay(self) -> bool:
        """Whether the problem and the rider are at hand."""
        return self.problem is not None and self._mover is not None

    def replay(self, fingerprint: str | Fingerprint, *, keep_path: bool = True) -> list[Leg]:
        """Ride one path again from the start, turn by turn, and return its legs.

        With `keep_path` the traces hold every point on the way. The path need not be one that was
        ridden.

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
        fingerprint = Fingerprint.parse(fingerprint)
        settings = replace(self._store.settings, max_ridges=None, max_depth=None)
        if settings.members == "branches":
            settings = replace(settings, members="all")
        mover, legs = self._mover, list[Leg]()
        if mover.name == "rides":
            mover = replace(mover, rule=replace(mover.rule, keep_path=keep_path))
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

    def to_torch(self, module: Any, solution: Solution | None = None) -> Any:
        """A copy of a PyTorch module with the parameters of a solution, the best minimum if None.

        The run must be one of `ridgerider.torch.problem`, loaded with its problem.

        >>> import torch, ridgerider as rr, ridgerider.torch
        >>> _ = torch.manual_seed(0)
        >>> module = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Tanh())
        >>> data = torch.ones(4, 1), torch.full((4, 1), 0.25)
        >>> def loss(outputs, targets):
        ...     return torch.mean((outputs**2 - targets) ** 2)
        >>> _ = torch.nn.init.zeros_(module[0].weight)
        >>> result = rr.search(ridgerider.torch.problem(module, loss, *data))
        >>> round(abs(result.to_torch(module)(data[0])[0, 0].item()), 3)
        0.5
        """
        if solution is None:
            minima = self.minima()
            if not minima:
                raise ValueError("there is no `solution` to take: the run holds no minima.")
            solution = minima[0]
        if not isinstance(solution.params, dict) or not hasattr(module, "load_state_dict"):
            raise ValueError(
                "`to_torch` takes a module and a run of ridgerider.torch.problem with its problem, "
                f"not {type(module).__name__} and {type(solution.params).__name__} parameters."
            )
        module = copy.deepcopy(module)
        module.load_state_dict(solution.params)
        return module

    def to_numpy(self) -> dict[str, np.ndarray]:
        """All solutions as stacked arrays, one for each quantity and leaf of the parameters."""
        return self._stacked(self.solutions())

    def to_pandas(self) -> Any:
        """A row for each leg: how its descent ended, what the ride did, what both cost.

        `loss` is that of the solution, `ride_loss` that of the ride's end. Needs pandas.

        >>> import ridgerider as rr
        >>> from ridgerider.problems import wells
        >>> frame = rr.search(wells(1)).to_pandas()
        >>> frame[["fingerprint", "kind", "ended_by"]].values.tolist()
        [['0+', 'minimum', 'curvature_gone'], ['0-', 'minimum', 'curvature_gone']]
        """
        return notebook.frame(self._leg_rows())

    def export(self, path: str | os.PathLike, *, table: Table = "solutions") -> Path:
        """Write a table to a `.csv`, `.json`, `.npz` or `.safetensors` file.

        **Arguments**

        - `table`: "solutions", every end of a descent; "minima", the different ones; or "legs",
          rides and costs without parameters, as CSV or JSON only.

        A CSV file has a column for each parameter. JSON also says what was run; NaN is null. The
        metadata of a safetensors file hold the text. Arrays are named by the leaves of the
        parameters.

        >>> import tempfile
        >>> import ridgerider as rr
        >>> from ridgerider.problems import wells
        >>> path = rr.search(wells(1)).export(f"{tempfile.mkdtemp()}/minima.csv", table="minima")
        >>> path.read_text().splitlines()[0].split(",")[-1]
        'params[0]'
        """
        path = Path(path)
        kind = path.suffix.removeprefix(".")
        if kind not in FORMATS:
            *first, last = (f".{one}" for one in FORMATS)
            raise ValueError(
                f"`path` must end in {', '.join(first)} or {last}, not {path.suffix!r}."
            )
        check_choice("table", table, ("solutions", "minima", "legs"))
        if table == "legs" and kind not in ("csv", "json"):
            raise ValueError(f"`table` 'legs' must go to .csv or .json, not {path.suffix!r}.")
        if not path.parent.is_dir():
            raise ValueError(
                f"`path` must be in a directory that exists, but {path.parent} does not."
            )
        if kind == "csv" and table != "legs":
            check_columns(sum(math.prod(shape) for _, shape, *_ in self.meta["problem"]["params"]))
        if table == "legs":
            rows = self._leg_rows()
        else:
            found = self._listed(table)
            if not found:
                raise ValueError(f"there is nothing to export: the run holds no {table}.")
            if kind in ("npz", "safetensors"):
                return _write_arrays(path, self._stacked(found))
            rows = [self._row(one, kind) for one in found]
        if kind == "csv":
            write_csv(path, rows)
        else:
            write_json(path, {"run": self.meta, "cost": vars(self.cost), table: rows})
        return path

    def _listed(self, table: Table) -> list[Solution]:
        """What is exported; a map lists its stationary points."""
        return self._with_classes() if table == "solutions" else list(self.minima())

    def _row(self, one: Solution, kind: str) -> Row:
        params, x = self.meta["problem"]["params"], _flat(one.params)
        if kind == "json":
            return {**solution_row(one), "params": leaves(params, x)}
        return {**solution_row(one), **numbers(params, x)}

    def _leg_rows(self) -> list[Row]:
        ends = {one.fingerprint: one for one in self._with_classes()}
        return [leg_row(leg, ends.get(leg.fingerprint)) for leg in self]

    def _with_classes(self) -> list[Solution]:
        """All solutions, minima with the class they are in."""
        known = {one.fingerprint: one for group in self.classes() for one in group}
        return [known.get(one.fingerprint, one) for one in self.solutions()]

    def _stacked(self, solutions: Sequence[Solution]) -> dict[str, np.ndarray]:
        if not solutions:
            raise ValueError("there is nothing to export: the run holds no solutions.")
        x = np.stack([_flat(one.params) for one in solutions])
        return {
            "fingerprint": np.array([str(one.fingerprint) for one in solutions]),
            "kind": np.array([one.kind for one in solutions]),
            **{
                name: np.array([getattr(one, name) for one in solutions])
                for name in ("loss", "grad_norm", "least_eigenvalue")
            },
            **leaves(self.meta["problem"]["params"], x),
        }

    def _solution(self, fingerprint: Fingerprint, finish: Finish) -> Solution:
        params = np.asarray(finish.x)
        if self.problem is not None:
            params = self.problem.params_of(params)
        direction = None
        if finish.kind == "at infinity" and finish.runaway is not None:
            direction = np.asarray(finish.runaway) / np.linalg.norm(finish.runaway)
            if self.problem is not None:
                direction = jax.device_get(self.problem.unravel(jnp.asarray(direction)))
        return Solution(
            fingerprint=fingerprint,
            params=params,
            loss=float(finish.loss),
            grad_norm=float(finish.grad_norm),
            least_eigenvalue=float(finish.least_eigenvalue),
            kind=finish.kind,
            cost=finish.cost,
            num_flat=int(finish.num_flat),
            error=float(finish.error),
            doubt=finish.doubt,
            limit=float(finish.limit),
            direction=direction,
        )


def load(
    path: str | os.PathLike, problem: Problem | None = None, rider: Rider | None = None
) -> Result:
    """Open a run file, also while it is still being written.

    Without the `problem`, parameters come as one vector and `replay` is not possible. The rider is
    rebuilt from the file unless it has rules of your own.

    >>> import tempfile, jax.numpy as jnp
    >>> import ridgerider as rr
    >>> problem = rr.Problem(lambda x: jnp.sum(x**4 / 4 - x**2 / 2), jnp.zeros(1))
    >>> path = f"{tempfile.mkdtemp()}/run.sqlite"
    >>> result = rr.search(problem, out=path, name="one well")
    >>> rr.load(path).name, len(rr.load(path, problem).minima())
    ('one well', 2)
    """
    if not isinstance(problem, Problem | None):
        raise ValueError(f"`problem` must be a Problem or None, not {type(problem).__name__}.")
    store = Store.open(path)
    if problem is not None:
        with store.closed_on_error():
            check_problem(store.meta, problem, path)
    mover = None
    with contextlib.suppress(ValueError):  # rules of the user's own: `replay` asks for the rider
        mover = stored_mover(path, store.meta, rider)
    return Result(store, problem, mover)


def _write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **arrays)  # type: ignore[arg-type]  # numpy types the keywords as bool
        return path
    text = {name: json.dumps(arrays.pop(name).tolist()) for name in ("fingerprint", "kind")}
    safetensors.numpy.save_file(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()}, path, metadata=text
    )
    return path


def _flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(jax.device_get(tree))])


def _copies(fingerprint: Fingerprint, sizes: dict[Fingerprint, int]) -> int:
    depths = range(1, fingerprint.depth + 1)
    return math.prod(sizes.get(Fingerprint(fingerprint[:depth]), 1) for depth in depths)


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
