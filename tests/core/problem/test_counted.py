"""Costs against a counter inside the functions themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._core.problem.problem import Counted
from ridgerider.problems import wells

KEY = jax.random.key(0)


class Calls:
    """NumPy functions of a loss with two wells along each axis, which count their calls."""

    def __init__(self, size):
        self.gradients = self.hvps = self.hessians = 0
        self.depths = np.linspace(0.5, 1.5, size)

    def value_and_grad(self, x):
        self.gradients += 1
        return np.sum(x**4 / 4 - self.depths * x**2 / 2), x**3 - self.depths * x

    def hvp(self, x, v):
        self.hvps += 1
        return (3 * x**2 - self.depths) * v

    def hessian(self, x):
        self.hessians += 1
        return np.diag(3 * x**2 - self.depths)


def test_each_call_is_counted():
    problem = wells(3)
    counted, x = Counted(problem), problem.x0 + 0.1
    np.testing.assert_array_equal(counted.grad(x), problem.grad(x))
    np.testing.assert_array_equal(counted.hvp(x, x), problem.hvp(x, x))
    hessian, eigenvalues, columns = counted.eigh(x)
    np.testing.assert_allclose(hessian @ columns, columns * eigenvalues[None, :], atol=1e-14)
    cost = counted.cost
    assert (cost.values, cost.gradients, cost.hvps, cost.hessians) == (0, 1, 4, 1)
    assert cost.eigendecompositions == 1


SPECTRA = [
    rr.BlockSpectrum(k=2, dense_below=0),
    rr.BlockSpectrum(k=2, max_hvps=5, method="gradient"),
    rr.BlockSpectrum.for_networks(k=2, max_hvps=5),
    rr.BlockSpectrum(k=2, tolerance=1e-2, method="power"),
]


@pytest.mark.parametrize("spectrum", SPECTRA, ids=lambda rule: rule.method)
def test_a_spectrum_costs_the_hvps_that_it_makes(spectrum):
    calls = Calls(8)
    problem = rr.Problem.from_functions(
        calls.value_and_grad, np.full(8, 0.1), hvp=calls.hvp, check=False
    )
    calls.hvps = 0
    cost = jax.block_until_ready(spectrum(problem, problem.x0, KEY)).cost
    assert int(cost.hvps) == calls.hvps > 0


UPDATES = [rr.Keep(), rr.Davidson(), rr.Residual(3), rr.Follow(), rr.Project()]
UPDATES.append(rr.QuasiNewton(exact_below=0))


@pytest.mark.parametrize("update", UPDATES, ids=lambda rule: type(rule).__name__)
def test_an_update_costs_the_hvps_that_it_makes(update):
    calls = Calls(8)
    problem = rr.Problem.from_functions(
        calls.value_and_grad, np.full(8, 0.1), hvp=calls.hvp, hessian=calls.hessian, check=False
    )
    ridge = rr.types.Ridge(jnp.eye(8)[7], jnp.array(-1.5), jnp.array(0), jnp.array(1))
    for _ in range(2):  # as a ride begins, and on its way
        calls.hvps = calls.hessians = 0
        tracked = jax.block_until_ready(update(problem, problem.x0 + 0.05, ridge, KEY))
        dense = 8 * calls.hessians
        assert int(tracked.cost.hvps) == calls.hvps + dense > 0
        assert int(tracked.cost.hessians) == calls.hessians
        ridge = tracked.ridge
