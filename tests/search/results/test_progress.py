"""A line on a terminal, after a while, and nowhere else."""

import io
import time

import pytest

from ridgerider._search.results.progress import Line, Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("is_wanted", "is_quiet", "is_terminal"),
    [(True, "", True), (True, "", False), (False, "", True), (True, "1", True)],
)
def test_a_terminal_is_told_after_a_while(monkeypatch, is_wanted, is_quiet, is_terminal):
    stream = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("RIDGERIDER_QUIET", is_quiet)
    monkeypatch.setattr(Line, "silence", 0.01)
    monkeypatch.setattr(Line, "every", 0.01)
    with Line(is_wanted, Progress(num_rides=7)):
        time.sleep(0.3)
    written = stream.getvalue()
    if is_wanted and is_terminal and not is_quiet:
        assert "7 rides" in written and "Ctrl-C stops it" in written
        assert written.endswith("\r\x1b[K")  # it leaves an empty line
    else:
        assert written == ""


def test_a_short_run_says_nothing(monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("RIDGERIDER_QUIET", "")
    with Line(True) as line:
        assert line.done.num_rides == 0


def test_one_is_not_many():
    assert str(Progress(1, num_minima=1)).startswith("1 ride, 0 open, 1 minimum, ")
    assert str(Progress(2, num_minima=2)).startswith("2 rides, 0 open, 2 minima, ")
