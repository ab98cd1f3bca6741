"""What is released: the built wheel works where nothing else is installed."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command, cwd):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "JAX"))
    }
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_the_built_wheel_runs_in_an_empty_environment(tmp_path):
    """`python -m build` makes the sdist, and the wheel from the sdist."""
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "venv", python.parents[1], cwd=tmp_path)
    try:
        run(python, "-m", "pip", "install", "--quiet", "build", cwd=tmp_path)
    except AssertionError as error:
        pytest.skip(f"no package index: {str(error).splitlines()[-1]}")
    run(python, "-m", "build", "--outdir", tmp_path / "dist", ROOT, cwd=tmp_path)
    (sdist,), (wheel,) = (list((tmp_path / "dist").glob(end)) for end in ("*.tar.gz", "*.whl"))
    with tarfile.open(sdist) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "conftest.py"} <= names
    run(python, "-m", "pip", "install", "--quiet", wheel, cwd=tmp_path)
    assert "search" in run(python.with_name("ridgerider"), "--help", cwd=tmp_path)
    found = run(python.with_name("ridgerider"), "search", "wells", "--max-rides", "4", cwd=tmp_path)
    assert "ridgerider resume" in found
