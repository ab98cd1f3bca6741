"""What `BlockSpectrum` says about eigenvalues it has not found, against dense spectra."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._core.linalg.lowest import PROBABILITY, probe
from ridgerider._core.spectra.spectrum import cluster_labels
from tests.cases import make_matrix, quadratic_loss

TWELVE = np.concatenate([np.full(12, -1.0), np.linspace(-0.5, 100, 188)])


@eqx.filter_jit
def look(spectrum, problem, key):
    return spectrum(problem, problem.x0, key)


def quadratic(matrix):
    return rr.Problem(quadratic_loss, jnp.zeros(len(matrix), matrix.dtype), jnp.asarray(matrix))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", range(3))
def test_no_copy_is_missed(dtype, seed):
    problem = quadratic(np.diag(TWELVE).astype(dtype))
    cut = look(rr.BlockSpectrum(k=8, dense_below=0), problem, jax.random.key(seed))
    assert [(c.multiplicity, c.is_complete) for c in cut.clusters()] == [(8, False)]
    assert cut.is_converged.all() and cut.clusters()[0].eigenvalue == pytest.approx(-1, abs=1e-4)
    whole = look(rr.BlockSpectrum(k=16, dense_below=0), problem, jax.random.key(seed))
    assert whole.clusters()[0].multiplicity == 12
    # In single precision rounding may keep a probe from an answer; then nothing is claimed.
    assert whole.clusters()[0].is_complete or dtype == "float32"


@pytest.mark.parametrize("max_hvps", [8, 60])
def test_nothing_is_complete_before_it_was_probed(max_hvps):
    spectrum = rr.BlockSpectrum(k=8, dense_below=0, max_hvps=max_hvps)
    found = look(spectrum, quadratic(np.diag(TWELVE)), jax.random.key(0))
    assert not found.is_complete.any() and not found.is_converged.all()
    assert int(found.cost.hvps) <= max_hvps


def test_no_probe_no_claim():
    problem = quadratic(np.diag([-3.0, -2.0, -1.0, 1.0]))
    power = rr.BlockSpectrum(k=2, method="power")
    assert not look(power, problem, jax.random.key(0)).is_complete.any()
    assert look(rr.DenseSpectrum(), problem, jax.random.key(0)).is_complete.all()


def test_probes_in_lanes_are_those_one_by_one():
    problem, keys = quadratic(np.diag(TWELVE)), jax.random.split(jax.random.key(0), 3)
    spectrum = rr.BlockSpectrum(k=4, dense_below=0)
    lanes = jax.jit(jax.vmap(lambda key: spectrum(problem, problem.x0, key)))(keys)
    for lane, key in enumerate(keys):
        alone = look(spectrum, problem, key)
        np.testing.assert_array_equal(lanes.is_complete[lane], alone.is_complete)
        np.testing.assert_allclose(lanes.eigenvalues[lane], alone.eigenvalues, atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_only_a_weight_below_the_bound_is_overlooked(seed):
    eigenvalues = jnp.concatenate([jnp.array([-1.0]), jnp.linspace(0.0, 10.0, 99)])

    def probe_from(weight):
        others = np.random.default_rng(seed).normal(size=99)
        others *= math.sqrt(1 - weight) / np.linalg.norm(others)
        start = jnp.asarray([math.sqrt(weight), *others])
        nothing, levels = jnp.zeros((1, 100)), jnp.array([-0.5, -0.9])
        most = jnp.array(100)
        return probe(lambda v: eigenvalues * v, nothing, start, levels, jnp.array(10.0), most)

    least = math.pi * PROBABILITY**2 / (2 * 100)
    assert probe_from(0.0).is_clear.all()  # nothing else to be seen
    for weight in (1.01 * least, 1e-6, 0.01):
        seen = probe_from(weight)
        assert not seen.is_clear.any()
    assert seen.has_some.all()
    quotient = jnp.sum(eigenvalues * seen.direction**2) / jnp.sum(seen.direction**2)
    assert quotient <= -0.9


def random_matrix(seed, size, k, dtype):
    """Up to 3 k copies, gaps down to 1e-6 of the scale, a bulk up to 1e6 times the lowest."""
    random = np.random.default_rng(seed)
    bulk = 10 ** random.uniform(0, random.choice([2, 6]))
    edge, low = -1.0, []
    for _ in range(random.integers(1, 5)):
        low += [edge] * random.integers(1, 3 * k + 1 if random.random() < 0.6 else 2)
        edge += random.choice([10 ** random.uniform(-2, 0), bulk * 10 ** random.uniform(-6, -0.5)])
    places = random.choice(
        [
            np.linspace(0, 1, size),
            random.uniform(0, 1, size) ** random.uniform(0.5, 4),
            10 ** random.uniform(-6, 0, size),
            random.choice([0, 0.5, 1], size),
        ]
    )
    eigenvalues = np.concatenate([low, edge + bulk * places])[:size] * 10 ** random.uniform(-3, 3)
    if random.random() < 0.5:
        return np.diag(eigenvalues).astype(dtype)
    matrix, _ = make_matrix(eigenvalues, seed, dtype)
    return (matrix + matrix.T) / 2


def check_claims(matrix, k, seed):
    """How many clusters are called complete. Fails if one of them is not."""
    spectrum = look(rr.BlockSpectrum(k=k, dense_below=0), quadratic(matrix), jax.random.key(seed))
    eps, scale = float(np.finfo(matrix.dtype).eps), float(spectrum.scale)
    exact = matrix.astype(float)
    eigenvalues = np.linalg.eigvalsh(exact)
    width = eps ** (2 / 3)
    labels = np.asarray(cluster_labels(jnp.asarray(eigenvalues), width, scale=jnp.asarray(scale)))
    clusters = [cluster for cluster in spectrum.clusters() if cluster.is_complete]
    for number, cluster in enumerate(clusters):
        inside = eigenvalues[labels == number]
        assert cluster.multiplicity == len(inside), seed
        assert abs(cluster.eigenvalue - inside.mean()) <= width * scale, seed
    rows = np.asarray(spectrum.eigenvectors, float)
    residuals = np.linalg.norm(
        rows @ exact - np.asarray(spectrum.eigenvalues)[:, None] * rows, axis=1
    )
    # Turned inside a cluster, k remainders of at most the tolerance may add up.
    allowed = math.sqrt(k * eps) * scale
    assert (residuals[np.asarray(spectrum.is_converged)] <= 1.01 * allowed).all(), seed
    np.testing.assert_allclose(spectrum.residuals, residuals, rtol=1e-3, atol=100 * eps * scale)
    return len(clusters)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_called_complete_is_complete(dtype):
    assert sum(check_claims(random_matrix(seed, 64, 4, dtype), 4, seed) for seed in range(20)) > 0


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size, k", [(60, 2), (64, 4), (96, 3), (128, 8), (200, 8)])
def test_what_is_called_complete_is_complete_in_a_thousand_spectra(size, k, dtype):
    claims = [check_claims(random_matrix(s, size, k, dtype), k, s) for s in range(1000, 1100)]
    assert sum(claims) > 0
