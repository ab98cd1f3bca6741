"""A real browser, which watches what a page does."""

import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
READY = "html[data-ready]"


def rows_of(box):
    """Open a `details` box and read its table, which is built a moment after that."""
    box.evaluate("box => { box.open = true; }")
    rows = box.locator("tbody tr")
    rows.first.wait_for(state="attached")
    return [row.split("\t") for row in rows.all_inner_texts()]


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    options = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage"]
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=options)
        yield launched
        launched.close()


@pytest.fixture
def opened(browser):
    """Open a page and watch it: no error may appear and nothing else may be loaded."""
    contexts, troubles, asked = [], [], []

    def open_page(address, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: troubles.append("dialog") or dialog.dismiss())
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        page.wait_for_selector(READY, state="attached")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not troubles
    assert all(url.startswith(("file:", "data:", "blob:", "http://127.0.0.1:")) for url in asked)
    pages = {url.partition("#")[0] for url in asked if url.startswith("file:")}
    assert len(pages) <= len(contexts)
