"""Large arrays through callbacks."""

import threading

import jax
import jax.numpy as jnp
import pytest

import ridgerider as rr
from ridgerider_experiments.bench import memory


def many_callbacks(count):
    """Call a function on 10 MB so many times from one program."""
    x = jnp.ones(2_500_000, jnp.float32)
    problem = rr.Problem.from_functions(half, x, hvp=lambda x, v: v / 2)
    step = jax.jit(lambda x: jax.lax.fori_loop(0, count, lambda _, x: problem.grad(x) + 1, x))
    return float(step(x)[0])


def half(x):
    return float(x @ x) / 4, x / 2


def test_callbacks_of_megabytes_come_back():
    """Half of it and one more, again and again: 2. In one program, and in several threads."""
    assert many_callbacks(30) == pytest.approx(2)
    threads = [threading.Thread(target=many_callbacks, args=(10,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.long
def test_memory_does_not_grow():
    many_callbacks(20)
    before = memory()
    many_callbacks(300)  # 3 GB went through it
    assert memory() - before < 200
