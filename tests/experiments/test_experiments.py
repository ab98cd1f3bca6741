import json
from dataclasses import asdict, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import fft

import ridgerider as rr
import ridgerider_experiments as experiments
from ridgerider.coordination import coordinate
from ridgerider.data import digits, images_of
from ridgerider.environments import Algorithm4, Environments
from ridgerider.problems import classifier
from ridgerider.problems.levers import PAPER, Levers, entropy, lever_loss
from ridgerider_experiments import (
    EXPERIMENTS,
    OWN_DATA,
    levers,
    mnist,
    mnist_diversity,
    mnist_sweep,
    players,
    reproduce,
    theory,
)
from ridgerider_experiments.chain import RIDER, chain, next_ride, restore, store
from ridgerider_experiments.colored_mnist.rides import PrintedLosses
from ridgerider_experiments.runner import Runner


@pytest.mark.parametrize("name", theory.STATEMENTS)
def test_no_statement_is_violated(name):
    result = theory.judge(name, np.random.default_rng([1, 2, 3]), 24)
    assert result["violations"] == 0 and result["instances"] >= 20
    assert np.isfinite(result["margin"])


def test_the_checks_can_fail():
    assert theory.verdict([0.1, -0.1, float("nan")])["violations"] == 2


def test_what_fails_as_printed_is_counted():
    found = theory.judge("most_entropy_with_states", np.random.default_rng([1, 2, 3]), 24)
    assert isinstance(found["violations_as_written"], int) and found["violations_as_written"] > 12


def test_the_papers_learning_rate_fails_where_it_should():
    # Theorem 2: stable only for a rate below 1 / (lambda_max / lambda_i - 1)^2 = 1 / 36 here.
    eigenvalues, start = np.array([-1.0, 0.0, 5.0]), np.array([0.9, 0.3, 0.3])
    stable = theory._filter(start, eigenvalues, -1.0, 0.9 / 36, 300, 0)
    unstable = theory._filter(start, eigenvalues, -1.0, 1.1 / 36, 300, 0)
    assert stable[-1] < 1e-6 < 0.1 < unstable[-1]


def test_the_level_set_on_which_theorem_5_fails():
    # Theorem 5: invariant policies of rewards (1, 1, 0) do not reach |grad J| = 0.33; others do.
    found = theory._level_sets()
    assert found["invariant_level"] == pytest.approx(np.sqrt(1.5) / 4)
    assert found["other_level"] == pytest.approx(np.sqrt(2) / 4)
    # Two equal states below a root, by the derivatives of the return.
    action = np.array([1.0, 0.0])

    def size(root):
        def returned(logits):
            p = jax.nn.softmax(logits, axis=1)
            return p[0] @ (p[1:] @ action)

        logits = jnp.stack([jnp.asarray(root), jnp.zeros(2), jnp.zeros(2)])
        return float(jnp.linalg.norm(jax.grad(returned)(logits)))

    assert found["invariant_level_with_states"] == pytest.approx(size([0.0, 0.0]))
    assert found["other_level_with_states"] == pytest.approx(size([99.0, 0.0]))


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


def test_the_two_players_of_a_run_agree_on_each_of_nine_ridges():
    # One less than levers: a constant added to all logits of a player changes nothing.
    result = coordinate(Levers(PAPER), 3, members="all", seed=0)
    actions = [levers.greedy(one) for one in result.candidates]
    assert len(actions) == 9 and all((of[:, 0] == of[:, 1]).all() for of in actions)
    assert len(set(actions[0].ravel())) == 1


def test_players_have_one_ridge_for_each_feature():
    random = np.random.default_rng(0)
    features, labels = random.normal(size=(500, 4)), random.integers(2, size=500)
    problem = players.problem_of(features, labels)
    found = np.linalg.eigvalsh(problem.hessian(problem.x0))
    expected = np.abs((labels - 0.5) @ features) / 500
    np.testing.assert_allclose(found, np.sort([*expected, *-expected]), atol=1e-12)
    # A feature that says the label: its ridge is the first, and the network at its end follows it.
    features[:, 2] = 2 * labels - 1
    networks = players.rides(players.problem_of(features, labels), 2)
    assert players.accuracy(networks[0], features, labels) == 1
    assert players.accuracy(networks[1], features, labels) < 0.7


def test_follow_the_ridge_finds_minimax_points_and_leaves_others():
    for game in players.MINIMAX.values():
        found = players.minimax(players.Settings(num_starts=20), *game)
        assert found == {"descent_ascent": 0.0, "follow_the_ridge": 1.0}


def test_boxes_have_the_shape_and_the_texture_that_they_say():
    pairs = np.array([(0, 0), (0, 1), (1, 0), (1, 1)] * 50)
    images = players.boxes(pairs[:, 0], pairs[:, 1], 0).reshape(-1, players.SIDE, players.SIDE)
    images = fft.idctn(images, axes=(1, 2), norm="ortho")
    changes = [np.abs(np.diff(images, axis=axis)).mean(axis=(1, 2)) for axis in (1, 2)]
    assert ((changes[0] > changes[1]) == (pairs[:, 1] == 1)).mean() > 0.95  # rows or columns
    profiles = np.stack([images.sum(axis=2), images.sum(axis=1)]).clip(0)
    profiles /= profiles.sum(axis=2, keepdims=True)
    spread = profiles @ np.arange(12) ** 2 - (profiles @ np.arange(12)) ** 2
    assert ((spread[1] > spread[0]) == (pairs[:, 0] == 1)).mean() > 0.9  # wide or tall


def test_the_printed_losses_of_algorithm_4_are_the_papers():
    def loss(params, scale):
        return scale * jnp.sum(params["r"] ** 2 * jnp.array([1.0, -2.0])) / 2 + params["f"]

    start = {"f": jnp.array(0.3), "r": jnp.zeros(2)}
    problems = [rr.Problem(loss, start, scale) for scale in (1.0, 3.0)]
    both = Environments(problems, {"f": False, "r": True})
    e, probes = jnp.array([2.0, 0.0]), jnp.array([[0.0, 1.0]])
    ridge, agreement = PrintedLosses().values(both, start, e, probes)
    # Both correlations are 1, the curvatures 4 and 12, the losses 0.3; the gap 8 over |e|^2 = 4.
    assert float(ridge) == pytest.approx(-2 - 16 + 0.6 + 2)
    assert float(agreement) == pytest.approx((6 - 2) / (6 + 2))
    Algorithm4(losses=PrintedLosses())  # which checks their type


def test_a_list_without_a_saddle_is_counted_and_not_the_end(monkeypatch, tmp_path):
    def coordinate(game, num_runs, *, seed):
        raise ValueError("`game` must have a saddle near its `start`.")

    monkeypatch.setattr(levers, "coordinate", coordinate)
    settings = levers.Settings(num_lists=2)
    found = levers.random_lists(settings, Runner(tmp_path, lambda line: None))
    assert found["counts"] == {"no saddle found": 2}
    assert "saddle" in found["exceptions"][0]["reason"]


# --- MNIST's experiments, on the small digits


def test_a_chain_of_rides_learns_the_digits():
    settings = mnist.Settings.quick(0)
    problem = mnist.make_problem(settings, digits(), 0)
    points = []
    rides = chain(problem, mnist.riders(settings)["rr"], averaging=settings.averaging)
    while not points or points[-1].cost.hvps < 2000:
        points.append(next(rides))
    end = points[-1]
    train, test = mnist.accuracies(problem, digits(), end.average)
    assert train > 0.95 and test > 0.9
    assert end.num_rides == len(points) and end.num_steps > 20


def test_a_chain_draws_one_of_so_many_ridges():
    images = digits()
    problem = classifier(images.train_images, images.train_labels, widths=(6,), init_scale=1e-4)
    rider = rr.Rider(
        spectrum=rr.BlockSpectrum(k=8, max_hvps=20, method="gradient"),
        update=rr.Keep(),
        finish=None,
        max_steps=1,
    )
    spectrum = rider.spectrum_at(problem, problem.x0, jax.random.key(0))
    expected = np.sort(np.asarray(spectrum.eigenvalues)[np.asarray(spectrum.is_downhill)])[:3]
    drawn = {
        int(np.abs(expected - float(ride.trace.eigenvalue[0])).argmin())
        for ride, _ in (
            next_ride(problem, rider, problem.x0, jax.random.key(seed), jnp.array(3))
            for seed in range(12)
        )
    }
    assert drawn == {0, 1, 2}


def test_algorithm_2_as_printed_has_the_papers_numbers_and_is_counted(monkeypatch, tmp_path):
    settings = replace(mnist.Settings.quick(0), max_paper_hvps=1_000, num_points=2)
    problem = mnist.make_problem(settings, digits(), 0)
    rider = replace(mnist.riders(settings)["paper_update"], max_steps=1)
    monkeypatch.setattr(mnist, "riders", lambda settings: {"paper_update": rider})
    found = mnist.ride(settings, problem, digits(), "paper_update", 0, tmp_path / "kept.npz")
    assert found["rides"] == found["steps"] > 0  # two HVPs for each inner step
    assert found["hvps"] >= found["rides"] * (2 * 236 + 9)
    assert found["curve"][-1][0] == found["hvps"]
    # A step is the paper's.
    key = jax.random.fold_in(jax.random.key(0), 0)
    ride, _ = next_ride(problem, rider, problem.x0, key, jnp.array(mnist.NUM_RIDGES))
    moved = np.asarray(ride.x - problem.x0)
    assert np.linalg.norm(moved) == pytest.approx(0.00264, rel=1e-4)


def test_a_ride_ends_when_the_loss_no_longer_falls():
    problem = rr.Problem(lambda x: jnp.cos(x[0]), jnp.full(1, 0.1))
    rider = rr.Rider(step=rr.FixedStep(0.1), stop=(mnist.no_longer_falls,), finish=None)
    ride = replace(rider, max_steps=200).ride(
        problem,
        problem.x0,
        rider.spectrum_at(problem, problem.x0, jax.random.key(0)).ridge(0),
        jax.random.key(0),
    )
    # The loss is least at pi, 31 steps on; the means of ten and ten cross five to ten steps later.
    assert 31 <= int(ride.num_steps) <= 45


def test_a_chain_goes_on_where_it_was_stored(tmp_path):
    images = digits()
    problem = classifier(images.train_images, images.train_labels, widths=(6,), init_scale=1e-2)
    rides = chain(problem, RIDER, averaging=0.5)
    points = [next(rides) for _ in range(3)]
    store(tmp_path / "kept.npz", points[1], [[1.0, 2.0]])
    start, curve = restore(tmp_path / "kept.npz")
    assert curve == [[1.0, 2.0]] and restore(tmp_path / "none.npz") == (None, [])
    again = next(chain(problem, RIDER, averaging=0.5, start=start))
    np.testing.assert_array_equal(again.average, points[2].average)
    assert (again.num_rides, again.num_steps) == (3, points[2].num_steps)
    assert int(again.cost.hvps) == int(points[2].cost.hvps)


def test_the_papers_windows_are_looked_at_every_fifty_steps(monkeypatch):
    settings = replace(mnist_diversity.Settings.quick(0), paper_steps=650)
    images = digits()
    problem = classifier(images.train_images, images.train_labels, widths=(6,), init_scale=1e-3)
    looks = []

    def look(problem, x, images):
        looks.append(np.asarray(x))
        return np.full(10, float(len(looks)))

    monkeypatch.setattr(mnist_diversity, "by_digit", look)
    ridge = rr.Rider(finish=None).spectrum_at(problem, problem.x0, jax.random.key(0)).ridge(0)
    one, two = (
        mnist_diversity.ride_paper(settings, problem, images, ridge, repeat) for repeat in (0, 1)
    )
    # From 200 to 600 steps: nine looks in each repeat; 4000 steps are not reached.
    assert set(one) == {"early"} and len(looks) == 18
    np.testing.assert_allclose([one["early"], two["early"]], np.repeat([[5.0], [14.0]], 10, axis=1))
    steps = np.linalg.norm(looks[1] - looks[0]) / 0.000232
    assert 40 < steps <= 50.01  # fifty steps, almost straight


def test_a_trial_of_the_sweep_is_the_same_for_every_method():
    one, same, other = (mnist_sweep.drawn(*at) for at in ((0, 1), (0, 1), (0, 2)))
    assert one == same != other
    settings = mnist_sweep.Settings.quick(0)
    job = {**asdict(settings), "max_spent": 60, "trial": 0, "method": "keep"}
    found = mnist_sweep.work(job)
    assert found["curve"][-1][0] == found["steps"] and found["step_size"] == one_of(0)["step_size"]
    images, held_out = mnist_sweep.parts("digits", 1000, 400)
    assert len(images.train_images) == 1000 and len(held_out.test_images) == 400
    assert not (images.train_images[:, None] == held_out.test_images[None, :5]).all((2, 3)).any()


def one_of(trial):
    return mnist_sweep.drawn(0, trial)


def test_the_sweep_chooses_on_validation_images(tmp_path):
    curves = [[[10, 0.7, 0.9]], [[10, 0.8, 0.6]], [[10, 0.2, 0.95]]]
    runs = [{"curve": curve, "hvps": 5, **one_of(0)} for curve in curves]
    found = mnist_sweep.summary(runs, 0)
    assert found["test_accuracy"] == 0.6 and found["most"] == 0.95 and found["above_60"] == 2
    assert found["low"] <= 0.6 <= found["high"]
    mnist_sweep.draw(dict.fromkeys(mnist_sweep.METHODS, runs), tmp_path)
    finite = mnist_sweep.finite_set({"rr": runs}, 5000, 10_000)
    assert finite["gap"] == pytest.approx(0.75)
    # Hoeffding: each of six means leaves its interval with probability 0.05 / 6 at most.
    exact = sum(np.sqrt(np.log(2 * 6 / 0.05) / (2 * size)) for size in (5000, 10_000))
    assert finite["bound"] == pytest.approx(exact)
    results = {"methods": dict.fromkeys(mnist_sweep.METHODS, found), "trials": 3}
    results["finite_set"] = finite
    assert "| Ridge Rider | 98 | 60.0 |" in mnist_sweep.table(results)
    assert (tmp_path / "mnist-sweep.png").stat().st_size > 5000


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


def test_the_figure_of_diversity_leaves_out_what_was_not_ridden(tmp_path):
    group = {"indices": [0, 4, 8], "early": [[0.1, 0.9]] * 3, "late": [[0.5, 0.6]] * 3}
    short = {part: group[part] for part in ("indices", "early")}
    sizes = []
    for paper in (short, group):
        found = {"clusters": group, "0.1": group, "paper": paper}
        mnist_diversity.draw(found, tmp_path)
        sizes.append((tmp_path / "mnist-diversity.svg").read_text().count("<image"))
    assert sizes == [6, 7]  # with the colour bar; one panel less, and one more
    text = mnist_diversity.table({"groups": {"clusters": group, "0.1": short}})
    assert "| first ridges |" in text and "start 0.1: 1 on all." in text


def test_tables_and_figures_of_the_mnist_experiments(tmp_path):
    one = {"train_accuracy": 0.9, "test_accuracy": 0.8, "hvps": 10, "seconds": 1.0, "steps": 10}
    one["gradients"] = 10
    runs = [{**one, "curve": [[5, 0.5, 0.4, 5], [10, 0.9, 0.8, 10]]}] * 2
    methods = {name: mnist.summary(runs) for name in mnist.METHODS}
    mnist.draw(methods, tmp_path)
    following = mnist.following(methods, 10)
    assert following == {part: {"mean": 0.0, "half": 0.0} for part in ("half", "all")}
    table = mnist.table({"methods": methods, "seeds": 2, "data": "digits", "following": following})
    row = "| RR with corrector | about 98 % | 80.00 ± 0.00 % | 90.00 ± 0.00 % | 2 | 10 | 10 | 1 |"
    assert row in table
    assert (tmp_path / "mnist.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", OWN_DATA)
def test_images_of_ones_own_and_what_is_said_of_them(name, tmp_path, monkeypatch):
    used, lines = [], []
    module = experiments.module(name)
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
        (None, False, "MNIST, from some/folder"),
        (None, True, "scikit-learn; --quick takes these and does not read RIDGERIDER_DATA"),
        (tmp_path / "mine", True, "mine, some of them (--quick)"),
        (tmp_path / "mine", False, f"the images in {tmp_path / 'mine'}"),
    ]:
        reproduce(name, tmp_path, quick=quick, data=data, say=lines.append)
        assert said in lines[-1]
    own = "all" if name == "ensembles" else "mnist"  # which takes the digits as well
    assert [one.data for one in used] == [own, "digits", *[str(tmp_path / "mine")] * 2]
    assert len(images_of(used[-1].data).train_labels) == 40


@pytest.mark.parametrize("name", ["mnist", "surface"])
@pytest.mark.parametrize("is_double", [False, True])
def test_an_experiment_has_a_precision_of_its_own(name, is_double, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        experiments.module(name), "run", lambda *_: seen.append(jnp.zeros(()).dtype) or {}
    )
    monkeypatch.setattr(experiments.module(name), "table", lambda results: "")
    with jax.enable_x64(is_double):
        reproduce(name, tmp_path, quick=True, say=lambda line: None)
        assert jnp.zeros(()).dtype == (jnp.float64 if is_double else jnp.float32)
    assert seen == [jnp.float32 if name == "mnist" else jnp.float64]


@pytest.mark.long
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_runs_at_its_quick_size(name, tmp_path):
    results = reproduce(name, tmp_path, quick=True, say=lambda line: None)
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads(json.dumps(results))
    assert (tmp_path / "table.md").read_text().count("|") > 8
