"""Solutions of a run: one by one, and as a table."""

from dataclasses import dataclass
from typing import Any, TypeVar

from jaxtyping import PyTree

from ridgerider._core.descend.finish import Kind
from ridgerider._core.problem.cost import Cost
from ridgerider._search.results import notebook
from ridgerider._search.tree.tree import Fingerprint

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
        columns = self.columns()
        return notebook.aligned([list(columns), *zip(*columns.values(), strict=True)])

    def _repr_html_(self) -> str:
        columns = self.columns()
        return notebook.table(list(columns), list(zip(*columns.values(), strict=True)))

    def to_pandas(self) -> Any:
        """A row for each solution, without its parameters. Needs pandas."""
        return notebook.frame([one.as_row() for one in self])

    def columns(self) -> dict[str, list[str]]:
        """What is shown. Optional columns are there if they differ from the default."""
        columns = {
            "fingerprint": [str(one.fingerprint) for one in self],
            "loss": [f"{one.level:.6g}" for one in self],
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
