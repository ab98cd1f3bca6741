import numpy as np
import pytest

from ridgerider.experiments import theory


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
    def grad_norm(p, rewards):
        return np.linalg.norm(p * (rewards - p @ rewards))

    rewards = np.array([1.0, 1.0, 0.0])
    third = np.linspace(0, 1, 1001)
    invariant = [grad_norm(np.array([(1 - p) / 2, (1 - p) / 2, p]), rewards) for p in third]
    other = [grad_norm(np.array([1 - p, 0, p]), rewards) for p in third]
    assert max(invariant) == pytest.approx(np.sqrt(1.5) / 4) and max(invariant) < 0.33 < max(other)
