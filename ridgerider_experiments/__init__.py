"""One file for each figure, table or theorem of the paper; `runner` says what such a file has."""

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
from ridgerider_experiments.runner import Runner, about, entries

# Each is a module of this package, in the order of `all`. Those that train networks are in single
# precision, as in the paper.
EXPERIMENTS = {
    "surface": "double",
    "trees": "double",
    "ablation": "double",
    "dice": "double",
    "levers": "double",
    "games": "double",
    "mnist": "single",
    "mnist-diversity": "single",
    "mnist-sweep": "single",
    "colored-mnist": "single",
    "theory": "double",
    "players": "double",
    "ensembles": "single",
    "invariance": "single",
    "ensemble-depth": "single",
    "clusters": "double",
}
OWN_DATA = ("mnist", "mnist-diversity", "ensembles")  # those that take images of one's own


def reproduce(
    name: str,
    out: Path,
    *,
    quick: bool = False,
    seed: int = 0,
    workers: int | None = None,
    say: Callable[[str], None] = print,
    **options: Any,
) -> dict[str, Any]:
    """Run one experiment; write `results.json`, `table.md` and figures to the directory `out`.

    Those that train networks on images are in single precision, all others in double, whatever is
    set outside. Its jobs are divided among `workers` processes. `options` replace settings, unless
    None.
    """
    if name not in EXPERIMENTS:
        raise ValueError(f"the experiment must be one of {', '.join(EXPERIMENTS)}, not {name!r}.")
    experiment = module(name)
    settings = experiment.Settings.quick(seed) if quick else experiment.Settings(seed=seed)
    options = {option: value for option, value in options.items() if value is not None}
    for option in options:
        able = {"data": OWN_DATA, "full": ("clusters",)}[option]
        if name not in able:
            raise ValueError(f"`{option}` must be left out but for {', '.join(able)}, not {name}.")
    if (workers := 1 if workers is None else workers) < 1:
        raise ValueError(f"`workers` must be a whole number of at least 1, not {workers}.")
    if "data" in options:
        images_of(options["data"])  # raises if they cannot be read
        options["data"] = str(options["data"])
    settings = replace(settings, **options)
    if hasattr(settings, "data"):
        say(f"data: {_data_used(settings.data, quick)}")
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    # Random numbers differ with the precision: it must not be the caller's.
    with jax.enable_x64(EXPERIMENTS[name] == "double"):
        results = experiment.run(settings, Runner(out, say, workers))
    results["run"] = {
        "experiment": name,
        "is_quick": quick,
        "options": sorted(options.keys() - {"data"}),
        "settings": asdict(settings),
        "seconds": time.perf_counter() - began,
        **about(),
        "commits": sorted({one.get("commit", "") for one in entries(out / "jobs.jsonl")}),
    }
    (out / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    (out / "table.md").write_text(experiment.table(results))
    return results


def _data_used(data: str, quick: bool) -> str:
    small = "the small digits of scikit-learn"
    small += "; --quick takes these and does not read RIDGERIDER_DATA" if quick else ""
    mnist = f"MNIST, from {os.environ.get('RIDGERIDER_DATA') or 'the cache'}"
    own = f"the images in {data}" + (", some of them (--quick)" if quick else "")
    return {"digits": small, "mnist": mnist, "all": f"{small}, and {mnist}"}.get(data, own)


def module(name: str) -> Any:
    """Imported when it is asked for: an experiment draws, and Matplotlib is an extra."""
    try:
        return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    except ModuleNotFoundError as error:
        missing = f"an experiment needs {error.name}, which is not installed"
        raise ValueError(f"{missing}: pip install 'ridgerider[demo]'.") from error
