"""Davidson's update against dense `eigh`; what its certificates claim is in `test_certificate`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from tests.cases import follow, make_matrix, perturbed, quadratic_loss, ridge_along

KEY = jax.random.key(0)


def test_davidson_follows_an_interior_ridge_cheaply():
    update = rr.Davidson(tolerance=1e-3)
    for seed in range(3):
        problem, columns = perturbed(seed)
        tracked = follow(update, problem, problem.x0, ridge_along(columns[:, 3]))
        _, exact = np.linalg.eigh(problem.args[0])
        assert abs(exact[:, 3] @ tracked.ridge.direction) > 0.9999
        assert tracked.residual <= 1e-3 * 2.1 and int(tracked.cost.hvps) <= 30


def test_no_silent_jump_in_a_thousand_random_steps():
    """A certified step is on the eigenvector that dense `eigh` says overlaps most."""
    num, n = 1000, 40
    sizes = jnp.logspace(-2, 1, num)  # from hardly a change to another matrix
    keys = jax.random.split(jax.random.key(7), (num, 4))

    def step(key, size):
        bulk = jax.random.uniform(key[0], (n - 8,), minval=-0.3, maxval=1)
        eigenvalues = jnp.concatenate([jnp.linspace(-2, -0.6, 8), bulk])
        columns = jnp.linalg.qr(jax.random.normal(key[1], (n, n)))[0]
        noise = jax.random.normal(key[2], (n, n))
        new = columns @ jnp.diag(eigenvalues) @ columns.T + size * (noise + noise.T) / np.sqrt(
            8 * n
        )
        old = columns[:, jax.random.randint(key[3], (), 0, 8)]
        problem = rr.Problem(quadratic_loss, jnp.zeros(n), new)
        update = rr.Davidson(tolerance=1e-3, max_hvps=20)
        tracked = update(problem, problem.x0, ridge_along(old), KEY)
        columns = jnp.linalg.eigh(new)[1]
        right = columns[:, jnp.argmax(jnp.abs(old @ columns))]
        return tracked.overlap, jnp.abs(tracked.ridge.direction @ right)

    overlap, match = jax.jit(jax.vmap(step))(keys, sizes)
    is_certified = overlap >= 0.7072
    assert 300 < is_certified.sum() < 900  # the steps are neither all easy nor all hopeless
    assert match[is_certified].min() > 0.99


def test_davidson_projects_onto_a_repeated_eigenvalue_as_project_does():
    matrix, columns = make_matrix([-3.0, -3.0, -3.0, -1.0, *np.linspace(0, 2, 20)])
    problem = rr.Problem(quadratic_loss, jnp.zeros(24), jnp.asarray(matrix))
    mixed = columns[:, :3] @ np.array([0.6, 0.0, 0.8]) + 0.3 * columns[:, 10]
    ridge = ridge_along(mixed / np.linalg.norm(mixed))
    one = follow(rr.Davidson(tolerance=1e-10), problem, problem.x0, ridge)
    two = follow(rr.Project(), problem, problem.x0, ridge)
    np.testing.assert_allclose(one.ridge.direction, two.ridge.direction, atol=1e-8)
    assert float(one.overlap) == pytest.approx(float(two.overlap))


def test_a_wide_cluster_is_followed_as_one():
    matrix, columns = make_matrix([-1.0, -0.999, 0.5, 1.0])
    problem = rr.Problem(quadratic_loss, jnp.zeros(4), jnp.asarray(matrix))
    ridge = ridge_along((columns[:, 0] + columns[:, 1]) / np.sqrt(2))
    lost = follow(rr.Davidson(tolerance=1e-8), problem, problem.x0, ridge)
    assert 0.6 < lost.overlap < 0.7072  # half and half, less what the residual leaves open
    update = rr.Davidson(tolerance=1e-3, cluster_tolerance=0.01)
    kept = follow(update, problem, problem.x0, ridge)
    assert float(kept.overlap) == pytest.approx(1)


def test_what_does_not_converge_has_no_certificate():
    problem, columns = perturbed(0, n=100, size=0.5)
    ridge = ridge_along(columns[:, 3])
    tracked = follow(rr.Davidson(tolerance=1e-12, max_hvps=5), problem, problem.x0, ridge)
    assert tracked.overlap == 0 and tracked.residual > 1e-6 and int(tracked.cost.hvps) == 5
    free = follow(rr.Davidson(tolerance=None, max_hvps=5), problem, problem.x0, ridge)
    assert free.overlap > 0.5 and int(free.cost.hvps) == 5
