"""Pages checked by axe-core, if the environment variable AXE_CORE names its file axe.min.js."""

import os
from pathlib import Path

import pytest

import ridgerider as rr
from ridgerider.problems import himmelblau, wells
from tests.report.conftest import READY

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
MANUAL = Path(__file__).parents[2] / "docs" / "_build" / "html" / "index.html"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    rr.search(wells(2), out=folder / "one.sqlite", max_rides=12)
    rr.search(wells(2), out=folder / "two.sqlite", max_rides=6, order="depth_first")
    rr.explore(himmelblau(), out=folder / "map.sqlite")
    return {
        "report": rr.report.report(folder / "one.sqlite"),
        "map": rr.report.report(folder / "map.sqlite"),
        "compare": rr.report.compare([folder / "one.sqlite", folder / "two.sqlite"]),
        "manual": MANUAL,
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["report", "map", "compare", "manual"])
def test_axe_finds_nothing(name, scheme, browser, pages):
    if "AXE_CORE" not in os.environ:
        pytest.skip("AXE_CORE does not name a file")
    if not pages[name].exists():
        pytest.skip("make docs was not run")
    context = browser.new_context(color_scheme=scheme, reduced_motion="reduce")
    try:
        page = context.new_page()
        page.goto(pages[name].as_uri())
        if name != "manual":
            page.wait_for_selector(READY, state="attached")
        for box in page.locator("details").all():
            box.evaluate("box => { box.open = true; }")
        page.wait_for_timeout(500)  # tables in boxes are built after that
        page.evaluate(Path(os.environ["AXE_CORE"]).read_text())
        found = page.evaluate("tags => axe.run({runOnly: tags})", RULES)["violations"]
        moving = page.evaluate("document.getAnimations().length")
    finally:
        context.close()
    assert moving == 0
    assert not [(one["help"], [node["html"] for node in one["nodes"]]) for one in found]
