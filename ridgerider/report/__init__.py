"""A run file in, one HTML page out; and the same page live, while the search runs."""

import os
from pathlib import Path

from ridgerider._check import checked
from ridgerider.report._compare import compare as compare
from ridgerider.report._page import fill_page as fill_page
from ridgerider.report._page import page, place_for, write_page
from ridgerider.report._read import Reader


@checked
def report(
    path: str | os.PathLike,
    out: str | os.PathLike | None = None,
    *,
    claim: str = "",
    index: str | None = None,
) -> Path:
    """Write a run as one HTML page that needs no network, no server and no Python.

    The page of a map shows its disconnectivity graph, its points, and structures of clusters.

    **Arguments**

    - `path`: the run file. It may still be growing; a damaged one is refused
      (`ridgerider check --repair`).
    - `out`: where to write the page. Default: `report.html` beside `run.sqlite`, and beside
      a run file with another name a page with that name.
    - `claim`: a sentence of yours to begin with. `index`: the URL of a page to lead back to.

    >>> import tempfile
    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> path = f"{tempfile.mkdtemp()}/run.sqlite"
    >>> result = rr.search(wells(2), rr.Rider(finish=None), out=path, max_rides=4)
    >>> page = rr.report.report(path)
    >>> page.name, "<script" in page.read_text()
    ('report.html', True)
    """
    path = Path(path)
    name = "report.html" if path.stem == "run" else f"{path.stem}.html"
    out = place_for(out, path.parent / name)
    reader = Reader(path)
    reader.read()
    return write_page(out, page(reader, claim=claim, index=index))
