"""Who rides: the executor that the options ask for."""

import re
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

import ridgerider as rr
from ridgerider._check import check_count
from ridgerider.cli._shown import console

OWN_CLUSTER = "local"  # a Dask cluster of our own


@contextmanager
def crew(
    workers: int | None, dask: str | None, lease: float | None, round_size: int
) -> Iterator[Executor | None]:
    """The executor that the options ask for; none of them: ride here."""
    if workers is not None:
        check_count("--workers", workers)
    if workers is None and dask is None:
        if lease is not None:
            raise ValueError("`--lease` needs workers: see --workers and --dask.")
        yield None
        return
    if dask not in (None, OWN_CLUSTER) and not re.fullmatch(r"\w+://\S+:\d+", dask):
        raise ValueError(f"`--dask` must be an address such as tcp://host:8786, not {dask!r}.")
    if round_size < (workers or 2):
        console.print(
            f"no more than {round_size} at once will ride: that is the run's --round-size",
            soft_wrap=True,
        )
    if dask is None:
        executor: Executor = rr.workers.process_pool(workers or 1, lease=lease)
    else:
        address = None if dask == OWN_CLUSTER else dask
        executor = rr.workers.dask(address, num_workers=workers, lease=lease)
    with executor:
        yield executor


def with_local(arguments: list[str]) -> list[str]:
    """`--dask` without an address asks for a local cluster."""
    following = [*arguments[1:], "-"]
    return [
        f"--dask={OWN_CLUSTER}" if one == "--dask" and next_one.startswith("-") else one
        for one, next_one in zip(arguments, following, strict=True)
    ]
