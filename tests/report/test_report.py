"""The page in a real browser, and the run file behind it."""

import base64
import json
import os
import re
import shutil
import socket
import sqlite3
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import ridgerider as rr
from ridgerider.report import report
from ridgerider.report._page import embedded
from ridgerider.report._read import Reader, pack_trace
from ridgerider.report._watch import Server, Watched
from tests.report.conftest import READY, rows_of
from tests.search.runfile.made_up_runs import make_leg, make_run

NAME = "<script>alert(1)</script>"
MINUS = "\u2212"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.sqlite"
    make_run(path, 40, name=NAME)[0].close()
    return path


@pytest.fixture
def copy(run, tmp_path):
    return Path(shutil.copy(run, tmp_path / "run.sqlite"))


# --- in the browser


@pytest.fixture
def page(opened, run, tmp_path):
    return opened(report(run, tmp_path / "report.html").as_uri())


def shown(number):
    """A number as the page writes it."""
    return float(number.replace(MINUS, "-"))


def wait_for(page, selector, text):
    expect = pytest.importorskip("playwright.sync_api").expect
    expect(page.locator(selector)).to_have_text(text, timeout=30_000)


def go_to(page, fingerprint):
    page.fill("#go-to", fingerprint)
    page.press("#go-to", "Enter")
    wait_for(page, "#leg-name", fingerprint)


def test_the_page_shows_the_run(page, run):
    result = rr.load(run)
    assert page.inner_text("h1") == NAME and page.title() == f"{NAME} · Ridge Rider"
    assert page.inner_text("#num-legs") == "40" and page.inner_text("#num-minima") == "12"
    assert page.inner_text("#num-open") == str(result.num_open())
    assert page.inner_text("#num-saddles") == str(result.kinds()["saddle"])
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    ledger = page.inner_text("#ledger tbody tr:last-child").split("\t")
    assert ledger[3].replace(",", "") == str(result.cost.hvps)


def test_clicking_in_the_tree_shows_the_ride_of_the_run_file(page, run):
    result = rr.load(run)
    page.focus("#tree")
    page.keyboard.press("Home")
    assert page.inner_text("#leg-name") == "start"
    page.keyboard.press("ArrowDown")
    first = page.inner_text("#leg-name")
    assert first == "0+" and page.inner_text("#tree-item").startswith("0+, loss")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#leg-name") == "1+"
    page.keyboard.press("ArrowUp")
    seen = set()
    box = page.locator("#tree").bounding_box()
    page.click("#by-turns")
    for x in range(70, int(box["width"]) - 20, 24):  # along the first row of legs
        page.mouse.click(box["x"] + x, box["y"] + 26 + (box["height"] - 56) / 3.35)
        name = page.inner_text("#leg-name")
        leg = result.leg("" if name == "start" else name)
        if name not in seen and leg.fingerprint:
            check_ride(page, leg)
        seen.add(name)
        assert page.inner_text("#leg .facts dd").strip() == show(leg.loss, 7)
    assert {"0+", "1+", "1-", "0-"} <= seen
    go_to(page, "1- 0+")
    check_ride(page, result.leg("1- 0+"))


def show(value, digits):
    """The same the other way, for numbers of ordinary size."""
    return f"{float(f'{value:.{digits}g}'):.{digits}g}".replace("-", MINUS)


def check_ride(page, leg):
    """Every value of the ride in the page against the run file."""
    rows = rows_of(page.locator("#ride details"))
    names = page.inner_text("#trace-table thead tr").split("\t")
    table = np.array([[shown(cell) for cell in row] for row in rows])
    assert len(table) == leg.num_steps + 1
    for name in ("loss", "eigenvalue", "overlap", "residual", "gap", "step_size"):
        column = table[:, names.index(name.replace("_", " "))]
        # The page holds float32 and writes six digits (three for tiny numbers).
        np.testing.assert_allclose(
            column, leg.trace[name], rtol=1e-2 if name == "residual" else 1e-5
        )
    assert f"{leg.num_steps} steps" in page.inner_text(".story")
    assert leg.ended_by[0] in page.inner_text("#leg .facts")
    found = [shown(row[0]) for row in rows_of(page.locator("#leg > details"))]
    np.testing.assert_allclose(found, leg.eigenvalues, rtol=1e-5)


def test_solutions_are_sorted_filtered_and_copied(page, run):
    minima = rr.load(run).minima()
    table = page.locator("#solutions tbody tr.row")
    assert table.locator("td:first-child").all_inner_texts() == [
        str(one.fingerprint) for one in minima
    ]
    losses = [shown(text) for text in table.locator("td:nth-child(2)").all_inner_texts()]
    assert losses == sorted(losses) == [one.loss for one in minima]
    page.click("#solutions th:nth-child(2) button")
    assert page.get_attribute("#solutions th:nth-child(2)", "aria-sort") == "descending"
    assert [shown(text) for text in table.locator("td:nth-child(2)").all_inner_texts()] == losses[
        ::-1
    ]
    page.click("#solutions th:nth-child(3) button")
    least = [shown(text) for text in table.locator("td:nth-child(3)").all_inner_texts()]
    assert least == sorted(least)
    page.fill("#solution-filter", "1-")
    assert all("1-" in name for name in table.locator("td:first-child").all_inner_texts())
    page.fill("#solution-filter", "9+")
    assert table.count() == 0 and "nothing to show" in page.inner_text("#solutions")
    page.fill("#solution-filter", "")
    page.select_option("#kind", "saddle")
    num_saddles = rr.load(run).kinds()["saddle"]
    assert page.inner_text("#solutions-count") == f"{num_saddles} shown"
    page.select_option("#kind", "minimum")
    classes = {str(one.fingerprint): group for group in rr.load(run).classes() for one in group}
    for row in table.all_inner_texts():
        name, *_, stands, num, _, _ = row.split("\t")
        group = classes[name]
        first = str(group[0].fingerprint)
        assert stands.endswith("stands for it" if first == name else f"as {first}")
        assert int(num) == len(group)
    page.select_option("#reason", "Stalled")
    assert set(page.locator("#legs tbody tr.row td:nth-child(6)").all_inner_texts()) == {"Stalled"}
    table.locator("button.copy").first.click()
    page.wait_for_selector(".toast.shown")
    assert page.inner_text("#toast").startswith("Copied ")


def test_the_page_is_for_phones_and_for_the_dark(opened, run, tmp_path):
    phone = {"viewport": {"width": 375, "height": 700}, "color_scheme": "dark", "has_touch": True}
    page = opened(report(run, tmp_path / "report.html").as_uri(), **phone)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.tap("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    page.reload()
    page.wait_for_selector(READY, state="attached")
    assert page.get_attribute("html", "data-theme") == "light"


def test_ten_thousand_legs(opened, tmp_path):
    make_run(tmp_path / "run.sqlite", 10_000)[0].close()
    page = opened(report(tmp_path / "run.sqlite").as_uri())
    assert page.inner_text("#num-legs") == "10,000" and page.inner_text("#num-minima") == "12"
    # Rows and drawings exist for what is in view only.
    assert page.locator("tbody tr").count() < 120
    leg = rr.load(tmp_path / "run.sqlite").leg("1- 1+ 0- 0+ 1- 1-")
    go_to(page, str(leg.fingerprint))
    check_ride_end(page, leg)
    page.evaluate("document.querySelector('#legs .scroll').scrollTop = 1e9")
    wait_for(page, "#legs tbody tr.row >> nth=-1", re.compile("10000"))
    assert (tmp_path / "report.html").stat().st_size < 25e6


def check_ride_end(page, leg):
    assert page.inner_text("#leg .facts dd").strip() == show(leg.loss, 7)
    assert f"{leg.num_steps} steps" in page.inner_text(".story")


# --- watching


@contextmanager
def served(path):
    with Server(Watched(path), port=0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_a_leg_that_lands_later_appears(opened, tmp_path):
    path = tmp_path / "run.sqlite"
    with served(path) as server:
        page = opened(server.url)
        assert "there is none at" in page.inner_text("#notes")
        store, waiting = make_run(path, 3, name="growing")
        wait_for(page, "#num-legs", "3")
        assert page.inner_text("h1") == "growing" and page.inner_text("#notes").strip() == ""
        late = make_leg(waiting[0])
        store.settle(late, [])
        wait_for(page, "#num-legs", "4")
        go_to(page, str(late.fingerprint))
        check_ride(page, late)
        assert page.inner_text("#live").startswith("working · last leg")
        page.evaluate("window.before = true")
        store.close()
        path.unlink()
        make_run(path, 5, name="another")[0].close()
        wait_for(page, "#num-legs", "5")
        assert page.inner_text("h1") == "another" and not page.evaluate("window.before")
        page.close()


def ask(url, **headers):
    request = urllib.request.Request(url, headers={"X-Ridgerider": "test", **headers})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode()


def test_the_server_serves_its_page_to_its_name_only(run):
    with served(run) as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert "num-legs" in ask(server.url)
        assert len(json.loads(ask(f"{server.url}data?after=39"))["legs"]) == 2
        assert len(json.loads(ask(f"{server.url}data?after=-1"))["legs"]) == 41
        port = server.server_address[1]
        for host in (f"localhost:{port}", f"[::1]:{port}"):
            assert ask(server.url, Host=host)
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}"):
            assert refused(server.url, Host=host) == 421
        assert refused(f"{server.url}../run.sqlite") == 404
        assert refused(f"{server.url}run.sqlite") == 404
        assert refused(f"{server.url}data?after=0", **{"X-Ridgerider": ""}) == 403
        request = urllib.request.Request(server.url, data=b"x", method="POST")
        with pytest.raises(urllib.error.HTTPError, match="501"):
            urllib.request.urlopen(request, timeout=10)


def refused(url, **headers):
    with pytest.raises(urllib.error.HTTPError) as error:
        ask(url, **headers)
    error.value.close()
    return error.value.code


def test_a_used_port_is_passed_by(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Server(Watched(run), port=port) as server:
            assert server.server_address[1] != port
    with pytest.raises(ValueError, match="`port` must be between 0 and 65535, not 70000"):
        Server(Watched(run), port=70000)


# --- what can be read


def test_reading_agrees_with_the_result(run):
    reader, result = Reader(run), rr.load(run)
    assert reader.read() == 41 and reader.read() == 0 and reader.notes == []
    assert [leg["fingerprint"] for leg in reader.legs[1:]] == list(map(str, result.fingerprints()))
    classes = result.classes()
    assert len(reader.groups) == len(classes)
    for leg, row in zip(result, reader.legs[1:], strict=True):
        assert row["loss"] == leg.loss and row["eigenvalue"] == leg.trace["eigenvalue"][0]
        assert row["cost"][2] == leg.cost.hvps
    for group in classes:
        assert {
            reader.groups[reader.legs[1 + result.fingerprints().index(one.fingerprint)]["group"]][
                "fingerprint"
            ]
            for one in group
        } == {str(group[0].fingerprint)}
    found = reader.differ()
    minima = {str(one.fingerprint): one for one in result.minima()}
    names = [reader.groups[number]["fingerprint"] for number in found["groups"]]
    assert names == list(minima)
    apart = np.linalg.norm(minima[names[0]].params - minima[names[3]].params)
    assert found["distances"][0][3] == pytest.approx(apart, rel=1e-4)


@pytest.mark.parametrize("has_neighbours", [True, False])
def test_of_a_long_ride_the_weakest_steps_are_kept(has_neighbours):
    random = np.random.default_rng(0)
    trace = {name: random.random(1001) for name in ("loss", "overlap", "residual")}
    trace |= {"gap": np.full(1001, np.nan)}
    if has_neighbours:
        trace |= {"neighbours": np.stack([np.full(1001, np.nan), random.random(1001)], axis=1)}
    packed = pack_trace(trace, 100)
    names = packed["columns"]
    table = np.frombuffer(base64.b64decode(packed["data"]), "<f4").reshape(len(names), -1)
    assert names[:5] == ["step", "loss", "overlap", "residual", "gap"]
    assert names[5:] == (["neighbour 0"] if has_neighbours else [])
    steps = table[0].astype(int)
    assert 100 <= len(steps) <= 103 and steps[0] == 0 and steps[-1] == 1000
    assert {trace["overlap"].argmin(), trace["residual"].argmax()} <= set(steps)
    np.testing.assert_allclose(table[1], trace["loss"][steps], rtol=1e-6)


def test_nothing_in_a_run_becomes_markup(run, tmp_path):
    text = report(run, tmp_path / "report.html").read_text()
    assert "alert(1)" in text and "<script>alert" not in text
    assert text.count("<script") == 3 and embedded("</script>") == '"\\u003c/script\\u003e"'
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert "default-src 'none'" in policy and "connect-src 'none'" in policy
    assert "unsafe" not in policy and "http" not in policy


def test_settings_may_be_infinite(tmp_path, opened):
    rider = {"type": "mine:Rider", "fields": {"patience": float("inf")}}
    make_run(tmp_path / "run.sqlite", 2, rider=rider)[0].close()
    page = opened(report(tmp_path / "run.sqlite").as_uri())
    assert "patience" in page.inner_text("#settings") and "inf" in page.inner_text("#settings")


def damage(path, statement):
    with sqlite3.connect(path) as db:
        db.execute(statement)
    db.close()


def test_another_format_is_refused_and_other_columns_are_ignored(copy):
    damage(copy, "ALTER TABLE legs ADD COLUMN colour TEXT DEFAULT 'red'")
    reader = Reader(copy)
    assert reader.read() == 41 and reader.notes == []
    damage(copy, "PRAGMA user_version = 99")
    with pytest.raises(ValueError, match="is a run file of format 99, but this version of"):
        Reader(copy).read()


@pytest.mark.parametrize("column", ["ridges", "trace"])
def test_a_damaged_file_is_refused(copy, column, tmp_path):
    damage(copy, f"UPDATE legs SET {column} = 'rust' WHERE fingerprint IN ('0+', '1- 0+')")
    with pytest.raises(ValueError, match=r"is damaged: leg 0\+ .*`ridgerider check` names all"):
        report(copy, tmp_path / "page.html")


def test_a_truncated_file_is_refused(copy):
    os.truncate(copy, copy.stat().st_size // 2)
    with pytest.raises(ValueError, match=r"is damaged|cannot be read as a run file"):
        report(copy)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "`path` must be a run file, but there is none at"),
        (b"", "is empty: there is nothing to read in it"),
        (b"these are notes, no database" * 99, "cannot be read as a run file"),
    ],
)
def test_what_is_no_run_is_refused_in_one_sentence(tmp_path, content, message):
    path = tmp_path / "run.sqlite"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        report(path)
    assert "\n" not in str(error.value) and not (tmp_path / "report.html").exists()


def test_another_database_and_bad_arguments_are_refused(tmp_path, run):
    damage(tmp_path / "other.sqlite", "CREATE TABLE t (x)")
    with pytest.raises(ValueError, match="is not a run file of ridgerider"):
        report(tmp_path / "other.sqlite")
    with pytest.raises(ValueError, match="`out` must be in a directory that exists"):
        report(run, tmp_path / "nowhere" / "page.html")


def test_a_run_without_legs_says_so(tmp_path, opened):
    make_run(tmp_path / "run.sqlite", 0)[0].close()
    page = opened(report(tmp_path / "run.sqlite").as_uri())
    assert "No leg has been ridden yet." in page.inner_text("#notes")
    assert page.inner_text("#leg-name") == "start"
