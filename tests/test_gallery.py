"""Every example of the gallery runs as it stands, and finds what its page says."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

GALLERY = Path(__file__).parents[1] / "docs" / "gallery"
EXAMPLES = sorted(path.stem for path in GALLERY.glob("*.py"))


def run(name, tmp_path, monkeypatch):
    """What is left after an example, which drew its picture in an empty directory."""
    monkeypatch.chdir(tmp_path)
    # Examples are written for users, who have not forbidden implicit promotions.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        left = runpy.run_path(str(GALLERY / f"{name}.py"))
    assert (tmp_path / f"{name}.png").stat().st_size > 5_000
    return left


def test_own_function(tmp_path, monkeypatch):
    left = run("own_function", tmp_path, monkeypatch)
    losses = np.round(sorted(left["minima"].values()), 4)
    np.testing.assert_allclose(losses, [-1.0316, -1.0316, -0.2155, -0.2155, 2.1043, 2.1043])


def test_policies(tmp_path, monkeypatch):
    left = run("policies", tmp_path, monkeypatch)
    assert len(left["policies"]) == left["tree"].num_solutions == 2


@pytest.mark.long
def test_own_network(tmp_path, monkeypatch):
    left = run("own_network", tmp_path, monkeypatch)
    assert 1 < len(left["functions"]) < len(left["result"].minima())


@pytest.mark.long
def test_levers(tmp_path, monkeypatch):
    left = run("levers", tmp_path, monkeypatch)
    assert left["result"].best.cross_play > 0.79 > left["alone"].cross_play


@pytest.mark.long
def test_environments(tmp_path, monkeypatch):
    shared = run("environments", tmp_path, monkeypatch)["weights"]["ridge that both share"]
    assert shared[0] > 4 * shared[1]


@pytest.mark.long
def test_landscape(tmp_path, monkeypatch):
    left = run("landscape", tmp_path, monkeypatch)
    losses = np.round([one.loss for one in left["landscape"].minima()], 2)
    np.testing.assert_allclose(losses, [-146.7, -108.17, -80.77])
    assert len(left["landscape"].saddles()) == 2


@pytest.mark.long
def test_clusters(tmp_path, monkeypatch):
    left = run("clusters", tmp_path, monkeypatch)
    losses = np.round([one.loss for one in left["shapes"]], 3)
    np.testing.assert_allclose(losses, [-16.505, -15.935, -15.593, -15.533])


@pytest.mark.long
def test_adatom(tmp_path, monkeypatch):
    pytest.importorskip("ase", reason="ASE is not installed: ridgerider[ase]")
    left = run("adatom", tmp_path, monkeypatch)
    heights = [one.loss - left["hollow"].loss for one in left["saddles"]]
    assert heights[0] == pytest.approx(0.374, abs=1e-3)


@pytest.mark.long
def test_ensemble(tmp_path, monkeypatch):
    left = run("ensemble", tmp_path, monkeypatch)
    apart = left["apart"][np.triu_indices(4, 1)]
    assert len(left["members"]) == 4 and apart.min() > 0


@pytest.mark.long
def test_pytorch(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    before = torch.get_default_dtype()
    try:
        left = run("pytorch", tmp_path, monkeypatch)
    finally:
        torch.set_default_dtype(before)
    assert len(left["functions"]) == 2


@pytest.mark.long
def test_cluster(tmp_path):
    """In a process of its own: its workers import the file."""
    command = [sys.executable, str(GALLERY / "cluster.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "16 rides" in done.stdout and (tmp_path / "cluster.png").exists()


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_has_its_page_its_picture_and_its_test(name):
    page, index = (GALLERY / f"{name}.md").read_text(), (GALLERY / "index.md").read_text()
    assert f"literalinclude}} {name}.py" in page and f"images/gallery/{name}.png" in page
    assert f"]({name}.md)" in index and re.search(rf"^{name}$", index, re.MULTILINE)
    assert (GALLERY.parent / "images" / "gallery" / f"{name}.png").exists()
    assert f"test_{name}" in globals()
