"""Who may import whom. The picture is in docs/architecture.md."""

import ast
import itertools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ridgerider

ROOT = Path(ridgerider.__file__).parent
EXPERIMENTS = ROOT.with_name("ridgerider_experiments")
# Of dependencies that are called otherwise; a notebook's own; peers, where the user has them.
MODULES = ("sklearn", "dask", "jaxlib", "IPython", "topsearch", "tblite")

# What each room may import, besides itself and `_check`.
ROOMS: dict[str, set[str]] = {
    "_check": set(),
    "_core": set(),
    "data": {"_core"},
    "dice": {"_core"},
    "_search": {"_core"},
    "problems": {"_core", "_search", "data", "dice"},
    "environments": {"_core", "problems"},
    "symmetry": {"_core"},
    "ensembles": {"_core"},
    "workers": {"_core", "_search"},
    "coordination": {"_core", "_search"},
    "baselines": {"_core", "_search"},
    "plot": {"_core", "_search"},
    "report": {"_core", "_search", "plot"},
    "torch": {"_core"},
    "types": {"_core", "_search"},
    "ase": {"_core", "_search", "symmetry"},
}
LIBRARY = {*ROOMS, ""}  # "": the public names of `ridgerider` itself
ROOMS |= {
    "": set(ROOMS) - {"data", "dice", "problems", "baselines", "torch", "ase"},
    "cli": LIBRARY,
}


def room_of(path):
    """The package or file below `ridgerider/` that a file belongs to; "" is `__init__`."""
    first = path.relative_to(ROOT).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def imported_rooms(source):
    """The rooms that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "ridgerider_experiments":
                yield package
            if package == "ridgerider":
                room = rest.partition(".")[0]
                yield room if room in ROOMS else ""


FILES = sorted(path for path in ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_arrows(path):
    room = room_of(path)
    allowed = ROOMS[room] | {room, "_check"}
    assert set(imported_rooms(path.read_text())) <= allowed


def test_the_arrows_have_no_cycle():
    done: set[str] = set()
    while left := {room for room in ROOMS if room not in done}:
        free = {room for room in left if ROOMS[room] - {room} <= done}
        assert free, f"a cycle among {left}"
        done |= free


def test_a_turned_arrow_is_seen():
    """The core that looks at the tree, or the search that draws, would be noticed."""
    for line in ("from ridgerider._search.tree import Leg", "import ridgerider.report"):
        (room,) = imported_rooms(line)
        assert room not in ROOMS["_core"] | {"_core", "_check"}
    (room,) = imported_rooms("def f():\n    from ridgerider import plot")
    assert room == "plot" and room not in ROOMS["_search"]
    assert list(imported_rooms("from ridgerider import Rider")) == [""]


def private_names(source):
    """What a file of the experiments uses of the library that has a leading underscore."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            package, *parts = name.split(".")
            if package == "ridgerider" and any(part.startswith("_") for part in parts):
                yield name
        is_private = isinstance(node, ast.Attribute) and re.match(r"_(?!_)", node.attr)
        if is_private and getattr(node.value, "id", "") != "self":
            yield node.attr


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.rglob("*.py")), ids=lambda path: path.stem)
def test_experiments_use_public_names_only(path):
    assert not list(private_names(path.read_text()))


def test_a_private_name_of_an_experiment_is_seen():
    for line in (
        "from ridgerider._core.ride.rider import Ride",
        "from ridgerider.plot._figures import Plane",
        "from ridgerider.plot import _figures",
        "import ridgerider._search",
        "import ridgerider as rr\nrr._core.ride",
        "def f(problem):\n    return problem.loss._loss(None)",
    ):
        assert len(list(private_names(line))) == 1, line
    assert not list(private_names("from ridgerider.types import Ridge\nself._x = Ridge.__name__"))
    (room,) = imported_rooms("from ridgerider_experiments import demo")
    assert all(room not in rooms for rooms in ROOMS.values())


def test_the_folder_is_the_architecture():
    files = [path for path in ROOT.iterdir() if path.is_file()]
    assert len(files) <= 8
    rooms = {path.name.removesuffix(".py") for path in ROOT.iterdir()} - {"__pycache__"}
    assert rooms - {"__init__", "py.typed"} == ROOMS.keys() - {""}


def test_tests_mirror_the_packages():
    here = Path(__file__).parent
    folders = {path.name for path in here.iterdir() if path.is_dir()} - {"__pycache__"}
    packages = {path.name.lstrip("_") for path in ROOT.iterdir() if path.is_dir()}
    packages.add("experiments")  # `ridgerider_experiments`
    # What is true of all of them has folders of its own.
    assert folders - {"another_machine", "fuzz", "golden"} <= packages


def test_the_picture_names_every_room():
    docs = Path(__file__).parents[1] / "docs" / "architecture.md"
    text = docs.read_text()
    for room in ROOMS.keys() - {""}:
        assert re.search(rf"(?<!\w){room}(/|\.py)", text), room


def test_import_is_light():
    """Figures, tables, the terminal and the cluster are imported where they are used."""
    heavy = (
        *("matplotlib", "sklearn", "typer", "rich", "distributed", "dask", "networkx"),
        *("scipy", "optax", "ridgerider.report", "ridgerider.plot"),
    )
    used = "rr.Problem, rr.Rider, rr.search, rr.explore, rr.minimize_all, rr.find_saddle"
    script = f"import sys, ridgerider as rr; {used}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    modules = done.stdout.split()
    assert "ridgerider._core.ride.rider" in modules
    assert not [name for name in modules if name in heavy]


def test_every_import_is_of_something_declared():
    """What another dependency happens to bring, as click once, is not there on a new machine."""
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]
    extras = itertools.chain.from_iterable(project["optional-dependencies"].values())
    wanted = [re.match(r"[\w-]+", name)[0] for name in (*project["dependencies"], *extras)]
    known = {
        "ridgerider",
        "ridgerider_experiments",
        "tests",
        *MODULES,
        *wanted,
        *sys.stdlib_module_names,
    }
    for path in (*ROOT.rglob("*.py"), *EXPERIMENTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            undeclared = {name.partition(".")[0] for name in names} - known
            assert not undeclared, f"{path} imports {undeclared}"


def test_public_names_are_imported_when_they_are_used():
    code = "import sys, ridgerider; assert 'jax' not in sys.modules; ridgerider.Problem"
    subprocess.run([sys.executable, "-c", code + "; assert 'jax' in sys.modules"], check=True)
    assert all(hasattr(ridgerider, name) for name in dir(ridgerider))
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        ridgerider.no_such_name  # noqa: B018
