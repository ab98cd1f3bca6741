"""What the documentation says of itself."""

import re
from pathlib import Path

import pytest

import ridgerider as rr
from tools import figures
from tools.words import unusual, wrong_defaults

DOCS = Path(__file__).parents[1] / "docs"
API = "\n".join(path.read_text() for path in sorted((DOCS / "api").glob("*.rst")))


PUBLIC = [
    name
    for name in dir(rr)
    if name[0] != "_" and getattr(getattr(rr, name), "__module__", "").startswith("ridgerider")
]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_of_the_library_is_in_the_reference(name):
    assert re.search(rf"(?:::|\.) ?{name}$", API, re.MULTILINE), name


def test_every_area_of_the_reference_is_listed():
    listed = set(re.findall(r"^   api/(\w+)$", (DOCS / "api.rst").read_text(), re.MULTILINE))
    assert listed == {path.stem for path in (DOCS / "api").glob("*.rst")}


@pytest.mark.parametrize(("number", "last"), [(1, 13), (2, 30), (3, 23), (4, 20)])
def test_lines_of_an_algorithm_ascend_and_exist(number, last):
    """The paper numbers the lines of Algorithm 1 to 13, and so on."""
    text = (DOCS / "paper.md").read_text().partition(f"## Algorithm {number}")[2]
    rows = re.findall(r"^\| ([\d, -]+) \|", text.partition("\n## ")[0], re.MULTILINE)
    firsts = [int(re.match(r"\d+", row).group()) for row in rows]
    assert len(rows) >= 3 and firsts == sorted(firsts)
    assert max(int(one) for row in rows for one in re.findall(r"\d+", row)) <= last


def sections():
    """Pages by caption, as the first page lists them."""
    index = (DOCS / "index.md").read_text()
    trees = re.findall(r":caption: (.+)\n:hidden:\n\n((?:[\w/-]+\n)+)", index)
    return {caption: pages.split() for caption, pages in trees}


def page(name):
    return (DOCS / f"{name}.md").read_text()


GUIDES = sections()["How-to guides"]
WRITTEN = [name for kind in list(sections())[:3] for name in sections()[kind] if "/" not in name]


def test_every_page_is_reached_from_the_first():
    listed = {name for names in sections().values() for name in names}
    pages = {path.stem for path in (*DOCS.glob("*.md"), *DOCS.glob("*.rst"))} - {"index"}
    assert pages <= listed, pages - listed


def test_the_manual_is_short():
    """Reference and results apart."""
    assert sum(len(page(name).split()) for name in ["index", *WRITTEN]) < 20_000


@pytest.mark.parametrize("name", WRITTEN)
def test_a_page_says_whom_it_is_for(name):
    assert re.match(r"# .+\n\nThis (?:guide|tutorial|page)\s+is\s+for ", page(name))


@pytest.mark.parametrize("name", [name for name in WRITTEN if name != "related"])
def test_a_page_has_a_figure_in_both_themes_with_a_description(name):
    figures = re.findall(r"!\[([^\]]*)\]\((images/\S+)\.png\)", page(name))
    assert figures and all(len(text) > 20 for text, _ in figures)
    assert all(
        (DOCS / f"{path}{mark}.png").exists() for _, path in figures for mark in ("", "-dark")
    )


def test_every_figure_is_drawn_and_shown():
    drawn = {name for name in figures.NAMES if "gallery" not in name}
    shown = {
        path
        for name in ["index", *WRITTEN]
        for path in re.findall(r"\(images/(\S+)\.png\)", page(name))
    }
    assert drawn <= shown <= {*figures.NAMES}


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_begins_with_code(name):
    assert "```" in page(name).partition("\n## ")[0]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_page_is_in_ordinary_words_and_its_defaults_are_those_of_the_code(name):
    assert not list(unusual(page(name))) and not list(wrong_defaults(page(name)))


def test_words_of_the_page_are_in_the_glossary():
    terms = re.findall(r"^(\S.*)\n: ", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    assert terms == sorted(terms, key=str.lower)
    said = " ".join(terms)
    for word in ("leg", "turn", "HVP", "fingerprint", "certificate", "multiplicity", "ridge"):
        assert word in said


def test_a_wrong_default_is_found():
    right, wrong = "default: `search(max_rides=100)`", "default: `ridgerider.ase.explore(seed=7)`"
    assert not list(wrong_defaults(right)) and len(list(wrong_defaults(wrong))) == 1
