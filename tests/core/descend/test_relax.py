"""The training at the end of a network's leg."""

import jax.numpy as jnp
import numpy as np

import ridgerider as rr
from tests.core.ride.test_trust_region import KEY, network


def test_relax_takes_no_more_steps_than_it_may():
    start = network()
    end = rr.Relax(epochs=1, min_steps=200, target=0.0)(start.problem, start.problem.x0, KEY)
    assert end.num_steps <= 200 and end.cost.gradients <= 200 + 4 * 60 + 8


def test_relax_crosses_a_plateau_where_there_is_no_noise():
    """The loss is level to a thousandth for most of the way: no reason to take shorter steps."""

    def plateau(x, y):
        return jnp.mean(y - 1e-4 * x)

    for num_rows, is_noisy in ((8, False), (300, True)):
        problem = rr.Problem(plateau, jnp.zeros(()), jnp.ones(num_rows))
        history = rr.Relax(min_steps=600, target=0.0)(problem, problem.x0, KEY).history
        assert 0 < np.ptp(history["loss"]) < 0.01
        assert (len(set(history["rate"][1:])) > 1) == is_noisy


def test_relax_goes_back_where_the_loss_was_finite():
    def cliff(x, y):
        return jnp.mean((x - y) ** 2) + jnp.where(x > 0.5, jnp.nan, 0.0)

    problem = rr.Problem(cliff, jnp.zeros(()), jnp.ones(8))
    end = rr.Relax(min_steps=2000)(problem, problem.x0, KEY)
    assert jnp.isfinite(end.loss) and jnp.all(end.x <= 0.5)
