"""Words that readers stumble over, and defaults and limits that are not those of the code.

    python -m tools.words            pages of the documentation, README, and texts in the code

A default is quoted as "default: `search(max_rides=100)`", and compared with the signature.
"""

import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import ridgerider as rr
from ridgerider._core.spectra.spectrum import DENSE_BELOW

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = sorted((ROOT / "ridgerider").rglob("*.py"))
# What to write instead is in the second place.
DIALECT = {
    r"\b(?:a|of|one|the|no|four|these|those) products?\b(?! of)": "Hessian-vector product (HVP)",
    r"\b(?:is|are|was|were) looked (?:at|for)\b|\bone look\b|\ba look\b": "computed, inspected",
    r"\bset right\b": "corrected, updated",
    r"\b(?:comes|came|come) to (?:a|the|an) (?:minimum|saddle|point|end|rest)\b": "reaches",
    r"\bat rest\b": "stationary",
    r"\bways? (?:up|down)\b": "ascent directions, descent directions",
    r"\b(?:tells?|told|telling) (?:\w+ )?apart\b": "distinguishes",
    r"\b(?:goes|went|going|go) on\b": "continues",
    r"\baddress(?:es)?\b(?= of (?:a|the|each) (?:leg|solution|minimum|path))": "fingerprint",
    r"\bof (?:its|one's|their|your|his|our) own\b": "separate, custom, your",
    r"(?<!here\s)\bis no (?!longer|other|more)\w+": "is not a",
    r"\bhas none\b": "has no ...",
    r"\bto rounding: let\b": "use float64",
}
# Numbers that pages quote, as the code has them.
LIMITS = {
    r"(?i)\b(?:below|above) ([\d,]+) parameters": DENSE_BELOW,
    r"(?i)\bbelow (0\.7\d+)": rr.RidgeLost().min_overlap,
}
QUOTED = re.compile(r"[Dd]efaults?:?\s+`(?:rr\.|ridgerider\.)?([\w.]+)\((\w+)=([^`]+)\)`")


def unusual(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, what was found, and what to write instead."""
    for pattern, instead in DIALECT.items():
        for found in re.finditer(pattern.replace(" ", r"[\s#]+"), text):
            yield text.count("\n", 0, found.start()) + 1, found.group(), instead


def wrong_defaults(text: str) -> Iterator[str]:
    """Quoted defaults and limits that the code does not have."""
    for name, argument, value in QUOTED.findall(text):
        default = (
            inspect.signature(pkgutil.resolve_name(f"ridgerider.{name}"))
            .parameters[argument]
            .default
        )
        if repr(default) != value:
            yield f"{name}({argument}={value}), but the code has {default!r}"
    for pattern, limit in LIMITS.items():
        for value in re.findall(pattern, text):
            if float(value.replace(",", "")) != limit:
                yield f"{value}, but the code has {limit}"


def shown(path: Path) -> str:
    """What readers see of a file: a page, or the strings and comments of code, the rest blank."""
    text = path.read_text()
    if path.suffix != ".py":
        return text
    blank = list(re.sub(r"[^\n]", " ", text))
    for found in re.finditer(r'""".*?"""|"[^"\n]*"|#[^\n]*', text, re.DOTALL):
        blank[found.start() : found.end()] = found.group()
    return "".join(blank)


def main() -> int:
    count = 0
    for path in [*PAGES, *CODE]:
        for line, found, instead in unusual(shown(path)):
            count += 1
            print(f"{path.relative_to(ROOT)}:{line}: {' '.join(found.split())!r}; say: {instead}")
        for wrong in wrong_defaults(path.read_text()) if path in PAGES else ():
            count += 1
            print(f"{path.relative_to(ROOT)}: {wrong}")
    print(count, "places")
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main())
