"""All experiments in order, and one page of what they gave; and the page of the documentation.

    ridgerider reproduce all                  every experiment, then index.md
    python -m ridgerider_experiments.page     pages of docs from docs/results/*.json

A page of the documentation is a text with holes, such as `docs/reproducing.md.in`. In it
`{{table trees}}` is an experiment's table, `{{run trees}}` what it was made with, and one number is
`{{trees/depths/10/rr/mean:.2f}}`, or `{{100*...}}` as a percentage. So every result on it is one
that a command wrote. `trees@before` are older results of the same command.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ridgerider_experiments as experiments
from ridgerider_experiments.runner import about

HOLE = re.compile(r"\{\{(100\*|table |run )?([^}:]+)(?::([^}]*))?\}\}")


def run_all(
    out: Path,
    *,
    quick: bool = False,
    seed: int = 0,
    workers: int | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, str]:
    """Run every experiment whose results are not there yet, write the page, say what failed.

    Each has a folder of its own under `out`. One that fails, say for want of MNIST, is named on the
    page with its reason; the others go on.
    """
    failed: dict[str, str] = {}
    for name in experiments.EXPERIMENTS:
        folder = out / name
        if is_done(folder, quick, seed):
            say(f"{name}: done already, {folder}")
            continue
        say(f"{name}: begins")
        try:
            experiments.reproduce(name, folder, quick=quick, seed=seed, workers=workers, say=say)
        except (OSError, ValueError) as error:
            failed[name] = str(error)
            say(f"{name}: failed, {error}")
        write_page(out, failed)  # whoever looks before the end sees what there is
    write_page(out, failed)
    return failed


def is_done(folder: Path, quick: bool, seed: int) -> bool:
    """Whether the folder holds whole results of this size and seed, made by this version."""
    try:
        run = json.loads((folder / "results.json").read_text())["run"]
    except (OSError, ValueError, KeyError):
        return False
    asked = (quick, seed, about()["version"])
    return (run["is_quick"], run["settings"]["seed"], run["version"]) == asked


def write_page(out: Path, failed: dict[str, str]) -> None:
    """`index.md`: every table and figure beside the paper's value."""
    out.mkdir(parents=True, exist_ok=True)
    blocks = [block for name in experiments.EXPERIMENTS for block in section(out, name, failed)]
    text = "\n\n".join(["# Every figure and table of the paper", *blocks]) + "\n"
    (out / "index.md").write_text(text)


def section(out: Path, name: str, failed: dict[str, str]) -> Iterator[str]:
    """The blocks of one experiment; of one that has not run, that it has not."""
    experiment, folder = experiments.module(name), out / name
    title, _, about = (experiment.__doc__ or name).partition("\n\n")
    yield f"## {title.rstrip('.')}\n\n{about.strip()}"
    if not (folder / "results.json").exists():
        yield f"Not run: {failed.get(name, 'its turn has not come yet')}"
        return
    results = json.loads((folder / "results.json").read_text())
    yield experiment.table(results).strip()
    yield from (f"![{path.stem}]({name}/{path.name})" for path in sorted(folder.glob("*.png")))
    yield made_with(results["run"])


def made_with(run: dict[str, Any]) -> str:
    """What a result was made with, in one sentence."""
    settings = ", ".join(f"{name} {json.dumps(of)}" for name, of in run["settings"].items())
    commit = f" ({run['commit']})" if run["commit"] else ""
    chosen = "at a chosen size" if run.get("options") else "full size"
    size = "quick size" if run["is_quick"] else chosen
    words = f"Version {run['version']}{commit}, {size}, {run['cores']} cores ({run['machine']})"
    words += f", {run['seconds']:.0f} seconds in the last go" if run["seconds"] else ""
    words += f"; settings: {settings}."
    return f"{words} {run['note']}" if "note" in run else words


# --- the page of the documentation


def filled(template: str, folder: Path) -> str:
    """The text with its holes filled from the results in `folder`."""
    stored = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}

    def fill(hole: re.Match[str]) -> str:
        kind, path, spec = hole.groups()
        if kind == "table ":
            return str(experiments.module(path.partition("@")[0]).table(stored[path])).strip()
        if kind == "run ":
            return made_with(stored[path]["run"])
        value: Any = stored
        for part in path.split("/"):
            value = value[int(part)] if isinstance(value, list) else value[part]
        return format(100 * value if kind else value, spec or "")

    return HOLE.sub(fill, template)


def write_documentation(docs: Path) -> None:
    for template in docs.glob("*.md.in"):
        template.with_suffix("").write_text(filled(template.read_text(), docs / "results"))


if __name__ == "__main__":
    write_documentation(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
