"""A Dask cluster as an executor; Dask itself is imported only where one is asked for."""

from concurrent.futures import Executor

from ridgerider._check import check_count, check_positive, needs


def dask(
    address: str | None = None,
    *,
    num_workers: int | None = None,
    lease: float | None = None,
    timeout: float = 10,
) -> Executor:
    """A Dask cluster: the one whose scheduler is at `address`, or a new one on this machine.

    - `num_workers`: of a new cluster; default: a worker for each core.
    - `lease`: a worker that takes more seconds than this for a task ends itself, and Dask replaces
      it. The first task of a worker includes compiling.
    - `timeout`: how many seconds to wait for the scheduler.

    Workers may join and leave at any time. Needs `pip install 'ridgerider[cluster]'`, or Dask.

    >>> with dask(num_workers=1) as cluster:  # rr.search(problem, round_size=8, executor=cluster)
    ...     cluster.submit(pow, 2, 10).result()
    1024
    """
    check_positive("lease", lease)
    check_positive("timeout", timeout)
    if num_workers is not None:
        check_count("num_workers", num_workers)
    with needs("cluster", "`dask`"):
        from ridgerider.workers._dask import DaskExecutor
    return DaskExecutor(address, num_workers, lease, timeout)
