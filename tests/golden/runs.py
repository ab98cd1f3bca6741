"""Golden runs: small searches and maps whose outcome a change of the internals must keep.

    python -m tests.golden.runs [name ...]

writes `golden.json` anew, or what it has of the runs that are named; `test_golden.py` compares with
it. A run that needs something that is not installed stays as it is in the file.

What was seen to depend on rounding is not in the file. On one machine each run was repeated with
other bases of repeated eigenvalues (`--rotate-bases`), on programs compiled in haste and with all
optimisations (`XLA_FLAGS=`), and with its start moved by 1e-13: losses of legs agreed to 1e-9.
Avoid, in further runs, descents that begin where the loss is symmetric and end at no saddle of that
symmetry, as between two equal levers: rounding says which way they leave it. Maps of clusters never
stay the same: see `PARTIAL`.
"""

import importlib.util
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ridgerider as rr
from ridgerider import problems
from ridgerider.data import digits as digit_images
from tests.golden.compare import common

FILE = Path(__file__).parent / "golden.json"
DIGITS = 10  # of the losses in the file: more than any comparison looks at
REPEATS, MIN_VISITS = 6, 8  # of maps that depend on rounding, each with another start


# --- losses


def wells_loss(x, depths):
    return jnp.sum(x**4 / 4 - depths * x**2 / 2)


def chain_loss(x, depths):
    """Double wells, each coupled to the next."""
    return wells_loss(x, depths) + jnp.sum((x[1:] - x[:-1]) ** 2) / 20


def tanh_loss(params, inputs, targets):
    """The network of docs/start.md."""
    hidden = jnp.tanh(inputs @ params["in"])
    penalty = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
    return jnp.mean((hidden @ params["out"] - targets) ** 2) + 0.003 * penalty


def tanh_network():
    inputs = jax.random.normal(jax.random.key(0), (64, 3))
    targets = jnp.sin(3 * inputs) @ jnp.array([1.0, 0.8, 0.6])
    start = {"in": jnp.zeros((3, 3)), "out": jnp.zeros(3)}
    return rr.Problem(tanh_loss, start, inputs, targets)


def tanh_units(params):
    """All weights of each hidden unit."""
    return jnp.concatenate([params["in"].T, params["out"][:, None]], axis=1)


def xor_loss(params, inputs, targets):
    hidden = jnp.tanh(inputs @ params["in"] + params["bias"][None, :])
    penalty = sum(jnp.sum(leaf**2) for leaf in params.values())
    return jnp.mean((hidden @ params["out"] - targets) ** 2) + 0.05 * penalty


def xor_network():
    """Two inputs, two tanh units, one output, on data like XOR."""
    inputs = jnp.array([[0.9, 1.1], [1.0, -0.8], [-1.1, 0.7], [-0.8, -1.2]])
    start = {
        "in": jnp.array([[0.5, -0.3], [0.4, 0.6]]),
        "bias": jnp.array([0.1, -0.2]),
        "out": jnp.array([0.5, -0.4]),
    }
    return rr.Problem(xor_loss, start, inputs, jnp.array([-1.0, 1.0, 1.0, -1.0]))


def xor_units(params):
    return jnp.concatenate(
        [params["in"].T, params["bias"][:, None], params["out"][:, None]], axis=1
    )


# --- searches


def surface():
    return rr.search(problems.surface())


def equal_wells():
    """Two equal depths: a repeated eigenvalue at the start."""
    problem = rr.Problem(wells_loss, jnp.zeros(3), jnp.array([1.0, 1.0, 0.8]))
    return rr.search(problem, max_rides=40)


def tutorial():
    problem = tanh_network()
    saddle = rr.find_saddle(problem)
    return rr.search(problem.with_start(saddle.params), max_rides=20, order="best_first")


def tutorial_symmetry():
    symmetry = rr.symmetry.units(tanh_units, signs=True)
    return rr.search(tanh_network(), symmetry=symmetry, max_rides=16)


def decision_tree():
    return rr.search(problems.tree(depth=4), max_rides=20)


def levers():
    return rr.search(problems.levers((1.0, 0.9, 0.8, 0.6)), max_rides=20)


def digits():
    """Sixteen pixels, two hidden units; rides of a few steps."""
    images = digit_images()
    small = images.train_images[:100, ::2, ::2].astype(float)
    problem = problems.classifier(
        small, images.train_labels[:100], widths=(2,), init_scale=0.01, decay=0.02
    )
    return rr.search(problem, rr.Rider(max_steps=40), max_rides=4)


def matrix_free():
    problem = rr.Problem(chain_loss, jnp.zeros(12), jnp.linspace(0.2, 2.0, 12))
    rider = rr.Rider(
        spectrum=rr.BlockSpectrum(k=3, dense_below=0), update=rr.Davidson(tolerance=1e-6)
    )
    return rr.search(problem, rider, max_rides=6, max_ridges=2)


def numpy_functions():
    def value_and_grad(x):
        value = np.sum(x**4 / 4 - x**2 / 2) + x[0] * x[1] / 4
        return value, x**3 - x + x[::-1] / 4

    return rr.search(rr.Problem.from_functions(value_and_grad, np.zeros(2)), max_rides=8)


def torch():
    """A module of two hidden units close to its saddle at 0."""
    from torch import nn, no_grad, tensor

    import ridgerider.torch

    class Decayed(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)).double()

        def forward(self, inputs):
            return self.network(inputs), sum(one.square().sum() for one in self.parameters())

    def loss(outputs, targets):
        return nn.functional.mse_loss(outputs[0], targets) + 0.01 * outputs[1]

    random = np.random.default_rng(0)
    inputs = random.normal(size=(20, 2))
    targets = np.tanh(2 * inputs[:, :1] - inputs[:, 1:]) + np.tanh(inputs[:, 1:] + 1)
    module = Decayed()
    with no_grad():
        for parameter in module.parameters():
            parameter.copy_(tensor(0.1 * random.normal(size=parameter.shape)))
    problem = ridgerider.torch.problem(module, loss, tensor(inputs), tensor(targets))
    return rr.search(problem, max_rides=4)


# --- maps


def camel():
    return rr.explore(problems.six_hump_camel())


def mueller_brown():
    return rr.explore(problems.mueller_brown())


def rastrigin():
    return rr.explore(problems.rastrigin(2), valid=(-1.6, 1.6))


def network_map():
    symmetry = rr.symmetry.units(xor_units, signs=True)
    return rr.explore(xor_network(), symmetry=symmetry, max_rides=60)


def clusters(num_atoms: int, seed: int = 0) -> rr.Landscape:
    problem = problems.lennard_jones(num_atoms)
    # Less than another machine's rounding adds on the way; nothing for the seed 0.
    shift = 1e-13 * min(seed, 1) * np.random.default_rng(seed).normal(size=(num_atoms, 3))
    return rr.explore(
        problem.with_start(problem.start + jnp.asarray(shift)),
        symmetry=rr.symmetry.point_set(),
        valid=problems.is_one_cluster,
    )


def lj7(seed=0):
    return clusters(7, seed)


def lj8(seed=0):
    return clusters(8, seed)


SEARCHES = (
    surface,
    equal_wells,
    tutorial,
    tutorial_symmetry,
    decision_tree,
    levers,
    digits,
    matrix_free,
    numpy_functions,
    torch,
)
MAPS = (camel, mueller_brown, rastrigin, network_map, lj7, lj8)
RUNS: dict[str, Callable[..., Any]] = {run.__name__: run for run in (*SEARCHES, *MAPS)}
NEEDS = {"torch": "torch", "digits": "sklearn"}  # what a run cannot do without

# Which climb comes to which saddle depends on rounding here. The file has the minima and transition
# states, without addresses, that `MIN_VISITS` legs or more came to in every one of `REPEATS` maps;
# a map may find more.
PARTIAL = ("lj7", "lj8")


# --- what is kept of them

Row = dict[str, Any]
Tables = dict[str, list[Any]]


def outcome(name: str, seed: int = 0, min_visits: int = 1) -> Tables:
    """What the file keeps of a run; the start of one of `PARTIAL` is moved by `seed`."""
    if name not in PARTIAL:
        run = RUNS[name]()
        return of_search(run) if isinstance(run, rr.Result) else of_map(run)
    tables = of_map(RUNS[name](seed), min_visits)
    points = [row for row in tables["points"] if row["index"] < 2]
    for row in points:
        del row["at"]
    return {**tables, "points": points}


def of_search(result: rr.Result) -> Tables:
    legs = [leg_row(leg) for leg in result]
    return {"legs": legs, "minima": [rounded(one.level) for one in result.minima()]}


def leg_row(leg: rr.types.Leg) -> Row:
    """`end` is the loss at the end of the ride, `loss` where the descent from there came to rest.

    At infinity that is the limit: how far the descent goes is a matter of its tolerance.
    """
    finish = leg.finish
    assert finish is not None
    return {
        "at": str(leg.fingerprint),
        "ended_by": " ".join(leg.ended_by),
        "end": rounded(leg.loss),
        "kind": finish.kind,
        "loss": rounded(finish.limit if finish.kind == "at infinity" else finish.loss),
    }


def of_map(landscape: rr.Landscape, min_visits: int = 1) -> Tables:
    """All stationary points; each transition state with the two minima below it."""
    minima, passes = landscape.minima(), landscape.saddles()
    points = [
        point_row(one)
        for one in (*minima, *landscape.saddles(None))
        if one.multiplicity >= min_visits
    ]
    edges = [
        [rounded(edge.loss), *(None if end is None else rounded(minima[end].loss) for end in ends)]
        for edge in landscape.edges()
        for ends in [edge.minima]
        if passes[edge.saddle].multiplicity >= min_visits
    ]
    return {"points": points, "edges": edges}


def point_row(one: Any) -> Row:
    return {
        "index": one.morse_index,
        "kind": one.kind,
        "loss": rounded(one.loss),
        "at": str(one.fingerprint),
    }


def rounded(number: Any) -> float:
    """To `DIGITS` digits; what is zero but for rounding is zero."""
    return round(float(f"{float(number):.{DIGITS}g}"), 12) + 0.0


# --- the file


def is_possible(name: str) -> bool:
    """Whether what a run needs is installed."""
    return name not in NEEDS or importlib.util.find_spec(NEEDS[name]) is not None


def robust(name: str) -> Tables:
    """What a run always gives."""
    if name not in PARTIAL:
        return outcome(name)
    tables, *others = (outcome(name, seed, MIN_VISITS) for seed in range(REPEATS))
    for other in others:
        tables = {table: common(rows, other[table]) for table, rows in tables.items()}
    return tables


def as_text(golden: dict[str, Tables]) -> str:
    """JSON with a row on each line."""
    parts = []
    for name, tables in sorted(golden.items()):
        lines = [f'  "{table}": {table_text(rows)}' for table, rows in tables.items()]
        parts.append(f' "{name}": {{\n' + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def table_text(rows: list[Any]) -> str:
    if all(isinstance(row, float) for row in rows):
        return json.dumps(rows)
    return "[\n" + ",\n".join(f"   {json.dumps(row)}" for row in rows) + "\n  ]"


def write(names: Iterable[str]) -> None:
    golden = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in filter(is_possible, names):
        golden[name] = robust(name)
        print(name, {table: len(rows) for table, rows in golden[name].items()}, flush=True)
        FILE.write_text(as_text(golden))


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    write(sys.argv[1:] or RUNS)
