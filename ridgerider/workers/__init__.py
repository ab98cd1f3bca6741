"""Executors for `search(..., executor=...)`: processes on this machine, or a Dask cluster.

Workers compute with one thread each and with the JAX settings of the process that searches, so that
it does not matter who rides a leg. They get the problem and its data once, and are replaced when
they die.
"""

from ridgerider.workers._pool import ONE_THREAD as ONE_THREAD
from ridgerider.workers._pool import ProcessPool as ProcessPool
from ridgerider.workers._pool import WorkerLost as WorkerLost
from ridgerider.workers._pool import dask as dask
from ridgerider.workers._pool import process_pool as process_pool
