"""Tests and examples run in double precision, with implicit promotions forbidden.

Most of their time is compilation. What one of them compiled, in whichever process, is kept for the
others and for the next run.
"""

import os
import runpy
import tempfile
from pathlib import Path

import equinox as eqx
import jax
import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

CACHE = {
    "jax_compilation_cache_dir": str(Path(__file__).parent / ".pytest_cache" / "compiled"),
    "jax_persistent_cache_min_compile_time_secs": 0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
for name, value in CACHE.items():
    jax.config.update(name, value)
    os.environ[name.upper()] = str(value)  # for the processes that tests start

ANOTHER_MACHINE = Path(__file__).parent / "tests" / "another_machine"


def pytest_addoption(parser):
    parser.addoption(
        "--rotate-bases",
        metavar="SEED",
        help="turn the bases of repeated eigenvalues, as another machine would return others",
    )


def pytest_configure(config):
    seed = config.getoption("--rotate-bases")
    if seed:
        os.environ["RIDGERIDER_ROTATE_BASES"] = seed
        paths = [str(ANOTHER_MACHINE), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        runpy.run_path(str(ANOTHER_MACHINE / "sitecustomize.py"))


jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Let go of compiled programs with each file: a process may map only so many of them."""
    if nextitem is None or nextitem.path != item.path:
        eqx.clear_caches()
        jax.clear_caches()


def enter_empty_directory(namespace):
    """Examples may write files: not here."""
    namespace["_before"] = Path.cwd()
    os.chdir(tempfile.mkdtemp())


def leave_directory(namespace):
    os.chdir(namespace["_before"])


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()],
    patterns=["README.md", "docs/*.md"],
    setup=enter_empty_directory,
    teardown=leave_directory,
).pytest()
