"""Notebooks of the documentation run, with what a Jupyter kernel would show."""

import re
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """The first search, run by a kernel in an empty directory."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOKS / "first-search.ipynb", as_version=4)
    where = {"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}}
    nbclient.NotebookClient(notebook, timeout=300, resources=where).execute()
    return {cell.source: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def html_of(outputs):
    return [one.data["text/html"] for one in outputs if "text/html" in one.get("data", {})]


def test_the_bar_is_one_output_that_ends_full(cells):
    (outputs,) = [outputs for source, outputs in cells.items() if "rr.Bar()" in source]
    (bar,) = html_of(outputs)
    assert 'role="progressbar"' in bar and "width:100.0%" in bar
    assert re.search(r"\d+/60 rides, .* minima", bar)
    assert not any("ipywidgets" in source for source in cells)


def test_results_legs_and_tables_show_themselves(cells):
    (result,) = html_of(cells["result"])
    assert "different minima" in result and "<table" in result
    (leg,) = next(outputs for source, outputs in cells.items() if "result.leg" in source)
    assert leg.data["text/plain"].startswith("Leg 0+: ")
    frames = [outputs for source, outputs in cells.items() if "to_pandas" in source]
    assert len(frames) == 2 and all(html_of(outputs) for outputs in frames)
    (figure,) = [outputs for source, outputs in cells.items() if "rr.plot" in source]
    assert "image/png" in figure[0].data


def test_what_is_stored_was_run():
    """The outputs in the repository are those of its cells, none of them an error."""
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOKS / "first-search.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert all(one.output_type != "error" for cell in code for one in cell.outputs)
