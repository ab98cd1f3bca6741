"""Environments in one call: what is projected out, what is predicted, and what is refused."""

import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider.environments import Invariant, fit, shared_features


def table(strengths=(4.0, 1.0), size=1500, seed=0, num_classes=2):
    """Column 0 predicts the label alike everywhere, column 1 with a strength of its own."""
    random = np.random.default_rng(seed)
    group = np.repeat(np.arange(len(strengths)), size)
    y = random.integers(0, num_classes, len(group))
    x = random.normal(size=(len(group), 6))
    x[:, 0] += 2.0 * y
    x[:, 1] += np.asarray(strengths)[group] * (y - 0.5 * (num_classes - 1))
    return x, y, group


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_environments_disagree_on_is_projected_out(seed):
    x, y, group = table(seed=seed)
    found = fit(x, y, group, model="linear", seed=seed)
    words = (
        f"these environments share {found.num_features_ - 1} of {found.num_features_} directions"
    )
    assert found.num_unstable_ == 1 and found.verdict_.startswith(words)
    test_x, test_y, _ = table((-3.0, -3.0), seed=seed + 100)
    # One column of distance 2 classifies Phi(1) = 84 % at best.
    assert 0.78 < found.score(test_x, test_y) < 0.87
    plain = fit(test_x[:, [0, 2, 3]], test_y, group, model="linear")
    assert found.score(test_x, test_y) > plain.score(test_x[:, [0, 2, 3]], test_y) - 0.06


def test_environments_that_agree_keep_everything():
    x, y, group = table((2.0, 2.0), seed=3)
    found = fit(x, y, group, model="linear", num_features=6)
    assert "no more than chance" in found.verdict_
    assert found.score(x, y) > 0.9  # two columns of distance 2: Phi(sqrt(2)) = 92 %


def test_a_network_finds_features_of_several_classes():
    x, y, group = table((3.0, 0.5), size=600, num_classes=3)
    names = np.array(["a", "b", "c"])[y]
    found = fit(np.abs(x), names, group, num_features=10)
    assert set(found.predict(np.abs(x[:9]))) <= {"a", "b", "c"}
    np.testing.assert_allclose(found.predict_proba(np.abs(x[:9])).sum(axis=1), 1)
    assert found.score(np.abs(x), names) > 0.5
    again = fit(np.abs(x), names, group, num_features=10)
    np.testing.assert_array_equal(again.predict_proba(x[:9]), found.predict_proba(x[:9]))


def test_features_of_ones_own_and_a_list_of_data_sets():
    x, y, group = table()
    parts = [group == number for number in range(2)]
    one = fit([x[part] for part in parts], [y[part] for part in parts], model=lambda z: z[:, :2])
    assert one.num_features_ == 2 and one.num_unstable_ == 1
    assert rr.environments.fit is fit


def test_the_conventions_of_scikit_learn():
    base = pytest.importorskip("sklearn.base")
    model = base.clone(Invariant("linear", num_features=3, seed=4))
    assert model.get_params() == {"model": "linear", "num_features": 3, "seed": 4}
    x, y, group = table(size=200)
    assert model.fit(x, y, group) is model and model.verdict_ in str(model)
    with pytest.raises(ValueError, match="`params` must be 'model', 'num_features' or 'seed', not"):
        model.set_params(depth=2)


def test_signals_of_several_classes_are_those_of_each():
    random = np.random.default_rng(0)
    features = [jnp.asarray(random.normal(size=(7, 4))) for _ in range(3)]
    targets = [jnp.asarray(random.normal(size=(7, 2))) for _ in range(3)]
    found = shared_features(features, targets)
    alone = [shared_features(features, [y[:, k] for y in targets]) for k in range(2)]
    np.testing.assert_allclose(found.signals, np.stack([one.signals for one in alone], axis=1))
    squares = sum(float(one.noise) ** 2 for one in alone)
    assert float(found.noise) == pytest.approx(squares**0.5)
    # Four directions differ, of four; with a larger noise fewer of them.
    np.testing.assert_allclose(found.projection, 0, atol=1e-9)
    sizes = np.asarray(found.sizes)
    fewer = shared_features(features, targets, noise=float(sizes[1]))
    assert np.trace(fewer.projection) == pytest.approx(3)
    np.testing.assert_allclose(np.asarray(fewer.sizes), [sizes[0], 0, 0, 0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group": np.zeros(300)}, "`group` must name two environments or more, not 1"),
        ({"group": np.zeros(3)}, "must have an entry for each example, not the shapes"),
        ({"targets": np.arange(300)}, "`targets` must be labels of at least two classes"),
        (
            {"targets": np.repeat([0, 1], 150)},
            r"`group` must have 4 examples of each class .* 0 has 0 of class 1",
        ),
        ({"model": "forest"}, "`model` must be 'mlp', 'linear' or callable .* not 'forest'"),
        ({"num_features": 0}, "`num_features` must be a whole number of at least 1, not 0"),
    ],
)
def test_bad_tables_are_refused(change, message):
    x, y, group = table(size=150)
    if "targets" in change:
        group = np.repeat([0, 1], 150)
    given = {"inputs": x, "targets": y, "group": group, "model": "linear", **change}
    with pytest.raises(ValueError, match=message):
        fit(**given)
    with pytest.raises(ValueError, match="`fit` must be called first"):
        Invariant().predict(x)
