"""What solutions do: a signature that says which are the same, metrics that say how good they are.

Both are functions of a user's. The run file holds their names, a digest of their sources and the
values; whoever reads the file uses these values and calls nothing that it names.
"""

import hashlib
import inspect
import json
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ridgerider._check import check_fields, checked
from ridgerider._core.problem.problem import Problem
from ridgerider._search.results.export import plain
from ridgerider._search.runfile.rules_json import check_problem
from ridgerider._search.runfile.store import Store
from ridgerider._search.same import TOLERANCE, Classes, reach_of
from ridgerider._search.tree import Leg

SIGNATURE = ""  # the name of its values, which no metric can have
ENDS = ("minimum", "at infinity", "ride")


@dataclass(frozen=True)
class Measures:
    """What to compute and store for each solution of a run: `rr.search(problem, measures=...)`.

    - `signature(params)`: equal for equivalent solutions: text, numbers or arrays. Numbers may
      differ by 1e-3 of their size. None means that the point is not a solution.
    - `metrics`: by name, `metric(params)`: a number, or a vector of one number per example of a
      validation set, of which the mean is kept. For values between 0 and 1 the report says how far
      the mean may be from its expectation, whichever solution is chosen.
    - `kinds`: which points a signature counts: kinds of `Solution`, and "ride" for the end of a
      ride that no descent followed, in runs without a `finish`.

    >>> import jax.numpy as jnp
    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> def side(x):
    ...     return "right" if x[0] > 0 else "left"
    >>> result = rr.search(wells(1), measures=rr.Measures(side, {"size": jnp.linalg.norm}))
    >>> [(str(name), value) for name, value in result.measures()["signature"].items()]
    [('0+', 'right'), ('0-', 'left')]
    """

    signature: Callable[[PyTree], Any] | None = None
    metrics: Mapping[str, Callable[[PyTree], Any]] = field(default_factory=dict)
    kinds: tuple[str, ...] = ENDS

    def __post_init__(self) -> None:
        check_fields(self)
        if not all(isinstance(name, str) and name.strip() for name in self.metrics):
            raise ValueError("`metrics` must have names, but one of them is empty.")
        if "signature" in self.metrics:
            raise ValueError("`metrics` must not use the name signature: choose another name.")

    def __bool__(self) -> bool:
        return self.signature is not None or bool(self.metrics)

    def about(self) -> dict[str, Any]:
        """For the run file."""
        return {
            "signature": None if self.signature is None else _source(self.signature),
            "metrics": {name: _source(function) for name, function in self.metrics.items()},
            "kinds": list(self.kinds),
        }

    def check(self, problem: Problem) -> None:
        """Raise unless every function can be called with parameters like the start."""
        for name, function in self._functions().items():
            try:
                found = function(problem.start)
                _value(name, found)
            except Exception as error:
                what = "`signature`" if name == SIGNATURE else f"the metric `{name}`"
                wanted = "what JSON can hold" if name == SIGNATURE else "a number or a vector"
                raise ValueError(
                    f"{what} must return {wanted} for the parameters of the problem, but at the "
                    f"start it failed: {type(error).__name__}: {error}"
                ) from error

    def of(self, problem: Problem, x: np.ndarray) -> dict[str, Any]:
        """All values at one point; None where a function fails or is not finite."""
        params, found = problem.unravel(jnp.asarray(x)), {}
        for name, function in self._functions().items():
            try:
                found[name] = _value(name, function(params))
            except Exception:  # a user's function that fails at one point must not end a search
                found[name] = None
        return found

    def _functions(self) -> dict[str, Callable[[PyTree], Any]]:
        own = {} if self.signature is None else {SIGNATURE: self.signature}
        return {**own, **self.metrics}


@checked
def measure(path: str | os.PathLike, measures: Measures, problem: Problem) -> int:
    """Measure the solutions of a run, store the values in its file, and say how many were measured.

    Values that are there already, of functions of the same source, are not computed again.

    >>> import tempfile, jax.numpy as jnp
    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> path = f"{tempfile.mkdtemp()}/run.sqlite"
    >>> _ = rr.search(wells(1), out=path)
    >>> norm = rr.Measures(metrics={"norm": jnp.linalg.norm})
    >>> rr.measure(path, norm, wells(1)), rr.measure(path, norm, wells(1))
    (2, 0)
    """
    store = Store.open(path, write=True)
    with store.closed_on_error():
        check_problem(store.meta, problem, path)
        measures.check(problem)
        num_measured = measure_missing(store, measures, problem)
        store.checkpoint()
    store.close()
    return num_measured


def measure_missing(store: Store, measures: Measures, problem: Problem) -> int:
    """Measure what was not measured yet."""
    known, names, meta = store.measures(), list(measures._functions()), store.meta
    stored, given = meta.get("measures") or Measures().about(), measures.about()
    about = {
        "signature": given["signature"] or stored["signature"],
        "metrics": {**stored["metrics"], **given["metrics"]},
        "kinds": given["kinds"] if given["signature"] else stored["kinds"],
    }
    before, after = ({SIGNATURE: one["signature"], **one["metrics"]} for one in (stored, about))
    changed = [name for name in names if before.get(name) != after[name]]
    if about != stored:
        store.set_measures(about, {}, forget=changed)
    num_measured, has_finish = 0, has_descents(meta)
    for name in store.fingerprints():
        is_point = bool(name) or meta["mover"] == "climbs"  # a map begins at a minimum
        if is_point and any(one in changed or str(name) not in known.get(one, {}) for one in names):
            rows = measured(measures, problem, store.leg(name), has_finish)
            store.set_measures(None, rows)
            num_measured += bool(rows)
    return num_measured


def measured(
    measures: Measures, problem: Problem, leg: Leg, has_finish: bool
) -> dict[tuple[str, str], Any]:
    """The values of a leg, by its fingerprint and their name; none if it leads to no end."""
    if leg.finish is None and has_finish:
        return {}
    x = leg.x if leg.finish is None else np.asarray(leg.finish.x)
    return {(str(leg.fingerprint), name): one for name, one in measures.of(problem, x).items()}


def has_descents(meta: dict[str, Any]) -> bool:
    """Whether the rides of a run end with descents: else their own ends are its points."""
    return (meta.get("rider") or {}).get("fields", {}).get("finish", True) is not None


def signature_classes(signatures: Iterable[Any]) -> list[int | None]:
    """A number for each signature, the same for those that are one; None for None.

    >>> signature_classes(["a", None, [1.0, 2.0], "a", [1.0, 2.0001], [1.0, 2.1]])
    [0, None, 1, 0, 1, 2]
    """
    shapes = defaultdict[str, Classes[int]](Classes)
    numbers: dict[tuple[str, int], int] = {}
    found: list[int | None] = []
    for place, one in enumerate(signatures):
        if one is None:
            found.append(None)
            continue
        leaves: list[float] = []
        shape = json.dumps(_shape(one, leaves))
        point = np.array(leaves)
        key = shape, shapes[shape].add(place, point, reach_of(point, TOLERANCE))
        found.append(numbers.setdefault(key, len(numbers)))
    return found


def _shape(value: Any, leaves: list[float]) -> Any:
    """A signature with a 0 in place of each number with a point, which goes to the `leaves`."""
    if isinstance(value, float):
        leaves.append(value)
        return 0.0
    if isinstance(value, list):
        return [_shape(one, leaves) for one in value]
    if isinstance(value, dict):
        return {name: _shape(one, leaves) for name, one in sorted(value.items())}
    return value


def _value(name: str, found: Any) -> Any:
    if name == SIGNATURE:
        return json.loads(json.dumps(plain(found)))
    numbers = np.asarray(jax.device_get(found), dtype=np.float64)
    if numbers.ndim > 1 or not numbers.size:
        raise ValueError(f"a metric is one number or a vector, not of shape {numbers.shape}")
    mean = float(numbers.mean())
    if not math.isfinite(mean):
        return None
    is_score = numbers.ndim == 1 and numbers.min() >= 0 and numbers.max() <= 1
    return [mean, len(numbers)] if is_score else mean


def _source(function: Callable[..., Any]) -> dict[str, str]:
    kind = function if hasattr(function, "__qualname__") else type(function)
    try:
        text = inspect.getsource(inspect.unwrap(kind))
    except (OSError, TypeError):  # built in, or typed at a prompt
        text = ""
    name = f"{kind.__module__}:{kind.__qualname__}"
    return {"name": name, "source": hashlib.sha256(text.encode()).hexdigest()[:16]}
