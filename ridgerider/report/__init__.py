"""A run file in, one HTML page out; and the same page live, while the search runs."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from ridgerider._core.problem.problem import Problem
from ridgerider._core.ride.rider import Rider
from ridgerider._search.results.load import load
from ridgerider._search.runfile.problem import check_problem
from ridgerider._search.tree.tree import Fingerprint
from ridgerider.plot._landscape import plane_of_rides
from ridgerider.report._compare import compare as compare
from ridgerider.report._map import is_map
from ridgerider.report._page import fill_page as fill_page
from ridgerider.report._page import page, place_for, write_page
from ridgerider.report._read import Reader

Rides = tuple[str | Fingerprint, str | Fingerprint]


def report(
    path: str | os.PathLike,
    out: str | os.PathLike | None = None,
    *,
    problem: Problem | None = None,
    rider: Rider | None = None,
    landscapes: Iterable[Rides] = (),
    claim: str = "",
    index: str | None = None,
    say: Callable[[str], None] | None = None,
) -> Path:
    """Write a run as one HTML page that needs no network, no server and no Python.

    The page of a map shows its disconnectivity graph, its points, and structures of clusters.

    **Arguments**

    - `path`: the run file. It may still be growing; of a damaged one the page shows what could be
      read, and says so.
    - `out`: where to write the page. Default: `report.html` beside the run file.
    - `problem`: with it the page tells how flat the solutions are (below 300 parameters), and the
      loss on the way from one to another.
    - `landscapes`: pairs of rides of a search; the loss in the plane of each pair goes into the
      page. Needs the `problem`, and the `rider` if it has custom rules.
    - `claim`: a sentence of yours to begin with. `index`: the URL of a page to lead back to.
    - `say`: called with a sentence for everything that could not be read.

    >>> import tempfile
    >>> import ridgerider as rr
    >>> from ridgerider.problems import wells
    >>> path = f"{tempfile.mkdtemp()}/run.sqlite"
    >>> result = rr.search(wells(2), rr.Rider(finish=None, keep_path=True), out=path, max_rides=4)
    >>> page = rr.report.report(path, problem=wells(2), landscapes=[("0+", "1+")])
    >>> page.name, "<script" in page.read_text()
    ('report.html', True)
    """
    path = Path(path)
    out = place_for(out, path.with_name("report.html"))
    reader, pairs = Reader(path), list(landscapes)
    reader.read()
    if say is not None:
        for note in reader.notes:
            say(note)
    if pairs and is_map(reader.meta):
        raise ValueError("`landscapes` must be left out: the run is a map, whose page has none.")
    result = load(path, problem, rider) if pairs else None
    scenes = [] if result is None else [plane_of_rides(result, one, two) for one, two in pairs]
    if problem is not None:
        if "problem" not in reader.meta:
            raise ValueError(f"{path} is damaged: of which problem it is cannot be read.")
        check_problem(reader.meta, problem, path)
    return write_page(out, page(reader, scenes, problem=problem, claim=claim, index=index))
