"""A multilayer perceptron on images: the paper's MNIST experiments."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ridgerider._check import AtLeast0, Count, Seed, check_choice, check_labels, checked
from ridgerider._core.problem.problem import Problem, Scalar
from ridgerider._search.results.measures import Measures
from ridgerider.data import digits

ACTIVATIONS = ("tanh", "sigmoid", "softplus", "gelu", "silu", "relu")  # of `jax.nn`
Images = Float[Array, "examples ..."]
Labels = Int[Array, " examples"]


class Classifier(eqx.Module):
    """A multilayer perceptron's mean cross-entropy; `params` is a list of layers.

    `decay` / 2 times the sum of all squared parameters is added to it.

    >>> model = Classifier("tanh")
    >>> params = [{"weights": jnp.zeros((4, 3)), "bias": jnp.zeros(3)}]
    >>> round(float(model(params, jnp.ones((2, 2, 2)), jnp.array([0, 1]))), 3)
    1.099
    """

    activation: str = eqx.field(static=True, default="tanh")
    decay: float = eqx.field(static=True, default=0.0)

    def __check_init__(self) -> None:
        check_choice("activation", self.activation, ACTIVATIONS)

    def logits(self, params: PyTree, images: Images) -> Float[Array, "examples classes"]:
        hidden = images.reshape(len(images), -1)
        for number, layer in enumerate(params):
            hidden = hidden @ layer["weights"] + layer["bias"][None]
            if number < len(params) - 1:
                hidden = getattr(jax.nn, self.activation)(hidden)
        return hidden

    def __call__(self, params: PyTree, images: Images, labels: Labels) -> Scalar:
        log_probabilities = jax.nn.log_softmax(self.logits(params, images))
        loss = -jnp.mean(jnp.take_along_axis(log_probabilities, labels[:, None], axis=1))
        squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
        return loss + self.decay / 2 * squares

    def accuracy(self, params: PyTree, images: Images, labels: Labels) -> Scalar:
        """The fraction of the images that get the right label."""
        guesses = jnp.argmax(self.logits(params, images), axis=1)
        return jnp.mean(guesses == jnp.asarray(labels).astype(guesses.dtype))


@checked
def classifier(
    images: np.ndarray | Images,
    labels: np.ndarray | Labels,
    *,
    widths: Sequence[Count] = (128,),
    activation: str = "tanh",
    init_scale: AtLeast0 = 0.01,
    decay: AtLeast0 = 0.0,
    num_classes: Count | None = None,
    seed: Seed = 0,
) -> Problem:
    """The cross-entropy of a multilayer perceptron on labelled images, near the saddle at zero.

    Its data come as `args`, so that `Batches` can cut them; its loss is a `Classifier`.

    **Arguments**

    - `widths`: of the hidden layers.
    - `activation`: tanh, sigmoid, softplus, gelu, silu or relu.
    - `init_scale`: standard deviation of all parameters at the start; 0 is the saddle itself,
      where every ridge is repeated once for each hidden unit.
    - `decay`: of the weights, as a penalty on their squares.
    - `num_classes`: default: one more than the largest label.

    The parameters have the dtype of the images.

    >>> from ridgerider.data import digits
    >>> problem = classifier(digits().train_images, digits().train_labels, widths=(8,))
    >>> problem.size, round(float(problem.value(problem.x0)), 2)
    (610, 2.3)
    """
    images, labels = jnp.asarray(images), jnp.asarray(labels)
    is_floating = jnp.issubdtype(images.dtype, jnp.floating)
    if images.ndim < 2 or not len(images) or not is_floating:
        raise ValueError(
            "`images` must be floating-point numbers with an axis of one example or more before "
            f"those of the pixels, not of shape {images.shape} and type {images.dtype}."
        )
    if num_classes is None:
        num_classes = int(labels.max(initial=0)) + 1 if labels.dtype.kind in "iu" else 1
    check_labels("`labels`", labels, len(images), num_classes)
    sizes = [int(np.prod(images.shape[1:])), *widths, num_classes]
    keys = jax.random.split(jax.random.key(seed), 2 * len(sizes)).reshape(-1, 2)
    start = [
        {
            "weights": init_scale * jax.random.normal(one, (fan_in, fan_out), images.dtype),
            "bias": init_scale * jax.random.normal(two, (fan_out,), images.dtype),
        }
        for (one, two), fan_in, fan_out in zip(keys, sizes[:-1], sizes[1:], strict=False)
    ]
    return Problem(Classifier(activation, float(decay)), start, images, labels)


def digits_classifier() -> Problem:
    """The built-in problem `digits`: 8 hidden units on the small digits."""
    images = digits()
    return classifier(images.train_images, images.train_labels, widths=(8,), init_scale=1e-3)


def guesses(params: PyTree, num_images: int | None = 100) -> list[int]:
    """What a network of `digits_classifier` reads in the first of the unseen images, None: all."""
    images = jnp.asarray(digits().test_images[:num_images])
    return np.asarray(jnp.argmax(Classifier().logits(params, images), axis=1)).tolist()


def accuracy(params: PyTree) -> np.ndarray:
    """Which of all unseen images it reads right."""
    return np.array(guesses(params, None)) == digits().test_labels


def digits_measures() -> Measures:
    """What to note of networks: their guesses on 100 unseen images, and how many of all are right.

    >>> measures = digits_measures()
    >>> problem = digits_classifier()
    >>> len(measures.signature(problem.start)), measures.metrics["accuracy"](problem.start).dtype
    (100, dtype('bool'))
    """
    return Measures(guesses, {"accuracy": accuracy})
