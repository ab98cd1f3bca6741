"""Tests and examples run in double precision, with implicit promotions forbidden."""

import os
import tempfile
from pathlib import Path

import jax
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


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
