"""Code lines of each package: without docstrings, comments and blank lines.

python -m tools.size [REVISION]
"""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

PACKAGES = ("ridgerider", "ridgerider_experiments")


def code_lines(text: str) -> int:
    """How many lines of a module hold code.

    >>> code_lines('\"\"\"About it.\"\"\"\\n\\n# Why.\\nx = 1\\n')
    1
    """
    strings = set[int]()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            first = body[0].value
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                strings.update(range(first.lineno, (first.end_lineno or 0) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in strings
        for number, line in lines
    )


def sizes(revision: str | None = None) -> Counter[str]:
    """Code lines by folder, of the working tree or of a revision."""
    found = Counter[str]()
    for package in PACKAGES:
        if revision is None:
            texts = {str(path): path.read_text() for path in Path(package).rglob("*.py")}
        else:
            listed = _git("ls-tree", "-r", "--name-only", revision, package).split()
            texts = {
                name: _git("show", f"{revision}:{name}") for name in listed if name.endswith(".py")
            }
        for name, text in texts.items():
            found[str(Path(name).parent)] += code_lines(text)
    return found


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], capture_output=True, text=True, check=True)
    return done.stdout


def main() -> None:
    found = sizes(*sys.argv[1:2])
    for folder in sorted(found):
        print(f"{found[folder]:7,}  {folder}")
    for package in PACKAGES:
        total = sum(count for folder, count in found.items() if Path(folder).parts[0] == package)
        print(f"{total:7,}  {package} in all")


if __name__ == "__main__":
    main()
