"""Valid calls of every public function and method, and values that are wrong for most arguments."""

import importlib
import inspect
import tempfile
from functools import cache
from pathlib import Path

import ase
import ase.calculators.lj
import jax
import jax.numpy as jnp
import numpy as np
import optax

import ridgerider as rr
import ridgerider.ase
from ridgerider import (
    coordination,
    data,
    ensembles,
    environments,
    problems,
)
from ridgerider.problems import sampled_tree

MODULES = (
    *("environments", "ensembles", "coordination", "baselines", "symmetry", "plot", "report"),
    *("problems", "workers", "data", "dice", "ase", "types", ""),
)
WRONG: tuple = (
    *(None, float("nan"), float("inf"), -1, 0, 10**30, 2**62, 1.5, -0.5, True, 1j, "wrong", ""),
    *(b"bytes", object(), [], (), {}, [object()], ["a"], {1: 2}, {"a": None}, set()),
    *(lambda: 0, lambda a, b, c, d, e, f: 0, np.zeros(0), np.zeros((2, 3, 4)), np.array(["a"])),
    *(np.full(2, np.nan), np.zeros(2, complex), np.array(3.0), Path("/nowhere/at/all"), range(3)),
)
# What holds what it is given, without a look at it: results, and values inside of programs.
HOLDERS = (
    *("Equilibrium", "Runs", "RideEnd", "Method", "Episodes"),
    *("Accuracies", "CommonRide", "Consistency", "ConsistentRidge", "SharedFeatures", "Beginning"),
    *("Member", "Scores", "Baseline", "Candidate", "Coordination", "Game", "SymmetryGroup"),
    *(
        "Equilibrium",
        "Runs",
        "RideEnd",
        "Method",
        "Episodes",
        "SymmetryReport",
        "Ends",
        "Environment",
        "SampledMean",
        "Trajectories",
        "CellMotions",
    ),
    *("CellSignature", "Connected", "Branch", "Branching", "Certificate", "Cluster", "Cost"),
    *("Direction", "Epoch", "Finish", "Leg", "NetworkStart", "Progress", "Ride", "Rides"),
    *("Ridge", "Saddle", "Solution", "Spectrum", "Trace", "Tracked", "Trial", "Result"),
    *("Landscape", "Ensemble", "Reader", "Classifier", "ColoredImages", "WorkerLost", "Images"),
    *("EnergyAndForces", "PointCopy", "PointSignature", "RigidCopy", "RigidSignature", "Motions"),
    *("PeriodCopy", "PeriodSignature"),
    *("UnitSignature", "Turn", "Network", "Settings", "Functions", "Fingerprint", "Frontier"),
)


def loss(x):
    return jnp.sum(x**4 / 4 - x**2 / 2) + 0.1 * x[0]


@cache
def problem():
    return rr.Problem(loss, jnp.zeros(1))


@cache
def saddle():
    return rr.Problem(lambda x: jnp.sum(x**4 / 4 - x**2 / 2), jnp.zeros(1))


@cache
def files():
    return Path(tempfile.mkdtemp())


@cache
def result():
    return rr.search(saddle(), max_rides=2, out=files() / "run.sqlite", name="saddle")


@cache
def landscape():
    return rr.explore(problem(), max_rides=4, out=files() / "map.sqlite", name="map")


@cache
def images():
    return data.digits(0).some(20, 10)


@cache
def network():
    key = jax.random.key(0)
    params = {"a": 0.1 * jax.random.normal(key, (64, 2)), "b": jnp.zeros((2, 10))}
    return params, jnp.asarray(images().train_images.reshape(20, 64), float), images().train_labels


def apply(params, inputs):
    return jnp.tanh(inputs @ params["a"]) @ params["b"]


@cache
def ensemble():
    params, inputs, labels = network()
    start = rr.network_start(params, apply, inputs, jnp.asarray(labels), seed=1)
    finish = rr.Train(optax.sgd(0.1), rr.Batches(10), epochs=1)
    return rr.ensemble(start.problem, 1, finish=finish, begin=ensembles.Fresh())


@cache
def envs():
    def loss(x, inputs, targets):
        return jnp.mean((inputs @ x**3 - targets) ** 2) - jnp.sum(x**2)

    inputs = jnp.asarray(np.random.default_rng(0).normal(size=(8, 2)))
    problems = [rr.Problem(loss, jnp.zeros(2), part, part[:, 0]) for part in (inputs, 2 * inputs)]
    return environments.Environments(problems)


@cache
def atoms():
    cluster = ase.Atoms("Ar3", [(0, 0, 0), (1.1, 0, 0), (0.5, 1, 0)])
    cluster.calc = ase.calculators.lj.LennardJones(rc=10)
    return cluster


@cache
def of_atoms():
    return rr.ase.explore(atoms(), max_force_calls=300)


@cache
def sampled():
    environment = sampled_tree.TreeEnvironment(sampled_tree.make_tree(2))
    params = jnp.zeros(problems.tree(2).size)
    return params, environment, environment.sample(params, jax.random.key(0), 4)


def new_file():
    return Path(tempfile.mkdtemp(dir=files())) / "new.sqlite"


@cache
def flat_map():
    return rr.explore(rr.Problem(lambda x: jnp.sum((x**2 - 1) ** 2), jnp.ones(2)), max_rides=2)


@cache
def flat_tree():
    problem = rr.Problem(lambda x: jnp.sum(x**4 / 4 - jnp.array([2.0, 1.0]) * x**2), jnp.zeros(2))
    return rr.search(problem, max_rides=4)


@cache
def invariant():
    return environments.Invariant().fit(INPUTS, TARGETS, GROUP)


def named(names, *values, **others):
    return dict(zip(names.split(), values, strict=True)) | others


def the(**arguments):
    """The arguments of a call, made when it is: those that are functions of nothing are called."""
    return lambda: {
        name: value() if inspect.isfunction(value) and value.__name__ == "<lambda>" else value
        for name, value in arguments.items()
    }


# Calls that end soon; arguments that are not named have their defaults.
SHORT = {"max_seconds": 20}
PROBABILITIES = np.full((2, 4, 3), 1 / 3)
LABELS = np.array([0, 1, 2, 0])
FEATURES = [jnp.ones((4, 2)), 2 * jnp.ones((4, 2))]
INPUTS, TARGETS, GROUP = (
    np.random.default_rng(0).normal(size=(40, 3)),
    np.arange(40) % 2,
    np.arange(40) // 20,
)
KEY = lambda: jax.random.key(0)  # noqa: E731
X = jnp.array([0.3])
PATH = lambda: result() and files() / "run.sqlite"  # noqa: E731
FREE = {"problem": lambda: problem()}
CALLS = {
    "connect": the(**FREE, a=jnp.array([-1.0]), b=jnp.array([1.0]), max_calls=200),
    "explore": the(**FREE, max_rides=2, **SHORT),
    "search": the(problem=lambda: saddle(), max_rides=1, **SHORT),
    "find_saddle": the(**FREE, num_starts=1),
    "minimize_all": the(fun=np.sum, x0=[0.5], bounds=[(-1, 1)], max_calls=40, **SHORT),
    "network_start": lambda: named(
        "params apply inputs targets", network()[0], apply, *network()[1:]
    ),
    "ensemble": the(
        problem=lambda: ensemble().problem,
        k=1,
        finish=lambda: ensemble().finish,
        begin=ensembles.Fresh(),
    ),
    "coordination.coordinate": the(game=lambda: problems.Levers((1.0, 0.5)), num_runs=2),
    "keep_compiled": the(folder=lambda: files() / "programs"),
    "load": the(path=PATH),
    "measure": the(path=PATH, measures=rr.Measures(), problem=lambda: saddle()),
    "resume": the(path=PATH, problem=lambda: saddle()),
    "Problem": the(loss=loss, start=jnp.zeros(1)),
    "rr.Problem.from_functions": lambda: {
        "value_and_grad": lambda x: (x @ x, 2 * x),
        "start": np.ones(1),
    },
    "Train": the(optimizer=optax.sgd(0.1)),
    "curvature_gone": None,  # rules, called inside of programs
    "not_finite": None,
    "problem().ravel": the(params=X),
    "problem().unravel": the(x=X),
    "problem().params_of": the(x=np.ones(1)),
    "problem().with_start": the(params=X),
    "problem().with_unit": the(unit=2.0),
    "problem().on_rows": the(rows=jnp.zeros((1, 1), int)),
    "problem().value": the(x=X),
    "problem().grad": the(x=X),
    "problem().hvp": the(x=X, v=X),
    "problem().hvp_at": the(x=X),
    "problem().hessian": the(x=X),
    "rr.Rider().ride": lambda: {
        "problem": saddle(),
        "x": jnp.zeros(1),
        "key": KEY(),
        "ridge": rr.DenseSpectrum()(saddle(), jnp.zeros(1), KEY()).ridge(0),
    },
    "rr.Rider.for_networks": the(),
    "rr.BlockSpectrum.for_networks": the(),
    "result().minima": the(),
    "result().leg": the(fingerprint="0+"),
    "result().solutions": the(),
    "result().export": the(path=lambda: new_file().with_suffix(".csv")),
    "result().replay": the(fingerprint="0+"),
    "landscape().saddles": the(),
    "landscape().connect": the(a=0, b=1),
    "landscape().barrier": the(a=0, b=1),
    "landscape().path": the(a=0, b=1),
    "landscape().leg": the(fingerprint=""),
    "ensemble().params": the(number=0),
    "ensemble().predictions": the(inputs=lambda: network()[1]),
    "ensemble().disagreement": the(inputs=lambda: network()[1]),
    "ensemble().scores": the(inputs=lambda: network()[1], labels=lambda: network()[2]),
    "ensemble().auroc": the(inside=lambda: network()[1], outside=lambda: network()[1]),
    "ensemble().pick": the(k=1, inputs=lambda: network()[1]),
    "ensemble().deep": the(budget=1.0),
    "ensemble().train_on": the(epochs=1),
    "ensemble().compare": the(inputs=lambda: network()[1], labels=lambda: network()[2]),
    "rr.DenseSpectrum()(saddle(), X, KEY()).ridge": the(index=0),
    "rr.DenseSpectrum()(saddle(), X, KEY()).branches": the(problem=lambda: saddle(), x=X),
    "types.Fingerprint.parse": the(fingerprint="0+"),
    "types.Frontier().ask": the(count=1),
    "types.FixedRows": the(),
    "types.shuffled": None,
    "environments.Environments": the(problems=lambda: envs().problems),
    "environments.Invariant": the(),
    "environments.consistency": the(
        environments=lambda: envs(), params=jnp.zeros(2), directions=jnp.eye(2)
    ),
    "environments.consistent_ridge": the(environments=lambda: envs()),
    "environments.extrapolate": the(accuracies=(0.6, 0.7), rates=(0.2, 0.1), target=0.9),
    "environments.fit": the(inputs=INPUTS, targets=TARGETS, group=GROUP),
    "environments.from_groups": the(
        loss=lambda: lambda x, a: jnp.mean(a) * jnp.sum(x**2),
        start=jnp.zeros(2),
        args=[jnp.arange(4.0)],
        groups=[0, 1, 0, 1],
    ),
    "environments.ride_common": the(
        environments=lambda: envs(),
        settings=environments.Algorithm4(num_pretrain=1, num_steps=1, num_inner=1, batch=None),
    ),
    "environments.agreement": the(accuracies=(0.6, 0.7)),
    "environments.shared_features": the(features=FEATURES, targets=FEATURES),
    "environments.Invariant().fit": the(inputs=INPUTS, targets=TARGETS, group=GROUP),
    "invariant().predict": the(inputs=INPUTS),
    "envs().with_ridden": the(params=jnp.zeros(2), x=jnp.ones(2)),
    "envs().ravel": the(params=jnp.zeros(2)),
    "envs().ridden": the(params=jnp.zeros(2)),
    "envs().pooled": the(),
    "envs().hessians": the(params=jnp.zeros(2)),
    "envs().hvps": the(params=jnp.zeros(2), directions=jnp.eye(2)),
    "ensembles.RandomDirections": the(length=1.0),
    "ensembles.Scores.of": the(probabilities=PROBABILITIES, labels=LABELS),
    "ensembles.auroc": the(inside=np.zeros(2), outside=np.ones(2)),
    "ensembles.disagreement": the(probabilities=PROBABILITIES),
    "coordination.PayoffGame": lambda: {
        "payoff": lambda a, b: jnp.sum(a * b),
        "shapes": [(1, 2), (1, 2)],
    },
    "coordination.card_game": the(),
    "coordination.equilibria": the(game=lambda: coordination.signalling()),
    "coordination.PayoffGame.from_play": lambda: {
        "play": lambda draw, act: float(act(0, 0, 2) == act(1, 0, 2))
    },
    "coordination.other_play": the(
        game=lambda: problems.Levers((1.0, 1.0)),
        num_runs=2,
        symmetries=lambda: problems.Levers((1.0, 1.0)).symmetries(),
    ),
    "coordination.play_alone": the(game=lambda: problems.Levers((1.0, 1.0)), num_runs=2),
    "coordination.signalling": the(),
    "coordination.symmetry_report": the(problem=lambda: saddle()),
    "baselines.GradientDescent()": the(**FREE, max_steps=3, max_seconds=1.0),
    "baselines.fixed_ridge": the(rider=rr.Rider()),
    "baselines.fixed_step": the(rider=rr.Rider()),
    "baselines.random_ridge": the(rider=rr.Rider()),
    "symmetry.periodic": lambda: {"period": [1.0, 0.0]},
    "symmetry.units": lambda: {"rows": lambda params: params},
    "plot.disconnectivity": the(landscape=lambda: landscape()),
    "plot.landscape": the(result=lambda: flat_tree(), num_points=3),
    "plot.plane": the(landscape=lambda: flat_map()),
    "plot.ride": the(leg=lambda: result().leg("0+")),
    "plot.shades": None,
    "plot.spectrum": the(leg=lambda: result().leg("")),
    "plot.tree": the(result=lambda: result()),
    "report.compare": the(paths=lambda: [PATH(), PATH()], out=lambda: files() / "compare.html"),
    "report.report": the(path=PATH, out=lambda: files() / "page.html"),
    "problems.classifier": the(
        images=lambda: images().train_images, labels=lambda: images().train_labels, widths=(2,)
    ),
    "problems.is_one_cluster": the(points=np.zeros((2, 3))),
    "problems.load_problem": the(name="wells"),
    "workers.ProcessPool": None,  # starts processes: see `test_workers`
    "workers.process_pool": None,
    "workers.dask": None,
    "images().some": the(num_train=2, num_test=2),
    "data.from_folder": None,
    "data.images_of": the(data="digits"),
    "dice.dice_loss": lambda: named(
        "params environment trajectories", *sampled(), advantages=jnp.zeros((4, 2))
    ),
    "dice.estimate": lambda: named(
        "derivative params environment trajectories advantages",
        *(jax.grad, *sampled(), jnp.zeros((4, 2))),
    ),
    "ase.connect": the(initial=lambda: atoms(), final=lambda: atoms().copy(), max_force_calls=9),
    "ase.explore": the(atoms=lambda: atoms(), max_force_calls=40),
    "ase.free_energies": the(landscape=lambda: of_atoms(), temperature=300.0),
    "ase.movie": None,
    "ase.normal_modes": the(landscape=lambda: of_atoms(), point=lambda: of_atoms().minima()[0]),
    "ase.path_movie": the(landscape=lambda: of_atoms(), a=0, b=0),
    "ase.problem": the(atoms=lambda: atoms()),
    "ase.rate": the(rates=np.ones((2, 2)), begin=0, end=1),
    "ase.rate_matrix": the(landscape=lambda: of_atoms(), temperature=300.0),
    "ase.read_pathsample": None,
    "ase.read_pele": None,
    "ase.resume": None,
    "ase.save": the(run=lambda: of_atoms(), path=lambda: files() / "atoms.xyz"),
    "ase.symmetry_order": the(landscape=lambda: of_atoms(), point=lambda: of_atoms().minima()[0]),
    "ase.to_atoms": the(run=lambda: of_atoms()),
    "ase.write_pele": None,
    "ase.write_pathsample": the(landscape=lambda: of_atoms(), folder=lambda: files() / "paths"),
}
NOT_FOR_USERS = (
    *("check_labels", "needs", "fill_page", "page", "place_for", "write_page", "checked"),
    *("check_fields", "cache_folder"),
)
TWICE = {"coordinate": "coordination.coordinate", "ensembles.ensemble": "ensemble"}


def public():
    """Names of all public functions and classes."""
    for module in MODULES:
        inside = importlib.import_module(f"ridgerider.{module}".rstrip("."))
        for name in dir(inside):
            what = getattr(inside, name)
            home = getattr(what, "__module__", "")
            is_own = (
                home.startswith("ridgerider")
                if hasattr(inside, "__path__")
                else (home == inside.__name__)
            )
            is_public = not name.startswith("_") and name not in HOLDERS + NOT_FOR_USERS
            if is_public and callable(what) and is_own:
                yield f"{module}.{name}".lstrip("."), what


def cases():
    """All calls: a name, the function, and what makes its arguments."""
    names, seen = dict(public()), set()
    inside = {name: importlib.import_module(f"ridgerider.{name}") for name in MODULES if name}
    for name, what in names.items():
        name = {"coordinate": "coordination.coordinate", "ensembles.ensemble": "ensemble"}.get(
            name, name
        )
        if id(what) not in seen and name not in CALLS:
            seen.add(id(what))
            yield name, what, the()
    for name, make in CALLS.items():
        if make is not None:
            what = names.get(name) or (lambda name=name: eval(name, globals() | inside))
            yield name, what, make
