"""`ridgerider explore structure.xyz --calculator MODULE:CLASS`, and `resume` of such a run.

The run file has the structure, but not the calculator: it is named again on resume, since nothing
that a file names is imported.
"""

import ast
import inspect
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgerider._check import needs, one_line
from ridgerider._search.runfile.rules_json import load_attribute

Calculator = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:CLASS",
        help="Calculator of ASE: the problem is then a file with atoms.",
    ),
]
CalculatorOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="Keyword of the calculator, such as method=GFN2-xTB. May be given again.",
    ),
]
Fixed = Annotated[
    str | None,
    typer.Option(help="Atoms that do not move, by number from 0 or element: 0-7,9 or Al."),
]
Bonds = Annotated[str | None, typer.Option(help="keep or any; see ridgerider.ase.explore.")]
MaxForceCalls = Annotated[int | None, typer.Option(help="Stop after this many force calls.")]
Starts = Annotated[
    list[Path] | None,
    typer.Option(help="A file with other structures to begin from. May be given again."),
]


def read_atoms(path: str | Path, argument: str, index: str = "-1") -> Any:
    """Atoms from a file: the last of it, or those with the `index` of ASE."""
    with needs("ase", "ridgerider.ase"):
        from ase.io import read
    if not Path(path).is_file():
        raise ValueError(f"{argument} must be a file with atoms, but there is no {one_line(path)}.")
    try:
        return read(path, index)
    except Exception as error:  # each format has its own
        why = one_line(error) or type(error).__name__
        raise ValueError(
            f"{argument} must be a file with atoms, but {one_line(path)} cannot be read: {why}."
        ) from error


def calculator_of(name: str, options: list[str] | None) -> Any:
    """The calculator that options describe."""
    found, keywords = load_attribute("`--calculator` must be", name), {}
    for one in options or []:
        key, is_given, text = one.partition("=")
        if not is_given or not key.isidentifier():
            raise ValueError(f"`--option` must be NAME=VALUE, such as charge=1, not {one!r}.")
        try:
            keywords[key] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            keywords[key] = text
    known = _keywords_of(found)
    for key in keywords:
        if known and key not in known:
            raise ValueError(
                f"`--option` must be a keyword of {name}: {', '.join(known)}; not {key}."
            )
    try:
        return found(**keywords)
    except Exception as error:
        why = one_line(error) or type(error).__name__
        raise ValueError(f"`--calculator` {name} cannot be made: {why}.") from error


def _keywords_of(calculator: Any) -> list[str]:
    """The keywords of a calculator; [] if they are not known, as of those that run a program.

    Calculators of ASE have any keyword for a parameter, also one that they never read.
    """
    with needs("ase", "ridgerider.ase"):
        from ase.calculators.calculator import Calculator as Plain
        from ase.calculators.calculator import FileIOCalculator
    defaults = getattr(calculator, "default_parameters", {})
    if (
        not defaults
        or not issubclass(calculator, Plain)
        or issubclass(calculator, FileIOCalculator)
    ):
        return []
    made_by = [one.__init__ for one in calculator.__mro__ if issubclass(one, Plain)]
    named = {name for one in made_by for name in inspect.signature(one).parameters}
    return sorted(set(defaults) | named - {"self", "args", "kwargs"})


def fix(atoms: Any, fixed: str) -> None:
    """Fix atoms by number, range or element, besides what the structure fixes itself."""
    with needs("ase", "ridgerider.ase"):
        from ase.constraints import FixAtoms
    chosen = set[int]()
    for part in fixed.split(","):
        span = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if span is not None:
            found = list(range(int(span[1]), int(span[2] or span[1]) + 1))
        else:
            found = [n for n, symbol in enumerate(atoms.symbols) if symbol == part.strip()]
        if not found or found[-1] >= len(atoms):
            raise ValueError(
                f"`--fixed` must be numbers below {len(atoms)}, ranges such as 0-7, or elements "
                f"of the structure, not {part!r}."
            )
        chosen |= set(found)
    atoms.set_constraint([*atoms.constraints, FixAtoms(sorted(chosen))])
