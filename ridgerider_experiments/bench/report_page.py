"""How fast the page of a large run opens and moves, in Chromium.

    python -m ridgerider_experiments.bench.report_page [NUM_LEGS]

Needs playwright and chromium. Opening is timed from the navigation to the moment at which tree,
ride, tables and curves are drawn; moving is the time of one frame while the tree is zoomed and
panned, and of showing another ride.
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from ridgerider.report import report
from tests.search.runfile.made_up_runs import make_run

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


def main(num_legs: int) -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "run.sqlite"
        make_run(path, num_legs)[0].close()
        began = time.perf_counter()
        page_path = report(path)
        print(f"{num_legs} legs: run file {path.stat().st_size / 1e6:.1f} MB")
        size = page_path.stat().st_size / 1e6
        print(f"writing the page   {time.perf_counter() - began:.2f} s, {size:.1f} MB")
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        opened, moved = [], []
        for _ in range(3):
            page = browser.new_page(viewport={"width": 1440, "height": 1000})
            page.goto(page_path.as_uri())
            page.wait_for_selector("html[data-ready]", state="attached")
            opened.append(float(page.get_attribute("html", "data-ready") or "nan") / 1000)
            moved += page.evaluate(MOVE)
            page.close()
        browser.close()
    print(f"opening it         {min(opened):.2f} to {max(opened):.2f} s")
    print(
        f"a move in the tree {sorted(moved)[len(moved) // 2]:.0f} ms, at most {max(moved):.0f} ms"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
