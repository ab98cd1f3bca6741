"""A run file in, one HTML page out; and the same page live, while the search runs."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from ridgerider._check import one_line
from ridgerider._core.problem.problem import Problem
from ridgerider._core.ride.rider import Rider
from ridgerider._search.results.result import load
from ridgerider._search.runfile.problem import check_problem
from ridgerider._search.tree.tree import Fingerprint
from ridgerider.plot._landscape import landscape
from ridgerider.report._compare import compare as compare
from ridgerider.report._map import is_map, report_map
from ridgerider.report._page import fill_page as fill_page
from ridgerider.report._page import page
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

    That of a map shows its disconnectivity graph, its points, and structures of clusters.

    **Arguments**

    - `path`: the run file. It may still be growing; of a damaged one the page shows what could be
      read, and says so.
    - `out`: where to write the page. Default: `report.html` beside the run file.
    - `problem`: with it the page tells how flat the solutions are (below 300 parameters), and the
      loss on the way from one to another.
    - `landscapes`: pairs of rides; the loss in the plane of each pair goes into the page. Needs the
      `problem`, and the `rider` if it has rules of your own.
    - `claim`: a sentence of yours to begin with. `index`: the address of a page to lead back to.
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
    out = path.with_name("report.html") if out is None else Path(out)
    if not out.parent.is_dir():
        raise ValueError(
            f"`out` must be in a directory that exists, but {one_line(out.parent)} does not."
        )
    if is_map(path):
        return report_map(path, out, problem)
    reader = Reader(path)
    reader.read()
    if say is not None:
        for note in reader.notes:
            say(note)
    pairs = list(landscapes)
    scenes = []
    if pairs:
        result = load(path, problem, rider)
        scenes = [landscape(result, one, two) for one, two in pairs]
    if problem is not None:
        if "problem" not in reader.file.meta:
            raise ValueError(f"{path} is damaged: of which problem it is cannot be read.")
        check_problem(reader.file.meta, problem, path)
    text = page(reader, scenes, problem=problem, claim=claim, index=index)
    write_beside(out, text)
    return out


def write_beside(out: Path, text: str) -> None:
    """Write a file whole or not at all: beside its place, then moved there."""
    new = out.with_name(f".{out.name}.{os.getpid()}.new")
    try:
        new.write_text(text, encoding="utf-8", errors="backslashreplace")
        new.replace(out)
    except OSError as error:
        reason = one_line(error.strerror or error)
        raise OSError(f"`out` cannot be written at {one_line(out)}: {reason}.") from error
    finally:
        new.unlink(missing_ok=True)
