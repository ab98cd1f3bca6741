"""What people ask of a run, in a real browser: is it done, how do solutions differ, which one?"""

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._search.runfile.rules_json import describe_problem
from ridgerider._search.runfile.schema import leg_to_row, pack
from ridgerider._search.runfile.store import Store
from ridgerider.report import report
from ridgerider.report._read import Reader
from ridgerider.report._verdict import verdict
from tests.report.conftest import rows_of
from tests.report.test_report import go_to, served, shown, wait_for
from tests.search.runfile.made_up_runs import make_leg, make_run

CURVES = jnp.array([-2.0, -1.0, 1.0, 2.0, 3.0, 4.0])
LONG = " ".join(["0+", "1-"] * 12)
NUM_EXAMPLES = 50


def loss(params):
    x = jnp.concatenate([params["a"], params["b"]])
    return x @ (CURVES.astype(x.dtype) * x) / 2


PROBLEM = rr.Problem(loss, {"a": jnp.zeros(2), "b": jnp.zeros(4)})
OWN = {"problem": describe_problem(PROBLEM), "rider": {"function": "mine:rider"}}


def measure(store, names):
    """A signature that makes four solutions of twelve minima, and a score on examples."""
    about = {"name": "mine:does", "source": "0"}
    measures = {
        "signature": about,
        "metrics": {"score": about, "plain": about},
        "kinds": ["minimum"],
    }
    rows = {}
    for name in names:
        number = -20 - float(make_leg(name).finish.loss)
        rows[name, ""] = f"does {number % 4:g}"
        rows[name, "score"] = [0.5 + number / 40, NUM_EXAMPLES]
        rows[name, "plain"] = 100 * number
    store.set_measures(measures, rows)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("answers") / "run.sqlite"
    store = make_run(path, 40, **OWN)[0]
    measure(store, [str(name) for name in store.fingerprints() if name])
    store.close()
    return path


@pytest.fixture(scope="module")
def written(run):
    return report(run, run.with_name("own.html"), claim="A <b> claim.", index="all.html")


@pytest.fixture
def page(opened, written):
    return opened(written.as_uri())


def read(path):
    reader = Reader(path)
    reader.read()
    return reader


# --- the verdict


def test_the_answer_comes_first(page, run):
    reader = read(run)
    found, kinds = verdict(reader), rr.load(run).kinds()
    num_points = kinds["minimum"]
    assert found["headline"] == f"4 different solutions by `does` ({num_points} points)"
    headline = page.inner_text("#headline")
    assert headline.startswith(f"4 different solutions by does ({num_points} points)")
    assert page.inner_text("#num-solutions") == f"4 of {num_points} points"
    # One count: twelve points that differ, of which some do the same, are not said to be twelve.
    assert page.locator("#num-minima").count() == 0
    assert "different solutions by does" in page.inner_text("#tiles")
    assert page.inner_text("#solutions-count") == "4 shown"
    assert page.locator("#kind option").first.inner_text() == "different by does"
    text = page.inner_text("#verdict")
    assert "A <b> claim." in text
    assert f"Descents ended at {num_points} minima, {kinds['saddle']} saddles." in text
    assert "40 of 40 rides with a complete certificate" in text
    assert page.inner_text("#state") == "not finished"
    assert page.inner_text("#go-on") == f"ridgerider resume {run}"
    go_to(page, "1+")
    page.click("#verdict button.link")
    wait_for(page, "#leg-name", found["best"])
    best = rr.load(run).leg(found["best"])
    assert best.finish.loss == min(one.loss for one in rr.load(run).minima())


def ended(path, num_legs=4, **meta):
    """A run without open branches."""
    store = make_run(path, num_legs, **{**OWN, **meta})[0]
    known = set(map(str, store.fingerprints()))
    with store._transaction():
        for (name,) in store._db.execute("SELECT fingerprint FROM branches").fetchall():
            if name not in known:
                store._remove("branches", "fingerprint = ?", name)
    store.close()
    return path


def change(store, name, **values):
    """Fields of a leg."""
    leg = replace(store.leg(rr.types.Fingerprint.parse(name)), **values)
    store._replace("legs", leg_to_row(leg))


def change_end(store, name, **values):
    """Fields of the end of its descent."""
    leg = store.leg(rr.types.Fingerprint.parse(name))
    change(store, name, finish=replace(leg.finish, **values))


def test_a_finished_run_never_says_so_far_or_live(opened, tmp_path):
    path = ended(tmp_path / "run.sqlite")
    page = opened(report(path).as_uri())
    assert page.inner_text("#state") == "finished" and page.locator("#go-on").count() == 0
    assert "Finished: all 4 branches that were found were ridden." in page.inner_text("#verdict")
    assert not re.search(r"so far|\blive\b", page.inner_text("body"))
    with served(path) as server:
        page = opened(server.url)
        wait_for(page, "#live", "finished")
        assert page.evaluate("document.getElementById('progress-bar').value") == 1
        assert not re.search(r"so far|\blive\b", page.inner_text("body"))
        page.close()


@pytest.mark.parametrize(
    ("budget", "says", "flag"),
    [
        ({"max_rides": 4}, "Stopped after 4 rides, as `max_rides` says", "--max-rides 8"),
        ({"max_hvps": 6}, "Hessian-vector products, as `max_hvps` says", "--max-hvps "),
        ({"max_rides": 100, "max_seconds": None}, "Not finished: 4 rides", "run.sqlite"),
    ],
)
def test_the_verdict_names_the_budget_that_ended_a_run(tmp_path, budget, says, flag):
    make_run(tmp_path / "run.sqlite", 4, budget=budget)[0].close()
    found = verdict(read(tmp_path / "run.sqlite"))
    assert says in found["text"] and flag in found["go_on"]
    assert found["state"] == ("open" if "Not finished" in says else "stopped")


def test_the_verdict_says_what_is_doubtful(tmp_path):
    store = make_run(tmp_path / "run.sqlite", 6)[0]
    with store._transaction():
        for name in filter(bool, map(str, store.fingerprints())):
            change_end(store, name, doubt_number=2, is_saddle=0)
        change(store, "0+", ended_by=("RidgeLost",))
    store.close()
    text = verdict(read(tmp_path / "run.sqlite"))["text"]
    assert "Doubtful: 6 ends, because the loss falls along a direction" in text
    assert "1 ride lost the ridge" in text and "0 different minima" in text


# --- which one


def columns(page, table):
    return [text.rstrip(" ↑↓") for text in page.locator(f"{table} th").all_inner_texts()]


def test_which_one(page, run):
    reader = read(run)
    names = columns(page, "#picks")
    rows = [row.split("\t") for row in page.locator("#picks tr.row").all_inner_texts()]
    assert len(rows) == 4 and [row[1] for row in rows] == [
        reader.groups[number]["fingerprint"] for number in reader.compared()
    ]
    bound = np.sqrt(np.log(4 / 0.05) / (2 * NUM_EXAMPLES))  # Hoeffding's, for all four at once
    points = reader.points()
    for place, row in enumerate(rows):
        leg = reader.groups[reader.compared()[place]]
        cell = dict(zip(names, row, strict=True))
        assert shown(cell["loss"]) == leg["solution"]["loss"]
        assert shown(cell["score"]) == pytest.approx(leg["metrics"]["score"][0], rel=1e-4)
        assert shown(cell["± (score)"]) == pytest.approx(bound, rel=1e-2)
        assert shown(cell["plain"]) == leg["metrics"]["plain"]
        assert cell["does"].startswith("does ")
        apart = np.linalg.norm(points - points[place], axis=1)
        assert shown(cell["nearest"]) == pytest.approx(np.sort(apart)[1], rel=1e-3)
        way = [leg["fingerprint"].rsplit(" ", n)[0] for n in range(leg["fingerprint"].count(" "))]
        spent = sum(rr.load(run).leg(name).cost.hvps for name in {*way, leg["fingerprint"]})
        assert int(cell["HVPs of its way"].replace(",", "")) >= spent
        assert int(cell["legs"]) == len(reader.members[leg["group"]])


def test_two_ticked_rows_are_compared(page, run):
    reader, boxes = read(run), page.locator("#picks input[type=checkbox]")
    assert page.locator("#compared").is_hidden()
    boxes.nth(0).click()
    boxes.nth(2).click()
    points = reader.points()
    a, b = points[0], points[2]
    rows = [row.split("\t") for row in page.locator("#leaves tbody tr").all_inner_texts()]
    assert [row[0] for row in rows] == ["a", "b"] and [row[1] for row in rows] == ["2", "4"]
    for row, part in zip(rows, (slice(0, 2), slice(2, 6)), strict=True):
        assert shown(row[2]) == pytest.approx(np.linalg.norm(a[part] - b[part]), rel=1e-3)
    one, two = (reader.groups[reader.compared()[place]]["fingerprint"] for place in (0, 2))
    first, second = one.split(), two.split()
    shared = 0
    while first[shared : shared + 1] == second[shared : shared + 1] != []:
        shared += 1
    fork = " ".join(first[:shared]) or "start"
    assert f"Their paths parted at {fork}" in page.inner_text("#compared .story")
    values = rows_of(page.locator("#compared details:not(.save)").first)
    assert [row[0] for row in values] == ["a[0]", "a[1]", "b[0]", "b[1]", "b[2]", "b[3]"]
    np.testing.assert_allclose([shown(row[1]) for row in values], a, rtol=1e-4, atol=1e-6)
    boxes.nth(1).click()  # the first one goes
    assert [boxes.nth(i).is_checked() for i in range(3)] == [False, True, True]


def test_parallel_coordinates_say_what_is_pointed_at(page, run):
    reader = read(run)
    canvas = page.locator("#differ-canvas")
    assert "Parallel coordinates of 4 solutions in 6 parameters" in canvas.get_attribute(
        "aria-label"
    )
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    points = reader.points()
    column = points[:, 0]
    height = box["height"] - 56
    y = 26 + (column.max() - column[1]) / (column.max() - column.min()) * height
    page.mouse.move(box["x"] + 41, box["y"] + y)
    said = page.inner_text("#differ-where")
    found = re.search(r"a\[0\] = (\S+), loss", said)
    assert shown(found[1]) == pytest.approx(column[1], rel=1e-3, abs=1e-4)
    page.select_option("#color-by", "score")
    assert "lines: score" in page.inner_text("#differ-figure")
    page.mouse.click(box["x"] + 41, box["y"] + y)
    assert page.inner_text("#leg-name") in said


def test_many_parameters_are_a_heat_map(opened, tmp_path):
    size = 200
    store = make_run(tmp_path / "run.sqlite", 12)[0]
    store.close()
    store = Store.open(tmp_path / "run.sqlite", write=True)
    names = [str(name) for name in store.fingerprints() if name]
    meta = {"params": [["['w']", [size], "float64"]], "start": "", "data": ""}
    store.set_meta("problem", meta)
    points = {}
    with store._transaction():
        for name in names:
            number = int(-20 - float(make_leg(name).finish.loss))
            points[name] = np.r_[np.zeros(size - 20), np.random.default_rng(number).normal(size=20)]
            ridges = {"eigenvalues": np.zeros(6), "directions": np.zeros((2, size))}
            blobs = {"arrays": pack({"x": points[name], **ridges})}
            blobs["end_arrays"] = pack({"x": points[name]})
            store._replace("legs", {**leg_to_row(make_leg(name)), "is_settled": 1, **blobs})
        arrays = pack({"x": np.zeros(size), **ridges})
        store._replace("legs", {**leg_to_row(make_leg("")), "is_settled": 1, "arrays": arrays})
    store.close()
    page = opened(report(tmp_path / "run.sqlite").as_uri())
    canvas = page.locator("#differ-canvas")
    label = canvas.get_attribute("aria-label")
    num = int(page.inner_text("#num-minima"))
    assert label == f"Heat map of {num} solutions and 128 parameters"
    assert "of 200 parameters the 128 that differ most" in page.inner_text("#differ-figure")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 12)
    said = re.match(r"(.*): w\[(\d+)\] = (\S+), loss", page.inner_text("#differ-where"))
    assert shown(said[3]) == pytest.approx(points[said[1]][int(said[2])], rel=1e-3, abs=1e-6)


# --- repairs


def test_long_fingerprints_are_shortened_and_copied_whole(opened, tmp_path):
    store = make_run(tmp_path / "run.sqlite", 4)[0]
    store.settle(make_leg(LONG), [])
    store.close()
    page = opened(report(tmp_path / "run.sqlite").as_uri())
    page.fill("#leg-filter", LONG)
    cell = page.locator("#legs tr.row td:first-child")
    assert cell.count() == 1 and "…" in cell.inner_text() and len(cell.inner_text()) < 30
    assert cell.locator("button.link").get_attribute("title") == LONG
    cell.locator("button.copy").click()
    wait_for(page, "#toast", f"Copied {LONG}")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def wait_until(page, expression):
    """The page's own policy lets nobody hand it code to wait for."""
    for _ in range(200):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(25)
    pytest.fail(f"never: {expression}")


def test_turns_at_saddles_below_and_upwards_are_drawn(opened, tmp_path):
    store = make_run(tmp_path / "run.sqlite", 4)[0]
    for name in ("0+ v1-", "2^+", "3.2-"):
        store.settle(make_leg(name), [])
    store.close()
    page = opened(report(tmp_path / "run.sqlite").as_uri())
    says = {"0+ v1-": "ridge 1 backwards from the saddle below", "2^+": "ridge 2 upwards, forwards"}
    for name, words in {**says, "3.2-": "member 2 of ridge 3 backwards"}.items():
        go_to(page, name)
        assert words in page.inner_text(".story")


def drawing(page):
    return page.evaluate("document.getElementById('tree').toDataURL()")


def test_the_wheel_scrolls_the_page_and_zooms_with_ctrl(page):
    page.mouse.move(400, 600)
    page.wait_for_timeout(50)
    before = drawing(page)
    page.mouse.wheel(0, 240)
    wait_until(page, "window.scrollY > 100")
    page.evaluate("window.scrollTo(0, 0)")
    wait_until(page, "window.scrollY === 0")
    page.mouse.move(400, 600)
    assert drawing(page) == before
    page.keyboard.down("Control")
    page.mouse.wheel(0, -240)
    page.keyboard.up("Control")
    page.wait_for_timeout(100)
    assert page.evaluate("window.scrollY") == 0 and drawing(page) != before


def saved_tree(page):
    page.locator("#tree-bar .save summary").click()
    with page.expect_download() as saved:
        page.click("button[data-save='tree.svg']")
    return ET.fromstring(Path(saved.value.path()).read_bytes())


def test_arrow_keys_keep_the_leg_in_view_and_the_focus_to_be_seen(page):
    accent = page.evaluate(
        "getComputedStyle(document.documentElement).getPropertyValue('--accent').trim()"
    )
    page.focus("#tree")
    for key in ("Home", "+", "+", "+", "ArrowDown", "ArrowDown", "ArrowLeft", "ArrowRight", "End"):
        page.keyboard.press(key)
        drawn = saved_tree(page)
        left, top, width, height = map(float, drawn.get("viewBox").split())
        rings = [
            tuple(map(float, re.match(r"M(\S+)[ ,](\S+?)a(\S+)[ ,]", one.get("d")).groups()))
            for one in drawn.iter()
            if one.get("stroke") == accent and re.match(r"M\S+[ ,]\S+?a", one.get("d") or "")
        ]
        (x, y, radius) = max(rings, key=lambda ring: ring[2])  # around the chosen leg
        assert left < x and x + 2 * radius < left + width and top < y - radius < top + height
        page.focus("#tree")
        page.keyboard.press("Shift+Tab")  # a focus that keys have set is shown
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.matches('#tree:focus-visible')")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    # In every direction to the end of the tree and beyond: the page does not scroll away.
    before = page.evaluate("window.scrollY")
    for key in ("ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp"):
        for _ in range(6):
            page.keyboard.press(key)
    assert page.evaluate("window.scrollY") == before


def test_what_scrolls_inside_says_so(page):
    more = page.locator("#legs .scroll.more")
    assert more.count() == 1 and page.locator("#legs tr.row").count() < 40
    said = "getComputedStyle(document.querySelector('#legs .scroll'), '::after').content"
    assert "more below" in page.evaluate(said)
    page.evaluate("document.querySelector('#legs .scroll').scrollTop = 1e6")
    wait_until(page, "!document.querySelector('#legs .scroll').classList.contains('more')")


def test_one_is_not_many(opened, tmp_path):
    store = make_run(tmp_path / "run.sqlite", 1, **OWN)[0]
    store.close()
    page = opened(report(tmp_path / "run.sqlite").as_uri())
    text = page.inner_text("body")
    assert not re.search(r"\b1 (legs|rides|points|minima|saddles|solutions|branches|steps)\b", text)
    assert "1 minimum at" in text and "1 ride, " in text


def test_words_are_explained(page):
    abbreviations = page.locator("#tiles abbr")
    assert "Hessian-vector product" in page.get_attribute("#tiles abbr >> text=HVPs", "title")
    assert abbreviations.count() >= 4
    words = page.inner_text("#glossary")
    for word in ("leg", "turn", "HVP", "fingerprint", "certificate", "multiplicity"):
        assert re.search(rf"^{word}$", words, re.M)
    assert page.get_attribute("#legs th:first-child", "title").startswith("The path to a leg")


def test_titles_of_charts_stay_off_their_ticks(page):
    for one in page.locator("#ride svg").all():
        height = float(one.get_attribute("viewBox").split()[3])
        ticks = [float(text.get_attribute("y")) for text in one.locator("text").all()]
        assert ticks and min(ticks) >= 4 and max(ticks) <= height + 13


def test_paper_gets_whole_tables(page):
    count = page.locator("#legs tr.row").count
    assert count() < 40
    page.emulate_media(media="print")
    wait_until(page, "document.querySelectorAll('#legs tr.row').length === 40")
    assert page.evaluate(
        "[...document.querySelectorAll('.scroll')].every(b => b.scrollHeight <= b.clientHeight + 2)"
    )
    assert (
        page.evaluate("getComputedStyle(document.getElementById('ledger-card')).breakInside")
        == "avoid"
    )
    ledger = page.evaluate(
        "(() => { const t = document.querySelector('#ledger table')"
        ".getBoundingClientRect(); return t.right <= innerWidth + 1; })()"
    )
    assert ledger
    page.emulate_media(media="screen")
    wait_until(page, "document.querySelectorAll('#legs tr.row').length < 40")
    # And what is printed is what was seen: rows at the moment of printing, on as many sheets.
    page.evaluate(
        "addEventListener('beforeprint', () => "
        "{ window.printedRows = document.querySelectorAll('#legs tr.row').length; })"
    )
    paper = page.pdf(format="A4")
    assert paper.startswith(b"%PDF") and len(re.findall(rb"/Type /Page\b", paper)) > 2
    assert page.evaluate("window.printedRows") == 40


# --- to take along


def tick_two(page):
    page.locator("#picks input").nth(0).click()
    page.locator("#picks input").nth(1).click()


def test_everything_can_be_saved(page):
    tick_two(page)
    names = [one.get_attribute("data-save") for one in page.locator("button.save-as").all()]
    tables = {name.partition(".")[0] for name in names if name.endswith(".csv")}
    charts = {name.partition(".")[0] for name in names if name.endswith(".svg")}
    assert tables == {
        "tree", "ride", "spectrum", "solutions", "two-solutions", "solutions-compared", "ends",
        "over-cost", "distances", "ledger", "legs",
    }  # fmt: skip
    assert charts == tables - {"solutions", "two-solutions", "ends", "ledger", "legs"}
    for number, name in enumerate(names):
        if number % 8 == 7:  # Chromium allows ten downloads of a page in a short time
            page.reload()
            tick_two(page)
        menu = page.locator(f"details.save:has(button[data-save='{name}'])")
        menu.locator("summary").click()
        with page.expect_download() as saved:
            menu.locator(f"button[data-save='{name}']").click()
        check_saved(name, saved.value)


def check_saved(name, saved):
    assert saved.suggested_filename.endswith(name)
    content = Path(saved.path()).read_bytes()
    if name.endswith(".png"):
        assert content.startswith(b"\x89PNG") and len(content) > 1500
    elif name.endswith(".svg"):
        drawn = ET.fromstring(content)
        assert drawn.tag.endswith("svg") and len(drawn) > 1 and b"var(--" not in content
        assert b"http" not in content.replace(b"http://www.w3.org/", b"")
    elif name.endswith(".json"):
        assert isinstance(json.loads(content), list)
    else:
        rows = list(csv.reader(io.StringIO(content.decode())))
        assert len(rows) > 1 and {len(row) for row in rows} == {len(rows[0])}


@pytest.mark.parametrize("height", ["loss", "turns"])
def test_labels_of_turns_do_not_lie_on_one_another(page, height):
    page.click(f"#by-{height}")
    drawn = saved_tree(page)
    labels = [one for one in drawn.iter() if re.fullmatch(r"\d+[+-]", one.text or "")]
    filled = [one for one in labels if one.get("fill") != "none"]  # each has a rim, too
    assert len(filled) > 4
    boxes = []
    for one in filled:
        x, y, width = float(one.get("x")), float(one.get("y")), 7 * len(one.text)
        boxes.append((x - width if one.get("text-anchor") == "end" else x, y, width))
    for i, (x, y, width) in enumerate(boxes):
        for left, at, other in boxes[:i]:
            assert abs(at - y) >= 11 or x >= left + other or left >= x + width


def test_saved_tables_hold_full_numbers(page, run):
    page.locator("#legs-bar .save summary").click()
    with page.expect_download() as saved:
        page.click("button[data-save='legs.csv']")
    rows = list(csv.DictReader(io.StringIO(Path(saved.value.path()).read_text())))
    result = rr.load(run)
    assert [row["fingerprint"] for row in rows] == list(map(str, result.fingerprints()))
    assert all(float(row["loss"]) == result.leg(row["fingerprint"]).loss for row in rows)


def test_an_address_names_a_leg(opened, written, page):
    go_to(page, "1- 0+")
    address = page.url
    assert address.endswith("#leg=1-%200+")
    again = opened(address)
    assert again.inner_text("#leg-name") == "1- 0+"
    again.evaluate("location.hash = '#leg=0+'")
    wait_for(again, "#leg-name", "0+")
    assert again.get_attribute("#to-index", "href") == "all.html"
    nowhere = opened(f"{written.as_uri()}#leg=9+%zz")
    assert nowhere.inner_text("#leg-name") == page_best(nowhere)


def page_best(page):
    return page.inner_text("#verdict button.link")


# --- on a phone and in the dark


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_comparing_fits_a_phone(opened, written, scheme):
    options = {"viewport": {"width": 390, "height": 800}, "color_scheme": scheme}
    page = opened(written.as_uri(), has_touch=True, **options)
    page.locator("#picks input").nth(0).tap()
    page.locator("#picks input").nth(1).tap()
    assert page.locator("#leaves tbody tr").count() == 2
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


# --- while it runs


def test_the_page_follows_a_search(opened, tmp_path):
    store, frontier = make_run(tmp_path / "run.sqlite", 3, **OWN)
    with served(tmp_path / "run.sqlite") as server:
        page = opened(server.url)
        assert "3 of 100 rides" in page.inner_text("#progress-words")
        assert page.evaluate("document.getElementById('progress-bar').value") == 0.03
        page.click("#follow-newest")
        store.settle(make_leg(frontier[0]), [])
        wait_for(page, "#leg-name", frontier[0])
        page.click("#follow-best")
        wait_for(page, "#leg-name", page_best(page))
        store.settle(make_leg(frontier[1]), [])
        wait_for(page, "#num-legs", "5")
        wait_for(page, "#leg-name", page_best(page))
        assert "working" in page.inner_text("#live")
        page.close()
    store.close()
