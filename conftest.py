"""Tests and examples run in double precision, with implicit promotions forbidden.

Most of their time is compilation, so XLA is told to compile in haste: see `HASTE`. What one of them
compiled, in whichever process, is kept for the others and for the next run.
"""

import gc
import importlib.util
import mmap
import os
import runpy
import sys
import tempfile
import tomllib
from pathlib import Path

import equinox as eqx
import jax
import jaxlib
import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

# Programs that run for a moment are not worth optimising: the first two flags halve the processor
# time of all tests, the next two save a few percent more. With an XLA_FLAGS of your own, programs
# are compiled as for a user: that is how `make test-all` runs the long proofs.
# The last: on a busy machine XLA's thread pool was once seen to wait for itself, in a program
# vmapped over a thousand eigh.
LOOPS = "while-loop-trip-count-annotator,simplify-while-loops,while-loop-invariant-code-motion"
HASTE = {
    "xla_backend_optimization_level": "0",
    "xla_cpu_use_fusion_emitters": "false",
    "xla_cpu_parallel_codegen_split_count": "1",
    "xla_disable_hlo_passes": LOOPS,
    "xla_cpu_multi_thread_eigen": "false",
}


def known_flags(names):
    """Those this version of XLA knows: it aborts for any other."""
    library = Path(jaxlib.__file__).parent / "libjax_common.so"
    if not library.exists():
        return []
    with (
        library.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return [name for name in names if content.find(name.encode() + b"\0") >= 0]


for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")  # there are as many tests at a time as cores

if "XLA_FLAGS" not in os.environ:
    os.environ["XLA_FLAGS"] = " ".join(f"--{name}={HASTE[name]}" for name in known_flags(HASTE))

CACHE = {
    "jax_compilation_cache_dir": str(Path(__file__).parent / ".pytest_cache" / "compiled"),
    "jax_persistent_cache_min_compile_time_secs": 0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
for name, value in CACHE.items():
    jax.config.update(name, value)
    os.environ[name.upper()] = str(value)  # for the processes that tests start

# The entry points that this tree declares, for tests and the processes that they start: the
# environment may be shared with another tree, or older than pyproject.toml.
PROJECT = tomllib.loads((Path(__file__).parent / "pyproject.toml").read_text())["project"]
METADATA = Path(__file__).parent / ".pytest_cache" / "metadata"
declared = METADATA / f"{PROJECT['name']}-{PROJECT['version']}.dist-info"
declared.mkdir(parents=True, exist_ok=True)
groups = {"console_scripts": PROJECT["scripts"], **PROJECT["entry-points"]}
(declared / "entry_points.txt").write_text(
    "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in groups.items()
    )
)
(declared / "METADATA").write_text(
    f"Metadata-Version: 2.1\nName: {PROJECT['name']}\nVersion: {PROJECT['version']}\n"
)
sys.path.insert(0, str(METADATA))
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [os.environ.get("PYTHONPATH", ""), str(METADATA)])
)

collect_ignore_glob = ["docs/gallery/*.py"]  # programs: tests/test_gallery.py runs them

# Packages that only some users have. An example that needs one is skipped where it is missing.
OPTIONAL = ("torch", "ase", "tblite", "distributed", "pandas", "matplotlib")
BRIDGES = {"torch": "ridgerider/torch.py", "ase": "ridgerider/ase/*.py"}
MAX_MAPS = 10_000  # Linux allows 65_530 by default
ANOTHER_MACHINE = Path(__file__).parent / "tests" / "another_machine"


def pytest_addoption(parser):
    parser.addoption(
        "--rotate-bases",
        metavar="SEED",
        help="turn the bases of repeated eigenvalues, as another machine would return others",
    )
    parser.addoption(
        "--without",
        metavar="PACKAGE",
        choices=OPTIONAL,
        action="append",
        default=[],
        help="run as on a machine on which this optional package is not installed",
    )


def pytest_configure(config):
    if config.getoption("--without"):
        sys.meta_path.insert(0, Missing(config.getoption("--without")))
    seed = config.getoption("--rotate-bases")
    if seed and "RIDGERIDER_ROTATE_BASES" not in os.environ:  # a worker of xdist has begun with it
        os.environ["RIDGERIDER_ROTATE_BASES"] = seed
        paths = [str(ANOTHER_MACHINE), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        runpy.run_path(str(ANOTHER_MACHINE / "sitecustomize.py"))


class Missing:
    """A finder of modules that finds these packages nowhere."""

    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def is_missing(package):
    try:
        return importlib.util.find_spec(package) is None
    except ModuleNotFoundError:
        return True


@pytest.hookimpl(wrapper=True)
def skip_what_is_missing(item):
    """Skip, with one line, what fails because an optional package is missing.

    An example of a document that was skipped defines no names, so that examples below it which use
    one are skipped as well.
    """
    namespace = getattr(getattr(item, "example", None), "namespace", {})
    try:
        return (yield)
    except BaseException as error:
        failures = getattr(error, "failures", [error])  # several, if a doctest has several
        causes = [getattr(one, "exc_info", (None, one))[1] for one in failures]
        package = next(filter(None, map(missing_package, causes)), None)
        if package is None and isinstance(error, NameError):
            package = namespace.get("_missing")
        if package is None:
            raise
        namespace["_missing"] = package
        pytest.skip(f"{package} is not installed")


pytest_runtest_setup = pytest_runtest_call = skip_what_is_missing


def missing_package(error):
    """The optional package for want of which this error or its cause was raised."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError):
            name = (error.name or "").partition(".")[0]
            if name in OPTIONAL and is_missing(name):
                return name
        error = error.__cause__ or error.__context__
    return None


jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


gc.set_threshold(100_000)  # tracing makes many objects, and few of them are garbage


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Let go of compiled programs now and then: a process may map only so many of them."""
    if nextitem is not None and nextitem.path == item.path:
        return
    maps = Path("/proc/self/maps")
    if not maps.exists() or maps.read_bytes().count(b"\n") > MAX_MAPS:
        eqx.clear_caches()
        jax.clear_caches()


def enter_empty_directory(namespace):
    """Examples may write files: not here."""
    namespace["_before"] = Path.cwd()
    os.chdir(tempfile.mkdtemp())


def leave_directory(namespace):
    os.chdir(namespace["_before"])


documents = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()],
    patterns=["README.md", "docs/*.md"],
    setup=enter_empty_directory,
    teardown=leave_directory,
).pytest()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path, parent):
    """The examples of documents, and of all modules but those that cannot be imported here."""
    collected = yield
    bridges = [path for package, path in BRIDGES.items() if is_missing(package)]
    if any(file_path.match(path) for path in bridges):
        return []
    document = documents(file_path, parent)
    return collected if document is None else [*collected, document]
