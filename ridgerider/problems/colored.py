"""Coloured digits: a label that colour predicts better than shape, until it does not.

Digits below five are class 0, the others class 1; a quarter of the labels is flipped, so that shape
predicts 75 % of them. The colour is the label, flipped with a rate that depends on the environment:
with 0.2 and 0.1 in training, colour predicts 85 %, and with 0.9 in the test 10 %.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ridgerider._check import Count, Seed, Share, Whole, check_fields, checked
from ridgerider.data import Images, digits, mnist

RATES = (0.2, 0.1)  # of the paper's training environments
TEST_RATE = 0.9
LABEL_NOISE = 0.25


@dataclass(frozen=True)
class ColoredEnvironment:
    """The images of one environment: red and green channel, side, side; labels 0 or 1.

    >>> one = colored_digits().train[0]
    >>> one.images.shape, one.flip_rate, sorted(set(one.labels.tolist()))
    ((574, 2, 8, 8), 0.2, [0, 1])
    """

    images: np.ndarray
    labels: np.ndarray
    flip_rate: float

    def grey(self) -> "ColoredEnvironment":
        """The same without colour: what an oracle looks at that knows what to ignore."""
        both = np.repeat(self.images.sum(axis=1, keepdims=True), 2, axis=1)
        return ColoredEnvironment(both, self.labels, self.flip_rate)


@dataclass(frozen=True)
class ColoredImages:
    """Environments of coloured images: for training, for validation, and one to be tested in.

    `train` and `validation` hold one environment for each of `flip_rates`; validation images are
    held out of the training images. Nothing of the test environment exists before `load_test`.

    - `flip_rates`, `test_rate`: how often colour and label differ, for each environment.
    - `label_noise`: how often label and digit differ.
    - `stride`: 2 keeps every other pixel.
    - `num_validation`: training images held out, dealt to as many validation environments.

    >>> colored = colored_digits(flip_rates=(0.3, 0.2, 0.1), seed=1)
    >>> [len(one.labels) for one in (*colored.train, *colored.validation)]
    [383, 383, 383, 96, 96, 96]
    >>> colored.load_test().flip_rate
    0.9
    """

    source: Images
    flip_rates: tuple[Share, ...] = RATES
    test_rate: Share = TEST_RATE
    label_noise: Share = LABEL_NOISE
    stride: Count = 1
    num_validation: Whole = 10_000
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if len(self.flip_rates) < 2:
            raise ValueError(
                f"`flip_rates` must hold at least two environments, not {len(self.flip_rates)}."
            )
        most = len(self.source.train_labels) - len(self.flip_rates)
        if not 0 <= self.num_validation <= most:
            raise ValueError(
                f"`num_validation` must be from 0 to {most}, which leaves an image for each "
                f"environment, not {self.num_validation!r}."
            )

    @cached_property
    def train(self) -> tuple[ColoredEnvironment, ...]:
        return self._deal(part=0)

    @cached_property
    def validation(self) -> tuple[ColoredEnvironment, ...]:
        return self._deal(part=1)

    def load_test(self) -> ColoredEnvironment:
        """The test environment. Look at it when everything is chosen."""
        random = np.random.default_rng([self.seed, 2])
        return self._color(self.source.test_images, self.source.test_labels, self.test_rate, random)

    def _deal(self, part: int) -> tuple[ColoredEnvironment, ...]:
        """Every environment gets as many images, and none twice."""
        random, count = np.random.default_rng([self.seed, part]), len(self.flip_rates)
        order = np.random.default_rng([self.seed, 3]).permutation(len(self.source.train_labels))
        rows = order[self.num_validation :] if part == 0 else order[: self.num_validation]
        rows = rows[: len(rows) // count * count]
        images, labels = self.source.train_images, self.source.train_labels
        return tuple(
            self._color(images[rows[k::count]], labels[rows[k::count]], rate, random)
            for k, rate in enumerate(self.flip_rates)
        )

    def _color(
        self, grey: np.ndarray, digit: np.ndarray, rate: Share, random: np.random.Generator
    ) -> ColoredEnvironment:
        labels = (digit >= 5) ^ (random.random(len(digit)) < self.label_noise)
        is_red = labels ^ (random.random(len(digit)) < rate)
        grey = grey[:, :: self.stride, :: self.stride]
        images = np.zeros((len(grey), 2, *grey.shape[1:]), np.float32)
        images[np.arange(len(grey)), np.where(is_red, 0, 1)] = grey
        return ColoredEnvironment(images, labels.astype(np.int32), float(rate))


@checked
def colored_mnist(
    seed: Seed = 0, *, flip_rates: Sequence[Share] = RATES, images: Images | None = None
) -> ColoredImages:
    """Colored MNIST: 25,000 images in each of two training environments and 10,000 to be tested on.

    >>> colored = colored_mnist(seed=0)  # doctest: +SKIP
    """
    return ColoredImages(images or mnist(), tuple(map(float, flip_rates)), stride=2, seed=seed)


@checked
def colored_digits(seed: Seed = 0, *, flip_rates: Sequence[Share] = RATES) -> ColoredImages:
    """The same with the small digits, which need no download.

    >>> colored_digits().load_test().images.shape
    (360, 2, 8, 8)
    """
    return ColoredImages(digits(), tuple(map(float, flip_rates)), num_validation=288, seed=seed)
