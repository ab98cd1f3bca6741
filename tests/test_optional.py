"""Where an optional package is missing, what needs it is skipped with one line; nothing fails."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# An example or a test that needs the package.
NEEDS = {
    "torch": ["docs/bridges.md"],
    "ase": ["tests/test_ase.py"],
    "distributed": ["tests/workers", "-k", "leave_and_join"],
    "pandas": ["ridgerider/_search/results/result.py", "-k", "to_pandas"],
    "matplotlib": ["ridgerider/plot/_figures.py"],
}


@pytest.mark.parametrize("package", NEEDS)
def test_what_needs_a_missing_package_is_skipped(package):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["--without", package, *NEEDS[package]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "skipped" in done.stdout and "failed" not in done.stdout, done.stdout
    assert "is not installed" in done.stdout


def test_a_package_that_is_wanted_by_mistake_still_fails():
    """Only the packages of extras are optional: any other missing import is an error."""
    from conftest import missing_package

    assert missing_package(ModuleNotFoundError("", name="no_such_package")) is None
