import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ridgerider.data import Images, digits
from ridgerider.environments import agreement, extrapolate
from ridgerider.problems.colored import ColoredImages, colored_digits
from ridgerider_experiments import colored_mnist as experiment
from ridgerider_experiments import penalties
from ridgerider_experiments.colored_mnist import NAMES, draw, draw_curves, table


def many(count, side=28):
    """Images whose pixels say which image they are."""
    images = np.ones((count, side, side), np.float32) * np.linspace(0.1, 1, count)[:, None, None]
    labels = np.arange(count, dtype=np.int32) % 10
    return Images(images.astype(np.float32), labels, images[:100].astype(np.float32), labels[:100])


def is_red(one):
    return one.images[:, 0].sum(axis=(1, 2)) > 0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rates_are_as_asked(seed):
    rates = (0.4, 0.1, 0.0)
    colored = ColoredImages(many(30_000), rates, label_noise=0.2, stride=2, seed=seed)
    for one in (*colored.train, *colored.validation):
        # Five standard deviations of a binomial share.
        allowed = 5 * np.sqrt(0.25 / len(one.labels))
        assert np.mean(is_red(one) != one.labels) == pytest.approx(one.flip_rate, abs=allowed)
        assert one.images.shape[1:] == (2, 14, 14)
        assert (one.images[:, 0] * one.images[:, 1] == 0).all()
    # The digit is in the pixels: position in the list, modulo ten.
    one = colored.train[2]
    value = one.grey().images[:, 0, 0, 0].astype(float)
    digit = np.rint((value - 0.1) / 0.9 * 29_999).astype(int) % 10
    assert np.mean((digit >= 5) != one.labels) == pytest.approx(0.2, abs=0.03)
    assert (is_red(colored.train[2]) == colored.train[2].labels).all()  # never flipped


def test_no_image_is_in_two_environments():
    colored = ColoredImages(many(2000), num_validation=400, seed=5)
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
        (
            {"flip_rates": (0.2, 1.1)},
            "`flip_rates` must be a list, each entry between 0 and 1, not",
        ),
        ({"test_rate": -0.1}, "`test_rate` must be between 0 and 1, not -0.1"),
        (
            {"label_noise": float("nan")},
            "`label_noise` must be between 0 and 1 and finite",
        ),
        ({"flip_rates": (0.2,)}, "`flip_rates` must hold at least two environments, not 1"),
        ({"num_validation": 1436}, "`num_validation` must be from 0 to 1435"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        ColoredImages(digits(), **settings)


def test_images_without_validation():
    assert ColoredImages(many(100), num_validation=0).validation[0].labels.size == 0


# --- choosing, and the experiment


def test_rules_choose_as_they_say():
    colour, shape = (0.8, 0.9), (0.72, 0.73)
    assert agreement(shape) == pytest.approx(0.725 - 5 * 0.01)
    assert agreement(shape) > agreement(colour)
    # The paper's environments: A(.2) - 7 (A(.1) - A(.2)).
    assert extrapolate(shape, (0.2, 0.1), 0.9) == pytest.approx(0.72 - 7 * 0.01)
    # A predictor that errs with a fixed rate on either colour: its accuracy is affine in the rate.
    rates = np.array([0.3, 0.2, 0.1])
    assert extrapolate(0.9 - 0.7 * rates, rates, 0.9) == pytest.approx(0.27)
    with pytest.raises(
        ValueError, match="`rates` must be one for each of the 2 `accuracies`, with two"
    ):
        extrapolate(colour, (0.1, 0.1), 0.9)


class Sealed(Images):
    """Images whose test part must not be read before it may be."""

    def __init__(self, images):
        vars(self).update(train_images=images.train_images, train_labels=images.train_labels)
        vars(self).update(_images=images, is_open=False)

    def __setattr__(self, name, value):
        vars(self)[name] = value

    def __getattr__(self, name):
        assert self.is_open, f"{name} was read before a selection was made"
        return getattr(self._images, name)


def test_every_method_gets_training_environments_only():
    job = {"method": "erm", "seed": 0, "batch_size": 50, "num_blocks": 2, "block_size": 3}
    colored = ColoredImages(Sealed(digits()), num_validation=200)
    trained = experiment.train(job, colored.train)["erm"]
    assert trained.steps == [4, 7]
    assert trained.logits(colored.validation[0].images).shape == (2, 100)


@pytest.mark.parametrize("name", ["dro", "group_dro", "fishr"])
def test_further_baselines_train(name):
    job = {"method": name, "seed": 0, "batch_size": 50, "num_blocks": 2, "block_size": 3}
    colored = ColoredImages(digits(), num_validation=200)
    trained = experiment.train(job, colored.train)[name]
    assert np.isfinite(trained.logits(colored.validation[0].images)).all()


def two_environments():
    """Eight examples of three numbers in each of two environments, and a small perceptron."""
    random = np.random.default_rng(0)
    data = [
        (
            jnp.asarray(random.normal(size=(8, 3)), jnp.float32),
            jnp.asarray(random.integers(2, size=8)),
        )
        for _ in range(2)
    ]
    return data, penalties.perceptron(jax.random.key(0), (3, 4, 1))


def test_fishr_compares_variances_of_gradients_of_single_examples():
    data, layers = two_environments()
    images, labels = data[0]

    def loss(last, image, label):
        logits = penalties.outputs([layers[0], last], image[None])
        return penalties.cross_entropy(logits, label[None])

    grads = jax.vmap(jax.grad(loss), (None, 0, 0))(layers[1], images, labels)
    expected = np.concatenate([grads["weights"][:, :, 0].var(axis=0), grads["bias"].var(axis=0)])
    found, other = (
        penalties.gradient_variance(penalties.hidden(layers, x), penalties.outputs(layers, x), y)
        for x, y in data
    )
    np.testing.assert_allclose(found[0], expected, rtol=1e-4)
    fishr = penalties.Training("fishr", decay=0.0, weight=7.0, late_from=0)
    value, losses = penalties.objective(fishr, layers, data, jnp.array(0))
    apart = np.sum((np.asarray(found) - np.asarray(other)) ** 2) / 2  # both from their mean
    assert float(value) == pytest.approx(float(losses.mean()) / 7 + apart, rel=1e-5)


def test_dro_takes_the_worst_environment_and_group_dro_leans_to_it():
    data, layers = two_environments()
    losses = [
        float(penalties.cross_entropy(penalties.outputs(layers, images), labels))
        for images, labels in data
    ]
    zero = jnp.array(0)
    plain = penalties.Training("dro", decay=0.0)
    assert float(penalties.objective(plain, layers, data, zero)[0]) == pytest.approx(max(losses))
    group = penalties.Training("group_dro", decay=0.0)
    found, seen = penalties.objective(
        group, layers, data, zero, past=jnp.array([100, 0], jnp.float32)
    )
    weights = np.exp(0.01 * (np.array(losses) + np.array([100, 0])))
    assert float(found) == pytest.approx(weights @ losses / weights.sum(), rel=1e-6)
    np.testing.assert_allclose(seen, losses, rtol=1e-5)


def test_differences_are_on_equal_seeds():
    one, two = [run_of(0.6), run_of(0.7), run_of(0.7)], [run_of(0.5), run_of(0.7)]
    found = experiment.difference(one, two)
    assert found["seeds"] == 2 and found["test"]["mean"] == pytest.approx(5)
    assert found["test"]["above"] == 1
    assert experiment.by_heart(one) == {"train": pytest.approx(10), "held_out": pytest.approx(10)}
    assert experiment.summary(two)["spread"]["deviation"] == pytest.approx(0.02**0.5)


def run_of(test, steps=2):
    return {
        "curve": [[step, 0.8, 0.7, 0.8, 0.7, test] for step in range(1, steps + 1)],
        "seconds": 2.0,
    }


def test_table_and_figure(tmp_path):
    runs = {name: [run_of(0.6), run_of(0.7)] for name in NAMES}
    draw(runs, tmp_path)
    methods = {name: experiment.summary(of) for name, of in runs.items()}
    draw_curves(methods, tmp_path)
    assert (tmp_path / "colored-mnist-curves.png").stat().st_size > 10_000
    curve = methods["irm"]["curve"]
    assert curve["step"] == [1, 2] and curve["train"][0]["mean"] == pytest.approx(0.75)
    assert curve["runs"] == 2 and curve["test"][1]["mean"] == pytest.approx(0.65)
    apart = {"consistent - irm": experiment.difference(runs["consistent"], runs["irm"])}
    hearts = {"algorithm_4": experiment.by_heart(runs["algorithm_4"])}
    text = table({"methods": methods, "differences": apart, "by_heart": hearts})
    assert "| RR, consistent ridge - IRM | +0.0 ± 0.0 | 0 of 2 |" in text
    assert "| 65.5 ± 1.7 | 58.4 ± 2.4 | 75.0 ± 0.0 | 65.0 ±" in text
    assert (tmp_path / "colored-mnist.png").stat().st_size > 10_000
