import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ridgerider import dice as estimates
from ridgerider.problems.tree import make_tree
from ridgerider_experiments import ablation, dice, tree_methods, trees
from ridgerider_experiments.runner import (
    Base,
    Runner,
    about,
    accuracy_interval,
    entries,
    interval,
    percent,
    plus_minus,
    proportion,
)
from ridgerider_experiments.tree_methods import measure, random_vectors, recommended

CALLS: list[int] = []


def quietly(path, workers=1, say=lambda line: None):
    return Runner(path, say, workers)


def square(job):
    CALLS.append(job["x"])
    return {"y": job["x"] ** 2}


def test_a_sweep_goes_on_where_it_was_stopped(tmp_path):
    path, lines = tmp_path / "jobs.jsonl", []
    runner = quietly(tmp_path, say=lines.append)
    jobs = [{"x": x} for x in range(4)]
    CALLS.clear()
    runner(square, jobs[:2])
    with path.open("a") as file:
        file.write('\n{"job": {"x": 2}, "resu')  # a process that was killed
    for _ in range(2):  # the second time there is nothing left to do
        done = runner(square, jobs)
    assert done == [{"y": x**2} for x in range(4)] and CALLS == [0, 1, 2, 3]
    assert any("2 of 4 are done already" in line for line in lines)


def test_jobs_of_an_older_version_of_an_experiment_are_done_again(tmp_path):
    @dataclass(frozen=True)
    class Newer(Base):
        version = 2

    path, jobs = tmp_path / "jobs.jsonl", [Base().job(x=3), Newer().job(x=3)]
    CALLS.clear()
    for job in jobs:
        quietly(tmp_path)(square, [job])
    assert CALLS == [3, 3] and len({one["job"]["version"] for one in entries(path)}) == 2
    assert {one["commit"] for one in entries(path)} == {about()["commit"]}


def test_a_sweep_in_processes_gives_the_same(tmp_path):
    jobs = [{"x": x} for x in range(3)]
    done = quietly(tmp_path, 2)(square, jobs)
    assert done == [{"y": 0}, {"y": 1}, {"y": 4}]


def precision(job):
    return {"is_double": jax.config.jax_enable_x64}


@pytest.mark.parametrize("is_double", [False, True])
def test_a_sweep_in_processes_has_the_precision_of_its_caller(is_double, tmp_path):
    with jax.enable_x64(is_double):
        done = quietly(tmp_path, 2)(precision, [{}])
    assert done == [{"is_double": is_double}]


def test_interval_is_the_t_interval():
    # Mean 0.5, standard deviation 0.1 * sqrt(2.5), t = 2.776 with 4 degrees of freedom.
    found = interval([0.3, 0.4, 0.5, 0.6, 0.7])
    half = 2.7764451 * np.std([0.3, 0.4, 0.5, 0.6, 0.7], ddof=1) / np.sqrt(5)
    assert found["mean"] == pytest.approx(0.5)
    assert found["high"] - 0.5 == pytest.approx(half) == 0.5 - found["low"]
    assert interval([1.0, 1.0, 1.0]) == {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert interval([1.0])["high"] == float("inf")
    assert accuracy_interval([0.5]) == {"mean": 0.5, "low": 0.0, "high": 1.0}
    assert plus_minus(accuracy_interval([0.5])) == "50.0" and plus_minus(found) == "50.0 ± 19.6"


def test_proportions_have_wilsons_interval():
    # The classical examples: 20 of 20, 0 of 10, and 7 of 10 by the closed form.
    assert percent(proportion([1.0] * 20)) == "100 (84-100)"
    assert percent(proportion([0.0] * 10)) == "0 (0-28)"
    assert percent(proportion([1.0] * 7 + [0.0] * 3)) == "70 (40-89)"
    assert percent(None) == "-"


@pytest.mark.parametrize("share", [0.5, 0.9, 0.98])
def test_the_interval_of_proportions_covers(share):
    # Shares of five solutions on each of 20 trees; at least 95 % of the intervals hold the mean.
    random = np.random.default_rng(0)
    found = [proportion(random.binomial(5, share, size=20) / 5) for _ in range(400)]
    assert np.mean([one["low"] <= share <= one["high"] for one in found]) >= 0.95


def test_random_vectors_move_whatever_their_curvature():
    tree = make_tree(4, seed=0)
    ends = {curved: random_vectors(curved)(tree.problem(), max_steps=400) for curved in (0, 1)}
    # A ride that does not move is as long as a look at the start.
    rides = {curved: len(end.x) / end.num_steps for curved, end in ends.items()}
    assert rides[0] < rides[1]


def test_novelty_search_counts_policies_and_breeds_the_new_ones():
    tree = make_tree(4, seed=1)
    method = tree_methods.NoveltySearch(tree)
    ends = method(tree.problem(), max_steps=1010)
    assert ends.num_steps == len(ends.x) == int(ends.cost.values) == 1010
    # Nothing but novelty drives them, and they move away from the even policies at the start.
    assert np.abs(ends.x[-20:]).mean() > 2 * np.abs(ends.x[:20]).mean()
    found = measure(method, tree, max_steps=3000, until_all=True)
    assert found["iterations"] <= 3000 and found["fraction"] > 0


def test_ridge_rider_finds_every_solution_of_small_trees():
    for seed in range(3):
        found = measure(recommended(), make_tree(4, seed=seed), max_steps=3000, until_all=True)
        assert found["fraction"] == 1 and found["iterations"] <= 3000


def test_of_several_step_sizes_the_best_counts():
    one, two = ({"fraction": share, "iterations": 10} for share in (0.2, 0.6))
    found = tree_methods.summary([{"a": one, "b": [one, two]}, {"a": two, "b": [one, one]}], (1, 9))
    assert found["a"]["mean"] == pytest.approx(0.4) and found["a"]["iterations"] == 10
    assert found["b"]["mean"] == pytest.approx(0.4) and found["b"]["step_size"] == 9
    assert found["b"]["tried"] == pytest.approx([0.2, 0.4])


@pytest.mark.parametrize("experiment", [trees, ablation, dice])
def test_results_have_a_table_and_figures(experiment, tmp_path, monkeypatch):
    names = {
        trees: [*trees.METHODS, *(f"{name}_time" for name in trees.METHODS)],
        ablation: [*ablation.METHODS],
        dice: ["rr", "actor_critic", "actor_critic_0.1", "actor_critic_T"],
    }[experiment]

    def work(job):  # every method finds the same; what is tested is how it is put together
        found = {"fraction": 0.5, "iterations": 10, "seconds": 0.1}
        tuned = ("gd_random_tuned", "fixed_ev", "rand_ridge", "actor_critic")
        return {name: [found] * 3 if name in tuned else found for name in names}

    monkeypatch.setattr(experiment, "work", work)
    results = experiment.run(experiment.Settings.quick(0), quietly(tmp_path))
    rows = results["depths"]["4"]
    assert rows["rr"]["mean"] == 0.5 and rows["rr"]["iterations"] == 10
    assert {"low", "high"} <= set(rows["rr"])
    json.dumps(results)
    assert "| Ridge Rider" in experiment.table(results)
    name = experiment.__name__.rsplit(".", 1)[-1]
    for suffix in ("png", "svg"):
        assert (tmp_path / f"{name}.{suffix}").stat().st_size > 5000


def die_once(job):
    mark = Path(job["mark"])
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"y": job["x"]}


@pytest.mark.long
def test_a_dead_worker_ends_a_sweep_and_costs_its_job_alone(tmp_path):
    jobs = [{"x": x, "mark": str(tmp_path / "mark")} for x in (0, 1)]
    with pytest.raises(OSError, match=r"a worker was lost: it was killed.*What is done is kept"):
        quietly(tmp_path, 2)(die_once, jobs)
    assert quietly(tmp_path, 2)(die_once, jobs) == [{"y": 0}, {"y": 1}]


# --- sampled trees


def test_the_sampled_problem_has_the_return_as_value_and_dice_as_derivatives():
    tree = make_tree(3, seed=3)
    problem = dice.sampled(tree, 3)
    environment, words = problem.args
    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    x = jnp.asarray(np.random.default_rng(0).normal(size=2 * tree.size))
    policy, values = x[: tree.size], x[tree.size :]
    paths = environment.sample(policy, key, dice.NUM_SAMPLES)
    advantages = dice.DICE.advantages(paths, values[paths.states])
    given = (policy, environment, paths, advantages)
    assert float(problem.value(x)) == pytest.approx(-float(paths.rewards.sum(axis=1).mean()))
    grad, hessian = problem.grad(x), np.asarray(problem.hessian(x))
    np.testing.assert_allclose(
        grad[: tree.size], estimates.estimate(jax.grad, *given).mean, atol=1e-12
    )
    inner = hessian[: tree.size, : tree.size]
    np.testing.assert_allclose(inner, estimates.estimate(jax.hessian, *given).mean, atol=1e-12)
    # Policy and values share no variable, and the values' part has no ridge.
    assert not hessian[: tree.size, tree.size :].any()
    assert np.linalg.eigvalsh(hessian[tree.size :, tree.size :]).min() >= 0
    moved, _ = dice.learn_values(problem, x, None)
    assert (moved[: tree.size] == policy).all() and (moved[tree.size :] != values).any()


def test_every_step_has_samples_of_its_own():
    problem, key = dice.sampled(make_tree(3, seed=3), 3), jax.random.key(0)
    losses = {float(dice.fresh(problem, key, step).value(problem.x0)) for step in range(4)}
    assert len(losses) > 1
    again = [float(dice.fresh(problem, key, jnp.array(1)).value(problem.x0)) for _ in range(2)]
    assert again[0] == again[1]


@pytest.mark.long
def test_rides_on_samples_find_every_solution_of_a_small_tree():
    tree = make_tree(4, seed=1)
    budget = {"max_steps": 5000, "until_all": True}
    found = measure(dice.recommended(), tree, dice.sampled(tree, 4), **budget)
    assert found["fraction"] == 1 and 0 < found["iterations"] <= 5000
