"""Images to learn from: MNIST, the small digits, and images in a folder of the user.

MNIST is read from the folder `RIDGERIDER_DATA`, or else in the user's cache. Every file is
checked against its SHA-256 before it is used. Other images have no checksum; their shapes, types
and ranges are checked.
"""

import gzip
import hashlib
import os
import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ridgerider._check import Seed, Whole, check_labels, checked, needs
from ridgerider._core.runtime.compile import cache_folder as cache_folder

_DIGESTS = {
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
FILES = {f"{name}.gz": digest for name, digest in _DIGESTS.items()}


@dataclass(frozen=True)
class Images:
    """Grey images in [0, 1] with labels, for training and for testing.

    >>> images = digits()
    >>> images.train_images.shape, images.test_images.shape, images.num_classes
    ((1437, 8, 8), (360, 8, 8), 10)
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    num_classes: int = 10
    name: str = "images"

    def __str__(self) -> str:
        counts = f"{len(self.train_labels):,} and {len(self.test_labels):,} test"
        height, width = self.train_images.shape[1:]
        return f"{self.name}: {counts} images of {height} x {width} in {self.num_classes} classes"

    @checked
    def some(self, num_train: Whole, num_test: Whole, seed: Seed = 0) -> "Images":
        """At most so many of the images, drawn at random.

        >>> print(digits().some(100, 50))
        digits: 100 and 50 test images of 8 x 8 in 10 classes
        """
        random, parts = np.random.default_rng(seed), dict[str, Any]()
        for name, count in (("train", num_train), ("test", num_test)):
            images, labels = getattr(self, f"{name}_images"), getattr(self, f"{name}_labels")
            rows = random.permutation(len(labels))[:count]
            parts |= {f"{name}_images": images[rows], f"{name}_labels": labels[rows]}
        return replace(self, **parts)


@checked
def digits(seed: Seed = 0) -> Images:
    """The 1,797 digits of 8 x 8 pixels that come with scikit-learn, one fifth for testing.

    >>> digits().train_images.max()
    np.float32(1.0)
    """
    with needs("digits", "the small digits"):
        from sklearn.datasets import load_digits
    found = load_digits()
    images = (found.images / 16).astype(np.float32)
    order = np.random.default_rng(seed).permutation(len(images))
    test, train = order[: len(order) // 5 + 1], order[len(order) // 5 + 1 :]
    labels = found.target.astype(np.int32)
    return Images(images[train], labels[train], images[test], labels[test], name="digits")


@checked
def images_of(data: str | Path, seed: Seed = 0) -> Images:
    """Images by name, "mnist" or "digits", or those of a folder; `seed` splits the digits.

    >>> images_of("digits").name
    'digits'
    """
    if data == "mnist":
        return mnist()
    return digits(seed) if data == "digits" else from_folder(data)


@checked
def from_folder(folder: str | Path) -> Images:
    """Grey images in a folder: four IDX files, or one npz file.

    - IDX: `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and the two of `t10k`, as MNIST and
      Fashion-MNIST have them, compressed (`.gz`) or not.
    - npz: arrays `x_train`, `y_train`, `x_test`, `y_test`. Images are bytes, or floating-point
      numbers from 0 to 1.

    A folder that is called `mnist` claims to be MNIST: its checksums must be those.

    >>> import tempfile
    >>> images, labels = np.zeros((4, 3, 3)), np.array([0, 1, 2, 0])
    >>> folder = Path(tempfile.mkdtemp()) / "mine"
    >>> folder.mkdir()
    >>> np.savez(
    ...     folder / "a.npz", x_train=images, y_train=labels, x_test=images, y_test=labels
    ... )
    >>> print(from_folder(folder))
    mine: 4 and 4 test images of 3 x 3 in 3 classes
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"`data` must be a folder of images, but there is none at {folder}.")
    if folder.resolve().name.lower() == "mnist":
        return mnist(folder)
    archives = sorted(folder.glob("*.npz"))
    if len(archives) > 1:
        names = ", ".join(path.name for path in archives)
        raise ValueError(f"`data` must hold one npz file, but {folder} holds {names}.")
    found = _from_npz(archives[0]) if archives else _from_idx(folder)
    for what, (images, labels) in {"training": found[:2], "test": found[2:]}.items():
        is_bytes = images.dtype == np.uint8
        ends = (images.min(), images.max()) if images.size else (0, 0)
        is_right = is_bytes or (images.dtype.kind == "f" and 0 <= ends[0] <= ends[1] <= 1)
        if images.ndim != 3 or not images.size or not is_right:
            raise ValueError(
                f"the {what} images in {folder} must be grey, of shape (images, height, width), "
                "and bytes or floating-point numbers from 0 to 1, not of shape "
                f"{images.shape} and type {images.dtype}, from {ends[0]:g} to {ends[1]:g}."
            )
        # More classes than examples of them: a byte that means "no label", not a class.
        most = len(images) if what == "training" else int(found[1].max()) + 1
        check_labels(f"the {what} labels in {folder}", labels, len(images), most)
    if found[0].shape[1:] != found[2].shape[1:]:
        raise ValueError(
            f"the test images in {folder} must be of the size of the training images, "
            f"{found[0].shape[1:]}, not {found[2].shape[1:]}."
        )
    return _images(folder.resolve().name, found)


def _images(name: str, found: list[np.ndarray]) -> Images:
    """In the types that the library works with."""
    pixels = [one / np.float32(255 if one.dtype == np.uint8 else 1) for one in found[::2]]
    train, test = (one.astype(np.float32) for one in pixels)
    train_labels, test_labels = (one.astype(np.int32) for one in found[1::2])
    return Images(train, train_labels, test, test_labels, int(train_labels.max()) + 1, name)


def _from_npz(path: Path) -> list[np.ndarray]:
    names = ("x_train", "y_train", "x_test", "y_test")
    try:
        with np.load(path, allow_pickle=False) as stored:
            return [stored[name] for name in names]
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} must be an npz file with {', '.join(names)}, but it cannot be read: {error}."
        ) from error


def _from_idx(folder: Path) -> list[np.ndarray]:
    paths = [one if (one := folder / name).is_file() else one.with_suffix("") for name in FILES]
    for path in paths:
        if not path.is_file():
            raise ValueError(
                f"`data` must be a folder with an npz file or four IDX files, but {folder} has no "
                f"{path.name}, compressed (.gz) or not."
            )
    return list(map(_idx, paths))


@checked
def mnist(folder: str | Path | None = None) -> Images:
    """MNIST: 60,000 training and 10,000 test images of 28 x 28 pixels.

    **Arguments**

    - `folder`: holds the four original files (`train-images-idx3-ubyte.gz` and so on). Default: the
      environment variable `RIDGERIDER_DATA`, or else `~/.cache/ridgerider/mnist`.

    >>> from ridgerider.data import mnist
    >>> images = mnist()  # doctest: +SKIP
    """
    given = folder or os.environ.get("RIDGERIDER_DATA")
    folder = Path(given) if given else cache_folder("mnist")
    for name, digest in FILES.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(
                f"MNIST in `folder` must be complete, but {folder} has no file {name}: put the "
                "four original files there, or set RIDGERIDER_DATA to a folder that has them."
            )
        if (other := hashlib.sha256(path.read_bytes()).hexdigest()) != digest:
            raise ValueError(
                f"{path} must have the SHA-256 {digest}, but it has {other}: it is not MNIST, or "
                "damaged; other images are given as --data FOLDER, in a folder of another name."
            )
    return _images("mnist", _from_idx(folder))


def _idx(path: Path) -> np.ndarray:
    """An IDX file: two zero bytes, a type, the number of axes, their lengths, the entries."""
    num_axes, content = 3 if "images" in path.name else 1, path.read_bytes()
    try:
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        if content[:4] != bytes([0, 0, 8, num_axes]):
            raise ValueError(f"it begins with {content[:4].hex(' ') or 'nothing'}")
        lengths = np.frombuffer(content, ">u4", num_axes, offset=4).astype(int)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * num_axes).reshape(lengths)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise ValueError(
            f"{path} must be an IDX file of bytes with {num_axes} axes, but it is not: {error}."
        ) from error
