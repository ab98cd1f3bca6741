"""Audits of followed ridges."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider.problems import factorization
from tests.cases import spectrum_of

KEY = jax.random.key(0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_audited_rides_stay_on_their_ridge(dtype):
    problem = factorization((3.0, 2.0, 1.0, 0.5), rank=1)
    target = problem.args[0].astype(dtype)
    start = jax.tree.map(lambda leaf: leaf.astype(dtype), problem.start)
    problem = rr.Problem(problem.loss, start, target)
    ridge = spectrum_of(problem).ridge(1)
    free = rr.Rider(update=rr.Davidson(), max_steps=40, audit_every=5)
    audited, plain = (
        eqx.filter_jit(rider.ride)(problem, problem.x0, ridge, KEY)
        for rider in (free, rr.Rider(max_steps=40))
    )
    drift = audited.trace.audit.drift[: int(audited.num_steps) + 1]
    is_audited = np.arange(len(drift)) % 5 == 0
    is_audited[0] = False
    assert is_audited.any() and np.isnan(drift[~is_audited]).all()
    assert np.max(drift[is_audited]) < 1e-3
    assert audited.num_steps == plain.num_steps
    np.testing.assert_allclose(audited.x, plain.x, atol=2e-3)
    assert int(audited.cost.hessians) == is_audited.sum()


def nearly_round_loss(x):
    return -(x[0] ** 2 + 1.001 * x[1] ** 2) / 2 + x[2] ** 2 + (x[0] ** 4 + x[1] ** 4) / 40


def test_an_audit_has_the_riders_idea_of_an_eigenspace():
    problem = rr.Problem(nearly_round_loss, jnp.zeros(3))
    spectrum = rr.DenseSpectrum(gauge="random", cluster_tolerance=0.05)
    rider = rr.Rider(
        spectrum=spectrum, update=rr.Project(0.05), finish=None, max_steps=4, audit_every=1
    )
    ridge = spectrum_of(problem, spectrum).ridge(0)
    ride = eqx.filter_jit(rider.ride)(problem, problem.x0, ridge, KEY)
    assert float(jnp.nanmax(ride.trace.audit.drift)) < 1e-6
