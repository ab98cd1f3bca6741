"""Where an optional package is missing, what needs it is skipped with one line; nothing fails."""

import subprocess
import sys
from pathlib import Path

from conftest import OPTIONAL, missing_package

ROOT = Path(__file__).parents[1]
# Of each package a test, an example of a module or one of a document that needs it.
NEEDS = [
    "tests/test_torch.py",
    "tests/test_ase.py",
    "tests/workers/test_workers.py::test_workers_may_leave_and_join",
    "docs/choosing.md",
    "ridgerider/plot/_figures.py",
]
NAMES = {"torch": "PyTorch", "ase": "ASE"}


def test_what_needs_a_missing_package_is_skipped():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *NEEDS]
    for package in OPTIONAL:
        command += ["--without", package]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "failed" not in done.stdout and "error" not in done.stdout, done.stdout
    for package in OPTIONAL:
        if package == "tblite":  # its example needs ASE, too, which is missing first
            continue
        assert f"{NAMES.get(package, package)} is not installed" in done.stdout, done.stdout


def test_a_package_that_is_wanted_by_mistake_still_fails():
    """Only the packages of extras are optional: any other missing import is an error."""
    assert missing_package(ModuleNotFoundError("", name="no_such_package")) is None
