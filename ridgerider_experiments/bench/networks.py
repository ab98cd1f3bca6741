"""Networks, all with the same settings.

    ridgerider bench networks [models | large | mnist | equal]

models    conv net and LayerNorm net on the digits, one-layer transformer on addition modulo 7:
          accuracies after one leg, beside Adam's (4,000 steps, rate 3e-3), and processor seconds
large     the first steps of a network of 10 million parameters and a transformer of a million
mnist     784-128-10 on MNIST, or on the images in the folder RIDGERIDER_DATA, beside Adam's 20
          epochs (rate 1e-3)
equal     two hidden layers of 100 on the digits and on MNIST-1D, five seeds: test accuracies after
          one leg and after Adam (rate 1e-3) with as many gradients of 128 examples

The seed draws initial weights, batches and what the search draws.
"""

import os
import resource
import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

import ridgerider as rr
from ridgerider.data import Images, digits, images_of
from ridgerider_experiments.bench import Row
from ridgerider_experiments.ensemble_depth import Network, data_of

KEY = jax.random.key(0)


class Model(NamedTuple):
    params: PyTree
    apply: Callable[[PyTree, Array], Array]
    train: tuple[Array, Array]
    test: tuple[Array, Array]


def linear(number: int, fan_in: int, fan_out: int, key: Array = KEY) -> dict[str, Array]:
    weights = jax.random.normal(jax.random.fold_in(key, number), (fan_in, fan_out), jnp.float32)
    return {"w": weights / fan_in**0.5, "b": jnp.zeros(fan_out, jnp.float32)}


def through(layer: dict[str, Array], inputs: Array) -> Array:
    return inputs @ layer["w"] + layer["b"]


def normed(inputs: Array, scale: Array, shift: Array) -> Array:
    mean = inputs.mean(-1, keepdims=True)
    variance = ((inputs - mean) ** 2).mean(-1, keepdims=True)
    return (inputs - mean) / jnp.sqrt(variance + 1e-5) * scale + shift


def pixels(images: Images) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    return (
        (jnp.asarray(images.train_images, jnp.float32), jnp.asarray(images.train_labels)),
        (jnp.asarray(images.test_images, jnp.float32), jnp.asarray(images.test_labels)),
    )


def conv_net() -> Model:
    def filters(number: int, fan_in: int) -> Array:
        key = jax.random.fold_in(KEY, number)
        return jax.random.normal(key, (8, fan_in, 3, 3), jnp.float32) / (9 * fan_in) ** 0.5

    def convolved(inputs: Array, kernel: Array, bias: Array) -> Array:
        numbers = ("NCHW", "OIHW", "NCHW")
        found = jax.lax.conv_general_dilated(
            inputs, kernel, (2, 2), "SAME", dimension_numbers=numbers
        )
        return jnp.tanh(found + bias[None, :, None, None])

    def apply(params: PyTree, images: Array) -> Array:
        hidden = images.reshape(-1, 1, 8, 8)
        for kernel, bias in params["filters"]:
            hidden = convolved(hidden, kernel, bias)
        return through(params["head"], hidden.reshape(len(images), -1))

    layers = [(filters(number, fan_in), jnp.zeros(8)) for number, fan_in in enumerate((1, 8))]
    return Model({"filters": layers, "head": linear(2, 32, 10)}, apply, *pixels(digits()))


def layer_norm_net() -> Model:
    def apply(params: PyTree, images: Array) -> Array:
        hidden = images.reshape(len(images), -1)
        for layer in params["hidden"]:
            hidden = jax.nn.gelu(normed(through(layer, hidden), layer["scale"], layer["shift"]))
        return through(params["head"], hidden)

    hidden = [
        {**linear(number, fan_in, 32), "scale": jnp.ones(32), "shift": jnp.zeros(32)}
        for number, fan_in in enumerate((64, 32))
    ]
    return Model({"hidden": hidden, "head": linear(2, 32, 10)}, apply, *pixels(digits()))


def transformer(vocabulary: int, width: int, length: int) -> tuple[PyTree, Callable]:
    """One layer of attention and one of a perceptron; the last place is read out."""

    def apply(params: PyTree, tokens: Array) -> Array:
        x = params["embed"][tokens] + params["places"]
        scores = (x @ params["query"]) @ jnp.swapaxes(x @ params["key"], 1, 2)
        x = x + jax.nn.softmax(scores / width**0.5) @ (x @ params["value"]) @ params["out"]
        x = x + through(params["down"], jax.nn.gelu(through(params["up"], x)))
        return x[:, -1] @ params["read"]

    square = {
        name: linear(i, width, width)["w"] for i, name in enumerate(("query", "key", "value"))
    }
    params = {
        **square,
        "embed": linear(3, vocabulary, width)["w"] * (vocabulary**0.5 / 2),
        "places": linear(4, length, width)["w"] * (length**0.5 / 2),
        "out": linear(5, width, width)["w"],
        "up": linear(6, width, 3 * width),
        "down": linear(7, 3 * width, width),
        "read": linear(8, width, vocabulary)["w"],
    }
    return params, apply


def modular_addition() -> Model:
    pairs = np.stack(np.meshgrid(np.arange(7), np.arange(7)), -1).reshape(-1, 2)
    data = jnp.asarray(pairs), jnp.asarray(pairs.sum(1) % 7)
    return Model(*transformer(7, 8, 2), data, data)


def mnist_net(seed: int) -> Model:
    def apply(params: PyTree, images: Array) -> Array:
        return through(params[1], jnp.tanh(through(params[0], images.reshape(len(images), -1))))

    images, key = images_of(os.environ.get("RIDGERIDER_DATA") or "mnist"), jax.random.key(seed)
    num_pixels = images.train_images[0].size
    layers = [linear(0, num_pixels, 128, key), linear(1, 128, images.num_classes, key)]
    return Model(layers, apply, *pixels(images))


def models(seed: int) -> Iterator[Row]:
    for make in (conv_net, layer_norm_net, modular_addition):
        yield from compare(make.__name__, make(), 4000, 3e-3, seed)


def mnist(seed: int) -> Iterator[Row]:
    model = mnist_net(seed)
    yield from compare("mnist_net", model, 20 * (len(model.train[0]) // 128), 1e-3, seed)


def compare(name: str, model: Model, num_steps: int, rate: float, seed: int) -> Iterator[Row]:
    """One leg, the same once more when it is compiled, and Adam."""
    began = time.process_time()
    start = rr.network_start(model.params, model.apply, *model.train, seed=seed)
    accuracy = start.problem.loss.accuracy  # type: ignore[attr-defined]
    task = f"{name}, {start.problem.size} parameters"
    rider, params = rr.Rider.for_networks(), start.problem.unravel
    for who in ("one leg", "one leg, compiled"):
        (leg,) = rr.search(start.problem, rider, max_rides=1, seed=seed)
        assert leg.finish is not None  # the rider has one
        own, ridden = (params(jnp.asarray(x)) for x in (leg.finish.x, leg.x))
        outcome = (
            f"{leg.num_steps} steps, {int(leg.cost.hvps)} HVPs, {int(leg.cost.gradients)} "
            f"gradients; train {accuracy(own, *model.train):.2%}, test "
            f"{accuracy(own, *model.test):.2%}, after the ride {accuracy(ridden, *model.test):.2%}"
        )
        yield Row(task, who, time.process_time() - began, "s of processors", outcome)
        began = time.process_time()
    size = min(128, len(model.train[0]))
    epochs = round(num_steps / (len(model.train[0]) // size))
    train = rr.Train(optax.adam(rate), rr.Batches(size), epochs=epochs)
    x = start.problem.ravel(model.params)
    other = params(train(start.problem, x, jax.random.key(seed)).x)
    spent = time.process_time() - began
    scores = f"train {accuracy(other, *model.train):.2%}, test {accuracy(other, *model.test):.2%}"
    yield Row(task, f"Adam, {epochs} epochs", spent, "s of processors", scores)


def large(seed: int) -> Iterator[Row]:
    random = np.random.default_rng(seed)
    images = jnp.asarray(random.standard_normal((64, 784)), jnp.float32)
    labels = jnp.asarray(random.integers(0, 10, 64))
    wide = {"hidden": linear(0, 784, 12_600), "head": linear(1, 12_600, 10)}
    tokens = jnp.asarray(random.integers(0, 512, (64, 8)))

    def perceptron(params: PyTree, x: Array) -> Array:
        return through(params["head"], jnp.tanh(through(params["hidden"], x)))

    for name, params, apply, inputs, targets in (
        ("transformer", *transformer(512, 288, 8), tokens, tokens[:, 0]),
        ("perceptron", wide, perceptron, images, labels),
    ):
        began = time.perf_counter()
        start = rr.network_start(params, apply, inputs, targets)
        rider = rr.Rider.for_networks(finish=None, max_steps=3)
        (leg,) = rr.search(start.problem, rider, max_rides=1, max_ridges=1)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        outcome = (
            f"{leg.num_steps} steps, {int(leg.cost.hvps)} HVPs, loss {start.loss:.3f} to "
            f"{leg.loss:.3f}, at most {memory:.1f} GB"
        )
        task = f"the first steps, {start.problem.size:,} parameters, with compilation"
        yield Row(task, name, time.perf_counter() - began, "s", outcome)


def equal(seed: int) -> Iterator[Row]:
    for name, number in product(("digits", "mnist1d"), range(seed, seed + 5)):
        inputs, labels, test, truth = map(jnp.asarray, data_of(name, number, 3000))
        model, key = Network(("dense", "dense"), False), jax.random.key(number)
        params = model.params(inputs.shape[1:], 100, key)
        start = rr.network_start(params, model, inputs, labels, seed=number)
        (leg,) = rr.search(start.problem, rr.Rider.for_networks(), max_rides=1, seed=number)
        assert leg.finish is not None  # the rider has one
        trained, rows = leg.finish.cost, min(1024, len(inputs))
        hvps, others = leg.cost.hvps - trained.hvps, leg.cost.gradients - trained.gradients
        work = int(trained.gradients) + int(2 * hvps + others) * rows // 128
        epochs = round(work / (len(inputs) // 128))
        train = rr.Train(optax.adam(1e-3), rr.Batches(128), epochs=epochs)
        adam = train(start.problem, start.problem.ravel(params), key)
        for who, x in (("one leg", leg.finish.x), (f"Adam, {epochs} epochs", adam.x)):
            guesses = jnp.argmax(model(start.problem.unravel(jnp.asarray(x)), test), axis=-1)
            right = 100 * float(jnp.mean(guesses == truth))
            yield Row(f"{name}, seed {number}", who, right, "% of test", f"{work} gradients of 128")


TASKS = (models, large, mnist, equal)
