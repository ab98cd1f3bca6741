"""The files of the library that one small search with a run file runs through.

python -m tools.path
"""

import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import jax.numpy as jnp

import ridgerider as rr

ROOT = Path(rr.__file__).parent


def main() -> None:
    problem = rr.Problem(lambda x: jnp.sum(x**4 / 4 - x**2 / 2) + x[0] * x[1] / 4, jnp.zeros(2))
    search, files = rr.search, Counter[str]()  # which imports what it needs

    def note(frame: FrameType, event: str, arg: Any) -> None:
        place = Path(frame.f_code.co_filename)
        if ROOT in place.parents and frame.f_code.co_name != "<module>":
            files[str(place.relative_to(ROOT))] += 1

    threading.settrace(note)  # what an interrupt may end runs in a thread of its own
    sys.settrace(note)
    search(problem, out=f"{tempfile.mkdtemp()}/run.sqlite").minima()
    sys.settrace(None)
    threading.settrace(None)
    print("\n".join(sorted(files)))
    print(len(files), "files")


if __name__ == "__main__":
    main()
