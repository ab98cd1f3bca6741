import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgerider as rr
from ridgerider._search.results.selection import hoeffding_width
from ridgerider.problems import wells


@pytest.fixture(scope="module")
def result():
    return rr.search(wells(3), max_ridges=1)  # eight minima, one per octant


def octant(params):
    return int(np.dot(np.asarray(params) > 0, [4, 2, 1]))


def column(params, table):
    """The scores of a solution are a column of the data: any distribution can be simulated."""
    return table[:, octant(params)]


@pytest.mark.parametrize("best", ["low", "high"])
def test_the_bound_fails_at_most_delta_of_the_time(result, best):
    rng = np.random.default_rng(0)
    delta, num_examples, fails, wrong = 0.1, 40, 0, 0
    for _ in range(500):
        rates = rng.uniform(0.4, 0.6, size=8)  # hard to tell apart: choice is mostly luck
        table = (rng.random((num_examples, 8)) < rates).astype(float)
        chosen = result.select(column, table, best=best, delta=delta)
        truth = rates[octant(chosen.solution.params)]
        sign = 1 if best == "low" else -1
        fails += sign * truth > sign * chosen.bound
        wrong += sign * truth > sign * chosen.score
    assert fails <= delta * 500
    assert wrong > 0.8 * 500  # what the bound is for: the score of the chosen one flatters


def test_the_bound_is_not_needlessly_wide():
    """Where Hoeffding is sharp, fair coins, a width for a tenth of the failures is too small."""
    rng = np.random.default_rng(1)
    num, delta = 1000, 0.05
    width = hoeffding_width(1, num, delta)
    means = rng.binomial(num, 0.5, size=20_000) / num
    assert 0.1 * delta < np.mean(means - 0.5 > width) <= delta


def test_selection_reports_what_was_compared(result):
    table = np.tile(np.linspace(0, 1, 8), (50, 1))
    low, high = (result.select(column, table, best=best) for best in ("low", "high"))
    assert octant(low.solution.params) == 0 and octant(high.solution.params) == 7
    assert [str(one.fingerprint) for one in low.candidates] == [
        str(one.fingerprint) for one in result.minima()
    ]
    expected = [table[0, octant(one.params)] for one in low.candidates]
    np.testing.assert_allclose(low.scores, expected)
    width = np.sqrt(np.log(8 / 0.05) / 100)
    assert low.bound == pytest.approx(width) and high.bound == pytest.approx(1 - width)
    scaled = result.select(lambda p, t: 10 * column(p, t) - 5, table, best="low", between=(-5, 5))
    assert scaled.bound == pytest.approx(-5 + 10 * width)
    one = result.select(column, table / 2, best="low", signature=lambda params: np.zeros(1))
    assert len(one.scores) == 1  # the fewer compared, the tighter
    assert one.bound - one.score == pytest.approx(np.sqrt(np.log(1 / 0.05) / 100))


def seen_loss(x, examples):
    return jnp.sum((x**2 - 1) ** 2) + 0 * jnp.sum(examples["inputs"])


def test_data_of_the_search_is_refused(tmp_path):
    examples = {"inputs": jnp.arange(12.0).reshape(4, 3), "scale": jnp.ones(())}
    problem = rr.Problem(seen_loss, jnp.zeros(1), examples)
    rr.search(problem, out=tmp_path / "run.sqlite")
    result = rr.load(tmp_path / "run.sqlite")  # without the problem: the file knows
    seen = np.arange(12.0).reshape(4, 3)

    def score(params, inputs):
        return np.full(len(inputs), 0.5)

    with pytest.raises(ValueError, match=r"`data` holds an array of shape \(4, 3\) that the sea"):
        result.select(score, seen, best="low")
    assert result.select(score, seen, best="low", allow_same_data=True).score == 0.5
    assert result.select(score, seen + 1, best="low").num_examples == 4


BAD = [
    ({"best": "least"}, "`best` must be 'low' or 'high', not 'least'"),
    ({"delta": 0.0}, "`delta` must lie between 0 and 1, not 0.0"),
    ({"between": (1, 0)}, "`between` must be two finite numbers"),
    ({"score": lambda params, t: t.mean()}, r"`score` must return a vector.*not shape \(\)"),
    ({"score": lambda params, t: t[:, 0] + 3}, "`score` must stay within `between`"),
    ({"score": lambda params, t: t[:, 0] * np.nan}, "`score` must stay within `between`"),
    ({"score": lambda params, t: t[: octant(params) + 1, 0]}, "as many numbers for each solution"),
    ({"data": ()}, "`data` must be given"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_input(result, change, message):
    settings = {"score": column, "data": (np.full((9, 8), 0.5),), "best": "low", **change}
    score, data = settings.pop("score"), settings.pop("data")
    with pytest.raises(ValueError, match=message):
        result.select(score, *data, **settings)


def test_nothing_to_select_from():
    result = rr.search(wells(1), rr.Rider(finish=None))
    with pytest.raises(ValueError, match="nothing to select from"):
        result.select(column, jax.numpy.zeros((3, 8)), best="low")
