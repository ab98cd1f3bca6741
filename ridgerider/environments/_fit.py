r"""Environments in one call: a table with a group column in, a classifier and a verdict out.

    features -> project out what environments disagree on -> a linear classifier -> choose

The examples are cut into four parts. Features come from a network trained on one part, whitened;
all that follows uses the other parts, because features agree too well on the examples they were
learned from. The signal of environment i is the mean of (y - p) psi, where p is the share of each
class and classes are weighted alike in all environments. The directions along which signals differ
most are projected out (`shared_features`), and a linear classifier is trained on the rest. This is
done four times, with another part first each time, and logits are averaged.

How many features are used and how many directions are projected out is chosen on a part that was
used for neither: mean accuracy minus five times the gap between environments. The verdict compares
the differences of signals with those of groups that are shuffled inside each class.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from ridgerider._check import Count, Seed, came, check_choice, checked
from ridgerider.environments._scores import agreement
from ridgerider.problems.classifier import Classifier

Model = Literal["mlp", "linear"] | Callable[[Any], Any]
WIDTH = 128  # of both hidden layers
NUM_STEPS, RATE, BATCH, DECAY = 300, 1e-3, 256, 1e-3  # of Adam, for the features
NUM_FEATURES = (5, 10, 20, 40)  # principal components to choose from
NUM_OUT = (0, 1, 2, 4, 8)  # directions to project out
NUM_PARTS = 4  # of the examples
NUM_SHUFFLES = 40  # of the groups: the largest difference of 95 % of them is chance
PENALTY = 1e-3  # on the squares of the classifier's weights; features have variance one

Table = Float[np.ndarray, "examples m"]
Function = Callable[[Table], Table]  # from inputs to features or logits
Layers = list[dict[str, Array]]
NETWORK = Classifier("relu", 2 * DECAY)


@dataclass(frozen=True)
class _Rows:
    """Examples: inputs as a table, classes and environments as numbers."""

    inputs: Table
    labels: Int[np.ndarray, " examples"]
    groups: Int[np.ndarray, " examples"]

    def __getitem__(self, rows: Any) -> "_Rows":
        return _Rows(self.inputs[rows], self.labels[rows], self.groups[rows])

    def weights(self) -> Float[np.ndarray, " examples"]:
        """Sum to one in each environment; each class has the same share in all of them."""
        counts = np.zeros((self.groups.max() + 1, self.labels.max() + 1))
        np.add.at(counts, (self.groups, self.labels), 1)
        return self.shares()[self.labels] / np.maximum(counts, 1)[self.groups, self.labels]

    def shares(self) -> Float[np.ndarray, " classes"]:
        return np.bincount(self.labels) / len(self.labels)

    def classes(self) -> Float[np.ndarray, "examples classes"]:
        return np.eye(self.labels.max() + 1)[self.labels]

    def accuracies(self, logits: Function) -> Float[np.ndarray, " environments"]:
        is_right = logits(self.inputs).argmax(axis=1) == self.labels
        return np.bincount(self.groups, is_right) / np.bincount(self.groups)


class Invariant:
    """A classifier on what several environments share, with the conventions of scikit-learn.

    After `fit`: `verdict_` says in words what the environments share, `classes_` are the labels,
    `num_unstable_` counts the directions that were projected out of `num_features_`,
    `accuracies_` are those on held-out examples of each training environment. `print` shows the
    verdict.

    - `model`: "mlp", features of a network with two hidden layers; "linear", the inputs themselves;
      or a function `features(inputs)` that returns a table, such as a trained network.
    - `num_features`: principal components of the features; None: chosen with the rest.

    >>> model = Invariant("linear").set_params(seed=1)
    >>> model.get_params()
    {'model': 'linear', 'num_features': None, 'seed': 1}
    """

    @checked
    def __init__(
        self,
        model: Model = "mlp",
        num_features: Count | None = None,
        seed: Seed = 0,
    ):
        self.model, self.num_features, self.seed = model, num_features, seed

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        del deep
        return {"model": self.model, "num_features": self.num_features, "seed": self.seed}

    def set_params(self, **params: Any) -> Self:
        for name, value in params.items():
            check_choice("params", name, tuple(self.get_params()))
            setattr(self, name, value)
        return self

    def fit(self, inputs: Any, targets: Any, group: Any) -> Self:
        """Train on examples whose environment is `group`; returns itself."""
        Invariant(**self.get_params())  # checks them
        inputs, labels, groups = map(np.asarray, (inputs, targets, group))
        _check_table(inputs, labels, groups)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        self.environments_, where = np.unique(groups, return_inverse=True)
        rows = _Rows(self._table(inputs), numbers, where)
        random = np.random.default_rng(self.seed)
        # Rows of each class of each environment in turn, so that all parts have all of them.
        order = np.lexsort((random.random(len(labels)), numbers, where))
        part = np.empty(len(labels), int)
        part[order] = np.arange(len(labels)) % NUM_PARTS
        found, every = defaultdict[tuple[int, int], list[np.ndarray]](list), []
        for number in range(NUM_PARTS):
            is_own, is_held_out = part == number, part == (number + 1) % NUM_PARTS
            every.append(self._features(rows[is_own], rows[~is_own], int(random.integers(2**31))))
            learned, held_out = rows[~is_own & ~is_held_out], rows[is_held_out]
            for count, features in every[-1].items():
                table = features(learned.inputs)
                for num_out in [one for one in NUM_OUT if one < count]:
                    head = _head(features, table, learned, num_out)
                    found[count, num_out].append(held_out.accuracies(head))
        means = {choice: np.mean(several, axis=0) for choice, several in found.items()}
        best = max(means, key=lambda one: agreement(means[one]))
        self.accuracies_, plain = means[best], means[best[0], 0]
        self.num_features_, self.num_unstable_ = best
        self._heads = []
        for number, several in enumerate(every):
            features, learned = several[best[0]], rows[part != number]
            table = features(learned.inputs)
            self._heads.append(_head(features, table, learned, best[1]))
        sizes, _ = _differences(table, learned, learned.groups)
        self.verdict_ = self._verdict(plain, sizes, _chance(table, learned, random))
        return self

    def predict_proba(self, inputs: Any) -> Float[np.ndarray, "examples classes"]:
        """Probabilities, in the order of `classes_`."""
        if not hasattr(self, "_heads"):
            raise ValueError("`fit` must be called first, before predictions.")
        if not np.size(inputs) or not np.ndim(inputs):
            raise ValueError(f"`inputs` must have a row for each example, not {came(inputs)}.")
        try:
            table = self._table(np.asarray(inputs))
            return softmax(np.mean([head(table) for head in self._heads], axis=0), axis=1)
        except (TypeError, ValueError):
            raise ValueError(f"`inputs` must be like those of `fit`, not {came(inputs)}.") from None

    def predict(self, inputs: Any) -> np.ndarray:
        chosen = self.predict_proba(inputs).argmax(axis=1)
        return self.classes_[chosen]

    def score(self, inputs: Any, targets: Any) -> float:
        """The accuracy."""
        return float(np.mean(self.predict(inputs) == np.asarray(targets)))

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"Invariant({shown}): {getattr(self, 'verdict_', 'not fitted yet.')}"

    def _table(self, inputs: np.ndarray) -> Table:
        made = np.asarray(self.model(inputs)) if callable(self.model) else inputs
        return made.reshape(len(made), -1).astype(np.float32)

    def _features(self, own: _Rows, others: _Rows, seed: int) -> dict[int, Function]:
        """Features learned from a part of the rows, whitened on the others, by their number.

        They are principal components, each of variance one.
        """
        features = _network(own, seed) if self.model == "mlp" else np.asarray
        inner = features(others.inputs).astype(float)
        center, width = inner.mean(axis=0), inner.shape[1]
        variances, columns = np.linalg.eigh(np.cov((inner - center).T).reshape(width, width))
        whitening = (columns / np.sqrt(np.maximum(variances, 1e-300)))[:, ::-1]
        most = int(np.sum(variances > 1e-6 * variances[-1]))
        wanted = NUM_FEATURES if self.num_features is None else (self.num_features,)

        def whitened(count: int) -> Function:
            return lambda inputs: (features(inputs) - center) @ whitening[:, :count]

        return {count: whitened(count) for count in sorted({min(one, most) for one in wanted})}

    def _verdict(self, plain: np.ndarray, sizes: np.ndarray, chance: float) -> str:
        count, out = self.num_features_, self.num_unstable_
        largest = ", ".join(f"{size:.2g}" for size in sizes[: max(out, 1)])
        is_more = "more" if sizes[0] > chance else "no more"
        known = ", ".join(f"{value:.3f}" for value in self.accuracies_)
        if out:
            words = f"these environments share {count - out} of {count} directions; {out} "
            words += f"unstable {'one is' if out == 1 else 'ones are'} projected out"
        else:
            words = f"these environments share all of {count} directions: nothing is projected out"
        return (
            f"{words}. The largest differences, {largest}, are {is_more} than chance (up to "
            f"{chance:.2g}). Held-out accuracy by environment: {known} (gap "
            f"{np.ptp(self.accuracies_):.3f}; with nothing projected out {np.ptp(plain):.3f})."
        )


@checked
def fit(
    inputs: Any,
    targets: Any,
    group: Any = None,
    model: Model = "mlp",
    *,
    num_features: Count | None = None,
    seed: Seed = 0,
) -> Invariant:
    """A classifier on what environments share, from a table of data with a group column.

    **Arguments**

    - `inputs`, `targets`: an entry for each example; targets are labels of classes.
    - `group`: the environment of each example, such as a hospital. None: `inputs` and `targets` are
      lists with an entry for each environment.
    - `model`, `num_features`: as for `Invariant`.

    Nothing is chosen by any other data than these.

    >>> random = np.random.default_rng(0)
    >>> hospital, y = np.repeat(["north", "south"], 2000), random.integers(0, 2, 4000)
    >>> x = random.normal(size=(4000, 5))
    >>> x[:, 0] += 2.0 * (y - 0.5)  # alike in both
    >>> x[:, 1] += np.where(hospital == "north", 4.0, 2.0) * (y - 0.5)  # not everywhere
    >>> found = fit(x, y, hospital, model="linear")
    >>> found.verdict_[:42]
    'these environments share 4 of 5 directions'
    """
    if group is None:
        if not all(np.ndim(one) for one in (*inputs, *targets)):
            raise ValueError("`group` must be given unless `inputs` and `targets` are lists.")
        lengths = [len(one) for one in targets]
        group = np.repeat(np.arange(len(lengths)), lengths)
        inputs, targets = np.concatenate(list(inputs)), np.concatenate(list(targets))
    return Invariant(model, num_features, seed).fit(inputs, targets, group)


def _check_table(inputs: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> None:
    if not inputs.shape[:1] == labels.shape == groups.shape != ():
        raise ValueError(
            "`inputs`, `targets` and `group` must have an entry for each example, not the shapes "
            f"{inputs.shape}, {labels.shape} and {groups.shape}."
        )
    names, classes = np.unique(groups), np.unique(labels)
    if not 2 <= len(classes) <= len(labels) // 5:
        raise ValueError(
            "`targets` must be labels of at least two classes, with five examples or more of each "
            f"on average, not {len(classes)} classes in shape {labels.shape}."
        )
    if len(names) < 2:
        raise ValueError(f"`group` must name two environments or more, not {len(names)}.")
    for name, label in product(names.tolist(), classes.tolist()):
        count = int(np.sum((groups == name) & (labels == label)))
        if count < NUM_PARTS:
            raise ValueError(
                f"`group` must have {NUM_PARTS} examples of each class in each environment, but "
                f"{name!r} has {count} of class {label!r}."
            )


def _differences(
    table: Table, rows: _Rows, groups: Int[np.ndarray, " examples"]
) -> tuple[np.ndarray, np.ndarray]:
    """How far the signals of these groups differ, largest first, and along which directions.

    A signal is the weighted mean of (y - p) times the features.
    """
    residual = (rows.classes() - rows.shares()) * rows.weights()[:, None]
    parts = [groups == number for number in range(groups.max() + 1)]
    first, *others = [residual[part].T @ table[part] for part in parts]
    return np.linalg.svd(np.concatenate([one - first for one in others]), full_matrices=False)[1:]


def _chance(table: Table, rows: _Rows, random: np.random.Generator) -> float:
    """How far signals of groups differ that are dealt anew among the examples of each class."""
    largest, groups = [], rows.groups.copy()
    for _ in range(NUM_SHUFFLES):
        dealt = np.lexsort((random.random(len(groups)), rows.labels))
        groups[np.argsort(rows.labels, kind="stable")] = rows.groups[dealt]
        largest.append(_differences(table, rows, groups)[0][0])
    return float(np.quantile(largest, 0.95))


def _head(features: Function, table: Table, rows: _Rows, num_out: int) -> Function:
    """Softmax regression on features without the directions along which environments differ most.

    Its slopes and levels are those of the least weighted cross-entropy on `table`, the features.
    """
    basis = _differences(table, rows, rows.groups)[1][:num_out]
    projection = np.eye(table.shape[1]) - basis.T @ basis
    seen, classes = np.column_stack([table @ projection, np.ones(len(table))]), rows.classes()
    shape, shares = (seen.shape[1], classes.shape[1]), rows.weights() / rows.weights().sum()

    def loss(x: Float[np.ndarray, " n"]) -> tuple[float, Float[np.ndarray, " n"]]:
        logs = log_softmax(seen @ x.reshape(shape), axis=1)
        value = -np.sum(shares[:, None] * classes * logs) + PENALTY * x @ x / 2
        slope = seen.T @ (shares[:, None] * (np.exp(logs) - classes))
        return float(value), slope.ravel() + PENALTY * x

    start, options = np.zeros(shape).ravel(), {"maxiter": 200}
    best = minimize(loss, start, jac=True, method="L-BFGS-B", options=options).x.reshape(shape)
    slopes, levels = projection @ best[:-1], best[-1]
    return lambda inputs: features(inputs) @ slopes + levels


# --- the network


def _network(rows: _Rows, seed: int) -> Function:
    """The last hidden layer of a network that was trained on these rows for a short time."""
    center, scale = rows.inputs.mean(axis=0), rows.inputs.std() + 1e-12

    def scaled(inputs: Table) -> Array:
        return jnp.asarray((inputs - center) / scale, jnp.float32)

    sizes = (rows.inputs.shape[1], WIDTH, WIDTH, int(rows.labels.max()) + 1)
    *keys, last = jax.random.split(jax.random.key(seed), len(sizes))
    layers = [
        {
            "weights": jax.random.normal(key, shape, jnp.float32) * float(np.sqrt(2 / shape[0])),
            "bias": jnp.zeros(shape[1], jnp.float32),
        }
        for key, shape in zip(keys, pairwise(sizes), strict=True)
    ]
    shares = jnp.asarray(rows.weights() / rows.weights().sum(), jnp.float32)
    layers = _trained(layers, scaled(rows.inputs), jnp.asarray(rows.labels), shares, last)
    return lambda inputs: np.asarray(_hidden(layers, scaled(inputs)))


@jax.jit
def _hidden(layers: Layers, inputs: Array) -> Array:
    return jax.nn.relu(NETWORK.logits(layers[:-1], inputs))


@jax.jit
def _trained(
    layers: Layers, inputs: Array, labels: Array, shares: Array, key: PRNGKeyArray
) -> Layers:
    optimizer = optax.adam(RATE)

    def step(carry: tuple, own: PRNGKeyArray) -> tuple:
        layers, state = carry
        rows = jax.random.choice(own, len(labels), (BATCH,), p=shares)
        slopes = jax.grad(NETWORK)(layers, inputs[rows], labels[rows])
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            updates, state = optimizer.update(slopes, state)
        return (jax.tree.map(jnp.add, layers, updates), state), None

    steps = jax.random.split(key, NUM_STEPS)
    return jax.lax.scan(step, (layers, optimizer.init(layers)), steps)[0][0]
