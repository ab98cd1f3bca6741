"""The page of a map, in a browser: what it shows, what a click does, and that it fits."""

import pytest

import ridgerider as rr
from ridgerider.problems import himmelblau


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("map") / "run.sqlite"
    rr.explore(himmelblau(), out=path)
    return rr.report.report(path).as_uri()


@pytest.fixture
def tab(browser, address):
    tab, troubles = browser.new_page(viewport={"width": 390, "height": 800}), []
    tab.on("console", lambda message: troubles.append(message.text))
    tab.on("pageerror", lambda error: troubles.append(str(error)))
    tab.goto(address)
    yield tab
    tab.close()
    assert not troubles


def test_it_fits_a_telephone(tab):
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    width, height = (
        tab.evaluate(f"graph.getBoundingClientRect().{one}") for one in ("width", "height")
    )
    assert width <= 390 and height >= 300


def test_numbers_keep_their_exponents(tab):
    short = "[1e-30, 104, 3.155444e-30, -40.66484, 1e20].map(short)"
    assert tab.evaluate(short) == [
        "1e-30",
        "104",
        "3.155444e-30",
        "-40.66484",
        "100000000000000000000",
    ]


def test_leaves_and_junctions_are_chosen_by_a_click(tab):
    assert tab.inner_text("#what") == "Minimum 0"
    for kind, title in (("saddle", "Transition state"), ("minimum", "Minimum")):
        spot = tab.evaluate(f"spots.find((one) => one.kind === '{kind}' && one.number > 0)")
        tab.click("#graph", position={"x": spot["x"], "y": spot["y"]})
        assert tab.inner_text("#what") == f"{title} {spot['number']}"
    tab.click("#minima tr:nth-child(2) button")
    tab.click("#minima tr:nth-child(3) button")
    assert "The lowest way from minimum 0" in tab.inner_text("#about")
