"""One file for each figure, table or theorem of the paper: `Settings` and `run(settings, out)`."""

import importlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from ridgerider.data import images_of

# Each is a module of this package, in the order of `all`.
EXPERIMENTS = (
    "surface",
    "trees",
    "ablation",
    "dice",
    "levers",
    "mnist",
    "mnist-diversity",
    "mnist-sweep",
    "colored-mnist",
    "theory",
    "ensembles",
    "clusters",
)
# These train networks, in single precision, as the paper does; all others are in double.
IN_SINGLE = ("mnist", "mnist-diversity", "mnist-sweep", "colored-mnist", "ensembles")
OWN_DATA = ("mnist", "mnist-diversity", "ensembles")  # those that take images of one's own


def reproduce(
    name: str,
    out: Path,
    *,
    quick: bool = False,
    seed: int = 0,
    workers: int | None = None,
    data: str | Path | None = None,
    options: dict[str, Any] | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Run one experiment; write `results.json`, `table.md` and figures to the directory `out`.

    Those that train networks on images are in single precision, all others in double, whatever is
    set outside.
    `options` replaces settings of the experiment by name.
    """
    if name not in EXPERIMENTS:
        raise ValueError(f"the experiment must be one of {', '.join(EXPERIMENTS)}, not {name!r}.")
    experiment = module(name)
    settings = experiment.Settings.quick(seed) if quick else experiment.Settings(seed=seed)
    for option in options or {}:
        if not hasattr(settings, option):
            known = ", ".join(vars(settings))
            raise ValueError(f"`options` of {name} must be some of {known}, not {option!r}.")
    settings = replace(settings, **options or {})
    if workers is not None:
        if workers < 1:
            raise ValueError(f"`workers` must be a whole number of at least 1, not {workers}.")
        if not hasattr(settings, "num_workers"):
            able = [one for one in EXPERIMENTS if hasattr(module(one).Settings(), "num_workers")]
            raise ValueError(
                f"`workers` must be left out but for {', '.join(able)}: {name} is one process."
            )
        settings = replace(settings, num_workers=workers)
    if data is not None:
        if name not in OWN_DATA:
            raise ValueError(f"`data` must be left out but for {', '.join(OWN_DATA)}.")
        images_of(data)  # raises if they cannot be read
        settings = replace(settings, data=str(data))
    if hasattr(settings, "data"):
        say(f"data: {_data_used(settings.data, quick)}")
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    # Random numbers differ with the precision: it must not be the caller's.
    with jax.enable_x64(name not in IN_SINGLE):
        results = experiment.run(settings, out, say)
    results["run"] = {
        "experiment": name,
        "is_quick": quick,
        "options": sorted(options or {}),
        "settings": asdict(settings),
        "seconds": time.perf_counter() - began,
        **about(),
    }
    (out / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    (out / "table.md").write_text(experiment.table(results))
    return results


def _data_used(data: str, quick: bool) -> str:
    if data in ("all", "mnist"):
        place = f"MNIST, from {os.environ.get('RIDGERIDER_DATA') or 'the cache'}"
        return place if data == "mnist" else f"the small digits of scikit-learn, and {place}"
    if data != "digits":
        return f"the images in {data}" + (", some of them (--quick)" if quick else "")
    ignored = " and does not read RIDGERIDER_DATA" if os.environ.get("RIDGERIDER_DATA") else ""
    how = f"; --quick takes these{ignored}, --data FOLDER takes others" if quick else ""
    return f"the small digits of scikit-learn{how}"


def about() -> dict[str, Any]:
    """What a result was made by and on: version, commit if there is one, processor."""
    here = Path(__file__).parent
    asked = ["git", "-C", str(here), "rev-parse", "--short", "HEAD"]
    try:
        commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = ""
    return {
        "version": metadata.version("ridgerider"),
        "commit": commit,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
    }


def module(name: str) -> Any:
    """Imported when it is asked for: an experiment draws, and Matplotlib is an extra."""
    try:
        return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    except ModuleNotFoundError as error:
        raise ValueError(
            f"an experiment needs {error.name}, which is not installed: pip install "
            "'ridgerider[demo]'."
        ) from error
