"""Images: found and checked."""

import gzip
import os
import shutil
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


def test_without_data_it_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv("RIDGERIDER_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ValueError, match="four original files there, or set RIDGERIDER_DATA"):
        data.mnist()


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
        ((np.ones((3, 2)), np.zeros(4, int)), "`labels` must be .* one for each of the 3 examples"),
        ((np.ones((3, 2)), np.zeros(3)), "`labels` must be whole numbers"),
        ((np.ones((0, 2)), np.zeros(0, int)), "`images` must be .* one example or more"),
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
        ({"widths": (0,)}, "`widths` must be a list, each entry a whole number of at least 1"),
        ({"activation": "sign"}, "`activation` must be 'tanh'"),
        ({"init_scale": -1.0}, "`init_scale` must be at least 0"),
        ({"decay": -1.0}, "`decay` must be at least 0"),
        ({"num_classes": 2}, "`labels` must be from 0 to 1, but they go from 0 to 2"),
    ]:
        with pytest.raises(ValueError, match=what):
            classifier(np.ones((3, 2)), np.array([0, 1, 2]), **settings)


# --- images of one's own


def write_idx(path, array, magic=None, cut=0):
    header = bytes([0, 0, 8, array.ndim]) if magic is None else magic
    content = header + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()
    content = content[: len(content) - cut]
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


NAMES = ("x_train", "y_train", "x_test", "y_test")  # in an npz file


def own_arrays(num_train=12, num_test=6, num_classes=3):
    random = np.random.default_rng(0)
    return {
        "train_images": random.integers(0, 256, (num_train, 5, 4)).astype(np.uint8),
        "train_labels": np.arange(num_train) % num_classes,
        "test_images": random.integers(0, 256, (num_test, 5, 4)).astype(np.uint8),
        "test_labels": np.arange(num_test) % num_classes,
    }


def write_own(folder, arrays, suffix=".gz"):
    folder.mkdir()
    for name, array in zip(data.FILES, arrays.values(), strict=True):
        write_idx(folder / name.replace(".gz", suffix), array)


@pytest.mark.parametrize("suffix", [".gz", ""])
def test_idx_files_of_ones_own_need_no_checksum(tmp_path, suffix):
    arrays = own_arrays()
    write_own(tmp_path / "fashion", arrays, suffix)
    images = data.from_folder(tmp_path / "fashion")
    assert str(images) == "fashion: 12 and 6 test images of 5 x 4 in 3 classes"
    np.testing.assert_allclose(images.train_images * 255, arrays["train_images"], rtol=1e-6)
    np.testing.assert_array_equal(images.test_labels, arrays["test_labels"])
    assert images.train_images.dtype == np.float32 and images.train_labels.dtype == np.int32


def test_npz_files_of_ones_own(tmp_path):
    arrays = own_arrays()
    arrays["test_images"] = arrays["test_images"] / 255  # either type
    np.savez(tmp_path / "any.npz", **dict(zip(NAMES, arrays.values(), strict=True)))
    images = data.images_of(tmp_path)
    assert images.num_classes == 3 and images.test_images.max() <= 1
    np.testing.assert_allclose(images.test_images, arrays["test_images"], rtol=1e-6)


def test_what_claims_to_be_mnist_is_checked(tmp_path):
    write_own(tmp_path / "MNIST", own_arrays())
    with pytest.raises(ValueError, match=r"must have the SHA-256 .* other images are given"):
        data.from_folder(tmp_path / "MNIST")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "train-images-idx3-ubyte.gz",
            {"magic": b"\0\0\x08\1"},
            "but it is not: it begins with 00 00 08 01",
        ),
        ("train-labels-idx1-ubyte.gz", {"magic": b"PK\3\4"}, "it begins with 50 4b 03 04"),
        ("t10k-images-idx3-ubyte.gz", {"cut": 7}, "cannot reshape array of size 113"),
        ("t10k-labels-idx1-ubyte.gz", {"cut": 13}, "it begins with 00"),
        ("t10k-labels-idx1-ubyte.gz", {"cut": 14}, "it begins with nothing"),
        ("t10k-labels-idx1-ubyte.gz", {"cut": 8}, "but it is not"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path, name, content, message):
    arrays = own_arrays()
    write_own(tmp_path / "mine", arrays)
    array = dict(zip(data.FILES, arrays.values(), strict=True))[name]
    write_idx(tmp_path / "mine" / name, array, **content)
    with pytest.raises(ValueError, match=rf"{name}.*{message}"):
        data.from_folder(tmp_path / "mine")


def test_a_broken_archive_is_named(tmp_path):
    write_own(tmp_path / "mine", own_arrays())
    path = tmp_path / "mine" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz must be an IDX file"):
        data.from_folder(tmp_path / "mine")
    (tmp_path / "mine.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"mine\.npz must be an npz file .*cannot be read"):
        data.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_labels": np.arange(12) - 1}, "training labels .* but they go from -1 to 10"),
        ({"train_labels": np.full(12, 255)}, "training labels .* but they go from 255 to 255"),
        ({"train_labels": np.eye(12)}, "training labels .* not of shape .12, 12. and type float64"),
        ({"train_labels": np.arange(5)}, "one for each of the 12 examples, not of shape .5,."),
        ({"test_labels": np.full(6, 4)}, "test labels .* from 0 to 2, but they go from 4 to 4"),
        ({"test_images": np.zeros((6, 4, 4))}, "test images .* of the size of the training images"),
        ({"test_images": np.full((6, 5, 4), np.nan)}, "test images .* from nan to nan"),
        ({"test_images": np.full((6, 5, 4), 255.0)}, "test images .* from 255 to 255"),
        ({"train_images": np.zeros((12, 5, 4, 3))}, "must be grey, .* not of shape .12, 5, 4, 3."),
        ({"train_images": np.zeros((0, 5, 4))}, "not of shape .0, 5, 4."),
    ],
)
def test_own_images_that_are_wrong_are_refused(tmp_path, changes, message):
    arrays = ({**own_arrays(), **changes}).values()
    np.savez(tmp_path / "any.npz", **dict(zip(NAMES, arrays, strict=True)))
    with pytest.raises(ValueError, match=message):
        data.from_folder(tmp_path)


def test_a_folder_without_images_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"has no train-images-idx3-ubyte, compressed \(.gz\) or"):
        data.from_folder(tmp_path)
    with pytest.raises(ValueError, match="must be a folder of images, but there is none at"):
        data.from_folder(tmp_path / "nowhere")
    np.savez(tmp_path / "one.npz", x_train=np.zeros(1))
    with pytest.raises(ValueError, match="y_train is not a file in the archive"):
        data.from_folder(tmp_path)
    np.savez(tmp_path / "two.npz", x_train=np.zeros(1))
    with pytest.raises(ValueError, match=r"holds one\.npz, two\.npz"):
        data.from_folder(tmp_path)
