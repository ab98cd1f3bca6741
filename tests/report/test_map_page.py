"""The page of a map, in a browser: what it shows, what a click does, and that it fits."""

import csv
import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import ridgerider as rr
from ridgerider.problems import himmelblau
from tests.report.test_report import served, wait_for


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("map") / "run.sqlite"
    rr.explore(himmelblau(), out=path)
    return rr.report.report(path).as_uri()


def content(page):
    found = re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    return json.loads(found[1])


def test_arguments_are_honoured_and_the_page_is_written_whole(tmp_path, monkeypatch):
    path = tmp_path / "run.sqlite"
    rr.explore(himmelblau(), out=path, max_rides=8)
    page = rr.report.report(path, claim="A <b>.", index="all.html")
    assert content(page)["claim"] == "A <b>." and content(page)["index"] == "all.html"
    before = page.read_text()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match=r"`out` cannot be written at .*: No space left on device"):
        rr.report.report(path, claim="Another.")
    assert page.read_text() == before and len(list(tmp_path.glob("*.html"))) == 1


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


def test_watching_a_map_shows_the_map_and_what_is_new(opened, tmp_path):
    path, problem = tmp_path / "run.sqlite", himmelblau()
    with served(path) as server:
        page = opened(server.url)  # before there is anything
        assert "Waiting for a run" in page.inner_text("#notes")
        rr.explore(problem, out=path, max_rides=12)
        page.wait_for_selector("#minima button")
        first = page.locator("#minima button").count()
        assert first == len(rr.load(path).minima())
        page.locator("#minima button").last.click()
        address = page.inner_text("#minima tr:last-child td:last-child")
        rr.resume(path, problem, max_rides=200)
        wanted = len(rr.load(path).minima())
        page.wait_for_selector(f"#minima tr:nth-child({wanted + 1}) button")
        assert wanted > first and f"fingerprint {address}." in page.inner_text("#about")
        wait_for(page, "#live", "finished")


def test_an_address_names_a_point(browser, address):
    tab = browser.new_page()
    tab.goto(f"{address}#leg=nonsense")
    assert tab.inner_text("#what") == "Minimum 0"
    tab.locator("#saddles button").nth(1).click()
    link = tab.evaluate("location.href")
    tab.close()
    tab = browser.new_page()
    tab.goto(link)
    assert tab.inner_text("#what") == "Transition state 1"
    tab.close()


def test_everything_of_a_map_can_be_saved(opened, address):
    tab = opened(address)
    content = {}
    for one in tab.locator("button[data-save]:visible").all():
        with tab.expect_download() as saved:
            one.click()
        assert saved.value.suggested_filename == one.get_attribute("data-save")
        content[one.get_attribute("data-save")] = Path(saved.value.path()).read_bytes()
    names = {"graph.png", "graph.svg", "minima.csv", "minima.json", "saddles.csv", "saddles.json"}
    assert content.keys() == names  # there is no structure in the plane
    assert content["graph.png"].startswith(b"\x89PNG")
    drawn = ElementTree.fromstring(content["graph.svg"])
    assert "loss" in [one.text for one in drawn.iter()] and len(drawn) > 10
    for name in ("minima", "saddles"):
        rows = json.loads(content[f"{name}.json"])
        assert len(rows) == tab.locator(f"#{name} button").count()
        text = content[f"{name}.csv"].decode()
        read = list(csv.DictReader(io.StringIO(text)))
        assert [float(one["loss"]) for one in read] == [one["loss"] for one in rows]
        assert [one["fingerprint"] for one in read] == [one["fingerprint"] for one in rows]


def test_a_map_of_atoms_has_energies_units_structures_and_modes(browser, tmp_path):
    pytest.importorskip("ase", reason="ASE is not installed: ridgerider[ase]")
    from ase import Atoms
    from ase.calculators.lj import LennardJones

    import ridgerider.ase

    positions = [(0, 0, 0), (1.1, 0, 0), (0.5, 1, 0), (0.5, 0.4, 0.9)]
    atoms = Atoms("Ar4", positions, calculator=LennardJones(rc=10))
    landscape = ridgerider.ase.explore(atoms, out=tmp_path / "run.sqlite")
    page = rr.report.report(tmp_path / "run.sqlite")
    data = content(page)
    assert data["about"]["formula"] == "Ar4" and data["about"]["unit"] == "eV"
    (top,), (low,) = data["saddles"], data["minima"]
    modes = ridgerider.ase.normal_modes(landscape, landscape.saddles()[0])
    np.testing.assert_allclose(top["waves"], modes.wave_numbers, atol=0.06)
    mode = np.ravel(top["mode"])
    assert abs(mode @ modes.vectors[0]) / np.linalg.norm(mode) == pytest.approx(
        np.linalg.norm(modes.vectors[0]), rel=1e-3
    )
    tab, troubles = browser.new_page(viewport={"width": 390, "height": 800}), []
    tab.on("pageerror", lambda error: troubles.append(str(error)))
    tab.goto(page.as_uri())
    tab.click("#saddles button")
    barrier = top["loss"] - low["loss"]
    assert f"Energy {barrier:.4f}".rstrip("0") in tab.inner_text("#about")
    assert "imaginary" in tab.inner_text("#about") and tab.is_visible("#profile")
    tab.select_option("#unit", "kJ/mol")
    assert f"{96.4853 * barrier:.2f}".rstrip("0") in tab.inner_text("#saddles")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390 and not troubles
    tab.close()
    pytest.importorskip("matplotlib")
    assert rr.plot.disconnectivity(landscape).get_ylabel() == "energy (eV)"
