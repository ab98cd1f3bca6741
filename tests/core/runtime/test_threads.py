"""LAPACK computes with one thread while the library rides, and as before afterwards."""

import jax.numpy as jnp
import pytest
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

import ridgerider as rr
from ridgerider._core.runtime.compile import _lapack, one_thread
from ridgerider.problems import wells


def threads():
    return [library["num_threads"] for library in _lapack().info()]


def test_a_ride_has_one_thread_and_leaves_what_was():
    seen = []

    def look(problem, x, key):
        seen.extend(threads())
        return rr.DenseSpectrum()(problem, x, key)

    with threadpool_limits(2):
        before = threads()
        rr.search(wells(1), rr.Rider(spectrum=look), max_rides=1)
        assert threads() == before
    assert set(seen) <= {1}


def test_contexts_nest():
    with threadpool_limits(2):
        before = threads()
        with one_thread():
            with one_thread():
                assert set(threads()) <= {1}
            assert set(threads()) <= {1}
        assert threads() == before


def test_a_saddle_of_higher_order_is_called_one():
    problem = rr.Problem(lambda x: x[0] * x[1] * x[2], jnp.zeros(3))
    with pytest.raises(ValueError, match=r"term of higher order.*network_start"):
        rr.search(problem)
    with pytest.raises(ValueError, match="linear in pieces"):
        rr.search(rr.Problem(lambda x: jnp.abs(x[0] - 9) + x[1], jnp.zeros(2)))
