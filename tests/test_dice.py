import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ridgerider import dice
from ridgerider.problems.sampled_tree import TreeEnvironment
from ridgerider.problems.tree import make_tree
from tests.problems.test_tree import closed_form

PAIRS = range(20)


@eqx.filter_jit
def estimates(environment, policy, key, num_samples, settings=dice.Dice(), values=None):
    paths = environment.sample(policy, key, num_samples)
    values = jnp.zeros(environment.right.shape[1]) if values is None else values
    advantages = settings.advantages(paths, values[paths.states])
    given = (environment, paths, advantages, settings)
    vector = jnp.linspace(-1, 1, len(policy))

    def products(loss):
        return lambda x: jax.jvp(jax.grad(loss), (x,), (vector,))[1]

    return (
        paths,
        dice.estimate(jax.grad, policy, *given),
        dice.estimate(jax.hessian, policy, *given),
        dice.estimate(products, policy, *given),
        dice.dice_loss(policy, *given),
    )


def make_pair(seed):
    tree = make_tree(3, seed=seed)
    environment = TreeEnvironment(tree, num_times=3)  # one compiled program for all
    return tree, environment, np.random.default_rng(seed).normal(size=8)


def padded(tree, x):
    _, grad, hessian = closed_form(tree, x)
    more = 8 - tree.num_decisions
    return np.pad(grad, (0, more)), np.pad(hessian, (0, more))


@pytest.mark.parametrize("seed", PAIRS)
def test_gradient_and_hessian_agree_with_the_exact_ones(seed):
    tree, environment, policy = make_pair(seed)
    out = estimates(environment, jnp.asarray(policy), jax.random.key(seed), 2000)
    paths, gradient, hessian, product, loss = out
    exact_grad, exact_hessian = padded(tree, policy)
    vector = np.linspace(-1, 1, 8)
    known = (exact_grad, exact_hessian, exact_hessian @ vector)
    for found, exact in zip((gradient, hessian, product), known, strict=True):
        # The norm of the error against that of the standard errors: 3 standard errors altogether.
        assert np.linalg.norm(found.mean - exact) <= 3 * np.linalg.norm(found.error)
    np.testing.assert_allclose(product.mean, hessian.mean @ vector, atol=1e-10)
    assert float(loss) == 0
    returns = np.asarray(paths.rewards.sum(axis=1))
    error = returns.std(ddof=1) / np.sqrt(len(returns))
    assert abs(returns.mean() - tree.returns(policy)) <= 4 * error + 1e-12


def test_the_error_falls_as_one_over_the_root_of_the_samples():
    tree, environment, policy = make_pair(2)
    exact = padded(tree, policy)
    counts, errors = (50, 400, 3200), []
    for count in counts:
        runs = [
            estimates(environment, jnp.asarray(policy), jax.random.key(100 + i), count)[1:3]
            for i in range(30)
        ]
        errors.append(
            [
                np.sqrt(np.mean([np.sum((run[i].mean - exact[i]) ** 2) for run in runs]))
                for i in (0, 1)
            ]
        )
    exponents = np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert np.all((exponents > -0.6) & (exponents < -0.4)), exponents


def test_a_value_function_changes_the_variance_and_not_the_mean():
    tree, environment, policy = make_pair(0)
    exact = padded(tree, policy)[0]
    values = jnp.full(8, float(tree.returns(policy)))
    x, key = jnp.asarray(policy), jax.random.key(3)
    _, plain, *_ = estimates(environment, x, key, 2000)
    _, better, *_ = estimates(environment, x, key, 2000, dice.Dice(), values)
    assert np.linalg.norm(better.error) < np.linalg.norm(plain.error)
    assert np.linalg.norm(better.mean - exact) <= 3 * np.linalg.norm(better.error)


def test_advantages_by_hand():
    # Two steps, then over: deltas are r + gamma V' - V, and decay by gamma tau going back.
    paths = dice.Trajectories(
        jnp.zeros((1, 3), int),
        jnp.zeros((1, 3), int),
        jnp.array([[1.0, 2.0, 99.0]]),
        jnp.array([[1.0, 1.0, 0.0]]),
    )
    values = jnp.array([[0.5, 0.25, 77.0]])
    found = dice.Dice(discount=0.9, tau=0.8).advantages(paths, values)
    second = 2.0 - 0.25
    first = 1.0 + 0.9 * 0.25 - 0.5 + 0.9 * 0.8 * second
    np.testing.assert_allclose(found, [[first, second, 0.0]])


def test_contributions_have_the_derivatives_of_the_formula():
    # Second implementation for two steps: d/dx of sum_t gamma^t (box(w_t) - box(v_t)) A_t by hand.
    settings, advantages = dice.Dice(discount=0.9, decay=0.7), jnp.array([[2.0, -1.0]])
    slopes = np.array([0.3, -0.8])

    def total(x):
        return settings.contributions(x * jnp.asarray(slopes)[None], advantages, jnp.ones((1, 2)))[
            0
        ]

    w = [slopes[0], 0.7 * slopes[0] + slopes[1]]
    v = [0.0, 0.7 * slopes[0]]
    weights = [2.0, 0.9 * -1.0]
    first, second = (
        -sum(a * (p**k - q**k) for a, p, q in zip(weights, w, v, strict=True)) for k in (1, 2)
    )
    found = [jax.jit(one)(0.4) for one in (total, jax.grad(total), jax.grad(jax.grad(total)))]
    assert float(found[0]) == 0 and float(found[1]) == pytest.approx(first)
    assert float(found[2]) == pytest.approx(second)


def make_paths(**shapes):
    sizes = {"actions": (4, 3), "rewards": (4, 3), "mask": (4, 3), **shapes}
    return dice.Trajectories(
        jnp.zeros(sizes["actions"], int),
        jnp.zeros(sizes["actions"], int),
        jnp.zeros(sizes["rewards"]),
        jnp.ones(sizes["mask"]),
    )


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (make_paths(mask=(4, 2)), r"`mask` must have the shape of `actions`, \(4, 3\), not \(4, 2"),
        (make_paths(rewards=(3, 3)), r"`rewards` must have the shape of `actions`"),
        (make_paths(actions=(0, 3), rewards=(0, 3), mask=(0, 3)), "at least one sample"),
    ],
)
def test_bad_trajectories(paths, message):
    _, environment, policy = make_pair(0)
    given = jnp.asarray(policy), environment, paths, jnp.zeros(paths.actions.shape)
    with pytest.raises(ValueError, match=message):
        dice.estimate(jax.grad, *given)


def test_bad_settings():
    with pytest.raises(ValueError, match="`decay` must be between 0 and 1, not 2"):
        dice.Dice(decay=2)
    tree, environment, policy = make_pair(0)
    with pytest.raises(ValueError, match="`num_times` must be a whole number of at least"):
        TreeEnvironment(tree, num_times=1)
    with pytest.raises(
        ValueError, match="`num_samples` must be a whole number of at least 1, not 0"
    ):
        environment.sample(jnp.asarray(policy), jax.random.key(0), 0)


def test_steps_after_the_end_may_be_impossible():
    def total(theta):
        log_probabilities = jnp.array([[0.0, -jnp.inf]]).at[0, 0].set(theta)
        mask = jnp.array([[1.0, 0.0]])
        return jnp.sum(dice.Dice().contributions(log_probabilities, jnp.ones((1, 2)), mask))

    value, slope = jax.value_and_grad(total)(-0.5)
    assert float(value) == 0 and float(slope) == -1
