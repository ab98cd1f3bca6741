"""What README promises names the tests that hold it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROMISES = (ROOT / "README.md").read_text().partition("## What you can rely on")[2]
PROMISES = PROMISES.partition("The documentation is in")[0]
NAMED = re.findall(r"<!-- (tests/\S+) -->", PROMISES)


@pytest.mark.parametrize("name", NAMED)
def test_a_promise_names_a_test_that_exists(name):
    path, _, test = name.partition("::")
    assert (ROOT / path).exists()
    assert not test or f"def {test}(" in (ROOT / path).read_text()


def test_every_promise_names_one():
    points = re.split(r"^- \*\*", PROMISES, flags=re.MULTILINE)[1:]
    assert len(points) >= 8 and all("<!-- tests/" in point for point in points)


def test_a_promise_is_one_line_and_the_page_is_short():
    shown = re.sub(r"<!--.*?-->", "", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    promises = shown.partition("## What you can rely on")[2].partition("\n## ")[0].split("\n- ")[1:]
    assert len(shown.split()) < 900 and "\n" not in "".join(map(str.strip, promises))
    assert all(len(one) < 120 for one in promises)
