import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ridgerider import experiments
from ridgerider.data import digits, images_of
from ridgerider.experiments import EXPERIMENTS, OWN_DATA, mnist, mnist_diversity, reproduce, theory
from ridgerider.experiments.chain import chain
from ridgerider.problems import classifier
from ridgerider.problems.levers import entropy, lever_loss


@pytest.mark.parametrize("name", theory.STATEMENTS)
def test_no_statement_is_violated(name):
    result = theory.STATEMENTS[name](np.random.default_rng([1, 2, 3]), 24)
    assert result["violations"] == 0 and result["instances"] >= 20
    assert np.isfinite(result["margin"])


def test_the_checks_can_fail():
    assert theory.verdict([0.1, -0.1, float("nan")], "")["violations"] == 2


def test_the_papers_learning_rate_fails_where_it_should():
    # Theorem 2: stable only for a rate below 1 / (lambda_max / lambda_i - 1)^2 = 1 / 36 here.
    eigenvalues, start = np.array([-1.0, 0.0, 5.0]), np.array([0.9, 0.3, 0.3])
    stable = theory._filter(start, eigenvalues, -1.0, 0.9 / 36, 300, 0)
    unstable = theory._filter(start, eigenvalues, -1.0, 1.1 / 36, 300, 0)
    assert stable[-1] < 1e-6 < 0.1 < unstable[-1]


def test_the_level_set_on_which_theorem_5_fails():
    # Theorem 5: invariant policies of rewards (1, 1, 0) do not reach |grad J| = 0.33; others do.
    invariant, other = theory._level_sets()
    assert invariant == pytest.approx(np.sqrt(1.5) / 4) and invariant < 0.33 < other
    assert other == pytest.approx(np.sqrt(2) / 4)


def test_the_bare_minimiser_breaks_a_symmetry():
    # A list on which two players who lean to different ones of two tied levers gain.
    payoffs = jnp.array([1.0, 0.1, 0.1, 0.1, 0.1, 1.0])
    lean = jnp.log(jnp.array([0.14, 0.2096, 0.2096, 0.2096, 0.2096, 0.0214]))
    tied = np.array(payoffs[:, None] == payoffs[None], float)
    starts = jnp.asarray(np.random.default_rng(0).normal(size=(16, 2, 6)))
    even = jnp.asarray(tied / tied.sum(axis=1, keepdims=True))
    least = theory._least(starts @ even, even, payoffs, jnp.array(0.0412))
    policies = jnp.stack([lean, lean[::-1]])
    grad = jax.grad(lever_loss)(policies, payoffs)
    assert jnp.linalg.norm(grad) - 0.0412 * entropy(policies) < least - 5e-4


# --- MNIST's experiments, on the small digits


def test_a_chain_of_rides_learns_the_digits():
    settings = mnist.Settings.quick(0)
    problem = mnist.make_problem(settings, digits(), 0)
    points = []
    end = chain(
        problem,
        mnist.riders(settings)["rr"],
        max_hvps=2000,
        averaging=settings.averaging,
        each=points.append,
    )
    train, test = mnist.Judge(problem, digits())(end.average)
    assert train > 0.95 and test > 0.9
    assert end.num_rides == len(points) and end.num_steps > 20
    assert int(end.cost.hvps) >= 2000 > int(points[-2].cost.hvps)


def test_near_zero_there_is_one_ridge_less_than_classes():
    settings = mnist_diversity.Settings.quick(0)
    images = digits()
    problem = classifier(images.train_images, images.train_labels, widths=(6,), init_scale=1e-4)
    ridges = mnist_diversity.distinct_ridges(settings, problem, jax.random.key(0))
    # Closed form: the singular values of the cross-moment of residual labels and pixels.
    pixels = images.train_images.reshape(len(images.train_images), -1).astype(float)
    pixels = np.concatenate([pixels, np.ones((len(pixels), 1))], axis=1)
    residual = 0.1 - np.eye(10)[images.train_labels]
    expected = np.linalg.svd(residual.T @ pixels / len(pixels), compute_uv=False)
    found = -np.array([float(ridge.eigenvalue) for ridge in ridges.values()])
    assert len(found) == 9
    np.testing.assert_allclose(found, expected[:9], rtol=0.02)


def test_the_permutation_test_tells_noise_from_difference():
    random, settings = np.random.default_rng(0), mnist_diversity.Settings(num_permutations=499)
    noise = random.normal(size=(9, 3, 10))
    p_values = [
        mnist_diversity.permutation_test(random.normal(size=(5, 3, 4)), settings) for _ in range(40)
    ]
    assert 0.3 < np.mean(p_values) < 0.7  # uniform if nothing depends on the ridge
    differing = noise / 10 + random.normal(size=(9, 1, 10))
    assert mnist_diversity.permutation_test(differing, settings) == 1 / 500


def test_tables_and_figures_of_the_mnist_experiments(tmp_path):
    one = {"train_accuracy": 0.9, "test_accuracy": 0.8, "hvps": 10, "seconds": 1.0, "steps": 10}
    runs = [{**one, "curve": [[5, 0.5, 0.4], [10, 0.9, 0.8]]}] * 2
    methods = {name: mnist.summary(runs) for name in mnist.NAMES}
    equal = mnist.at_equal_steps(runs, [{**one, "steps": 5}, {**one, "steps": 10}])
    assert equal == pytest.approx(0.6)  # the mean of 0.4 after five steps and 0.8 after ten
    methods["random_ridge"]["test_accuracy_at_equal_steps"] = equal
    mnist.draw(methods, tmp_path)
    table = mnist.table({"methods": methods, "seeds": 2, "data": "digits"})
    assert "| RR with corrector | about 98 % | 80.00 ± 0.00 % | 90.00 ± 0.00 % | 10 | 1 |" in table
    assert (tmp_path / "mnist.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", OWN_DATA)
def test_images_of_ones_own_and_what_is_said_of_them(name, tmp_path, monkeypatch):
    used, lines = [], []
    module = experiments._module(name)
    monkeypatch.setattr(module, "run", lambda settings, *_: used.append(settings) or {})
    monkeypatch.setattr(module, "table", lambda results: "")
    images = digits().some(40, 10)
    (tmp_path / "mine").mkdir()
    np.savez(
        tmp_path / "mine" / "a.npz",
        x_train=images.train_images,
        y_train=images.train_labels,
        x_test=images.test_images,
        y_test=images.test_labels,
    )
    monkeypatch.setenv("RIDGERIDER_DATA", "some/folder")
    for data, quick, said in [
        (None, False, "data: MNIST, from some/folder"),
        (None, True, "scikit-learn; --quick takes these and does not read RIDGERIDER_DATA"),
        (tmp_path / "mine", True, "mine, some of them (--quick)"),
        (tmp_path / "mine", False, f"data: the images in {tmp_path / 'mine'}"),
    ]:
        reproduce(name, tmp_path, quick=quick, data=data, say=lines.append)
        assert said in lines[-1]
    assert [one.data for one in used] == ["mnist", "digits", *[str(tmp_path / "mine")] * 2]
    assert len(images_of(used[-1].data).train_labels) == 40


@pytest.mark.long
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_runs_at_its_quick_size(name, tmp_path):
    results = reproduce(name, tmp_path, quick=True, say=lambda line: None)
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads(json.dumps(results))
    assert (tmp_path / "table.md").read_text().count("|") > 8
