import json
import re

import jax.numpy as jnp
import pytest

import ridgerider as rr
from ridgerider.problems import wells
from ridgerider.report import _compare
from tests.report.conftest import CHROMIUM


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Three orders on the same loss, whose eight minima are known."""
    here, problem = tmp_path_factory.mktemp("runs"), wells(3)
    orders = ("breadth_first", "depth_first", "random")
    for order in orders:
        rr.search(problem, order=order, out=here / f"{order}.sqlite", max_rides=36)
    return [here / f"{order}.sqlite" for order in orders]


def shared_of(files, problem=None):
    return _compare.solutions_of(_compare.read_runs(files), problem)


@pytest.mark.parametrize("problem", [None, wells(3)])
def test_solutions_that_runs_share_are_one(files, problem):
    shared = shared_of(files, problem=problem)
    assert len(shared) <= 8
    for path in files:
        minima = rr.load(path).minima()
        assert sum(path.stem in by for by in shared) == len(minima)
    # The first ride to a solution stands in the column of a run.
    result = rr.load(files[0])
    firsts = {by[files[0].stem] for by in shared if files[0].stem in by}
    names = [result.fingerprints()[place - 1] for place in firsts]
    legs = [result.leg(name) for name in names]
    assert all(leg.same_as is None and leg.finish.kind == "minimum" for leg in legs)


def side(x):
    return "left" if float(x[0]) < 0 else "right"


def size(x):
    return jnp.linalg.norm(x)


def score(x):
    return jnp.array([0.25, 0.75, 0.5, 0.5])


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)[1])


def test_stored_signatures_and_metrics_are_compared(tmp_path):
    problem, measures = wells(2), rr.Measures(side, {"<size>": size, "score": score})
    files = [tmp_path / "search.sqlite", tmp_path / "other.sqlite"]
    rr.search(problem, measures=measures, out=files[0], max_rides=12)
    rr.search(problem, order="depth_first", out=files[1], max_rides=12)
    rr.measure(files[1], measures, problem)
    shared = shared_of(files)
    assert [sorted(by) for by in shared] == [["other", "search"]] * 2  # left and right
    page = rr.report.compare(files)
    assert "<size>" not in page.read_text()
    data = data_of(page)
    assert data["metrics"] == ["<size>", "score"]
    first = dict(zip(data["solutions"]["head"], data["solutions"]["rows"][0], strict=True))
    expected = float(size(rr.load(files[0]).minima()[0].params))
    assert first["<size>"] == pytest.approx(expected)
    assert first["score"] == 0.5  # of a score on examples the mean


def test_the_page_has_what_it_cost(files):
    page = rr.report.compare(files)
    data = data_of(page)
    assert page == files[0].with_name("compare.html")
    place = data["runs"]["head"].index("hvps")
    for path, row in zip(files[:2], data["runs"]["rows"], strict=False):
        assert row[place] == rr.load(path).cost.hvps


def test_a_name_is_text_and_not_markup(tmp_path):
    for number in range(2):
        path = tmp_path / f"<i>{number}.sqlite"
        rr.search(wells(1), rr.Rider(finish=None), out=path, name="<b>x</b>", max_rides=1)
    page = rr.report.compare(sorted(tmp_path.glob("*.sqlite")))
    text = page.read_text()
    assert "<b>x" not in text and "<i>" not in text
    assert data_of(page)["runs"]["rows"][0][1] == "<b>x</b>"
    assert "No run found a minimum" in text


def test_runs_of_different_problems_are_not_mixed_up(files, tmp_path):
    other = tmp_path / "other.sqlite"
    rr.search(wells(2), out=other, max_rides=2)
    text = rr.report.compare([files[0], other], tmp_path / "page.html").read_text()
    assert "These runs are of different problems" in text


def test_bad_input(files, tmp_path):
    with pytest.raises(ValueError, match="`paths` must be two run files or more, not 1"):
        rr.report.compare(files[:1])
    with pytest.raises(ValueError, match="`path` must be a run file, but there is none at"):
        rr.report.compare([files[0], tmp_path / "none.sqlite"])
    with pytest.raises(ValueError, match="`out` must be in a directory that exists"):
        rr.report.compare(files, tmp_path / "no" / "page.html")


def test_in_a_browser(files, tmp_path):
    """Charts are there, nothing is loaded, and a phone needs no scrolling."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    page = rr.report.compare(files, tmp_path / "page.html")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
        asked, said = [], []
        tab.on("request", lambda request: asked.append(request.url))
        tab.on("console", lambda message: said.append(message.text))
        tab.goto(page.as_uri())
        assert tab.locator("svg:visible").count() == 4  # two quantities over two costs
        assert "3 runs compared" in tab.inner_text("h1")
        cells = tab.locator("#runs tbody tr").first.inner_text().split("\t")
        assert cells[0] == "breadth_first" and cells[4] == str(len(rr.load(files[0]).minima()))
        last = tab.locator(".chart .head span").first.inner_text()
        counts = [len(rr.load(path).minima()) for path in files]
        for path, number in zip(files, counts, strict=True):
            assert f"{path.stem} {number}" in last
        rows = [row.split("\t") for row in tab.locator("#settings tbody tr").all_inner_texts()]
        found = {name: words for name, *words in rows}
        assert found["order"][:2] == ["breadth_first", "depth_first"] and "seed" not in found
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == [] == said
        browser.close()
