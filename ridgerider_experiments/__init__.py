"""One file for each figure, table or theorem of the paper: `Settings` and `run(settings, out)`."""

import importlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax

from ridgerider.data import images_of
from ridgerider_experiments.settings import about
from ridgerider_experiments.sweep import entries

# Each is a module of this package, in the order of `all`.
EXPERIMENTS = (
    "surface",
    "trees",
    "ablation",
    "dice",
    "levers",
    "games",
    "mnist",
    "mnist-diversity",
    "mnist-sweep",
    "colored-mnist",
    "theory",
    "players",
    "ensembles",
    "invariance",
    "ensemble-depth",
    "clusters",
)
# These train networks, in single precision, as the paper does; all others are in double.
IN_SINGLE = (
    "mnist",
    "mnist-diversity",
    "mnist-sweep",
    "colored-mnist",
    "ensembles",
    "invariance",
    "ensemble-depth",
)
OWN_DATA = ("mnist", "mnist-diversity", "ensembles")  # those that take images of one's own


def reproduce(
    name: str,
    out: Path,
    *,
    quick: bool = False,
    seed: int = 0,
    say: Callable[[str], None] = print,
    **options: Any,
) -> dict[str, Any]:
    """Run one experiment; write `results.json`, `table.md` and figures to the directory `out`.

    Those that train networks on images are in single precision, all others in double, whatever is
    set outside. `options` replace settings of the experiment, such as `workers`, unless None.
    """
    if name not in EXPERIMENTS:
        raise ValueError(f"the experiment must be one of {', '.join(EXPERIMENTS)}, not {name!r}.")
    experiment = module(name)
    settings = experiment.Settings.quick(seed) if quick else experiment.Settings(seed=seed)
    options = {option: value for option, value in options.items() if value is not None}
    for option in options:
        able = OWN_DATA if option == "data" else takers(option)
        if name not in able:
            raise ValueError(f"`{option}` must be left out but for {', '.join(able)}, not {name}.")
    if options.get("workers", 1) < 1:
        raise ValueError(
            f"`workers` must be a whole number of at least 1, not {options['workers']}."
        )
    if "data" in options:
        images_of(options["data"])  # raises if they cannot be read
        options["data"] = str(options["data"])
    settings = replace(settings, **options)
    if hasattr(settings, "data"):
        say(f"data: {_data_used(settings.data, quick)}")
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    # Random numbers differ with the precision: it must not be the caller's.
    with jax.enable_x64(name not in IN_SINGLE):
        results = experiment.run(settings, out, say)
    files = out.glob("*.jsonl")
    results["run"] = {
        "experiment": name,
        "is_quick": quick,
        "options": sorted(options.keys() - {"workers", "data"}),
        "settings": asdict(settings),
        "seconds": time.perf_counter() - began,
        **about(),
        "commits": sorted({one.get("commit", "") for path in files for one in entries(path)}),
    }
    (out / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    (out / "table.md").write_text(experiment.table(results))
    return results


def takers(option: str) -> list[str]:
    """The experiments that have this setting."""
    return [name for name in EXPERIMENTS if hasattr(module(name).Settings(), option)]


def _data_used(data: str, quick: bool) -> str:
    if data in ("all", "mnist"):
        place = f"MNIST, from {os.environ.get('RIDGERIDER_DATA') or 'the cache'}"
        return place if data == "mnist" else f"the small digits of scikit-learn, and {place}"
    if data != "digits":
        return f"the images in {data}" + (", some of them (--quick)" if quick else "")
    ignored = " and does not read RIDGERIDER_DATA" if os.environ.get("RIDGERIDER_DATA") else ""
    how = f"; --quick takes these{ignored}, --data FOLDER takes others" if quick else ""
    return f"the small digits of scikit-learn{how}"


def module(name: str) -> Any:
    """Imported when it is asked for: an experiment draws, and Matplotlib is an extra."""
    try:
        return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    except ModuleNotFoundError as error:
        raise ValueError(
            f"an experiment needs {error.name}, which is not installed: pip install "
            "'ridgerider[demo]'."
        ) from error
