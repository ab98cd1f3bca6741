"""How fast the page of a large run opens and responds, in Chromium.

    ridgerider bench report-page

Needs playwright and chromium. Opening is timed from the navigation to the moment at which tree,
ride, tables and curves are drawn; a move is one frame while the tree is zoomed and panned, or
another ride is shown.
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import ridgerider as rr
from ridgerider_experiments.bench import Row, timed
from ridgerider_experiments.bench.scale import cheap_search

NUM_LEGS = 10_000
MOVE = """async () => {
  const tree = document.getElementById("tree"), times = [];
  tree.focus();
  for (const key of ["End", "+", "+", "ArrowUp", "ArrowLeft", "ArrowRight", "-", "f"]) {
    const began = performance.now();
    tree.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    await new Promise(requestAnimationFrame);
    times.push(performance.now() - began);
  }
  return times;
}"""


def page(seed: int) -> Iterator[Row]:
    from playwright.sync_api import sync_playwright

    task = f"the page of {NUM_LEGS:,} legs"
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "run.sqlite"
        cheap_search(path, 10, seed, max_rides=NUM_LEGS)
        _, spent = timed(rr.report.report, path)
        size = path.with_name("report.html").stat().st_size / 1e6
        yield Row(task, "writing it", spent, "s", f"{size:.1f} MB")
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        opened, moved = list[float](), list[float]()
        for _ in range(3):
            shown = browser.new_page(viewport={"width": 1440, "height": 1000})
            shown.goto(path.with_name("report.html").as_uri())
            shown.wait_for_selector("html[data-ready]", state="attached")
            opened.append(float(shown.get_attribute("html", "data-ready") or "nan") / 1000)
            moved += shown.evaluate(MOVE)
            shown.close()
        browser.close()
    yield Row(task, "opening it", min(opened), "s", f"at most {max(opened):.2f} s")
    middle = sorted(moved)[len(moved) // 2] / 1000
    yield Row(task, "a move in the tree", middle, "s", f"at most {max(moved):.0f} ms")


TASKS = (page,)
