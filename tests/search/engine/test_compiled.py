"""What is compiled for a new loss: the programs that contain it, and few of those."""

import jax
import jax.numpy as jnp
import pytest

import ridgerider as rr
from ridgerider.problems.wells import wells_loss


@pytest.mark.parametrize(
    ("make", "start", "num_programs", "num_traces"),
    [(rr.search, [0.0, 0.0], 6, 15), (rr.explore, [0.3, 0.2], 3, 6)],
)
def test_a_second_loss_compiles_only_what_contains_it(
    make, start, num_programs, num_traces, caplog
):
    traces = []

    def loss(x):
        traces.append(x)
        return (x[0] ** 2 - 1) ** 2 + 0.7 * (x[1] ** 2 - 1) ** 2 + 0.1 * x[0] * x[1]

    make(rr.Problem(wells_loss, jnp.asarray(start), jnp.ones(2)))
    caplog.clear()
    with jax.log_compiles():
        found = make(rr.Problem(loss, jnp.asarray(start)))
    programs = [line for line in caplog.messages if line.startswith("Finished XLA compilation")]
    assert len(found.minima()) == 4
    assert 0 < len(programs) <= num_programs, programs
    assert len(traces) <= num_traces
