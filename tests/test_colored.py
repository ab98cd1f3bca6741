import numpy as np
import pytest

from ridgerider.data import Images
from ridgerider.problems.colored import ColoredImages, colored_digits, colored_mnist


def many(count, side=28):
    """Images whose pixels say which image they are."""
    images = np.ones((count, side, side), np.float32) * np.linspace(0.1, 1, count)[:, None, None]
    labels = np.arange(count, dtype=np.int32) % 10
    return Images(images.astype(np.float32), labels, images[:100].astype(np.float32), labels[:100])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rates_are_as_asked(seed):
    colored = colored_mnist(seed, flip_rates=(0.4, 0.1, 0.0), images=many(30_000), label_noise=0.2)
    for one in (*colored.train, *colored.validation):
        # Five standard deviations of a binomial share.
        allowed = 5 * np.sqrt(0.25 / len(one.labels))
        assert np.mean(one.colors != one.labels) == pytest.approx(one.flip_rate, abs=allowed)
        assert one.images.shape[1:] == (2, 14, 14)
        assert (one.images[:, 0] * one.images[:, 1] == 0).all()
    # The digit is in the pixels: position in the list, modulo ten.
    one = colored.train[2]
    value = one.grey().images[:, 0, 0, 0].astype(float)
    digit = np.rint((value - 0.1) / 0.9 * 29_999).astype(int) % 10
    assert np.mean((digit >= 5) != one.labels) == pytest.approx(0.2, abs=0.03)
    assert (colored.train[2].colors == colored.train[2].labels).all()  # never flipped


def test_no_image_is_in_two_environments():
    colored = colored_mnist(5, images=many(2000), num_validation=400, side=28)
    seen = np.concatenate(
        [one.images.sum(axis=1)[:, 0, 0] for one in (*colored.train, *colored.validation)]
    )
    assert len(seen) == 2000 == len(np.unique(seen))
    assert [len(one.labels) for one in colored.train] == [800, 800]


def test_a_seed_says_everything():
    one, same, other = colored_digits(3), colored_digits(3), colored_digits(4)
    assert np.array_equal(one.train[0].images, same.train[0].images)
    assert np.array_equal(one.load_test().labels, same.load_test().labels)
    assert not np.array_equal(one.train[0].labels, other.train[0].labels)
    # What is asked for first changes nothing.
    first, second = colored_digits(3), colored_digits(3)
    first.load_test()
    assert np.array_equal(first.validation[1].labels, second.validation[1].labels)


def test_the_oracle_sees_no_colour():
    grey = colored_digits().train[0].grey()
    assert np.array_equal(grey.images[:, 0], grey.images[:, 1])
    assert grey.images.sum() == pytest.approx(2 * colored_digits().train[0].images.sum(), rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"flip_rates": (0.2, 1.1)}, r"`flip_rates\[1\]` must be between 0 and 1, not 1.1"),
        ({"test_rate": -0.1}, "`test_rate` must be between 0 and 1, not -0.1"),
        ({"label_noise": float("nan")}, "`label_noise` must be between 0 and 1, not nan"),
        ({"flip_rates": (0.2,)}, "`flip_rates` must hold at least two environments, not 1"),
        ({"num_validation": 1436}, "`num_validation` must be from 0 to 1435"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        colored_digits(**settings)


def test_bad_side():
    with pytest.raises(ValueError, match="`side` must be 14 or 28, not 20"):
        colored_mnist(side=20, images=many(100))
    assert ColoredImages(many(100), num_validation=0).validation[0].labels.size == 0
