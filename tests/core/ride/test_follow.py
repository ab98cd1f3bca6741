"""Updates from Hessian-vector products, against dense `eigh`, autodiff and closed forms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider.problems import factorization
from tests.cases import make_matrix, quadratic_loss

KEY = jax.random.key(0)


def ridge_along(direction, eigenvalue=-1.0, memory=None):
    direction = jnp.asarray(direction)
    eigenvalue = jnp.asarray(eigenvalue, direction.dtype)
    return rr.Ridge(direction, eigenvalue, jnp.array(0), jnp.array(1), memory=memory)


@eqx.filter_jit
def follow(update, problem, x, ridge):
    return update(problem, x, ridge, KEY)


@eqx.filter_jit
def look(problem, spectrum=rr.DenseSpectrum()):
    return spectrum(problem, problem.x0, KEY)


def perturbed(seed, n=400, size=0.05):
    """Eight ridges above a bulk, an interior one of them, and the Hessian one step further."""
    random = np.random.default_rng(seed)
    eigenvalues = np.r_[np.linspace(-2, -0.6, 8), random.uniform(-0.3, 1, n - 8)]
    matrix, columns = make_matrix(eigenvalues, seed)
    noise = random.normal(size=(n, n))
    matrix = matrix + size * (noise + noise.T) / np.sqrt(8 * n)
    return rr.Problem(quadratic_loss, jnp.zeros(n), jnp.asarray(matrix)), columns


@pytest.mark.parametrize("num_neighbours", [0, 7])
def test_davidson_follows_an_interior_ridge_cheaply(num_neighbours):
    update = rr.Davidson(tolerance=1e-3, num_neighbours=num_neighbours)
    others = [0, 1, 2, 4, 5, 6, 7]
    for seed in range(3):
        problem, columns = perturbed(seed)
        memory = jnp.asarray(columns[:, others].T) if num_neighbours else None
        ridge = ridge_along(columns[:, 3], memory=memory)
        tracked = follow(update, problem, problem.x0, ridge)
        _, exact = np.linalg.eigh(problem.args[0])
        assert abs(exact[:, 3] @ tracked.ridge.direction) > 0.9999
        assert tracked.residual <= 1e-3 * 2.1 and int(tracked.cost.hvps) <= 30
        if num_neighbours:  # these were refreshed along the way
            kept = np.abs(exact[:, others].T @ tracked.ridge.memory.T).max(axis=1)
            assert kept.min() > 0.99


def test_davidson_finds_its_neighbours_as_the_ride_begins():
    problem, columns = perturbed(0, n=100, size=0.0)
    tracked = follow(rr.Davidson(num_neighbours=4), problem, problem.x0, ridge_along(columns[:, 5]))
    kept = np.abs(columns[:, :4].T @ tracked.ridge.memory.T).max(axis=1)
    assert tracked.ridge.memory.shape == (4, 100) and kept.min() > 0.9


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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_audited_rides_stay_on_their_ridge(dtype):
    problem = factorization((3.0, 2.0, 1.0, 0.5), rank=1)
    target = problem.args[0].astype(dtype)
    start = jax.tree.map(lambda leaf: leaf.astype(dtype), problem.start)
    problem = rr.Problem(problem.loss, start, target)
    ridge = look(problem).ridge(1)
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


def eigen_loss(e, eigenvalue, matrix):
    u = e / jnp.linalg.norm(e)
    return jnp.sum((matrix @ u / eigenvalue - u) ** 2)


def test_residual_is_the_papers_update_to_the_letter():
    matrix, columns = make_matrix([-2.0, -1.0, 0.5, 1.5])
    problem = rr.Problem(_curved, jnp.zeros(4), jnp.asarray(matrix))
    old, e, eigenvalue = jnp.zeros(4), jnp.asarray(columns[:, 1]), jnp.array(-1.0)
    x, rates = old + 0.1 * e, (0.03, 0.02)
    hessian, hessian_old = map(eqx.filter_jit(problem.hessian), (x, old))
    update = rr.Residual(3, *rates)
    tracked = follow(update, problem, x, ridge_along(e, eigenvalue, memory=old))
    eigenvalue = eigenvalue + e @ (hessian - hessian_old) @ e
    slopes = jax.jit(jax.grad(eigen_loss, (0, 1)))
    for _ in range(3):
        eigenvalue = eigenvalue - rates[1] * slopes(e, eigenvalue, hessian)[1]
        e = e - rates[0] * slopes(e, eigenvalue, hessian)[0]
    np.testing.assert_allclose(tracked.ridge.direction, e / jnp.linalg.norm(e), atol=1e-12)
    assert float(tracked.ridge.eigenvalue) == pytest.approx(float(eigenvalue))
    assert int(tracked.cost.hvps) == 2 + 2 * 3 + 1


def _curved(x, matrix):
    return quadratic_loss(x, matrix) + jnp.sum(x**3)


def test_the_automatic_rate_is_stable_and_converges():
    problem, columns = perturbed(1, n=60, size=0.1)
    ridge = ridge_along(columns[:, 3], -1.4, memory=problem.x0)
    auto = follow(rr.Residual(400), problem, problem.x0, ridge)
    exact = np.linalg.eigh(problem.args[0])[1][:, 3]
    assert abs(exact @ auto.ridge.direction) > 0.999 and auto.residual < 0.05
    # The bound of the module's docstring: 1 / (lambda_max / lambda - 1)^2, about 0.34 here.
    before, tame, wild = (
        follow(rr.Residual(num_steps, rate), problem, problem.x0, ridge).residual
        for num_steps, rate in ((0, 0.0), (4, 0.3), (4, 1.0))
    )
    assert tame < before < wild


def test_a_ride_with_the_papers_update():
    problem = factorization((3.0, 2.0, 1.0), rank=1)
    ridge = look(problem).ridge(1)
    rider = rr.Rider(update=rr.Residual(200), step=rr.FixedStep(0.02), max_steps=20)
    exact = rr.Rider(step=rr.FixedStep(0.02), max_steps=20)
    one, two = (
        eqx.filter_jit(rider.ride)(problem, problem.x0, ridge, KEY) for rider in (rider, exact)
    )
    np.testing.assert_allclose(one.x, two.x, atol=1e-3)
    assert int(one.cost.hvps) > 20 * 400


def test_valley_is_newton_where_curvature_is_positive_and_rests_elsewhere():
    eigenvalues = np.array([-2.0, -0.5, 1.0, 3.0, 10.0])
    matrix, columns = make_matrix(eigenvalues)
    problem = rr.Problem(quadratic_loss, jnp.zeros(5), jnp.asarray(matrix))
    x = jnp.arange(1.0, 6.0)
    valley = eqx.filter_jit(rr.Valley(num_hvps=5, damping=0.1, size=0.8))
    moved, cost = valley(problem, x, ridge_along(columns[:, 0]))
    # damping is relative to the largest Ritz value, here the largest eigenvalue
    factors = np.where(eigenvalues > 0, 1 - 0.8 * eigenvalues / (eigenvalues + 0.1 * 10), 1)
    np.testing.assert_allclose(moved, columns @ (factors * (columns.T @ x)), atol=1e-9)
    assert cost.hvps == 5 and cost.gradients == 1


def test_valley_rests_at_a_stationary_point():
    problem, _ = perturbed(0, n=20)
    valley = eqx.filter_jit(rr.Valley())
    moved, _ = valley(problem, problem.x0, ridge_along(jnp.ones(20)))
    np.testing.assert_array_equal(moved, problem.x0)


def test_random_ridges_lead_downhill_and_differ():
    problem, _ = perturbed(0, n=50)
    x = jnp.ones(50)
    draw = eqx.filter_jit(rr.RandomRidge())
    ridges = [draw(problem, x, ridge_along(jnp.ones(50)), jax.random.key(s)) for s in (0, 1)]
    for tracked in ridges:
        assert tracked.ridge.direction @ problem.grad(x) < 0
        assert float(jnp.linalg.norm(tracked.ridge.direction)) == pytest.approx(1)
    assert abs(ridges[0].ridge.direction @ ridges[1].ridge.direction) < 0.6


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: rr.Davidson(max_hvps=1), "`max_hvps` must be .* at least 2, not 1"),
        (lambda: rr.Davidson(num_neighbours=-1), "`num_neighbours` must be .* at least 0, not -1"),
        (lambda: rr.Davidson(tolerance=2.0), "`tolerance` must be at least 0 and below 1, not 2.0"),
        (lambda: rr.Residual(-1), "`num_steps` must be a whole number of at least 0, not -1"),
        (lambda: rr.Residual(1, -0.1), "`direction_rate` must be at least 0, not -0.1"),
        (lambda: rr.Valley(num_hvps=0), "`num_hvps` must be a whole number of at least 1, not 0"),
        (lambda: rr.Valley(damping=-1.0), "`damping` must be at least 0, not -1.0"),
        (lambda: rr.Rider(audit_every=-1), "`audit_every` must be .* at least 0, not -1"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def two_loss(x):
    return x[0] ** 4 - x[0] ** 2 - 2 * x[1] ** 2


def test_neighbours_where_there_are_none():
    problem = rr.Problem(two_loss, jnp.zeros(2))
    ridge = look(problem).ridge(1)
    tracked = follow(rr.Davidson(num_neighbours=1), problem, problem.x0, ridge)
    assert float(tracked.overlap) == pytest.approx(1)


def nearly_round_loss(x):
    return -(x[0] ** 2 + 1.001 * x[1] ** 2) / 2 + x[2] ** 2 + (x[0] ** 4 + x[1] ** 4) / 40


def test_an_audit_has_the_riders_idea_of_an_eigenspace():
    problem = rr.Problem(nearly_round_loss, jnp.zeros(3))
    spectrum = rr.DenseSpectrum(gauge="random", cluster_tolerance=0.05)
    rider = rr.Rider(
        spectrum=spectrum, update=rr.Project(0.05), finish=None, max_steps=4, audit_every=1
    )
    ridge = look(problem, spectrum).ridge(0)
    ride = eqx.filter_jit(rider.ride)(problem, problem.x0, ridge, KEY)
    assert float(jnp.nanmax(ride.trace.audit.drift)) < 1e-6
