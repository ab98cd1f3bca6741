import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import ridgerider as rr
from ridgerider._core.spectra.spectrum import downhill
from ridgerider.problems import tree as tree_problem
from ridgerider.problems.tree import NEGATIVE, POSITIVE, Tree, make_tree, tree_loss

SEEDS = range(3)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def walk(tree, x):
    """Every leaf by brute force: all ways to decide everywhere, each with its probability."""
    total = np.zeros(len(tree.rewards))
    for decided in itertools.product((-1, 1), repeat=tree.num_decisions):
        chance = np.prod([sigmoid(way * x[j]) for j, way in enumerate(decided)])
        fits = np.all((tree.turns == 0) | (tree.turns == np.array(decided)), axis=1)
        total[np.flatnonzero(fits)] += chance
    return total


def closed_form(tree, x):
    """Value, gradient and Hessian of the loss: d log p_l / dx_j = turn_lj sigmoid(-turn_lj x_j)."""
    turns, x = tree.turns, x[: tree.num_decisions]
    p = np.prod(np.where(turns != 0, sigmoid(turns * x), 1), axis=1)
    score = turns * sigmoid(-turns * x)
    weight = -tree.rewards * p
    hessian = np.einsum("l,li,lj->ij", weight, score, score)
    hessian -= np.diag(weight @ (turns**2 * sigmoid(x) * sigmoid(-x)))
    return weight.sum(), weight @ score, hessian


@jax.jit
def derivatives(x, right, left, rewards):
    problem = rr.Problem(tree_loss, x, right, left, rewards)
    return problem.value(x), problem.grad(x), problem.hessian(x)


@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("seed", SEEDS)
def test_return_gradient_and_hessian_against_closed_form_and_enumeration(depth, seed):
    tree = replace(make_tree(depth, seed=seed), size=16)
    x = np.random.default_rng(seed).normal(size=16)
    loss, grad, hessian = derivatives(jnp.asarray(x), *tree.problem().args)
    known = closed_form(tree, x)
    k = tree.num_decisions
    np.testing.assert_allclose(loss, known[0], atol=1e-13)
    np.testing.assert_allclose(grad[:k], known[1], atol=1e-13)
    np.testing.assert_allclose(hessian[:k, :k], known[2], atol=1e-13)
    np.testing.assert_allclose(tree.probabilities(x), walk(tree, x), atol=1e-13)
    assert tree.returns(x) == pytest.approx(-float(loss))
    # Padding adds exact zeros, so that no padded logit is ever taken for a ridge.
    assert not np.any(grad[k:]) and not np.any(hessian[k:]) and not np.any(hessian[:, k:])


@pytest.mark.parametrize("seed", SEEDS)
def test_padding_adds_no_ridges(seed):
    tree, start = replace(make_tree(4, seed=seed), size=16), np.zeros(16)
    hessian = derivatives(jnp.asarray(start), *tree.problem().args)[2]
    padded, known = (np.linalg.eigvalsh(one) for one in (hessian, closed_form(tree, start)[2]))
    scale = jnp.abs(jnp.asarray(known)).max()
    counts = [int(downhill(jnp.asarray(one), 1e-8, scale).sum()) for one in (known, padded)]
    count = counts[0]
    assert counts[1] == count > 0
    np.testing.assert_allclose(padded[:count], known[:count], atol=1e-13)


@pytest.mark.parametrize("seed", range(20))
def test_trees_are_what_they_should_be(seed):
    tree = make_tree(6, seed=seed)
    assert tree.num_decisions >= 2 and tree.num_solutions >= 1
    assert len(tree.rewards) == tree.num_decisions + 1
    assert set(tree.rewards) <= {POSITIVE, NEGATIVE}
    assert max(map(len, tree.leaf_names)) <= 6 and len(set(tree.leaf_names)) == len(tree.rewards)
    reward = dict(zip(tree.leaf_names, tree.rewards, strict=True))
    for name in reward:  # a sibling is another subtree or a leaf with another reward
        sibling = name[:-1] + ("R" if name[-1] == "L" else "L")
        assert reward.get(sibling) != reward[name]
    again = make_tree(6, seed=seed)
    assert np.array_equal(again.turns, tree.turns) and np.array_equal(again.rewards, tree.rewards)


def test_solutions_names_the_leaf_a_policy_reaches():
    tree = make_tree(6, seed=0)
    for row, reward, name in zip(tree.turns, tree.rewards, tree.leaf_names, strict=True):
        policy = np.pad(10.0 * row, (0, tree.size - tree.num_decisions))
        assert tree.solutions(policy) == ({name} if reward > 0 else set())
    # Two positive leaves half and half return 10 and are no solution.
    both = Tree(np.array([[-1, -1], [-1, 1], [1, 0]]), np.array([10.0, -1.0, 10.0]), 2)
    assert both.returns([0.0, -9.0]) > 9.9 and both.solutions([0.0, -9.0]) == set()
    assert both.solutions([0.1, -9.0]) == {"R"}
    assert both.solutions([9.0, 0.0]) == {"R"}
    assert both.solutions([1.5, 9.0]) == set()  # 80 % of 10 and 20 % of -1


def test_the_drawing_has_a_mark_for_each_place():
    ax, tree = Figure().subplots(), make_tree(6, seed=1)
    tree.draw(ax, np.zeros(tree.size))
    marks = [line for line in ax.lines if line.get_marker() == "o"]
    colors = [line.get_color() for line in marks]
    assert colors.count("#0072B2") == tree.num_solutions
    assert colors.count("#FFFFFF") == tree.num_decisions
    assert len(marks) == tree.num_decisions + len(tree.rewards)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": 0}, "`depth` must be a whole number between 1 and 20, not 0"),
        ({"depth": 2.0}, "`depth` must be a whole number"),
        ({"p_terminal": 1.5}, "`p_terminal` must be between 0 and 1, not 1.5"),
        ({"p_positive": -0.1}, "`p_positive` must be between 0 and 1"),
        ({"p_positive": float("nan")}, "`p_positive` must be between 0 and 1"),
        ({"p_positive": 0.0}, "no tree with two decisions and a positive leaf came up in 1000"),
        ({"p_terminal": 1.0}, "no tree with two decisions"),
        ({"depth": 1}, "no tree with two decisions"),
        ({"seed": -1}, "`seed` must be a whole number of at least 0, not -1"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        tree_problem(**settings)


def test_bad_policies():
    tree = make_tree(4, seed=0)
    with pytest.raises(ValueError, match=r"a policy of 8 logits .* not of shape \(3,\)"):
        tree.solutions(np.zeros(3))
    with pytest.raises(ValueError, match="`params` must be a policy"):
        tree.returns(0.0)
