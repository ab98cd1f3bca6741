"""Spectra from Hessian-vector products, against closed forms and dense `eigh`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider.problems import wells
from tests.cases import factorization, make_blocks, make_quadratic
from tests.core.ride.test_trust_region import with_spectrum

KEY = jax.random.key(0)
REPEATED = [-5.0, *[-3.0] * 6, *[-2.0] * 2, -1.5]


@eqx.filter_jit
def look(spectrum, problem, x, key=KEY):
    return spectrum(problem, x, key)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_block_spectrum_sees_every_copy(dtype):
    for seed in range(3):
        bulk = np.random.default_rng(seed).uniform(-1, 10, 290)
        problem, _ = make_quadratic([*REPEATED, *bulk], seed, dtype)
        spectrum = look(
            rr.BlockSpectrum(k=11, dense_below=0), problem, problem.x0, jax.random.key(seed)
        )
        found = spectrum.clusters()[:4]
        assert [cluster.multiplicity for cluster in found] == [1, 6, 2, 1]
        # The error of an eigenvalue is residual^2 / gap, here rounding, and the test matrix's own.
        tolerance = 200 * jnp.finfo(dtype).eps
        np.testing.assert_allclose(
            [cluster.eigenvalue for cluster in found], [-5, -3, -2, -1.5], rtol=tolerance
        )
        # In single precision the clusters next to the bulk are too close to it to be sure.
        assert all(cluster.is_complete for cluster in found[: 4 if dtype == "float64" else 2])
        assert spectrum.is_converged.all() and 9 < spectrum.scale <= 10 * (1 + tolerance)
        rows, matrix = spectrum.eigenvectors, problem.args[0]
        residuals = jnp.linalg.norm(rows @ matrix - spectrum.eigenvalues[:, None] * rows, axis=1)
        assert (residuals <= 2 * jnp.finfo(dtype).eps ** 0.5 * spectrum.scale).all()
        np.testing.assert_allclose(rows @ rows.T, np.eye(11), atol=tolerance)


def test_block_spectrum_says_what_has_not_converged():
    problem, _ = make_quadratic(np.linspace(-1, 1, 200))
    spectrum = look(rr.BlockSpectrum(k=4, max_hvps=12, dense_below=0), problem, problem.x0)
    assert not spectrum.is_converged.any() and int(spectrum.cost.hvps) == 12
    rows = spectrum.eigenvectors
    images = rows @ problem.args[0]
    residuals = jnp.linalg.norm(images - spectrum.eigenvalues[:, None] * rows, axis=1)
    np.testing.assert_allclose(spectrum.residuals, residuals, rtol=1e-9)


def test_block_spectrum_is_dense_for_small_problems():
    dense = look(rr.DenseSpectrum(), wells(5), wells(5).x0)
    block = look(rr.BlockSpectrum(k=3), wells(5), wells(5).x0)
    np.testing.assert_array_equal(block.eigenvalues, dense.eigenvalues[:3])
    assert [cluster.is_complete for cluster in block.clusters()] == [True] * 3
    cut = look(rr.BlockSpectrum(k=2), make_blocks(), jnp.zeros(10))
    assert [(c.multiplicity, c.is_complete) for c in cut.clusters()] == [(2, False)]


def test_gradient_krylov_finds_the_projection_onto_each_eigenspace():
    problem, columns = make_quadratic([-5.0, *[-3.0] * 3, *[1.0] * 30, *[4.0] * 26])
    x = jax.random.normal(KEY, (60,))
    spectrum = look(rr.BlockSpectrum(k=3, max_hvps=6, method="gradient"), problem, x)
    np.testing.assert_allclose(spectrum.eigenvalues, [-5, -3, 1], atol=1e-10)
    assert [cluster.is_complete for cluster in spectrum.clusters()] == [False] * 3
    grad = problem.args[0] @ x
    for row, space in zip(
        spectrum.eigenvectors, (columns[:, :1], columns[:, 1:4], columns[:, 4:34]), strict=True
    ):
        projection = space @ (space.T @ grad)
        assert abs(row @ projection) == pytest.approx(np.linalg.norm(projection))
    assert spectrum.num_downhill() == 2 and spectrum.is_converged.all()


@pytest.mark.parametrize(
    "distinct",
    [[-1e-2, -1e-3, 100.0], [-1, -0.9, 1e4], [*np.linspace(-2, -1, 5), *range(1, 1000, 150)]],
)
@pytest.mark.parametrize("seed", range(3))
def test_gradient_krylov_merges_the_copies_that_rounding_makes(distinct, seed):
    copies = 60 // len(distinct)
    problem, columns = make_quadratic(np.repeat(distinct, copies), seed)
    x = jax.random.normal(jax.random.key(seed), (60,))
    spectrum = look(rr.BlockSpectrum(method="gradient"), problem, x)
    expected = np.asarray(distinct[:8])
    found = [cluster.eigenvalue for cluster in spectrum.clusters()]
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert spectrum.num_downhill() == (expected < 0).sum()
    assert spectrum.is_converged[: len(expected)].all()
    grad = (columns.T @ (problem.args[0] @ x)).reshape(len(distinct), copies)
    rows = (spectrum.eigenvectors @ columns).reshape(-1, len(distinct), copies)
    for number in range(len(expected)):
        size = np.linalg.norm(grad[number])
        # Of the largest gradient, at most 1e4 times this one, rounding is 1e-13.
        assert abs(rows[number, number] @ grad[number]) == pytest.approx(size, rel=1e-8)


def test_gradient_krylov_at_a_stationary_point_starts_at_random():
    problem, _ = make_quadratic([-5.0, *[-3.0] * 3, *[1.0] * 30])
    spectrum = look(rr.BlockSpectrum(k=2, max_hvps=5, method="gradient"), problem, problem.x0)
    np.testing.assert_allclose(spectrum.eigenvalues, [-5, -3], atol=1e-10)


def test_the_power_method_finds_the_same_with_more_products():
    problem, _ = make_quadratic([-4.0, -3.0, -2.0, *np.linspace(-0.5, 2, 117)])
    power = look(rr.BlockSpectrum(k=3, tolerance=1e-4, method="power"), problem, problem.x0)
    block = look(rr.BlockSpectrum(k=3, tolerance=1e-4, dense_below=0), problem, problem.x0)
    np.testing.assert_allclose(power.eigenvalues, [-4, -3, -2], atol=1e-6)
    assert power.is_converged.all() and power.num_downhill() == 3
    assert int(power.cost.hvps) > 3 * int(block.cost.hvps)


def test_the_same_tree_from_both_engines():
    problem = factorization()
    dense = rr.search(problem, rr.Rider(), max_depth=2)
    rider = rr.Rider(spectrum=rr.BlockSpectrum(k=2, dense_below=0), update=rr.Davidson(1e-8))
    free = rr.search(problem, rider, max_depth=2, max_ridges=2)
    for leg in free:
        other = dense.leg(leg.fingerprint)
        np.testing.assert_allclose(leg.x, other.x, atol=1e-6)
        assert leg.ended_by == other.ended_by
    assert int(free.cost.hvps) > 0


def test_descend_works_on_a_block_spectrum():
    problem = wells(4)
    spectrum = rr.BlockSpectrum(k=1, dense_below=0)
    end = rr.Descend(max_kicks=4)(problem, problem.x0 + 0.01, KEY, spectrum)
    assert bool(end.is_converged) and not bool(end.is_saddle)
    assert end.least_eigenvalue > 0.5


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: rr.BlockSpectrum(k=0), "`k` must be a whole number of at least 1, not 0"),
        (lambda: rr.BlockSpectrum(k=4, max_hvps=3), "`max_hvps` must be .* at least 4, not 3"),
        (lambda: rr.BlockSpectrum(k=4, max_rows=5), "`max_rows` must be .* at least 6, not 5"),
        (lambda: rr.BlockSpectrum(tolerance=-1.0), "`tolerance` must be at least 0 and below 1"),
        (
            lambda: rr.BlockSpectrum(k=4, max_hvps=4, method="power"),
            "`max_hvps` must be .* at least 5, not 4",
        ),
        (lambda: rr.BlockSpectrum(k=True), "`k` must be a whole number of at least 1, not True"),
        (
            lambda: rr.search(wells(3), rr.Rider(spectrum=rr.BlockSpectrum(k=4))),
            "`k` must be at most the number of parameters, 3, not 4",
        ),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_an_unknown_method_is_refused():
    with pytest.raises(ValueError, match=r"`method` must be .*'qr'"):
        rr.BlockSpectrum(method="qr")


def _kinked(x):
    return jnp.sum(jnp.abs(x + 1))


def test_a_loss_without_curvature_is_named():
    with pytest.raises(ValueError, match="the Hessian there is zero"):
        rr.search(rr.Problem(_kinked, jnp.zeros(2)))


@pytest.mark.parametrize("seed", range(4))
def test_the_power_method_where_the_largest_eigenvalue_has_both_signs(seed):
    problem, _ = make_quadratic([1.0, -1.0, -0.5, 0.5])
    power = rr.BlockSpectrum(k=2, tolerance=1e-4, method="power")
    found = power(problem, problem.x0, jax.random.key(seed))
    np.testing.assert_allclose(found.eigenvalues, [-1, -0.5], atol=1e-3)


def repeated_loss(x):
    return -jnp.sum(x**2) / 2 - x[0] ** 2


def test_a_krylov_space_with_fewer_eigenvalues_than_asked_for():
    problem = rr.Problem(repeated_loss, jnp.array([0.1, 0.3, 0.4]))
    found = rr.BlockSpectrum(k=3, method="gradient")(problem, problem.x0, KEY)
    clusters = found.clusters()
    assert [round(c.eigenvalue, 9) for c in clusters] == [-3, -1]
    assert clusters[1].gap == pytest.approx(2)
    assert [c.multiplicity for c in clusters] == [1, 1] and found.num_downhill() == 2


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("seed", range(3))
def test_each_eigenvalue_is_found_once(dtype, seed):
    noise = 1e-4 * np.random.default_rng(seed).standard_normal(60)
    eigenvalues = np.concatenate([[-1.0] * 20, [-0.6] * 30, [-0.3] * 10]) + noise
    problem, _ = with_spectrum(np.append(eigenvalues, np.linspace(0.1, 2, 40)), dtype, seed)
    look = rr.BlockSpectrum.for_networks(k=6, max_hvps=40)
    spectrum = look(problem, problem.x0, jax.random.key(seed))
    clusters = spectrum.clusters()[: spectrum.num_downhill()]
    np.testing.assert_allclose([one.eigenvalue for one in clusters], [-1, -0.6, -0.3], atol=2e-3)
    slopes = spectrum.eigenvectors[: len(clusters)] @ problem.grad(problem.x0)
    assert (np.asarray(slopes) < 0).all() and spectrum.eigenvectors.dtype == dtype


def test_what_has_not_converged_is_left_out():
    problem, _ = with_spectrum(np.linspace(-1, 1, 300))
    matrix = np.asarray(problem.args[0])
    rule = rr.BlockSpectrum.for_networks(k=8, max_hvps=80, tolerance=0.01)
    spectrum = rule(problem, problem.x0, KEY)
    there = np.asarray(spectrum.is_converged)
    rows = np.asarray(spectrum.eigenvectors)[there]
    residuals = rows @ matrix - np.asarray(spectrum.eigenvalues)[there, None] * rows
    assert (np.linalg.norm(residuals, axis=1) <= 0.0101).all()
    assert 1 <= spectrum.num_downhill() <= there.sum() < 8


def test_a_way_down_is_kept_although_it_has_not_converged():
    curvatures = jnp.linspace(-1.0, 9.0, 400)
    problem = rr.Problem(lambda x, c: c @ x**2 / 2, jnp.full(400, 0.1), curvatures)
    spectrum = rr.BlockSpectrum.for_networks(k=2, max_hvps=6)(problem, problem.x0, KEY)
    assert spectrum.num_downhill() == 1 and not spectrum.is_converged[0]
    lowest = spectrum.eigenvectors[0]
    curvature = lowest @ (curvatures * lowest)
    np.testing.assert_allclose(curvature, spectrum.eigenvalues[0], rtol=1e-9)
    assert curvature < 0 and lowest @ problem.grad(problem.x0) < 0
