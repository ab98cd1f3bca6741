import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._core.spectra.spectrum import (
    canonical_rows,
    cluster_labels,
    fix_signs,
    fixed_vectors,
)
from tests.cases import make_quadratic

KEYS = [jax.random.key(seed) for seed in range(3)]
REPEATED = [-5.0] + [-3.0] * 6 + [-2.0] * 2 + [-1.5, 0.0, 1.0, 2.0, 4.0]
FIXED = [
    [-0.6349449157714844, 0.32549071311950684, -0.07307195663452148],
    [0.06054806709289551, 0.6330094337463379, -0.7283577919006348],
]


def spectrum_of(problem, key=KEYS[0], x=None, **settings):
    look = eqx.filter_jit(lambda spectrum, *at: spectrum(*at))
    return look(rr.DenseSpectrum(**settings), problem, problem.x0 if x is None else x, key)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("gauge", ["gradient", "random"])
def test_eigenpairs(dtype, gauge):
    problem, _ = make_quadratic(REPEATED, dtype=dtype)
    x = jax.random.normal(KEYS[1], (problem.size,), dtype)
    spectrum = spectrum_of(problem, x=x, gauge=gauge)
    rows, eigenvalues = spectrum.eigenvectors, spectrum.eigenvalues
    tolerance = 100 * jnp.finfo(dtype).eps
    hessian = problem.hessian(x)
    np.testing.assert_allclose(rows @ rows.T, np.eye(problem.size), atol=tolerance)
    np.testing.assert_allclose(rows @ hessian, eigenvalues[:, None] * rows, atol=5 * tolerance)
    assert rows.dtype == eigenvalues.dtype == dtype


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", range(3))
def test_clusters_have_the_right_multiplicity(dtype, seed):
    problem, _ = make_quadratic(REPEATED, seed, dtype)
    clusters = spectrum_of(problem).clusters()
    assert [cluster.multiplicity for cluster in clusters] == [1, 6, 2, 1, 1, 1, 1, 1]
    found = [cluster.eigenvalue for cluster in clusters]
    np.testing.assert_allclose(found, [-5, -3, -2, -1.5, 0, 1, 2, 4], atol=1e-5)
    np.testing.assert_allclose(
        [cluster.gap for cluster in clusters], [2, 1, 0.5, 0.5, 1, 1, 1, 2], atol=1e-5
    )
    assert spectrum_of(problem).num_downhill() == 4


def test_cluster_tolerance_joins_what_a_nearly_symmetric_loss_splits():
    problem, _ = make_quadratic([-1.0, -0.999, -0.5, 1.0])
    assert [c.multiplicity for c in spectrum_of(problem).clusters()] == [1, 1, 1, 1]
    wide = spectrum_of(problem, cluster_tolerance=0.01).clusters()
    assert [c.multiplicity for c in wide] == [2, 1, 1]
    assert wide[0].spread == pytest.approx(1e-3)


def test_rounding_noise_is_not_a_ridge():
    # Rank one: one negative eigenvalue and 63 exact zeros, half of which `eigh` returns negative.
    a = jax.random.normal(KEYS[0], (64,))
    problem = rr.Problem(lambda x, a: -((a @ x) ** 2) / 2, jnp.zeros(64), a)
    spectrum = spectrum_of(problem)
    assert (spectrum.eigenvalues < 0).sum() > 1
    assert spectrum.num_downhill() == 1
    assert spectrum.clusters()[1].multiplicity == 63


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_dense_bulk_does_not_chain_into_one_cluster(dtype):
    bulk = np.random.default_rng(0).normal(size=300) / 100
    problem, _ = make_quadratic([*bulk, 1.0, 3.0, 5.0], dtype=dtype)
    spectrum = spectrum_of(problem)
    threshold = 5 * float(jnp.finfo(dtype).eps) ** 0.5
    assert abs(int(spectrum.is_downhill.sum()) - np.sum(bulk < -threshold)) <= 1
    assert max(cluster.spread for cluster in spectrum.clusters()) <= 5e-4
    # Whatever the tolerance, no cluster is downhill in part.
    for tolerance in (0.01, 0.2, 0.9):
        wide = spectrum_of(problem, cluster_tolerance=tolerance)
        kinds = [
            set(np.asarray(wide.is_downhill)[wide.labels == k].tolist())
            for k in range(wide.labels[-1] + 1)
        ]
        assert all(len(kind) == 1 for kind in kinds) and wide.num_downhill() >= 1


@pytest.mark.parametrize("seed", range(3))
def test_gradient_gauge_is_the_projection_of_the_gradient(seed):
    problem, columns = make_quadratic(REPEATED, seed)
    x = jax.random.normal(KEYS[seed], (problem.size,))
    spectrum = spectrum_of(problem, x=x)
    eigenspace = columns[:, 1:7]
    projection = eigenspace @ (eigenspace.T @ problem.grad(x))
    cosine = spectrum.ridge(1).direction @ projection / np.linalg.norm(projection)
    assert abs(cosine) == pytest.approx(1, abs=1e-10)


def test_probe_gauge_is_the_projection_of_the_users_vector():
    problem, columns = make_quadratic(REPEATED)
    probe = columns[:, 1] + columns[:, 3] + columns[:, 9]
    direction = spectrum_of(problem, gauge=lambda problem, x: jnp.asarray(probe)).ridge(1).direction
    assert abs(direction @ (columns[:, 1] + columns[:, 3])) == pytest.approx(np.sqrt(2), abs=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_members_of_a_cluster_depend_on_the_eigenspace_alone(dtype):
    problem, columns = make_quadratic(REPEATED, dtype=dtype)
    labels = cluster_labels(jnp.asarray(REPEATED, dtype))
    turn, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(6, 6)))
    turned = columns.T.copy()
    turned[1:7] = turn @ turned[1:7]

    def members(rows, x):
        rows, eigenvalues = jnp.asarray(rows, dtype), jnp.asarray(REPEATED, dtype)
        return canonical_rows(rows, eigenvalues, labels, problem.grad(x))[1:7]

    for x in (problem.x0, jax.random.normal(KEYS[1], (problem.size,), dtype)):
        one, two = members(columns.T, x), members(turned, x)
        tolerance = 200 * np.finfo(dtype).eps
        np.testing.assert_allclose(one, two, atol=tolerance)
        np.testing.assert_allclose(one @ one.T, np.eye(6), atol=tolerance)
        np.testing.assert_allclose(one @ columns[:, 1:7] @ columns[:, 1:7].T, one, atol=tolerance)


def test_fixed_vectors_are_what_they_always_were():
    """They decide addresses: other entries would make other trees of old ones."""
    for dtype in (np.float32, np.float64):
        np.testing.assert_array_equal(fixed_vectors(2, 5, dtype)[:, :3], FIXED)
    many = np.asarray(fixed_vectors(3, 30_000, np.float64))
    # Uniform in [-1, 1): variance 1/3, and rows that are nearly orthogonal (five sigma).
    np.testing.assert_allclose(many @ many.T / 30_000, np.eye(3) / 3, atol=5 / 3 / 30_000**0.5)


def test_random_gauge_is_uniform_inside_the_eigenspace_and_fixed_outside():
    problem, columns = make_quadratic(REPEATED)
    keys = jax.random.split(KEYS[0], 2000)
    rows = jax.vmap(lambda key: spectrum_of(problem, key, gauge="random").eigenvectors)(keys)
    inside = rows[:, 1] @ columns[:, 1:7]
    # Uniform on the sphere in six dimensions: second moment 1/6, standard error about 0.005 here.
    np.testing.assert_allclose(inside.T @ inside / len(keys), np.eye(6) / 6, atol=0.02)
    assert np.ptp(np.asarray(rows[:, 0]), axis=0).max() < 1e-12
    again = spectrum_of(problem, keys[5], gauge="random").eigenvectors
    np.testing.assert_allclose(again, rows[5], atol=1e-12)


def test_signs_of_exact_ties_do_not_hang_on_rounding():
    tie = np.array([1.0, -1.0, 0.3]) / np.sqrt(2.09)
    wobbled = np.stack([tie * [1, 1 + 1e-15, 1], -tie * [1 + 1e-15, 1, 1]])
    np.testing.assert_allclose(fix_signs(jnp.asarray(wobbled)), np.stack([tie, tie]), atol=1e-12)


def test_a_member_beyond_the_cluster_is_refused():
    problem, _ = make_quadratic(REPEATED)
    with pytest.raises(ValueError, match=r"`member` must be below the cluster's multiplicity 2"):
        spectrum_of(problem).ridge(2, member=2)
    with pytest.raises(ValueError, match=r"`index` must be that of a cluster, 0 to 7, not 9"):
        spectrum_of(problem).ridge(9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"gauge": "sideways"},
            r"`gauge` must be 'gradient', 'random' or callable as .*'sideways'",
        ),
        ({"gauge": "basis"}, r"`gauge` must be 'gradient', 'random' or callable as .*'basis'"),
        ({"cluster_tolerance": -1.0}, r"`cluster_tolerance` must be at least 0 and below 1"),
        ({"downhill_tolerance": 1.5}, r"`downhill_tolerance` must be at least 0 and below 1"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        rr.DenseSpectrum(**settings)
